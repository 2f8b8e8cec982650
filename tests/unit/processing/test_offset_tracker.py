"""Offsets that may be committed while records end in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.processing.commits import OffsetTracker


def outstanding(tracker: OffsetTracker) -> int:
    """The number of records, or batches, that came and are not done."""
    return len(tracker._open) - len(tracker._done)


def delivered(*offsets: int) -> OffsetTracker:
    tracker = OffsetTracker()
    for offset in offsets:
        tracker.deliver(offset)
    return tracker


def test_nothing_is_committed_before_the_first_record_is_done() -> None:
    tracker = delivered(5, 6)
    tracker.finish(6)
    assert tracker.to_commit is None
    assert tracker.position == 5


def test_a_gap_that_closes_commits_all_behind_it() -> None:
    tracker = delivered(5, 6, 7)
    tracker.finish(7)
    tracker.finish(6)
    tracker.finish(5)
    assert tracker.to_commit == 8
    assert (outstanding(tracker), tracker.span) == (0, 0)


def test_a_batch_is_committed_as_a_whole_and_counts_its_records() -> None:
    tracker = OffsetTracker()
    tracker.deliver(5, 9, 4)
    tracker.deliver(10, 11, 2)
    assert (tracker.last, tracker.span, tracker.position) == (11, 6, 5)
    tracker.finish(10)
    assert (tracker.to_commit, tracker.position) == (None, 5)
    tracker.finish(5)
    assert (tracker.to_commit, tracker.span) == (12, 0)


def test_holes_of_compaction_are_no_gaps() -> None:
    tracker = delivered(5, 900)
    tracker.finish(5)
    assert tracker.to_commit == 6
    tracker.finish(900)
    assert tracker.to_commit == 901


def test_what_is_committed_is_not_committed_again() -> None:
    tracker = delivered(0, 1)
    tracker.finish(0)
    tracker.note_committed(1)
    assert tracker.to_commit is None
    tracker.finish(1)
    assert tracker.to_commit == 2


def test_a_record_is_finished_once() -> None:
    tracker = delivered(0, 1, 2)
    assert [tracker.finish(1), tracker.finish(1)] == [True, False]
    assert [tracker.finish(0), tracker.finish(0), tracker.finish(1)] == [True, False, False]


@given(
    offsets=st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted), data=st.data(), ahead=st.integers(1, 20)
)
def test_what_may_be_committed_is_the_offset_behind_the_finished_beginning(
    offsets: list[int], data: st.DataObject, ahead: int
) -> None:
    """Beside a naive model, records coming while others end."""
    tracker = OffsetTracker()
    done: set[int] = set()
    coming, came = list(offsets), []
    while len(done) < len(offsets):
        if coming and (len(came) - len(done) == 0 or (len(came) < ahead and data.draw(st.booleans()))):
            came.append(coming.pop(0))
            tracker.deliver(came[-1])
        else:
            ended = data.draw(st.sampled_from([offset for offset in came if offset not in done]))
            tracker.finish(ended)
            done.add(ended)
        beginning = []
        for offset in came:
            if offset not in done:
                break
            beginning.append(offset)
        assert tracker.to_commit == (beginning[-1] + 1 if beginning else None)
        assert outstanding(tracker) == len(came) - len(done)


def test_nothing_is_committed_that_passes_a_record_which_is_held() -> None:
    tracker = delivered(5, 6, 7, 8)
    for offset in (5, 6, 7):
        tracker.finish(offset)
    tracker.hold(7)
    tracker.hold(6)
    assert (tracker.to_commit, tracker.position) == (6, 6)
    tracker.note_committed(6)
    tracker.finish(8)
    assert tracker.to_commit is None
