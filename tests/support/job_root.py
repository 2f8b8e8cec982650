"""A bus root with one topic, filled through the commit path: what jobs over tables are tried on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicConfigChanged, TopicCreated, encode_record
from bus.model import LogBatch, ProducerStamp, TimestampType, TopicPartition
from bus.ports import Committed, PreparedFiles, ProducerProgress, SwapKind
from bus.records.arrow_batches import check_records
from bus.storage_delta.root import open_storage
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.stores import led

NOW_MS = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None]  # key and value


class JobRoot:
    def __init__(
        self, folder: Path, topic: str = "orders", partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.storage = open_storage(str(folder), exclusive=False)
        metadata = led(self.storage.open_metadata())
        self.topic_id = str(uuid.uuid4())
        self.tables: dict[TopicPartition, DeltaPartitionTable] = {}
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            self.tables[partition] = led(self.storage.create_partition(partition, topic_id=self.topic_id))
        records = [
            BrokerRegistered(0, "127.0.0.1", 9094),
            TopicCreated(topic, self.topic_id, partitions, leader_id=0),
            *(TopicConfigChanged(topic, self.topic_id, name, value) for name, value in (configs or {}).items()),
        ]
        rows = [encode_record(record) for record in records]
        assert isinstance(metadata.append(rows, leader_epoch=0, now_ms=NOW_MS), Committed)
        self.first = next(iter(self.tables))

    @property
    def table(self) -> DeltaPartitionTable:
        return self.tables[self.first]

    def path(self, partition: TopicPartition | None = None) -> Path:
        named = partition or self.first
        return self.folder / "topics" / named.topic / str(named.partition)

    def append(
        self,
        rows: Sequence[Row],
        *,
        partition: TopicPartition | None = None,
        now_ms: int = NOW_MS,
        leader_epoch: int = 0,
        producer: ProducerStamp | None = None,
    ) -> None:
        """One commit."""
        table = self.tables[partition or self.first]
        base = table.state.high_watermark
        columns = [pa.array([key for key, _ in rows], pa.binary()), pa.array([value for _, value in rows], pa.binary())]
        records = check_records(
            pa.RecordBatch.from_arrays(columns, names=["key", "value"]), default_timestamp_ms=now_ms
        )
        batch = LogBatch(
            base_offset=base,
            next_offset=base + len(rows),
            record_count=len(rows),
            size_bytes=records.size_bytes,
            leader_epoch=leader_epoch,
            timestamp_type=TimestampType.CREATE_TIME,
            timestamp_ms=now_ms,
            timestamp_max_ms=now_ms,
            columns=records.columns,
            producer=producer,
        )
        progress: list[ProducerProgress] = []
        if producer is not None:
            last = producer.base_sequence + len(rows) - 1
            progress = [ProducerProgress(producer.producer_id, producer.producer_epoch, last, now_ms)]
        outcome = table.append([batch], leader_epoch=leader_epoch, now_ms=now_ms, producers=progress)
        assert isinstance(outcome, Committed)

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        """The leader's part of a swap."""
        table = self.tables[partition]
        checked = table.rewrites.check_swap(removes, adds, kind)
        assert isinstance(checked, PreparedFiles), checked
        outcome = table.rewrites.swap(checked, leader_epoch=table.state.leader_epoch, now_ms=NOW_MS)
        assert isinstance(outcome, Committed)
        return outcome.version

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        return frozenset(file.path for file in self.tables[partition].rewrites.files)

    def breaches(self) -> list[str]:
        store = LocalStore(str(self.folder))
        return [
            str(breach)
            for partition in self.tables
            for breach in verify_partition(store, partition, topic_id=self.topic_id).breaches
        ]
