"""Groups as an operator meets them: members that read, commit and leave, a real broker, and SQL when it is down."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("groups") / "root"
    options = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=3")
    with BrokerProcess(root, *(word for option in options for word in ("--set", option))) as process:
        yield process


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {"BUS_ADDRESS": broker.address, "BUS_ROOT": str(broker.root), "PYTHONUNBUFFERED": "1"}


def run(broker: BrokerProcess, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=text, env=environment(broker), prog_name="bus")


def done(broker: BrokerProcess, *arguments: str, text: str | None = None) -> Result:
    result = run(broker, *arguments, text=text)
    assert result.exit_code == 0, result.output
    return result


def fill(broker: BrokerProcess, topic: str, counts: dict[int, int]) -> None:
    if topic not in done(broker, "topics", "list").stdout:
        done(broker, "topics", "create", topic, "--partitions", str(len(counts)))
    for partition, count in counts.items():
        lines = "".join(f"{topic}-{partition} {number}\n" for number in range(count))
        done(broker, "produce", topic, "--partition", str(partition), text=lines)


def lags(broker: BrokerProcess, group: str) -> list[tuple[str, int, int, int]]:
    rows = json.loads(done(broker, "groups", "describe", group).stdout)
    return sorted((row["topic"], row["partition"], row["current_offset"], row["lag"]) for row in rows)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline, "waited for 100 seconds"
        time.sleep(0.02)


def test_a_member_goes_on_where_its_group_is(broker: BrokerProcess) -> None:
    fill(broker, "goes-on", {0: 5, 1: 3})
    first = done(broker, "consume", "goes-on", "--group", "on", "--exit")
    assert sorted(first.stdout.splitlines()) == sorted(
        f"goes-on-{p} {n}" for p, count in ((0, 5), (1, 3)) for n in range(count)
    )
    assert first.stderr.splitlines() == ["assigned: goes-on:0,1", "revoked: goes-on:0,1"]
    assert lags(broker, "on") == [("goes-on", 0, 5, 0), ("goes-on", 1, 3, 0)]
    done(broker, "produce", "goes-on", "--partition", "1", text="new\n")
    assert lags(broker, "on") == [("goes-on", 0, 5, 0), ("goes-on", 1, 3, 1)]
    again = done(broker, "consume", "goes-on", "--group", "on", "--exit", "--quiet")
    assert (again.stdout, again.stderr) == ("new\n", "")


def test_so_many_records_as_were_printed_are_committed(broker: BrokerProcess) -> None:
    fill(broker, "so-many", {0: 10})
    printed = done(broker, "consume", "so-many", "--group", "many", "--max", "4").stdout.splitlines()
    assert printed == [f"so-many-0 {number}" for number in range(4)]
    assert lags(broker, "many") == [("so-many", 0, 4, 6)]
    rest = done(broker, "consume", "so-many", "--group", "many", "--exit").stdout.splitlines()
    assert rest == [f"so-many-0 {number}" for number in range(4, 10)]


def test_from_end_is_for_a_group_without_offsets(broker: BrokerProcess) -> None:
    fill(broker, "from-end", {0: 3})
    assert done(broker, "consume", "from-end", "--group", "end", "--from", "end", "--exit").stdout == ""


def test_several_topics_are_read_alone_and_in_a_group(broker: BrokerProcess) -> None:
    fill(broker, "several-a", {0: 2})
    fill(broker, "several-b", {0: 1})
    alone = done(broker, "consume", "several-a", "several-b", "--exit", "--format", "%t %o\\n").stdout
    grouped = done(broker, "consume", "several-a", "several-b", "-g", "both", "--exit", "--format", "%t %o\\n").stdout
    assert sorted(alone.splitlines()) == sorted(grouped.splitlines()) == ["several-a 0", "several-a 1", "several-b 0"]


def test_a_topic_that_is_not_there_is_refused_by_name(broker: BrokerProcess) -> None:
    refused = run(broker, "consume", "nowhere", "--group", "g")
    assert refused.exit_code == 1
    assert "nowhere" in refused.stderr


def test_members_share_the_partitions_and_leave_at_once_on_ctrl_c_and_sigterm(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    fill(broker, "shared", {0: 1, 1: 1})
    logs = [tmp_path / name for name in ("first", "second")]
    members = []
    for log in logs:
        with log.open("wb") as stream:
            members.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bus", "consume", "shared", "--group", "shared"],
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    env={**os.environ, **environment(broker)},
                )
            )
        wait_for(lambda log=log: "assigned: shared" in log.read_text())  # type: ignore[misc]
    try:
        wait_for(lambda: "revoked: shared:0,1" in logs[0].read_text())
        described = json.loads(done(broker, "groups", "describe", "shared", "--members", "--verbose").stdout)
        assert sorted(row["assignment"] for row in described) == ["shared:0", "shared:1"]
        active = run(broker, "groups", "reset-offsets", "shared", "--topic", "shared", "--to-earliest", "--execute")
        assert active.exit_code == 1
        assert "expected group shared to be inactive, found it Stable with bus-consume-" in active.stderr

        members[0].send_signal(signal.SIGINT)
        assert members[0].wait(timeout=100) == 130
        wait_for(lambda: logs[1].read_text().count("assigned: shared:0,1") == 1)
        members[1].send_signal(signal.SIGTERM)
        assert members[1].wait(timeout=100) == 143
        state = json.loads(done(broker, "groups", "describe", "shared", "--state").stdout)
        assert [(row["state"], row["members"]) for row in state] == [("Empty", 0)]
        assert "Traceback" not in logs[0].read_text() + logs[1].read_text()
    finally:
        for member in members:
            member.kill()
            member.wait(timeout=100)


def test_topics_are_chosen_by_patterns_and_partitions_in_the_name(broker: BrokerProcess) -> None:
    for topic in ("match-a", "match-b", "other-match"):
        fill(broker, topic, {0: 1, 1: 1})
    form = ("--exit", "--format", "%t/%p\\n", "--quiet")
    matched = ["match-a/0", "match-a/1", "match-b/0", "match-b/1"]
    assert sorted(done(broker, "consume", "^match", *form).stdout.split()) == matched
    both = done(broker, "consume", "^match-b$", "match-a/1", "-p", "0", *form).stdout.split()
    assert sorted(both) == ["match-a/1", "match-b/0"]
    assert sorted(done(broker, "consume", "^match", "--group", "matching", *form).stdout.split()) == matched
    nothing = run(broker, "consume", "^nothing", *form)
    assert nothing.exit_code == 1
    assert nothing.stderr.startswith("error: no topic matches ^nothing; topics: ")
    assert run(broker, "consume", "^(", *form).exit_code == 2
    assert "found both" in run(broker, "consume", "match-a/0", "--group", "g").stderr
    assert "match-a-0: last offset 1" in done(broker, "produce", "match-a/0", text="x\n").stderr
    assert [row["partition"] for row in json.loads(done(broker, "offsets", "match-a/1").stdout)] == [1]


def test_a_member_that_waits_says_so(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "bus", "consume", "^waits-for-it", "--group", "waiting"]
    environ = {**os.environ, **environment(broker)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as member:
        assert member.stderr is not None
        try:
            assert b"nothing" in member.stderr.readline()
        finally:
            member.kill()


@pytest.mark.parametrize("is_waiting", [True, False], ids=["pipe waits", "pipe does not wait"])
def test_a_line_is_printed_whole_and_committed_or_neither_however_slowly_it_is_taken(
    broker: BrokerProcess, is_waiting: bool
) -> None:
    """As in a container, where PYTHONUNBUFFERED is set: standard output has no buffer, and a write may be short."""
    topic, group, count = f"slow-{is_waiting}".lower(), f"slow-{is_waiting}", 100_000
    fill(broker, topic, {0: count})
    printed = b""
    for number in (signal.SIGTERM, None):
        read, write = os.pipe()
        os.set_blocking(write, is_waiting)
        member = subprocess.Popen(
            [sys.executable, "-m", "bus", "consume", topic, "--group", group, "--exit"],
            stdout=write,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment(broker)},
        )
        os.close(write)
        begun = len(printed)
        while piece := os.read(read, 50_021):
            printed += piece
            if number is not None and len(printed) > begun + 200_000:
                member.send_signal(number)
                number = None
        os.close(read)
        member.wait(timeout=100)
        assert printed.endswith(b"\n")
        [(_, _, offset, _)] = lags(broker, group)
        assert offset == printed.count(b"\n")
    assert printed.splitlines() == [b"%s-0 %d" % (topic.encode(), number) for number in range(count)]


def test_offsets_are_reset_and_read_again(broker: BrokerProcess) -> None:
    fill(broker, "again", {0: 5})
    done(broker, "consume", "again", "--group", "again", "--exit")
    done(broker, "groups", "reset-offsets", "again", "--topic", "again", "--shift-by", "-2", "--execute")
    assert done(broker, "consume", "again", "--group", "again", "--exit").stdout == "again-0 3\nagain-0 4\n"


def test_a_group_begins_at_a_delta_version(broker: BrokerProcess) -> None:
    fill(broker, "versions", {0: 3})
    fill(broker, "versions", {0: 2})
    done(broker, "groups", "create", "at-1", "--topic", "versions", "--to-version", "1")
    assert lags(broker, "at-1") == [("versions", 0, 3, 2)]
    done(broker, "groups", "reset-offsets", "at-1", "--topic", "versions", "--to-version", "0", "--execute")
    assert lags(broker, "at-1") == [("versions", 0, 0, 5)]
    refused = run(broker, "groups", "create", "at-9", "--topic", "versions", "--to-version", "9")
    assert refused.exit_code == 1
    assert "versions-0: expected a Delta version that is there, found 9" in refused.stderr


def test_a_group_and_its_offsets_are_deleted(broker: BrokerProcess) -> None:
    fill(broker, "deleted", {0: 1, 1: 1})
    done(broker, "consume", "deleted", "--group", "deleted", "--exit")
    done(broker, "groups", "delete-offsets", "deleted", "--topic", "deleted:0", "--yes")
    assert lags(broker, "deleted") == [("deleted", 1, 1, 0)]
    done(broker, "groups", "delete", "deleted", "--yes")
    assert "deleted" not in done(broker, "groups", "list").stdout
    assert run(broker, "groups", "describe", "deleted").exit_code == 1


def test_sql_tells_the_same_lag_with_the_broker_up_and_down(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root", "--set", "group.initial.rebalance.delay.ms=0") as broker:
        fill(broker, "orders", {0: 5, 1: 3})
        done(broker, "consume", "orders", "--group", "billing", "--max", "6")
        done(broker, "groups", "create", "late", "--topic", "orders", "--to-latest")
        described = [row for group in ("billing", "late") for row in lags(broker, group)]
        query = "SELECT topic, partition, committed_offset, lag FROM lag ORDER BY group_id, topic, partition"

        def answer(statement: str) -> list[tuple[str, ...]]:
            return [
                tuple(row) for row in csv.reader(done(broker, "sql", statement, "--format", "csv").stdout.splitlines())
            ][1:]

        up = answer(query)
        assert up == [tuple(map(str, row)) for row in described]
        groups = answer("SELECT group_id, state, member_count FROM groups ORDER BY group_id")
        assert groups == [("billing", "Empty", "0"), ("late", "Empty", "0")]
        assert answer("SELECT count(*) FROM partitions WHERE error IS NOT NULL") == [("0",)]
        assert broker.terminate() == 0
        assert answer(query) == up


def test_members_are_removed_and_join_again(broker: BrokerProcess) -> None:
    fill(broker, "removing", {0: 1})
    command = [sys.executable, "-m", "bus", "consume", "removing", "--group", "removing"]
    environ = {**os.environ, **environment(broker)}
    member = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        assert member.stderr is not None
        assert member.stderr.readline() == "assigned: removing:0\n"
        (row,) = json.loads(done(broker, "groups", "describe", "removing", "--members").stdout)
        removed = done(broker, "groups", "remove-members", "removing", "--member", row["consumer_id"])
        assert removed.stdout == "removed 1 member of removing\n"
        assert next(line for line in member.stderr if line.startswith("assigned")) == "assigned: removing:0\n"
        assert done(broker, "groups", "remove-members", "removing", "--all", "--yes").stdout.startswith(
            "removed 1 member"
        )
    finally:
        member.kill()
        member.communicate()
    assert "expected --member" in run(broker, "groups", "remove-members", "removing").stderr


def test_settings_and_brokers_are_listed(broker: BrokerProcess) -> None:
    (one,) = json.loads(done(broker, "config", "offsets.topic.num.partitions").stdout)
    assert (one["value"], one["default"], one["source"]) == ("3", "8", "STATIC_BROKER_CONFIG")
    names = [row["name"] for row in json.loads(done(broker, "config").stdout)]
    changed = [row["name"] for row in json.loads(done(broker, "config", "--changed").stdout)]
    assert {"commit.interval.ms", "root", "log.retention.ms"} <= set(names)
    assert "offsets.topic.num.partitions" in changed
    assert "log.retention.ms" not in changed
    table = done(broker, "config", "offsets.topic.num.partitions", "--format", "table").stdout
    assert "offsets.topic.num.partitions=3" in table
    assert "default 8" in table
    fill(broker, "configured", {0: 1})
    done(broker, "topics", "alter", "configured", "--config", "retention.ms=5000")
    (row,) = json.loads(done(broker, "config", "--topic", "configured", "--changed").stdout)
    assert (row["name"], row["value"], row["source"]) == ("retention.ms", "5000", "DYNAMIC_TOPIC_CONFIG")
    absent = run(broker, "config", "zookeeper.connect")
    assert absent.exit_code == 1
    assert absent.stderr.startswith("error: zookeeper.connect: no key of the bus: there is no ZooKeeper")
    (listed,) = json.loads(done(broker, "brokers").stdout)
    assert listed == {"broker": 0, "host": "127.0.0.1", "port": int(broker.address.split(":")[1]), "role": "controller"}
