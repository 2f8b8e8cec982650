"""Requests to a group's coordinator, and its answers: values only.

A command has what the client said and nothing that was looked up elsewhere, except for `client_host`, the topics and
partitions that the adapter decoded from the bytes of protocol type "consumer", the topic id of a partition, and a new
member's id. The answer to a command that can be refused is its answer or a `Refused`. The last commands are those that
the coordinator gives itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bus.descriptions import MemberDescription, PendingOffsets
from bus.errors import Refused
from bus.model import TopicPartition

NO_GENERATION = -1
NO_MEMBER_ID = ""
NO_OFFSET = -1
PRODUCER_EPOCH_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """A protocol of assignment that a member offers. `topics`: its subscription; empty for another protocol type."""

    name: str
    metadata: bytes
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a member: the leader's own bytes, and their decoded content if the protocol type is
    consumer."""

    data: bytes = b""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionKey:
    """A transaction as everyone but its coordinator knows it: each has an epoch of its own (KIP-890)."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"the transaction of producer {self.producer_id}, epoch {self.producer_epoch}"


# ---------------------------------------------------------------- membership


@dataclass(frozen=True, slots=True)
class JoinGroup:
    group_id: str
    member_id: str  # NO_MEMBER_ID at first
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]  # ordered by preference
    reason: str = ""
    new_member_id: str = ""  # that was never given, from the coordinator: for a member that has none


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes  # the metadata for the chosen protocol
    assignment: bytes = b""  # only if it stays as it is


@dataclass(frozen=True, slots=True)
class Joined:
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()  # only the leader gets them
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """`member_id`: the id to join with after MEMBER_ID_REQUIRED, else the one that was sent."""

    refused: Refused
    member_id: str


@dataclass(frozen=True, slots=True)
class SyncGroup:
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None  # None: not checked
    protocol: str | None
    # keyed by member id; only the leader sends them
    assignments: Mapping[str, Assignment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatTaken:
    pass


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str  # NO_MEMBER_ID with a group_instance_id: the member that has that instance id
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class MembersRemoved:
    """The answers for the members of the command, in its order: None, or why the member could not leave."""

    members: tuple[Refused | None, ...]


# ---------------------------------------------------------------- offsets


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    partition: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """An offset commit by a member, or, with NO_GENERATION and NO_MEMBER_ID, by a consumer outside of a group."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """The answers for the offsets of the command, in its order: None, or why the offset was refused."""

    partitions: tuple[Refused | None, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """A request for offsets. `partitions` None: all that have an offset, and with `require_stable` those that may get
    one. `require_stable` (KIP-447): an offset that an undecided transaction may replace is answered with
    UNSTABLE_OFFSET_COMMIT."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    partition: TopicPartition
    topic_id: str
    offset: int  # NO_OFFSET: none is committed
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    refused: Refused | None = None  # UNSTABLE_OFFSET_COMMIT, with NO_OFFSET


@dataclass(frozen=True, slots=True)
class OffsetsFetched:
    offsets: tuple[CommittedOffset, ...]


@dataclass(frozen=True, slots=True)
class OffsetDelete:
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    """The answers for the partitions of the command, in its order: None, or why the offset stays."""

    partitions: tuple[Refused | None, ...]


# ---------------------------------------------------------------- offsets in transactions


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """Offsets that are committed once the transaction is. Who may send it is who may send an `OffsetCommit` (KIP-447).
    `sequence` counts these calls in their transaction and group from 0: one that comes again, or late, changes nothing.
    Answered as an `OffsetCommit` is. That the transaction is open is not checked here."""

    group_id: str
    transaction: TransactionKey
    sequence: int
    generation: int
    member_id: str
    group_instance_id: str | None
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class VoteOffsets:
    """Ask for the group's vote: the transaction may be committed here if its offsets are in the log."""

    group_id: str
    transaction: TransactionKey


@dataclass(frozen=True, slots=True)
class OffsetsVoted:
    has_pending: bool


@dataclass(frozen=True, slots=True)
class ApplyOffsets:
    """The transaction is decided to be committed. Safe to repeat."""

    group_id: str
    transaction: TransactionKey


@dataclass(frozen=True, slots=True)
class DropOffsets:
    """The transaction is decided to be aborted. Safe to repeat."""

    group_id: str
    transaction: TransactionKey


@dataclass(frozen=True, slots=True)
class TxnOffsetsSettled:
    """The answer to `ApplyOffsets` and `DropOffsets`: nothing of the transaction is pending here any longer."""


# ---------------------------------------------------------------- administration


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """`members` are described while they are iterated over, once, as there may be many."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    leader_id: str
    members: Iterable[MemberDescription]
    pending_offsets: tuple[PendingOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group_id: str


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    pass


# ---------------------------------------------------------------- of the coordinator


class TimerKind(Enum):
    SESSION = "session"  # a member has sent nothing for its session timeout
    PENDING_MEMBER = "pending member"  # got an id with MEMBER_ID_REQUIRED and did not come back
    REBALANCE = "rebalance"  # members of a group that have not joined by then are removed; also the initial delay
    SYNC = "sync"  # members of a group that have not synced by then are removed


@dataclass(frozen=True, slots=True)
class GroupTimer:
    """A timer that has expired. If its subject is gone, nothing changes."""

    kind: TimerKind
    group_id: str
    member_id: str = ""  # for SESSION and PENDING_MEMBER


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """End an empty group without offsets, but not while a member id that was given may come back."""

    group_id: str
    now_ms: int  # the clock of retention


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """The offsets of a topic that is deleted go, those too that a transaction would commit; those of a later topic of
    the same name stay."""

    group_id: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Swept:
    """The answer to `ExpireOffsets` and `ForgetTopic`."""


GroupCommand = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | OffsetFetch
    | OffsetDelete
    | TxnOffsetCommit
    | VoteOffsets
    | ApplyOffsets
    | DropOffsets
    | DescribeGroup
    | DeleteGroup
    | GroupTimer
    | ExpireOffsets
    | ForgetTopic
)
GroupAnswer = (
    Joined
    | JoinRefused
    | Synced
    | HeartbeatTaken
    | MembersRemoved
    | OffsetsCommitted
    | OffsetsFetched
    | OffsetsDeleted
    | OffsetsVoted
    | TxnOffsetsSettled
    | DescribedGroup
    | GroupDeleted
    | Swept
    | Refused
)
