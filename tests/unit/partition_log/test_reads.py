from __future__ import annotations

from collections.abc import Callable

import pytest

from bus.errors import ErrorCode, Refused
from bus.partition_log.reads import (
    ListedOffset,
    NotYet,
    Readable,
    SearchTimestamp,
    decide_fetch,
    decide_follower_fetch,
    decide_list_offsets,
)
from bus.partition_log.state import PartitionState

STATE = PartitionState(log_start=2, high_watermark=5, log_end=7, leader_epoch=3, version=2)


@pytest.mark.parametrize(
    ("offset", "readable"),
    [(2, Readable(2, 5)), (4, Readable(4, 5)), (5, Readable(5, 5)), (6, Readable(6, 6)), (7, Readable(7, 7))],
)
def test_nothing_beyond_the_high_watermark_is_readable(offset: int, readable: Readable) -> None:
    assert decide_fetch(STATE, offset, None) == readable


@pytest.mark.parametrize("offset", [-1, 1, 8])
def test_offsets_outside_the_log_are_out_of_range(offset: int) -> None:
    refusal = decide_fetch(STATE, offset, None)
    assert isinstance(refusal, Refused)
    assert refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert f"found {offset}" in refusal.message


def test_stale_epoch_is_fenced_before_the_offset_is_checked() -> None:
    refusal = decide_fetch(STATE, 100, 2)
    assert isinstance(refusal, Refused)
    assert refusal.code is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("decide", [decide_fetch, decide_follower_fetch])
def test_reader_that_was_told_of_a_later_version_is_told_of_no_earlier_one(decide: Callable[..., object]) -> None:
    assert decide(STATE, 4, None, 2) == Readable(4, 5)
    for offset in (0, 4, 100):  # what is out of range here need not be there
        behind = decide(STATE, offset, None, 3)
        assert isinstance(behind, NotYet)
        assert behind.refused.code is ErrorCode.OFFSET_NOT_AVAILABLE
        assert "version 3" in behind.refused.message
        assert "version 2" in behind.refused.message


@pytest.mark.parametrize(("offset", "readable"), [(2, Readable(2, 5)), (5, Readable(5, 5))])
def test_follower_gives_what_lies_below_its_high_watermark(offset: int, readable: Readable) -> None:
    assert decide_follower_fetch(STATE, offset, 3, None) == readable


@pytest.mark.parametrize("offset", [6, 7, 8, 1_000])
def test_follower_cannot_tell_that_an_offset_beyond_its_high_watermark_is_out_of_range(offset: int) -> None:
    behind = decide_follower_fetch(STATE, offset, None, None)
    assert isinstance(behind, NotYet)
    assert behind.refused.code is ErrorCode.OFFSET_NOT_AVAILABLE


def test_follower_refuses_an_offset_below_the_log_start_and_another_leader_epoch() -> None:
    for offset, epoch, code in (
        (1, 3, ErrorCode.OFFSET_OUT_OF_RANGE),
        (4, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        refusal = decide_follower_fetch(STATE, offset, epoch, None)
        assert isinstance(refusal, Refused)
        assert refusal.code is code


@pytest.mark.parametrize(
    ("timestamp_ms", "answer"),
    [
        (-1, ListedOffset(5, -1, 3)),
        (-2, ListedOffset(2, -1, 3)),
        (-3, SearchTimestamp(None)),
        (0, SearchTimestamp(0)),
        (77, SearchTimestamp(77)),
    ],
)
def test_special_timestamps_are_answered_from_memory(timestamp_ms: int, answer: object) -> None:
    assert decide_list_offsets(STATE, timestamp_ms, None) == answer


def test_other_negative_timestamps_are_refused() -> None:
    refusal = decide_list_offsets(STATE, -4, None)
    assert isinstance(refusal, Refused)
    assert refusal.code is ErrorCode.INVALID_REQUEST
