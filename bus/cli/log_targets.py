"""Which partitions a `bus log` command is about, and the store that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from bus.cli.failures import Failure
from bus.cli.options import complete_topics
from bus.cli.partition_names import parse_partitions
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from bus.storage_delta.stores.store import ObjectStore


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
        raise Failure(f"expected a partition of {target.topic} from 0 to {len(found) - 1}, found {target.partition}")
    return {chosen: found[chosen]}
