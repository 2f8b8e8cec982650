"""`bus groups` as users type it, over gRPC to groups in memory."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from tests.support.fake_groups import COMMIT_MS, FakeGroupBroker

ORDERS_0, ORDERS_1, PAY_0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("pay", 0)


@pytest.fixture
def broker() -> Iterator[FakeGroupBroker]:
    """orders-0 has the offsets 0 to 20, the second half 10 ms later; orders-1 0 to 5; pay-0 is empty."""
    with FakeGroupBroker() as fake:
        fake.cluster.create("orders", 2)
        fake.cluster.create("pay", 1)
        fake.append_values("orders", 0, 10)
        fake.append_values("orders", 0, 10)
        fake.append_values("orders", 1, 5)
        yield fake


def run(broker: FakeGroupBroker, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["groups", *arguments], env={"BUS_ADDRESS": broker.address}, prog_name="bus")


def done(broker: FakeGroupBroker, *arguments: str) -> Result:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return result


def table(broker: FakeGroupBroker, *arguments: str) -> list[list[str]]:
    return [line.split() for line in done(broker, *arguments, "--format", "table").stdout.splitlines()]


def offsets(broker: FakeGroupBroker, group: str) -> dict[TopicPartition, int]:
    return {one: found.offset for one, found in broker.groups[group].offsets.items()}


# ------------------------------------------------------------------ list and describe


def test_groups_are_listed_by_state(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.commit("audit", {ORDERS_0: 1})
    assert table(broker, "list") == [
        ["GROUP", "PROTOCOL-TYPE", "STATE"],
        ["audit", "-", "Empty"],
        ["billing", "consumer", "Stable"],
    ]
    assert table(broker, "list", "--state", "stable")[1:] == [["billing", "consumer", "Stable"]]


def test_offsets_have_kafkas_columns_owners_first(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [ORDERS_0, PAY_0])
    broker.join("billing", "m2", [])
    broker.commit("billing", {ORDERS_0: 12, ORDERS_1: 5})
    result = done(broker, "describe", "billing", "--format", "table")
    assert result.stderr == ""
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"],
        ["billing", "orders", "0", "12", "20", "8", "m1", "/127.0.0.1", "client-m1"],
        ["billing", "pay", "0", "-", "0", "-", "m1", "/127.0.0.1", "client-m1"],
        ["billing", "-", "-", "-", "-", "-", "m2", "/127.0.0.1", "client-m2"],
        ["billing", "orders", "1", "5", "5", "0", "-", "-", "-"],
    ]


def test_a_group_without_members_is_told_on_standard_error(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12})
    result = done(broker, "describe", "billing")
    assert result.stderr == "Consumer group 'billing' has no active members.\n"
    assert [row["lag"] for row in json.loads(result.stdout)] == [8]
    broker.groups["billing"].state = "PreparingRebalance"
    assert done(broker, "describe", "billing").stderr == "Warning: Consumer group 'billing' is rebalancing.\n"


def test_offsets_of_open_transactions_are_counted_on_standard_error(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.groups["billing"].pending_offsets.append(
        pb.PendingOffsets(producer_id=7, producer_epoch=3, offset_count=2, commit_ms=99)
    )
    note = "Consumer group 'billing' has 2 offsets pending in the open transaction of producer 7, epoch 3.\n"
    assert done(broker, "describe", "billing").stderr == note
    assert done(broker, "describe", "billing", "--state").stderr == ""


def test_the_offset_of_a_topic_that_is_gone_is_shown_without_an_end(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12, TopicPartition("gone", 3): 7})
    assert [row[1:6] for row in table(broker, "describe", "billing")[1:]] == [
        ["gone", "3", "7", "-", "-"],
        ["orders", "0", "12", "20", "8"],
    ]


def test_members_have_kafkas_columns(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [PAY_0])
    broker.join("billing", "m2", [ORDERS_1, ORDERS_0])
    assert table(broker, "describe", "billing", "--members") == [
        ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"],
        ["billing", "m2", "/127.0.0.1", "client-m2", "2"],
        ["billing", "m1", "/127.0.0.1", "client-m1", "1"],
    ]
    broker.join("billing", "m3", [], "i-3")
    shown = table(broker, "describe", "billing", "--members", "--verbose")
    assert shown[0] == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
    assert [(row[2], row[-1]) for row in shown[1:]] == [("-", "orders:0,1"), ("-", "pay:0"), ("i-3", "-")]


def test_states_have_kafkas_columns(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.commit("audit", {ORDERS_0: 1})
    shown = done(broker, "describe", "--all-groups", "--state", "--format", "table").stdout.splitlines()
    assert shown[0].split("  ")[0] == "GROUP"
    assert "COORDINATOR (ID)" in shown[0]
    assert [line.split() for line in shown[1:]] == [
        ["audit", f"127.0.0.1:{broker.port}", "(0)", "-", "Empty", "0"],
        ["billing", f"127.0.0.1:{broker.port}", "(0)", "range", "Stable", "1"],
    ]


def test_several_groups_are_one_listing_for_programs(broker: FakeGroupBroker) -> None:
    broker.commit("a", {ORDERS_0: 1})
    broker.commit("b", {ORDERS_1: 1})
    rows = list(csv.DictReader(done(broker, "describe", "a", "b", "--format", "csv").stdout.splitlines()))
    assert [(row["group"], row["lag"], row["consumer_id"]) for row in rows] == [("a", "19", ""), ("b", "4", "")]


def test_a_group_that_is_not_there_is_an_error(broker: FakeGroupBroker) -> None:
    result = run(broker, "describe", "nobody")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: GROUP_ID_NOT_FOUND: group 'nobody' does not exist; those that exist: bus groups list\n",
    )


# ------------------------------------------------------------------ reset-offsets


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["--to-earliest"], (0, 0)),
        (["--to-latest"], (20, 5)),
        (["--to-current"], (12, 4)),
        (["--to-offset", "3"], (3, 3)),
        (["--to-offset", "0"], (0, 0)),
        (["--shift-by", "-2"], (10, 2)),
        (["--shift-by", "1"], (13, 5)),
        (["--to-datetime", f"@{COMMIT_MS}"], (0, 0)),
        (["--to-version", "1"], (10, 3)),
        (["--to-group", "other"], (7, 1)),
    ],
)
def test_offsets_are_shown_first_and_set_with_execute(
    broker: FakeGroupBroker, where: list[str], expected: tuple[int, int]
) -> None:
    broker.versions = {(ORDERS_0, 1): 10, (ORDERS_1, 1): 3}
    broker.commit("billing", {ORDERS_0: 12, ORDERS_1: 4})
    broker.commit("other", {ORDERS_0: 7, ORDERS_1: 1})
    shown = done(broker, "reset-offsets", "billing", "--topic", "orders", *where, "--format", "table")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"],
        ["billing", "orders", "0", str(expected[0])],
        ["billing", "orders", "1", str(expected[1])],
    ]
    assert shown.stderr == "nothing was changed; to set these offsets, add --execute\n"
    assert offsets(broker, "billing") == {ORDERS_0: 12, ORDERS_1: 4}
    executed = done(broker, "reset-offsets", "billing", "--topic", "orders", *where, "--execute", "--format", "table")
    assert (executed.stdout, executed.stderr) == (shown.stdout, "")
    assert offsets(broker, "billing") == {ORDERS_0: expected[0], ORDERS_1: expected[1]}


def test_a_duration_counts_back_from_now(broker: FakeGroupBroker) -> None:
    done(broker, "reset-offsets", "billing", "--topic", "orders:0", "--by-duration", "P36500D", "--execute")
    assert offsets(broker, "billing") == {ORDERS_0: 0}
    warned = done(broker, "reset-offsets", "billing", "--topic", "orders:0", "--by-duration", "PT1S", "--execute")
    assert warned.stderr == "warning: orders-0: no record is as late as that; 20 is taken\n"
    assert offsets(broker, "billing") == {ORDERS_0: 20}


def test_an_offset_out_of_range_is_brought_into_it_with_a_warning(broker: FakeGroupBroker) -> None:
    result = done(broker, "reset-offsets", "billing", "--topic", "orders", "--to-offset", "9", "--execute")
    assert result.stderr == "warning: orders-1: expected an offset from 0 to 5, found 9; 5 is taken\n"
    assert offsets(broker, "billing") == {ORDERS_0: 9, ORDERS_1: 5}


def test_single_partitions_and_several_topics_are_reset_at_once(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12, ORDERS_1: 4})
    arguments = ["--topic", "orders:1", "--topic", "pay", "--to-earliest", "--execute"]
    done(broker, "reset-offsets", "billing", *arguments)
    assert offsets(broker, "billing") == {ORDERS_0: 12, ORDERS_1: 0, PAY_0: 0}


def test_all_topics_are_those_that_the_group_committed(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12, TopicPartition("gone", 0): 3})
    done(broker, "reset-offsets", "billing", "--all-topics", "--to-latest", "--execute")
    assert offsets(broker, "billing") == {ORDERS_0: 20, TopicPartition("gone", 0): 3}
    nothing = run(broker, "reset-offsets", "nobody", "--all-topics", "--to-latest")
    assert nothing.exit_code == 1
    assert "expected committed offsets of group nobody, found none" in nothing.stderr


def test_what_is_exported_can_be_read_back(broker: FakeGroupBroker, tmp_path: Path) -> None:
    broker.commit("billing", {ORDERS_0: 12, ORDERS_1: 4})
    exported = done(broker, "reset-offsets", "billing", "--all-topics", "--to-current", "--export")
    assert exported.stdout == "orders,0,12\norders,1,4\n"
    assert exported.stderr == ""
    file = tmp_path / "offsets.csv"
    file.write_text(exported.stdout)
    done(broker, "reset-offsets", "billing", "--all-topics", "--to-earliest", "--execute")
    done(broker, "reset-offsets", "billing", "--from-file", str(file), "--execute")
    assert offsets(broker, "billing") == {ORDERS_0: 12, ORDERS_1: 4}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders,0\n", "expected topic,partition,offset in line 1"),
        ("orders,0,1\norders,x,1\n", "in line 2"),
        ("orders,0,1\norders,0,2\n", "found orders-0 again in line 2"),
        ("\n", "found no line"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_line(
    broker: FakeGroupBroker, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(text)
    result = run(broker, "reset-offsets", "billing", "--from-file", str(file), "--execute")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "billing" not in broker.groups


def test_partitions_that_nothing_is_said_of_keep_their_offset(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12, ORDERS_1: 4})
    broker.commit("other", {ORDERS_0: 7})
    result = done(broker, "reset-offsets", "billing", "--topic", "orders", "--to-group", "other", "--execute")
    assert result.stderr == "warning: orders-1: nothing says where; its offset stays as it is\n"
    assert offsets(broker, "billing") == {ORDERS_0: 7, ORDERS_1: 4}


@pytest.mark.parametrize("execute", [[], ["--execute"]])
def test_an_active_group_is_left_alone_and_its_members_are_named(broker: FakeGroupBroker, execute: list[str]) -> None:
    broker.commit("billing", {ORDERS_0: 12})
    for number in range(7):
        broker.join("billing", f"m{number}", [ORDERS_0])
    result = run(broker, "reset-offsets", "billing", "--topic", "orders", "--to-earliest", *execute)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expected group billing to be inactive, found it Stable with m0 (/127.0.0.1), m1" in result.stderr
    assert "and 2 more; stop them first" in result.stderr
    assert offsets(broker, "billing") == {ORDERS_0: 12}


def test_a_partition_or_topic_that_is_not_there_is_refused(broker: FakeGroupBroker) -> None:
    for topic, said in (("orders:0,2", "expected a partition of orders from 0 to 1, found 2"), ("gone", "'gone'")):
        result = run(broker, "reset-offsets", "billing", "--topic", topic, "--to-earliest", "--execute")
        assert result.exit_code == 1
        assert said in result.stderr
    assert "billing" not in broker.groups


# ------------------------------------------------------------------ create, delete, delete-offsets


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topic", "orders", "--to-earliest"], {ORDERS_0: 0, ORDERS_1: 0}),
        (["--topic", "orders", "--to-latest"], {ORDERS_0: 20, ORDERS_1: 5}),
        (["--topic", "orders:0", "--to-datetime", f"@{COMMIT_MS + 3}"], {ORDERS_0: 10}),
        (["--topic", "orders", "--to-version", "orders:0=1"], {ORDERS_0: 10}),
        (["--to-group", "other"], {ORDERS_1: 2, PAY_0: 0}),
        (["--to-group", "other", "--topic", "pay"], {PAY_0: 0}),
    ],
)
def test_a_group_is_created_before_its_first_member(
    broker: FakeGroupBroker, arguments: list[str], expected: dict[TopicPartition, int]
) -> None:
    broker.versions = {(ORDERS_0, 1): 10}
    broker.commit("other", {ORDERS_1: 2, PAY_0: 0})
    created = json.loads(done(broker, "create", "new", *arguments).stdout)
    assert {TopicPartition(row["topic"], row["partition"]): row["offset"] for row in created} == expected
    assert offsets(broker, "new") == expected
    again = run(broker, "create", "new", *arguments)
    assert again.exit_code == 1
    assert "group 'new' exists" in again.stderr


def test_groups_are_deleted_unless_they_have_members(broker: FakeGroupBroker) -> None:
    broker.commit("idle", {ORDERS_0: 1})
    broker.join("busy", "m1", [ORDERS_0])
    assert done(broker, "delete", "idle", "--yes").stdout == "deleted group idle\n"
    refused = run(broker, "delete", "busy", "--yes")
    assert (refused.exit_code, list(broker.groups)) == (1, ["busy"])
    assert refused.stderr.startswith("error: NON_EMPTY_GROUP:")


def test_offsets_are_deleted_by_partition_and_what_stays_says_why(broker: FakeGroupBroker) -> None:
    broker.join("billing", "m1", [ORDERS_0])
    broker.commit("billing", {ORDERS_0: 12, PAY_0: 0})
    result = run(broker, "delete-offsets", "billing", "--topic", "orders:0", "--topic", "pay", "--format", "csv")
    rows = list(csv.reader(result.stdout.splitlines()))
    assert rows[0] == ["topic", "partition", "status"]
    assert rows[1][:2] == ["orders", "0"]
    assert rows[1][2].startswith("Error: GROUP_SUBSCRIBED_TO_TOPIC")
    assert rows[2] == ["pay", "0", "Successful"]
    assert result.exit_code == 1
    assert "1 offset of 2 could not be deleted: GROUP_SUBSCRIBED_TO_TOPIC" in result.stderr
    assert offsets(broker, "billing") == {ORDERS_0: 12}


def test_a_coordinator_that_loads_is_waited_for(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12})
    broker.group_script.extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2)
    assert [row[3] for row in table(broker, "describe", "billing")[1:]] == ["12"]


def test_group_names_complete_from_the_broker(broker: FakeGroupBroker) -> None:
    broker.commit("billing", {ORDERS_0: 12})
    broker.commit("audit", {ORDERS_0: 12})
    words = {"_BUS_COMPLETE": "bash_complete", "COMP_WORDS": "bus groups describe b", "COMP_CWORD": "3"}
    completed = subprocess.run(
        [sys.executable, "-c", "from bus.cli.main import main; main()"],
        env={**os.environ, **words, "BUS_ADDRESS": broker.address},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (completed.stdout.strip(), completed.stderr) == ("plain,billing", "")
