"""The consistent cut that a transaction left: a version of each partition, at which all of its rows are there.

Guards three promises. Of every partition that took part the version is that of the rows themselves, as the coordinator
has recorded it with the end of the transaction, or as the only partition proves it, so no part of it is missing, and of
the same partition nothing later is there. In all partitions together every other transaction is there as a whole, or
not at all (`decide_cut`). And a partition that took no part is seen about as it was when the transaction was
complete, by the clock of its coordinator and of the partition's leader: a guess that the second promise mends.

What has to be read for that are the versions that came since: a transaction that is there in part has a part behind the
cut, or one that is still to come. Only of those the earlier parts are looked for, in partitions that have a mark of
their id, up to the version at which the mark is an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from bus.client_texts import shown
from bus.cluster_metadata.configs import is_internal_topic
from bus.errors import BusError, ErrorCode, StorageFault
from bus.model import TRANSACTION_STATE_TOPIC, TopicPartition
from bus.ports import AppliedTransaction, KeyedRow
from bus.records.log_schema import TRANSACTION_STATE_VALUE_TYPE
from bus.storage_delta.log.listing import list_log, partition_folder
from bus.storage_delta.log.summary import find_transaction, read_history, transactions_in
from bus.tables.coordinator_views import last_values
from bus.tables.topics import TopicTables
from bus.transactions.bounds import coordinator_partition
from bus.transactions.changes import find_anchor
from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged, decode_record
from bus.transactions.state import ProducerIdentity, TransactionState

# transaction -> partition -> the version with the transaction's rows
Places = Mapping[ProducerIdentity, Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class ConsistentCut:
    """`hidden`: of a partition the transactions whose rows its version has, and the cut has not."""

    versions: Mapping[TopicPartition, int]
    hidden: Mapping[TopicPartition, frozenset[ProducerIdentity]]


def decide_cut(
    own: Mapping[TopicPartition, int],
    guess: Mapping[TopicPartition, int],
    oldest: Mapping[TopicPartition, int],
    places: Places,
    unfinished: Collection[ProducerIdentity],
) -> ConsistentCut:
    """Decide the versions of a consistent cut. `own`: the transaction's own partitions, with their versions, which
    stay. `guess`: about the version that each other partition should have. `oldest`: its minimum. `unfinished`:
    transactions of `places` with a part that is still to come.

    A version of `guess` is raised to include what the own partitions have, and everything that came with that; and
    lowered to before a transaction that is there in part. A transaction that cannot be excluded without excluding the
    own one is hidden.

    Partitions do not have their transactions in the same order. So the versions that one transaction left, and what the
    other partitions had at that time by the clocks of their leaders, cut through others: those that were in flight
    then, or are on the other side of a clock. Three promises hold, whatever the clocks say. No transaction is there in
    part. All of the one that the cut is of is there, and in its partitions nothing later. And what these partitions
    have of others before it is there in their other partitions too, as far as these have it by now."""
    torn = {each for each, where in places.items() if each in unfinished or _is_behind(own, where)}
    least = _least(own, places, torn)
    versions = {each: max(guess.get(each, -1), least.get(each, -1)) for each in guess.keys() | least.keys()}
    versions |= own
    floor = {each: max(oldest.get(each, 0), least.get(each, 0)) for each in versions}
    is_changed = True
    while is_changed:
        partial = list(_partial(versions, places, torn))
        is_changed = sum(_take_back(versions, floor, own, places[each]) for each in partial) > 0
    hidden: dict[TopicPartition, set[ProducerIdentity]] = {}
    for each in _partial(versions, places, torn):
        for partition in _seen(versions, places[each]):
            hidden.setdefault(partition, set()).add(each)
    return ConsistentCut(versions, {partition: frozenset(some) for partition, some in hidden.items()})


def _is_behind(own: Mapping[TopicPartition, int], where: Mapping[TopicPartition, int]) -> bool:
    """Tell whether it comes later in a partition of the own transaction."""
    return any(version > own.get(partition, version) for partition, version in where.items())


def _least(
    own: Mapping[TopicPartition, int], places: Places, torn: Collection[ProducerIdentity]
) -> dict[TopicPartition, int]:
    """Return the least versions at which everything that exists at `own` exists everywhere, with everything that came
    with it."""
    by_partition: dict[TopicPartition, list[tuple[int, ProducerIdentity]]] = {}
    for identity, where in places.items():
        for partition, version in where.items():
            by_partition.setdefault(partition, []).append((version, identity))
    waiting = {partition: sorted(some, key=lambda each: -each[0]) for partition, some in by_partition.items()}
    least, changed = dict(own), list(own)
    while changed:
        partition = changed.pop()
        left = waiting.get(partition, [])
        while left and left[-1][0] <= least[partition]:
            _, identity = left.pop()
            for other, version in () if identity in torn else places[identity].items():
                if version > least.get(other, -1):
                    least[other] = version
                    changed.append(other)
    return least


def _partial(
    versions: Mapping[TopicPartition, int], places: Places, torn: Collection[ProducerIdentity]
) -> Iterator[ProducerIdentity]:
    for identity, where in places.items():
        count = len(_seen(versions, where))
        if count and (identity in torn or count < len(where)):
            yield identity


def _seen(versions: Mapping[TopicPartition, int], where: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """A partition that no version is known of is not seen."""
    return [partition for partition, version in where.items() if version <= versions.get(partition, -1)]


def _take_back(
    versions: dict[TopicPartition, int],
    floor: Mapping[TopicPartition, int],
    own: Mapping[TopicPartition, int],
    where: Mapping[TopicPartition, int],
) -> bool:
    """Tell whether some version was taken back."""
    found = [each for each in _seen(versions, where) if each not in own and where[each] > floor[each]]
    for partition in found:
        versions[partition] = where[partition] - 1
    return bool(found)


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """`versions`: of the partitions that have rows of the transaction. `others`: of other partitions that have had
    transactions. `hidden`: of a partition the transactions whose rows do not count at its version, since another
    partition has rows of theirs behind the cut."""

    transactional_id: str
    number: int
    versions: Mapping[TopicPartition, int]
    completed_ms: int
    others: Mapping[TopicPartition, int] = field(default_factory=dict)
    hidden: Mapping[TopicPartition, frozenset[ProducerIdentity]] = field(default_factory=dict)

    def version_of(self, tables: TopicTables, partition: TopicPartition) -> int:
        """Raises `StorageFault` if all versions that the partition has are younger."""
        version = self.versions.get(partition, self.others.get(partition))
        return tables.version_at(partition, self.completed_ms) if version is None else version

    def hidden_rows(self, partition: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Producer id and epoch of the transactions that are hidden in the partition."""
        found = self.hidden.get(partition, frozenset())
        return tuple(sorted((each.producer_id, each.producer_epoch) for each in found))


# A commit is answered before the log has its records, by two seconds at most (see docs/design/transactions.md).
_COMPLETION_S = 3.0
_LOOK_AGAIN_S = 0.02


def is_not_of(producer_id: int, producer_epoch: int) -> str:
    """The condition that a row is not of that transaction, in SQL. Most rows have no producer."""
    return f"(producer_id = {producer_id} AND producer_epoch = {producer_epoch}) IS NOT TRUE"


def find_cut(tables: TopicTables, transactional_id: str) -> TransactionCut:
    """See `TransactionCut`. Raises as `find_own_cut`."""
    return _with_others(tables, find_own_cut(tables, transactional_id))


def find_own_cut(tables: TopicTables, transactional_id: str) -> TransactionCut:
    """Only of the partitions that took part in the last transaction of the id that was committed and is complete. The
    record of one that is decided is waited for, three seconds at most. Where it does not come, because the coordinator
    has died and nothing has asked for the id since, the proof in the partition counts, and the time of its version.

    Raises `BusError` TRANSACTIONAL_ID_NOT_FOUND, or INVALID_TXN_STATE if the versions of the log that are kept have no
    such transaction; `StorageFault`.
    """
    if not isinstance(transactional_id, str):
        raise ValueError(f"expected a transactional id as text, found {transactional_id!r}")
    until_s = time.monotonic() + _COMPLETION_S
    number = _proved_number(tables, _last_record(tables, transactional_id))
    while not _is_recorded(tables, transactional_id, number) and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_S)
    last: TransactionLogged | None = None
    for record in _records_of(tables, transactional_id):
        if isinstance(record, TransactionExpired):
            break
        proved = _cut_by_proof(tables, record) if last is None else None
        if proved is not None:
            return proved
        if record.state is TransactionState.COMPLETE_COMMIT:
            return _cut_of(tables, record)
        last = last or record
    if last is None:
        raise BusError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"expected a transactional id of {tables.root}, found {shown(transactional_id)!r}; those that exist: "
            "SELECT transactional_id FROM transactions",
        )
    raise BusError(
        ErrorCode.INVALID_TXN_STATE,
        f"{transactional_id}: expected the record of a committed transaction in {TRANSACTION_STATE_TOPIC}, found the "
        f"id {last.state.value}, and no such record in the versions that are kept; the producer's answer to the commit "
        "names the versions, too",
    )


def _last_record(tables: TopicTables, transactional_id: str) -> TransactionLogged | None:
    last = next(_records_of(tables, transactional_id), None)
    return last if isinstance(last, TransactionLogged) else None


def _is_recorded(tables: TopicTables, transactional_id: str, number: int) -> bool:
    """True if the log has the end of the transaction, or of a later one, and of all decided ones."""
    last = _last_record(tables, transactional_id)
    return last is None or (last.state is not TransactionState.PREPARE_COMMIT and last.number >= number)


def _proved_number(tables: TopicTables, record: TransactionLogged | None) -> int:
    """Return the number of the last transaction in the only partition of `record`; -1 if no version decides anything
    behind the record."""
    anchor = None if record is None else find_anchor(record)
    if record is None or anchor is None:
        return -1
    topic = tables.cluster().topics.get(anchor.partition.topic)
    if topic is None or topic.topic_id != anchor.partition.topic_id:
        return -1
    proof = tables.proof_of(anchor.partition.name, record.transactional_id)
    return (proof - 1) // 2  # one that was given up, with an even proof, came behind one that was committed, or is new


def _cut_by_proof(tables: TopicTables, record: TransactionLogged) -> TransactionCut | None:
    """None if the records tell as much."""
    number = _proved_number(tables, record)
    is_recorded = record.state is TransactionState.COMPLETE_COMMIT
    if number < record.number + is_recorded:
        return None
    (partition,) = record.partitions
    name = partition.name
    wanted = AppliedTransaction(record.transactional_id, number, record.producer_id, record.producer_epoch)
    last_version = tables.log_state(name).version
    rows = find_transaction(tables.store, partition_folder(name), wanted, last_version=last_version)
    if rows is None:
        return None
    completed_ms = tables.committed_ms(name, rows.version)
    return TransactionCut(record.transactional_id, number, {name: rows.version}, completed_ms)


def _records_of(tables: TopicTables, transactional_id: str) -> Iterator[LoggedRecord]:
    """Yield the records, the last one first; those that compaction has removed come from earlier versions, while they
    are kept. Compaction removes every overtaken record up to an offset, so what remains is never older than what it
    removed."""
    count, key = tables.topics().get(TRANSACTION_STATE_TOPIC, 0), transactional_id.encode()
    if not count:
        return
    partition = TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, count))
    begin = None  # the smallest offset of the records yielded so far
    for version in _versions_with_more(tables, partition):
        try:
            rows = tables.read_rows(partition, ["offset", "key", "value"], version)
        except StorageFault:
            if version is None:
                raise
            return  # older versions are deleted as well
        rows = rows.filter(pc.equal(rows.column("key"), key)).sort_by([("offset", "descending")])
        for offset, value in zip(rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if begin is None or offset < begin:
                begin = offset
                yield _decode(partition, transactional_id, value)


def _versions_with_more(tables: TopicTables, partition: TopicPartition) -> Iterator[int | None]:
    """The last version, None, and the one before each that took something away, the latest first."""
    yield None
    removing = [one.version for one in read_history(tables.store, partition) if one.removed.file_count]
    yield from (version - 1 for version in reversed(removing))


def _decode(partition: TopicPartition, transactional_id: str, value: Mapping[str, Any] | None) -> LoggedRecord:
    try:
        return decode_record(KeyedRow(transactional_id.encode(), value))
    except ValueError as error:
        raise StorageFault(f"{partition}: {transactional_id}: {error}") from None


def _with_others(tables: TopicTables, cut: TransactionCut) -> TransactionCut:
    topics = [topic for topic in tables.topics() if not is_internal_topic(topic)]
    partitions = [each for topic in topics for each in tables.partitions(topic)]
    guess = {each: version for each in partitions if (version := _guess(tables, each, cut.completed_ms)) is not None}
    own = {each: version for each, version in cut.versions.items() if each in partitions}
    seen, log = dict(guess | own), _TransactionLog(tables, partitions)  # the log is read after the guess was made
    while True:
        places, unfinished = log.find_places(seen)
        found = decide_cut(own, guess, log.oldest, places, unfinished)
        lowered = {each: version for each, version in found.versions.items() if version < seen.get(each, version)}
        if not lowered:
            others = {each: version for each, version in found.versions.items() if each not in own}
            return replace(cut, others=others, hidden=found.hidden)
        seen |= lowered  # transactions after the lowered version may now be there in part, too


def _guess(tables: TopicTables, partition: TopicPartition, timestamp_ms: int) -> int | None:
    try:
        return tables.version_at(partition, timestamp_ms)
    except StorageFault:
        return None


class _TransactionLog:
    """The transactions in the tables of a root, looked up as needed; each version is read once. The order matters: a
    transaction that is no longer open has all of its parts in the versions that are listed afterwards, and these lie at
    or below the marks that are read afterwards."""

    def __init__(self, tables: TopicTables, partitions: Sequence[TopicPartition]) -> None:
        self._tables = tables
        self._open = _open_transactions(tables)
        self._kept = {each: list_log(tables.store, partition_folder(each)).versions for each in partitions}
        self._marks = {each: marks for each in partitions if (marks := tables.transaction_marks(each))}
        self.oldest = {each: min(kept, default=0) for each, kept in self._kept.items()}
        self._read: dict[tuple[TopicPartition, int], Sequence[AppliedTransaction]] = {}

    def find_places(
        self, seen: Mapping[TopicPartition, int]
    ) -> tuple[Mapping[ProducerIdentity, Mapping[TopicPartition, int]], Collection[ProducerIdentity]]:
        """Return where the parts are of all transactions that have one behind `seen`, or one that is still to come. And
        which ones have such a one."""
        places: dict[ProducerIdentity, dict[TopicPartition, int]] = {each: {} for each in self._open}
        first: dict[str, int] = {}  # transactional id -> the smallest number of its open transactions
        for number, transactional_id in self._open.values():
            first[transactional_id] = min(number, first.get(transactional_id, number))
        for partition in self._marks:
            begin = seen.get(partition, -1)
            for version in self._kept[partition]:
                for each in self._transactions(partition, version) if version > begin else ():
                    places.setdefault(_identity(each), {})[partition] = version
                    first[each.transactional_id] = min(each.number, first.get(each.transactional_id, each.number))
        for partition in self._marks:
            self._look_back(partition, seen.get(partition, -1), first, places)
        return places, [each for each in self._open if places[each]]

    def _look_back(
        self,
        partition: TopicPartition,
        end: int,
        first: Mapping[str, int],
        places: Mapping[ProducerIdentity, dict[TopicPartition, int]],
    ) -> None:
        """Look back from `end`, until none of the ids can have such a transaction there."""
        left = {name for name, number in first.items() if self._marks[partition].get(name, -1) >= number}
        for version in sorted((each for each in self._kept[partition] if each <= end), reverse=True):
            if not left:
                return
            for each in self._transactions(partition, version):
                if _identity(each) in places:
                    places[_identity(each)][partition] = version
                if each.number <= first.get(each.transactional_id, -1):
                    left.discard(each.transactional_id)

    def _transactions(self, partition: TopicPartition, version: int) -> Sequence[AppliedTransaction]:
        key = partition, version
        if key not in self._read:
            self._read[key] = transactions_in(self._tables.store, partition_folder(partition), version)
        return self._read[key]


def _identity(transaction: AppliedTransaction) -> ProducerIdentity:
    return ProducerIdentity(transaction.producer_id, transaction.producer_epoch)


def _open_transactions(tables: TopicTables) -> Mapping[ProducerIdentity, tuple[int, str]]:
    """Return the numbers and ids of those whose commit is decided, and not yet carried out everywhere."""
    last = last_values(tables, TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_VALUE_TYPE)
    decided = last.filter(pc.equal(last.column("state"), TransactionState.PREPARE_COMMIT.value))
    columns = ("producer_id", "producer_epoch", "number", "transactional_id")
    rows = zip(*(decided.column(name).to_pylist() for name in columns), strict=True)
    # The decision has raised the epoch by one.
    return {ProducerIdentity(producer_id, epoch - 1): (number, name) for producer_id, epoch, number, name in rows}


def _cut_of(tables: TopicTables, record: TransactionLogged) -> TransactionCut:
    """A topic that was deleted, and perhaps made again, took no part."""
    names = {topic.topic_id for topic in tables.cluster().topics.values()}
    versions = {
        partition.name: rows.version for partition, rows in record.results.items() if partition.topic_id in names
    }
    return TransactionCut(record.transactional_id, record.number, versions, record.update_ms)
