"""What `bus groups describe` prints of a group: Kafka's columns, and rows made of what a broker said.

Decides nothing and asks no broker, so that what is shown for which group can be tested without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bus.addresses import format_address
from bus.cli.output import Column
from bus.descriptions import CommittedOffset, GroupDescription, MemberDescription
from bus.errors import count_of
from bus.model import TopicPartition

OFFSET_COLUMNS = (
    Column("group", is_key=True),
    Column("topic", is_key=True),
    Column("partition", is_number=True, is_key=True),
    Column("current_offset", is_number=True),
    Column("log_end_offset", is_number=True),
    Column("lag", is_number=True),
    Column("consumer_id"),
    Column("host"),
    Column("client_id"),
)
STATE_COLUMNS = (
    Column("group", is_key=True),
    Column("coordinator", "COORDINATOR (ID)"),
    Column("assignment_strategy"),
    Column("state"),
    Column("members", "#MEMBERS", is_number=True),
)
_MEMBER = (Column("group", is_key=True), Column("consumer_id", is_key=True))
_INSTANCE = (Column("group_instance_id"),)
_CLIENT = (Column("host"), Column("client_id"), Column("partitions", "#PARTITIONS", is_number=True))
_ASSIGNMENT = (Column("assignment"),)


def member_columns(groups: Iterable[GroupDescription], *, verbose: bool) -> tuple[Column, ...]:
    """The instance ids have a column only if a member has one, as with Kafka's command."""
    has_instances = any(member.group_instance_id is not None for group in groups for member in group.members)
    return _MEMBER + (_INSTANCE if has_instances else ()) + _CLIENT + (_ASSIGNMENT if verbose else ())


def member_rows(group: GroupDescription, columns: Iterable[Column]) -> Iterator[tuple[Any, ...]]:
    """Those with the most partitions first."""
    for member in sorted(group.members, key=lambda one: (-len(one.partitions), one.member_id)):
        cells = {
            "group": group.group_id,
            "consumer_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "host": member.client_host,
            "client_id": member.client_id,
            "partitions": len(member.partitions),
            "assignment": assignment_text(member.partitions) or None,
        }
        yield tuple(cells[column.name] for column in columns)


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """`orders:0,1;payments:3`."""
    by_topic: dict[str, list[int]] = {}
    for one in partitions:
        by_topic.setdefault(one.topic, []).append(one.partition)
    return ";".join(f"{topic}:{','.join(map(str, sorted(by_topic[topic])))}" for topic in sorted(by_topic))


def offset_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, int],
) -> Iterator[tuple[Any, ...]]:
    """Members with what they own, those with the most first; then what is committed without an owner. A member that
    owns nothing has a row of its own."""
    owned: set[TopicPartition] = set()
    for member in sorted(group.members, key=lambda one: (-len(one.partitions), one.member_id)):
        owned.update(member.partitions)
        for partition in member.partitions:
            yield _offset_row(group.group_id, partition, committed, ends, member)
        if not member.partitions:
            yield (group.group_id, None, None, None, None, None, *_who(member))
    for partition in sorted(committed.keys() - owned):
        yield _offset_row(group.group_id, partition, committed, ends, None)


def _offset_row(
    group_id: str,
    partition: TopicPartition,
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, int],
    member: MemberDescription | None,
) -> tuple[Any, ...]:
    found, end = committed.get(partition), ends.get(partition)
    lag = None if found is None or end is None else end - found.offset
    current = None if found is None else found.offset
    return (group_id, partition.topic, partition.partition, current, end, lag, *_who(member))


def _who(member: MemberDescription | None) -> tuple[Any, ...]:
    return (None, None, None) if member is None else (member.member_id, member.client_host, member.client_id)


def state_row(group: GroupDescription) -> tuple[Any, ...]:
    coordinator = f"{format_address(group.coordinator.host, group.coordinator.port)} ({group.coordinator.broker_id})"
    return (group.group_id, coordinator, group.protocol or None, group.state, len(group.members))


def pending_notes(group: GroupDescription) -> Iterator[str]:
    """What open transactions have committed: the offsets shown are those before them, and consumers wait for these."""
    for pending in group.pending_offsets:
        yield (
            f"Consumer group '{group.group_id}' has {count_of(pending.offset_count, 'offset')} pending in the open "
            f"transaction of producer {pending.producer_id}, epoch {pending.producer_epoch}."
        )


def state_warning(group: GroupDescription) -> str | None:
    """What Kafka's command says before it shows a group that is not stable."""
    if group.state == "Empty":
        return f"Consumer group '{group.group_id}' has no active members."
    if group.state in ("PreparingRebalance", "CompletingRebalance"):
        return f"Warning: Consumer group '{group.group_id}' is rebalancing."
    return None
