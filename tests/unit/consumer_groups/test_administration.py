from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.decisions import list_group
from bus.consumer_groups.group import MemberIdsForgotten
from bus.consumer_groups.records import GroupTombstone, OffsetTombstone
from bus.consumer_groups.requests import (
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    GroupDeleted,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetToCommit,
)
from bus.descriptions import GroupListing, MemberDescription
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench, join, stable_bench

ORDERS = TopicPartition("orders", 0)
NOBODYS = OffsetCommit(GROUP_ID, -1, "", None, (OffsetToCommit(ORDERS, "id", 5),))
ALL_LEAVE = LeaveGroup(GROUP_ID, (LeavingMember("m-1"), LeavingMember("m-3")))


@pytest.mark.parametrize("kind", [DescribeGroup, DeleteGroup])
@pytest.mark.parametrize(
    ("group_id", "code"), [("", ErrorCode.INVALID_GROUP_ID), (GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_no_group_is_neither_described_nor_deleted(
    kind: type[DescribeGroup] | type[DeleteGroup], group_id: str, code: ErrorCode
) -> None:
    assert isinstance(answer := GroupBench().answer(kind(group_id)), Refused)
    assert answer.code is code


def test_stable_group_is_described_with_what_its_members_said_and_have() -> None:
    members = [
        MemberDescription(
            name, None, "client", "/127.0.0.1", 10_000, 60_000, ("orders",), (given,), b"of orders", name.encode()
        )
        for name, given in (("m-1", ORDERS), ("m-3", TopicPartition("orders", 1)))
    ]
    expected = DescribedGroup(GROUP_ID, "Stable", "consumer", "range", 1, "m-1", members)
    answer = stable_bench().answer(DescribeGroup(GROUP_ID))
    assert isinstance(answer, DescribedGroup)
    assert replace(answer, members=list(answer.members)) == expected


def test_protocol_is_not_told_during_a_rebalance() -> None:
    bench = stable_bench()
    bench.ask(join("m-1"))
    answer = bench.answer(DescribeGroup(GROUP_ID))
    assert isinstance(answer, DescribedGroup)
    assert (answer.state, answer.protocol, next(iter(answer.members)).metadata) == ("PreparingRebalance", "", b"")


def test_groups_are_listed_by_protocol_type_and_state() -> None:
    bench = GroupBench()
    bench.ask(NOBODYS)
    assert bench.group is not None
    assert list_group(bench.group) == GroupListing(GROUP_ID, "", "Empty")
    stable = stable_bench().group
    assert stable is not None
    assert list_group(stable) == GroupListing(GROUP_ID, "consumer", "Stable")


def test_group_with_members_is_not_deleted() -> None:
    bench = stable_bench()
    for _ in range(2):
        assert isinstance(answer := bench.answer(DeleteGroup(GROUP_ID)), Refused)
        assert answer.code is ErrorCode.NON_EMPTY_GROUP
        bench.ask(join("m-1"))


def test_group_is_deleted_with_its_offsets_and_who_comes_late_is_unknown() -> None:
    bench = stable_bench()
    bench.ask(replace(NOBODYS, generation=1, member_id="m-1"))
    bench.ask(ALL_LEAVE)
    bench.answer(join())
    pending = f"m-{bench.last_request_id}"
    assert bench.answer(DeleteGroup(GROUP_ID)) == GroupDeleted()
    assert bench.group is None
    assert tuple(bench.steps[-1].records) == (OffsetTombstone(GROUP_ID, ORDERS), GroupTombstone(GROUP_ID))
    refused = getattr(bench.answer(join(pending)), "refused", None)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_that_never_had_members_has_no_record_of_its_own_to_delete() -> None:
    bench = GroupBench()
    bench.ask(NOBODYS)
    bench.ask(DeleteGroup(GROUP_ID))
    assert tuple(bench.steps[-1].records) == (OffsetTombstone(GROUP_ID, ORDERS),)


def test_end_of_a_group_forgets_all_ids_that_were_given_at_once_and_giving_one_copies_no_others() -> None:
    bench = GroupBench()
    for _ in range(600):
        bench.answer(join())
    assert bench.group is not None
    settled = bench.group.pending_members._settled
    bench.answer(join())
    assert bench.group.pending_members._settled is settled
    assert bench.answer(DeleteGroup(GROUP_ID)) == GroupDeleted()
    assert [type(change) for change in bench.steps[-1].changes] == [MemberIdsForgotten]
    assert bench.group is None
