"""The administrator's calls for transactions, against a real broker, and over coordinators that move."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus import Admin, BusError, ErrorCode, NewTopic, TopicPartition
from bus.descriptions import TransactionListing
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import FakeBroker
from tests.support.fake_groups import FakeGroupBroker
from tests.support.transactional_producer import Producer

T_0, T_1 = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=2)
_GARBAGE = "2/4711-3-0-0.arrow"  # coordinator partition, producer id, epoch, sequences


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    with running_broker(tmp_path, config=CONFIG) as running:
        yield running


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.port}", retry_backoff_ms=1) as client:
        client.create_topics([NewTopic("t", 2)])
        yield client


def new_producer(broker: Any, admin: Admin, transactional_id: str) -> Producer:
    stub = bus_pb2_grpc.BusStub(grpc.insecure_channel(f"127.0.0.1:{broker.port}"))
    key_type = pb.COORDINATOR_TYPE_TRANSACTION
    stub.FindCoordinator(pb.FindCoordinatorRequest(key=transactional_id, key_type=key_type), timeout=30)
    producer = Producer(stub, transactional_id)
    assert producer.init().error_code == pb.ERROR_CODE_NONE
    return producer


def commit_offset(producer: Producer, group_id: str) -> None:
    request = pb.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation=-1,
        partitions=[pb.OffsetCommitPartition(topic="t", partition=0, offset=1, leader_epoch=-1)],
    )
    assert producer.stub.TxnOffsetCommit(request, timeout=30).partitions[0].error_code == pb.ERROR_CODE_NONE


def test_ids_are_listed_by_state_producer_and_duration(broker: Any, admin: Admin) -> None:
    assert admin.list_transactions() == []
    idle, busy = new_producer(broker, admin, "idle"), new_producer(broker, admin, "busy")
    busy.send([b"a"])
    listed = TransactionListing("busy", 0, busy.producer_id, "Ongoing")
    assert admin.list_transactions() == [listed, TransactionListing("idle", 0, idle.producer_id, "Empty")]
    assert admin.list_transactions(["Ongoing", "PrepareCommit"]) == [listed]
    assert admin.list_transactions(producer_ids=[busy.producer_id]) == [listed]
    assert admin.list_transactions(["Empty"], [busy.producer_id]) == []
    assert admin.list_transactions(duration_ms=3_600_000) == []
    time.sleep(0.01)
    assert admin.list_transactions(duration_ms=1) == [listed]
    with pytest.raises(BusError, match="expected states of a transaction, found Open") as caught:
        admin.list_transactions(["Open"])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_description_tells_what_takes_part_while_it_is_open(broker: Any, admin: Admin) -> None:
    producer = new_producer(broker, admin, "busy")
    for partition in (1, 0):
        producer.send([b"a"], partition)
    commit_offset(producer, "readers")
    found = admin.describe_transactions(["busy"])["busy"]
    assert (found.state, found.partitions, found.group_ids) == ("Ongoing", (T_0, T_1), ("readers",))
    assert (found.producer_id, found.producer_epoch, found.open_epoch) == (producer.producer_id, 0, 0)
    assert (found.timeout_ms, found.coordinator.port) == (60_000, broker.port)
    assert abs(time.time() * 1_000 - found.start_ms) < 60_000
    producer.commit()
    after = admin.describe_transactions(["busy"])["busy"]
    assert (after.state, after.partitions, after.start_ms, after.open_epoch) == ("CompleteCommit", (), -1, -1)
    with pytest.raises(BusError, match="there is no transactional id other") as caught:
        admin.describe_transactions(["busy", "other"])
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_producers_of_a_partition_are_told_in_the_log_and_staged(broker: Any, admin: Admin) -> None:
    producer = new_producer(broker, admin, "busy")
    producer.send([b"a", b"b"])
    producer.commit()
    producer.send([b"c"])
    found = admin.describe_producers([T_0, T_1])
    assert found[T_1] == ()
    logged, staged = found[T_0]
    assert (logged.producer_epoch, logged.last_sequence, logged.coordinator_partition) == (0, 1, None)
    assert (staged.producer_epoch, staged.last_sequence, staged.staged_bytes > 0) == (1, 0, True)
    assert staged.coordinator_partition == admin.describe_transactions(["busy"])["busy"].coordinator_partition
    assert abs(time.time() * 1_000 - staged.last_timestamp_ms) < 60_000


def test_an_abort_takes_the_open_transaction_and_its_producer_goes_on(broker: Any, admin: Admin) -> None:
    producer = new_producer(broker, admin, "busy")
    with pytest.raises(BusError, match="expected a transaction that is open and not decided, found Empty") as caught:
        admin.abort_transaction("busy")
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    producer.send([b"a"])
    with pytest.raises(BusError, match=r"expected the transaction of .* epoch 7"):
        admin.abort_transaction("busy", producer_id=producer.producer_id, producer_epoch=7)
    assert admin.abort_transaction("busy").partitions == (T_0,)
    assert admin.describe_transactions(["busy"])["busy"].state == "CompleteAbort"
    assert producer.commit().error_code == pb.ERROR_CODE_TRANSACTION_ABORTABLE
    assert producer.init(producer_id=producer.producer_id, producer_epoch=producer.epoch).error_code == 0
    producer.send([b"b"])
    # What was asked of the first transaction again does nothing to the next one.
    with pytest.raises(BusError, match="INVALID_TXN_STATE"):
        admin.abort_transaction("busy", producer_id=producer.producer_id, producer_epoch=0)
    assert producer.commit().error_code == pb.ERROR_CODE_NONE


def test_fenced_producers_are_refused_for_good(broker: Any, admin: Admin) -> None:
    producer = new_producer(broker, admin, "busy")
    producer.send([b"a"])
    fenced = admin.fence_producers(["busy"])["busy"]
    assert (fenced.producer_id, fenced.producer_epoch > producer.epoch) == (producer.producer_id, True)
    assert producer.commit().error_code == pb.ERROR_CODE_PRODUCER_FENCED
    with pytest.raises(BusError, match="there is no transactional id other") as caught:
        admin.fence_producers(["busy", "other"])
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_only_what_no_open_transaction_needs_hangs(broker: Any, admin: Admin, tmp_path: Path) -> None:
    producer = new_producer(broker, admin, "busy")
    producer.send([b"a"])
    commit_offset(producer, "readers")
    assert admin.find_hanging_transactions(older_than_ms=0) == []
    (file,) = (tmp_path / "topics" / "t" / "0" / "_staged").glob("*/*.arrow")
    garbage = tmp_path / "topics" / "t" / "1" / "_staged" / _GARBAGE
    garbage.parent.mkdir(parents=True)
    garbage.write_bytes(file.read_bytes())
    (found,) = admin.find_hanging_transactions(older_than_ms=0)
    assert (found.producer_id, found.producer_epoch, found.partition, found.group_id) == (4711, 3, T_1, None)
    assert found.staged_bytes == file.stat().st_size
    assert admin.find_hanging_transactions([T_0], older_than_ms=0) == []
    assert admin.find_hanging_transactions() == [], "it is too young"


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.list_transactions("Ongoing"),
        lambda admin: admin.list_transactions(producer_ids=["7"]),
        lambda admin: admin.list_transactions(duration_ms=-1),
        lambda admin: admin.describe_transactions("busy"),
        lambda admin: admin.describe_producers(["t"]),
        lambda admin: admin.abort_transaction(b"busy"),
        lambda admin: admin.abort_transaction("busy", producer_id=7),
        lambda admin: admin.fence_producers("busy"),
        lambda admin: admin.find_hanging_transactions(older_than_ms=None),
    ],
)
def test_what_is_no_argument_is_refused_before_a_broker_is_asked(call: Any) -> None:
    with Admin("127.0.0.1:1") as admin, pytest.raises(BusError, match=r"INVALID_REQUEST: expected"):
        call(admin)


# ------------------------------------------------------------ coordinators that move


class Coordinator(FakeBroker):
    """Answers with what the test wants, in turn, and then without an error."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.codes: deque[ErrorCode] = deque()
        self.aborted: list[tuple[int, int]] = []

    def ListTransactions(self, request: pb.ListTransactionsRequest, context: Any) -> pb.ListTransactionsResponse:
        self._note("ListTransactions", context)
        code = self.codes.popleft() if self.codes else 0
        listed = pb.ListedTransaction(transactional_id=f"id-{self.broker_id}", producer_id=7, state="Ongoing")
        return pb.ListTransactionsResponse(error_code=code, transactions=[] if code else [listed])

    def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: Any
    ) -> pb.DescribeTransactionsResponse:
        self._note("DescribeTransactions", context)
        code = self.codes.popleft() if self.codes else 0
        described = [
            pb.DescribedTransaction(
                error_code=code, transactional_id=one, state="PrepareAbort", producer_id=7, producer_epoch=5
            )
            for one in request.transactional_ids
        ]
        return pb.DescribeTransactionsResponse(transactions=described)

    def AbortTransaction(self, request: pb.AbortTransactionRequest, context: Any) -> pb.AbortTransactionResponse:
        self._note("AbortTransaction", context)
        self.aborted.append((request.producer_id, request.producer_epoch))
        return pb.AbortTransactionResponse(error_code=self.codes.popleft() if self.codes else 0)


def test_every_broker_is_asked_until_it_answers() -> None:
    with Coordinator() as first, Coordinator(first.cluster, 1) as second:
        second.codes.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        with Admin(first.address, retry_backoff_ms=1) as admin:
            listed = admin.list_transactions()
        assert [(one.transactional_id, one.coordinator_id) for one in listed] == [("id-0", 0), ("id-1", 1)]


def test_a_call_follows_its_coordinator() -> None:
    with Coordinator() as first, Coordinator(first.cluster, 1) as second:
        first.codes.append(ErrorCode.NOT_COORDINATOR)
        with Admin(first.address, retry_backoff_ms=1) as admin:
            first.cluster.coordinator_id = 0
            described = admin.describe_transactions(["a"])["a"]
            assert (described.producer_epoch, described.open_epoch) == (5, 4), "the decision has raised the epoch"
            first.cluster.coordinator_id = 1
            first.codes.append(ErrorCode.NOT_COORDINATOR)
            assert admin.describe_transactions(["a"])["a"].producer_id == 7
        assert not second.codes


def test_an_abort_is_repeated_for_the_transaction_that_was_looked_at() -> None:
    with Coordinator() as broker, Admin(broker.address, retry_backoff_ms=1) as admin:
        assert admin.describe_transactions(["a"])["a"].state == "PrepareAbort"
        broker.codes.extend([ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CONCURRENT_TRANSACTIONS])
        admin.abort_transaction("a")
        assert broker.aborted == [(7, 4)] * 3


class PendingGroup(FakeGroupBroker):
    """Offsets of producer id 7, epoch 3, are pending; its transaction is open when it is listed as `is_open` says."""

    def __init__(self, *is_open: bool) -> None:
        super().__init__()
        self.is_open = deque(is_open)
        self.commit("readers", {T_0: 1})
        self.groups["readers"].pending_offsets.append(
            pb.PendingOffsets(producer_id=7, producer_epoch=3, offset_count=2, commit_ms=99)
        )

    def ListTransactions(self, request: pb.ListTransactionsRequest, context: Any) -> pb.ListTransactionsResponse:
        listed = [pb.ListedTransaction(transactional_id="a", producer_id=7, state="PrepareCommit")]
        return pb.ListTransactionsResponse(transactions=listed if self.is_open.popleft() else [])

    def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: Any
    ) -> pb.DescribeTransactionsResponse:
        assert request.transactional_ids == ["a"]
        described = pb.DescribedTransaction(
            transactional_id="a", state="PrepareCommit", producer_id=7, producer_epoch=4
        )
        return pb.DescribeTransactionsResponse(transactions=[described])


def test_pending_offsets_without_a_transaction_hang() -> None:
    with PendingGroup(False, False) as broker, Admin(broker.address) as admin:
        (found,) = admin.find_hanging_transactions()
        assert (found.group_id, found.partition, found.offset_count) == ("readers", None, 2)
        assert (found.producer_id, found.producer_epoch, found.last_timestamp_ms) == (7, 3, 99)


@pytest.mark.parametrize("is_open", [(True, False), (False, True)], ids=["before one looks", "after it"])
def test_what_is_open_at_one_look_does_not_hang(is_open: tuple[bool, bool]) -> None:
    with PendingGroup(*is_open) as broker, Admin(broker.address) as admin:
        assert admin.find_hanging_transactions() == []


def test_a_transactional_id_is_looked_for_among_transactions() -> None:
    asked = []

    class Finder(Coordinator):
        def FindCoordinator(self, request: pb.FindCoordinatorRequest, context: Any) -> pb.FindCoordinatorResponse:
            asked.append((request.key, request.key_type))
            return super().FindCoordinator(request, context)

    with Finder() as broker, Admin(broker.address) as admin:
        admin.describe_transactions(["a"])
    assert asked == [("a", pb.COORDINATOR_TYPE_TRANSACTION)]
