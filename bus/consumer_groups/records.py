"""The records of `__consumer_offsets`, and their form as keyed rows of that log.

Guards two promises: what was written is what is read back, for ever; and two records have one key exactly if the later
one replaces the earlier one, so that key compaction keeps the state. Rows come from disk, so decoding checks and never
asserts. The key is a JSON text, ["offset", group, topic, partition] or ["group", group].
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.consumer_groups.requests import Assignment
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    group_id: str
    partition: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None  # None: offsets.retention.minutes decides


@dataclass(frozen=True, slots=True)
class OffsetTombstone:
    group_id: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes  # for the group's protocol
    topics: tuple[str, ...]
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class GroupStored:
    """A group as it stands after a rebalance, or when its last member has left."""

    group_id: str
    protocol_type: str
    protocol: str | None  # None: no member
    generation: int
    leader_id: str | None
    state: str  # Stable or Empty
    state_ms: int
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupTombstone:
    group_id: str


GroupRecord = OffsetCommitted | OffsetTombstone | GroupStored | GroupTombstone
