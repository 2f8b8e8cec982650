from __future__ import annotations

from dataclasses import replace

from bus.runtime.coordinators.transactions import needed_of
from bus.runtime.transaction_calls import Traces
from bus.transactions.state import ProducerIdentity, Transaction
from tests.support.transaction_bench import ID, ORDERS, TransactionBench

OPEN, LATER = ProducerIdentity(7, 0), ProducerIdentity(7, 1)
STRANGER = ProducerIdentity(8, 0)
TRACES = Traces(frozenset({OPEN, LATER, STRANGER}), frozenset({ID, "stranger"}))


def open_transaction() -> Transaction:
    bench = TransactionBench()
    bench.init()
    bench.add(ORDERS)
    assert bench.state is not None
    return bench.state


def test_rows_of_open_transactions_and_ids_that_are_known_are_needed() -> None:
    assert needed_of({ID: open_transaction()}, TRACES) == Traces(frozenset({OPEN}), frozenset({ID}))
    assert needed_of({}, TRACES) == Traces()


def test_all_rows_of_a_producer_whose_record_cannot_be_read_are_needed_and_no_others() -> None:
    damaged = replace(open_transaction(), damage="expected a number")
    assert needed_of({ID: damaged}, TRACES) == Traces(frozenset({OPEN, LATER}), frozenset({ID}))
