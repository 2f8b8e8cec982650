"""Calls that a producer may make for its transactions, and the meaning of each error for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from bus.client.producer.transaction_manager import (
    TRANSITIONS,
    Call,
    TransactionEnd,
    TransactionManager,
    TransactionState,
    Verdict,
    judge,
)
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

S = TransactionState
E = ErrorCode
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
RETRY, ABORT, FATAL = Verdict.RETRY, Verdict.ABORTABLE, Verdict.FATAL


def error(code: ErrorCode) -> BusError:
    return BusError(code, "as scripted")


def ready() -> TransactionManager:
    manager = TransactionManager("orders-to-invoices")
    manager.begin_initializing()
    manager.on_initialized(7, 3)
    return manager


def begun() -> TransactionManager:
    manager = ready()
    manager.begin_transaction()
    manager.on_sending()
    manager.on_acknowledged(P0, 4)
    return manager


def says(call: Callable[[], object]) -> str:
    with pytest.raises(BusError) as caught:
        call()
    return caught.value.message


def code_of(call: object, *arguments: object) -> ErrorCode:
    assert callable(call)
    with pytest.raises(BusError) as caught:
        call(*arguments)
    return caught.value.code


# ---------------------------------------------------------------- the table of errors

CALLS = (Call.INITIALIZE, Call.PRODUCE, Call.COMMIT_OFFSETS, Call.COMMIT, Call.ABORT)
# Kafka's, row by row. What the sender repeats by itself comes from Produce only once it has given up.
TABLE: dict[ErrorCode, tuple[Verdict, ...]] = {
    E.NOT_COORDINATOR: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.COORDINATOR_NOT_AVAILABLE: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.COORDINATOR_LOAD_IN_PROGRESS: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.CONCURRENT_TRANSACTIONS: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.REQUEST_TIMED_OUT: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.NETWORK_EXCEPTION: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.PRODUCER_FENCED: (FATAL, FATAL, FATAL, FATAL, FATAL),
    E.INVALID_PRODUCER_EPOCH: (FATAL, ABORT, FATAL, FATAL, FATAL),
    E.INVALID_TXN_STATE: (FATAL, ABORT, FATAL, FATAL, FATAL),
    E.INVALID_PRODUCER_ID_MAPPING: (FATAL, ABORT, FATAL, ABORT, FATAL),
    E.UNKNOWN_PRODUCER_ID: (FATAL, ABORT, FATAL, ABORT, FATAL),
    E.TRANSACTION_ABORTABLE: (ABORT, ABORT, ABORT, ABORT, ABORT),
    E.OUT_OF_ORDER_SEQUENCE_NUMBER: (FATAL, ABORT, ABORT, FATAL, FATAL),
    E.MESSAGE_TOO_LARGE: (FATAL, ABORT, ABORT, FATAL, FATAL),
    E.UNKNOWN_MEMBER_ID: (FATAL, FATAL, ABORT, FATAL, FATAL),
    E.ILLEGAL_GENERATION: (FATAL, FATAL, ABORT, FATAL, FATAL),
    E.FENCED_INSTANCE_ID: (FATAL, FATAL, ABORT, FATAL, FATAL),
    E.REBALANCE_IN_PROGRESS: (FATAL, FATAL, ABORT, FATAL, FATAL),
    E.UNKNOWN_TOPIC_OR_PARTITION: (RETRY, ABORT, RETRY, RETRY, RETRY),
    E.OFFSET_METADATA_TOO_LARGE: (FATAL, ABORT, ABORT, FATAL, FATAL),
    E.INVALID_TRANSACTION_TIMEOUT: (FATAL, ABORT, ABORT, FATAL, FATAL),
    E.UNKNOWN_SERVER_ERROR: (FATAL, ABORT, ABORT, FATAL, FATAL),
}


@pytest.mark.parametrize("code", TABLE, ids=lambda code: code.name)
def test_error_means_what_the_table_says_for_each_call(code: ErrorCode) -> None:
    assert tuple(judge(call, error(code)) for call in CALLS) == TABLE[code]


# ---------------------------------------------------------------- the way of a transaction


def test_commit_asks_with_what_was_acknowledged_and_gives_the_identity_of_the_next_transaction() -> None:
    manager = begun()
    manager.on_acknowledged(P1, 0)
    manager.on_acknowledged(P0, 9)
    manager.begin_commit()
    assert manager.end() == TransactionEnd(7, 3, True, {P0: 9, P1: 0})
    manager.on_ended(7, 4)
    assert (manager.state, manager.identity) == (S.READY, (7, 4))
    manager.begin_transaction()
    manager.on_sending()
    manager.begin_commit()
    assert manager.end() == TransactionEnd(7, 4, True, {})


def test_abort_asks_with_nothing() -> None:
    manager = begun()
    manager.begin_abort()
    assert manager.end() == TransactionEnd(7, 3, False, {})
    manager.on_ended(8, 0)
    assert (manager.state, manager.identity) == (S.READY, (8, 0))


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_that_no_broker_knows_ends_by_itself(is_commit: bool) -> None:
    manager = ready()
    manager.begin_transaction()
    manager.begin_commit() if is_commit else manager.begin_abort()
    assert manager.end() is None
    assert (manager.state, manager.identity) == (S.READY, (7, 3))


def test_transaction_of_nothing_but_offsets_is_ended_at_the_coordinator() -> None:
    manager = ready()
    manager.begin_transaction()
    assert [manager.begin_offsets(group) for group in ("a", "b", "a")] == [0, 0, 1]
    manager.begin_commit()
    assert manager.end() == TransactionEnd(7, 3, True, {})
    manager.on_ended(7, 4)
    manager.begin_transaction()
    assert manager.begin_offsets("a") == 0


def test_calls_have_their_place() -> None:
    manager = TransactionManager("id")
    for call in (manager.begin_transaction, manager.check_may_send, manager.begin_commit, manager.begin_abort):
        assert code_of(call) is E.INVALID_TXN_STATE
    manager.begin_initializing()
    manager.on_initialized(7, 0)
    for call in (manager.begin_initializing, manager.check_may_send, manager.begin_commit, manager.begin_abort):
        assert code_of(call) is E.INVALID_TXN_STATE
    manager.begin_transaction()
    for call in (manager.begin_initializing, manager.begin_transaction):
        assert code_of(call) is E.INVALID_TXN_STATE
    manager.check_may_send()
    manager.begin_commit()
    for call in (manager.begin_transaction, manager.check_may_send):
        assert code_of(call) is E.INVALID_TXN_STATE
    assert code_of(manager.begin_offsets, "g") is E.INVALID_TXN_STATE


def test_misplaced_call_is_told_which_call_has_its_place() -> None:
    manager = TransactionManager("id")
    assert says(manager.begin_transaction) == (
        "id: expected begin_transaction() between transactions, found no init_transactions() yet: call it first, once"
    )
    manager.begin_initializing()
    assert "found init_transactions() under way" in says(manager.begin_transaction)
    manager.on_initialized(7, 0)
    assert "expected init_transactions() to be called once" in says(manager.begin_initializing)
    for call in (manager.check_may_send, manager.begin_commit, manager.begin_abort):
        assert "begin_transaction(), or `with producer.transaction()`, opens the next" in says(call)
    manager.begin_transaction()
    assert "found an open one: commit_transaction() or abort_transaction() ends it" in says(manager.begin_transaction)
    manager.begin_abort()
    assert "call abort_transaction() again" in says(manager.begin_transaction)


def test_error_names_the_way_on_that_its_state_leaves() -> None:
    manager = ready()
    refusal = error(E.TRANSACTION_ABORTABLE)
    assert manager.with_way_on(refusal) is refusal
    manager.begin_transaction()
    manager.on_failed(Call.PRODUCE, refusal)
    assert "abort_transaction() is the only way on" in manager.with_way_on(refusal).message
    manager.on_failed(Call.ABORT, error(E.PRODUCER_FENCED))
    assert "close this producer" in says(manager.begin_abort)
    assert "another instance has the transactional id" in says(manager.begin_abort)


# ---------------------------------------------------------------- outcomes that are open


def test_commit_whose_time_is_up_is_open_and_only_the_same_call_may_come_again() -> None:
    manager = begun()
    manager.begin_commit()
    first = manager.end()
    manager.on_timed_out(Call.COMMIT, error(E.REQUEST_TIMED_OUT))
    assert manager.state is S.COMMITTING
    with pytest.raises(BusError, match="its outcome is open") as caught:
        manager.begin_abort()
    assert caught.value.code is E.INVALID_TXN_STATE
    for call in (manager.begin_transaction, manager.check_may_send):
        assert code_of(call) is E.INVALID_TXN_STATE
    manager.begin_commit()
    assert manager.end() == first
    manager.on_ended(7, 4)
    manager.begin_transaction()


def test_abort_whose_time_is_up_may_come_again_and_no_commit() -> None:
    manager = begun()
    manager.begin_abort()
    first = manager.end()
    manager.on_timed_out(Call.ABORT, error(E.REQUEST_TIMED_OUT))
    assert code_of(manager.begin_commit) is E.INVALID_TXN_STATE
    manager.begin_abort()
    assert manager.end() == first


def test_commit_that_was_interrupted_before_a_broker_was_asked_may_still_be_aborted() -> None:
    manager = begun()
    manager.begin_commit()
    manager.begin_abort()
    assert manager.end() == TransactionEnd(7, 3, False, {})


def test_offsets_whose_time_is_up_may_be_in_the_transaction_or_not_so_it_is_aborted() -> None:
    manager = begun()
    manager.begin_offsets("g")
    manager.on_timed_out(Call.COMMIT_OFFSETS, error(E.REQUEST_TIMED_OUT))
    assert code_of(manager.begin_commit) is E.TRANSACTION_ABORTABLE
    manager.begin_abort()


@pytest.mark.parametrize("fails", [True, False])
def test_initialising_may_be_repeated_after_a_time_out_and_an_abortable_error(fails: bool) -> None:
    manager = TransactionManager("id")
    manager.begin_initializing()
    if fails:
        manager.on_failed(Call.INITIALIZE, error(E.TRANSACTION_ABORTABLE))
    else:
        manager.on_timed_out(Call.INITIALIZE, error(E.REQUEST_TIMED_OUT))
    manager.begin_initializing()
    manager.on_initialized(7, 0)


# ---------------------------------------------------------------- errors


def test_record_that_fails_leaves_nothing_but_to_abort() -> None:
    manager = begun()
    manager.on_failed(Call.PRODUCE, error(E.MESSAGE_TOO_LARGE))
    for call in (manager.check_may_send, manager.begin_commit, manager.begin_transaction):
        with pytest.raises(BusError, match=r"abort_transaction\(\)") as caught:
            call()
        assert caught.value.code is E.MESSAGE_TOO_LARGE
    manager.begin_abort()
    assert manager.end() == TransactionEnd(7, 3, False, {})
    manager.on_ended(7, 4)
    manager.begin_transaction()
    manager.check_may_send()


def test_record_that_fails_while_the_commit_waits_for_it_stops_the_commit() -> None:
    manager = begun()
    manager.begin_commit()
    manager.on_failed(Call.PRODUCE, error(E.REQUEST_TIMED_OUT))
    assert code_of(manager.end) is E.TRANSACTION_ABORTABLE, "or the caller would repeat the commit for ever"
    manager.begin_abort()
    assert manager.end() == TransactionEnd(7, 3, False, {})


def test_commit_that_the_coordinator_refuses_as_aborted_leaves_nothing_but_to_abort() -> None:
    manager = begun()
    manager.begin_commit()
    manager.end()
    assert manager.on_failed(Call.COMMIT, error(E.TRANSACTION_ABORTABLE)) is ABORT
    assert code_of(manager.begin_commit) is E.TRANSACTION_ABORTABLE
    manager.begin_abort()
    assert manager.end() == TransactionEnd(7, 3, False, {})
    manager.on_ended(7, 4)
    assert manager.state is S.READY


def test_what_becomes_of_records_while_a_transaction_is_aborted_does_not_count() -> None:
    manager = begun()
    manager.begin_abort()
    manager.end()
    manager.on_failed(Call.PRODUCE, error(E.REQUEST_TIMED_OUT))
    manager.on_acknowledged(P1, 3)
    manager.on_ended(7, 4)
    manager.on_failed(Call.PRODUCE, error(E.REQUEST_TIMED_OUT))
    assert manager.state is S.READY


@pytest.mark.parametrize("call", CALLS)
def test_producer_that_is_fenced_can_only_be_closed_whatever_it_was_told_by(call: Call) -> None:
    manager = begun()
    assert manager.on_failed(call, error(E.PRODUCER_FENCED)) is FATAL
    manager.on_failed(Call.PRODUCE, error(E.MESSAGE_TOO_LARGE))
    for use in (
        manager.begin_initializing,
        manager.begin_transaction,
        manager.check_may_send,
        manager.begin_commit,
        manager.begin_abort,
    ):
        with pytest.raises(BusError, match="close this producer") as caught:
            use()
        assert caught.value.code is E.PRODUCER_FENCED


def test_every_state_can_be_reached_and_names_what_brings_it_about() -> None:
    assert set(TRANSITIONS) == set(S)
    assert all(reason for before in TRANSITIONS.values() for reason in before.values())


# ---------------------------------------------------------------- any order


class ManagerMachine(RuleBasedStateMachine):
    """Any calls, answers, errors and time-outs: what was asked to be committed is asked to be aborted only after a
    broker has said that it is not, and no identity is used for two transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = TransactionManager("id")
        self.epoch = 0
        self.asked: TransactionEnd | None = None  # and not answered
        self.ended: set[int] = set()  # epochs

    def attempt(self, call: object, *arguments: object) -> bool:
        assert callable(call)
        try:
            call(*arguments)
        except BusError:
            return False
        return True

    @rule()
    def initialize(self) -> None:
        if self.attempt(self.manager.begin_initializing):
            self.manager.on_initialized(7, self.epoch)

    @rule()
    def begin(self) -> None:
        if self.attempt(self.manager.begin_transaction):
            assert self.asked is None
            assert self.epoch not in self.ended

    @rule(last=st.integers(0, 9))
    def send(self, last: int) -> None:
        if self.attempt(self.manager.check_may_send):
            self.manager.on_sending()
            self.manager.on_acknowledged(P0, last)

    @rule()
    def send_offsets(self) -> None:
        self.attempt(self.manager.begin_offsets, "g")

    @rule(is_commit=st.booleans(), is_interrupted=st.booleans())
    def ask_to_end(self, is_commit: bool, is_interrupted: bool) -> None:
        begin = self.manager.begin_commit if is_commit else self.manager.begin_abort
        if not self.attempt(begin) or is_interrupted:
            return
        try:
            end = self.manager.end()
        except BusError:
            return
        if end is not None:
            assert end.is_commit == is_commit
            assert self.asked in (None, end), "another question while the outcome of the first is open"
            assert end.producer_epoch == self.epoch
            self.asked = end

    @precondition(lambda self: self.asked is not None)
    @rule()
    def answer(self) -> None:
        self.ended.add(self.epoch)
        self.epoch += 1
        self.manager.on_ended(7, self.epoch)
        self.asked = None

    @precondition(lambda self: self.asked is not None)
    @rule(code=st.sampled_from(list(TABLE)))
    def refuse_end(self, code: ErrorCode) -> None:
        assert self.asked is not None
        call = Call.COMMIT if self.asked.is_commit else Call.ABORT
        if self.manager.on_failed(call, error(code)) is RETRY:
            self.manager.on_timed_out(call, error(code))
        else:
            self.asked = None

    @rule(code=st.sampled_from(list(TABLE)), is_timed_out=st.booleans())
    def fail_record_or_offsets(self, code: ErrorCode, is_timed_out: bool) -> None:
        if is_timed_out and self.manager.state is S.IN_TRANSACTION:
            self.manager.on_timed_out(Call.COMMIT_OFFSETS, error(code))
        elif judge(Call.PRODUCE, error(code)) is ABORT:
            self.manager.on_failed(Call.PRODUCE, error(code))


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(stateful_step_count=30)
