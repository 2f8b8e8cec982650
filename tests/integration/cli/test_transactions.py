"""`bus transactions` as operators type it, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.transactional_producer import Producer

CONFIG = BrokerConfig(transaction_state_log_num_partitions=2, offsets_topic_num_partitions=1)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running_broker(tmp_path, config=CONFIG) as broker:
        yield f"127.0.0.1:{broker.port}"


@pytest.fixture
def producer(address: str) -> Producer:
    """Of the id payments, with a transaction open in t-1."""
    stub: Any = bus_pb2_grpc.BusStub(grpc.insecure_channel(address))
    stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]), timeout=30)
    key_type = pb.COORDINATOR_TYPE_TRANSACTION
    stub.FindCoordinator(pb.FindCoordinatorRequest(key="payments", key_type=key_type), timeout=30)
    producer = Producer(stub)
    producer.init()
    producer.send([b"a", b"b"], 1)
    return producer


def run(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["transactions", *arguments], env={"BUS_ADDRESS": address}, prog_name="bus")


def rows(address: str, *arguments: str) -> list[dict[str, Any]]:
    result = run(address, *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def table(address: str, *arguments: str) -> list[list[str]]:
    return [line.split() for line in run(address, *arguments, "--format", "table").stdout.splitlines()]


def test_ids_are_listed_with_kafkas_columns(address: str, producer: Producer) -> None:
    shown = ["payments", "0", str(producer.producer_id), "Ongoing"]
    assert table(address, "list") == [["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], shown]
    assert table(address, "list", "--state", "ongoing", "--producer-id", str(producer.producer_id))[1:] == [shown]
    for option, value in (("--state", "Empty"), ("--producer-id", "4711"), ("--duration-filter", "3600000")):
        assert rows(address, "list", option, value) == []


def test_a_description_has_kafkas_columns(address: str, producer: Producer) -> None:
    (row,) = rows(address, "describe", "payments")
    assert row.pop("current_transaction_start_time_ms") > 1_600_000_000_000
    assert 0 <= row.pop("transaction_duration_ms") < 60_000
    assert row == {
        "coordinator_id": 0,
        "transactional_id": "payments",
        "producer_id": producer.producer_id,
        "producer_epoch": 0,
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": 60_000,
        "topic_partitions": "t-1",
        "groups": None,
    }
    producer.commit()
    (row,) = rows(address, "describe", "payments")
    assert (row["transaction_state"], row["topic_partitions"]) == ("CompleteCommit", None)
    assert (row["current_transaction_start_time_ms"], row["transaction_duration_ms"]) == (None, None)


def test_producers_are_told_by_partition(address: str, producer: Producer) -> None:
    (row,) = rows(address, "describe-producers", "t")
    assert (row["topic"], row["partition"], row["last_sequence"], row["producer_epoch"]) == ("t", 1, 1, 0)
    assert row["coordinator_partition"] is not None
    assert row["staged_bytes"] > 0
    assert rows(address, "describe-producers", "t/0") == []
    assert "expected a partition of t from 0 to 1, found 2" in run(address, "describe-producers", "t/2").stderr


def test_an_open_transaction_does_not_hang(address: str, producer: Producer, tmp_path: Path) -> None:
    assert rows(address, "find-hanging", "--max-transaction-timeout", "0") == []
    (file,) = (tmp_path / "topics" / "t" / "1" / "_staged").glob("*/*.arrow")
    file.rename(file.with_name("4711-3-0-1.arrow"))
    (row,) = rows(address, "find-hanging", "--max-transaction-timeout", "0", "--topic", "t")
    assert (row["topic"], row["partition"], row["group"]) == ("t", 1, None)
    assert (row["producer_id"], row["producer_epoch"], row["offsets"]) == (4711, 3, None)
    assert row["staged_bytes"] > 0
    assert rows(address, "find-hanging") == [], "nothing is so old"


def test_an_abort_says_what_it_ended(address: str, producer: Producer) -> None:
    wrong = run(
        address, "abort", "payments", "--producer-id", str(producer.producer_id), "--producer-epoch", "9", "--yes"
    )
    assert (wrong.exit_code, "expected the transaction of" in wrong.stderr) == (1, True)
    done = run(address, "abort", "payments", "--yes")
    assert (done.exit_code, done.stdout) == (0, "aborted the transaction of payments in 1 partition\n")
    assert producer.commit().error_code == pb.ERROR_CODE_TRANSACTION_ABORTABLE
    again = run(address, "abort", "payments")
    assert "expected a transaction that is open and not decided, found CompleteAbort" in again.stderr


def test_a_fence_says_what_is_not_refused(address: str, producer: Producer) -> None:
    (row,) = rows(address, "fence", "payments", "--yes")
    assert (row["transactional_id"], row["producer_id"]) == ("payments", producer.producer_id)
    assert producer.commit().error_code == pb.ERROR_CODE_PRODUCER_FENCED


@pytest.mark.parametrize("command", ["describe", "abort", "fence"])
def test_an_unknown_id_is_answered_with_where_to_look(address: str, command: str) -> None:
    result = run(address, command, "none")
    assert result.exit_code == 1
    assert "there is no transactional id none; those that exist: bus transactions list" in result.stderr


def test_half_an_identity_is_typed_wrong() -> None:
    result = run("127.0.0.1:1", "abort", "payments", "--producer-id", "7")
    assert result.exit_code == 2
    assert "expected --producer-id and --producer-epoch, or neither" in result.stderr
    assert "an id is written without an option" in run("127.0.0.1:1", "abort", "--transactional-id", "a").stderr
