"""The columns and rows that `bus groups describe` prints of a group: Kafka's columns, and rows made of what a broker
said.

Decides nothing and asks no broker, so that what is shown for which group can be tested without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bus.addresses import format_address
from bus.cli.output import Column, Columns, Kind
from bus.descriptions import BrokerInfo, CommittedOffset, GroupDescription, MemberDescription
from bus.errors import count_of
from bus.model import TopicPartition

Member = tuple[GroupDescription, MemberDescription]
_MEMBER_COLUMNS: Columns[Member] = (
    Column("group", lambda row: row[0].group_id, is_key=True),
    Column("consumer_id", lambda row: row[1].member_id, is_key=True),
    Column("group_instance_id", lambda row: row[1].group_instance_id),
    Column("host", lambda row: row[1].client_host),
    Column("client_id", lambda row: row[1].client_id),
    Column("partitions", lambda row: len(row[1].partitions), Kind.NUMBER, "#PARTITIONS"),
    Column("assignment", lambda row: assignment_text(row[1].partitions) or None),
)
STATE_COLUMNS: Columns[GroupDescription] = (
    Column("group", lambda one: one.group_id, is_key=True),
    Column("coordinator", lambda one: _coordinator_text(one.coordinator), label="COORDINATOR (ID)"),
    Column("assignment_strategy", lambda one: one.protocol or None),
    Column("state", lambda one: one.state),
    Column("members", lambda one: len(one.members), Kind.NUMBER, "#MEMBERS"),
)


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A partition of a group, or a member that owns none."""

    group_id: str
    partition: TopicPartition | None
    current: int | None
    end: int | None
    member: MemberDescription | None


OFFSET_COLUMNS: Columns[OffsetRow] = (
    Column("group", lambda row: row.group_id, is_key=True),
    Column("topic", lambda row: row.partition and row.partition.topic, is_key=True),
    Column("partition", lambda row: row.partition and row.partition.partition, Kind.NUMBER, is_key=True),
    Column("current_offset", lambda row: row.current, Kind.NUMBER),
    Column("log_end_offset", lambda row: row.end, Kind.NUMBER),
    Column("lag", lambda row: None if row.current is None or row.end is None else row.end - row.current, Kind.NUMBER),
    Column("consumer_id", lambda row: row.member and row.member.member_id),
    Column("host", lambda row: row.member and row.member.client_host),
    Column("client_id", lambda row: row.member and row.member.client_id),
)


def member_columns(groups: Iterable[GroupDescription], *, verbose: bool) -> Columns[Member]:
    """The instance ids have a column only if a member has one, as with Kafka's command."""
    has_instances = any(member.group_instance_id is not None for group in groups for member in group.members)
    hidden = {*(() if has_instances else ("group_instance_id",)), *(() if verbose else ("assignment",))}
    return [column for column in _MEMBER_COLUMNS if column.name not in hidden]


def members_of(group: GroupDescription) -> list[MemberDescription]:
    """Those with the most partitions first."""
    return sorted(group.members, key=lambda one: (-len(one.partitions), one.member_id))


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    """`orders:0,1;payments:3`."""
    by_topic: dict[str, list[int]] = {}
    for one in partitions:
        by_topic.setdefault(one.topic, []).append(one.partition)
    return ";".join(f"{topic}:{','.join(map(str, sorted(by_topic[topic])))}" for topic in sorted(by_topic))


def _coordinator_text(broker: BrokerInfo) -> str:
    return f"{format_address(broker.host, broker.port)} ({broker.broker_id})"


def offset_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, int],
) -> Iterator[OffsetRow]:
    """Members with what they own, those with the most first; then what is committed without an owner. A member that
    owns nothing has a row of its own."""

    def row(partition: TopicPartition, member: MemberDescription | None) -> OffsetRow:
        current = committed[partition].offset if partition in committed else None
        return OffsetRow(group.group_id, partition, current, ends.get(partition), member)

    owned: set[TopicPartition] = set()
    for member in members_of(group):
        owned.update(member.partitions)
        yield from (row(partition, member) for partition in member.partitions)
        if not member.partitions:
            yield OffsetRow(group.group_id, None, None, None, member)
    yield from (row(partition, None) for partition in sorted(committed.keys() - owned))


def pending_notes(group: GroupDescription) -> Iterator[str]:
    """Tell what open transactions have committed: the offsets shown are those before them, and consumers wait for
    these."""
    for pending in group.pending_offsets:
        yield (
            f"Consumer group '{group.group_id}' has {count_of(pending.offset_count, 'offset')} pending in the open "
            f"transaction of producer {pending.producer_id}, epoch {pending.producer_epoch}."
        )


def state_warning(group: GroupDescription) -> str | None:
    """Return what Kafka's command says before it shows a group that is not stable."""
    if group.state == "Empty":
        return f"Consumer group '{group.group_id}' has no active members."
    if group.state in ("PreparingRebalance", "CompletingRebalance"):
        return f"Warning: Consumer group '{group.group_id}' is rebalancing."
    return None
