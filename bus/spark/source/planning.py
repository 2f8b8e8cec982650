"""The offsets that a query reads next, and how its tasks share them.

Guards two promises: ranges never overlap and leave nothing out, however they are cut; and a limit is shared by
the partitions in proportion to what waits in them, so that none of them starves. Decides only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.errors import count_of
from bus.model import TopicPartition

# An input partition costs Spark tens of milliseconds, as much as reading so many records: smaller ones are not cut.
_PIECE_RECORDS_MIN = 50_000


@dataclass(frozen=True, slots=True)
class Sharing:
    """The numbers by which the tasks of a batch share its offsets. A batch that runs again keeps them, wherever it
    runs: a sink that knows rows by their task and their place in it would else take them for others."""

    cores: int
    min_partitions: int | None = None
    max_records: int | None = None  # of one input partition
    splits: bool = True  # a partition of a topic may be read by several tasks at once: then its order is lost


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets from `begin` up to, but without, `end`."""

    partition: TopicPartition
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def ranges_between(begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Those that are not empty; partitions of `end` that `begin` has not are left out."""
    ranges = (OffsetRange(partition, begin[partition], end[partition]) for partition in sorted(end.keys() & begin))
    return [found for found in ranges if found.size > 0]


def limit_offsets(
    begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Ends that are about `limit` offsets beyond `begin` in all, each partition with its share of what waits, and at
    least one offset where there is any: so it may be more by one for each partition."""
    waiting = {partition: end[partition] - begin[partition] for partition in end}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    return {
        partition: begin[partition] + min(size, max(limit * size // total, 1)) for partition, size in waiting.items()
    }


def pack(ranges: Sequence[OffsetRange], sharing: Sharing) -> list[tuple[OffsetRange, ...]]:
    """Share the ranges among input partitions: as few as keep all cores busy, unless `min_partitions` or `max_records`
    ask for more. None is empty."""
    total = sum(found.size for found in ranges)
    if not total:
        return []
    wanted = max(sharing.min_partitions or 0, min(sharing.cores, -(-total // _PIECE_RECORDS_MIN)), 1)
    if not sharing.splits:
        return _pack_whole(ranges, min(wanted, len(ranges)))
    if sharing.max_records is not None:
        wanted = max(wanted, -(-total // sharing.max_records))
    return _pack_pieces(ranges, total, min(wanted, total))


def _pack_pieces(ranges: Sequence[OffsetRange], total: int, count: int) -> list[tuple[OffsetRange, ...]]:
    """All of one size, but for one record."""
    packed: list[tuple[OffsetRange, ...]] = []
    taken: list[OffsetRange] = []
    room = total // count
    for found in ranges:
        begin = found.begin
        while begin < found.end:
            piece = OffsetRange(found.partition, begin, min(found.end, begin + room))
            taken.append(piece)
            begin, room = piece.end, room - piece.size
            if not room:
                packed.append(tuple(taken))
                taken = []
                room = total * (len(packed) + 1) // count - total * len(packed) // count
    assert not taken, f"{len(packed)} of {count_of(count, 'input')} have not all of {count_of(total, 'record')}"
    return packed


def _pack_whole(ranges: Sequence[OffsetRange], count: int) -> list[tuple[OffsetRange, ...]]:
    """The largest first, each to the task that has least."""
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    for found in sorted(ranges, key=lambda one: (-one.size, one)):
        min(tasks, key=lambda task: sum(one.size for one in task)).append(found)
    return [tuple(sorted(task)) for task in tasks]
