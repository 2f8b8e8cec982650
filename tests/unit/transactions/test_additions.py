from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.transactions.bounds import GROUPS_MAX, PARTITIONS_MAX
from bus.transactions.requests import Added, AddOffsets, AddPartitions
from bus.transactions.state import AbortCause, ProducerIdentity, TransactionGroup, TransactionState
from tests.support.transaction_bench import AUDIT, DESK, ID, ORDERS, TransactionBench, bench_in

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
ADDED, RETRY, FENCED = Added(), ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED

# Stored epoch - epoch of the request.
ADD = {
    "empty": (EMPTY, 0, ADDED),
    "empty-late": (EMPTY, 1, FENCED),
    "ongoing": (ONGOING, 0, ADDED),
    "ongoing-late": (ONGOING, 1, FENCED),
    "prepare-commit": (TransactionState.PREPARE_COMMIT, 0, RETRY),
    "prepare-commit-late": (TransactionState.PREPARE_COMMIT, 1, FENCED),
    "prepare-abort": (TransactionState.PREPARE_ABORT, 0, RETRY),
    "prepare-abort-late": (TransactionState.PREPARE_ABORT, 1, FENCED),
    "complete-commit": (TransactionState.COMPLETE_COMMIT, 0, ADDED),
    "complete-commit-late": (TransactionState.COMPLETE_COMMIT, 1, FENCED),
    "complete-abort": (TransactionState.COMPLETE_ABORT, 0, ADDED),
    "complete-abort-late": (TransactionState.COMPLETE_ABORT, 1, FENCED),
}


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize(("state", "behind", "expected"), ADD.values(), ids=ADD)
def test_addition_by_state(state: TransactionState, behind: int, expected: object, is_group: bool) -> None:
    bench = bench_in(state, epoch=3)
    before = bench.known
    who = ProducerIdentity(7, before.producer_epoch - behind)
    found = bench.add_offsets(DESK, of=who) if is_group else bench.add(AUDIT, of=who)
    assert (found.code if isinstance(found, Refused) else found) == expected
    if expected is not ADDED:
        assert bench.state == before


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("behind", [-1, 2])
def test_higher_or_older_epoch_is_fenced_in_every_state(state: TransactionState, behind: int) -> None:
    bench = bench_in(state, epoch=3)
    found = bench.add(AUDIT, of=ProducerIdentity(7, bench.known.producer_epoch - behind))
    assert isinstance(found, Refused)
    assert found.code is FENCED


@pytest.mark.parametrize("cause", [AbortCause.VOTE, AbortCause.TIMEOUT, AbortCause.OPERATOR])
def test_instance_whose_transaction_was_aborted_is_told_so(cause: AbortCause) -> None:
    bench = bench_in(TransactionState.PREPARE_ABORT, cause=cause)
    found = bench.add(AUDIT, of=ProducerIdentity(7, 0))
    assert isinstance(found, Refused)
    assert found.code is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("command", [AddPartitions(ID, 7, 0, (ORDERS,)), AddOffsets(ID, 7, 0, DESK)])
def test_id_that_is_not_known_is_refused(command: AddPartitions | AddOffsets) -> None:
    found = TransactionBench().answer(command)
    assert found == Refused(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        "billing: expected an id that is initialised, found one that is not known; it may have expired",
    )


def test_other_producer_id_is_refused() -> None:
    bench = bench_in(ONGOING)
    assert bench.add(AUDIT, of=ProducerIdentity(99, 0)) == Refused(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, "billing: expected producer id 7, found 99"
    )


def test_first_partition_begins_a_transaction_with_the_next_number() -> None:
    bench = bench_in(TransactionState.COMPLETE_COMMIT)
    number = bench.known.number
    bench.now_ms += 5
    bench.add(AUDIT)
    after = bench.known
    assert (after.state, after.number, after.start_ms) == (ONGOING, number + 1, bench.now_ms)
    assert (after.partitions, after.groups, after.results) == ({AUDIT: -1}, (), {})


def test_what_takes_part_already_is_added_without_a_record() -> None:
    bench = bench_in(ONGOING)
    bench.add(ORDERS, AUDIT)
    bench.add_offsets(DESK)
    written = len(bench.records)
    assert bench.add(AUDIT, ORDERS) == bench.add_offsets(DESK) == Added()
    assert len(bench.records) == written
    assert set(bench.known.partitions) == {ORDERS, AUDIT}
    assert bench.known.groups == (DESK,)


def test_nothing_is_added_while_votes_are_collected_nor_goes_on_what_takes_part() -> None:
    """A late batch must not join what is being voted on; a new leader may have voted without it."""
    bench = bench_in(ONGOING)
    bench.commit()
    for found in (bench.add(ORDERS), bench.add(AUDIT), bench.add_offsets(DESK)):
        assert isinstance(found, Refused)
        assert found.code is RETRY


def test_too_many_partitions_or_groups_can_only_be_aborted() -> None:
    bench = bench_in(ONGOING)
    assert bench.add(*(replace(ORDERS, partition=number) for number in range(PARTITIONS_MAX))) == Added()
    assert bench.add(AUDIT) == Refused(
        ErrorCode.TRANSACTION_ABORTABLE,
        "billing: expected at most 2,000 partitions in one transaction, found 2001; abort it and use several",
    )
    bench = bench_in(ONGOING)
    for number in range(GROUPS_MAX):
        assert bench.add_offsets(TransactionGroup(f"group-{number}", number)) == Added()
    found = bench.add_offsets(DESK)
    assert isinstance(found, Refused)
    assert found.code is ErrorCode.TRANSACTION_ABORTABLE


def test_partitions_of_the_transaction_before_do_not_count() -> None:
    bench = bench_in(ONGOING)
    bench.add(*(replace(ORDERS, partition=number) for number in range(PARTITIONS_MAX)))
    bench.commit()
    bench.vote()
    bench.finish()
    assert len(bench.known.partitions) == PARTITIONS_MAX
    assert bench.add(AUDIT) == Added()
