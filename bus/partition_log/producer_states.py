"""All idempotent producers that a partition knows: what the log says, and what the commit in flight will say.

Guards one promise: what is known of a producer is what the log says. Batches that are placed and not committed yet live
in an overlay, which a commit makes the truth and a failure drops. No clock and no table: both come in as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from bus.model import LogBatch, TimestampType
from bus.partition_log.producers import (
    AppendedBatch,
    ProducerState,
    apply_append,
    apply_progress,
)
from bus.ports import ProducerProgress


@dataclass(frozen=True, slots=True)
class _Fence:
    producer_epoch: int
    raised_ms: int


class ProducerStates:
    """Invariants: the committed states are in the order in which their producers appended last, so that idle ones are
    found without looking at the others; a producer with an id above `forgotten_max` that is not here never wrote."""

    def __init__(self) -> None:
        self._committed: dict[int, ProducerState] = {}
        self._placed: dict[int, ProducerState] = {}
        self._fences: dict[int, _Fence] = {}  # in the order in which they were raised
        self._placed_version = -1
        self.forgotten_max = -1

    @property
    def committed(self) -> Mapping[int, ProducerState]:
        """By producer id, as the log has them."""
        return self._committed

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._placed.get(producer_id) or self._committed.get(producer_id)

    def fence_of(self, producer_id: int) -> int:
        """Lower epochs than this one may not append, even if the log knows none as high."""
        fence = self._fences.get(producer_id)
        return 0 if fence is None else fence.producer_epoch

    def place(self, batch: LogBatch, *, version: int, now_ms: int) -> None:
        """A stamped batch was given its offsets; it is to become a part of `version`, the same for all batches of one
        commit."""
        stamp = batch.producer
        assert stamp is not None, f"batch at offset {batch.base_offset} is of no idempotent producer"
        appended = AppendedBatch(
            stamp.base_sequence, batch.record_count, batch.base_offset, version, log_append_time_ms(batch)
        )
        producer_id = stamp.producer_id
        self._placed[producer_id] = apply_append(self.get(producer_id), appended, stamp.producer_epoch, now_ms)
        self._placed_version = version

    def placed_progress(self) -> Sequence[ProducerProgress]:
        """How far each producer will have come with the commit of what is placed."""
        return [
            ProducerProgress(producer_id, state.producer_epoch, state.last_sequence)
            for producer_id, state in self._placed.items()
        ]

    def commit(self, version: int) -> None:
        """What was placed is in the log. Should that not be the version that it was placed for, its batches are not
        remembered, and the table decides about their repeats."""
        for producer_id, state in self._placed.items():
            self._committed.pop(producer_id, None)
            self._fences.pop(producer_id, None)  # the log has an epoch as high now
            self._committed[producer_id] = state if version == self._placed_version else state._replace(recent=())
        self._placed.clear()

    def roll_back(self) -> None:
        """Nothing of what was placed is in the log: its sequences are expected again."""
        self._placed.clear()

    def reload(self, progress: Mapping[int, ProducerProgress], *, forgotten_max: int) -> None:
        """Take what the log says. Fences stay: they are this leader's own."""
        self.roll_back()
        self._committed.clear()
        for known in sorted(progress.values(), key=lambda known: known.updated_ms):
            self._committed[known.producer_id] = apply_progress(known)
        self.forgotten_max = max(self.forgotten_max, forgotten_max)

    def remember(self, progress: ProducerProgress, *, now_ms: int) -> None:
        """A forgotten producer is back, and the table's rows tell how far it came."""
        assert self.get(progress.producer_id) is None, f"producer {progress.producer_id} was not forgotten"
        self._committed[progress.producer_id] = apply_progress(replace(progress, updated_ms=now_ms))

    def fence(self, producer_id: int, *, producer_epoch: int, now_ms: int) -> None:
        """Refuse lower epochs from now on. Not while something is placed."""
        assert not self._placed, (
            f"producer {producer_id} is fenced while {len(self._placed)} others have batches placed"
        )
        self._fences.pop(producer_id, None)
        self._fences[producer_id] = _Fence(producer_epoch, now_ms)

    def forget(self, *, idle_since_ms: int) -> None:
        """Drop the producers whose last append was before `idle_since_ms`, and fences as old. Their rows stay in the
        table."""
        idle = takewhile(lambda item: item[1].last_append_ms < idle_since_ms, self._committed.items())
        for producer_id, _ in list(idle):
            del self._committed[producer_id]
            self.forgotten_max = max(self.forgotten_max, producer_id)
        unused = takewhile(lambda item: item[1].raised_ms < idle_since_ms, self._fences.items())
        for producer_id, _ in list(unused):
            del self._fences[producer_id]


def log_append_time_ms(batch: LogBatch) -> int:
    """-1 with CreateTime."""
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return batch.timestamp_ms if is_append_time and batch.timestamp_ms is not None else -1
