"""A partition's table with a store of its own: append, compact, roll, open again, and read it as a consumer does."""

from __future__ import annotations

from collections.abc import Sequence

from bus.model import LogBatch, TopicPartition
from bus.ports import Committed, Pace, PreparedFiles, ProducerProgress, no_pace
from bus.storage_delta.root import DeltaStorage, open_storage_on
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import led, log_batch

NAME = TopicPartition("prices", 0)
FOLDER = "topics/prices/0"
DAY_MS = 86_400_000
Row = tuple[int, bytes | None, bytes | None]


class TableBench:
    """A table with keys, and what its rows are."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.storage: DeltaStorage = open_storage_on(self.store, exclusive=False)
        self.table = led(self.storage.create_partition(NAME, topic_id="id"))
        self.now_ms = 1_000_000

    def append(self, *records: tuple[bytes | None, bytes | None], producer: tuple[int, int, int] | None = None) -> None:
        keys, values = [key for key, _ in records], [value for _, value in records]
        batch = log_batch(self.table.state.high_watermark, values, keys=keys, producer=producer)
        progress = [] if producer is None else [ProducerProgress(producer[0], producer[1], producer[2] + len(keys) - 1)]
        outcome = self.table.append([batch], leader_epoch=0, now_ms=self.now_ms, producers=progress)
        assert isinstance(outcome, Committed)

    def prepare(self, retention_ms: int = DAY_MS) -> PreparedFiles | None:
        return self.table.rewrites.prepare_key_compaction(now_ms=self.now_ms, tombstone_retention_ms=retention_ms)

    def compact(self, retention_ms: int = DAY_MS) -> PreparedFiles:
        prepared = self.prepare(retention_ms)
        assert prepared is not None
        outcome = self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=self.now_ms)
        assert outcome == Committed(self.table.state.version, self.table.state.high_watermark)
        return prepared

    def prepare_roll(
        self,
        first: int = 0,
        count: int | None = None,
        *,
        compression: str = "zstd",
        retention_ms: int = DAY_MS,
        pace: Pace = no_pace,
    ) -> PreparedFiles:
        files = self.table.rewrites.files[first:] if count is None else self.table.rewrites.files[first : first + count]
        return self.table.rewrites.prepare_roll(
            files, compression=compression, now_ms=self.now_ms, tombstone_retention_ms=retention_ms, pace=pace
        )

    def roll(self, first: int = 0, count: int | None = None, *, retention_ms: int = DAY_MS) -> PreparedFiles:
        prepared = self.prepare_roll(first, count, retention_ms=retention_ms)
        outcome = self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=self.now_ms)
        assert outcome == Committed(self.table.state.version, self.table.state.high_watermark)
        return prepared

    def restart(self) -> DeltaPartitionTable:
        """Open the table as another process does, which remembers nothing."""
        self.storage = open_storage_on(self.store, exclusive=False)
        return self.reopen()

    def reopen(self) -> DeltaPartitionTable:
        self.table = led(self.storage.open_partition(NAME, topic_id="id"))
        return self.table

    def rows(self, offset: int = 0, max_bytes: int = 1 << 20) -> list[Row]:
        """Read as a consumer does: from where the last batch ended."""
        rows: list[Row] = []
        end_offset = self.table.state.high_watermark
        while offset < end_offset:
            for batch in self.table.log.read(offset, end_offset=end_offset, max_bytes=max_bytes):
                assert batch.next_offset > offset
                rows += [row for row in rows_of(batch) if row[0] >= offset]
                offset = batch.next_offset
        return rows

    def breaches(self) -> Sequence[object]:
        return verify_partition(self.store, NAME, topic_id="id").breaches

    def data_files(self) -> set[str]:
        return {entry.name for entry in self.store.list(FOLDER).files}


def rows_of(batch: LogBatch) -> list[Row]:
    names = batch.columns.schema.names
    dense = list(range(batch.base_offset, batch.base_offset + batch.record_count))
    offsets = batch.columns.column("offset").to_pylist() if "offset" in names else dense
    keys = batch.columns.column("key").to_pylist() if "key" in names else [None] * batch.record_count
    return list(zip(offsets, keys, batch.columns.column("value").to_pylist(), strict=True))
