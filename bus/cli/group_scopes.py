"""Which partitions a command about a group's offsets is for: `--topic orders`, `--topic orders/0,1`, `--all-topics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from bus.cli.partition_names import parse_partitions
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

if TYPE_CHECKING:
    from bus.client.admin.admin import Admin

Scope = Mapping[str, tuple[int, ...]]  # topic -> its partitions; none: all of them


def parse_scope(texts: Iterable[str]) -> Scope:
    """Raises `click.BadParameter`."""
    scope: dict[str, tuple[int, ...]] = {}
    for text in texts:
        try:
            topic, numbers = parse_partitions(text)
        except ValueError:
            raise click.BadParameter(f"expected TOPIC or TOPIC:0,1,2, found {text!r}", param_hint="--topic") from None
        if topic in scope and not (numbers and scope[topic]):
            numbers = ()  # named once without partitions: all of them
        else:
            numbers += scope.get(topic, ())
        scope[topic] = tuple(sorted(set(numbers)))
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
                    f"expected a partition of {topic} from 0 to {there[-1]}, found {number}",
                )
        found += [TopicPartition(topic, number) for number in wanted or there]
    return sorted(found)


def existing(partitions: Iterable[TopicPartition], admin: Admin) -> list[TopicPartition]:
    """Those of which there is a log; a topic may be gone whose offsets are still committed."""
    counts = {name: len(topic.partitions) for name, topic in admin.describe_topics().items()}
    return sorted(one for one in partitions if one.partition < counts.get(one.topic, 0))
