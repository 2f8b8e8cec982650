"""Filters of a batch query as limits of what is read at all.

Guards one promise: limits never exclude a row that the filters let pass. They may let others pass, since Spark applies
the filters once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from bus.model import TopicPartition
from bus.ports import OFFSET_MAX
from bus.spark.source.access import LogAccess
from bus.spark.source.planning import OffsetRange


@dataclass(frozen=True, slots=True)
class RowLimits:
    """None: any."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    begin: int = 0
    end: int = OFFSET_MAX
    from_ms: int | None = None

    def narrow(self, ranges: Sequence[OffsetRange], access: LogAccess) -> list[OffsetRange]:
        """What is left of the ranges."""
        left = [
            replace(found, begin=max(found.begin, self.begin), end=min(found.end, self.end))
            for found in ranges
            if self._has(found.partition)
        ]
        left = [found for found in left if found.size > 0]
        if self.from_ms is None or not left:
            return left
        # Every record before the first one at or after the time is older, no matter what follows it.
        firsts = access.offsets_at_times({found.partition: self.from_ms for found in left})
        left = [replace(found, begin=max(found.begin, _or_end(firsts[found.partition], found))) for found in left]
        return [found for found in left if found.size > 0]

    def _has(self, partition: TopicPartition) -> bool:
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


NO_LIMITS = RowLimits()


def limits_of(filters: Iterable[Filter]) -> RowLimits:
    """Of filters that are all to hold."""
    limits = NO_LIMITS
    for found in filters:
        limits = _limited(limits, found)
    return limits


def _limited(limits: RowLimits, found: Filter) -> RowLimits:
    match found:
        case EqualTo(("topic",), value) | EqualNullSafe(("topic",), value):
            return replace(limits, topics=_both(limits.topics, [value]))
        case In(("topic",), values):
            return replace(limits, topics=_both(limits.topics, values))
        case EqualTo(("partition",), value) | EqualNullSafe(("partition",), value):
            return replace(limits, partitions=_both(limits.partitions, [value]))
        case In(("partition",), values):
            return replace(limits, partitions=_both(limits.partitions, values))
        case EqualTo(("offset",), int(value)) | EqualNullSafe(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value), end=min(limits.end, value + 1))
        case GreaterThan(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value + 1))
        case GreaterThanOrEqual(("offset",), int(value)):
            return replace(limits, begin=max(limits.begin, value))
        case LessThan(("offset",), int(value)):
            return replace(limits, end=min(limits.end, value))
        case LessThanOrEqual(("offset",), int(value)):
            return replace(limits, end=min(limits.end, value + 1))
        case (
            GreaterThan(("timestamp",), datetime() as value)
            | GreaterThanOrEqual(("timestamp",), datetime() as value)
            | EqualTo(("timestamp",), datetime() as value)
        ):
            return replace(limits, from_ms=max(limits.from_ms or 0, _milliseconds(value)))
    return limits


def _both(first: frozenset[Any] | None, second: Collection[Any]) -> frozenset[Any]:
    return frozenset(second) if first is None else first & frozenset(second)


def _milliseconds(at: datetime) -> int:
    """Rounded down."""
    since = at.replace(tzinfo=at.tzinfo or timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _or_end(offset: int | None, found: OffsetRange) -> int:
    return found.end if offset is None else offset
