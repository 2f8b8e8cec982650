"""The consistent cut that a transaction left: a version of each partition, at which all of its rows are there.

Guards two promises. Of every partition that took part the version is that of the rows themselves, as the coordinator
has recorded it with the end of the transaction, so no part of it is missing, and of the same partition nothing later is
there. And the cut of a transaction is the same whenever it is made: a partition that took no part is seen as it was
when the transaction was complete, by the clock of its coordinator and of the partition's leader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from bus.client_texts import shown
from bus.errors import BusError, ErrorCode, StorageFault
from bus.model import TRANSACTION_STATE_TOPIC, TopicPartition
from bus.ports import KeyedRow
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


def find_cut(tables: TopicTables, transactional_id: str) -> TransactionCut:
    """That of the last transaction of the id that was committed and is complete.

    Raises `BusError` TRANSACTIONAL_ID_NOT_FOUND, or INVALID_TXN_STATE if the log has no such transaction: the id has
    committed none, or another one since, and compaction has removed the record of the one before; `StorageFault`.
    """
    if not isinstance(transactional_id, str):
        raise ValueError(f"expected a transactional id as text, found {transactional_id!r}")
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
        f"id {last.state.value}; an older record may have been compacted away: the producer's answer to the commit "
        "names the versions, too",
    )


def _records_of(tables: TopicTables, transactional_id: str) -> Iterator[LoggedRecord]:
    """The last one first."""
    count, key = tables.topics().get(TRANSACTION_STATE_TOPIC, 0), transactional_id.encode()
    if not count:
        return
    partition = TopicPartition(TRANSACTION_STATE_TOPIC, coordinator_partition(transactional_id, count))
    rows = read_rows(tables, partition, ["offset", "key", "value"])
    rows = rows.filter(pc.equal(rows.column("key"), key)).sort_by([("offset", "descending")])
    for value in rows.column("value").to_pylist():
        try:
            yield decode_record(KeyedRow(key, value))
        except ValueError as error:
            raise StorageFault(f"{partition}: {transactional_id}: {error}") from None


def _cut_of(tables: TopicTables, record: TransactionLogged) -> TransactionCut:
    """A topic that was deleted, and perhaps made again, took no part."""
    names = {topic.topic_id for topic in tables.cluster().topics.values()}
    versions = {
        partition.name: rows.version for partition, rows in record.results.items() if partition.topic_id in names
    }
    return TransactionCut(record.transactional_id, record.number, versions, record.update_ms)
