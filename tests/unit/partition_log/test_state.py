from __future__ import annotations

import pytest

from bus.partition_log.state import (
    BatchPlaced,
    CommitFailed,
    CommitSucceeded,
    LogReloaded,
    PartitionState,
    apply,
)

STATE = PartitionState(log_start=2, high_watermark=5, log_end=7, leader_epoch=3, version=2)


def test_commit_moves_the_high_watermark_to_what_was_committed() -> None:
    assert apply(STATE, CommitSucceeded(version=3, high_watermark=7)) == PartitionState(2, 7, 7, 3, 3)


def test_failed_commit_gives_the_offsets_again() -> None:
    assert apply(STATE, CommitFailed()).log_end == 5


@pytest.mark.parametrize(
    "event",
    [
        BatchPlaced(base_offset=6, next_offset=8),
        BatchPlaced(base_offset=7, next_offset=7),
        CommitSucceeded(version=3, high_watermark=4),
        CommitSucceeded(version=3, high_watermark=8),
        CommitSucceeded(version=2, high_watermark=7),
        LogReloaded(log_start=2, high_watermark=4, version=2),
        LogReloaded(log_start=2, high_watermark=5, version=1),
    ],
)
def test_what_would_break_the_order_of_offsets_is_an_assertion(event) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AssertionError):
        apply(STATE, event)


def test_reload_takes_what_the_log_says() -> None:
    assert apply(STATE, LogReloaded(log_start=3, high_watermark=9, version=6)) == PartitionState(3, 9, 9, 3, 6)
