"""Calls to coordinators, their repetitions, and the state of the transaction when no answer comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.producer.transaction_calls import TransactionCalls
from bus.client.producer.transaction_manager import TransactionState
from bus.client.values import CommittedRows, GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from tests.unit.client.producer.test_sender import Bench

P0 = TopicPartition("t", 0)
Answer = Any  # a message, an error to raise, or a code for the answer


class FakeCluster:
    """Gives each method its answers in turn. FindCoordinator names another broker each time."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str | None, bytes]] = []
        self.finds = 0
        self.attempts_max = 10

    def call(self, method: str, message: Any, *, address: str | None = None, deadline_ms: float | None = None) -> Any:
        if method == "FindCoordinator":
            self.finds += 1
            return pb.FindCoordinatorResponse(coordinator=pb.Broker(broker_id=1, host="h", port=self.finds))
        self.asked.append((method, address, message.SerializeToString()))
        answer = self.answers[method].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def retry(self, ask: Callable[[], Any], *, deadline_ms: float, may_retry: Callable[[BusError], bool]) -> Any:
        for attempt in range(self.attempts_max):
            try:
                return ask()
            except BusError as error:
                if attempt == self.attempts_max - 1 or not may_retry(error):
                    raise
        raise AssertionError("not reached")

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.asked]


def refused(kind: Any, code: ErrorCode) -> Any:
    return kind(error_code=int(code), error_message="as scripted")


def ended(epoch: int) -> pb.EndTxnResponse:
    version = pb.TransactionVersion(topic="t", partition=0, version=9, base_offset=100)
    return pb.EndTxnResponse(producer_id=7, producer_epoch=epoch, versions=[version])


class CallsBench:
    def __init__(self, **answers: list[Answer]) -> None:
        self.cluster = FakeCluster(
            InitProducerId=[pb.InitProducerIdResponse(producer_id=7, producer_epoch=3)], **answers
        )
        self.bench = Bench(identity=None, transactional_id="id")
        config = parse_config(ProducerConfig, {"transactional_id": "id"})
        self.calls = TransactionCalls(self.cluster, config, self.bench.engine)  # type: ignore[arg-type]
        self.manager.begin_initializing()
        self.calls.initialize()
        self.manager.begin_transaction()
        self.cluster.asked.clear()

    @property
    def manager(self) -> Any:
        return self.bench.engine.transactions

    def send(self) -> None:
        self.bench.send(b"x")
        self.bench.answer()

    def commit(self) -> dict[TopicPartition, CommittedRows]:
        self.manager.begin_commit()
        end = self.bench.engine.end_transaction()
        assert end is not None
        return self.calls.end(end)


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(BusError) as caught:
        call()
    return caught.value.code


def test_commit_tells_where_the_rows_are_and_the_next_transaction_has_the_identity_of_the_answer() -> None:
    bench = CallsBench(EndTxn=[ended(4)])
    bench.send()
    assert bench.commit() == {P0: CommittedRows(9, 100)}
    ((_, _, message),) = bench.cluster.asked
    assert pb.EndTxnRequest.FromString(message) == pb.EndTxnRequest(
        transactional_id="id",
        producer_id=7,
        producer_epoch=3,
        is_commit=True,
        ends=[pb.TransactionEnd(topic="t", partition=0, last_sequence=0)],
    )
    assert bench.manager.identity == (7, 4)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_coordinator_that_is_none_is_looked_for_again_and_asked_the_same(code: ErrorCode) -> None:
    bench = CallsBench(EndTxn=[refused(pb.EndTxnResponse, code), ended(4)])
    bench.send()
    bench.commit()
    (_, first, message), (_, second, again) = bench.cluster.asked
    assert (first != second, message == again) == (True, True)


@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode) -> None:
    bench = CallsBench(EndTxn=[refused(pb.EndTxnResponse, code), ended(4)])
    bench.send()
    bench.commit()
    (_, first, message), (_, second, again) = bench.cluster.asked
    assert (first == second, message == again) == (True, True)


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_commit_without_an_answer_is_open_and_asks_the_same_when_it_comes_again(is_interrupted: bool) -> None:
    lost = BusError(ErrorCode.NETWORK_EXCEPTION, "the connection broke")
    bench = CallsBench(EndTxn=[KeyboardInterrupt()] if is_interrupted else [lost] * 10)
    bench.send()
    with pytest.raises(KeyboardInterrupt if is_interrupted else BusError) as caught:
        bench.commit()
    assert is_interrupted or caught.value.code is ErrorCode.REQUEST_TIMED_OUT  # type: ignore[attr-defined]
    assert bench.manager.state is TransactionState.COMMITTING
    assert code_of(bench.bench.engine.start_abort) is ErrorCode.INVALID_TXN_STATE
    bench.cluster.answers["EndTxn"] = [ended(4)]
    bench.commit()
    assert len({message for _, _, message in bench.cluster.asked}) == 1
    assert bench.manager.state is TransactionState.READY


def test_commit_without_an_answer_says_which_call_tells_the_outcome() -> None:
    bench = CallsBench(EndTxn=[BusError(ErrorCode.NETWORK_EXCEPTION, "the connection broke")] * 10)
    bench.send()
    with pytest.raises(BusError, match=r"open until commit_transaction\(\), called again, answers: .*connection broke"):
        bench.commit()


def test_commit_that_the_coordinator_has_aborted_leaves_the_abort() -> None:
    bench = CallsBench(EndTxn=[refused(pb.EndTxnResponse, ErrorCode.TRANSACTION_ABORTABLE), ended(4)])
    bench.send()
    with pytest.raises(BusError, match=r"TRANSACTION_ABORTABLE: as scripted; abort_transaction\(\) is the only way on"):
        bench.commit()
    bench.bench.engine.start_abort()
    end = bench.bench.engine.end_transaction()
    assert end is not None
    bench.calls.end(end)
    assert [pb.EndTxnRequest.FromString(message).is_commit for _, _, message in bench.cluster.asked] == [True, False]


def test_commits_of_offsets_are_numbered_and_repeated_under_their_number() -> None:
    late = pb.OffsetCommitPartitionResponse(topic="t", error_code=pb.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS)
    taken = pb.TxnOffsetCommitResponse(partitions=[pb.OffsetCommitPartitionResponse(topic="t")])
    bench = CallsBench(TxnOffsetCommit=[pb.TxnOffsetCommitResponse(partitions=[late]), taken, taken], EndTxn=[ended(4)])
    member = GroupMetadata("g", 5, "m", "desk")
    for offset in (3, 4):
        bench.calls.commit_offsets({P0: OffsetAndMetadata(offset)}, member)
    sent = [pb.TxnOffsetCommitRequest.FromString(message) for _, _, message in bench.cluster.asked]
    assert [(one.sequence, one.partitions[0].offset) for one in sent] == [(0, 3), (0, 3), (1, 4)]
    assert (sent[0].generation, sent[0].member_id, sent[0].group_instance_id) == (5, "m", "desk")
    assert {(one.producer_id, one.producer_epoch) for one in sent} == {(7, 3)}
    assert bench.commit() != {}, "a transaction of nothing but offsets is ended by its coordinator"


def test_offsets_that_are_refused_let_the_transaction_only_be_aborted() -> None:
    gone = pb.OffsetCommitPartitionResponse(topic="t", error_code=pb.ERROR_CODE_ILLEGAL_GENERATION)
    bench = CallsBench(TxnOffsetCommit=[pb.TxnOffsetCommitResponse(partitions=[gone])])
    offsets = {P0: OffsetAndMetadata(3)}
    assert code_of(lambda: bench.calls.commit_offsets(offsets, GroupMetadata("g"))) is ErrorCode.ILLEGAL_GENERATION
    assert code_of(bench.manager.begin_commit) is ErrorCode.ILLEGAL_GENERATION
    bench.bench.engine.start_abort()
