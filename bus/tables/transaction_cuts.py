"""The consistent cut that a transaction left: a version of each partition, at which all of its rows are there.

Guards two promises. Of every partition that took part the version is that of the rows themselves, as the coordinator
has recorded it with the end of the transaction, or as the only partition proves it, so no part of it is missing, and of
the same partition nothing later is there. And the cut of a transaction is the same whenever it is made: a partition
that took no part is seen as it was when the transaction was complete, by the clock of its coordinator and of the
partition's leader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from bus.client_texts import shown
from bus.errors import BusError, ErrorCode, StorageFault
from bus.model import TRANSACTION_STATE_TOPIC, TopicPartition
from bus.ports import AppliedTransaction, KeyedRow
from bus.storage_delta.log.history import find_transaction, read_history
from bus.storage_delta.log.listing import partition_folder
from bus.tables.commit_times import committed_ms, version_at
from bus.tables.keyed_rows import read_rows
from bus.tables.topics import TopicTables
from bus.transactions.changes import find_anchor
from bus.transactions.placement import coordinator_partition
from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged, decode_record
from bus.transactions.state import TransactionState


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """`versions`: of the partitions that have rows of the transaction."""

    transactional_id: str
    number: int
    versions: Mapping[TopicPartition, int]
    completed_ms: int

    def version_of(self, tables: TopicTables, partition: TopicPartition) -> int:
        """Raises `StorageFault` if all versions that the partition has are younger."""
        version = self.versions.get(partition)
        return version_at(tables, partition, self.completed_ms) if version is None else version


# A commit is answered before the log has its records, by two seconds at most (see docs/design/transactions.md).
_COMPLETION_S = 3.0
_LOOK_AGAIN_S = 0.02


def find_cut(tables: TopicTables, transactional_id: str) -> TransactionCut:
    """That of the last transaction of the id that was committed and is complete. The record of one that is decided is
    waited for, three seconds at most. Where it does not come, because the coordinator has died and nothing has asked
    for the id since, the proof in the partition counts, and the time of its version.

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
    """The log has the end of the transaction, or of a later one, and of all that are decided."""
    last = _last_record(tables, transactional_id)
    return last is None or (last.state is not TransactionState.PREPARE_COMMIT and last.number >= number)


def _proved_number(tables: TopicTables, record: TransactionLogged | None) -> int:
    """Of the last transaction that the only partition of `record` has; -1 if a version decides nothing behind it."""
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
    is_told = record.state is TransactionState.COMPLETE_COMMIT
    if number < record.number + is_told:
        return None
    (partition,) = record.partitions
    name = partition.name
    wanted = AppliedTransaction(record.transactional_id, number, record.producer_id, record.producer_epoch)
    last_version = tables.log_state(name).version
    rows = find_transaction(tables.store, partition_folder(name), wanted, last_version=last_version)
    if rows is None:
        return None
    completed_ms = committed_ms(tables, name, rows.version)
    return TransactionCut(record.transactional_id, number, {name: rows.version}, completed_ms)


def _records_of(tables: TopicTables, transactional_id: str) -> Iterator[LoggedRecord]:
    """The last one first; those that compaction has removed out of the versions before it, while they are kept. It
    removes all that was overtaken up to an offset, so what it has left is never older than what it took."""
    count, key = tables.topics().get(TRANSACTION_STATE_TOPIC, 0), transactional_id.encode()
    if not count:
        return
    partition = TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, count))
    begin = None  # of what was told
    for version in _versions_with_more(tables, partition):
        try:
            rows = read_rows(tables, partition, ["offset", "key", "value"], version)
        except StorageFault:
            if version is None:
                raise
            return  # and older ones are gone as well
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


def _cut_of(tables: TopicTables, record: TransactionLogged) -> TransactionCut:
    """A topic that was deleted, and perhaps made again, took no part."""
    names = {topic.topic_id for topic in tables.cluster().topics.values()}
    versions = {
        partition.name: rows.version for partition, rows in record.results.items() if partition.topic_id in names
    }
    return TransactionCut(record.transactional_id, record.number, versions, record.update_ms)
