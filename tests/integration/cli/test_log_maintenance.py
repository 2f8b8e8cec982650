"""`bus log roll`, `compact`, `clean` and `upgrade` against logs in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.fake_broker import BreakStream, Refuse
from tests.support.fake_logs import FakeLogBroker


@pytest.fixture
def broker() -> Iterator[FakeLogBroker]:
    with FakeLogBroker() as fake:
        fake.cluster.create("orders", 2)
        yield fake


def run(broker: FakeLogBroker, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", *arguments], env={"BUS_ADDRESS": broker.address}, prog_name="bus")


@pytest.mark.parametrize(
    ("command", "action"),
    [
        ("roll", pb.MAINTENANCE_ACTION_ROLL),
        ("compact", pb.MAINTENANCE_ACTION_COMPACT),
        ("clean", pb.MAINTENANCE_ACTION_CLEAN),
    ],
)
def test_each_command_asks_for_its_action_in_all_partitions(
    broker: FakeLogBroker, command: str, action: pb.MaintenanceAction
) -> None:
    result = run(broker, command, "orders", "--format", "csv")
    assert result.exit_code == 0, result.output
    assert broker.maintained == [pb.MaintainLogRequest(action=action, topic="orders", partitions=[0, 1])]
    assert result.stdout.splitlines() == [
        "topic,partition,version,files_before,files_after,bytes_before,bytes_after,rewritten_bytes,log_start,"
        "dropped_versions,deleted_files,deleted_bytes",
        "orders,0,7,4,1,4096,1024,1025,5,3,2,2048",
        "orders,1,7,4,1,4096,1024,1025,5,3,2,2048",
    ]


def test_progress_is_told_beside_the_listing(broker: FakeLogBroker) -> None:
    result = run(broker, "roll", "orders/1", "--format", "table")
    assert result.stderr == (
        "orders/1: 4 -> 1 file, 4.0 KiB -> 1.0 KiB; 3 versions dropped; 2 files deleted, 2.0 KiB (1 of 1 partition)\n"
    )
    title, row = result.stdout.splitlines()
    assert title.split()[:5] == ["TOPIC", "PARTITION", "VERSION", "FILES-BEFORE", "FILES-AFTER"]
    assert row.split()[:5] == ["orders", "1", "7", "4", "1"]


def test_what_was_done_is_shown_where_a_partition_fails(broker: FakeLogBroker) -> None:
    broker.log_script.append(Refuse(ErrorCode.POLICY_VIOLATION, "cleanup.policy is delete"))
    result = run(broker, "compact", "orders")
    assert result.exit_code == 1
    assert [row["partition"] for row in json.loads(result.stdout)] == [1]
    assert result.stderr.splitlines()[-1] == "error: POLICY_VIOLATION: cleanup.policy is delete"


def test_broker_that_goes_away_is_an_error_and_no_traceback(broker: FakeLogBroker) -> None:
    broker.log_script.append(BreakStream(is_appended=False))
    result = run(broker, "clean", "orders")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: NETWORK_EXCEPTION:")


def test_an_upgrade_shows_who_may_write_and_goes_on_behind_a_topic_that_fails(broker: FakeLogBroker) -> None:
    broker.cluster.create("payments", 1)
    broker.log_script.append(Refuse(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full"))
    result = run(broker, "upgrade", "--all", "--format", "csv")
    assert result.exit_code == 1
    assert {request.action for request in broker.maintained} == {pb.MAINTENANCE_ACTION_UPGRADE}
    assert result.stdout.splitlines() == [
        "topic,partition,version,foreign_writers",
        "orders,1,7,refused",
        "payments,0,7,refused",
    ]
    assert result.stderr.splitlines()[-1] == "error: KAFKA_STORAGE_ERROR: the disk is full"


@pytest.mark.parametrize("arguments", [(), ("orders", "--all")])
def test_an_upgrade_is_of_one_topic_or_of_all(broker: FakeLogBroker, arguments: tuple[str, ...]) -> None:
    result = run(broker, "upgrade", *arguments)
    assert (result.exit_code, broker.maintained) == (2, [])


def test_unknown_partition_is_refused_before_anything_begins(broker: FakeLogBroker) -> None:
    result = run(broker, "roll", "orders/2")
    assert (result.exit_code, broker.maintained) == (1, [])
    assert "from 0 to 1, found 2" in result.stderr
