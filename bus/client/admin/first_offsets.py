"""The offsets that a group is given before its first member starts: where, and of which partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from bus.client.admin import offset_targets as targets
from bus.client.arguments import INT_64_MAX, check_integer
from bus.client.values import TopicDescription
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.tables.point_in_time import Bound


def starting_point(
    start: str | None, offsets_of: str | None, timestamp_ms: int | None, at_version: Bound | None
) -> targets.OffsetTarget:
    """The one that is given. Raises `BusError` INVALID_REQUEST for none, and for several."""
    places: dict[str, targets.OffsetTarget] = {"earliest": targets.ToEarliest(), "latest": targets.ToLatest()}
    if start is not None and (not isinstance(start, str) or start not in places):
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected a start of earliest or latest, found {start!r}")
    if timestamp_ms is not None:
        check_integer("timestamp_ms", timestamp_ms, -INT_64_MAX, INT_64_MAX)
    given = [
        target
        for target in (
            None if start is None else places[start],
            None if offsets_of is None else targets.ToGroup(offsets_of),
            None if timestamp_ms is None else targets.ToTimestamp(timestamp_ms),
            None if at_version is None else targets.ToVersion(at_version),
        )
        if target is not None
    ]
    if len(given) != 1:
        raise BusError(
            ErrorCode.INVALID_REQUEST,
            f"expected one of start, offsets_of, timestamp_ms and at_version, found {len(given)}",
        )
    return given[0]


def partitions_to_start(
    topics: Iterable[str | TopicPartition] | None,
    offsets_of: str | None,
    *,
    list_group_offsets: Callable[[str], Collection[TopicPartition]],
    describe_topics: Callable[[Collection[str]], Mapping[str, TopicDescription]],
) -> list[TopicPartition]:
    """Those of `topics`, sorted; without them, those of the other group. Raises `BusError`."""
    if topics is None and offsets_of is None:
        raise BusError(ErrorCode.INVALID_REQUEST, "expected topics, found none")
    if topics is None:
        return sorted(list_group_offsets(offsets_of or ""))
    named = list(topics)
    described = describe_topics([one for one in named if isinstance(one, str)])
    found = {TopicPartition(name, one.partition) for name in described for one in described[name].partitions}
    return sorted(found | {one for one in named if isinstance(one, TopicPartition)})
