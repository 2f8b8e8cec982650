"""Transactions through generated stubs against a real broker: what is committed is seen at once and as a whole, what is
aborted never, and a crash changes neither."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from deltalake import DeltaTable

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.transactional_producer import Producer

NONE = pb.ERROR_CODE_NONE
CONFIG = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=2)


def connect(broker: Any) -> Any:
    stub = bus_pb2_grpc.BusStub(grpc.insecure_channel(f"127.0.0.1:{broker.port}"))
    topics = [pb.NewTopic(name="t", partitions=3)]
    stub.CreateTopics(pb.CreateTopicsRequest(topics=topics), timeout=30)
    find(stub, "payments")
    return stub


def find(stub: Any, transactional_id: str) -> pb.FindCoordinatorResponse:
    request = pb.FindCoordinatorRequest(key=transactional_id, key_type=pb.COORDINATOR_TYPE_TRANSACTION)
    return stub.FindCoordinator(request, timeout=30)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Any]:
    with running_broker(tmp_path, config=CONFIG) as broker:
        yield connect(broker)


def values(root: Path, partition: int = 0, topic: str = "t") -> list[bytes]:
    table = DeltaTable(str(root / "topics" / topic / str(partition))).to_pyarrow_table(columns=["offset", "value"])
    return [value for _, value in sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))]


def test_committed_rows_of_all_partitions_are_in_the_versions_of_the_answer(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    assert producer.init().error_code == NONE
    for partition in (0, 1):
        assert producer.send([b"a", b"b"], partition).base_offset == -1
        assert producer.send([b"c"], partition).error_code == NONE
    assert values(tmp_path, 0) == []
    before = producer.producer_id, producer.epoch
    answer = producer.commit()
    assert answer.error_code == NONE, answer
    assert (answer.producer_id, answer.producer_epoch) == (before[0], before[1] + 1)
    assert {(each.partition, each.base_offset) for each in answer.versions} == {(0, 0), (1, 0)}
    for each in answer.versions:
        table = DeltaTable(str(tmp_path / "topics" / "t" / str(each.partition)), version=each.version)
        assert table.to_pyarrow_table().num_rows == 3
    assert values(tmp_path, 0) == values(tmp_path, 1) == [b"a", b"b", b"c"]


def test_aborted_rows_are_in_no_version_and_the_next_transaction_goes_on(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()
    producer.send([b"never"])
    aborted = producer.end(is_commit=False)
    assert (aborted.error_code, aborted.producer_epoch) == (NONE, 1)
    assert producer.end(is_commit=False) == aborted, "a repeat has the same answer"
    late = producer.send([b"late"])
    assert late.error_code == pb.ERROR_CODE_INVALID_PRODUCER_EPOCH
    producer.go_on_as(aborted.producer_id, aborted.producer_epoch)
    producer.send([b"seen"])
    assert producer.commit().error_code == NONE
    assert values(tmp_path) == [b"seen"]


def test_commit_that_is_repeated_has_the_same_answer(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()
    producer.send([b"a"])
    first = producer.end(is_commit=True)
    assert producer.end(is_commit=True) == first
    assert producer.end(is_commit=False).error_code == pb.ERROR_CODE_INVALID_TXN_STATE
    assert values(tmp_path) == [b"a"]


def test_new_instance_aborts_what_is_open_and_fences_the_old_one(stub: Any, tmp_path: Path) -> None:
    old, new = Producer(stub), Producer(stub)
    old.init()
    old.send([b"old"])
    assert new.init().error_code == NONE
    assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
    assert old.send([b"older"]).error_code == pb.ERROR_CODE_INVALID_PRODUCER_EPOCH
    assert old.commit().error_code == pb.ERROR_CODE_PRODUCER_FENCED
    new.send([b"new"])
    assert new.commit().error_code == NONE
    assert values(tmp_path) == [b"new"]


def test_commit_of_more_than_is_staged_aborts(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()
    producer.send([b"a"])
    refused = producer.commit([pb.TransactionEnd(topic="t", partition=0, last_sequence=1)])
    assert refused.error_code == pb.ERROR_CODE_TRANSACTION_ABORTABLE
    ended = producer.abort()
    assert ended.error_code == NONE, ended
    producer.send([b"b"])
    assert producer.commit(ends=[]).error_code == NONE, "without ends, all that is staged is committed"
    assert values(tmp_path) == [b"b"]


def test_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_may_go_on(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub, timeout_ms=100)
    producer.init()
    producer.send([b"late"])
    assert wait_for_state(stub, "payments", "CompleteAbort")
    assert producer.commit().error_code == pb.ERROR_CODE_TRANSACTION_ABORTABLE
    assert producer.abort().error_code == NONE
    producer.timeout_ms = 60_000
    assert producer.init(producer_id=producer.producer_id, producer_epoch=producer.epoch).error_code == NONE
    producer.send([b"in time"])
    assert producer.commit().error_code == NONE
    assert values(tmp_path) == [b"in time"]


def test_what_no_coordinator_knows_is_refused(stub: Any, tmp_path: Path) -> None:
    stranger = Producer(stub, "stranger")
    assert stranger.commit().error_code == pb.ERROR_CODE_INVALID_REQUEST  # producer id -1
    plain = stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30)
    stranger.go_on_as(plain.producer_id, 0)
    assert stranger.commit().error_code == pb.ERROR_CODE_INVALID_PRODUCER_ID_MAPPING
    assert stranger.send([b"a"]).error_code == pb.ERROR_CODE_INVALID_PRODUCER_ID_MAPPING
    assert stranger.send([b"a"], acks=1).error_code == pb.ERROR_CODE_INVALID_REQUIRED_ACKS
    other = Producer(stub, "other", timeout_ms=10**9)
    assert other.init().error_code == pb.ERROR_CODE_INVALID_TRANSACTION_TIMEOUT
    assert values(tmp_path) == []


def test_sequences_with_a_gap_are_refused_and_repeats_are_staged_once(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()
    producer.send([b"a"])
    producer.sequences["t", 0] = 0
    assert producer.send([b"a"]).error_code == NONE
    producer.sequences["t", 0] = 5
    assert producer.send([b"b"]).error_code == pb.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.sequences["t", 0] = 1
    producer.commit()
    assert values(tmp_path) == [b"a"]


def test_broker_that_comes_back_goes_on_with_open_transactions(tmp_path: Path) -> None:
    with running_broker(tmp_path, config=CONFIG) as broker:
        producer = Producer(connect(broker))
        producer.init()
        producer.send([b"a"])
        producer.send([b"b"], 1)
    with running_broker(tmp_path, config=CONFIG) as broker:
        producer.stub = connect(broker)
        assert producer.send([b"c"]).error_code == NONE
        assert producer.commit().error_code == NONE
    assert (values(tmp_path, 0), values(tmp_path, 1)) == ([b"a", b"c"], [b"b"])


def test_transactions_are_listed_described_aborted_and_fenced(stub: Any, tmp_path: Path) -> None:
    producer, other = Producer(stub), Producer(stub, "other")
    producer.init()
    other.init()
    producer.send([b"a"], 2)
    listed = stub.ListTransactions(pb.ListTransactionsRequest(states=["Ongoing", "Nothing"]), timeout=30)
    assert [each.transactional_id for each in listed.transactions] == ["payments"]
    assert listed.unknown_states == ["Nothing"]
    ids = ["payments", "none"]
    described, unknown = stub.DescribeTransactions(
        pb.DescribeTransactionsRequest(transactional_ids=ids), timeout=30
    ).transactions
    assert (described.state, described.topics) == (
        "Ongoing",
        [pb.TopicPartitions(topic="t", partitions=[2])],
    )
    assert unknown.error_code == pb.ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND
    asked = pb.DescribeProducersRequest(topics=[pb.TopicPartitions(topic="t", partitions=[2])])
    (found,) = stub.DescribeProducers(asked, timeout=30).partitions[0].producers
    assert (found.producer_id, found.last_sequence, found.coordinator_partition >= 0) == (producer.producer_id, 0, True)
    wrong = pb.AbortTransactionRequest(transactional_id="payments", producer_id=producer.producer_id, producer_epoch=9)
    assert stub.AbortTransaction(wrong, timeout=30).error_code == pb.ERROR_CODE_INVALID_TXN_STATE
    right = pb.AbortTransactionRequest(transactional_id="payments")
    assert stub.AbortTransaction(right, timeout=30).error_code == NONE
    assert producer.commit().error_code == pb.ERROR_CODE_TRANSACTION_ABORTABLE
    fenced, missing = stub.FenceProducers(
        pb.FenceProducersRequest(transactional_ids=["other", "none"]), timeout=30
    ).producers
    assert (fenced.error_code, fenced.producer_epoch) == (NONE, other.epoch + 1)
    assert missing.error_code == pb.ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND
    assert other.send([b"b"]).error_code == pb.ERROR_CODE_INVALID_PRODUCER_EPOCH


def test_deleted_topic_does_not_hold_up_a_commit(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()
    stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="gone", partitions=1)]), timeout=30)
    producer.send([b"a"])
    producer.send([b"b"], topic="gone")
    stub.DeleteTopics(pb.DeleteTopicsRequest(topics=["gone"]), timeout=30)
    assert producer.commit().error_code == NONE
    assert values(tmp_path) == [b"a"]


def wait_for_state(stub: Any, transactional_id: str, state: str) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        request = pb.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        if stub.DescribeTransactions(request, timeout=30).transactions[0].state == state:
            return True
        time.sleep(0.01)
    return False


def test_offsets_are_committed_with_the_rows_or_not_at_all(stub: Any, tmp_path: Path) -> None:
    producer = Producer(stub)
    producer.init()

    def send_offset(offset: int) -> int:
        partitions = [pb.OffsetCommitPartition(topic="t", partition=2, offset=offset, leader_epoch=-1)]
        request = pb.TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id="readers",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation=-1,
            partitions=partitions,
        )
        return stub.TxnOffsetCommit(request, timeout=30).partitions[0].error_code

    def committed(*, require_stable: bool) -> tuple[int, int]:
        group = pb.OffsetFetchGroup(group_id="readers", topics=[pb.TopicPartitions(topic="t", partitions=[2])])
        request = pb.OffsetFetchRequest(groups=[group], require_stable=require_stable)
        (found,) = stub.OffsetFetch(request, timeout=30).groups[0].offsets
        return found.offset, found.error_code

    assert send_offset(7) == NONE
    producer.send([b"a"])
    assert committed(require_stable=False) == (-1, NONE)
    assert committed(require_stable=True) == (-1, pb.ERROR_CODE_UNSTABLE_OFFSET_COMMIT)
    assert producer.commit().error_code == NONE
    assert committed(require_stable=True) == (7, NONE)
    assert send_offset(9) == NONE
    assert producer.abort().error_code == NONE
    assert committed(require_stable=True) == (7, NONE)
    zombie = Producer(stub)
    zombie.init()
    assert send_offset(11) == pb.ERROR_CODE_PRODUCER_FENCED
    assert values(tmp_path) == [b"a"]


def test_coordinator_says_which_rows_and_ids_it_may_need(tmp_path: Path) -> None:
    """It is asked by brokers before they delete what is staged, and proofs."""
    with running_broker(tmp_path, config=CONFIG) as broker:
        producer = Producer(connect(broker))
        producer.init()
        producer.send([b"a"], 0)
        cluster = bus_pb2_grpc.ClusterStub(grpc.insecure_channel(f"127.0.0.1:{broker.port}"))
        traces = pb.Traces(
            producer_ids=[producer.producer_id, producer.producer_id],
            producer_epochs=[producer.epoch, producer.epoch + 1],
            transactional_ids=["payments", "stranger"],
        )
        requests = [pb.FindNeededRequest(coordinator_partition=number, traces=traces) for number in range(4)]
        *answers, beyond = [cluster.FindNeeded(request, timeout=30) for request in requests]
        assert [each.error_code for each in answers] == [NONE] * 3
        needed = [each.traces for each in answers if each.traces.ByteSize()]
        expected = pb.Traces(
            producer_ids=[producer.producer_id],
            producer_epochs=[producer.epoch],
            transactional_ids=["payments"],
        )
        assert needed == [expected]
        assert beyond.error_code == pb.ERROR_CODE_NOT_COORDINATOR


def test_ids_and_partitions_that_a_broker_coordinates_are_bounded(tmp_path: Path) -> None:
    config = replace(
        CONFIG, transactional_ids_count_max=1, transaction_partitions_count_max=1, request_timeout_ms=5_000
    )
    with running_broker(tmp_path, config=config) as broker:
        stub = connect(broker)
        producer = Producer(stub)
        assert producer.init().error_code == NONE
        other = Producer(stub, "other").init()
        assert other.error_code == pb.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        assert "other: the broker holds 1 transactional ids" in other.error_message
        assert "transactional.ids.count.max=1" in other.error_message
        assert producer.send([b"a"], 0).error_code == NONE
        refused = producer.send([b"a"], 1)
        assert refused.error_code == pb.ERROR_CODE_REQUEST_TIMED_OUT, "retriable: transactions end"
        assert "transaction.partitions.count.max=1" in refused.error_message
        assert producer.commit().error_code == NONE
