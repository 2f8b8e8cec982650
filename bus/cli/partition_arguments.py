"""Partitions as arguments of commands: `orders`, `orders/0`, `orders/0,2`; `orders:0,2`, as Kafka's tools have it, too.

The same wherever a command takes partitions: topics to produce and consume, the scope of a command about a group's
offsets (`--topic orders/0,1`, `--all-topics`), the target of `bus log`. No name of a topic has a slash or a colon.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from bus.cli.failures import Failure
from bus.cli.options import complete_topics
from bus.errors import BusError, ErrorCode, show_range
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition

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
    return click.argument("target", metavar="TOPIC[/PARTITION]", required=is_required, shell_complete=complete_topics)


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
