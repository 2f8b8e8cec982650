"""A transactional id as its coordinator knows it: a value, replaced with every change.

Guards the shape: a state follows only a state that `TRANSITIONS` names, and each transaction of an id has a number and
a producer epoch of its own (KIP-890, part 2). What changes it is in changes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bus.model import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIME = -1
# The last epoch that a client is given, Kafka's. The end of its transaction is decided with the one after it, which is
# the largest that a column of 16 bits holds, and completed with a new producer id.
PRODUCER_EPOCH_MAX = 2**15 - 2
# The number of transactions of an id that may be decided in one phase after its last record in the log. If their
# partition is gone, the id skips this many epochs.
ONE_PHASE_MAX = 1_000
_ONE_PHASE_EPOCH_MAX = PRODUCER_EPOCH_MAX - 2 * ONE_PHASE_MAX
# The numbers of transactions that each producer id has to itself. A number costs an epoch, or is skipped, which happens
# once an epoch at most, so they last longer than the 2**15 epochs.
_NUMBERS_OF_PRODUCER_ID = 2**17
# Above every number that a wall clock gave: below `LEVEL_OF_RISING_NUMBERS` they begin at the time in milliseconds.
_NUMBERS_BEGIN = 2**48


def first_number(producer_id: int) -> int:
    """Return the first number for a transactional id that begins with this producer id. A later producer id is larger
    and begins above every number that was used since, so the numbers of an id rise also when it expires and comes back,
    whatever clocks say."""
    return _NUMBERS_BEGIN + producer_id * _NUMBERS_OF_PRODUCER_ID


class TransactionState(Enum):
    """Each with Kafka's name for it."""

    EMPTY = "Empty"  # a producer was initialised; it has no transaction
    ONGOING = "Ongoing"  # a partition or a group takes part
    PREPARE_COMMIT = "PrepareCommit"  # decided: it will be applied everywhere, whatever happens
    PREPARE_ABORT = "PrepareAbort"  # decided: nothing of it will ever be seen
    COMPLETE_COMMIT = "CompleteCommit"  # applied everywhere
    COMPLETE_ABORT = "CompleteAbort"  # dropped everywhere

    @property
    def is_decided(self) -> bool:
        """The decision is durable, and not yet carried out everywhere."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        """True while the transaction's staged rows and pending offsets are needed."""
        return self is TransactionState.ONGOING or self.is_decided


_NEW_TRANSACTION = "a partition or a group is added"
_EMPTY_ABORT = "the client ends a transaction of which nothing has arrived here"
_INITIALIZED = "a producer is initialised"

# State -> the states it may follow, each with what brings it about. A new transactional id begins with Empty.
TRANSITIONS: Mapping[TransactionState, Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: {
        TransactionState.EMPTY: _INITIALIZED,
        TransactionState.COMPLETE_COMMIT: f"{_INITIALIZED}, or the topic of the only partition is deleted",
        TransactionState.COMPLETE_ABORT: _INITIALIZED,
    },
    TransactionState.ONGOING: {
        TransactionState.EMPTY: _NEW_TRANSACTION,
        TransactionState.COMPLETE_COMMIT: _NEW_TRANSACTION,
        TransactionState.COMPLETE_ABORT: _NEW_TRANSACTION,
        TransactionState.ONGOING: "another partition or group is added",
    },
    TransactionState.PREPARE_COMMIT: {
        TransactionState.ONGOING: "the client commits, and every partition and group has what it acknowledged",
    },
    TransactionState.PREPARE_ABORT: {
        TransactionState.ONGOING: "the client, its time-out, a newer instance, a failed vote or an operator aborts",
        TransactionState.EMPTY: _EMPTY_ABORT,
        TransactionState.COMPLETE_COMMIT: _EMPTY_ABORT,
        TransactionState.COMPLETE_ABORT: _EMPTY_ABORT,
    },
    TransactionState.COMPLETE_COMMIT: {
        TransactionState.PREPARE_COMMIT: "applied everywhere",
        TransactionState.COMPLETE_COMMIT: "a new coordinator finds later commits in the only partition",
    },
    TransactionState.COMPLETE_ABORT: {
        TransactionState.PREPARE_ABORT: "dropped everywhere",
    },
}


class AbortCause(Enum):
    """The cause of an abort; stored, so that the same instance gets the same answer from every later coordinator."""

    CLIENT = "client"
    VOTE = "vote"  # a partition or a group lacks what was acknowledged to the client
    TIMEOUT = "timeout"
    OPERATOR = "operator"
    NEW_INSTANCE = "new instance"  # another instance of the producer was initialised
    FENCE = "fence"  # an operator fenced the producer

    @property
    def ends_instance(self) -> bool:
        """True if the instance whose transaction it was may not continue."""
        return self in (AbortCause.NEW_INSTANCE, AbortCause.FENCE)


ABORT_REASONS: Mapping[AbortCause, str] = {
    AbortCause.CLIENT: "by its client",
    AbortCause.VOTE: "a partition or a group lacks a part of it",
    AbortCause.TIMEOUT: "its time-out passed",
    AbortCause.OPERATOR: "an operator aborted it",
    AbortCause.NEW_INSTANCE: "another instance of the producer was initialised",
    AbortCause.FENCE: "an operator fenced the producer",
}


@dataclass(frozen=True, slots=True, order=True)
class TransactionPartition:
    """`topic_id`: a topic that is deleted and created again is another one."""

    topic: str
    topic_id: str
    partition: int

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class TransactionGroup:
    group_id: str
    offsets_partition: int  # the partition of `__consumer_offsets` that has the group


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer id and epoch in a client's requests. Since every transaction has an epoch of its own (KIP-890), they
    identify one transaction."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"producer id {self.producer_id} with epoch {self.producer_epoch}"


@dataclass(frozen=True, slots=True)
class AppliedRows:
    """The rows of a transaction in one partition: all in this version, from this offset on."""

    version: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class VoteId:
    """Tells a vote from another one about the same transaction, whose coordinator has been loaded again since."""

    request_id: int  # the call that began the vote; unique among all shards during a broker's life


@dataclass(frozen=True, slots=True)
class Vote:
    vote_id: VoteId
    last_sequences: Mapping[TopicPartition, int]  # those that the client named
    # In one phase: the partition that votes for the commit commits, so nothing else may end the transaction meanwhile.
    is_one_phase: bool = False


@dataclass(frozen=True, slots=True)
class AwaitingInit:
    """A call that wants the next epoch, and waits for the end of the transaction before it. `timeout_ms` None: it stays
    as it is. `expected` None: the call is of a new instance. `new_producer_id` was never given before; it is taken if
    the epochs are used up."""

    request_id: int
    timeout_ms: int | None
    expected: ProducerIdentity | None
    new_producer_id: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last record in the log is a commit of this partition and nothing else. The next commits of the partition need
    no record before them: a coordinator that loads this record asks the partition which is the last one (`Resolve`)."""

    partition: TransactionPartition
    number: int  # the transaction in that record


@dataclass(frozen=True, slots=True)
class Transaction:
    """`number` is that of the transaction in hand, or of the last one: it grows by one with each, and is never used
    again, also not after the id has expired. 0 <= producer_epoch <= PRODUCER_EPOCH_MAX, and one more in Prepare*."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    update_ms: int
    # The epoch that the same instance had before the last change; NO_PRODUCER_EPOCH if the change fenced it. It is
    # `producer_epoch` - 1, unless epochs in between were given up.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID  # that of `last_producer_epoch`, if it is not `producer_id`
    # Those of an open transaction, and of a completed commit. With PrepareCommit the last sequence that is committed is
    # pinned, NO_SEQUENCE: none; before, it is NO_SEQUENCE.
    partitions: Mapping[TransactionPartition, int] = field(default_factory=dict)
    groups: tuple[TransactionGroup, ...] = ()
    start_ms: int = NO_TIME  # the begin of the current or the last transaction
    abort_cause: AbortCause | None = None  # exactly in PrepareAbort and CompleteAbort
    results: Mapping[TransactionPartition, AppliedRows] = field(default_factory=dict)  # only in CompleteCommit
    # In no record: a coordinator that dies takes them along, and the clients ask again.
    vote: Vote | None = None  # under way
    awaiting_end: tuple[int, ...] = ()  # request ids, in the order of their coming
    awaiting_init: tuple[AwaitingInit, ...] = ()
    # A coordinator before may have let partitions take part under this identity, and not have had it in the log.
    may_lack_partitions: bool = False
    anchor: Anchor | None = None
    # The loaded record is an anchor, and its partition has not yet reported the transactions committed after it.
    is_unresolved: bool = False
    # No transaction has a number from `number` + 1 up to this one: the partition refuses it for ever, since it answered
    # `Resolve`, or has a mark of it that is of an earlier life of the id.
    skipped_number: int = -1
    # Why the last record of the id cannot be read; of the other fields only the name is certain.
    damage: str | None = None

    @property
    def identity(self) -> ProducerIdentity:
        """The identity for the next request of the initialised instance; in Prepare* no client knows it yet."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def last_identity(self) -> ProducerIdentity | None:
        """The identity of a repeated request of that instance, whose answer was lost; None: another instance had it."""
        if self.last_producer_epoch == NO_PRODUCER_EPOCH:
            return None
        has_rotated = self.previous_producer_id != NO_PRODUCER_ID
        return ProducerIdentity(
            self.previous_producer_id if has_rotated else self.producer_id, self.last_producer_epoch
        )

    @property
    def given_up_epochs(self) -> range:
        """Epochs of `producer_id` that the instance of `last_identity`, and no other, may have been given since. Only
        the partition knew how their transactions ended, and its topic is deleted. Empty once the next transaction has
        begun or a producer is initialised: this instance has gone on, or another one has taken the id."""
        if self.state is not TransactionState.EMPTY or self.last_producer_epoch == NO_PRODUCER_EPOCH:
            return range(0)
        has_rotated = self.previous_producer_id != NO_PRODUCER_ID
        return range(0 if has_rotated else self.last_producer_epoch + 1, self.producer_epoch)

    def has_given_up(self, identity: ProducerIdentity) -> bool:
        return identity.producer_id == self.producer_id and identity.producer_epoch in self.given_up_epochs

    @property
    def open_identity(self) -> ProducerIdentity | None:
        """The identity in the rows of the open transaction, staged and applied; None: no transaction is open. The
        decision has raised the epoch by one."""
        if not self.state.is_open:
            return None
        return ProducerIdentity(self.producer_id, self.producer_epoch - self.state.is_decided)

    @property
    def may_be_committed(self) -> bool:
        """It is decided, or its partition was asked to decide: nothing else may end the transaction."""
        return self.state.is_decided or (self.vote is not None and self.vote.is_one_phase)

    @property
    def last_number(self) -> int:
        """The next transaction has `last_number` + 1."""
        return max(self.number, self.skipped_number)

    @property
    def is_uncertain(self) -> bool:
        """Other rows may be needed than those of `open_identity`."""
        return self.damage is not None or self.is_unresolved

    def may_need(self, rows: ProducerIdentity) -> bool:
        """True if rows that are staged with this identity may still be applied, as far as this id is concerned."""
        if self.is_uncertain:
            return self.producer_id in (NO_PRODUCER_ID, rows.producer_id)
        return self.open_identity == rows

    def has_ended(self, rows: ProducerIdentity) -> bool:
        """True if the rows belong to an earlier transaction of this id: epochs rise with each, and a producer id
        belongs to one id, so nothing is staged or applied with this identity any longer. Changes that the log does not
        have yet are found again in the partition, which then has the rows."""
        if self.is_uncertain or self.open_identity == rows:
            return False
        if rows.producer_id == self.producer_id:
            return rows.producer_epoch < self.producer_epoch
        return rows.producer_id == self.previous_producer_id


def find_lone_partition(transaction: Transaction) -> TransactionPartition | None:
    """Return the only partition of an open transaction if the version with its rows may decide the commit: that version
    has the whole transaction."""
    anchor = transaction.anchor
    if anchor is None or transaction.groups or transaction.partitions.keys() != {anchor.partition}:
        return None
    is_near = transaction.number - anchor.number <= ONE_PHASE_MAX
    return anchor.partition if is_near and transaction.producer_epoch <= _ONE_PHASE_EPOCH_MAX else None


def has_one_phase_behind(producer_epoch: int) -> bool:
    """True if transactions may have been decided in one phase after a record with this epoch."""
    return producer_epoch <= _ONE_PHASE_EPOCH_MAX
