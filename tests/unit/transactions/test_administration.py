from __future__ import annotations

from dataclasses import replace

import pytest

from bus.descriptions import TransactionListing
from bus.errors import ErrorCode, Refused
from bus.transactions.changes import DAY_MS, TransactionRules
from bus.transactions.decisions import TransactionFilter, list_transaction
from bus.transactions.requests import DescribedTransaction, DescribeTransaction, InitProducerId
from bus.transactions.state import (
    ONE_PHASE_MAX,
    PRODUCER_EPOCH_MAX,
    AbortCause,
    ProducerIdentity,
    TransactionState,
    first_number,
)
from tests.support.transaction_bench import BEGIN_MS, DESK, ID, ORDERS, TIMEOUT_MS, TransactionBench, bench_in

WEEK_MS = 7 * DAY_MS


def test_open_transaction_is_described() -> None:
    bench = bench_in(TransactionState.ONGOING)
    begin_ms = bench.now_ms
    bench.now_ms += 10
    bench.add_offsets(DESK)
    assert bench.answer(DescribeTransaction(ID)) == DescribedTransaction(
        ID, "Ongoing", bench.known.number, 7, 0, TIMEOUT_MS, begin_ms, begin_ms + 10, None, (ORDERS,), ("desk",)
    )


def test_transaction_that_has_ended_is_described_without_its_partitions() -> None:
    bench = bench_in(TransactionState.COMPLETE_COMMIT)
    found = bench.answer(DescribeTransaction(ID))
    assert isinstance(found, DescribedTransaction)
    assert (found.state, found.start_ms, found.partitions, found.groups) == ("CompleteCommit", -1, (), ())


def test_aborted_transaction_is_described_with_the_cause() -> None:
    bench = bench_in(TransactionState.COMPLETE_ABORT, cause=AbortCause.TIMEOUT)
    found = bench.answer(DescribeTransaction(ID))
    assert isinstance(found, DescribedTransaction)
    assert found.abort_cause == "timeout"


def test_id_that_is_not_known_cannot_be_described() -> None:
    assert TransactionBench().answer(DescribeTransaction(ID)) == Refused(
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "there is no transactional id billing"
    )


def test_id_is_listed() -> None:
    assert list_transaction(bench_in(TransactionState.ONGOING).known, 3) == TransactionListing(ID, 3, 7, "Ongoing")


@pytest.mark.parametrize(
    ("wanted", "is_listed"),
    [
        (TransactionFilter(), True),
        (TransactionFilter(states=("Ongoing", "Empty")), True),
        (TransactionFilter(states=("Empty",)), False),
        (TransactionFilter(producer_ids=(7,)), True),
        (TransactionFilter(producer_ids=(8,)), False),
        (TransactionFilter(states=("Ongoing",), producer_ids=(8,)), False),
        (TransactionFilter(open_for_ms=99), True),
        (TransactionFilter(open_for_ms=100), False),
    ],
)
def test_ids_are_listed_by_every_field_of_a_filter(wanted: TransactionFilter, is_listed: bool) -> None:
    bench = bench_in(TransactionState.ONGOING)
    assert wanted.matches(bench.known, now_ms=bench.now_ms + 100) is is_listed


def test_id_without_an_open_transaction_is_not_open_for_any_time() -> None:
    bench = bench_in(TransactionState.COMPLETE_COMMIT)
    assert not TransactionFilter(open_for_ms=0).matches(bench.known, now_ms=bench.now_ms + 100)


# ---------------------------------------------------------------- what is staged


@pytest.mark.parametrize("state", TransactionState)
def test_staged_rows_of_the_open_transaction_alone_are_needed(state: TransactionState) -> None:
    transaction = bench_in(state, epoch=3).known
    assert transaction.may_need(ProducerIdentity(7, 3)) is (
        state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    )
    for other in (ProducerIdentity(7, 2), ProducerIdentity(7, 4), ProducerIdentity(8, 3)):
        assert not transaction.may_need(other)


# ---------------------------------------------------------------- expiry


@pytest.mark.parametrize(
    "state", [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]
)
def test_id_expires_when_it_is_not_used_for_long(state: TransactionState) -> None:
    bench = bench_in(state)
    last_use_ms = bench.known.update_ms
    bench.wait(last_use_ms + WEEK_MS - bench.now_ms - 1)
    assert bench.state is not None
    bench.wait(1)
    assert bench.state is None
    assert bench.rows[-1].value is None


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_id_with_an_open_transaction_does_not_expire(state: TransactionState) -> None:
    bench = bench_in(state)
    bench.wait(3 * WEEK_MS)
    assert bench.known.state is state
    bench.finish()
    bench.wait(2 * WEEK_MS)
    assert bench.state is None


def test_each_use_keeps_the_id() -> None:
    bench = bench_in(TransactionState.EMPTY)
    for _ in range(3):
        bench.wait(WEEK_MS - 1)
        bench.init()
    assert bench.state is not None


def test_id_expires_under_coordinators_that_live_a_day() -> None:
    bench = bench_in(TransactionState.EMPTY)
    for _ in range(6):
        bench.wait(DAY_MS)
        bench.crash()
    assert bench.state is not None
    bench.wait(DAY_MS)
    assert bench.state is None


def test_numbers_go_on_after_the_id_has_expired() -> None:
    """A partition keeps the last number of the id: a transaction with a lower one would count as applied."""
    bench = TransactionBench(TransactionRules(transactional_id_expiration_ms=1_000))
    bench.init()
    for _ in range(50):
        bench.add(ORDERS)
        bench.abort()
        bench.finish()
    last = bench.known.number
    bench.wait(1_000)
    assert bench.state is None
    bench.init()
    bench.add(ORDERS)
    assert bench.known.number > last


def test_numbers_rise_over_every_expiry_whatever_the_clock_says() -> None:
    """Ahead while the id was in use, right when it comes back: a partition keeps the higher mark."""
    bench = TransactionBench(TransactionRules(transactional_id_expiration_ms=4_000))
    last = -1
    for now_ms in (BEGIN_MS, BEGIN_MS + DAY_MS, BEGIN_MS, 0):
        bench.now_ms = now_ms
        bench.init()
        bench.commit_one()
        assert bench.known.number > last
        last = bench.known.number
        bench.crash()
        bench.wait(3_600_000)
        bench.resolve_at_once()
        bench.wait(3_600_000)
        assert bench.state is None


def test_numbers_of_an_id_that_goes_on_for_long_stay_below_those_of_the_next_producer_id() -> None:
    """Each transaction takes an epoch, and each epoch skips a number at most."""
    numbers_max = 2 * (PRODUCER_EPOCH_MAX + 2) + ONE_PHASE_MAX + 2
    for producer_id in (0, 1, 10**9):
        assert first_number(producer_id) + numbers_max < first_number(producer_id + 1)
    assert first_number(2**44) < 2**62, "the mark of a number is twice as large, and has 63 bits"
    assert first_number(0) > 8_000 * 365 * DAY_MS, "above what a clock can have given"


def test_id_begins_at_the_clock_while_an_older_broker_may_coordinate_it() -> None:
    """That broker begins there, too: above that it would find the marks of this one."""
    bench = TransactionBench()
    bench.answer(replace(bench.with_producer_id(InitProducerId(ID, TIMEOUT_MS)), begins_at_clock=True))
    assert bench.known.number == BEGIN_MS


def test_clock_that_went_back_does_not_let_numbers_go_back() -> None:
    bench = TransactionBench(TransactionRules(transactional_id_expiration_ms=1_000))
    bench.now_ms = 10**9
    bench.init()
    bench.now_ms = 10**6
    bench.init()
    bench.crash()
    bench.wait(2 * 3_600_000)
    assert bench.state is not None, "it was used in what is now the future"
    assert bench.known.update_ms == 10**9
