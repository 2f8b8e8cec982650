from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.transactions.bounds import TransactionBounds, TransactionTotals, check_request
from bus.transactions.requests import AddOffsets, AddPartitions, EndTransaction, InitProducerId, TransactionCommand
from bus.transactions.state import TransactionGroup, TransactionState
from tests.support.transaction_bench import AUDIT, ID, ORDERS, TransactionBench, bench_in

INIT = InitProducerId(ID, 60_000)
INVALID = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (replace(INIT, transactional_id=""), INVALID, "expected a transactional id, found an empty one"),
        (
            replace(INIT, transactional_id="b" * 250),
            INVALID,
            "expected a transactional id of at most 249 bytes, found 250",
        ),
        (
            replace(INIT, transactional_id="two\nlines"),
            INVALID,
            "expected a transactional id without control characters, found '\\n' at position 3",
        ),
        (
            replace(INIT, timeout_ms=0),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "billing: expected a transaction time-out of 1 to 900000 ms (transaction.max.timeout.ms), found 0",
        ),
        (
            replace(INIT, timeout_ms=900_001),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "billing: expected a transaction time-out of 1 to 900000 ms (transaction.max.timeout.ms), found 900001",
        ),
        (
            replace(INIT, producer_id=7),
            INVALID,
            "billing: expected a producer id and its epoch, or -1 for both, found 7 and -1",
        ),
        (
            AddPartitions(ID, 7, 0, (replace(ORDERS, partition=-1),)),
            INVALID,
            "expected a partition from 0 on, found -1",
        ),
        (
            AddPartitions(ID, 7, 0, (replace(ORDERS, topic="t" * 250),)),
            INVALID,
            "expected the name of a topic of at most 249 bytes, found 250",
        ),
        (
            AddPartitions(ID, 7, 0, (replace(ORDERS, topic_id="\ud800"),)),
            INVALID,
            "expected the id of a topic of whole characters, found '\\ud800'",
        ),
        (
            AddOffsets(ID, 7, 0, TransactionGroup("g" * 1_025, 0)),
            INVALID,
            "expected a group id of at most 1024 bytes, found 1025",
        ),
        (
            AddOffsets(ID, 7, 0, TransactionGroup("g", 2**31)),
            INVALID,
            "expected a partition from 0 on, found 2147483648",
        ),
        (
            EndTransaction(ID, 7, 0, True, {ORDERS.name: -1}),
            INVALID,
            "expected a last sequence from 0 on, found -1",
        ),
    ],
)
def test_request_out_of_bounds_is_refused(command: TransactionCommand, code: ErrorCode, message: str) -> None:
    assert check_request(command, timeout_max_ms=900_000) == Refused(code, message)
    bench = TransactionBench()
    assert bench.answer(command) == Refused(code, message)
    assert bench.state is None


@pytest.mark.parametrize(
    "command",
    [
        INIT,
        replace(INIT, transactional_id="ü" * 124),
        replace(INIT, timeout_ms=1),
        replace(INIT, timeout_ms=900_000),
        replace(INIT, producer_id=7, producer_epoch=32_766),
        AddPartitions(ID, 7, 0, (ORDERS, AUDIT)),
        AddOffsets(ID, 7, 0, TransactionGroup("g" * 1_024, 2**31 - 1)),
        EndTransaction(ID, 7, 0, True, {ORDERS.name: 0}),
    ],
)
def test_request_within_bounds_is_taken(command: TransactionCommand) -> None:
    assert check_request(command, timeout_max_ms=900_000) is None


# ---------------------------------------------------------------- what all ids take together


def test_totals_follow_the_states() -> None:
    totals = TransactionTotals(TransactionBounds(ids_max=1, partitions_max=1))
    before = bench_in(TransactionState.EMPTY).known
    after = bench_in(TransactionState.ONGOING).known
    totals.replace(None, before)
    totals.replace(before, after)
    assert (totals.ids, totals.partitions) == (1, 1)
    totals.replace(after, None)
    assert (totals.ids, totals.partitions) == (0, 0)


def test_new_id_is_refused_at_the_bound_and_known_ones_go_on() -> None:
    totals = TransactionTotals(TransactionBounds(ids_max=1, partitions_max=1))
    state = bench_in(TransactionState.EMPTY).known
    totals.replace(None, state)
    refused = totals.check(replace(INIT, transactional_id="other"), None, now_ms=0)
    assert refused == Refused(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "other: the broker holds 1 transactional ids, expected fewer than transactional.ids.count.max=1 for one more; "
        "retry later",
    )
    assert totals.check(INIT, state, now_ms=0) is None


def test_new_partition_is_refused_at_the_bound_and_transactions_end() -> None:
    totals = TransactionTotals(TransactionBounds(ids_max=1, partitions_max=1))
    state = bench_in(TransactionState.ONGOING).known
    totals.replace(None, state)
    refused = totals.check(AddPartitions(ID, 7, 0, (ORDERS, AUDIT)), state, now_ms=0)
    assert refused == Refused(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "billing: the broker holds 1 partitions of transactions, expected fewer than "
        "transaction.partitions.count.max=1 for one more; retry later",
    )
    assert totals.check(AddPartitions(ID, 7, 0, (ORDERS,)), state, now_ms=0) is None
    assert totals.check(EndTransaction(ID, 7, 0, True), state, now_ms=0) is None
