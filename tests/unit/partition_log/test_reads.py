from __future__ import annotations

import pytest

from bus.errors import ErrorCode, Refused
from bus.partition_log.reads import ListedOffset, Readable, SearchTimestamp, decide_fetch, decide_list_offsets
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
