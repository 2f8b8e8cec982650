from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.transactions.changes import AWAITING_MAX
from bus.transactions.epochs import needs_producer_id
from bus.transactions.requests import (
    EndTransaction,
    FenceProducer,
    InitProducerId,
    ProducerInitialized,
    TransactionEnded,
)
from bus.transactions.state import AbortCause, ProducerIdentity, TransactionState
from tests.support.transaction_bench import (
    DESK,
    ID,
    ORDERS,
    TIMEOUT_MS,
    TransactionBench,
    bench_at_the_last_epoch,
    bench_in,
)

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
WAITS, FENCED = "waits", ErrorCode.PRODUCER_FENCED


def outcome(answer: object) -> object:
    """The epoch, or the error."""
    match answer:
        case None:
            return WAITS
        case ProducerInitialized(7, epoch):
            return epoch
        case Refused(code):
            return code
    return answer


# The epoch of the transaction, or of the instance, is 3: so that of the state is 3 in Empty and Ongoing, and else 4.
NEW_INSTANCE, CURRENT, LAST, HIGHER, OLDER = "new instance", 0, 1, -1, 2
INIT_PRODUCER_ID = {
    "empty-new-instance-gets-the-next-epoch": (EMPTY, NEW_INSTANCE, 4, EMPTY),
    "empty-same-instance-gets-the-next-epoch": (EMPTY, CURRENT, 4, EMPTY),
    "empty-instance-before-is-fenced": (EMPTY, LAST, FENCED, EMPTY),
    "empty-higher-epoch-is-fenced": (EMPTY, HIGHER, FENCED, EMPTY),
    "ongoing-new-instance-aborts-and-waits": (ONGOING, NEW_INSTANCE, WAITS, PREPARE_ABORT),
    "ongoing-same-instance-aborts-and-waits": (ONGOING, CURRENT, WAITS, PREPARE_ABORT),
    "ongoing-instance-before-is-fenced": (ONGOING, LAST, FENCED, ONGOING),
    "ongoing-higher-epoch-is-fenced": (ONGOING, HIGHER, FENCED, ONGOING),
    "prepare-commit-new-instance-waits": (PREPARE_COMMIT, NEW_INSTANCE, WAITS, PREPARE_COMMIT),
    "prepare-commit-same-instance-waits": (PREPARE_COMMIT, LAST, WAITS, PREPARE_COMMIT),
    "prepare-commit-next-epoch-waits": (PREPARE_COMMIT, CURRENT, WAITS, PREPARE_COMMIT),
    "prepare-commit-older-epoch-is-fenced": (PREPARE_COMMIT, OLDER, FENCED, PREPARE_COMMIT),
    "prepare-abort-new-instance-waits": (PREPARE_ABORT, NEW_INSTANCE, WAITS, PREPARE_ABORT),
    "prepare-abort-same-instance-waits": (PREPARE_ABORT, LAST, WAITS, PREPARE_ABORT),
    "prepare-abort-next-epoch-waits": (PREPARE_ABORT, CURRENT, WAITS, PREPARE_ABORT),
    "prepare-abort-older-epoch-is-fenced": (PREPARE_ABORT, OLDER, FENCED, PREPARE_ABORT),
    "complete-commit-new-instance-gets-the-next-epoch": (COMPLETE_COMMIT, NEW_INSTANCE, 5, EMPTY),
    "complete-commit-same-instance-gets-the-next-epoch": (COMPLETE_COMMIT, CURRENT, 5, EMPTY),
    "complete-commit-repeated-gets-the-same-epoch": (COMPLETE_COMMIT, LAST, 4, COMPLETE_COMMIT),
    "complete-commit-older-epoch-is-fenced": (COMPLETE_COMMIT, OLDER, FENCED, COMPLETE_COMMIT),
    "complete-commit-higher-epoch-is-fenced": (COMPLETE_COMMIT, HIGHER, FENCED, COMPLETE_COMMIT),
    "complete-abort-new-instance-gets-the-next-epoch": (COMPLETE_ABORT, NEW_INSTANCE, 5, EMPTY),
    "complete-abort-same-instance-gets-the-next-epoch": (COMPLETE_ABORT, CURRENT, 5, EMPTY),
    "complete-abort-repeated-gets-the-same-epoch": (COMPLETE_ABORT, LAST, 4, COMPLETE_ABORT),
    "complete-abort-older-epoch-is-fenced": (COMPLETE_ABORT, OLDER, FENCED, COMPLETE_ABORT),
    "complete-abort-higher-epoch-is-fenced": (COMPLETE_ABORT, HIGHER, FENCED, COMPLETE_ABORT),
}


@pytest.mark.parametrize(("state", "who", "expected", "after"), INIT_PRODUCER_ID.values(), ids=INIT_PRODUCER_ID)
def test_initialisation_by_state(
    state: TransactionState, who: str | int, expected: object, after: TransactionState
) -> None:
    bench = bench_in(state, epoch=3)
    before = bench.known
    identity = None if isinstance(who, str) else ProducerIdentity(7, before.producer_epoch - who)
    assert outcome(bench.init(identity)) == expected
    assert bench.known.state is after
    if state is after and expected not in (WAITS, 4):
        assert bench.state == before


def test_id_that_is_not_known_begins_with_the_new_producer_id_and_epoch_0() -> None:
    bench = TransactionBench()
    assert bench.init() == ProducerInitialized(7, 0)
    assert (bench.known.timeout_ms, bench.known.last_identity) == (TIMEOUT_MS, None)


def test_instance_of_an_id_that_has_expired_begins_again() -> None:
    bench = TransactionBench()
    assert bench.init(ProducerIdentity(3, 9)) == ProducerInitialized(7, 0)


def test_initialisation_without_the_producer_id_that_it_needs_is_told_to_retry() -> None:
    bench = TransactionBench()
    assert outcome(bench.answer(InitProducerId(ID, TIMEOUT_MS))) is ErrorCode.CONCURRENT_TRANSACTIONS
    bench = bench_at_the_last_epoch()
    assert outcome(bench.answer(InitProducerId(ID, TIMEOUT_MS))) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_other_producer_id_is_fenced() -> None:
    bench = bench_in(EMPTY)
    assert bench.init(ProducerIdentity(99, 0)) == Refused(
        FENCED,
        "billing: expected producer id 7 with epoch 0, found producer id 99 with epoch 0: another instance was "
        "initialised, or this one has gone on",
    )


# ---------------------------------------------------------------- KIP-360


def test_repeated_call_gets_the_same_answer_also_from_another_coordinator() -> None:
    bench = bench_in(EMPTY)
    first = bench.init(ProducerIdentity(7, 0))
    written = len(bench.records)
    assert bench.init(ProducerIdentity(7, 0)) == first == ProducerInitialized(7, 1)
    bench.crash()
    assert bench.init(ProducerIdentity(7, 0)) == first
    assert len(bench.records) == written


def test_repeated_call_that_comes_late_does_not_end_the_next_transaction() -> None:
    bench = bench_in(EMPTY)
    bench.init(ProducerIdentity(7, 0))
    bench.add(ORDERS)
    before = bench.state
    assert bench.init(ProducerIdentity(7, 0)) == ProducerInitialized(7, 1)
    assert bench.state == before


def test_instance_that_another_one_followed_is_fenced() -> None:
    bench = bench_in(EMPTY)
    bench.init()
    assert outcome(bench.init(ProducerIdentity(7, 0))) is FENCED


def test_instance_goes_on_after_its_transaction_timed_out() -> None:
    """KIP-588."""
    bench = bench_in(COMPLETE_ABORT, cause=AbortCause.TIMEOUT)
    assert bench.init(ProducerIdentity(7, 0)) == ProducerInitialized(7, 1)
    assert bench.init(ProducerIdentity(7, 1)) == ProducerInitialized(7, 2)


def test_instance_that_initialises_itself_again_during_its_transaction_aborts_it_with_one_epoch() -> None:
    bench = bench_in(ONGOING)
    request = bench.ask(InitProducerId(ID, TIMEOUT_MS, 7, 0))
    assert bench.known.abort_cause is AbortCause.CLIENT
    bench.finish()
    assert bench.answers[request] == ProducerInitialized(7, 1)
    assert bench.init(ProducerIdentity(7, 0)) == ProducerInitialized(7, 1)


# ---------------------------------------------------------------- instances that follow each other


def test_new_instance_waits_for_the_end_of_the_transaction_and_fences() -> None:
    bench = bench_in(ONGOING)
    bench.add_offsets(DESK)
    commit = bench.ask(EndTransaction(ID, 7, 0, True))
    request = bench.ask(InitProducerId(ID, 1_000))
    assert outcome(bench.answers[commit]) is FENCED
    assert bench.known.abort_cause is AbortCause.NEW_INSTANCE
    assert request not in bench.answers
    bench.vote()
    bench.finish()
    assert bench.answers[request] == ProducerInitialized(7, 2)
    assert (bench.known.state, bench.known.timeout_ms) == (EMPTY, 1_000)
    for is_commit in (True, False):
        assert outcome(bench.end(is_commit, of=ProducerIdentity(7, 0))) is FENCED


def test_transaction_that_is_decided_commits_before_the_new_instance_has_its_epoch() -> None:
    bench = bench_in(PREPARE_COMMIT)
    commit = bench.ask(EndTransaction(ID, 7, 0, True))
    request = bench.ask(InitProducerId(ID, TIMEOUT_MS))
    bench.finish()
    assert isinstance(bench.answers[commit], TransactionEnded)
    assert bench.answers[request] == ProducerInitialized(7, 2)
    assert outcome(bench.add(ORDERS, of=ProducerIdentity(7, 1))) is FENCED


def test_of_instances_that_wait_each_gets_an_epoch_and_the_last_one_has_the_id() -> None:
    bench = bench_in(PREPARE_ABORT, cause=AbortCause.TIMEOUT)
    same = bench.ask(InitProducerId(ID, TIMEOUT_MS, 7, 0))
    new = [bench.ask(InitProducerId(ID, TIMEOUT_MS)) for _ in range(2)]
    late = bench.ask(InitProducerId(ID, TIMEOUT_MS, 7, 0))
    bench.finish()
    assert [outcome(bench.answers[request]) for request in (same, *new, late)] == [1, 2, 3, FENCED]


def test_of_very_many_instances_that_wait_the_oldest_is_told_to_retry() -> None:
    bench = bench_in(PREPARE_COMMIT)
    requests = [bench.ask(InitProducerId(ID, TIMEOUT_MS)) for _ in range(AWAITING_MAX + 1)]
    assert outcome(bench.answers[requests[0]]) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert list(bench.open) == requests[1:]


# ---------------------------------------------------------------- the last epoch


def test_new_instance_after_the_last_epoch_has_a_new_producer_id_and_no_past() -> None:
    bench = bench_at_the_last_epoch()
    assert bench.init() == ProducerInitialized(8, 0)
    assert outcome(bench.init(ProducerIdentity(7, 32_766))) is FENCED
    assert outcome(bench.commit(of=ProducerIdentity(7, 32_766))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_same_instance_after_the_last_epoch_may_repeat_its_call() -> None:
    bench = bench_at_the_last_epoch()
    assert bench.init(ProducerIdentity(7, 32_766)) == ProducerInitialized(8, 0)
    bench.crash()
    assert bench.init(ProducerIdentity(7, 32_766)) == ProducerInitialized(8, 0)
    assert bench.init(ProducerIdentity(8, 0)) == ProducerInitialized(8, 1)
    assert bench.known.previous_producer_id == -1
    assert outcome(bench.init(ProducerIdentity(7, 32_766))) is FENCED


def test_new_instance_during_the_transaction_of_the_last_epoch_gets_the_second_one_of_the_new_producer_id() -> None:
    bench = bench_at_the_last_epoch(ONGOING)
    request = bench.ask(bench.with_producer_id(InitProducerId(ID, TIMEOUT_MS)))
    bench.finish()
    answer = bench.answers[request]
    assert isinstance(answer, ProducerInitialized)
    assert (answer.producer_id > 7, answer.producer_epoch) == (True, 1)


@pytest.mark.parametrize(("epoch", "is_needed"), [(0, False), (32_764, False), (32_765, True), (32_766, True)])
def test_new_producer_id_is_asked_for_before_the_epochs_are_used_up(epoch: int, is_needed: bool) -> None:
    """A call may have to wait for the end of a transaction, which takes one."""
    near = replace(bench_in(EMPTY).known, producer_epoch=epoch)
    assert needs_producer_id(near, InitProducerId(ID, TIMEOUT_MS)) is is_needed
    assert needs_producer_id(near, FenceProducer(ID)) is is_needed


def test_new_producer_id_is_asked_for_by_an_id_that_begins() -> None:
    assert needs_producer_id(None, InitProducerId(ID, TIMEOUT_MS))
    assert not needs_producer_id(None, FenceProducer(ID))


# ---------------------------------------------------------------- an operator


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (EMPTY, 4),
        (ONGOING, WAITS),
        (PREPARE_COMMIT, WAITS),
        (PREPARE_ABORT, WAITS),
        (COMPLETE_COMMIT, 5),
        (COMPLETE_ABORT, 5),
    ],
)
def test_operator_fences_the_producer_and_keeps_its_timeout(state: TransactionState, expected: object) -> None:
    bench = bench_in(state, epoch=3)
    identity = bench.known.identity
    request = bench.ask(FenceProducer(ID))
    assert outcome(bench.answers.get(request)) == expected
    if expected is WAITS:
        bench.finish()
    assert bench.answers[request] == ProducerInitialized(7, 5 if expected is WAITS else expected)
    assert bench.known.timeout_ms == TIMEOUT_MS
    assert outcome(bench.add(ORDERS, of=identity)) is FENCED


def test_operator_is_told_that_there_is_nothing_to_fence() -> None:
    assert outcome(TransactionBench().answer(FenceProducer(ID))) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
