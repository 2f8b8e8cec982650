from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.group import GroupRules
from bus.consumer_groups.records import OffsetCommitted, OffsetTombstone, encode_record
from bus.consumer_groups.requests import (
    CommittedOffset,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    OffsetToCommit,
    SyncGroup,
)
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench, join, stable_bench

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 0)
COMMIT = OffsetCommit(GROUP_ID, 1, "m-3", None, (OffsetToCommit(ORDERS, "id", 5, 2, "why"),))
NOBODYS = replace(COMMIT, generation=-1, member_id="")
WEEK_MS = 7 * 24 * 3_600_000


def codes(answer: object) -> list[ErrorCode | None]:
    assert isinstance(answer, (OffsetsCommitted, OffsetsDeleted))
    return [None if refused is None else refused.code for refused in answer.partitions]


def offsets(bench: GroupBench) -> dict[TopicPartition, int]:
    return {} if bench.group is None else {of: stored.offset for of, stored in bench.group.offsets.items()}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(COMMIT, group_id=""), ErrorCode.INVALID_GROUP_ID),
        (replace(COMMIT, member_id="m-9"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(COMMIT, member_id=""), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(COMMIT, group_instance_id="till"), ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(COMMIT, group_instance_id="desk"), ErrorCode.FENCED_INSTANCE_ID),
        (replace(COMMIT, generation=0), ErrorCode.ILLEGAL_GENERATION),
        (replace(COMMIT, generation=2), ErrorCode.ILLEGAL_GENERATION),
        (replace(COMMIT, generation=-1), ErrorCode.ILLEGAL_GENERATION),
        (NOBODYS, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_of_who_may_not_is_refused_as_a_whole(command: OffsetCommit, code: ErrorCode) -> None:
    bench = stable_bench("desk")
    assert isinstance(answer := bench.answer(command), Refused)
    assert answer.code is code
    assert offsets(bench) == {}


@pytest.mark.parametrize("generation", [0, 1])
def test_commit_of_a_generation_of_a_group_that_is_not_there_is_refused(generation: int) -> None:
    bench = GroupBench()
    assert isinstance(answer := bench.answer(replace(COMMIT, generation=generation)), Refused)
    assert answer.code is ErrorCode.ILLEGAL_GENERATION
    assert bench.group is None


def test_commit_between_generations_is_taken_and_before_the_assignment_is_not() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    assert codes(bench.answer(COMMIT)) == [None]
    bench.ask(join("m-3"))
    assert isinstance(answer := bench.answer(replace(COMMIT, generation=2)), Refused)
    assert answer.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_is_a_record_with_all_that_was_said() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    assert tuple(bench.steps[-1].records) == (OffsetCommitted(GROUP_ID, ORDERS, "id", 5, 2, "why", bench.now_ms),)


def test_consumer_without_membership_commits_while_the_group_has_no_members() -> None:
    bench = GroupBench()
    assert codes(bench.answer(NOBODYS)) == [None]
    bench.answer(join())
    assert codes(bench.answer(NOBODYS)) == [None]
    bench.ask(join("m-2"))
    assert isinstance(bench.answer(NOBODYS), Refused)


def test_offset_that_may_not_be_is_refused_alone() -> None:
    bench = GroupBench(GroupRules(offset_metadata_max_bytes=4))
    answer = bench.answer(
        replace(
            NOBODYS,
            offsets=(
                OffsetToCommit(ORDERS, "id", 5, metadata="abcde"),
                OffsetToCommit(TopicPartition("orders", 1), "id", 6, metadata="abcd"),
                OffsetToCommit(TopicPartition("orders", 2), "id", 7, metadata="äöü"),
                OffsetToCommit(TopicPartition("orders", 3), "id", -1),
                OffsetToCommit(TopicPartition("orders", 4), "id", 0),
            ),
        )
    )
    assert codes(answer) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        None,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_REQUEST,
        None,
    ]
    assert offsets(bench) == {TopicPartition("orders", 1): 6, TopicPartition("orders", 4): 0}


def test_partition_that_is_committed_twice_at_once_has_the_last_offset() -> None:
    bench = GroupBench()
    bench.ask(replace(NOBODYS, offsets=(OffsetToCommit(ORDERS, "id", 5), OffsetToCommit(ORDERS, "id", 3))))
    assert offsets(bench) == {ORDERS: 3}


def test_nothing_that_is_taken_begins_no_group() -> None:
    bench = GroupBench()
    bench.ask(replace(NOBODYS, offsets=(OffsetToCommit(ORDERS, "id", -5),)))
    assert bench.group is None


def test_fetch_tells_all_that_was_committed_and_minus_one_for_the_rest() -> None:
    bench = stable_bench()
    bench.ask(COMMIT)
    committed = CommittedOffset(ORDERS, "id", 5, 2, "why", bench.now_ms)
    none = CommittedOffset(AUDIT, "", -1, -1, "", -1)
    assert bench.answer(OffsetFetch(GROUP_ID, (AUDIT, ORDERS))) == OffsetsFetched((none, committed))
    assert bench.answer(OffsetFetch(GROUP_ID, None)) == OffsetsFetched((committed,))
    assert GroupBench().answer(OffsetFetch(GROUP_ID, (AUDIT,))) == OffsetsFetched((none,))
    assert GroupBench().answer(OffsetFetch(GROUP_ID, None)) == OffsetsFetched(())


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [
        ("m-9", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m-3", 2, ErrorCode.ILLEGAL_GENERATION),
        ("m-3", 1, None),
        ("m-3", -1, None),
        ("", 9, None),
    ],
)
def test_member_that_names_itself_with_a_fetch_is_checked(
    member_id: str, generation: int, code: ErrorCode | None
) -> None:
    answer = stable_bench().answer(OffsetFetch(GROUP_ID, None, member_id, generation))
    assert (answer.code if isinstance(answer, Refused) else None) is code


def test_fetch_without_a_group_id_is_refused() -> None:
    assert isinstance(answer := GroupBench().answer(OffsetFetch("", None)), Refused)
    assert answer.code is ErrorCode.INVALID_GROUP_ID


def test_offsets_of_topics_in_use_are_not_deleted() -> None:
    bench = stable_bench()
    bench.ask(replace(COMMIT, offsets=(OffsetToCommit(ORDERS, "id", 5), OffsetToCommit(AUDIT, "id", 6))))
    answer = bench.answer(OffsetDelete(GROUP_ID, (ORDERS, AUDIT, TopicPartition("audit", 9), AUDIT)))
    assert codes(answer) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, None, None, None]
    assert tuple(bench.steps[-1].records) == (OffsetTombstone(GROUP_ID, AUDIT),)
    assert offsets(bench) == {ORDERS: 5}


def test_what_an_active_group_of_another_protocol_type_uses_is_not_known() -> None:
    bench = GroupBench()
    bench.ask(join(group_instance_id="desk", protocol_type="connect"))
    assert isinstance(answer := bench.answer(OffsetDelete(GROUP_ID, (ORDERS,))), Refused)
    assert answer.code is ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize("group_id", ["", GROUP_ID])
def test_offsets_of_no_group_are_not_deleted(group_id: str) -> None:
    expected = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
    assert isinstance(answer := GroupBench().answer(OffsetDelete(group_id, (ORDERS,))), Refused)
    assert answer.code is expected


def test_deleted_topic_takes_its_offsets_and_not_those_of_its_successor() -> None:
    bench = GroupBench()
    successor = TopicPartition("orders", 1)
    bench.ask(
        replace(
            NOBODYS,
            offsets=(
                OffsetToCommit(ORDERS, "id", 5),
                OffsetToCommit(successor, "next-id", 6),
                OffsetToCommit(AUDIT, "id", 7),
            ),
        )
    )
    bench.delete_topic("orders", "id")
    assert offsets(bench) == {successor: 6, AUDIT: 7}
    assert tuple(bench.steps[-1].records) == (OffsetTombstone(GROUP_ID, ORDERS),)


# ---------------------------------------------------------------- expiry


def emptied_bench() -> GroupBench:
    bench = stable_bench()
    bench.ask(COMMIT)
    bench.wait(1_000)
    bench.ask(LeaveGroup(GROUP_ID, (LeavingMember("m-1"), LeavingMember("m-3"))))
    return bench


def test_offsets_of_an_empty_group_expire_after_the_retention_since_it_is_empty() -> None:
    bench = emptied_bench()
    bench.wait(WEEK_MS - 1)
    bench.expire_offsets()
    assert offsets(bench) == {ORDERS: 5}
    bench.wait(1)
    bench.expire_offsets()
    assert bench.group is None


def test_empty_group_without_offsets_goes_but_not_while_somebody_comes() -> None:
    bench = stable_bench()
    bench.ask(LeaveGroup(GROUP_ID, (LeavingMember("m-1"), LeavingMember("m-3"))))
    bench.answer(join())
    bench.expire_offsets()
    assert bench.group is not None
    bench.wait(10_000)
    bench.expire_offsets()
    assert bench.group is None


def test_offset_with_a_time_of_its_own_expires_then() -> None:
    bench = GroupBench()
    stored = OffsetCommitted(GROUP_ID, ORDERS, "id", 5, -1, "", bench.now_ms, bench.now_ms + 500)
    later = replace(stored, partition=AUDIT, expire_ms=bench.now_ms + 2 * WEEK_MS)
    bench.rows = [encode_record(stored), encode_record(later)]
    bench.records = [stored, later]
    bench.logged = bench.loaded()
    bench.crash()
    bench.wait(499)
    bench.expire_offsets()
    assert offsets(bench) == {ORDERS: 5, AUDIT: 5}
    bench.wait(1)
    bench.expire_offsets()
    assert offsets(bench) == {AUDIT: 5}
    bench.wait(WEEK_MS)
    bench.expire_offsets()
    assert offsets(bench) == {AUDIT: 5}


def test_offsets_of_topics_that_a_stable_group_does_not_use_expire_by_their_age() -> None:
    bench = stable_bench()
    bench.ask(replace(COMMIT, offsets=(OffsetToCommit(ORDERS, "id", 5), OffsetToCommit(AUDIT, "id", 6))))
    bench.now_ms += WEEK_MS - 1
    bench.expire_offsets()
    assert offsets(bench) == {ORDERS: 5, AUDIT: 6}
    bench.now_ms += 1
    bench.expire_offsets()
    assert offsets(bench) == {ORDERS: 5}


def test_nothing_expires_during_a_rebalance() -> None:
    bench = stable_bench()
    bench.ask(replace(COMMIT, offsets=(OffsetToCommit(AUDIT, "id", 6),)))
    bench.ask(join("m-1"))
    bench.now_ms += WEEK_MS
    bench.expire_offsets()
    assert offsets(bench) == {AUDIT: 6}
    bench.ask(join("m-3"))
    bench.expire_offsets()
    assert offsets(bench) == {AUDIT: 6}
    bench.ask(SyncGroup(GROUP_ID, 2, "m-1", None, None, None))
    bench.expire_offsets()
    assert offsets(bench) == {}


def test_nothing_of_an_active_group_of_another_protocol_type_expires() -> None:
    bench = GroupBench()
    bench.ask(NOBODYS)
    bench.ask(join(group_instance_id="desk", protocol_type="connect", session_timeout_ms=1_800_000))
    bench.wait(3_000)
    bench.ask(SyncGroup(GROUP_ID, 1, "m-2", "desk", None, None))
    bench.now_ms += WEEK_MS
    bench.expire_offsets()
    assert offsets(bench) == {ORDERS: 5}
