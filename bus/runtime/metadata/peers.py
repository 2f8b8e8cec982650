"""The port to the other brokers of the cluster, and its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import Refused
from bus.model import BrokerEndpoint
from bus.runtime.replicas.followed_tables import Leaders
from bus.runtime.replicas.in_sync_replicas import Lagging
from bus.runtime.transaction_calls import TransactionPeers


@dataclass(frozen=True, slots=True)
class Registered:
    """`metadata_offset`: up to here the cluster metadata have to be followed to see the registration."""

    broker_epoch: int
    metadata_offset: int


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """`metadata_offset` is one past the last record of the cluster metadata that the broker has applied. The answer
    waits so long, at most, for newer ones."""

    broker_id: int
    broker_epoch: int
    incarnation: str
    metadata_offset: int
    wants_shut_down: bool
    max_wait_ms: int
    used_producer_ids: Sequence[int] = ()  # of names that were used at the broker, see producers.py
    # the lagging replicas of partitions that the broker leads, see in_sync_replicas.py
    lagging: Lagging = field(default_factory=dict)
    wants_fence: bool = False  # it cannot write
    is_unanswered: bool = False  # it has had no answer for a session


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    metadata_offset: int  # the controller's
    should_shut_down: bool  # after `wants_shut_down`: the broker leads nothing, and every broker knows
    lagging: Lagging = field(default_factory=dict)  # the lagging replicas of the whole cluster


class AuditPeers(Protocol):
    async def append_audit(self, leader: BrokerEndpoint, rows: bytes, *, timeout_s: float) -> Refused | None:
        """Rows for the partition of the audit that the broker leads; see `AuditLog.append_rows`."""
        ...


class Peers(Leaders, TransactionPeers, AuditPeers, Protocol):
    """The other brokers of the cluster. NETWORK_EXCEPTION and REQUEST_TIMED_OUT are refusals as any other."""

    def suspect_all(self) -> None:
        """Have later calls use other connections: the network may have forgotten those that are open."""
        ...

    async def identify(
        self, endpoint: BrokerEndpoint, *, timeout_s: float, needs_login: bool
    ) -> BrokerIdentity | Refused:
        """Find out who answers at that address. `needs_login`: also whether this broker can log in there; else it is
        asked without a login where none can be had."""
        ...

    async def register(
        self, controller: BrokerEndpoint, command: RegisterBroker, *, cluster_id: str
    ) -> Registered | Refused: ...

    async def heartbeat(
        self, controller: BrokerEndpoint, heartbeat: BrokerHeartbeat, *, timeout_s: float
    ) -> HeartbeatAnswer | Refused: ...

    async def raise_leader_epoch(self, controller: BrokerEndpoint, command: RaiseLeaderEpoch) -> int | Refused:
        """See `decide_raise_leader_epoch`."""
        ...
