"""What the administrator's client says of consumer groups: small immutable values. Times are milliseconds since the
epoch."""

from __future__ import annotations

from dataclasses import dataclass

from bus.client.values import BrokerInfo
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`protocol_type` is empty for a group of which only offsets are kept."""

    group_id: str
    protocol_type: str
    state: str  # PreparingRebalance, CompletingRebalance, Stable or Empty


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`topics` and `partitions` are known for members of the protocol type "consumer" alone."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]  # that it subscribes to
    partitions: tuple[TopicPartition, ...]  # that it is given, sorted


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol: str  # the assignor; empty while there is no member
    generation: int
    leader_id: str
    coordinator: BrokerInfo
    members: tuple[MemberDescription, ...]

    @property
    def is_active(self) -> bool:
        """It has members, or is waiting for some: only they may commit."""
        return self.state not in ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Of the next record to read. `leader_epoch` of the last record read; -1: not known."""

    offset: int
    metadata: str
    leader_epoch: int
    commit_ms: int
