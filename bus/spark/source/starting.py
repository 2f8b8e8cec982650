"""From what the options say to partitions and offsets, by asking the log once.

Guards one promise: a query begins and ends where its options say, or fails with what was expected and found; an offset
that was not named for a partition is never made up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.source.access import Bounds, LogAccess, TopicFacts
from bus.spark.source.options import Assigned, OptionError, Subscribed, SubscribedPattern, Subscription
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
)


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
                        f"expected a partition of {partition.topic} from 0 to {facts.partition_count - 1}, "
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
    """Where the group has committed nothing, the earliest; but it has somewhere."""
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
