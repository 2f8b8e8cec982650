"""The point in time that a connection looks at: versions and offset bounds of partitions.

A version is time travel on one table; an offset bound hides the records at and after it. Either is one number for every
partition or a number for named ones; a partition that is not named is seen as it is now. The text form is what the
command line takes: `12`, `flights=12`, `flights/0=12`; also `flights:0=12`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.errors import BusError, ErrorCode, show_range
from bus.model import TopicPartition

Bound = int | Mapping[str | TopicPartition, int]

_NAMED = re.compile(r"(?P<topic>[^/:=]+)(?:[/:](?P<partition>\d+))?=(?P<number>\d+)")


def bound_of(bound: Bound | None, partition: TopicPartition) -> int | None:
    """The number for this partition; its own entry counts before its topic's. None: not bounded."""
    if bound is None or isinstance(bound, int):
        return bound
    return bound.get(partition, bound.get(partition.topic))


def check_names(bound: Bound | None, partitions_of: Callable[[str], Sequence[TopicPartition]]) -> None:
    """Raises `BusError` for a partition that is not there, and what `partitions_of` raises for such a topic: a name
    that bounds nothing would show everything."""
    for name in () if bound is None or isinstance(bound, int) else bound:
        topic = name.topic if isinstance(name, TopicPartition) else name
        known = partitions_of(topic)
        if isinstance(name, TopicPartition) and name not in known:
            raise BusError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"expected a partition of {topic} {show_range(0, len(known) - 1)}, found {name.partition}",
            )


def parse_bound(texts: Iterable[str]) -> Bound | None:
    """Raises `ValueError` that says what was expected and what was found."""
    named: dict[str | TopicPartition, int] = {}
    everywhere: int | None = None
    for text in texts:
        if text.isdecimal():
            if everywhere is not None:
                raise ValueError(f"expected one number for all partitions, found {everywhere} and {text}")
            everywhere = int(text)
            continue
        match = _NAMED.fullmatch(text)
        if match is None:
            raise ValueError(f"expected N, TOPIC=N or TOPIC/PARTITION=N, found {text!r}")
        topic, partition = match["topic"], match["partition"]
        named[topic if partition is None else TopicPartition(topic, int(partition))] = int(match["number"])
    if named and everywhere is not None:
        raise ValueError(f"expected either one number or named ones, found {everywhere} beside named ones")
    return named or everywhere


def check_one_moment(**given: object) -> None:
    """Raises `ValueError` if more than one of these says which versions are looked at."""
    found = [name for name, value in given.items() if value is not None]
    if len(found) > 1:
        *others, last = given
        raise ValueError(f"expected {', '.join(others)} or {last}, found {' and '.join(found)}")


def check_bound(bound: Bound | None, what: str) -> None:
    """Raises `ValueError` for a negative number."""
    numbers = [] if bound is None else [bound] if isinstance(bound, int) else list(bound.values())
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"expected {what} to be 0 or more, found {number!r}")
