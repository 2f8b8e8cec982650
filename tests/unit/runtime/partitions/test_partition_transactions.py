from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused, StorageFault, StorageFull
from bus.model import ProducerStamp, RecordBatch
from bus.partition_log.staging import StagedState
from bus.ports import AppliedTransaction, Staged, StagingKey
from bus.runtime.partitions import open_transactions, partition_queue
from bus.runtime.partitions.partition_queue import Appended, AppendResult, ApplyResult, TransactionWritten
from bus.runtime.partitions.partition_transactions import Decided, ResolvedTransactions
from bus.transactions.requests import Added
from tests.support.fake_table import Scripted, records, wait_until
from tests.support.partition_bench import DELETED, SETTINGS, AddingCoordinator, Bench, base_offset, code, run, staged_of

KEY = StagingKey(4, 7, 3)
OTHER = StagingKey(4, 8, 0)
APPLIED = AppliedTransaction("payments", 5, 7, 3)
STAGED = Appended(-1, -1, -1, 0)


def stage(
    bench: Bench,
    coordinator: AddingCoordinator,
    base_sequence: int,
    count: int = 1,
    key: StagingKey = KEY,
    transactional_id: str = "payments",
    may_be_in_memory: bool = False,
) -> asyncio.Future[AppendResult]:
    batch = records(count, producer=ProducerStamp(key.producer_id, key.producer_epoch, base_sequence))
    return bench.partition.open_transactions.stage(
        batch, key, transactional_id, coordinator, may_be_in_memory=may_be_in_memory
    )


def hold(
    bench: Bench, coordinator: AddingCoordinator, base_sequence: int, count: int = 1, key: StagingKey = KEY
) -> asyncio.Future[AppendResult]:
    return stage(bench, coordinator, base_sequence, count, key, may_be_in_memory=True)


def rows(bench: Bench) -> list[tuple[int, int, int]]:
    return [(row.offset, row.producer_id, row.sequence) for row in bench.table.rows]


def test_staged_batches_are_in_no_version_until_they_are_applied_as_one() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        assert await stage(bench, coordinator, 0, 2) == STAGED
        await bench.append(3)
        assert await stage(bench, coordinator, 2, 2) == STAGED
        assert len(bench.table.commits) == 1
        assert await transactions.apply(KEY, APPLIED, 3) == TransactionWritten(2, 3)
        assert rows(bench) == [(3, 7, 0), (4, 7, 1), (5, 7, 2), (6, 7, 3)]
        assert bench.table.transactions.version_of("payments") == APPLIED.applied_version
        assert coordinator.calls == 1
        assert bench.partition.state.high_watermark == 7

    run(scenario)


def test_answer_waits_for_the_file_and_for_the_coordinator() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        coordinator.gate.clear()
        answer = stage(bench, coordinator, 0)
        await wait_until(lambda: coordinator.calls == 1)
        assert not answer.done()
        coordinator.gate.set()
        assert await answer == STAGED

        bench.table.transactions.staged.gate.clear()
        answer = stage(bench, coordinator, 0, key=OTHER)
        await wait_until(lambda: coordinator.calls == 2)
        assert not answer.done()
        bench.table.transactions.staged.gate.set()
        assert await answer == STAGED

    run(scenario)


def test_what_the_coordinator_refuses_is_not_staged_and_it_is_asked_again() -> None:
    """Else it would be there when the transaction with this epoch begins, as if its producer had sent it."""

    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        coordinator.refused = Refused(ErrorCode.INVALID_PRODUCER_EPOCH, "another instance came")
        assert code(await stage(bench, coordinator, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert KEY not in bench.table.transactions.staged.batches
        coordinator.refused = None
        assert await stage(bench, coordinator, 0) == STAGED
        assert coordinator.calls == 2

    run(scenario)


def test_batch_of_another_transactional_id_is_none_of_the_transaction_that_is_open() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, stranger = AddingCoordinator(), AddingCoordinator()
        assert await stage(bench, coordinator, 0) == STAGED
        stranger.refused = Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "of another id")
        refused = await stage(bench, stranger, 1, transactional_id="stranger")
        assert code(refused) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert list(bench.table.transactions.staged.batches[KEY]) == [(0, 0)]
        assert await stage(bench, coordinator, 1) == STAGED
        assert (coordinator.calls, stranger.calls) == (1, 1)

    run(scenario)


def test_vote_waits_for_what_is_being_staged_and_nothing_is_staged_behind_it() -> None:
    """Only batches that the vote counted may be acknowledged: others would be lost if the producer does not name its
    sequences."""

    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        assert await stage(bench, coordinator, 0) == STAGED
        bench.table.transactions.staged.gate.clear()
        before, behind = stage(bench, coordinator, 1), stage(bench, coordinator, 2)
        await asyncio.sleep(0)
        voting = asyncio.ensure_future(transactions.vote(KEY, -1))
        await asyncio.sleep(0)
        bench.table.transactions.staged.gate.set()
        assert await voting == 1
        assert await before == STAGED
        assert code(await behind) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert code(await stage(bench, coordinator, 2)) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert await stage(bench, coordinator, 1) == STAGED, "a repeat"
        assert await transactions.vote(KEY, -1) == 1

    run(scenario)


def test_batches_in_flight_are_staged_in_order_and_a_repeat_once() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        answers = [stage(bench, coordinator, 0, 2), stage(bench, coordinator, 2, 2), stage(bench, coordinator, 0, 2)]
        assert await asyncio.gather(*answers) == [STAGED] * 3
        assert code(await stage(bench, coordinator, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert sorted(bench.table.transactions.staged.batches[KEY]) == [(0, 1), (2, 3)]

    run(scenario)


def test_transaction_of_which_nothing_could_be_staged_is_not_remembered() -> None:
    """No end of it comes here: its coordinator may not have logged that this partition is in it."""

    async def scenario(bench: Bench) -> None:
        open_transactions, coordinator = bench.partition.open_transactions, AddingCoordinator()
        bench.table.transactions.staged.faults = [StorageFull("no room")]
        assert code(await stage(bench, coordinator, 0)) is ErrorCode.KAFKA_STORAGE_ERROR
        await bench.tasks.join()
        assert open_transactions.check_outside(ProducerStamp(7, 3, 0)) is None
        assert await stage(bench, coordinator, 0) == STAGED
        assert code(open_transactions.check_outside(ProducerStamp(7, 3, 0))) is ErrorCode.INVALID_TXN_STATE
        assert coordinator.calls == 2

    run(scenario)


def test_transaction_that_the_coordinator_refuses_is_not_remembered_though_files_of_it_lie_here() -> None:
    async def scenario(bench: Bench) -> None:
        open_transactions, coordinator = bench.partition.open_transactions, AddingCoordinator()
        bench.table.transactions.staged.stage(
            KEY, records(3, producer=ProducerStamp(KEY.producer_id, KEY.producer_epoch, 0))
        )
        coordinator.refused = Refused(ErrorCode.INVALID_TXN_STATE, "it has ended")
        assert code(await stage(bench, coordinator, 3)) is ErrorCode.INVALID_TXN_STATE
        await bench.tasks.join()
        assert staged_of(bench.partition) == {}
        assert open_transactions.check_outside(ProducerStamp(7, 3, 0)) is None

    run(scenario)


def test_batch_behind_one_that_failed_is_refused_and_both_can_come_again() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        bench.table.transactions.staged.faults = [StorageFault("the disk is away")]
        first, second = stage(bench, coordinator, 0), stage(bench, coordinator, 1)
        assert code(await first) is ErrorCode.KAFKA_STORAGE_ERROR
        assert code(await second) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await stage(bench, coordinator, 0) == await stage(bench, coordinator, 1) == STAGED

    run(scenario)


def test_next_leader_goes_on_where_the_folder_ends() -> None:
    async def scenario(bench: Bench) -> None:
        await stage(bench, AddingCoordinator(), 0, 4)
        coordinator, successor = AddingCoordinator(), bench.reopened()
        assert await stage(successor, coordinator, 4) == STAGED
        assert await stage(successor, coordinator, 2) == STAGED  # a repeat
        assert (coordinator.calls, bench.table.transactions.staged.finds) == (1, 1)
        assert await successor.partition.transactions.vote(KEY, 4) == 4

    run(scenario)


def test_vote_counts_what_is_staged_wherever_memory_does_not_agree_with_the_producer() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 4)
        assert (await transactions.vote(KEY, 3), bench.table.transactions.staged.finds) == (3, 0)
        assert (await transactions.vote(KEY, -1), bench.table.transactions.staged.finds) == (3, 1)
        # A leader that is deposed, and does not know, has staged one more.
        batch = records(1, producer=ProducerStamp(7, 3, 4))
        bench.table.transactions.staged.stage(KEY, batch)
        assert (await transactions.vote(KEY, 4), bench.table.transactions.staged.finds) == (4, 2)
        del bench.table.transactions.staged.batches[KEY][0, 3]
        assert await transactions.vote(KEY, 5) == -1
        assert await transactions.vote(OTHER, 0) == -1
        bench.table.transactions.staged.find_fault = StorageFault("away")
        assert code(await transactions.vote(OTHER, 0)) is ErrorCode.KAFKA_STORAGE_ERROR

    run(scenario)


def test_vote_on_lost_batches_is_refused_where_the_producer_names_no_sequence() -> None:
    """Else the transaction would be committed without them."""

    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 4)
        del bench.table.transactions.staged.batches[KEY][0, 3]
        refused = await transactions.vote(KEY, -1)
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "up to sequence 3, found -1" in refused.message

    run(scenario)


def test_repeat_of_an_application_writes_nothing_and_has_its_answer() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 2)
        both = await asyncio.gather(transactions.apply(KEY, APPLIED, 1), transactions.apply(KEY, APPLIED, 1))
        assert both == [TransactionWritten(1, 0)] * 2
        await wait_until(lambda: KEY not in bench.table.transactions.staged.batches)
        assert await transactions.apply(KEY, APPLIED, 1) == TransactionWritten(1, 0)
        await bench.append()
        assert bench.table.producers.asked == []
        assert len(bench.table.rows) == 2

    run(scenario)


def test_next_leader_finds_where_the_rows_are_as_long_as_one_is_left() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.append(3)
        await stage(bench, AddingCoordinator(), 0, 2)
        assert await bench.partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(2, 3)
        await bench.append()
        following = bench.reopened().partition.transactions
        assert await following.apply(KEY, APPLIED, 1) == TransactionWritten(2, 3)
        assert await following.apply(KEY, APPLIED, 1) == TransactionWritten(2, 3)
        assert bench.table.producers.asked == ["find_rows"]

        bench.table.transactions.rows.clear()  # the log does not tell any more
        assert await bench.reopened().partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(3, 3)
        bench.table.producers.fault = StorageFault("the disk is away")
        assert await bench.reopened().partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(3, -1)
        bench.table.producers.fault = None
        bench.table.rows.clear()
        assert await bench.reopened().partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(3, -1)

    run(scenario)


def test_application_whose_answer_was_lost_is_found_in_the_log() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 2)
        bench.table.script = [Scripted.LOST_REPLY]
        assert code(await transactions.apply(KEY, APPLIED, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert KEY in bench.table.transactions.staged.batches
        await bench.append()
        assert await transactions.apply(KEY, APPLIED, 1) == TransactionWritten(1, 0)
        assert rows(bench)[:2] == [(0, 7, 0), (1, 7, 1)]

    run(scenario)


def test_application_that_failed_leaves_no_row_and_can_be_repeated() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 2)
        bench.table.script = [StorageFull("no room")]
        assert code(await transactions.apply(KEY, APPLIED, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert base_offset(await bench.append()) == 0
        assert await transactions.apply(KEY, APPLIED, 1) == TransactionWritten(2, 1)

    run(scenario)


def test_what_this_leader_remembers_is_applied_without_reading_it() -> None:
    async def scenario(bench: Bench) -> None:
        await stage(bench, AddingCoordinator(), 0, 2)
        staged = bench.table.transactions.staged
        staged.recalled[KEY] = [*staged.batches.pop(KEY).values()]
        assert await bench.partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(1, 0)
        assert rows(bench) == [(0, 7, 0), (1, 7, 1)]

    run(scenario)


def test_staged_rows_that_are_missing_are_never_left_out() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 2)
        await stage(bench, AddingCoordinator(), 2, 2)
        del bench.table.transactions.staged.batches[KEY][2, 3]
        assert code(await transactions.apply(KEY, APPLIED, 3)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert not bench.table.rows

    run(scenario)


def test_dropped_transaction_refuses_late_batches_and_the_next_one_begins() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await stage(bench, coordinator, 0, 2)
        bench.table.transactions.staged.gate.clear()
        late = stage(bench, coordinator, 2)
        dropping = asyncio.ensure_future(transactions.drop(KEY))
        await asyncio.sleep(0)
        bench.table.transactions.staged.gate.set()
        assert await dropping is None
        await late
        assert KEY not in bench.table.transactions.staged.batches
        assert code(await stage(bench, coordinator, 2)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await transactions.drop(KEY) is None
        assert await stage(bench, coordinator, 0, key=replace(KEY, producer_epoch=4)) == STAGED
        assert not bench.table.rows

    run(scenario)


def test_transaction_that_ends_waits_for_no_coordinator() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        coordinator.gate.clear()
        first, second = stage(bench, coordinator, 0), stage(bench, coordinator, 1)
        await wait_until(lambda: coordinator.calls == 1)
        assert await bench.partition.transactions.drop(KEY) is None
        assert code(await first) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert code(await second) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert bench.table.transactions.staged.batches == {}

    run(scenario)


def test_transactions_of_one_producer_follow_each_other_with_sequences_from_0() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        for number in (5, 6):
            key = replace(KEY, producer_epoch=number)
            await stage(bench, coordinator, 0, 2, key)
            applied = AppliedTransaction("payments", number, 7, number)
            assert isinstance(await transactions.apply(key, applied, 1), TransactionWritten)
        assert [row.sequence for row in bench.table.rows] == [0, 1, 0, 1]
        late = AppliedTransaction("payments", 5, 7, 5)
        await transactions.apply(replace(KEY, producer_epoch=5), late, 1)
        assert len(bench.table.rows) == 4

    run(scenario)


def test_commit_goes_through_though_a_client_wrote_under_a_later_epoch_of_the_producer() -> None:
    async def scenario(bench: Bench) -> None:
        await stage(bench, AddingCoordinator(), 0, 2)
        await bench.send(7, 0, epoch=9)
        await bench.resume(7, 10)
        assert await bench.partition.transactions.apply(KEY, APPLIED, 1) == TransactionWritten(2, 1)
        assert base_offset(await bench.send(7, 0, epoch=10)) == 3

    run(scenario)


def test_application_has_its_place_among_the_batches_that_wait() -> None:
    async def scenario(bench: Bench) -> None:
        await stage(bench, AddingCoordinator(), 0, 2)
        bench.table.gate.clear()
        first = bench.append()
        await asyncio.sleep(0)
        before = bench.append(acks=1)
        applying = asyncio.ensure_future(bench.partition.transactions.apply(KEY, APPLIED, 1))
        queue = bench.partition.writer._queue
        await wait_until(lambda: queue.size_bytes == 200)  # read in a thread, then queued
        behind = bench.append()
        bench.table.gate.set()
        assert [base_offset(answer) for answer in await asyncio.gather(first, before, behind)] == [0, 1, 4]
        assert await applying == TransactionWritten(3, 2)

    run(scenario)


# ---------------------------------------------------------------------- a version that decides


def test_version_that_decides_is_written_once_and_a_repeat_is_told_where_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await stage(bench, coordinator, 0, 2)
        decided = Decided(1, TransactionWritten(1, 0))
        for _ in range(2):
            assert await transactions.commit(KEY, APPLIED, 1) == decided
        assert len(bench.table.commits) == 1

    run(scenario)


@pytest.mark.parametrize("staged", [0, 2])
def test_version_that_decides_is_never_written_if_rows_are_missing(staged: int) -> None:
    """Also if they come later: the coordinator has heard that they are not there, and aborts."""

    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        if staged:
            await stage(bench, coordinator, 0, staged)
        assert await transactions.commit(KEY, APPLIED, 4) == Decided(staged - 1, None)
        version = bench.partition.state.version
        batch = records(5, producer=ProducerStamp(7, 3, 0))
        assert bench.table.transactions.staged.stage(KEY, batch) is None
        again = await transactions.commit(KEY, APPLIED, 4)
        assert isinstance(again, Decided)
        assert again.rows is None
        assert bench.partition.state.version == version, "it is given up once"
        assert rows(bench) == []

    run(scenario)


def test_who_resolves_is_told_the_last_transaction_and_the_next_one_is_refused_for_ever() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await stage(bench, coordinator, 0, 2)
        await transactions.commit(KEY, APPLIED, 1)
        following = replace(APPLIED, number=6, producer_epoch=4)
        key = StagingKey(4, 7, 4)
        await stage(bench, coordinator, 0, 1, key=key)
        assert await transactions.resolve(APPLIED) == ResolvedTransactions(5, TransactionWritten(1, 0))
        assert bench.partition.state.version == 1, "nothing is to be given up"
        assert await transactions.resolve(following) == ResolvedTransactions(5, None)
        version = bench.partition.state.version
        assert await transactions.commit(key, following, 0) == Decided(-1, None)
        assert await transactions.resolve(following) == ResolvedTransactions(5, None)
        assert bench.partition.state.version == version, "it is given up once"
        assert [row[2] for row in rows(bench)] == [0, 1]

    run(scenario)


def test_call_to_resolve_that_comes_late_gives_up_nothing_of_what_has_come_since() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await transactions.resolve(APPLIED)
        await stage(bench, coordinator, 0)
        later = replace(APPLIED, number=6)
        assert isinstance(await transactions.apply(KEY, later, 0), TransactionWritten)
        version = bench.partition.state.version
        assert isinstance(await transactions.resolve(APPLIED), ResolvedTransactions)
        assert bench.partition.state.version == version
        key, last = StagingKey(4, 7, 4), replace(APPLIED, number=7, producer_epoch=4)
        await stage(bench, coordinator, 0, key=key)
        decided = await transactions.commit(key, last, 0)
        assert isinstance(decided, Decided)
        assert decided.rows is not None

    run(scenario)


def test_late_application_is_refused_also_when_later_transactions_have_come() -> None:
    """Else the coordinator that was deposed would tell its client that a number which was given up is committed."""

    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await transactions.resolve(APPLIED)
        key, later = StagingKey(4, 7, 4), replace(APPLIED, number=6, producer_epoch=4)
        await stage(bench, coordinator, 0, key=key)
        assert isinstance(await transactions.apply(key, later, 0), TransactionWritten)
        late = await transactions.commit(KEY, APPLIED, 0)
        assert code(late) is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    run(scenario)


def test_application_that_waits_behind_the_one_that_resolves_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await stage(bench, coordinator, 0)
        bench.table.gate.clear()
        before = bench.append(1)
        resolving = asyncio.ensure_future(transactions.resolve(APPLIED))
        await asyncio.sleep(0.01)
        late = asyncio.ensure_future(transactions.commit(KEY, APPLIED, 0))
        await asyncio.sleep(0.01)
        bench.table.gate.set()
        await before
        resolved, found = await resolving, await late
        assert isinstance(resolved, ResolvedTransactions)
        assert resolved.last_number == 4
        assert found == Decided(-1, None)

    run(scenario)


def test_decision_of_a_record_about_a_number_that_was_given_up_is_refused() -> None:
    """It cannot be; if it is, the rows are not lost in silence."""

    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        await stage(bench, coordinator, 0)
        await transactions.resolve(APPLIED)
        found = await transactions.apply(KEY, APPLIED, 0)
        assert code(found) is ErrorCode.TRANSACTION_COORDINATOR_FENCED

    run(scenario)


@pytest.mark.parametrize("step", [StorageFault("the disk is away"), Scripted.LOST_REPLY])
def test_partition_that_cannot_give_up_a_number_says_so(step: Scripted | Exception) -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.script = [step]
        assert isinstance(await bench.partition.transactions.resolve(APPLIED), Refused)
        assert isinstance(await bench.partition.transactions.resolve(APPLIED), ResolvedTransactions)

    run(scenario)


async def queue_behind_a_commit(bench: Bench, *applied: AppliedTransaction) -> list[asyncio.Future[ApplyResult]]:
    """Two rows of each, all decided while another commit is in flight, which then ends."""
    bench.table.gate.clear()
    bench.append()
    await asyncio.sleep(0)
    queue = bench.partition.writer._queue
    applying = list[asyncio.Future[ApplyResult]]()
    for each in applied:
        key = StagingKey(4, each.producer_id, each.producer_epoch)
        await stage(bench, AddingCoordinator(), 0, 2, key, each.transactional_id)
        applying.append(asyncio.ensure_future(bench.partition.transactions.apply(key, each, 1)))
        size_bytes = 100 * len(applying)
        await wait_until(lambda: queue.size_bytes == size_bytes)  # noqa: B023  # waited for at once
    bench.table.gate.set()
    return applying


def test_transactions_that_wait_at_the_same_time_are_one_version_and_each_is_whole() -> None:
    async def scenario(bench: Bench) -> None:
        others = [AppliedTransaction(f"other {number}", 3, 20 + number, 0) for number in range(2)]
        applying = await queue_behind_a_commit(bench, APPLIED, *others)
        assert await asyncio.gather(*applying) == [TransactionWritten(2, offset) for offset in (1, 3, 5)]
        assert rows(bench) == [(1, 7, 0), (2, 7, 1), (3, 20, 0), (4, 20, 1), (5, 21, 0), (6, 21, 1)]
        proofs = [bench.table.transactions.version_of(each.transactional_id) for each in (APPLIED, *others)]
        assert proofs == [11, 7, 7]
        progress = bench.table.producers.progress
        assert [(progress[each].producer_epoch, progress[each].last_sequence) for each in (7, 20, 21)] == [
            (3, 1),
            (0, 1),
            (0, 1),
        ]
        # Each is found by itself, by a later leader too.
        repeated = [
            bench.reopened().partition.transactions.apply(StagingKey(4, each.producer_id, 0), each, 1)
            for each in others
        ]
        assert await asyncio.gather(*repeated) == [TransactionWritten(2, 3), TransactionWritten(2, 5)]

    run(scenario)


def test_what_is_staged_of_transactions_that_share_a_version_is_deleted_though_one_cannot_be() -> None:
    async def scenario(bench: Bench) -> None:
        staged = bench.table.transactions.staged
        staged.drop_faults[KEY] = StorageFault("the disk is away")
        applied = [APPLIED, *(AppliedTransaction(str(number), 3, 20 + number, 0) for number in range(2))]
        await asyncio.gather(*await queue_behind_a_commit(bench, *applied))
        await wait_until(lambda: list(staged.batches) == [KEY])
        late = stage(bench, AddingCoordinator(), 0, key=StagingKey(4, 20, 0), transactional_id="0")
        assert code(await late) is ErrorCode.INVALID_PRODUCER_EPOCH
        await stage(bench, AddingCoordinator(), 0, key=OTHER, transactional_id="bills")
        await bench.partition.transactions.apply(OTHER, AppliedTransaction("bills", 0, 8, 0), 0)
        await wait_until(lambda: list(staged.batches) == [KEY])

    run(scenario)


def test_transactions_of_one_id_are_a_version_each() -> None:
    async def scenario(bench: Bench) -> None:
        following = AppliedTransaction("payments", 6, 7, 4)
        applying = await queue_behind_a_commit(bench, APPLIED, following, AppliedTransaction("bills", 0, 9, 0))
        assert await asyncio.gather(*applying) == [
            TransactionWritten(2, 1),
            TransactionWritten(3, 3),
            TransactionWritten(3, 5),
        ]
        assert bench.table.transactions.version_of("payments") == following.applied_version

    run(scenario)


def test_repeat_among_transactions_that_wait_is_answered_and_not_written() -> None:
    async def scenario(bench: Bench) -> None:
        await stage(bench, AddingCoordinator(), 0, 2)
        await bench.partition.transactions.apply(KEY, APPLIED, 1)
        other = AppliedTransaction("bills", 0, 9, 0)
        bench.table.gate.clear()
        bench.append()
        await asyncio.sleep(0)
        await stage(bench, AddingCoordinator(), 0, 2, StagingKey(4, 9, 0), "bills")
        repeated = bench.partition.writer.apply_transaction(APPLIED, [])
        applying = asyncio.ensure_future(bench.partition.transactions.apply(StagingKey(4, 9, 0), other, 1))
        await wait_until(lambda: bench.partition.writer._queue.size_bytes == 100)
        bench.table.gate.set()
        assert await applying == TransactionWritten(3, 3)
        assert await repeated == TransactionWritten(2, -1)
        assert len(bench.table.rows) == 4

    run(scenario)


def test_transactions_whose_common_commit_failed_leave_no_row_and_can_be_repeated() -> None:
    async def scenario(bench: Bench) -> None:
        other = AppliedTransaction("bills", 0, 9, 0)
        bench.table.script = [lambda: None, StorageFull("no room")]
        applying = await queue_behind_a_commit(bench, APPLIED, other)
        refused = [code(answer) for answer in await asyncio.gather(*applying)]
        assert refused == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert not bench.table.rows
        assert bench.table.transactions.version_of("bills") == -1
        transactions = bench.partition.transactions
        assert await transactions.apply(StagingKey(4, 9, 0), other, 1) == TransactionWritten(2, 1)
        assert await transactions.apply(KEY, APPLIED, 1) == TransactionWritten(3, 3)

    run(scenario)


def test_one_version_takes_a_bounded_number_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_queue, "COMMIT_TRANSACTIONS_MAX", 2)

    async def scenario(bench: Bench) -> None:
        applied = [AppliedTransaction(str(number), 3, 20 + number, 0) for number in range(3)]
        applying = await asyncio.gather(*await queue_behind_a_commit(bench, *applied))
        assert applying == [TransactionWritten(2, 1), TransactionWritten(2, 3), TransactionWritten(3, 5)]

    run(scenario)


def test_one_version_takes_a_bounded_number_of_bytes_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_queue, "COMMIT_BYTES_MAX", 150)

    async def scenario(bench: Bench) -> None:
        applied = [AppliedTransaction(str(number), 3, 20 + number, 0) for number in range(2)]
        applying = await asyncio.gather(*await queue_behind_a_commit(bench, *applied))
        assert applying == [TransactionWritten(2, 1), TransactionWritten(3, 3)]

    run(scenario)


def test_bytes_of_one_transaction_are_bounded() -> None:
    async def scenario(bench: Bench) -> None:
        bench.partition.configure(replace(SETTINGS, staged_bytes_max=150))
        assert await stage(bench, AddingCoordinator(), 0) == STAGED
        assert code(await stage(bench, AddingCoordinator(), 1)) is ErrorCode.TRANSACTION_ABORTABLE

    run(scenario)


def test_batches_that_wait_to_be_staged_are_bounded() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.transactions.staged.gate.clear()
        first, second = stage(bench, AddingCoordinator(), 0), stage(bench, AddingCoordinator(), 1)
        assert code(await second) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        bench.table.transactions.staged.gate.set()
        assert await first == STAGED

    run(scenario, queue_bytes_max=150)


def test_partition_that_closes_refuses_what_waits_and_is_waited_for() -> None:
    async def scenario(bench: Bench) -> None:
        bench.table.transactions.staged.gate.clear()
        staging, waiting = stage(bench, AddingCoordinator(), 0), stage(bench, AddingCoordinator(), 1)
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        assert not closing.done()
        bench.table.transactions.staged.gate.set()
        await closing
        assert (await staging, code(await waiting)) == (STAGED, DELETED.code)
        assert code(await stage(bench, AddingCoordinator(), 2)) is DELETED.code
        assert await bench.partition.transactions.vote(KEY, 1) == DELETED
        assert await bench.partition.transactions.apply(KEY, APPLIED, 1) == DELETED
        assert await bench.partition.transactions.drop(KEY) == DELETED

    run(scenario)


def test_partition_that_closes_waits_for_what_is_being_deleted_though_the_caller_has_gone() -> None:
    async def scenario(bench: Bench) -> None:
        staged = bench.table.transactions.staged
        await stage(bench, AddingCoordinator(), 0)
        staged.gate.clear()
        staging = stage(bench, AddingCoordinator(), 1)
        await asyncio.sleep(0)
        dropping = asyncio.ensure_future(bench.partition.transactions.drop(KEY))
        await asyncio.sleep(0)
        dropping.cancel()
        closing = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0.05)
        assert dropping.cancelled()
        assert not closing.done()
        staged.gate.set()
        await closing
        assert staged.batches == {}
        assert await staging == STAGED

    run(scenario)


def test_partition_that_has_closed_deletes_nothing_of_what_was_committed_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        staged, dropped = bench.table.transactions.staged, list[StagingKey]()
        monkeypatch.setattr(staged, "drop", dropped.append)
        await stage(bench, AddingCoordinator(), 0)
        bench.table.gate.clear()
        committing = asyncio.ensure_future(bench.partition.transactions.commit(KEY, APPLIED, 0))
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        bench.table.gate.set()
        await closing
        assert await committing == Decided(0, TransactionWritten(1, 0))
        await bench.tasks.join()
        assert dropped == []

    run(scenario)


def test_partition_that_closes_waits_for_no_coordinator() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator()
        coordinator.gate.clear()
        answer = stage(bench, coordinator, 0)
        await wait_until(lambda: coordinator.calls == 1)
        await bench.partition.close(DELETED)
        assert await answer == DELETED

    run(scenario)


def test_what_is_open_is_known_with_what_is_staged() -> None:
    async def scenario(bench: Bench) -> None:
        transactions = bench.partition.transactions
        await stage(bench, AddingCoordinator(), 0, 2)
        assert staged_of(bench.partition) == {KEY: StagedState(1, 100)}
        assert [key for key, _ in await transactions.list_staged()] == [KEY]

    run(scenario)


def test_batch_of_a_transactions_producer_outside_of_it_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        check = bench.partition.open_transactions.check_outside
        stamp, stranger = ProducerStamp(7, 3, 0), ProducerStamp(8, 0, 0)
        assert check(stamp) is None
        await stage(bench, AddingCoordinator(), 0)
        assert code(check(stamp)) is ErrorCode.INVALID_TXN_STATE
        await bench.partition.transactions.apply(KEY, APPLIED, 0)
        assert code(check(replace(stamp, producer_epoch=9))) is ErrorCode.INVALID_TXN_STATE
        assert check(stranger) is None

    run(scenario)


# ---------------------------------------------------------------------- in memory alone


def test_batches_of_a_young_transaction_are_committed_from_memory() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        assert await hold(bench, coordinator, 0, 2) == STAGED
        second = hold(bench, coordinator, 2)
        assert second.done(), "neither the coordinator nor the disk is asked"
        assert second.result() == STAGED
        listed = await bench.partition.transactions.list_staged()
        assert [(key, each.last_sequence) for key, each in listed] == [(KEY, 2)]
        assert await bench.partition.transactions.commit(KEY, APPLIED, 2) == Decided(2, TransactionWritten(1, 0))
        assert (staged.batches, staged.held, coordinator.calls) == ({}, {}, 1)
        assert [row[2] for row in rows(bench)] == [0, 1, 2]
        assert code(await hold(bench, coordinator, 3)) is ErrorCode.INVALID_PRODUCER_EPOCH

    run(scenario)


def test_first_batch_is_in_memory_at_once_where_the_coordinator_does_not_have_to_wait() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator(at_once=Added(may_be_one_phase=True))
        first = hold(bench, coordinator, 0)
        assert first.done()
        assert first.result() == STAGED
        assert KEY in bench.table.transactions.staged.held
        assert (coordinator.calls_at_once, coordinator.calls) == (1, 0)
        coordinator.at_once = None
        assert await hold(bench, coordinator, 0, key=OTHER) == STAGED
        assert coordinator.calls == 1
        coordinator.at_once = Added()
        durable = StagingKey(4, 9, 0)
        assert await hold(bench, coordinator, 0, key=durable) == STAGED
        assert durable in bench.table.transactions.staged.batches
        assert coordinator.calls == 1

    run(scenario)


@pytest.mark.parametrize("why", ["two phases", "producer does not say", "no room", "not the first"])
def test_batches_that_may_not_be_in_memory_alone_are_durable_before_their_answer(why: str) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=why != "two phases"), bench.table.transactions.staged
        staged.holds = why != "no room"
        if why == "not the first":
            first = records(1, producer=ProducerStamp(7, 3, 0))
            assert staged.stage(KEY, first) is None
            assert await hold(bench, coordinator, 1) == STAGED
        else:
            assert await stage(bench, coordinator, 0, may_be_in_memory=why != "producer does not say") == STAGED
        assert KEY in staged.batches
        assert not staged.held

    run(scenario)


def test_vote_makes_durable_what_is_in_memory_alone() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0, 2)
        staged.faults.append(StorageFull("no room"))
        assert code(await bench.partition.transactions.vote(KEY, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
        staged.held[KEY] = [records(2, producer=ProducerStamp(7, 3, 0))]
        assert await bench.partition.transactions.vote(KEY, 1) == 1
        assert list(staged.batches[KEY]) == [(0, 1)]
        assert code(await hold(bench, coordinator, 2)) is ErrorCode.CONCURRENT_TRANSACTIONS

    run(scenario)


def test_transaction_that_is_no_longer_young_is_made_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0)
        assert staged.held
        await wait_until(lambda: KEY in staged.batches)
        assert await hold(bench, coordinator, 1) == STAGED
        assert list(staged.batches[KEY]) == [(0, 0), (1, 1)]
        assert not staged.held

    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    run(scenario)


def test_batches_that_cannot_be_made_durable_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0)
        refused = Refused(ErrorCode.INVALID_RECORD, "another file is there")
        monkeypatch.setattr(staged, "save", lambda key: refused if next(tries) < 3 else None)
        await wait_until(
            lambda: not any(known.is_unsaved for known in bench.partition.open_transactions._known.values())
        )
        assert next(tries) > 3
        assert [each.message for each in caplog.records] == [
            "another file is there; trying again until its transaction ends"
        ]

    tries = itertools.count()
    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    monkeypatch.setattr(open_transactions, "_SAVE_RETRY_MS", 10)
    run(scenario)


def test_transaction_that_cannot_be_made_durable_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        save, refused = staged.save, Refused(ErrorCode.INVALID_RECORD, "another file is there")
        monkeypatch.setattr(staged, "save", lambda key: refused if key == KEY else save(key))
        await hold(bench, coordinator, 0)
        await hold(bench, coordinator, 0, key=OTHER)
        await wait_until(lambda: OTHER in staged.batches)
        assert KEY in staged.held
        await bench.partition.close(DELETED)

    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    monkeypatch.setattr(open_transactions, "_SAVE_RETRY_MS", 3_600_000)
    run(scenario)


def test_what_is_in_memory_alone_is_as_old_as_its_last_batch() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator(may_be_one_phase=True)
        await hold(bench, coordinator, 0)
        bench.clock.advance(500)
        await hold(bench, coordinator, 1)
        last_ms = bench.clock.now_ms()
        bench.clock.advance(1_000)
        assert await bench.partition.transactions.list_staged() == [(KEY, Staged(1, 200, last_ms))]

    run(scenario)


def test_vote_waits_for_what_is_being_made_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a record would decide a commit whose rows are lost if the leader dies now."""

    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0)
        staged.gate.clear()
        await wait_until(lambda: staged.saves == 1)
        voting = asyncio.ensure_future(bench.partition.transactions.vote(KEY, 0))
        await asyncio.sleep(0.05)
        assert not voting.done()
        staged.gate.set()
        assert await voting == 0
        assert list(staged.batches[KEY]) == [(0, 0)]
        assert staged.saves == 1

    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    run(scenario)


def test_transaction_that_ends_while_it_is_made_durable_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0)
        staged.gate.clear()
        await wait_until(lambda: staged.saves == 1)
        dropping = asyncio.ensure_future(bench.partition.transactions.drop(KEY))
        await asyncio.sleep(0.05)
        staged.gate.set()
        assert await dropping is None
        await bench.partition.open_transactions.join()
        assert (staged.held, staged.batches) == ({}, {})

    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    run(scenario)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_partition_that_is_closed_leaves_what_is_in_memory_to_the_next_leader(is_deleted: bool) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0, 2)
        moved = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is led elsewhere now")
        await bench.partition.close(DELETED if is_deleted else moved)
        assert (KEY in staged.batches) is not is_deleted
        assert not staged.held

    run(scenario)


def test_partition_that_closes_in_a_commit_keeps_no_memory_for_a_save_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        staged = bench.table.transactions.staged
        await hold(bench, AddingCoordinator(may_be_one_phase=True), 0)
        bench.table.gate.clear()
        committing = asyncio.ensure_future(bench.partition.transactions.commit(KEY, APPLIED, 0))
        staged.faults = [StorageFull("no room")]
        staged.gate.clear()
        await wait_until(lambda: staged.saves == 1)
        closing = asyncio.ensure_future(bench.partition.close(DELETED))
        await asyncio.sleep(0)
        bench.table.gate.set()
        assert await committing == Decided(0, TransactionWritten(1, 0))
        staged.gate.set()
        await closing
        assert (staged.held, staged.batches) == ({}, {})

    monkeypatch.setattr(open_transactions, "_YOUNG_MS", 20)
    run(scenario)


def test_partition_that_is_closed_keeps_no_memory_for_what_cannot_be_saved() -> None:
    """It is that of all partitions, and what is in memory alone gives way to nothing."""

    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0, 2)
        staged.faults.append(StorageFull("no room"))
        await bench.partition.close(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is led elsewhere now"))
        assert (staged.held, staged.batches) == ({}, {})

    run(scenario)


def test_commit_that_names_more_than_is_in_memory_is_told_what_is_there() -> None:
    async def scenario(bench: Bench) -> None:
        await hold(bench, AddingCoordinator(may_be_one_phase=True), 0, 2)
        assert await bench.partition.transactions.commit(KEY, APPLIED, 5) == Decided(1, None)
        assert bench.table.rows == []

    run(scenario)


def test_partition_commits_from_memory_what_the_producer_was_answered_for_and_no_more() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator = AddingCoordinator(may_be_one_phase=True)
        await hold(bench, coordinator, 0, 2)
        await hold(bench, coordinator, 2)
        assert await bench.partition.transactions.commit(KEY, APPLIED, 1) == Decided(1, TransactionWritten(1, 0))
        assert [row[2] for row in rows(bench)] == [0, 1]

    run(scenario)


def test_commit_of_unknown_outcome_whose_files_are_lost_names_a_version_that_has_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(), bench.table.transactions.staged
        await stage(bench, coordinator, 0)
        read = staged.read

        def read_once(key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
            found = read(key, last_sequence)
            staged.batches.clear()
            return found

        monkeypatch.setattr(staged, "read", read_once)
        bench.table.script.append(Scripted.LOST_REPLY)
        bench.table.producers.fault = StorageFault("no rows can be looked for")
        decided = await bench.partition.transactions.commit(KEY, APPLIED, 0)
        assert decided == Decided(0, TransactionWritten(1, -1))

    run(scenario)


def test_broker_that_stops_does_not_wait_until_what_is_in_memory_is_due() -> None:
    async def scenario(bench: Bench) -> None:
        await hold(bench, AddingCoordinator(may_be_one_phase=True), 0, 2)
        await asyncio.sleep(0)
        began_ms = bench.clock.monotonic_ms()
        await bench.partition.end_maintenance()
        await bench.tasks.join()
        assert list(bench.table.transactions.staged.batches[KEY]) == [(0, 1)]
        assert bench.clock.monotonic_ms() - began_ms < 1_000

    run(scenario)


def test_abort_drops_what_is_in_memory_alone() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, staged = AddingCoordinator(may_be_one_phase=True), bench.table.transactions.staged
        await hold(bench, coordinator, 0, 2)
        assert await bench.partition.transactions.drop(KEY) is None
        assert not staged.held
        assert await bench.partition.transactions.commit(KEY, APPLIED, 1) == Decided(-1, None)

    run(scenario)


# ---------------------------------------------------------------- marks of an earlier life of the id

EARLIER, EARLIER_KEY = AppliedTransaction("payments", 99, 2, 6), StagingKey(4, 2, 6)


async def leave_mark(bench: Bench) -> None:
    """Leave what an earlier life of the id did, whose numbers began at a clock that was ahead."""
    await stage(bench, AddingCoordinator(), 0, key=EARLIER_KEY)
    assert isinstance(await bench.partition.transactions.apply(EARLIER_KEY, EARLIER, 0), TransactionWritten)


def test_decided_commit_that_meets_a_higher_mark_is_refused_aloud_and_keeps_its_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(bench: Bench) -> None:
        await leave_mark(bench)
        await stage(bench, AddingCoordinator(), 0, 2)
        for _ in range(2):
            found = await bench.partition.transactions.apply(KEY, APPLIED, 1)
            assert code(found) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert "expected a mark of the id below 10" in str(found)
        assert "found the mark 199" in str(found)
        assert [row[1] for row in rows(bench)] == [2]
        assert KEY in bench.table.transactions.staged.batches, "nothing is deleted that was not written"
        assert any(each.levelname == "ERROR" and "cannot be applied" in each.message for each in caplog.records)

    run(scenario)


@pytest.mark.parametrize("number", [5, 98, 99])
def test_commit_in_one_phase_that_meets_a_higher_mark_tells_of_it(number: int) -> None:
    """Also where two lives of the id, by chance, have the same number."""

    async def scenario(bench: Bench) -> None:
        await leave_mark(bench)
        await stage(bench, AddingCoordinator(), 0, 2)
        applied = replace(APPLIED, number=number)
        assert await bench.partition.transactions.commit(KEY, applied, 1) == Decided(-1, None, 99)
        assert bench.partition.transactions.find_taken_number(applied) == 99
        above = replace(APPLIED, number=100)
        assert bench.partition.transactions.find_taken_number(above) == -1
        decided = await bench.partition.transactions.commit(KEY, above, 1)
        assert isinstance(decided, Decided)
        assert decided.rows is not None

    run(scenario)


def test_mark_of_an_earlier_life_is_no_transaction_of_the_id_that_is_resolved() -> None:
    async def scenario(bench: Bench) -> None:
        await leave_mark(bench)
        assert await bench.partition.transactions.resolve(APPLIED) == ResolvedTransactions(4, None)

    run(scenario)


def test_commit_that_later_ones_of_its_producer_follow_is_done() -> None:
    async def scenario(bench: Bench) -> None:
        coordinator, transactions = AddingCoordinator(), bench.partition.transactions
        for number, epoch in ((5, 3), (6, 4)):
            key = StagingKey(4, 7, epoch)
            await stage(bench, coordinator, 0, 2, key=key)
            applied = replace(APPLIED, number=number, producer_epoch=epoch)
            assert isinstance(await transactions.apply(key, applied, 1), TransactionWritten)
        assert isinstance(await transactions.apply(KEY, APPLIED, 1), TransactionWritten)

    run(scenario)
