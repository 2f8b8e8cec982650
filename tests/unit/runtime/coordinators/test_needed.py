from __future__ import annotations

from dataclasses import replace

from bus.runtime.coordinators.transaction_coordinator import needed_of
from bus.runtime.metadata.peers import Traces
from bus.transactions.state import ProducerIdentity, Transaction, TransactionState
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


def test_rows_of_earlier_transactions_have_ended_and_those_of_strangers_and_of_later_ones_may_be_needed() -> None:
    later = replace(open_transaction(), producer_epoch=1)
    assert needed_of({ID: later}, TRACES) == Traces(frozenset({LATER}), frozenset({ID}), frozenset({OPEN}))
    decided = replace(open_transaction(), state=TransactionState.PREPARE_COMMIT, producer_epoch=1)
    assert needed_of({ID: decided}, TRACES).ended == frozenset()
    done = replace(decided, state=TransactionState.COMPLETE_COMMIT)
    assert needed_of({ID: done}, TRACES) == Traces(frozenset(), frozenset({ID}), frozenset({OPEN}))


def test_rows_under_the_producer_id_that_was_used_up_have_ended() -> None:
    done = replace(open_transaction(), state=TransactionState.COMPLETE_ABORT, previous_producer_id=7, producer_id=9)
    assert needed_of({ID: done}, TRACES).ended == frozenset({OPEN, LATER})


def test_nothing_has_ended_of_an_id_whose_partition_has_not_been_asked() -> None:
    unresolved = replace(
        open_transaction(), state=TransactionState.COMPLETE_COMMIT, producer_epoch=1, is_unresolved=True
    )
    assert needed_of({ID: unresolved}, TRACES).ended == frozenset()


def test_all_rows_of_a_producer_whose_record_cannot_be_read_are_needed_and_no_others() -> None:
    damaged = replace(open_transaction(), damage="expected a number")
    assert needed_of({ID: damaged}, TRACES) == Traces(frozenset({OPEN, LATER}), frozenset({ID}))
