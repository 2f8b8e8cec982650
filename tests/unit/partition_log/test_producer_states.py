from __future__ import annotations

from dataclasses import replace

import pytest

from bus.model import LogBatch, ProducerStamp, TimestampType
from bus.partition_log.producers import RECENT_BATCHES_MAX, ProducerState, ProducerStates, log_append_time_ms
from bus.ports import ProducerProgress
from tests.support.fake_table import log_batch


def place(
    states: ProducerStates, producer_id: int, base_sequence: int, *, epoch: int = 0, version: int = 1, now_ms: int = 0
) -> None:
    batch = log_batch(100 + base_sequence, 1, ProducerStamp(producer_id, epoch, base_sequence))
    states.place(batch, version=version, now_ms=now_ms)


def known(states: ProducerStates, producer_id: int) -> ProducerState:
    state = states.get(producer_id)
    assert state is not None
    return state


def test_what_is_placed_counts_at_once_and_is_gone_after_a_failure() -> None:
    states = ProducerStates()
    place(states, 7, 0)
    states.commit(1)
    place(states, 7, 1, version=2)
    place(states, 8, 0, version=2)
    assert known(states, 7).last_sequence == 1
    assert states.placed_progress() == [ProducerProgress(7, 0, 1), ProducerProgress(8, 0, 0)]
    states.roll_back()
    assert known(states, 7).last_sequence == 0
    assert states.get(8) is None
    assert states.placed_progress() == []


def test_progress_of_a_commit_names_each_producer_once_with_its_end() -> None:
    states = ProducerStates()
    for sequence in range(3):
        place(states, 7, sequence)
    place(states, 7, 0, epoch=1)
    assert states.placed_progress() == [ProducerProgress(7, 1, 0)]


def test_no_more_than_the_last_five_batches_of_an_epoch_are_remembered() -> None:
    states = ProducerStates()
    for sequence in range(8):
        place(states, 7, sequence)
    assert [batch.base_sequence for batch in known(states, 7).recent] == [3, 4, 5, 6, 7]
    assert RECENT_BATCHES_MAX == 5
    place(states, 7, 0, epoch=1)
    assert [batch.base_sequence for batch in known(states, 7).recent] == [0]


def test_batches_that_came_into_another_version_than_foreseen_are_not_remembered() -> None:
    states = ProducerStates()
    place(states, 7, 0, version=1)
    states.commit(3)
    assert known(states, 7).recent == ()
    assert known(states, 7).last_sequence == 0


def test_idle_producers_are_forgotten_in_the_order_of_their_last_append() -> None:
    states = ProducerStates()
    for producer_id, now_ms in ((9, 10), (7, 20), (8, 30), (9, 40)):
        place(states, producer_id, 0 if states.get(producer_id) is None else 1, now_ms=now_ms)
        states.commit(1)
    states.forget(idle_since_ms=30)
    assert states.get(7) is None
    assert known(states, 8).last_sequence == 0
    assert known(states, 9).last_sequence == 1
    assert states.forgotten_max == 7


def test_the_largest_id_ever_forgotten_never_falls() -> None:
    states = ProducerStates()
    place(states, 9, 0, now_ms=10)
    states.commit(1)
    states.forget(idle_since_ms=20)
    place(states, 3, 0, now_ms=30)
    states.commit(2)
    states.forget(idle_since_ms=40)
    assert states.forgotten_max == 9
    states.reload({}, forgotten_max=5)
    assert states.forgotten_max == 9


def test_reloaded_producers_are_in_the_order_of_their_commits() -> None:
    states = ProducerStates()
    states.reload({7: ProducerProgress(7, 0, 4, 200), 8: ProducerProgress(8, 2, 5, 100)}, forgotten_max=-1)
    states.forget(idle_since_ms=150)
    assert states.get(8) is None
    assert (known(states, 7).last_sequence, known(states, 7).recent) == (4, ())


def test_reloading_drops_what_the_log_does_not_say() -> None:
    states = ProducerStates()
    place(states, 7, 0)
    states.commit(1)
    place(states, 8, 0, version=2)
    states.reload({}, forgotten_max=-1)
    assert states.get(7) is states.get(8) is None
    assert len(states) == 0


def test_fence_outlives_reloading_and_ends_with_a_commit_or_when_nobody_used_it() -> None:
    states = ProducerStates()
    states.fence(7, producer_epoch=2, now_ms=10)
    states.fence(8, producer_epoch=3, now_ms=20)
    states.reload({}, forgotten_max=-1)
    assert (states.fence_of(7), states.fence_of(8), states.fence_of(9)) == (2, 3, 0)
    place(states, 8, 0, epoch=3, now_ms=30)
    states.commit(1)
    assert (states.fence_of(8), known(states, 8).producer_epoch) == (0, 3)
    states.forget(idle_since_ms=15)
    assert states.fence_of(7) == 0


def test_epoch_that_falls_is_a_broken_invariant() -> None:
    states = ProducerStates()
    place(states, 7, 0, epoch=2)
    with pytest.raises(AssertionError, match="epoch went from 2 to 1"):
        place(states, 7, 1, epoch=1)


def test_repeat_of_a_batch_with_log_append_time_knows_it() -> None:
    batch: LogBatch = log_batch(0, 1, ProducerStamp(7, 0, 0))
    assert log_append_time_ms(batch) == -1
    appended = replace(batch, timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_ms=5)
    states = ProducerStates()
    states.place(appended, version=1, now_ms=0)
    assert known(states, 7).recent[0].log_append_time_ms == 5
