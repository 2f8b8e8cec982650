"""Members of a group killed, paused and started again, and their broker once: what the consumer promises holds.

Judged by what the members noted, by the tables, and by what the commands for operators say; the seed decides what
happens to whom, nothing is judged by how long it took.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bus.sql
from bus import Admin, NewTopic, Producer
from bus.cli.main import cli
from tests.support.broker_process import BrokerProcess
from tests.support.member_processes import MemberProcess, MemberProcesses, wait_until, wait_until_holds
from tests.support.processing_member import WORKERS
from tests.support.steady_producer import SteadyProducer

TOPIC = "ledger"
GROUP = "clerks"
PARTITIONS = 12
SETTINGS = (
    "group.min.session.timeout.ms=500",
    "group.initial.rebalance.delay.ms=100",
    "offsets.topic.num.partitions=3",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with BrokerProcess(tmp_path / "root", *options) as process:
        with Admin(process.address) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])
        yield process


def disturb(members: MemberProcesses, broker: BrokerProcess, chance: random.Random, steps: int) -> None:
    """Disturb for `steps` steps of half a second or so; half way through the broker is killed as well."""
    for step in range(steps):
        threading.Event().wait(chance.uniform(0.2, 0.8))  # the moment is the input of this test
        members.disturb(chance)
        if step == steps // 2:
            broker.kill()
            broker.start()
    members.heal()


def query(broker: BrokerProcess, sql: str) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(broker.root)) as connection:
        return connection.sql(sql).fetchall()


def committed(broker: BrokerProcess) -> dict[int, int]:
    with Admin(broker.address) as admin:
        return {key.partition: found.offset for key, found in admin.list_group_offsets(GROUP).items()}


def command(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli, arguments, env={"BUS_ADDRESS": broker.address, "BUS_ROOT": str(broker.root)}, prog_name="bus"
    )


def rows(broker: BrokerProcess, *arguments: str) -> list[dict[str, Any]]:
    result = command(broker, *arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    listed: list[dict[str, Any]] = json.loads(result.stdout)
    return listed


# ------------------------------------------------------------ at least once


@pytest.mark.timeout(240)
def test_members_killed_and_paused_process_everything_at_least_once_and_in_order(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    def program(name: str, journal: Path) -> list[str]:
        return ["tests.support.journal_member", broker.address, TOPIC, GROUP, name, str(journal)]

    with (
        MemberProcesses(8, tmp_path / "members", program) as members,
        SteadyProducer(broker.address, TOPIC, PARTITIONS, records=5) as producer,
    ):
        disturb(members, broker, random.Random(11), steps=40)
        end = producer.finish()

        def is_done() -> bool:
            members.check_alive()
            return committed(broker) == dict.fromkeys(range(PARTITIONS), end)

        wait_until(is_done, "all is committed")
        check_commands_while_members_are_there(broker, members, end)
        members.end_in_order()
    processed = {place for journal in members.journals for place in check_journal(journal.read_text().splitlines())}
    assert processed == {(partition, offset) for partition in range(PARTITIONS) for offset in range(end)}
    check_tables(broker, end)
    check_reset(broker, end)


def check_journal(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Check what one process has processed: only what it was given, in order without a gap as long as it had it, and
    the very records that were sent."""
    owned: set[int] = set()
    next_offset: dict[int, int] = {}
    for line in lines:
        match line.split():
            case ["assigned", partition]:
                assert int(partition) not in owned, f"partition {partition} was assigned twice"
                owned.add(int(partition))
                next_offset.pop(int(partition), None)
            case ["revoked" | "lost", partition]:
                owned.remove(int(partition))
            case [partition, offset, value]:
                number, found = int(partition), int(offset)
                assert number in owned, f"record {found} of partition {number} came to a member that does not have it"
                assert value == offset, f"expected the value {offset}, found {value}"
                assert found == next_offset.get(number, found), f"{number}: expected {next_offset[number]}, got {found}"
                next_offset[number] = found + 1
                yield number, found
            case _:
                pytest.fail(f"not a line of a journal: {line!r}")


def check_commands_while_members_are_there(broker: BrokerProcess, members: MemberProcesses, end: int) -> None:
    """All is committed, and the group comes to rest: every member that is dead is put out."""
    wait_until_holds(lambda: check_descriptions(broker, members, end))
    refused = command(broker, "groups", "reset-offsets", GROUP, "--topic", TOPIC, "--to-earliest", "--execute")
    assert (refused.exit_code, "to be inactive" in refused.stderr) == (1, True), refused.output


def check_descriptions(broker: BrokerProcess, members: MemberProcesses, end: int) -> None:
    state = rows(broker, "groups", "describe", GROUP, "--state")
    assert [(row["state"], row["assignment_strategy"]) for row in state] == [("Stable", "cooperative-sticky")]
    listed = rows(broker, "groups", "describe", GROUP, "--members", "--verbose")
    assert sorted(row["client_id"] for row in listed) == [member.name for member in members.members]
    assignments = [number for row in listed for number in numbers_in(row["assignment"])]
    assert sorted(assignments) == list(range(PARTITIONS)), "each partition has one owner"
    offsets = rows(broker, "groups", "describe", GROUP, "--offsets")
    assert len(offsets) == PARTITIONS, "no member is without a partition"
    found = {(row["partition"], row["current_offset"], row["log_end_offset"], row["lag"]) for row in offsets}
    assert found == {(number, end, end, 0) for number in range(PARTITIONS)}
    of_members = {(number, row["consumer_id"]) for row in listed for number in numbers_in(row["assignment"])}
    assert {(row["partition"], row["consumer_id"]) for row in offsets} == of_members
    assert set(query(broker, "SELECT partition, consumer_id FROM lag")) == of_members, "the tables say the same"


def numbers_in(assignment: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"[:,](\d+)", assignment or "")]


def check_tables(broker: BrokerProcess, end: int) -> None:
    everything = f'SELECT count(*), count(DISTINCT (partition, value)), bool_and(value::BIGINT = "offset") FROM {TOPIC}'
    assert query(broker, everything) == [(PARTITIONS * end, PARTITIONS * end, True)]
    assert query(broker, "SELECT DISTINCT topic, committed_offset, lag FROM lag ORDER BY 1") == [(TOPIC, end, 0)]
    assert query(broker, "SELECT group_id, state, member_count FROM groups") == [(GROUP, "Empty", 0)]
    assert query(broker, "SELECT * FROM group_members") == []
    assert query(
        broker,
        """SELECT count(*) FROM (
            SELECT value.committed_offset - lag(value.committed_offset) OVER (
                PARTITION BY value.topic, value.partition ORDER BY "offset") AS moved
            FROM "__consumer_offsets" WHERE value.type = 'OffsetCommitted'
        ) WHERE moved < 0""",
    ) == [(0,)], "a committed offset went back"
    history = query(
        broker,
        """SELECT value.generation, value.members FROM "__consumer_offsets"
           WHERE value.type = 'GroupStored' ORDER BY "offset" """,
    )
    generations = [generation for generation, _ in history]
    assert generations == sorted(generations)
    assert generations[-1] > 10, "that was hardly a disturbance"  # compaction may have taken the older ones
    for generation, members in history:
        owners: dict[int, list[str]] = defaultdict(list)
        for member in members or ():
            for place in member["partitions"]:
                owners[place["partition"]].append(member["member_id"])
        assert all(len(found) == 1 for found in owners.values()), f"generation {generation}: {dict(owners)}"


def check_reset(broker: BrokerProcess, end: int) -> None:
    """The members have gone: now the offsets may be set, and SQL shows the lag that makes."""
    done = rows(broker, "groups", "reset-offsets", GROUP, "--topic", f"{TOPIC}:3", "--to-offset", "7", "--execute")
    assert [(row["partition"], row["new_offset"]) for row in done] == [(3, 7)]
    lags = rows(broker, "sql", "SELECT * FROM lag WHERE lag > 0")
    assert [(row["partition"], row["committed_offset"], row["lag"]) for row in lags] == [(3, 7, end - 7)]


# ------------------------------------------------------------ exactly once


@pytest.mark.timeout(240)
def test_members_killed_and_paused_count_every_record_once_where_the_offset_is_stored_with_the_count(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "counts.db"

    def program(name: str, journal: Path) -> list[str]:
        return ["tests.support.counting_member", broker.address, TOPIC, str(path), name]

    def select(sql: str) -> dict[Any, int]:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
            return dict(database.execute(sql))

    harms = (MemberProcess.kill, MemberProcess.pause, MemberProcess.pause)
    with (
        MemberProcesses(4, tmp_path / "members", program, harms) as members,
        SteadyProducer(broker.address, TOPIC, PARTITIONS, records=5) as producer,
    ):
        disturb(members, broker, random.Random(5), steps=20)
        end = producer.finish()
        ends = dict.fromkeys(range(PARTITIONS), end)

        def is_done() -> bool:
            members.check_alive()
            return select("select partition, next_offset from progress") == ends

        wait_until(is_done, "all is counted")
    assert select("select word, count from counts") == {str(number): PARTITIONS for number in range(end)}


# ------------------------------------------------------------ the processing loop


def journal_of(member: MemberProcess, event: str) -> list[str]:
    path = member.journals[-1]
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{event} ") for line in lines if line.startswith(f"{event} ")]


def is_empty(broker: BrokerProcess) -> bool:
    state = rows(broker, "groups", "describe", GROUP, "--state")
    return [(row["state"], row["members"]) for row in state] == [("Empty", 0)]


@pytest.mark.timeout(240)
def test_sigterm_drains_commits_and_leaves_and_a_second_one_waits_for_nobody(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    gate, count = tmp_path / "gate", 5

    def program(name: str, journal: Path) -> list[str]:
        return ["tests.support.processing_member", broker.address, TOPIC, GROUP, name, str(journal), str(gate)]

    def wait_workers_are_busy() -> None:
        wait_until(lambda: len(journal_of(member, "begun")) == WORKERS, "each worker has a record")

    def ask_to_end() -> None:
        member.ask_to_end()
        wait_until(lambda: "SIGTERM: ending, records" in member.said.read_text(), "it has seen the signal")

    with Producer(broker.address) as producer:
        for number in range(PARTITIONS * count):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    with MemberProcesses(1, tmp_path / "members", program) as members:
        (member,) = members.members
        wait_workers_are_busy()
        ask_to_end()
        member.end_in_order()
        assert "SIGTERM: ending at once" in member.said.read_text()
        assert journal_of(member, "ended_by") == [f"SIGTERM 0 {WORKERS}"]
        assert committed(broker) == {}
        assert is_empty(broker)

        member.said.unlink()
        member.start()
        wait_workers_are_busy()
        ask_to_end()
        gate.touch()
        member.wait_end()
        assert journal_of(member, "ended_by") == [f"SIGTERM {WORKERS} 0"], "those that workers had, and no other one"
        drained = journal_of(member, "done")
        assert sorted(drained) == sorted(journal_of(member, "begun"))
        assert committed(broker) == {int(place.split()[0]): 1 for place in drained}
        assert is_empty(broker)

        member.start()
        wait_until(lambda: committed(broker) == dict.fromkeys(range(PARTITIONS), count), "all is committed")
        member.end_in_order()
        everything = {f"{partition} {offset}" for partition in range(PARTITIONS) for offset in range(count)}
        assert sorted(journal_of(member, "done")) == sorted(everything - set(drained)), "nothing twice"
        assert is_empty(broker)
