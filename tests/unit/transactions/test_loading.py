from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.ports import KeyedRow
from bus.transactions.changes import TransactionRules, logged
from bus.transactions.decisions import decide
from bus.transactions.epochs import needs_producer_id
from bus.transactions.loading import TransactionCodec, resume_timers
from bus.transactions.records import TransactionExpired, encode_record
from bus.transactions.requests import (
    DescribedTransaction,
    DescribeTransaction,
    FenceProducer,
    InitProducerId,
    ProducerInitialized,
    TimerKind,
    TransactionTimer,
)
from bus.transactions.state import AbortCause, ProducerIdentity, Transaction, TransactionState
from tests.support.transaction_bench import BEGIN_MS, ID, bench_in

CODEC = TransactionCodec()


def test_last_record_of_each_id_counts() -> None:
    open_row = encode_record(logged(bench_in(TransactionState.ONGOING).known))
    done = replace(logged(bench_in(TransactionState.COMPLETE_COMMIT).known), transactional_id="other")
    rows = [open_row, encode_record(done), encode_record(TransactionExpired(ID)), encode_record(done)]
    loaded = CODEC.load(rows, now_ms=BEGIN_MS)
    assert loaded.faults == ()
    assert {name: logged(state) for name, state in loaded.states.items()} == {"other": done}


@pytest.mark.parametrize("state", TransactionState)
def test_open_transactions_are_gone_on_with_at_once(state: TransactionState) -> None:
    kinds = [timer.timer.kind for timer in resume_timers(bench_in(state).known)]  # type: ignore[union-attr]
    assert kinds == ([TimerKind.DRIVE, TimerKind.EXPIRE] if state.is_open else [TimerKind.EXPIRE])


def test_calls_that_waited_and_a_vote_are_forgotten() -> None:
    bench = bench_in(TransactionState.ONGOING)
    bench.commit()
    bench.crash()
    assert (bench.known.vote, bench.known.awaiting_end) == (None, ())


# ---------------------------------------------------------------- a record that cannot be read


def damaged(**change: object) -> Transaction:
    row = encode_record(logged(bench_in(TransactionState.PREPARE_COMMIT).known))
    loaded = CODEC.load([KeyedRow(row.key, {**(row.value or {}), **change})], now_ms=BEGIN_MS)
    assert len(loaded.faults) == 1
    assert "transactional id 'billing' cannot be read, its calls are refused" in loaded.faults[0]
    return loaded.states[ID]


def answer(state: Transaction, command: InitProducerId | FenceProducer | DescribeTransaction) -> object:
    step = decide(state, command, request_id=1, rules=TransactionRules(), now_ms=BEGIN_MS)
    (reply,) = step.replies
    return reply.answer


def test_record_that_cannot_be_read_stops_its_own_id() -> None:
    state = damaged(state="PreparePromise")
    found = answer(state, InitProducerId(ID, 1_000, new_producer_id=9))
    assert isinstance(found, Refused)
    assert found.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "expected one of Empty, Ongoing" in found.message
    assert "found 'PreparePromise'" in found.message


def test_record_that_cannot_be_read_deletes_nothing_that_is_staged() -> None:
    assert damaged(state="PreparePromise").may_need(ProducerIdentity(7, 99))
    assert not damaged(state="PreparePromise").may_need(ProducerIdentity(8, 0))
    assert damaged(producer_id="seven").may_need(ProducerIdentity(8, 0))


def test_record_that_cannot_be_read_does_not_expire() -> None:
    timer = TransactionTimer(TimerKind.EXPIRE, ID)
    step = decide(damaged(number=None), timer, request_id=0, rules=TransactionRules(), now_ms=10**15)
    assert not step.records


def test_record_that_cannot_be_read_is_described_as_such() -> None:
    found = answer(damaged(number=None), DescribeTransaction(ID))
    assert isinstance(found, DescribedTransaction)
    assert found.state == "Unreadable"


def test_operator_gives_up_a_record_that_cannot_be_read() -> None:
    state = damaged(state="PreparePromise")
    assert needs_producer_id(state, FenceProducer(ID))
    step = decide(state, FenceProducer(ID, 9), request_id=1, rules=TransactionRules(), now_ms=BEGIN_MS)
    assert [reply.answer for reply in step.replies] == [ProducerInitialized(9, 0)]
    assert step.transaction.damage is None
    assert step.transaction.number >= BEGIN_MS


def test_key_that_cannot_be_read_is_passed_over() -> None:
    loaded = CODEC.load([KeyedRow(b"\xff", None)], now_ms=BEGIN_MS)
    assert loaded.states == {}
    assert loaded.faults == ("a record is passed over: expected a transactional id as the key, found b'\\xff'",)


# ---------------------------------------------------------------- what the log of the broker says


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (AbortCause.TIMEOUT, "its time-out passed"),
        (AbortCause.NEW_INSTANCE, "another instance of the producer was initialised"),
        (AbortCause.VOTE, "a partition or a group lacks a part of it"),
    ],
)
def test_transaction_that_its_client_did_not_end_has_a_line_in_the_log(cause: AbortCause, reason: str) -> None:
    transaction = bench_in(TransactionState.PREPARE_ABORT, cause=cause).known
    line = f"transaction {transaction.number} of billing is aborted: {reason}"
    assert CODEC.log_line(logged(transaction)) == line


def test_transaction_that_its_client_ends_has_none() -> None:
    for state in TransactionState:
        assert CODEC.log_line(logged(bench_in(state).known)) is None
    assert CODEC.log_line(TransactionExpired(ID)) == "transactional id billing has expired"


def test_record_that_does_not_fit_the_log_can_be_aborted() -> None:
    record = logged(bench_in(TransactionState.ONGOING).known)
    assert CODEC.fault(record, "too large", is_too_large=True) == Refused(
        ErrorCode.TRANSACTION_ABORTABLE, "billing: too large"
    )
    assert CODEC.fault(record, "odd", is_too_large=False).code is ErrorCode.INVALID_REQUEST
