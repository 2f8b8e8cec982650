"""Ports of the runtime: a clock, and logs in Delta tables.

Narrow on purpose. Nothing here knows Delta, files or Arrow; `bus.storage_delta` implements it. Every call of a log
blocks, so the runtime makes it in a thread. Faults are `bus.errors.StorageFault` and its subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from bus.errors import Refused, StorageFault, reduce_error
from bus.model import LogBatch, RecordBatch, TopicPartition


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch, UTC."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds, with fractions, since an arbitrary time; a change of the wall clock never decreases them."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """The rows are durable and visible to every reader of the table from `version` on."""

    version: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another writer holds `version`; nothing of ours is in the table. `leader_epoch` is the winner's, None if the
    winner is no leader of the bus. `reload` before the next append."""

    version: int
    leader_epoch: int | None
    operation: str
    # The winner is another leader, also where its epoch is the same as ours: two that read the same metadata took it.
    is_rival: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be told yet whether `version` is ours and durable. `reload` tells; until then nothing may follow."""

    version: int
    reason: str


CommitOutcome = Committed | Conflicted | Unknown


class FenceLost(StorageFault):
    """The version that was to keep other leaders out was not committed: `outcome` is to be treated as any commit's."""

    def __init__(self, message: str, outcome: Conflicted | Unknown) -> None:
        super().__init__(message)
        self.outcome = outcome

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class LogState:
    """Invariant: 0 <= log_start <= high_watermark."""

    version: int  # last committed Delta version
    log_start: int
    high_watermark: int
    leader_epoch: int  # the largest that the log has seen, -1 before the first
    file_count: int
    size_bytes: int  # the size of the live data files
    # Another leader, of our epoch or a higher one, has committed behind us: nothing of ours may follow.
    is_overtaken: bool = False


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """One `txn` action: how far an idempotent producer has come at the end of a commit."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    updated_ms: int = 0  # when that commit was made


@dataclass(frozen=True, slots=True)
class StagingKey:
    """One transaction in one partition, as batches that are on their way name it: the producer's epoch grows with every
    transaction. The partition of `__transaction_state` tells whom to ask about it."""

    coordinator_partition: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged part of a transaction. Sequences begin with 0 in each transaction and partition."""

    last_sequence: int  # all from 0 up to it are there; -1 if 0 is not
    size_bytes: int  # the size of all files
    newest_ms: int  # when the newest file was written, by the clock of the store


@dataclass(frozen=True, slots=True)
class AppliedTransaction:
    """The proof that a transaction's rows are in the table, in the version that has them: the `txn` action
    `bus/txn/<transactional id>`, percent-encoded, with `applied_version`. Larger ones say the same of later
    transactions."""

    transactional_id: str
    number: int  # the number of the transaction: grows with each one of that id
    producer_id: int
    producer_epoch: int

    @property
    def applied_version(self) -> int:
        return 2 * self.number + 1

    @property
    def aborted_version(self) -> int:
        """Says that the rows of the transaction are not in the table, and never will be."""
        return 2 * self.number


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """The place of a transaction's rows: all in this version, from this offset on, densely."""

    version: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class ProducerMatch:
    """The match of an idempotent producer's batch with the table: the records that the table has, and those that it
    lacks.

    `offsets` has an entry for each record of the batch: its offset in the table, -1 if it is not there. `missing` are
    the others, in their order, None if there is none; if some but not all are missing, its `columns` have `sequence`.
    """

    offsets: Sequence[int]
    missing: RecordBatch | None
    has_holes: bool = False  # key compaction has been over a part of the log: a missing record may have been there


@dataclass(frozen=True, slots=True)
class FoundOffset:
    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A record of the bus's own: its key, and its value as a struct's fields; a value of None deletes the key's
    state."""

    key: bytes
    value: Mapping[str, Any] | None

    @property
    def size_bytes(self) -> int:
        """The size of a record without the fields that all records have; walks through the value."""
        return len(self.key) + _size_of(self.value)


_NUMBER_BYTES = 8


def _size_of(value: object) -> int:
    match value:
        case None:
            return 0
        case bytes():
            return len(value)
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case Mapping():
            return sum(map(_size_of, value.values()))
        case list():
            return sum(map(_size_of, value))
        case _:
            return _NUMBER_BYTES


class KeyedRows(Protocol):
    """The conversion between the bus's own records and the batches that a typed topic's partition appends and reads."""

    def encode(self, rows: Sequence[KeyedRow], *, now_ms: int) -> RecordBatch:
        """One batch for `Partition.append`, each record stamped `now_ms`; its `record_bytes_max` is an upper bound.
        `rows` is not empty. Raises `ValueError` for
        a field that the topic's struct has not, or a value of another type."""
        ...

    def decode_again(self, batch: RecordBatch) -> Iterator[KeyedRow]:
        """The rows that `encode` made `batch` of, as `decode` will give them."""
        ...

    def decode(self, batch: LogBatch) -> Iterator[KeyedRow]:
        """Its records in offset order, but for those without a key, which are logged: they name nothing."""
        ...


class LogFile(Protocol):
    """A live data file, as the rules of maintenance look at it. Files follow each other in offset order."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int:
        """One past the last offset that the file stands for."""
        ...

    @property
    def record_count(self) -> int: ...

    @property
    def timestamp_max_ms(self) -> int:
        """The largest timestamp of its records, which producers may have chosen."""
        ...

    @property
    def appended_ms(self) -> int:
        """When the newest of its records was committed, by the broker's clock, however often it was rewritten since."""
        ...

    @property
    def level(self) -> int:
        """How often its rows were rewritten: 0 for what an append wrote."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedFiles:
    """New data files, written and synced, that no version names yet, and the files that they replace. An adapter
    returns a subclass, with what it needs to commit them."""

    removes: Sequence[str]  # names of live data files that follow each other
    added_count: int
    rewritten_bytes: int


class SwapKind(Enum):
    """The difference allowed between files and those that replace them."""

    SAME_ROWS = "same rows"  # the same offsets, every one of them
    LAST_OF_KEYS = "last of keys"  # some offsets are missing; the last one is not


@dataclass(frozen=True, slots=True)
class Dropped:
    """The versions and files that cleanup has deleted."""

    versions: int = 0
    data_files: int = 0
    data_bytes: int = 0


# Called with a number of bytes after they were read or written: may sleep, so that maintenance keeps to its share of
# the disk, and raises `MaintenanceStopped` if the work is no longer wanted.
Pace = Callable[[int], None]


class MaintenanceStopped(Exception):
    """The partition is going away; partially written files are deleted."""


def no_pace(byte_count: int) -> None:
    """Pace nothing."""


# Above every offset.
OFFSET_MAX = 2**63 - 1


class TableLog(Protocol):
    """The records of a table."""

    def read(self, offset: int, *, end_offset: int, max_bytes: int) -> list[LogBatch]:
        """Records from `offset` on, in order, about `max_bytes` of them, at least one if there is any below
        `end_offset`. The first batch may begin below `offset`, the last one never goes beyond `end_offset`."""
        ...

    def find_timestamp(self, timestamp_ms: int) -> FoundOffset | None:
        """The first offset whose timestamp is at or after `timestamp_ms`."""
        ...

    def find_max_timestamp(self) -> FoundOffset | None:
        """The first record that has the largest timestamp."""
        ...

    def high_watermark_at(self, version: int) -> int | None:
        """Return the high watermark after `version`; None if that version does not exist, or no longer."""
        ...


class TableProducers(Protocol):
    """The idempotent producers that wrote to a table."""

    @property
    def progress(self) -> Mapping[int, ProducerProgress]:
        """From the `txn` actions: producer id -> how far it has come. Without those that were forgotten."""
        ...

    def forget(self, *, updated_before_ms: int) -> int:
        """Drop the progress of producers that were idle since then from memory; their rows stay, and so do their
        `txn` actions. Returns the largest producer id that was ever forgotten, -1 if none was: a larger one that has
        no progress never wrote here."""
        ...

    def match(self, batch: RecordBatch) -> ProducerMatch:
        """Match `batch` with the table on (producer_id, producer_epoch, sequence), like the two halves of an
        insert-only MERGE. Reads no file whose statistics exclude the producer and the range of sequences. To be called
        by the writer between two appends; appending `missing` then completes the MERGE."""
        ...

    def find_last_sequence(self, producer_id: int) -> ProducerProgress | None:
        """Return the end of the producer's records: the last row, in offset order, of its highest epoch, or what the
        log remembers if such rows were deleted by retention or compaction. None if it never wrote here."""
        ...


class StagedTransactions(Protocol):
    """The batches of open transactions of one partition, beside its table. Any number of calls may run beside each
    other and beside those of the table, also from brokers that do not lead it. Raises `StorageFault`."""

    def stage(self, key: StagingKey, batch: RecordBatch) -> Refused | None:
        """Durable once this returns None. `batch` is the producer's whole batch, of the producer id and epoch of `key`.
        Safe to repeat. INVALID_RECORD if other records were staged under the same sequences; timestamps are not
        compared, since the broker may have given them."""
        ...

    def hold(self, key: StagingKey, batch: RecordBatch) -> bool:
        """Keep the batch in memory alone, until `save`, `drop` or `forget`; False: there is no room. `recall` and
        `read` know of it, `find` and `list` do not. Does no I/O."""
        ...

    def save(self, key: StagingKey) -> Refused | None:
        """Save the batches that are in memory alone. Durable once this returns None. Safe to repeat."""
        ...

    def forget(self, key: StagingKey) -> bool:
        """Forget the batches that are in memory alone; True if nothing else was staged here, so that `drop` has nothing
        to do. Does no I/O."""
        ...

    def release(self, key: StagingKey) -> None:
        """Forget the transaction's batches in memory; files stay. Does no I/O."""
        ...

    def find(self, key: StagingKey) -> Staged | None:
        """Return the staged part, by one listing; None if nothing is staged."""
        ...

    def read(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch]:
        """Sequences 0 to `last_sequence`, each of them once, in order. Raises `StorageFault`, which names the file, if
        one is missing or damaged."""
        ...

    def recall(self, key: StagingKey, last_sequence: int) -> Sequence[RecordBatch] | None:
        """Return what `read` would return, if memory has exactly that; None: call `read`. Does no I/O."""
        ...

    def drop(self, key: StagingKey) -> None:
        """Delete the staged batches of the transaction. Safe to repeat. Not atomic, and batches that another leader has
        staged may stay: `list` still has them."""
        ...

    def list(self) -> Sequence[tuple[StagingKey, Staged]]:
        """All transactions of which anything is staged, by one listing for each partition of their coordinators."""
        ...


class TableTransactions(Protocol):
    """The transactions that wrote to a table, as far as the table knows them, and the staged batches of open ones."""

    @property
    def staged(self) -> StagedTransactions: ...

    def version_of(self, transactional_id: str) -> int:
        """The largest `applied_version` or `aborted_version` of its transactions in the table, -1 if there is none. Any
        transaction of a smaller number has ended."""
        ...

    def has_written(self, transaction: AppliedTransaction) -> bool | None:
        """Tell whether the table has had rows of the transaction's producer with its epoch or a later one, by what it
        knows of idempotent producers; None: it may have forgotten that one."""
        ...

    def find_rows(self, transaction: AppliedTransaction) -> TransactionRows | None:
        """The version that has the proof of the transaction, and its first offset. Where the log does not tell any
        more, the last version, and the offset by the rows that are left; None if there are none. Reads no file whose
        statistics exclude the producer and epoch. Raises `StorageFault`."""
        ...

    def abort(self, transaction: AppliedTransaction, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Commit a version without rows that has the `aborted_version` of the transaction, so that its rows can never
        be applied. `version_of` is below it. In the writer's place, as `append`."""
        ...

    def find_old(self, *, updated_before_ms: int) -> Mapping[str, int]:
        """Return `version_of` by transactional id, of ids of which no transaction has ended here since then and which
        are not being forgotten."""
        ...

    def forget(self, ended: Mapping[str, int]) -> None:
        """These ids have expired: nothing of their transactions is under way, and one of the same id that comes later
        has a larger number. `ended` has what `version_of` was when that was found out: an id of which it is another
        number by now has come back, and is not forgotten. The next appends take the `txn` actions of the others back, a
        bounded number each, and no checkpoint after them has them."""
        ...


class TableRewrites(Protocol):
    """Replaces files of a table for its leader: `swap` commits one version, all else only prepares it."""

    @property
    def files(self) -> Sequence[LogFile]:
        """The live data files of the last committed version, in offset order."""
        ...

    @property
    def compacted_to(self) -> int:
        """Key compaction has seen all offsets below it, so some of them may be missing."""
        ...

    def find_backlog(self) -> Sequence[LogFile]:
        """The live data files that key compaction has not seen yet."""
        ...

    def prepare_key_compaction(
        self, *, now_ms: int, tombstone_retention_ms: int, end_offset: int = OFFSET_MAX, pace: Pace = no_pace
    ) -> PreparedFiles | None:
        """Write files that keep of every key its last record, offsets and order as they are, in place of all live
        files that there are at the time of the call and end at or below `end_offset`; None if there is nothing to gain.
        A record without a key stays. A tombstone goes when it was there for `tombstone_retention_ms`. Beside appends
        and reads, in another thread."""
        ...

    def prepare_roll(
        self,
        files: Sequence[LogFile],
        *,
        compression: str,
        now_ms: int,
        tombstone_retention_ms: int,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        """Write the rows of `files`, live ones that follow each other, as one file in offset order, or several if they
        are too many for one. No row goes, none moves. Since when the rows are in the log is kept as finely as
        `tombstone_retention_ms` needs. Beside appends and reads, in another thread."""
        ...

    def check_swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> PreparedFiles | Refused:
        """Check files that another program wrote into the table's folder, and prepare them for `swap`. All of them are
        read: they must have rows of the log's columns in offset order, and stand for the very offsets of `removes`,
        live files that follow each other, as far as `kind` allows. INVALID_REQUEST says what was expected and found.
        Their statistics are computed here. Beside appends and reads."""
        ...

    def swap(self, prepared: PreparedFiles, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Put `prepared` in place of the files that it replaces, as one version with `dataChange=false`: no reader sees
        a record come, go or move that compaction did not mean to drop. In the writer's place, as `append`. The high
        watermark stays. On any other outcome than Committed the new files are removed again, or left for the next
        opening."""
        ...


class TableCleanup(Protocol):
    """Deletes from a table for its leader, and writes the checkpoints that this needs: `advance_log_start` commits one
    version, `delete_orphans` one if need be."""

    def advance_log_start(self, offset: int, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Let go of all records below `offset`, which is above the log start and not above the high watermark: one
        version that removes every file that ends at or below it, with `dataChange=true`, and adds none. A file that
        has offsets on both sides stays; nothing below `offset` is read from it again. The log start outlives restarts
        and checkpoints. In the writer's place, as `append`."""
        ...

    @property
    def is_checkpoint_due(self) -> bool: ...

    def write_checkpoint(self) -> None:
        """Checkpoint the last committed version. A failure leaves the table as it was and raises `StorageFault`."""
        ...

    def is_checkpoint_needed_to_drop(self, *, committed_before_ms: int) -> bool:
        """True if a version older than that has removed files, and stays only because no checkpoint covers it."""
        ...

    def drop_old_versions(self, *, committed_before_ms: int, count_max: int, removed_before_ms: int) -> Dropped:
        """Delete versions that a validated checkpoint covers, those older than `committed_before_ms` and those beyond
        the newest `count_max`, but none committed after `removed_before_ms`; then the data files that only such
        versions had and that no read under way needs. So every version that is kept can be read. A checkpoint and every
        version after it always stay. Deletes only data files that the log itself names as removed."""
        ...

    def find_orphans(self) -> frozenset[str]:
        """Return the data files in the table's folder that no kept version names, and that are none of ours under way:
        files that a crash left between file and commit. One listing."""
        ...

    def delete_orphans(self, orphans: frozenset[str]) -> int:
        """Delete those that are still orphans; return how many. The caller found them a grace period ago. In the
        writer's place, as `append`: unless a version was committed since they were found, one that changes nothing is
        committed first, so that no other leader can commit them. Raises `FenceLost`; then nothing was deleted."""
        ...


class Leadable(Protocol):
    """A log of which any number of brokers follow what one of them, its leader, commits. Opened, it is followed, and
    nothing in it is changed. A log that is led may be committed to, maintained and read again (`reload`); one that is
    not is only followed and read."""

    @property
    def state(self) -> LogState: ...

    def follow(self) -> LogState:
        """Read on to the last committed version. Changes nothing. A log that was led is followed from then on. Raises
        `StorageDamaged` for a log that cannot be followed, or another `StorageFault`."""
        ...

    def lead(self, leader_epoch: int, now_ms: int, *, fence: bool) -> CommitOutcome:
        """Become the leader: read on to the last version, commit one that changes nothing (`FENCE`) behind it, and only
        then put right what a crash left. So once this is Committed, no former leader commits anything behind what
        memory knows. `fence=False` commits none: only for a caller that knows that no process of another leader is at
        work on this log.

        Conflicted: the log has a leader of a higher epoch, or of this epoch and another incarnation, and is only
        followed (`LogState.leader_epoch` is that leader's); or too many versions of others came in the way. Unknown:
        call it again. Raises `StorageFault`; nothing may be committed then."""
        ...

    def reload(self) -> LogState:
        """Forget what memory thinks and read the log again: after a conflict, an unknown outcome, a fault. If another
        leader has come, the log is only followed from then on (`LogState.is_overtaken`)."""
        ...


class PartitionTable(Leadable, Protocol):
    """One partition's table, followed, or led by its single writer.

    `append`, `set_managed`, `transactions.abort`, `rewrites.swap`, `cleanup.advance_log_start`, `follow`, `lead`,
    `reload` and `cleanup.write_checkpoint` never overlap with one another, but for `write_checkpoint`, which may run
    beside the five commits. The reads may run beside anything, any number at once, and see the state of one version. A
    table that is followed only reads.
    """

    def append(
        self,
        batches: Sequence[LogBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        compression: str = "none",
        producers: Sequence[ProducerProgress] = (),
        transactions: Sequence[AppliedTransaction] = (),
    ) -> CommitOutcome:
        """Commit `batches` as one Delta version, synced: one data file, one version file.

        The batches are dense from the high watermark: the first `base_offset` equals it, each next one follows. All
        rows of each of `transactions` are among them, the batches of one behind each other, and `version_of` its id
        is below its `aborted_version`; `producers` names its producer, too.
        `compression` is none, gzip, snappy, lz4 or zstd. Raises `StorageFull`, or `StorageFault` if nothing was
        committed for another reason; then the state is as before and the next append may succeed.
        """
        ...

    @property
    def is_managed(self) -> bool:
        """True if no Delta engine but the bus may write to the table, as its last version says. Of a table that is
        led."""
        ...

    def set_managed(self, wanted: bool, *, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Commit a version that changes who may write to the table, and nothing else: no Delta engine but the bus, or
        any. Every engine may read it as before. In the writer's place, as `append`."""
        ...

    @property
    def log(self) -> TableLog: ...

    @property
    def producers(self) -> TableProducers: ...

    @property
    def transactions(self) -> TableTransactions: ...

    @property
    def rewrites(self) -> TableRewrites: ...

    @property
    def cleanup(self) -> TableCleanup: ...


class TypedLog(Leadable, Protocol):
    """A log whose values are structs, one row a dict, for the bus's own records. Small enough to be replayed."""

    def replay(self, offset: int = 0) -> Iterator[dict[str, Any]]:
        """Every value, in offset order, from `offset` or the log start on, whichever is higher, up to the high
        watermark."""
        ...

    def is_last(self) -> bool:
        """True if no other writer has committed behind the last version in memory. One look, without a reload."""
        ...

    def is_at_end(self) -> bool:
        """True if no version at all follows it, not even a commit of this broker that others can see before its own
        call ends."""
        ...

    def append(self, rows: Sequence[Mapping[str, Any]], *, leader_epoch: int, now_ms: int) -> CommitOutcome: ...

    @property
    def table(self) -> PartitionTable:
        """The table that it lies in, for its maintenance; nothing else may append to it."""
        ...


@dataclass(frozen=True, slots=True)
class Volume:
    """The volume of the root. `usable_bytes`: what this process may still write there."""

    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files in the folder of a partition's table. `data_bytes` of `size_bytes` are directly in it, where data files
    are, live or not; the others are the Delta log and staged batches of transactions."""

    file_count: int
    size_bytes: int
    data_bytes: int


class Storage(Protocol):
    """A bus root: the cluster's metadata log and the tables of all partitions."""

    @property
    def root_url(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def is_case_blind(self) -> bool:
        """Names that differ in case only are one here: two topics of such names would have one folder."""
        ...

    def close(self) -> None:
        """Release the root, so that this broker may be started again. Safe to repeat."""
        ...

    def check_held(self) -> None:
        """Raises `RootLost` if the root was removed or made again since it was opened. Writing calls check it, too."""
        ...

    def is_alive(self, broker_id: int) -> bool:
        """True if a process, this one included, runs as that broker on this root. False proves that it has ended."""
        ...

    @property
    def incarnation(self) -> str:
        """Tells this life of the broker from all others."""
        ...

    def renew_lease(self, content: bytes) -> None:
        """Show the other brokers that this one is at work: `read_lease` gives `content` for it. Written as a commit is,
        so that it fails where a commit fails."""
        ...

    def read_lease(self, broker_id: int) -> bytes:
        """Read the lease of the broker of that id; empty if there is none, or while it is written anew."""
        ...

    def renew_lock(self) -> None:
        """Show brokers of a release without leases that this one is at work: `read_lock` gives something else for it.
        Not durable."""
        ...

    def read_lock(self, broker_id: int) -> bytes:
        """Return the content of that broker's lock; empty if there is none. It changes while a broker of a release
        without leases is at work, and whenever `renew_lock` is called there."""
        ...

    def open_metadata(self) -> TypedLog:
        """`__cluster_metadata`, created with its first use, as a follower."""
        ...

    def open_users(self, *, create: bool) -> TypedLog | None:
        """The log of users, as a follower. None if it is not there and not to be created. Raises `RootNotUsable` if its
        folder is not the owner's alone."""
        ...

    def keyed_rows(self, topic: str) -> KeyedRows:
        """The bus's own records in an internal topic of that name."""
        ...

    def create_partition(
        self,
        partition: TopicPartition,
        *,
        topic_id: str,
        is_managed: bool = False,
        check_removal: Callable[[], None] | None = None,
    ) -> PartitionTable:
        """Create version 0 of a new table, typed if the topic is an internal one. `is_managed`: as in `PartitionTable`.
        Leftovers of a deleted topic of the same name, or of a creation that never finished, are removed first: the
        caller has made sure that no live topic owns them. `check_removal` is called when such a table was found, and
        raises `StorageFault` if that is no longer so. A table with this very `topic_id` is opened as it is. Opened as a
        follower."""
        ...

    def open_partition(self, partition: TopicPartition, *, topic_id: str) -> PartitionTable:
        """Open the partition as a follower: nothing is changed. Raises `StorageDamaged` if the table does not exist,
        has another topic id, or breaks a promise of the log."""
        ...

    def measure_volume(self) -> Volume | None:
        """None where there is no bound but memory. Raises `StorageFault`."""
        ...

    def measure_files(self, partition: TopicPartition) -> TableFiles:
        """Count the files in the folder and its subfolders, by one listing of each; an absent folder has none. Beside
        changes of the table: a file that comes or goes meanwhile may be counted or not. Raises `StorageFault`."""
        ...

    def delete_topic(self, topic: str, *, topic_id: str) -> None:
        """Remove all files of that topic id. Missing files are fine, another topic id's files are left alone."""
        ...
