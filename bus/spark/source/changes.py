"""What has become of the log since a streaming query looked at it: where the query goes on, and what it has lost.

Guards one promise: nothing is passed over silently. Records that are gone before they were read, a log that ends before
what was read of it, and a topic that was deleted or made again are all told, each in words that name the offsets; who
calls decides whether the query stops for them. Decides only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bus.model import TopicPartition
from bus.spark.source.access import Bounds
from bus.spark.source.planning import OffsetRange
from bus.spark.source.positions import QueryOffsets
from bus.spark.source.starting import Selection


@dataclass(frozen=True, slots=True)
class LogNow:
    """The partitions of the query and their bounds, at one moment."""

    selection: Selection
    bounds: Mapping[TopicPartition, Bounds]


@dataclass(frozen=True, slots=True)
class Loss:
    message: str
    offsets: int = 0  # how many; 0 if that cannot be told


@dataclass(frozen=True, slots=True)
class Continuation:
    begin: Mapping[TopicPartition, int]  # log_start <= begin <= end, of every partition of now
    losses: tuple[Loss, ...]


def continue_at(begun: QueryOffsets, now: LogNow) -> Continuation:
    """Where a query that has come to `begun` goes on. A partition that has joined begins with its first record."""
    losses = _topics_lost(begun.topic_ids, now.selection.topic_ids)
    losses += _partitions_lost(begun, now)
    known = _offsets_of_same_topics(begun, now.selection.topic_ids)
    begin: dict[TopicPartition, int] = {}
    for partition, bounds in now.bounds.items():
        came_to = known.get(partition, 0)
        begin[partition] = min(max(came_to, bounds.begin), bounds.end)
        if came_to < bounds.begin:
            losses.append(_gone(partition, came_to, bounds.begin))
        elif came_to > bounds.end:
            losses.append(
                Loss(f"{partition}: expected the log to go on at offset {came_to}, found its end at {bounds.end}")
            )
    return Continuation(begin, tuple(losses))


def ranges_left(
    begun: QueryOffsets, ended: QueryOffsets, topic_ids: Mapping[str, str], bounds: Mapping[TopicPartition, Bounds]
) -> tuple[list[OffsetRange], tuple[Loss, ...]]:
    """What a batch that was planned from `begun` to `ended` reads now, and its losses. `topic_ids`: of all topics of
    now; `bounds`: of those partitions of `ended` whose topic is still the same."""
    losses = _topics_lost(ended.topic_ids, topic_ids)
    known = _offsets_of_same_topics(begun, ended.topic_ids)
    ranges = []
    for partition, found in sorted(bounds.items()):
        begin, end = known.get(partition, 0), ended.offsets[partition]
        if end > found.end:
            losses.append(Loss(f"{partition}: expected records up to offset {end}, found the log's end at {found.end}"))
        if begin < min(found.begin, end):
            losses.append(_gone(partition, begin, min(found.begin, end)))
        left = OffsetRange(partition, max(begin, found.begin), min(end, found.end))
        if left.size > 0:
            ranges.append(left)
    return ranges, tuple(losses)


def same_topics(ended: QueryOffsets, topic_ids: Mapping[str, str]) -> list[TopicPartition]:
    """The partitions of `ended` whose topic is the same one now."""
    return list(_offsets_of_same_topics(ended, topic_ids))


def _gone(partition: TopicPartition, begin: int, log_start: int) -> Loss:
    return Loss(
        f"{partition}: records {begin} to {log_start - 1} were not read and are gone, the log begins at {log_start}",
        log_start - begin,
    )


def _topics_lost(known: Mapping[str, str], now: Mapping[str, str]) -> list[Loss]:
    losses = []
    for topic, topic_id in known.items():
        if topic not in now:
            losses.append(Loss(f"topic {topic} was deleted, or is not subscribed to any more"))
        elif now[topic] != topic_id:
            message = f"topic {topic} was deleted and made again: its id was {topic_id}, and is {now[topic]}"
            losses.append(Loss(message))
    return losses


def _partitions_lost(begun: QueryOffsets, now: LogNow) -> list[Loss]:
    same = same_topics(begun, now.selection.topic_ids)
    return [Loss(f"{partition} is not read any more") for partition in same if partition not in now.bounds]


def _offsets_of_same_topics(found: QueryOffsets, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    same = _same(found.topic_ids, topic_ids)
    return {partition: offset for partition, offset in found.offsets.items() if partition.topic in same}


def _same(first: Mapping[str, str], second: Mapping[str, str]) -> Collection[str]:
    return {topic for topic, topic_id in first.items() if second.get(topic) == topic_id}
