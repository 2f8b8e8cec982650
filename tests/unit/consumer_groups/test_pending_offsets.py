from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups import offsets
from bus.consumer_groups.group import GroupRules
from bus.consumer_groups.records import OffsetCommitted, TxnOffsetsEnded, TxnOffsetsPending
from bus.consumer_groups.requests import (
    NO_OFFSET,
    ApplyOffsets,
    CommittedOffset,
    DescribedGroup,
    DescribeGroup,
    DropOffsets,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetsVoted,
    OffsetToCommit,
    TransactionKey,
    TxnOffsetCommit,
    TxnOffsetsSettled,
    VoteOffsets,
)
from bus.descriptions import PendingOffsets
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench, join, stable_bench

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 0)
FIVE = OffsetToCommit(ORDERS, "id", 5, 2, "why")
FIRST, SECOND = TransactionKey(7, 3), TransactionKey(7, 4)
COMMIT = TxnOffsetCommit(GROUP_ID, FIRST, 0, 1, "m-3", None, (FIVE,))
NOBODYS = replace(COMMIT, generation=-1, member_id="")
FETCH = OffsetFetch(GROUP_ID, (ORDERS,), require_stable=True)


def code(answer: object) -> ErrorCode | None:
    return answer.code if isinstance(answer, Refused) else None


def records(bench: GroupBench) -> tuple[object, ...]:
    return tuple(bench.steps[-1].records)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (replace(COMMIT, group_id=""), ErrorCode.INVALID_GROUP_ID),
        (replace(COMMIT, member_id="m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(COMMIT, member_id=""), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(COMMIT, group_instance_id="desk"), ErrorCode.FENCED_INSTANCE_ID),
        (replace(COMMIT, generation=0), ErrorCode.ILLEGAL_GENERATION),
        (replace(COMMIT, generation=-1), ErrorCode.ILLEGAL_GENERATION),
        (NOBODYS, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_in_a_transaction_of_who_may_not_is_refused(command: TxnOffsetCommit, expected: ErrorCode) -> None:
    bench = stable_bench("desk")
    assert code(bench.answer(command)) is expected
    assert bench.group is not None
    assert not bench.group.pending_offsets


def test_generation_of_a_group_that_is_not_there_is_refused_and_none_is_taken() -> None:
    bench = GroupBench()
    assert code(bench.answer(COMMIT)) is ErrorCode.ILLEGAL_GENERATION
    assert bench.answer(NOBODYS) == OffsetsCommitted((None,))


def test_pending_offsets_are_a_record_with_all_that_was_said() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    assert records(bench) == (TxnOffsetsPending(GROUP_ID, FIRST, 0, bench.now_ms, (FIVE,)),)


def test_applying_commits_as_of_now_and_forgets_the_transaction_in_one_step() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    bench.wait(500)
    assert bench.answer(ApplyOffsets(GROUP_ID, FIRST)) == TxnOffsetsSettled()
    assert records(bench) == (
        OffsetCommitted(GROUP_ID, ORDERS, "id", 5, 2, "why", bench.now_ms),
        TxnOffsetsEnded(GROUP_ID, FIRST),
    )


@pytest.mark.parametrize("end", [ApplyOffsets, DropOffsets])
def test_end_that_is_repeated_or_of_another_transaction_is_logged_and_changes_nothing(
    end: type[ApplyOffsets] | type[DropOffsets],
) -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    before = bench.group
    for transaction in (SECOND, TransactionKey(8, 3)):
        assert bench.answer(end(GROUP_ID, transaction)) == TxnOffsetsSettled()
        assert records(bench) == (TxnOffsetsEnded(GROUP_ID, transaction),)
        assert bench.group == before
    bench.ask(end(GROUP_ID, FIRST))
    after = bench.group
    assert bench.answer(end(GROUP_ID, FIRST)) == TxnOffsetsSettled()
    assert records(bench) == (TxnOffsetsEnded(GROUP_ID, FIRST),)
    assert bench.group == after
    none = GroupBench()
    assert none.answer(end(GROUP_ID, FIRST)) == TxnOffsetsSettled()
    assert none.group is None


def test_commit_that_comes_twice_or_late_changes_nothing() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    assert bench.answer(COMMIT) == OffsetsCommitted((None,))
    assert records(bench) == ()
    bench.ask(replace(COMMIT, sequence=1, offsets=(replace(FIVE, offset=8),)))
    assert bench.answer(COMMIT) == OffsetsCommitted((None,))
    bench.ask(ApplyOffsets(GROUP_ID, FIRST))
    assert bench.answer(OffsetFetch(GROUP_ID, (ORDERS,))) == OffsetsFetched(
        (CommittedOffset(ORDERS, "id", 8, 2, "why", bench.now_ms),)
    )


def test_next_transaction_of_the_producer_counts_its_commits_anew() -> None:
    bench = stable_bench()
    bench.ask(replace(COMMIT, sequence=4))
    bench.ask(replace(COMMIT, transaction=SECOND))
    assert bench.answer(VoteOffsets(GROUP_ID, SECOND)) == OffsetsVoted(True)


def test_vote_says_whether_offsets_are_pending() -> None:
    bench = stable_bench()
    assert bench.answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(False)
    bench.ask(COMMIT)
    assert bench.answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(True)
    assert bench.answer(VoteOffsets(GROUP_ID, SECOND)) == OffsetsVoted(False)
    assert GroupBench().answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(False)


def test_offset_that_may_not_be_is_refused_alone_and_with_no_other_nothing_is_pending() -> None:
    bench = GroupBench(GroupRules(offset_metadata_max_bytes=4))
    long = replace(FIVE, partition=AUDIT, metadata="abcde")
    answer = bench.answer(replace(NOBODYS, offsets=(long,)))
    assert isinstance(answer, OffsetsCommitted)
    assert code(answer.partitions[0]) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert bench.group is None
    answer = bench.answer(replace(NOBODYS, offsets=(FIVE, long)))
    assert isinstance(answer, OffsetsCommitted)
    assert [code(refused) for refused in answer.partitions] == [None, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    bench.ask(ApplyOffsets(GROUP_ID, FIRST))
    assert bench.group is not None
    assert set(bench.group.offsets) == {ORDERS}


def test_stable_fetch_waits_for_the_partition_and_for_no_other() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    answer = bench.answer(replace(FETCH, partitions=(ORDERS, AUDIT)))
    assert isinstance(answer, OffsetsFetched)
    unstable, other = answer.offsets
    assert (unstable.partition, unstable.offset) == (ORDERS, NO_OFFSET)
    assert code(unstable.refused) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert other == CommittedOffset(AUDIT, "", NO_OFFSET)
    assert bench.answer(replace(FETCH, partitions=None)) == OffsetsFetched((unstable,))
    assert bench.answer(replace(FETCH, partitions=None, require_stable=False)) == OffsetsFetched(())
    bench.ask(DropOffsets(GROUP_ID, FIRST))
    assert bench.answer(FETCH) == OffsetsFetched((CommittedOffset(ORDERS, "", NO_OFFSET),))


def test_commit_in_a_transaction_is_no_sign_of_life_of_the_member() -> None:
    bench = stable_bench()
    bench.wait(9_000)
    bench.ask(COMMIT)
    bench.wait(1_000)
    assert code(bench.answer(replace(COMMIT, sequence=1))) is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_with_nothing_but_pending_offsets_does_not_expire() -> None:
    bench = GroupBench()
    bench.ask(NOBODYS)
    bench.wait(10 * bench.rules.offsets_retention_ms)
    bench.expire_offsets()
    bench.crash()
    assert bench.answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(True)
    bench.ask(ApplyOffsets(GROUP_ID, FIRST))
    bench.wait(bench.rules.offsets_retention_ms - 1)
    bench.expire_offsets()
    assert bench.group is not None
    bench.wait(1)
    bench.expire_offsets()
    assert bench.group is None


def test_empty_group_that_had_members_does_not_end_while_offsets_are_pending() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    bench.wait(10_000)
    bench.expire_offsets()
    assert bench.answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(True)
    bench.ask(DropOffsets(GROUP_ID, FIRST))
    bench.expire_offsets()
    assert bench.group is None


def test_rebalance_keeps_what_is_pending() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    bench.ask(join("m-1"))
    bench.wait(70_000)
    assert bench.answer(VoteOffsets(GROUP_ID, FIRST)) == OffsetsVoted(True)


def test_group_takes_so_many_transactions_and_no_more_until_one_has_ended() -> None:
    bench = GroupBench(GroupRules(pending_transactions_max=1))
    bench.ask(NOBODYS)
    second = replace(NOBODYS, transaction=SECOND)
    assert code(bench.answer(second)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.answer(replace(NOBODYS, sequence=1)) == OffsetsCommitted((None,))
    bench.ask(DropOffsets(GROUP_ID, FIRST))
    assert bench.answer(second) == OffsetsCommitted((None,))


def test_transaction_has_so_many_offsets_in_a_group_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "PARTITIONS_MAX", 1)
    bench = GroupBench()
    bench.ask(NOBODYS)
    other = replace(NOBODYS, sequence=1, offsets=(replace(FIVE, partition=AUDIT),))
    assert code(bench.answer(other)) is ErrorCode.INVALID_REQUEST
    assert bench.answer(replace(NOBODYS, sequence=1)) == OffsetsCommitted((None,))


def test_describe_shows_what_is_pending() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    answer = bench.answer(DescribeGroup(GROUP_ID))
    assert isinstance(answer, DescribedGroup)
    assert answer.pending_offsets == (PendingOffsets(FIRST.producer_id, FIRST.producer_epoch, 1, bench.now_ms),)
