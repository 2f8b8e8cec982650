from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.transactions.changes import AWAITING_MAX, CollectVotes, Finish
from bus.transactions.requests import (
    AbortTransaction,
    Added,
    EndTransaction,
    FenceProducer,
    Finished,
    Noted,
    ProducerInitialized,
    TimerKind,
    TransactionEnded,
    TransactionTimer,
    Voted,
)
from bus.transactions.state import (
    AbortCause,
    AppliedRows,
    ProducerIdentity,
    TransactionPartition,
    TransactionState,
    VoteId,
)
from tests.support.transaction_bench import (
    AUDIT,
    DESK,
    ID,
    NO_VOTE,
    ORDERS,
    TIMEOUT_MS,
    TransactionBench,
    bench_at_the_last_epoch,
    bench_in,
)

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
COMMIT, ABORT = True, False
SAME, NEXT = 0, 1  # stored epoch - epoch of the request
WAITS, ENDED = "waits", "ended"
FENCED, WRONG_STATE = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
ABORTABLE, RETRY = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.CONCURRENT_TRANSACTIONS


def outcome(answer: object) -> object:
    match answer:
        case None:
            return WAITS
        case TransactionEnded():
            return ENDED
        case Refused(code):
            return code
    return answer


# KIP-890 part 2, and what the bus does otherwise: a call that Kafka answers CONCURRENT_TRANSACTIONS waits here, and a
# commit after an abort that its client did not ask for can be aborted (KAFKA-20785 has PRODUCER_FENCED).
END_TRANSACTION = {
    "ongoing-commit-is-voted-on": (ONGOING, SAME, COMMIT, WAITS),
    "ongoing-abort-is-decided": (ONGOING, SAME, ABORT, WAITS),
    "ongoing-late-commit-is-fenced": (ONGOING, NEXT, COMMIT, FENCED),
    "ongoing-late-abort-is-fenced": (ONGOING, NEXT, ABORT, FENCED),
    "prepare-commit-repeated-commit-waits": (PREPARE_COMMIT, NEXT, COMMIT, WAITS),
    "prepare-commit-abort-is-refused": (PREPARE_COMMIT, NEXT, ABORT, WRONG_STATE),
    "prepare-commit-commit-of-the-next-epoch-is-to-be-retried": (PREPARE_COMMIT, SAME, COMMIT, RETRY),
    "prepare-commit-abort-of-the-next-epoch-is-to-be-retried": (PREPARE_COMMIT, SAME, ABORT, RETRY),
    "prepare-abort-repeated-abort-waits": (PREPARE_ABORT, NEXT, ABORT, WAITS),
    "prepare-abort-commit-is-refused": (PREPARE_ABORT, NEXT, COMMIT, WRONG_STATE),
    "prepare-abort-commit-of-the-next-epoch-is-to-be-retried": (PREPARE_ABORT, SAME, COMMIT, RETRY),
    "prepare-abort-abort-of-the-next-epoch-is-to-be-retried": (PREPARE_ABORT, SAME, ABORT, RETRY),
    "complete-commit-repeated-commit-has-ended": (COMPLETE_COMMIT, NEXT, COMMIT, ENDED),
    "complete-commit-abort-is-refused": (COMPLETE_COMMIT, NEXT, ABORT, WRONG_STATE),
    "complete-commit-commit-of-nothing-is-refused": (COMPLETE_COMMIT, SAME, COMMIT, WRONG_STATE),
    "complete-commit-abort-of-nothing-is-decided": (COMPLETE_COMMIT, SAME, ABORT, WAITS),
    "complete-abort-repeated-abort-has-ended": (COMPLETE_ABORT, NEXT, ABORT, ENDED),
    "complete-abort-commit-is-refused": (COMPLETE_ABORT, NEXT, COMMIT, WRONG_STATE),
    "complete-abort-commit-of-nothing-is-refused": (COMPLETE_ABORT, SAME, COMMIT, WRONG_STATE),
    "complete-abort-abort-of-nothing-is-decided": (COMPLETE_ABORT, SAME, ABORT, WAITS),
    "empty-commit-is-refused": (EMPTY, SAME, COMMIT, WRONG_STATE),
    "empty-abort-of-nothing-is-decided": (EMPTY, SAME, ABORT, WAITS),
    "empty-late-commit-is-fenced": (EMPTY, NEXT, COMMIT, FENCED),
    "empty-late-abort-is-fenced": (EMPTY, NEXT, ABORT, FENCED),
}


@pytest.mark.parametrize(("state", "behind", "is_commit", "expected"), END_TRANSACTION.values(), ids=END_TRANSACTION)
def test_end_by_state(state: TransactionState, behind: int, is_commit: bool, expected: object) -> None:
    bench = bench_in(state, epoch=3)
    before = bench.known
    found = bench.end(is_commit, of=ProducerIdentity(7, before.producer_epoch - behind))
    assert outcome(found) == expected
    if expected is not WAITS:
        assert bench.state == before, "a call that is answered at once changes nothing"


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
@pytest.mark.parametrize("behind", [-1, 2])
def test_end_with_a_higher_epoch_or_one_long_gone_is_fenced_in_every_state(
    state: TransactionState, is_commit: bool, behind: int
) -> None:
    """KAFKA-9600: Kafka once took a higher one."""
    bench = bench_in(state, epoch=3)
    before = bench.known
    found = bench.end(is_commit, of=ProducerIdentity(7, before.producer_epoch - behind))
    assert outcome(found) is FENCED
    assert bench.state == before


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_end_with_another_producer_id_is_refused_in_every_state(state: TransactionState, is_commit: bool) -> None:
    bench = bench_in(state, epoch=3)
    before = bench.known
    found = bench.end(is_commit, of=ProducerIdentity(99, before.producer_epoch))
    assert found == Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "billing: expected producer id 7, found 99")
    assert bench.state == before


def test_end_of_an_id_that_is_not_known_is_refused() -> None:
    found = TransactionBench().answer(EndTransaction(ID, 7, 0, True))
    assert outcome(found) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


AFTER_AN_ABORT = {
    "client": (AbortCause.CLIENT, WRONG_STATE),
    "vote": (AbortCause.VOTE, ABORTABLE),
    "timeout": (AbortCause.TIMEOUT, ABORTABLE),
    "operator": (AbortCause.OPERATOR, ABORTABLE),
    "new-instance": (AbortCause.NEW_INSTANCE, FENCED),
    "fence": (AbortCause.FENCE, FENCED),
}


@pytest.mark.parametrize("state", [PREPARE_ABORT, COMPLETE_ABORT])
@pytest.mark.parametrize(("cause", "expected"), AFTER_AN_ABORT.values(), ids=AFTER_AN_ABORT)
def test_commit_after_an_abort_tells_whether_the_instance_may_go_on(
    state: TransactionState, cause: AbortCause, expected: ErrorCode
) -> None:
    bench = bench_in(state, cause=cause, epoch=3)
    assert bench.known.abort_cause is cause
    assert outcome(bench.commit(of=ProducerIdentity(7, 3))) is expected


@pytest.mark.parametrize("cause", [AbortCause.VOTE, AbortCause.TIMEOUT, AbortCause.OPERATOR])
def test_instance_whose_transaction_was_aborted_aborts_it_and_goes_on(cause: AbortCause) -> None:
    bench = bench_in(PREPARE_ABORT, cause=cause)
    request = bench.ask(EndTransaction(ID, 7, 0, False))
    bench.finish()
    assert bench.answers[request] == TransactionEnded(7, 1)
    assert bench.abort(of=ProducerIdentity(7, 0)) == TransactionEnded(7, 1)
    assert outcome(bench.add(ORDERS, of=ProducerIdentity(7, 1))) != FENCED


@pytest.mark.parametrize("cause", [AbortCause.NEW_INSTANCE, AbortCause.FENCE])
@pytest.mark.parametrize("state", [PREPARE_ABORT, COMPLETE_ABORT])
def test_fenced_instance_does_not_even_abort(state: TransactionState, cause: AbortCause) -> None:
    """Or it would be told the epoch of the instance that fenced it."""
    bench = bench_in(state, cause=cause)
    assert outcome(bench.abort(of=ProducerIdentity(7, 0))) is FENCED


# ---------------------------------------------------------------- a whole transaction


def test_commit_is_voted_on_then_decided_then_applied_then_answered() -> None:
    bench = bench_in(ONGOING)
    bench.add(AUDIT)
    bench.add_offsets(DESK)
    number = bench.known.number
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4, AUDIT.name: 9}))
    vote_id = VoteId(request)
    named = {ORDERS.name: 4, AUDIT.name: 9}
    assert bench.last_vote == CollectVotes(ID, number, 7, 0, (ORDERS, AUDIT), (DESK,), named, vote_id)
    assert bench.known.state is ONGOING
    bench.ask(Voted(ID, number, vote_id, {ORDERS: 4, AUDIT: 11}))
    assert bench.known.state is PREPARE_COMMIT
    assert bench.known.partitions == {ORDERS: 4, AUDIT: 9}, "what was not acknowledged is not committed"
    assert bench.last_finish == Finish(ID, number, 7, 0, True, {ORDERS: 4, AUDIT: 9}, (DESK,), needs_producer_id=False)
    assert request not in bench.answers
    versions = {ORDERS: AppliedRows(3, 100), AUDIT: AppliedRows(8, 200)}
    bench.ask(Finished(ID, number, versions))
    assert bench.answers[request] == TransactionEnded(7, 1, versions)


def test_commit_that_is_repeated_to_another_coordinator_gets_the_same_answer() -> None:
    bench = bench_in(COMPLETE_COMMIT)
    first = bench.commit(of=ProducerIdentity(7, 0))
    bench.crash()
    bench.resolve_at_once()
    assert bench.commit(of=ProducerIdentity(7, 0)) == first == TransactionEnded(7, 1, bench.known.results)
    assert bench.known.results


def test_abort_drops_everything_and_is_answered_then() -> None:
    bench = bench_in(ONGOING)
    bench.add_offsets(DESK)
    request = bench.ask(EndTransaction(ID, 7, 0, False))
    assert bench.last_finish == Finish(
        ID, bench.known.number, 7, 0, False, {ORDERS: -1}, (DESK,), needs_producer_id=False
    )
    bench.finish()
    assert bench.answers[request] == TransactionEnded(7, 1)
    assert (bench.known.partitions, bench.known.groups) == ({}, ())


def test_abort_of_nothing_has_a_number_and_an_epoch_of_its_own() -> None:
    """Batches that the client has sent may still arrive, and are then too late."""
    bench = bench_in(COMPLETE_COMMIT)
    number = bench.known.number
    request = bench.ask(EndTransaction(ID, 7, 1, False))
    assert (bench.known.number, bench.known.producer_epoch) == (number + 1, 2)
    bench.finish()
    assert bench.answers[request] == TransactionEnded(7, 2)
    assert outcome(bench.add(ORDERS, of=ProducerIdentity(7, 1))) is FENCED


def test_repeated_calls_join_the_wait_and_all_get_the_answer() -> None:
    bench = bench_in(ONGOING)
    requests = [bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4})) for _ in range(2)]
    bench.vote()
    requests.append(bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4})))
    assert not bench.answers.keys() & set(requests)
    bench.finish()
    assert {outcome(bench.answers[request]) for request in requests} == {ENDED}
    assert len([notice for notice in bench.notices if isinstance(notice, CollectVotes)]) == 1


def test_of_very_many_calls_that_wait_the_oldest_are_told_to_retry() -> None:
    bench = bench_in(PREPARE_COMMIT)
    requests = [bench.ask(EndTransaction(ID, 7, 0, True)) for _ in range(AWAITING_MAX + 1)]
    assert outcome(bench.answers[requests[0]]) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert list(bench.open) == requests[1:]


# ---------------------------------------------------------------- the vote


def test_abort_during_the_vote_is_told_to_retry() -> None:
    bench = bench_in(ONGOING)
    bench.commit()
    assert outcome(bench.abort()) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_commit_that_names_other_sequences_than_the_one_that_it_repeats_is_refused() -> None:
    bench = bench_in(ONGOING)
    bench.commit(last_sequences={ORDERS.name: 4})
    refused = bench.commit(last_sequences={ORDERS.name: 5})
    assert outcome(refused) is ErrorCode.INVALID_REQUEST
    assert isinstance(refused, Refused)
    assert refused.message.endswith("that is repeated, orders-0 up to 4, found orders-0 up to 5")
    assert outcome(bench.commit(last_sequences={})) is ErrorCode.INVALID_REQUEST


def test_partition_that_lacks_an_acknowledged_batch_aborts_the_transaction() -> None:
    bench = bench_in(ONGOING)
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 5}))
    bench.vote(4)
    assert bench.answers[request] == Refused(
        ABORTABLE,
        "billing: the transaction is aborted, for a part of it is missing: orders-0: expected all up to sequence 5, "
        "found 4",
    )
    assert (bench.known.state, bench.known.abort_cause) == (PREPARE_ABORT, AbortCause.VOTE)
    assert not bench.last_finish.is_commit


def test_partition_that_the_client_names_and_that_takes_no_part_aborts_the_transaction() -> None:
    bench = bench_in(ONGOING)
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4, AUDIT.name: 0}))
    bench.vote(4)
    assert outcome(bench.answers[request]) is ABORTABLE
    assert bench.known.state is PREPARE_ABORT


def test_group_that_lacks_its_pending_offsets_aborts_the_transaction() -> None:
    bench = bench_in(ONGOING)
    request = bench.ask(EndTransaction(ID, 7, 0, True))
    bench.vote(refused=Refused(ErrorCode.INVALID_REQUEST, "group desk: expected pending offsets, found none"))
    assert bench.answers[request] == Refused(ABORTABLE, "group desk: expected pending offsets, found none")
    assert bench.known.state is PREPARE_ABORT


def test_partition_of_which_the_client_names_nothing_gets_nothing() -> None:
    """It was added by a batch that was never acknowledged."""
    bench = bench_in(ONGOING)
    bench.add(AUDIT)
    bench.commit(last_sequences={ORDERS.name: 4})
    bench.vote(4)
    assert bench.known.partitions == {ORDERS: 4, AUDIT: -1}


def test_client_that_names_no_sequence_commits_all_that_is_staged() -> None:
    bench = bench_in(ONGOING)
    bench.commit()
    bench.vote(17)
    assert bench.known.partitions == {ORDERS: 17}


def test_partition_of_a_deleted_topic_takes_no_part_any_more() -> None:
    bench = bench_in(ONGOING)
    bench.add(AUDIT)
    bench.commit(last_sequences={ORDERS.name: 4, AUDIT.name: 2})
    bench.vote(last_sequences={ORDERS: 4}, gone=frozenset({AUDIT}))
    assert bench.known.partitions == {ORDERS: 4}


def test_partition_of_a_topic_that_was_created_again_has_what_the_client_was_acknowledged_by_it() -> None:
    bench = bench_in(ONGOING)
    again = replace(ORDERS, topic_id="id-of-the-next")
    bench.add(again)
    bench.commit(last_sequences={ORDERS.name: 1})
    bench.vote(last_sequences={again: 1}, gone=frozenset({ORDERS}))
    assert bench.known.partitions == {again: 1}


def test_vote_that_ends_after_the_timeout_decides_nothing() -> None:
    bench = bench_in(ONGOING)
    request = bench.ask(EndTransaction(ID, 7, 0, True))
    late = Voted(ID, bench.known.number, bench.last_vote.vote_id, {ORDERS: 4})
    bench.wait(TIMEOUT_MS)
    assert outcome(bench.answers[request]) is ABORTABLE
    before = bench.state
    assert bench.answer(late) == Noted()
    assert bench.state == before


def test_vote_on_the_transaction_before_decides_nothing() -> None:
    bench = bench_in(COMPLETE_COMMIT)
    number = bench.known.number
    bench.add(ORDERS)
    bench.commit()
    late = Voted(ID, number, bench.last_vote.vote_id, {ORDERS: 4})
    before = bench.state
    assert bench.answer(late) == Noted()
    assert bench.state == before


def test_vote_that_nobody_asked_for_decides_nothing() -> None:
    bench = bench_in(ONGOING)
    bench.vote()
    assert bench.known.state is ONGOING
    assert TransactionBench().answer(Voted(ID, 1, NO_VOTE, {ORDERS: 4})) == Noted()


def test_vote_of_before_the_coordinator_was_loaded_again_decides_nothing() -> None:
    """It counted when the client had been acknowledged less."""
    named = {ORDERS.name: 9, AUDIT.name: 9}
    bench = bench_in(ONGOING)
    bench.commit(last_sequences=named)
    late = Voted(ID, bench.known.number, bench.last_vote.vote_id, {ORDERS: 4})
    bench.crash()
    bench.add(AUDIT)
    bench.commit(last_sequences=named)
    assert bench.answer(late) == Noted()
    assert bench.known.state is ONGOING
    bench.vote(9)
    assert bench.known.partitions == {ORDERS: 9, AUDIT: 9}


# ---------------------------------------------------------------- what a coordinator before may have known

NAMED = {ORDERS.name: 4}


@pytest.mark.parametrize("named", [{}, NAMED], ids=["names-nothing", "names-its-partition"])
def test_commit_of_a_transaction_that_was_not_logged_is_aborted(named: dict[TopicPartition, int]) -> None:
    """The instance may go on: the transaction is not lost on it that it has to send all again."""
    bench = bench_in(EMPTY, epoch=3)
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    assert outcome(bench.commit(of=ProducerIdentity(7, 3), last_sequences=named)) == ABORTABLE
    assert (bench.known.state, bench.known.abort_cause) == (PREPARE_ABORT, AbortCause.VOTE)
    bench.finish()
    assert outcome(bench.commit(of=ProducerIdentity(7, 3), last_sequences=named)) == ABORTABLE
    assert bench.abort(of=ProducerIdentity(7, 3)) == TransactionEnded(7, 4)


def test_commit_that_names_a_partition_that_was_not_logged_is_aborted() -> None:
    bench = bench_in(EMPTY)
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.add(AUDIT)
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4, AUDIT.name: 4}))
    bench.vote()
    assert outcome(bench.answers[request]) == ABORTABLE


def test_commit_that_names_no_partition_is_aborted_where_one_may_be_lacking() -> None:
    bench = bench_in(EMPTY)
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.add(AUDIT)
    assert outcome(bench.commit()) == ABORTABLE


def test_partition_whose_leader_asks_again_is_committed_though_it_was_not_logged_at_first() -> None:
    bench = bench_in(EMPTY)
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.add(ORDERS)
    bench.commit(last_sequences=NAMED)
    bench.vote()
    assert bench.known.state is PREPARE_COMMIT


def test_nothing_is_lacking_any_more_once_the_epoch_has_risen() -> None:
    bench = bench_in(EMPTY)
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.init()
    bench.add(ORDERS)
    bench.commit()
    bench.vote()
    assert bench.known.state is PREPARE_COMMIT


def test_the_epoch_after_an_end_that_was_not_logged_may_lack_partitions_too() -> None:
    bench = bench_in(ONGOING)
    bench.commit(last_sequences=NAMED)
    bench.vote()
    bench.finish()
    bench.add(ORDERS)
    bench.crash(before_all_is_logged=True)
    bench.wait(0)
    bench.finish()
    bench.resolve_at_once()
    bench.add(AUDIT)
    assert outcome(bench.commit()) == ABORTABLE


def test_a_group_is_logged_before_it_takes_part() -> None:
    bench = bench_in(EMPTY)
    bench.add(ORDERS)
    bench.add_offsets(DESK)
    bench.crash(before_all_is_logged=True)
    assert (bench.known.state, bench.known.groups) == (ONGOING, (DESK,))
    assert bench.known.partitions.keys() == {ORDERS}


# ---------------------------------------------------------------- carried out


def test_decision_that_is_carried_out_twice_counts_once() -> None:
    bench = bench_in(PREPARE_COMMIT)
    done = Finished(ID, bench.known.number, {ORDERS: AppliedRows(3, 100)})
    bench.ask(done)
    before = bench.state
    assert bench.answer(replace(done, results={ORDERS: AppliedRows(4, 200)})) == Noted()
    assert bench.state == before
    bench.add(ORDERS)
    bench.abort()
    before = bench.state
    assert bench.answer(done) == Noted(), "of the transaction before"
    assert bench.state == before
    assert TransactionBench().answer(done) == Noted()


def test_results_of_partitions_that_take_no_part_are_not_kept() -> None:
    bench = bench_in(PREPARE_COMMIT)
    bench.ask(Finished(ID, bench.known.number, {AUDIT: AppliedRows(3, 100)}))
    assert (bench.known.state, bench.known.results) == (COMPLETE_COMMIT, {})


def test_new_coordinator_carries_the_decision_out() -> None:
    for state in (PREPARE_COMMIT, PREPARE_ABORT):
        bench = bench_in(state)
        before = bench.last_finish
        bench.crash()
        assert bench.notices == []
        bench.wait(0)
        assert bench.notices == [before]


# ---------------------------------------------------------------- the last epoch


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_transaction_of_the_last_epoch_ends_with_a_new_producer_id(is_commit: bool) -> None:
    """KAFKA-18660: the id and epoch of the answer are those of the record."""
    bench = bench_at_the_last_epoch(PREPARE_COMMIT if is_commit else PREPARE_ABORT)
    assert bench.known.producer_epoch == 32_767
    assert bench.last_finish.producer_epoch == 32_766
    assert bench.last_finish.needs_producer_id
    bench.finish()
    assert (bench.known.producer_id, bench.known.producer_epoch, bench.known.previous_producer_id) == (8, 0, 7)
    ended = TransactionEnded(8, 0, bench.known.results)
    assert [answer for answer in bench.answers.values() if isinstance(answer, TransactionEnded)] == [ended]
    for _ in range(2):
        assert bench.end(is_commit, of=ProducerIdentity(7, 32_766)) == ended, "repeated, also after a failover"
        bench.crash()
        bench.resolve_at_once()


def test_end_of_the_last_epoch_is_repeated_only_until_the_epoch_rises_again() -> None:
    bench = bench_at_the_last_epoch(COMPLETE_COMMIT)
    bench.add(ORDERS)
    assert outcome(bench.commit(of=ProducerIdentity(7, 32_766))) is FENCED
    bench.abort()
    bench.finish()
    assert bench.known.previous_producer_id == -1
    assert outcome(bench.commit(of=ProducerIdentity(7, 32_766))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("producer_epoch", [0, 32_765, 32_767])
def test_producer_id_before_the_last_one_counts_with_its_last_epoch_only(producer_epoch: int) -> None:
    bench = bench_at_the_last_epoch(COMPLETE_COMMIT)
    assert isinstance(bench.commit(of=ProducerIdentity(7, producer_epoch)), Refused)


def test_completion_at_the_last_epoch_without_a_new_producer_id_is_refused() -> None:
    bench = bench_at_the_last_epoch(PREPARE_COMMIT)
    assert outcome(bench.answer(Finished(ID, bench.known.number, {}))) is ErrorCode.INVALID_REQUEST
    assert bench.known.state is PREPARE_COMMIT


def test_abort_of_nothing_at_the_last_epoch_ends_with_a_new_producer_id() -> None:
    bench = bench_at_the_last_epoch()
    request = bench.ask(EndTransaction(ID, 7, 32_766, False))
    bench.finish()
    assert bench.answers[request] == TransactionEnded(8, 0)


def test_timeout_at_the_last_epoch_raises_it_once() -> None:
    """KAFKA-19367: fence and abort raised it twice, over the end."""
    bench = bench_at_the_last_epoch(ONGOING)
    bench.wait(TIMEOUT_MS)
    assert bench.known.producer_epoch == 32_767
    bench.finish()
    assert bench.known.identity == ProducerIdentity(8, 0)
    assert outcome(bench.commit(of=ProducerIdentity(7, 32_766))) is ABORTABLE
    assert bench.abort(of=ProducerIdentity(7, 32_766)) == TransactionEnded(8, 0)


# ---------------------------------------------------------------- time-outs


def test_timeout_aborts_and_raises_the_epoch_in_one_record() -> None:
    """KAFKA-6119, 5231: the instance went on with an epoch that was not raised."""
    bench = bench_in(ONGOING, epoch=2)
    written = len(bench.records)
    bench.wait(TIMEOUT_MS - 1)
    assert bench.known.state is ONGOING
    bench.wait(1)
    assert (bench.known.state, bench.known.abort_cause) == (PREPARE_ABORT, AbortCause.TIMEOUT)
    assert (bench.known.producer_epoch, bench.known.last_producer_epoch) == (3, 2)
    assert len(bench.records) == written + 1


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT, EMPTY])
def test_timeout_that_was_on_its_way_ends_nothing_that_is_decided(state: TransactionState) -> None:
    bench = bench_in(state)
    before = bench.state
    bench.say(TransactionTimer(TimerKind.TIMEOUT, ID, bench.known.number))
    assert bench.state == before


def test_timeout_of_the_transaction_before_does_not_end_the_next_one() -> None:
    bench = bench_in(COMPLETE_COMMIT)
    late = TransactionTimer(TimerKind.TIMEOUT, ID, bench.known.number)
    bench.add(ORDERS)
    bench.say(late)
    assert bench.known.state is ONGOING


def test_decision_ends_the_timeout() -> None:
    for state in (PREPARE_COMMIT, PREPARE_ABORT):
        bench = bench_in(state)
        assert not [timer for timer in bench.deadlines if timer.kind is TimerKind.TIMEOUT]


def test_new_coordinator_keeps_what_is_left_of_the_timeout() -> None:
    bench = bench_in(ONGOING)
    bench.wait(TIMEOUT_MS - 10_000)
    bench.crash()
    bench.wait(9_999)
    assert bench.known.state is ONGOING
    bench.wait(1)
    assert bench.known.state is PREPARE_ABORT


@pytest.mark.parametrize(("clock_ms", "left_ms"), [(-500_000, TIMEOUT_MS), (500_000, 0)])
def test_clock_of_a_new_coordinator_makes_a_timeout_neither_longer_nor_negative(clock_ms: int, left_ms: int) -> None:
    bench = bench_in(ONGOING)
    bench.now_ms += clock_ms
    bench.crash()
    bench.wait(0)
    if left_ms:
        bench.wait(left_ms - 1)
        assert bench.known.state is ONGOING
        bench.wait(1)
    assert bench.known.state is PREPARE_ABORT


# ---------------------------------------------------------------- an operator


def test_operator_aborts_the_open_transaction() -> None:
    bench = bench_in(ONGOING)
    commit = bench.ask(EndTransaction(ID, 7, 0, True))
    request = bench.ask(AbortTransaction(ID, ProducerIdentity(7, 0)))
    assert outcome(bench.answers[commit]) is ABORTABLE
    again = bench.ask(AbortTransaction(ID, ProducerIdentity(7, 0)))
    bench.finish()
    assert bench.answers[request] == bench.answers[again] == TransactionEnded(7, 1)
    assert bench.answer(AbortTransaction(ID, ProducerIdentity(7, 0))) == TransactionEnded(7, 1)


@pytest.mark.parametrize("state", [EMPTY, PREPARE_COMMIT, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_operator_aborts_nothing_that_is_not_open(state: TransactionState) -> None:
    bench = bench_in(state)
    before = bench.state
    assert outcome(bench.answer(AbortTransaction(ID))) is WRONG_STATE
    assert bench.state == before


def test_operator_does_not_abort_the_transaction_after_the_one_that_was_looked_at() -> None:
    bench = bench_in(COMPLETE_COMMIT)
    bench.add(ORDERS)
    assert bench.answer(AbortTransaction(ID, ProducerIdentity(7, 0))) == Refused(
        WRONG_STATE,
        "billing: expected the transaction of producer id 7 with epoch 0, found that of producer id 7 with epoch 1",
    )
    assert bench.known.state is ONGOING


def test_operator_is_told_that_an_id_is_not_known() -> None:
    assert outcome(TransactionBench().answer(AbortTransaction(ID))) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_partition_is_told_apart_by_its_topic_id() -> None:
    assert TransactionPartition("orders", "a", 0) != TransactionPartition("orders", "b", 0)


# ---------------------------------------------------------------- marks of an earlier life of the id


def test_transaction_that_meets_a_higher_mark_is_aborted_and_the_next_one_is_above_it() -> None:
    """Decided, it could not be told from those that the partition has."""
    bench = bench_in(ONGOING)
    first = bench.known.number
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4}))
    bench.vote(-1, taken_number=first + 1_000)
    refused = bench.answers[request]
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.TRANSACTION_ABORTABLE
    assert f"transaction {first + 1_000} of an earlier life" in refused.message
    assert bench.known.state is PREPARE_ABORT
    bench.finish()
    assert isinstance(bench.add(ORDERS), Added)
    assert bench.known.number == first + 1_001
    bench.commit()
    bench.vote()
    bench.crash()
    bench.wait(0)
    bench.finish()
    assert bench.known.state is COMPLETE_COMMIT


def test_mark_below_the_transaction_is_that_of_an_earlier_one_and_does_not_matter() -> None:
    bench = bench_in(ONGOING)
    bench.commit()
    bench.vote(taken_number=bench.known.number - 1)
    assert bench.known.state is PREPARE_COMMIT


def test_operator_gives_up_what_a_partition_refuses_for_ever() -> None:
    bench = bench_in(ONGOING)
    bench.add(AUDIT)
    request = bench.ask(EndTransaction(ID, 7, 0, True, {ORDERS.name: 4, AUDIT.name: 4}))
    bench.vote()
    fence = bench.ask(bench.with_producer_id(FenceProducer(ID)))
    assert bench.last_finish.may_give_up
    rows = {AUDIT: AppliedRows(3, 30)}
    bench.ask(Finished(ID, bench.known.number, rows, given_up=frozenset({ORDERS})))
    refused = bench.answers[request]
    assert isinstance(refused, Refused), "its producer is not told that it is committed"
    assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "its rows are not in orders-0" in refused.message
    assert bench.answers[fence] == ProducerInitialized(7, 2)
    assert not bench.later, "what was given up is in the log"


def test_operator_frees_an_id_whose_decided_commit_was_loaded_and_cannot_be_carried_out() -> None:
    bench = bench_in(ONGOING)
    bench.commit()
    bench.vote()
    bench.crash()
    bench.wait(0)
    refused = bench.answer(FenceProducer(ID))
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.last_finish.may_give_up
    bench.ask(Finished(ID, bench.known.number, {}, given_up=frozenset({ORDERS})))
    bench.resolve()
    assert bench.answer(FenceProducer(ID)) == ProducerInitialized(7, 2)
