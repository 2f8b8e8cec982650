"""Requests about transactions that no client and no broker of ours sends are refused, and cost nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from deltalake import DeltaTable

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.transactional_producer import NONE, Producer

CONFIG = BrokerConfig(
    transaction_state_log_num_partitions=1, offsets_topic_num_partitions=2, group_initial_rebalance_delay_ms=0
)


class Stubs(NamedTuple):
    bus: Any
    cluster: Any


@pytest.fixture
def stubs(tmp_path: Path) -> Iterator[Stubs]:
    with running_broker(tmp_path, config=CONFIG) as broker:
        channel = grpc.insecure_channel(f"127.0.0.1:{broker.port}")
        bus = bus_pb2_grpc.BusStub(channel)
        topics = [pb.NewTopic(name="t", partitions=2)]
        bus.CreateTopics(pb.CreateTopicsRequest(topics=topics), timeout=30)
        request = pb.FindCoordinatorRequest(key="victim", key_type=pb.COORDINATOR_TYPE_TRANSACTION)
        bus.FindCoordinator(request, timeout=30)
        yield Stubs(bus, bus_pb2_grpc.ClusterStub(channel))


def initialized(stubs: Stubs, transactional_id: str) -> Producer:
    producer = Producer(stubs.bus, transactional_id)
    answer = producer.init()
    assert answer.error_code == NONE, answer
    return producer


def values(root: Path, partition: int = 0) -> list[bytes]:
    table = DeltaTable(str(root / "topics" / "t" / str(partition))).to_pyarrow_table(columns=["offset", "value"])
    return [value for _, value in sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))]


def topic_id(stubs: Stubs) -> str:
    return str(stubs.bus.Metadata(pb.MetadataRequest(topics=["t"]), timeout=30).topics[0].topic_id)


@pytest.mark.parametrize(
    "added",
    [
        {"partitions": [{"topic": "t", "partition": 2}]},
        {"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 2**31 - 1}]},
        {"partitions": [{"topic": "another", "partition": 0}]},
        {"groups": [{"group_id": "g", "offsets_partition": 2**31 - 1}]},
    ],
    ids=str,
)
def test_transaction_never_waits_for_what_is_not_there(stubs: Stubs, tmp_path: Path, added: dict[str, Any]) -> None:
    producer = initialized(stubs, "victim")
    producer.send([b"a"])
    identity = topic_id(stubs)
    additions = pb.TransactionAdditions(
        transactional_id="victim",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        partitions=[pb.TransactionPartition(**each, topic_id=identity) for each in added.get("partitions", ())],
        groups=[pb.TransactionGroup(**each) for each in added.get("groups", ())],
    )
    request = pb.AddPartitionsToTxnRequest(transactions=[additions])
    refused = stubs.cluster.AddPartitionsToTxn(request, timeout=30).transactions[0]
    assert refused.error_code == pb.ERROR_CODE_COORDINATOR_NOT_AVAILABLE, refused
    assert producer.commit().error_code == NONE
    assert values(tmp_path) == [b"a"]


@pytest.mark.parametrize(
    "changed",
    [
        {"number": 2**62},
        {"number": -1},
        {"producer_epoch": 2**15},
        {"producer_id": -1},
        {"coordinator_partition": -1},
        {"transactional_id": "a\nb"},
    ],
    ids=str,
)
def test_step_that_no_coordinator_asks_for_writes_nothing(
    stubs: Stubs, tmp_path: Path, changed: dict[str, Any]
) -> None:
    producer = initialized(stubs, "victim")
    producer.send([b"a"])
    fields: dict[str, Any] = {
        "transactional_id": "stranger",
        "number": 1,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "coordinator_partition": 0,
        **changed,
    }
    partition = pb.TransactionPartition(topic="t", topic_id=topic_id(stubs), partition=0, last_sequence=0)
    group = pb.TransactionGroup(group_id="g", offsets_partition=0)
    request = pb.TransactionStepRequest(**fields, partitions=[partition], groups=[group])
    for method in ("VoteTransaction", "ApplyTransaction", "DropTransaction"):
        answer = getattr(stubs.cluster, method)(request, timeout=30)
        codes = [each.error_code for each in (*answer.partitions, *answer.groups)]
        assert codes == [pb.ERROR_CODE_INVALID_REQUEST] * 2, method
    assert values(tmp_path) == []
    assert producer.commit().error_code == NONE
    assert values(tmp_path) == [b"a"]


def test_what_strangers_send_ahead_of_a_transaction_is_none_of_it(stubs: Stubs, tmp_path: Path) -> None:
    """Under its identity with another transactional id, and under the epoch of the next one."""
    producer, stranger = initialized(stubs, "victim"), initialized(stubs, "stranger")
    stranger.go_on_as(producer.producer_id, producer.epoch)
    assert stranger.send([b"x"] * 3).error_code == pb.ERROR_CODE_INVALID_PRODUCER_ID_MAPPING
    stranger.transactional_id = "victim"
    stranger.go_on_as(producer.producer_id, producer.epoch + 1)
    assert stranger.send([b"y"] * 3).error_code == pb.ERROR_CODE_INVALID_PRODUCER_EPOCH
    producer.send([b"a"])
    stranger.transactional_id = "stranger"
    stranger.go_on_as(producer.producer_id, producer.epoch)
    stranger.sequences["t", 0] = 1
    assert stranger.send([b"z"]).error_code == pb.ERROR_CODE_INVALID_PRODUCER_ID_MAPPING, "while it is open"
    assert producer.commit().error_code == NONE
    producer.send([b"b"])
    assert producer.commit(ends=[]).error_code == NONE
    assert values(tmp_path) == [b"a", b"b"]
