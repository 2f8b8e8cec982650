"""Partitions as arguments of commands: `orders`, `orders/0`, `orders/0,2`; `orders:0,2`, as Kafka's tools have it, too.

The same wherever a command takes partitions: topics to produce and consume, the scope of a command about a group's
offsets (`--topic orders/0,1`, `--all-topics`), the target of `bus log`. No name of a topic has a slash or a colon.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from bus.cli.failures import Failure
from bus.cli.options import complete_topics
from bus.errors import BusError, ErrorCode, show_range
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.records.epoch import epoch_ms

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin
    from bus.storage_delta.stores.store import ObjectStore


_NAME = re.compile(r"(?P<topic>[^/:]+)(?:[/:](?P<partitions>[0-9]{1,9}(?:,[0-9]{1,9})*))?")


def parse_partitions(text: str) -> tuple[str, tuple[int, ...]]:
    """The topic and its partitions, sorted; none: all of them. Raises ValueError that says what was expected."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"expected TOPIC or TOPIC/0 or TOPIC/0,2, found {text!r}")
    numbers = (match["partitions"] or "").split(",")
    return match["topic"], tuple(sorted({int(number) for number in numbers if number}))


Scope = Mapping[str, tuple[int, ...]]  # topic -> its partitions, sorted; none: all of them
TOPIC_OPTION = "--topic"


def parse_scope(texts: Iterable[str], *, partitions: Sequence[int] = (), given_as: str = "TOPIC") -> Scope:
    """Each topic with its own partitions, or else with `partitions`. One that is named without any, and once with some,
    has all. `given_as`: the argument or option that has the texts. Raises `click.BadParameter`."""
    scope: dict[str, tuple[int, ...]] = {}
    for text in texts:
        try:
            topic, own = parse_partitions(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=given_as) from None
        numbers = own or tuple(partitions)
        before = scope.get(topic, numbers)
        scope[topic] = tuple(sorted({*before, *numbers})) if before and numbers else ()
    return scope


def scope_of(partitions: Iterable[TopicPartition]) -> Scope:
    found: dict[str, tuple[int, ...]] = {}
    for one in partitions:
        found[one.topic] = (*found.get(one.topic, ()), one.partition)
    return found


def partitions_in(scope: Scope, admin: Admin) -> list[TopicPartition]:
    """Sorted. Raises `BusError` for a topic or partition that is not there."""
    described = admin.describe_topics(list(scope))
    found = []
    for topic, wanted in scope.items():
        there = [one.partition for one in described[topic].partitions]
        for number in wanted:
            if number not in there:
                raise BusError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"expected a partition of {topic} {show_range(0, there[-1])}, found {number}",
                )
        found += [TopicPartition(topic, number) for number in wanted or there]
    return sorted(found)


def existing(partitions: Iterable[TopicPartition], admin: Admin) -> list[TopicPartition]:
    """Those of which there is a log; a topic may be gone whose offsets are still committed."""
    counts = {name: len(topic.partitions) for name, topic in admin.describe_topics().items()}
    return sorted(one for one in partitions if one.partition < counts.get(one.topic, 0))


class Target:
    """`TOPIC` or `TOPIC/PARTITION`."""

    def __init__(self, text: str) -> None:
        try:
            self.topic, numbers = parse_partitions(text)
        except ValueError:
            numbers = (0, 0)
        if len(numbers) > 1:
            raise click.BadParameter(f"expected TOPIC or TOPIC/PARTITION, found {text!r}")
        self.partition = numbers[0] if numbers else None


def target_argument(*, is_required: bool = True) -> Callable[[Any], Any]:
    metavar = "TOPIC[/PARTITION]" if is_required else "[TOPIC[/PARTITION]]"
    return click.argument("target", metavar=metavar, required=is_required, shell_complete=complete_topics)


def open_store(root: str) -> ObjectStore:
    """The root as a store to read. Raises `RootNotUsable`."""
    from bus.storage_delta.stores.local import LocalStore
    from bus.tables.topics import check_root

    return LocalStore(str(check_root(root)))


def partitions_of(store: ObjectStore, target: Target) -> dict[TopicPartition, str | None]:
    """The partitions that are meant, each with its topic id as far as it is known. Raises `Failure`."""
    from bus.storage_delta.repair.metadata_mending import load_cluster

    if target.topic == CLUSTER_METADATA_TOPIC:
        found: dict[TopicPartition, str | None] = {TopicPartition(CLUSTER_METADATA_TOPIC, 0): None}
    else:
        topics = load_cluster(store).topics
        topic = topics.get(target.topic)
        if topic is None:
            known = ", ".join(sorted(topics)) or "none yet"
            raise Failure(f"expected a topic of {store.url}, found {target.topic!r}; topics there: {known}")
        found = {TopicPartition(topic.name, number): topic.topic_id for number in range(len(topic.partitions))}
    if target.partition is None:
        return found
    chosen = TopicPartition(target.topic, target.partition)
    if chosen not in found:
        raise Failure(
            f"expected a partition of {target.topic} {show_range(0, len(found) - 1)}, found {target.partition}"
        )
    return {chosen: found[chosen]}


# Places in a partition as people write them: `beginning`, `end`, `1500`, `-10`, `2013-01-01T12:00`,
# `@1357041600000`, `@-1h`.
#
# Parsing only; where a place is in a partition, the broker says.


class Place(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"  # so many records before the end
    TIMESTAMP = "timestamp"
    MAX_TIMESTAMP = "max"


@dataclass(frozen=True, slots=True)
class Position:
    """`number`: the offset, the count, or milliseconds since the epoch; 0 for the other places."""

    place: Place
    number: int = 0


_AGO = re.compile("@-" + "".join(f"([0-9]{{1,9}}{unit})?" for unit in "wdhms"), re.ASCII)
_UNITS_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
_NAMES = {
    "beginning": Place.BEGINNING,
    "earliest": Place.BEGINNING,
    "start": Place.BEGINNING,
    "end": Place.END,
    "latest": Place.END,
}


def parse_position(text: str) -> Position:
    """Raises ValueError that says what was expected."""
    if text.lower() in _NAMES:
        return Position(_NAMES[text.lower()])
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        return Position(Place.OFFSET, int(text))
    if re.fullmatch(r"-[0-9]{1,18}", text, re.ASCII):
        return Position(Place.LAST, -int(text))
    timestamp_ms = parse_timestamp_ms(text)
    if timestamp_ms is None:
        raise ValueError(
            f"expected beginning, end, an offset, -N for the last N, a time like 2013-01-31T12:00, @-1h "
            f"or @MILLISECONDS, found {text!r}"
        )
    return Position(Place.TIMESTAMP, timestamp_ms)


def parse_time(text: str) -> Position:
    """Read what `bus offsets --time` takes. Raises ValueError that says what was expected."""
    if text.lower() == "max":
        return Position(Place.MAX_TIMESTAMP)
    if text.lower() in _NAMES:
        return Position(_NAMES[text.lower()])
    timestamp_ms = parse_timestamp_ms(text)
    if timestamp_ms is None:
        raise ValueError(
            f"expected earliest, latest, max, a time like 2013-01-31T12:00, @-1h or @MILLISECONDS, found {text!r}"
        )
    return Position(Place.TIMESTAMP, timestamp_ms)


def parse_timestamp_ms(text: str) -> int | None:
    """`@` and milliseconds since the epoch, `@-` and how long ago (`@-90s`, `@-1h30m`, `@-2d`), or ISO 8601, in UTC
    unless it says otherwise. None if it is none of them."""
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII):
        return int(text[1:])
    ago = _AGO.fullmatch(text)
    if ago is not None and len(text) > 2:
        ago_ms = sum(int(count[:-1]) * unit for count, unit in zip(ago.groups(), _UNITS_MS, strict=True) if count)
        return max(0, time.time_ns() // 1_000_000 - ago_ms)
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return None
    timestamp_ms = epoch_ms(moment)
    return timestamp_ms if timestamp_ms >= 0 else None


class TimestampType(click.ParamType[int]):
    name = "timestamp"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        timestamp_ms = parse_timestamp_ms(str(value))
        if timestamp_ms is None:
            self.fail(f"expected a time like 2013-01-31T12:00, @-1h or @MILLISECONDS, found {value!r}", param, ctx)
        return timestamp_ms


class PositionType(click.ParamType[Position]):
    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(click.ParamType[Position]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_time(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
