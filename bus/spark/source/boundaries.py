"""The offsets at which a query begins, goes on and ends, partition by partition: from its options, and from what has
become of the log since.

Guards two promises. A query begins and ends where its options say, or fails with what was expected and found; an offset
that was not named for a partition is never made up. And a streaming query passes over nothing silently: records that
are gone before they were read, a log that ends before what was read of it, and a topic that was deleted or made again
are all told, each in words that name the offsets; the caller decides whether the query stops for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bus.errors import BusError, ErrorCode, show_range
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, LogAccess, TopicFacts
from bus.spark.source.planning import OffsetRange
from bus.spark.source.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtGroup,
    AtOffsets,
    AtTime,
    AtTimes,
    AtVersions,
    Edge,
    Position,
    QueryOffsets,
)
from bus.spark.source.source_options import Assigned, OptionError, Subscribed, SubscribedPattern, Subscription


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions that a query reads now, and whose they are."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, str]


def select_known(subscription: Subscription, topics: Mapping[str, TopicFacts]) -> Selection:
    """Without topics and partitions that are not there, or not any more."""
    match subscription:
        case Assigned(partitions):
            known = [found for found in partitions if _is_known(found, topics)]
            return select(Assigned(tuple(known)), topics)
        case Subscribed(wanted):
            return select(Subscribed(tuple(name for name in wanted if name in topics)), topics)
        case SubscribedPattern():
            return select(subscription, topics)


def _is_known(partition: TopicPartition, topics: Mapping[str, TopicFacts]) -> bool:
    return partition.topic in topics and partition.partition < topics[partition.topic].partition_count


def select(subscription: Subscription, topics: Mapping[str, TopicFacts]) -> Selection:
    """Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION."""
    match subscription:
        case Assigned(partitions):
            for partition in partitions:
                facts = _facts(topics, partition.topic)
                if partition.partition >= facts.partition_count:
                    raise _unknown(
                        f"expected a partition of {partition.topic} {show_range(0, facts.partition_count - 1)}, "
                        f"found {partition.partition}"
                    )
            names = sorted({partition.topic for partition in partitions})
        case Subscribed(wanted):
            names = list(wanted)
            partitions = _all_of(names, topics)
        case SubscribedPattern(pattern):
            matching = re.compile(pattern)
            names = sorted(name for name, facts in topics.items() if not facts.is_internal and matching.fullmatch(name))
            partitions = _all_of(names, topics)
    return Selection(tuple(partitions), {name: topics[name].topic_id for name in names})


def _all_of(names: Collection[str], topics: Mapping[str, TopicFacts]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(name, number) for name in names for number in range(_facts(topics, name).partition_count)
    )


def _facts(topics: Mapping[str, TopicFacts], name: str) -> TopicFacts:
    facts = topics.get(name)
    if facts is None:
        known = ", ".join(sorted(known for known, facts in topics.items() if not facts.is_internal)) or "none yet"
        raise _unknown(f"expected a topic, found {name!r}; topics there: {known}")
    return facts


def _unknown(message: str) -> BusError:
    return BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def resolve(
    position: Position,
    bounds: Mapping[TopicPartition, Bounds],
    access: LogAccess,
    *,
    edge: str = "starting",
    is_late_latest: bool = True,
) -> dict[TopicPartition, int]:
    """The offset of each partition of `bounds`. `edge`, starting or ending, is for the messages; `is_late_latest`: a
    time after the last record means the end, instead of an error. Raises `OptionError`."""
    match position:
        case Edge.EARLIEST:
            return {partition: found.begin for partition, found in bounds.items()}
        case Edge.LATEST:
            return {partition: found.end for partition, found in bounds.items()}
        case AtOffsets(offsets):
            _check_same(offsets, bounds, f"{edge}Offsets")
            return {partition: _offset(offsets[partition], found) for partition, found in bounds.items()}
        case AtTime(timestamp_ms):
            times_ms = dict.fromkeys(bounds, timestamp_ms)
            return _at_times(times_ms, bounds, access, f"{edge}Timestamp", is_late_latest)
        case AtTimes(times_ms):
            _check_same(times_ms, bounds, f"{edge}OffsetsByTimestamp")
            return _at_times(times_ms, bounds, access, f"{edge}OffsetsByTimestamp", is_late_latest)
        case AtVersions(versions):
            return _at_versions(versions, bounds, access, f"bus.{edge}Version")
        case AtGroup(group_id):
            return _at_group(group_id, bounds, access)


def _at_group(group_id: str, bounds: Mapping[TopicPartition, Bounds], access: LogAccess) -> dict[TopicPartition, int]:
    """Begin at the offsets of the group, and at the earliest where it has committed none. It must have committed one
    somewhere."""
    committed = access.committed(group_id)
    if not committed.keys() & bounds:
        topics = ", ".join(sorted({partition.topic for partition in bounds}))
        raise OptionError(
            f"bus.startingGroup: expected a group that has committed offsets of {topics}, found {group_id!r}"
        )
    return {partition: committed.get(partition, found.begin) for partition, found in bounds.items()}


def _offset(given: int, bounds: Bounds) -> int:
    return {EARLIEST_OFFSET: bounds.begin, LATEST_OFFSET: bounds.end}.get(given, given)


def _check_same(given: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds], option: str) -> None:
    missing = sorted(bounds.keys() - given)
    more = sorted(given.keys() - bounds.keys())
    if missing or more:
        found = [f"none for {missing[0]}"] if missing else []
        found += [f"one for {more[0]}, which the query does not read"] if more else []
        raise OptionError(f"{option}: expected a number for each partition of the query, found {' and '.join(found)}")


def _at_times(
    times_ms: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    access: LogAccess,
    option: str,
    is_late_latest: bool,
) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for partition, found in access.offsets_at_times(times_ms).items():
        if found is None and not is_late_latest:
            raise OptionError(
                f"{option}: expected a record of {partition} at or after {times_ms[partition]} ms, found none; "
                f"startingOffsetsByTimestampStrategy=latest begins at the end then"
            )
        offsets[partition] = bounds[partition].end if found is None else found
    return offsets


def _at_versions(
    versions: int | Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    access: LogAccess,
    option: str,
) -> dict[TopicPartition, int]:
    if isinstance(versions, int):
        versions = dict.fromkeys(bounds, versions)
    _check_same(versions, bounds, option)
    offsets: dict[TopicPartition, int] = {}
    for partition, found in access.offsets_at_versions(versions).items():
        if found is None:
            raise OptionError(
                f"{option}: expected a version of {partition} that is still kept, found {versions[partition]}"
            )
        offsets[partition] = found
    return offsets


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
    """Return the offsets at which a query that has come to `begun` goes on. A partition that has joined begins with its
    first record."""
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
    """Return the ranges that a batch which was planned from `begun` to `ended` reads now, and its losses. `topic_ids`:
    of all topics of now; `bounds`: of those partitions of `ended` whose topic is still the same."""
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
