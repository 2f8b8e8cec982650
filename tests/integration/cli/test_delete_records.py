"""`bus topics delete-records` against logs in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.errors import ErrorCode
from tests.support.fake_broker import Refuse
from tests.support.fake_logs import FakeLogBroker


@pytest.fixture
def broker() -> Iterator[FakeLogBroker]:
    with FakeLogBroker() as fake:
        fake.cluster.create("orders", 2)
        fake.append_offsets("orders", 0, 10, timestamp_ms=1_000)
        fake.append_offsets("orders", 0, 10, timestamp_ms=2_000)
        fake.append_offsets("orders", 1, 5, timestamp_ms=1_000)
        yield fake


def run(broker: FakeLogBroker, *arguments: str) -> Result:
    command = ["topics", "delete-records", *arguments]
    return CliRunner().invoke(cli, command, env={"BUS_ADDRESS": broker.address}, prog_name="bus")


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def log_starts(broker: FakeLogBroker) -> list[int]:
    return [log.log_start for log in broker.cluster.topics["orders"].partitions]


def offsets_file(folder: Path, document: object) -> str:
    path = folder / "offsets.json"
    path.write_text(json.dumps(document), "utf-8")
    return str(path)


def test_one_partition_is_cut_at_an_offset(broker: FakeLogBroker) -> None:
    assert rows(run(broker, "orders/0", "--offset", "12")) == [
        {
            "topic": "orders",
            "partition": 0,
            "log_start": 0,
            "high_watermark": 20,
            "low_watermark": 12,
            "version": 3,
            "error": None,
        }
    ]
    assert log_starts(broker) == [12, 0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--all"], [20, 5]),
        (["--before", "@1500"], [10, 5]),
        (["--before", "1970-01-01T00:00:01"], [0, 0]),
        (["--offset", "3"], [3, 3]),
    ],
)
def test_a_whole_topic_is_cut(broker: FakeLogBroker, arguments: list[str], expected: list[int]) -> None:
    assert [row["low_watermark"] for row in rows(run(broker, "orders", *arguments))] == expected
    assert log_starts(broker) == expected


def test_kafkas_file_says_where_each_partition_is_cut(broker: FakeLogBroker, tmp_path: Path) -> None:
    items = [
        {"topic": "orders", "partition": 1, "offset": -1},
        {"topic": "orders", "partition": 0, "offset": 4},
    ]
    path = offsets_file(tmp_path, {"partitions": items, "version": 1})
    result = run(broker, "--offset-json-file", path, "--format", "table")
    assert result.stdout.splitlines() == [
        "Executing records delete operation",
        "Records delete operation completed:",
        "partition: orders-1\tlow_watermark: 5",
        "partition: orders-0\tlow_watermark: 4",
    ]
    assert log_starts(broker) == [4, 5]


def test_dry_run_shows_what_would_be_and_deletes_nothing(broker: FakeLogBroker) -> None:
    broker.cluster.topics["orders"].partitions[1].log_start = 4
    shown = rows(run(broker, "orders", "--offset", "3", "--dry-run"))
    assert [(row["low_watermark"], row["version"]) for row in shown] == [(3, None), (4, None)]
    assert "DeleteRecords" not in broker.calls
    assert log_starts(broker) == [0, 4]


def test_partition_that_has_no_such_offset_fails_and_the_others_are_done(broker: FakeLogBroker) -> None:
    result = run(broker, "orders", "--offset", "9", "--format", "table")
    assert result.exit_code == 1
    assert "partition: orders-0\tlow_watermark: 9" in result.stdout
    assert "partition: orders-1\terror: OFFSET_OUT_OF_RANGE: expected an offset of at most 5, found 9" in result.stdout
    assert result.stderr.startswith("error: orders-1: OFFSET_OUT_OF_RANGE")
    assert log_starts(broker) == [9, 0]
    assert run(broker, "orders", "--offset", "9", "--dry-run").exit_code == 1


def test_what_the_broker_refuses_is_told_by_partition(broker: FakeLogBroker) -> None:
    broker.log_script.append(Refuse(ErrorCode.POLICY_VIOLATION, "cleanup.policy is compact"))
    result = run(broker, "orders", "--all", "--format", "csv")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == [
        "orders,0,0,20,,,POLICY_VIOLATION: cleanup.policy is compact",
        "orders,1,0,5,5,2,",
    ]
    assert log_starts(broker) == [0, 5]


def test_unknown_topic_and_partition_are_named(broker: FakeLogBroker) -> None:
    assert run(broker, "nowhere", "--all").stderr.startswith("error: UNKNOWN_TOPIC_OR_PARTITION:")
    assert "from 0 to 1, found 7" in run(broker, "orders/7", "--all").stderr


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], '{"partitions": [...], "version": 1}'),
        ({"partitions": [], "version": 1}, "found none"),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 2}, "expected version 1"),
        ({"partitions": [{"topic": "t", "partition": 0}]}, 'found {"topic":"t","partition":0}'),
        ({"partitions": [{"topic": "t", "partition": True, "offset": 1}]}, "topic, partition and an offset"),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": 1.0}]}, "topic, partition and an offset"),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}, "an offset from -1 on"),
        ({"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}, "topic, partition and an offset"),
        ({"partitions": [{"topic": "t", "partition": 0, "offset": 1}] * 2}, "expected each partition once, found t-0"),
    ],
)
def test_file_that_is_not_kafkas_is_refused(broker: FakeLogBroker, tmp_path: Path, document: object, said: str) -> None:
    result = run(broker, "--offset-json-file", offsets_file(tmp_path, document))
    assert result.exit_code == 2
    assert said in result.stderr
    assert broker.calls == []
