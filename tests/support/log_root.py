"""A root with one topic of one partition, whose table is written as a broker writes it, but without one."""

from __future__ import annotations

import shutil
from pathlib import Path

from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, encode_record
from bus.model import TopicPartition
from bus.ports import Committed
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.root import DeltaStorage, open_storage
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import Report, verify_partition
from tests.support.stores import NOW_MS, led, log_batch

TOPIC_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
PARTITION = TopicPartition("orders", 0)
COUNT = 10  # records of a commit


class LogRoot:
    def __init__(self, root: Path, *, is_managed: bool = False) -> None:
        self._place(root)
        self._storage = open_storage(str(root), exclusive=False)
        metadata = led(self._storage.open_metadata())
        rows = [
            encode_record(BrokerRegistered(0, "127.0.0.1", 9094)),
            encode_record(TopicCreated(PARTITION.topic, TOPIC_ID, 1, 0)),
        ]
        assert isinstance(metadata.append(rows, leader_epoch=0, now_ms=NOW_MS), Committed)
        self.table = led(self._storage.create_partition(PARTITION, topic_id=TOPIC_ID, is_managed=is_managed))

    def _place(self, root: Path) -> None:
        self.root = root
        self.folder = root / partition_folder(PARTITION)
        self.log = self.folder / "_delta_log"

    @classmethod
    def copy_of(cls, other: LogRoot, root: Path) -> LogRoot:
        """Copy all files; the table is not open."""
        copy = cls.__new__(cls)
        shutil.copytree(other.root, root)
        copy._place(root)
        return copy

    @property
    def storage(self) -> DeltaStorage:
        return self._storage

    def append(self, commits: int = 1) -> None:
        """`COUNT` records a commit, a second apart. The keys go round after seven; each value is its own offset."""
        for _ in range(commits):
            base = self.table.state.high_watermark
            offsets = range(base, base + COUNT)
            batch = log_batch(
                base, [b"%d" % offset for offset in offsets], keys=[b"k%d" % (offset % 7) for offset in offsets]
            )
            now_ms = NOW_MS + 1_000 * (self.table.state.version + 1)
            assert isinstance(self.table.append([batch], leader_epoch=0, now_ms=now_ms), Committed)

    def open(self) -> DeltaPartitionTable:
        """Open the table like a broker that starts."""
        self.table = led(open_storage(str(self.root), exclusive=False).open_partition(PARTITION, topic_id=TOPIC_ID))
        return self.table

    def values(self) -> list[bytes]:
        """Return the values of all records that a consumer gets."""
        values: list[bytes] = []
        offset, end = self.table.state.log_start, self.table.state.high_watermark
        while offset < end and (batches := self.table.log.read(offset, end_offset=end, max_bytes=1 << 20)):
            for batch in batches:
                values += batch.columns.column("value").to_pylist()
            offset = batches[-1].next_offset
        return values

    def verify(self) -> Report:
        return verify_partition(LocalStore(str(self.root)), PARTITION, topic_id=TOPIC_ID)

    def data_file(self, base_offset: int) -> Path:
        (path,) = self.folder.glob(f"{base_offset:020d}-*.parquet")
        return path
