"""Requests to a transactional id's coordinator, and its answers: values only.

A command has what a client or another broker said; only topic ids, a group's partition and a new producer id were
looked up elsewhere. The answer to a command that can be refused is its answer or a `Refused`. The last commands are
those that the coordinator gives itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bus.errors import Refused
from bus.model import TopicPartition
from bus.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AppliedRows,
    ProducerIdentity,
    TransactionGroup,
    TransactionPartition,
    VoteId,
)

# ---------------------------------------------------------------- of a producer, or for it


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Waits for the end of a transaction that is open, which it aborts unless it is decided. With the identity that the
    instance has (KIP-360) a repeated call gets the same answer; without, every other instance is fenced.

    `new_producer_id`, never given before: needed as `needs_producer_id` says. `begins_at_clock`: as brokers did before
    `LEVEL_OF_RISING_NUMBERS`, of which there may be some."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    new_producer_id: int | None = None
    begins_at_clock: bool = False


@dataclass(frozen=True, slots=True)
class ProducerInitialized:
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The partitions take part; the first ones of all begin the transaction. May be repeated. `allows_one_phase` as in
    `EndTransaction`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TransactionPartition, ...]
    allows_one_phase: bool = False


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """The same for the offsets of a group."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: TransactionGroup


@dataclass(frozen=True, slots=True)
class Added:
    """They take part. `may_be_one_phase`: as things are, the version of the only partition will decide the commit."""

    may_be_one_phase: bool = False


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """The end of a transaction. Answered when it is done everywhere; may be repeated until the next transaction begins.

    `last_sequences`: the last sequence of each partition that was acknowledged to the client; empty: the client does
    not name them, and everything staged counts. An abort ignores them. `allows_one_phase`: every broker of the cluster
    knows how to commit in one phase, and to resolve a partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    last_sequences: Mapping[TopicPartition, int] = field(default_factory=dict)
    allows_one_phase: bool = False


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The identity for the next transaction, and of a commit, where the rows are; not of topics that are deleted."""

    producer_id: int
    producer_epoch: int
    versions: Mapping[TransactionPartition, AppliedRows] = field(default_factory=dict)


# ---------------------------------------------------------------- administration


@dataclass(frozen=True, slots=True)
class FenceProducer:
    """Acts as if a new instance were initialised with the same time-out. Answer: `ProducerInitialized`. Of a decided
    commit it gives up the part of partitions that refuse it for ever."""

    transactional_id: str
    new_producer_id: int | None = None  # see `InitProducerId`
    begins_at_clock: bool = False  # the same


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """Abort the open transaction; its producer may continue. Answer: `TransactionEnded`. `expected`: only if it is the
    transaction with this identity, in case another one has begun since the operator looked."""

    transactional_id: str
    expected: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """KIP-664. `start_ms` NO_TIME, no partitions and no groups while no transaction is open."""

    transactional_id: str
    state: str
    number: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    update_ms: int
    abort_cause: str | None
    partitions: tuple[TransactionPartition, ...]
    groups: tuple[str, ...]


# ---------------------------------------------------------------- of the coordinator


@dataclass(frozen=True, slots=True)
class Voted:
    """The answer to `CollectVotes`: every partition that takes part is in `last_sequences`, with the last sequence up
    to which all is staged (NO_SEQUENCE: nothing), or in `gone`: its topic is deleted. `refused`: why it cannot commit,
    for instance a group that lacks the pending offsets. `rows`: in one phase, the partition has committed all up to its
    last sequence; if it has not, it never will. `taken_number`: the largest one that a partition has a mark of; from
    that of the transaction on, it is of an earlier life of the id, and the transaction cannot be committed."""

    transactional_id: str
    number: int
    vote_id: VoteId
    last_sequences: Mapping[TransactionPartition, int] = field(default_factory=dict)
    gone: frozenset[TransactionPartition] = frozenset()
    refused: Refused | None = None
    rows: AppliedRows | None = None
    taken_number: int = -1


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer to `Finish`: it is done everywhere. `results` has each partition that got rows. `new_producer_id`,
    never given before, if `Finish` asked for it. `given_up`: partitions that refuse the rows for ever, if `Finish`
    allowed that."""

    transactional_id: str
    number: int
    results: Mapping[TransactionPartition, AppliedRows] = field(default_factory=dict)
    new_producer_id: int | None = None
    given_up: frozenset[TransactionPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to `Resolve`. `last_number`: of the last transaction that the partition has, `number` or a later one;
    the partition refuses the next one for ever. None: the topic is deleted. `rows`: of `last_number`, if later."""

    transactional_id: str
    number: int
    last_number: int | None
    rows: AppliedRows | None = None


class TimerKind(Enum):
    TIMEOUT = "timeout"  # the transaction is to be aborted
    EXPIRE = "expire"  # the id may have been unused for long enough to expire
    DRIVE = "drive"  # an id was just loaded: continue its open transaction


@dataclass(frozen=True, slots=True)
class TransactionTimer:
    """A timer that has expired. If its subject is gone, nothing changes."""

    kind: TimerKind
    transactional_id: str
    number: int = 0  # the transaction of a TIMEOUT


@dataclass(frozen=True, slots=True)
class Noted:
    """The answer to `Voted`, `Finished` and `Resolved`, also if they come too late to matter."""


TransactionCommand = (
    InitProducerId
    | AddPartitions
    | AddOffsets
    | EndTransaction
    | FenceProducer
    | AbortTransaction
    | DescribeTransaction
    | Voted
    | Finished
    | Resolved
    | TransactionTimer
)
TransactionAnswer = ProducerInitialized | Added | TransactionEnded | DescribedTransaction | Noted | Refused
