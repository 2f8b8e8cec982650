"""The consistent cut that a transaction left: a version of each partition, at which all of its rows are there.

Guards two promises. Of every partition that took part the version is that of the rows themselves, as the coordinator
has recorded it with the end of the transaction, so no part of it is missing, and of the same partition nothing later is
there. And the cut of a transaction is the same whenever it is made: a partition that took no part is seen as it was
when the transaction was complete, by the clock of its coordinator and of the partition's leader.
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
from bus.ports import KeyedRow
from bus.storage_delta.log.history import read_history
from bus.tables.commit_times import version_at
from bus.tables.keyed_rows import read_rows
from bus.tables.topics import TopicTables
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


# A commit is answered a moment before the log has its record (see docs/design/transactions.md).
_COMPLETION_S = 1.0
_LOOK_AGAIN_S = 0.02


def find_cut(tables: TopicTables, transactional_id: str) -> TransactionCut:
    """That of the last transaction of the id that was committed and is complete. One that is decided is waited for, but
    not for longer than a second.

    Raises `BusError` TRANSACTIONAL_ID_NOT_FOUND, or INVALID_TXN_STATE if the versions of the log that are kept have no
    such transaction; `StorageFault`.
    """
    if not isinstance(transactional_id, str):
        raise ValueError(f"expected a transactional id as text, found {transactional_id!r}")
    until_s = time.monotonic() + _COMPLETION_S
    while _is_being_committed(tables, transactional_id) and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_S)
    last: TransactionLogged | None = None
    for record in _records_of(tables, transactional_id):
        if isinstance(record, TransactionExpired):
            break
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


def _is_being_committed(tables: TopicTables, transactional_id: str) -> bool:
    last = next(_records_of(tables, transactional_id), None)
    return isinstance(last, TransactionLogged) and last.state is TransactionState.PREPARE_COMMIT


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
