"""The port to the other brokers of the cluster, and its values: those of transactions, then those of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.errors import Refused
from bus.model import BrokerEndpoint
from bus.runtime.replicas.followed_tables import Leaders
from bus.runtime.replicas.in_sync_replicas import Lagging
from bus.transactions.requests import Added, AddOffsets, AddPartitions
from bus.transactions.state import NO_SEQUENCE, ProducerIdentity, TransactionGroup, TransactionPartition

TransactionAddition = AddPartitions | AddOffsets


class StepKind(Enum):
    """The steps that a coordinator requests from the participants."""

    VOTE = "vote"  # count what is staged for the transaction
    COMMIT = "commit"  # the vote that decides: put it in the log if all is there, else refuse it for ever
    APPLY = "apply"  # it is committed
    DROP = "drop"  # it is aborted, or nothing of it counts here
    RESOLVE = "resolve"  # is it, or a later one, in the log? If not, refuse it for ever


@dataclass(frozen=True, slots=True)
class StepRequest:
    """About partitions and groups that one broker leads. Of a partition with the last sequence: of VOTE and COMMIT, the
    one that the producer was answered for; else the last one to apply."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int  # the epoch in the rows
    coordinator_partition: int
    partitions: Sequence[tuple[TransactionPartition, int]]
    groups: Sequence[TransactionGroup]
    heeds_marks: bool = True  # the coordinator reads `Stepped.number` of a vote; those of older versions do not


@dataclass(frozen=True, slots=True)
class Stepped:
    """A partition or group has done it. `last_sequence`: the vote of a partition; `has_pending`: that of a group.
    `version` and `base_offset`: where the rows are, after APPLY and COMMIT; a version of -1 after COMMIT: the
    transaction is refused for ever, since only all up to `last_sequence` is there. After RESOLVE `number` is that of
    the last transaction that is there, with its rows; if it is below that of the request, that is refused for ever.
    After VOTE and COMMIT `number` is that of a mark that an earlier life of the id has left at or above the number of
    the request, which therefore cannot be committed."""

    last_sequence: int = NO_SEQUENCE
    version: int = -1
    base_offset: int = -1
    has_pending: bool = False
    number: int = -1


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answers in the order of the request."""

    partitions: Sequence[Stepped | Refused]
    groups: Sequence[Stepped | Refused]


@dataclass(frozen=True, slots=True)
class Traces:
    """Traces of transactions in partitions: staged rows, and proofs of transactional ids. As an answer: those of them
    that may still be needed; and `ended`, the rows whose transaction is known to have ended, so that none of them can
    be needed again, however young they are. Of others nothing is known."""

    rows: frozenset[ProducerIdentity] = frozenset()
    transactional_ids: frozenset[str] = frozenset()
    ended: frozenset[ProducerIdentity] = frozenset()


@dataclass(frozen=True, slots=True)
class TakenProducerId:
    """`metadata_offset`: up to here the cluster metadata have to be followed to know of it."""

    producer_id: int
    metadata_offset: int


class TransactionPeers(Protocol):
    """The other brokers, as far as transactions need them. NETWORK_EXCEPTION and REQUEST_TIMED_OUT are refusals as any
    other. All calls may be repeated."""

    async def add_to_transaction(
        self, coordinator: BrokerEndpoint, addition: TransactionAddition, *, timeout_s: float
    ) -> Added | Refused: ...

    async def step_transaction(
        self, leader: BrokerEndpoint, kind: StepKind, request: StepRequest, *, timeout_s: float
    ) -> StepAnswer | Refused: ...

    async def find_needed(
        self, coordinator: BrokerEndpoint, coordinator_partition: int, traces: Traces, *, timeout_s: float
    ) -> Traces | Refused:
        """Return the rows of `traces` whose transactions are not yet carried out everywhere, and the ids that the
        coordinator knows. Refused unless it has loaded all transactions of that partition of `__transaction_state`."""
        ...

    async def take_producer_id(self, controller: BrokerEndpoint, *, timeout_s: float) -> TakenProducerId | Refused:
        """A producer id that was never given."""
        ...


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

    def give_up(self, broker_id: int) -> None:
        """End, in a moment, what is under way to a broker that was fenced: what it leads, or led as the controller, is
        another one's by now. Who waits may try again there. Heartbeats and what asks who is there continue."""
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
