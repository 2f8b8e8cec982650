"""Offsets of a plan: the requested ones, within what the partition has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from bus.client.admin.offset_targets import (
    OffsetTarget,
    PlannedOffset,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToGiven,
    ToGroup,
    ToLatest,
    ToOffset,
    ToTimestamp,
    ToVersion,
    plan_offsets,
)
from bus.client.connection.leader_calls import AtVersion, OffsetQuestion
from bus.descriptions import CommittedOffset, ListedOffset
from bus.errors import BusError, ErrorCode
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Source:
    """A has the offsets 10 to 20, one a millisecond from 1,000 on; B is empty at 5. Version n left 10 + n."""

    committed: Mapping[str, Mapping[TopicPartition, int]] = {"g": {A: 15}, "other": {A: 12}}

    def list_offsets(self, wanted: Mapping[TopicPartition, OffsetQuestion]) -> dict[TopicPartition, ListedOffset]:
        return {one: ListedOffset(self._offset(one, question), -1, 0, 0) for one, question in wanted.items()}

    def _offset(self, partition: TopicPartition, question: OffsetQuestion) -> int:
        if isinstance(question, AtVersion):
            return 10 + question.version if question.version <= 10 else -1
        if partition == B:
            return 5 if question in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP) else -1
        ends = {EARLIEST_TIMESTAMP: 10, LATEST_TIMESTAMP: 20}
        return ends.get(question, question - 990 if question < 1_010 else -1)

    def list_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        known = self.committed.get(group_id, {})
        return {one: CommittedOffset(known[one], "", -1, 0) for one in partitions or known if one in known}


def plan(target: OffsetTarget, *partitions: TopicPartition) -> dict[TopicPartition, PlannedOffset]:
    return plan_offsets(Source(), "g", partitions, target)


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (ToEarliest(), 10),
        (ToLatest(), 20),
        (ToCurrent(), 15),
        (ToOffset(13), 13),
        (ToOffset(20), 20),
        (ShiftBy(-2), 13),
        (ShiftBy(3), 18),
        (ToTimestamp(1_004), 14),
        (ToVersion(7), 17),
        (ToVersion({"t": 3, A: 4}), 14),
        (ToGroup("other"), 12),
        (ToGiven({A: 11}), 11),
    ],
)
def test_each_target_is_met_without_a_warning(target: OffsetTarget, offset: int) -> None:
    assert plan(target, A) == {A: PlannedOffset(offset)}


@pytest.mark.parametrize(
    ("target", "offset", "found"),
    [
        (ToOffset(3), 10, 3),
        (ToOffset(21), 20, 21),
        (ShiftBy(-100), 10, -85),
        (ShiftBy(6), 20, 21),
    ],
)
def test_an_offset_out_of_range_is_brought_to_the_nearer_end_and_said(
    target: OffsetTarget, offset: int, found: int
) -> None:
    warning = f"t-0: expected an offset from 10 to 20, found {found}"
    assert plan(target, A) == {A: PlannedOffset(offset, warning)}


def test_where_nothing_is_committed_the_current_offset_is_the_end() -> None:
    assert plan(ToCurrent(), B) == {B: PlannedOffset(5, "t-1: nothing is committed")}


def test_where_no_record_is_late_enough_the_end_is_taken() -> None:
    planned = plan(ToTimestamp(2_000), A, B)
    assert [(one.offset, "no record is as late" in (one.warning or "")) for one in planned.values()] == [
        (20, True),
        (5, True),
    ]


def test_what_is_not_committed_cannot_be_shifted() -> None:
    with pytest.raises(BusError, match=r"found none of t-1$") as caught:
        plan(ShiftBy(1), A, B)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_version_that_is_not_there_is_refused_by_partition_and_number() -> None:
    with pytest.raises(BusError, match="t-0: expected a Delta version that is there, found 11"):
        plan(ToVersion(11), A)


@pytest.mark.parametrize("target", [ToGroup("other"), ToVersion({A: 1}), ToGiven({A: 11})])
def test_partitions_that_the_target_tells_nothing_of_are_left_out(target: OffsetTarget) -> None:
    assert list(plan(target, B, A)) == [A]
