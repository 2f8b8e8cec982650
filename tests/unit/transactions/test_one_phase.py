"""A commit that the version of its only partition decides: when it may, and what a new coordinator does behind it."""

from __future__ import annotations

import pytest

from bus.errors import ErrorCode, Refused
from bus.transactions.records import TransactionLogged, decode_record, encode_record
from bus.transactions.requests import (
    AbortTransaction,
    Added,
    DescribedTransaction,
    DescribeTransaction,
    FenceProducer,
    ProducerInitialized,
    Resolved,
    TimerKind,
    TransactionEnded,
)
from bus.transactions.state import ONE_PHASE_MAX, PRODUCER_EPOCH_MAX, AppliedRows, ProducerIdentity, TransactionState
from tests.support.transaction_bench import (
    AUDIT,
    BEGIN_MS,
    DESK,
    ID,
    ORDERS,
    TIMEOUT_MS,
    TransactionBench,
    bench_at_the_last_epoch,
    bench_in,
)

_MONTH_MS = 30 * 24 * 60 * 60 * 1_000
NAMED = {ORDERS.name: 4}
LAST_EPOCH = PRODUCER_EPOCH_MAX - 2 * ONE_PHASE_MAX


def anchored(*, epoch: int = 0) -> TransactionBench:
    """Return a bench in which one transaction of orders-0 is committed, in two phases, and logged."""
    bench = TransactionBench()
    bench.allows_one_phase = True
    bench.init()
    for _ in range(epoch):
        bench.init()
    bench.commit_one()
    bench.flush()
    return bench


def is_one_phase(bench: TransactionBench) -> bool:
    return bench.last_vote.is_one_phase


def refused_code(answer: object) -> ErrorCode | None:
    return answer.code if isinstance(answer, Refused) else None


# ---------------------------------------------------------------------- which commits


@pytest.mark.parametrize("is_allowed", [True, False])
def test_partition_is_told_whether_its_version_will_probably_decide(is_allowed: bool) -> None:
    """Without the level of the cluster it will not, and what is in memory alone would be for nothing."""
    bench = anchored()
    bench.allows_one_phase = is_allowed
    assert bench.add(ORDERS) == Added(may_be_one_phase=is_allowed)
    assert bench.add(ORDERS) == Added(may_be_one_phase=is_allowed)
    assert bench.add(AUDIT) == Added(may_be_one_phase=False)


def test_first_commit_is_decided_by_a_record_and_the_next_ones_by_their_versions() -> None:
    bench = anchored()
    assert not is_one_phase(bench)
    logged = len(bench.rows)
    for _ in range(3):
        bench.commit_one()
        assert is_one_phase(bench)
    assert len(bench.rows) == logged
    bench.flush()
    states = [record.state.value for record in bench.records[-9:]]
    assert states == ["Ongoing", "PrepareCommit", "CompleteCommit"] * 3


def test_cluster_at_an_earlier_level_decides_by_records() -> None:
    bench = anchored()
    bench.allows_one_phase = False
    bench.commit_one()
    assert not is_one_phase(bench)


def test_commit_of_another_partition_is_decided_by_a_record() -> None:
    bench = anchored()
    bench.add(AUDIT)
    bench.commit()
    bench.vote()
    assert not is_one_phase(bench)


def test_commit_of_two_partitions_is_decided_by_a_record_and_so_is_the_next_one() -> None:
    bench = anchored()
    bench.add(ORDERS, AUDIT)
    bench.commit()
    bench.vote()
    assert not is_one_phase(bench)
    bench.finish()
    bench.commit_one()
    assert not is_one_phase(bench)
    bench.commit_one()
    assert is_one_phase(bench)


def test_second_partition_whose_topic_is_deleted_counts() -> None:
    bench = anchored()
    bench.add(ORDERS, AUDIT)
    bench.commit()
    bench.vote(last_sequences={ORDERS: 4}, gone=frozenset({AUDIT}))
    assert not is_one_phase(bench)


def test_commit_with_offsets_is_decided_by_a_record() -> None:
    bench = anchored()
    bench.add(ORDERS)
    bench.add_offsets(DESK)
    bench.commit()
    bench.vote()
    assert not is_one_phase(bench)


def test_commit_that_does_not_say_how_many_rows_there_are_is_decided_by_a_record() -> None:
    """No answer would tell that acknowledged ones are lost."""
    bench = anchored()
    bench.add(ORDERS)
    bench.commit()
    assert not is_one_phase(bench)


def test_commit_that_names_another_partition_as_well_is_aborted_by_a_record() -> None:
    bench = anchored()
    bench.add(ORDERS)
    bench.commit(last_sequences={ORDERS.name: 4, AUDIT.name: 4})
    assert not is_one_phase(bench)
    bench.vote()
    assert bench.known.state is TransactionState.PREPARE_ABORT


def test_commit_of_a_transaction_that_is_in_the_log_is_decided_by_a_record() -> None:
    """So who loads it knows that it is not committed, and goes on with it."""
    bench = anchored()
    bench.add(ORDERS)
    bench.flush()
    bench.crash()
    assert bench.known.state is TransactionState.ONGOING
    bench.commit(last_sequences={ORDERS.name: 4})
    bench.vote()
    assert not is_one_phase(bench)


@pytest.mark.parametrize("is_aborted", [True, False])
def test_commit_behind_an_abort_or_an_initialisation_is_decided_by_a_record(is_aborted: bool) -> None:
    bench = anchored()
    if is_aborted:
        bench.add(ORDERS)
        bench.abort()
        bench.finish()
    else:
        bench.init()
    bench.commit_one()
    assert not is_one_phase(bench)
    bench.commit_one()
    assert is_one_phase(bench)


def test_record_comes_after_so_many_commits_without_one() -> None:
    bench = anchored()
    for _ in range(ONE_PHASE_MAX):
        bench.commit_one()
        assert is_one_phase(bench)
    bench.commit_one()
    assert not is_one_phase(bench)


@pytest.mark.parametrize(("epoch", "is_alone"), [(LAST_EPOCH - 1, True), (LAST_EPOCH, False)])
def test_last_epochs_of_a_producer_id_are_decided_by_records(epoch: int, is_alone: bool) -> None:
    row = encode_record(TransactionLogged(ID, 40, 7, epoch, TIMEOUT_MS, TransactionState.EMPTY, BEGIN_MS))
    bench = TransactionBench()
    bench.allows_one_phase = True
    bench.rows.append(row)
    bench.records.append(decode_record(row))
    bench.crash()
    bench.know_all()
    bench.commit_one()
    bench.commit_one()
    assert is_one_phase(bench) is is_alone


# ---------------------------------------------------------------------- while its partition commits it


def asked_to_commit() -> tuple[TransactionBench, ProducerIdentity]:
    bench = anchored()
    rows = bench.known.identity
    bench.add(ORDERS)
    assert bench.commit(last_sequences=NAMED) is None
    assert is_one_phase(bench)
    return bench, rows


def test_nothing_else_ends_the_transaction_while_its_partition_commits_it() -> None:
    bench, rows = asked_to_commit()
    number = bench.known.number
    bench.wait(2 * TIMEOUT_MS)
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused_code(bench.abort(of=rows)) is concurrent
    assert refused_code(bench.answer(AbortTransaction(ID))) is concurrent
    assert refused_code(bench.add(AUDIT, of=rows)) is concurrent
    assert bench.init(rows) is None
    assert bench.init() is None
    assert bench.commit(of=rows, last_sequences=NAMED) is None
    assert bench.known.state is TransactionState.ONGOING
    bench.vote()
    answers = [answer for answer in bench.answers.values() if isinstance(answer, TransactionEnded)]
    assert [answer.versions for answer in answers[-2:]] == [{ORDERS: AppliedRows(number, 10 * number)}] * 2
    given = [answer for answer in bench.answers.values() if isinstance(answer, ProducerInitialized)]
    assert [answer.producer_epoch - rows.producer_epoch for answer in given[-2:]] == [1, 2]


def test_partition_that_lacks_rows_ends_the_transaction_for_good() -> None:
    bench, rows = asked_to_commit()
    bench.vote(3)
    assert bench.known.state is TransactionState.PREPARE_ABORT
    bench.finish()
    for _ in range(2):
        assert refused_code(bench.commit(of=rows, last_sequences=NAMED)) is ErrorCode.TRANSACTION_ABORTABLE
        bench.flush()
        bench.crash()
    assert isinstance(bench.abort(of=rows), Refused | TransactionEnded)


@pytest.mark.parametrize("waits_ms", [0, 2 * TIMEOUT_MS])
def test_log_keeps_its_anchor_until_the_partition_has_committed(waits_ms: int) -> None:
    """Else the next coordinator would go on with the transaction, and not ask whether it is committed."""
    bench, rows = asked_to_commit()
    bench.wait(waits_ms)
    bench.flush()
    bench.log_in_time()
    assert bench.known.anchor is not None
    bench.crash(before_all_is_logged=True)
    assert refused_code(bench.commit(of=rows, last_sequences=NAMED)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.resolve(1)
    assert isinstance(bench.commit(of=rows, last_sequences=NAMED), TransactionEnded)


def test_topic_that_is_deleted_while_its_partition_commits_is_not_waited_for() -> None:
    bench, _ = asked_to_commit()
    bench.vote(last_sequences={}, gone=frozenset({ORDERS}), rows=None)
    assert bench.known.state is TransactionState.PREPARE_COMMIT
    bench.finish()
    assert bench.known.state is TransactionState.COMPLETE_COMMIT


# ---------------------------------------------------------------------- a new coordinator


def test_new_coordinator_decides_nothing_before_the_partition_has_told() -> None:
    bench = anchored()
    last = bench.known.last_identity
    bench.crash()
    calls = (
        lambda: bench.init(),
        lambda: bench.add(ORDERS),
        lambda: bench.add_offsets(DESK),
        lambda: bench.commit(of=last),
        lambda: bench.abort(of=last),
        lambda: bench.answer(FenceProducer(ID)),
        lambda: bench.answer(AbortTransaction(ID)),
        lambda: bench.answer(DescribeTransaction(ID)),
    )
    for call in calls:
        assert refused_code(call()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    notice = bench.last_resolve
    assert (notice.partition, notice.number, notice.producer_epoch) == (ORDERS, bench.known.number, 1)
    bench.resolve()
    assert isinstance(bench.commit(of=last), TransactionEnded)


def test_what_was_committed_behind_the_log_is_taken_up_with_its_epoch() -> None:
    bench = anchored()
    for _ in range(3):
        rows = bench.commit_one()
    following, number = bench.known.identity, bench.known.number
    bench.crash(before_all_is_logged=True)
    assert refused_code(bench.commit(of=rows)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    bench.resolve(3)
    assert bench.commit(of=rows) == TransactionEnded(
        following.producer_id, following.producer_epoch, {ORDERS: AppliedRows(number, 10 * number)}
    )
    assert bench.known.number == number
    assert not bench.later, "the epoch is told before it is in the log"


@pytest.mark.parametrize("is_begun_again", [False, True])
def test_epoch_behind_what_is_taken_up_may_lack_partitions(is_begun_again: bool) -> None:
    """The coordinator before may have let orders-0 take part in the next transaction, which it took along."""
    bench = anchored()
    bench.commit_one()
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.add(AUDIT)
    bench.resolve(1)
    if is_begun_again:
        bench.add(AUDIT)
    assert refused_code(bench.commit()) is ErrorCode.TRANSACTION_ABORTABLE
    assert bench.known.state is TransactionState.PREPARE_ABORT


def test_transaction_whose_application_was_on_its_way_is_aborted_and_its_number_skipped() -> None:
    bench, rows = asked_to_commit()
    number = bench.known.number
    bench.crash(before_all_is_logged=True)
    bench.commit(of=rows, last_sequences={ORDERS.name: 4})
    bench.resolve(0)
    bench.commit(of=rows, last_sequences={ORDERS.name: 4})
    assert [refused_code(answer) for answer in bench.answers.values()][-1] is ErrorCode.TRANSACTION_ABORTABLE
    assert (bench.known.state, bench.known.number) == (TransactionState.PREPARE_ABORT, number + 1)


@pytest.mark.parametrize("behind", [0, 2])
def test_number_behind_the_last_one_is_never_used(behind: int) -> None:
    bench = anchored()
    for _ in range(behind):
        bench.commit_one()
    number = bench.known.number
    bench.crash(before_all_is_logged=True)
    bench.add(ORDERS)
    bench.resolve(behind)
    assert bench.add(ORDERS) == Added()
    assert bench.known.number == number + 2


@pytest.mark.parametrize("end", ["init", "empty abort"])
def test_skipped_number_stays_skipped_in_the_log(end: str) -> None:
    bench = anchored()
    number = bench.known.number
    bench.crash()
    bench.add(ORDERS)
    bench.resolve()
    if end == "init":
        assert isinstance(bench.init(), ProducerInitialized)
    else:
        bench.abort()
        bench.finish()
    bench.crash()
    bench.add(ORDERS)
    assert bench.known.number > number + 1


def test_first_commit_behind_a_skipped_number_is_decided_by_a_record() -> None:
    """Epochs and numbers rise in step only behind it."""
    bench = anchored()
    bench.commit_one()
    bench.crash(before_all_is_logged=True)
    bench.add(ORDERS)
    bench.resolve(1)
    bench.know_all()
    bench.flush()
    bench.commit_one()
    assert not is_one_phase(bench)
    bench.commit_one()
    assert is_one_phase(bench)


def test_partition_of_a_deleted_topic_leaves_an_epoch_behind_all_that_may_have_been_given() -> None:
    bench = anchored()
    for _ in range(ONE_PHASE_MAX):
        given = bench.commit_one()
    begun = bench.known.identity
    bench.add(ORDERS)
    number = bench.known.number
    bench.crash(before_all_is_logged=True)
    bench.add(ORDERS)
    bench.resolve(None)
    assert bench.known.state is TransactionState.EMPTY
    assert bench.known.producer_epoch > begun.producer_epoch > given.producer_epoch
    assert bench.known.number >= number
    assert isinstance(bench.init(), ProducerInitialized)


# ---------------------------------------------------------------------- a topic that is deleted


def given_up(*, behind: int = 2) -> tuple[TransactionBench, ProducerIdentity]:
    """A producer that was told `behind` commits after the last one in the log, and the identity of its next
    transaction. Then the topic was deleted, and another coordinator has come."""
    bench = anchored()
    for _ in range(behind):
        bench.commit_one()
    told = bench.known.identity
    bench.crash(before_all_is_logged=True)
    bench.add(ORDERS)
    bench.resolve(None)
    return bench, told


@pytest.mark.parametrize("is_loaded_again", [False, True])
@pytest.mark.parametrize("behind", [0, 2, ONE_PHASE_MAX])
def test_producer_whose_topic_is_deleted_aborts_and_goes_on(behind: int, is_loaded_again: bool) -> None:
    bench, told = given_up(behind=behind)
    if is_loaded_again:
        bench.crash()
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert refused_code(bench.add(AUDIT, of=told)) is abortable
    assert refused_code(bench.add_offsets(DESK, of=told)) is abortable
    refused = bench.commit(of=told, last_sequences={AUDIT.name: 4})
    assert refused_code(refused) is abortable
    assert "the topic of its last transactions is deleted" in str(refused)
    for _ in range(2):
        following = bench.known.identity
        assert bench.abort(of=told) == TransactionEnded(following.producer_id, following.producer_epoch, {})
    assert following.producer_epoch > told.producer_epoch
    assert bench.add(AUDIT, of=following) == Added()
    bench.commit(of=following, last_sequences={AUDIT.name: 4})
    bench.vote()
    bench.finish()
    assert bench.known.state is TransactionState.COMPLETE_COMMIT


def test_producer_whose_topic_is_deleted_may_initialise_itself_again() -> None:
    bench, told = given_up()
    current = bench.known.identity
    for _ in range(2):
        assert bench.init(told) == ProducerInitialized(current.producer_id, current.producer_epoch)


def test_commit_that_is_in_the_log_is_answered_as_done_though_its_topic_is_deleted() -> None:
    """Its answer was lost, so its producer knows of no later epoch."""
    bench = anchored()
    last = bench.known.last_identity
    bench.crash()
    bench.commit(of=last)
    bench.resolve(None)
    current = bench.known.identity
    for _ in range(2):
        assert bench.commit(of=last) == TransactionEnded(current.producer_id, current.producer_epoch, {})
        bench.crash()


@pytest.mark.parametrize("newer", ["init", "fence"])
def test_newer_instance_fences_a_producer_whose_topic_was_deleted(newer: str) -> None:
    bench, told = given_up()
    bench.init() if newer == "init" else bench.answer(FenceProducer(ID))
    for call in (bench.abort, bench.commit):
        assert refused_code(call(of=told)) is ErrorCode.PRODUCER_FENCED
    assert refused_code(bench.add(AUDIT, of=told)) is ErrorCode.PRODUCER_FENCED
    assert refused_code(bench.init(told)) is ErrorCode.PRODUCER_FENCED


def test_late_call_with_an_epoch_that_was_given_up_ends_nothing_of_the_next_transaction() -> None:
    bench, told = given_up()
    bench.abort(of=told)
    bench.add(AUDIT)
    before = bench.known
    for call in (bench.abort, bench.commit):
        assert refused_code(call(of=told)) is ErrorCode.PRODUCER_FENCED
    assert refused_code(bench.init(told)) is ErrorCode.PRODUCER_FENCED
    assert bench.known == before


def test_epochs_before_the_log_and_behind_all_that_were_told_are_fenced() -> None:
    bench, _ = given_up()
    producer_id, current = bench.known.producer_id, bench.known.producer_epoch
    first = current - ONE_PHASE_MAX - 1
    for epoch, code in (
        (first - 2, ErrorCode.PRODUCER_FENCED),
        (first, ErrorCode.TRANSACTION_ABORTABLE),
        (current - 1, ErrorCode.TRANSACTION_ABORTABLE),
        (current + 1, ErrorCode.PRODUCER_FENCED),
    ):
        assert refused_code(bench.add(AUDIT, of=ProducerIdentity(producer_id, epoch))) is code
    other = ProducerIdentity(producer_id + 1, first)
    assert refused_code(bench.add(AUDIT, of=other)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_epochs_of_a_new_producer_id_are_given_up_from_the_first_one_on() -> None:
    bench = bench_at_the_last_epoch()
    bench.allows_one_phase = True
    last = bench.commit_one()
    told = bench.known.identity
    assert (last.producer_epoch, told.producer_epoch) == (PRODUCER_EPOCH_MAX, 0)
    bench.crash()
    bench.add(ORDERS)
    bench.resolve(None)
    current = bench.known.identity
    assert bench.commit(of=last) == TransactionEnded(current.producer_id, current.producer_epoch, {})
    assert refused_code(bench.commit(of=told)) is ErrorCode.TRANSACTION_ABORTABLE
    assert bench.abort(of=told) == TransactionEnded(current.producer_id, current.producer_epoch, {})


@pytest.mark.parametrize("epoch", [0, PRODUCER_EPOCH_MAX])
def test_instance_that_initialises_itself_again_gives_up_no_epochs(epoch: int) -> None:
    bench = bench_at_the_last_epoch() if epoch else bench_in(TransactionState.EMPTY)
    bench.init(bench.known.identity)
    assert bench.known.last_identity is not None
    assert not bench.known.given_up_epochs


# ---------------------------------------------------------------------- what the partition tells


def test_decision_that_was_loaded_is_carried_out_before_the_partition_is_asked() -> None:
    """The identities behind the decision are unknown, so no producer is fenced for having one."""
    bench = anchored()
    rows = bench.commit_one()
    following = bench.known.identity
    bench.rows.pop()  # the log ends with the decision about the transaction before
    bench.records = bench.records[: len(bench.records) - len(bench.later) - 1]
    bench.later.clear()
    bench.crash()
    bench.wait(0)
    assert bench.known.state is TransactionState.PREPARE_COMMIT
    for call in (bench.init, lambda: bench.commit(of=rows), lambda: bench.add(ORDERS, of=following)):
        assert refused_code(call()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert isinstance(bench.answer(DescribeTransaction(ID)), DescribedTransaction)
    bench.finish()
    bench.resolve(1)
    assert isinstance(bench.commit(of=rows), TransactionEnded)
    assert bench.add(ORDERS, of=following) == Added()


@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_ABORT])
def test_id_whose_log_does_not_end_with_a_commit_of_one_partition_asks_none(state: TransactionState) -> None:
    bench = bench_in(state)
    bench.crash()
    assert not bench.known.is_unresolved


def test_answer_of_a_partition_that_comes_late_changes_nothing() -> None:
    bench = anchored()
    bench.crash()
    bench.add(ORDERS)
    bench.resolve()
    before = bench.known
    bench.ask(Resolved(ID, before.number, before.number + 5, AppliedRows(1, 1)))
    assert bench.known == before


def test_id_that_nobody_uses_does_not_expire_before_its_partition_is_asked() -> None:
    """A coordinator that stands still may have sent a commit, which would come after the next instance's start."""
    bench = anchored()
    bench.crash()
    bench.wait(_MONTH_MS)
    assert bench.known.is_unresolved
    bench.resolve()
    bench.wait(_MONTH_MS)
    assert bench.state is None
    assert not [timer for timer in bench.deadlines if timer.kind is not TimerKind.EXPIRE]


def test_id_whose_partition_has_later_commits_is_kept_as_long_as_if_it_had_been_used() -> None:
    bench = anchored()
    bench.commit_one()
    bench.crash()
    bench.wait(_MONTH_MS)
    bench.resolve(1)
    assert bench.known.update_ms == bench.now_ms
    bench.wait(24 * 60 * 60 * 1_000)
    assert bench.known.state is TransactionState.COMPLETE_COMMIT
    bench.wait(_MONTH_MS)
    assert bench.state is None
