"""Every version that is kept, as delta-spark reads it: by batch, by time travel, by a stream that lags behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bus.errors import StorageDamaged
from bus.model import TopicPartition
from bus.ports import Committed
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.stores import NOW_MS, led, log_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = TopicPartition("orders", 0)
FAR_MS = 2**62


class Writer:
    """A broker's table, and which offsets each of its versions has for whoever reads it natively."""

    def __init__(self, root: Path) -> None:
        self.store = LocalStore(str(root))
        self.folder = str(root / "topics/orders/0")
        storage = open_storage_on(self.store, exclusive=False)
        self.table: DeltaPartitionTable = led(storage.create_partition(NAME, topic_id="id"))
        self.first, self.offsets = 0, dict[int, list[int]]()

    def note(self) -> None:
        state = self.table.state
        self.first = self.table.rewrites.files[0].base_offset if self.table.rewrites.files else state.high_watermark
        self.offsets[state.version] = list(range(self.first, state.high_watermark))

    def append(self, commits: int) -> None:
        for _ in range(commits):
            batch = log_batch(self.table.state.high_watermark, [b"v"] * 3)
            assert isinstance(self.table.append([batch], leader_epoch=0, now_ms=NOW_MS), Committed)
            self.note()

    def roll(self) -> None:
        files = [file for file in self.table.rewrites.files if file.level == 0]
        prepared = self.table.rewrites.prepare_roll(files, compression="zstd", now_ms=NOW_MS, tombstone_retention_ms=1)
        assert isinstance(self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
        self.note()

    def start_at(self, offset: int) -> None:
        assert isinstance(self.table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=NOW_MS), Committed)
        self.note()

    def drop(self, count_max: int) -> None:
        dropped = self.table.cleanup.drop_old_versions(
            committed_before_ms=0, count_max=count_max, removed_before_ms=FAR_MS
        )
        assert dropped.versions > 0
        assert dropped.data_files > 0

    def breaches(self) -> list[str]:
        return [str(breach) for breach in verify_partition(self.store, NAME, topic_id="id").breaches]


@pytest.fixture
def make_writer(tmp_path: Path) -> Callable[[], Writer]:
    return lambda: Writer(tmp_path)


def live_through_a_lot(writer: Writer) -> int:
    """Returns the first version that is kept. Data files of dropped versions are gone, and checkpoints do not name
    them any more."""
    writer.append(4)
    writer.roll()
    writer.table.cleanup.write_checkpoint()  # version 5
    writer.append(3)
    writer.start_at(4)
    writer.roll()
    kept = writer.table.state.version
    writer.table.cleanup.write_checkpoint()
    writer.append(2)
    writer.start_at(13)
    writer.append(2)
    writer.roll()
    writer.drop(count_max=writer.table.state.version - kept + 1)
    writer.table.cleanup.write_checkpoint()
    writer.append(1)
    return kept


def test_batches_and_time_travel_read_every_kept_version(
    spark: SparkSession, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    kept = live_through_a_lot(writer)
    last = writer.table.state.version
    for version in range(kept, last + 1):
        rows = spark.sql(f"SELECT offset FROM delta.`{writer.folder}` VERSION AS OF {version} ORDER BY offset")
        assert [row.offset for row in rows.collect()] == writer.offsets[version]
    rows = spark.read.format("delta").load(writer.folder).orderBy("offset").select("offset")
    assert [row.offset for row in rows.collect()] == writer.offsets[last]
    with pytest.raises(Exception, match=r"(?i)version"):
        spark.sql(f"SELECT offset FROM delta.`{writer.folder}` VERSION AS OF {kept - 1}").collect()
    assert writer.breaches() == []


def test_a_stream_that_lags_reads_what_is_rolled_and_retired_meanwhile_once(
    spark: SparkSession, tmp_path: Path, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    kept = live_through_a_lot(writer)
    stream = (
        spark.readStream.format("delta")
        .option("startingVersion", kept)
        .option("ignoreDeletes", "true")
        .option("maxFilesPerTrigger", "1")
        .load(writer.folder)
        .select("offset")
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("lagging")
        .option("checkpointLocation", str(tmp_path / "stream"))
        .start()
    )
    try:
        query.processAllAvailable()
        writer.append(2)
        writer.roll()
        writer.table.cleanup.write_checkpoint()
        writer.start_at(writer.table.state.high_watermark - 1)
        query.processAllAvailable()
    finally:
        query.stop()
    # The records of the versions after the first one that is kept, whatever became of them since.
    first = writer.offsets[kept][-1] + 1
    assert sorted(row.offset for row in spark.table("lagging").collect()) == list(
        range(first, writer.table.state.high_watermark)
    )


def test_what_spark_rewrites_and_vacuums_beside_is_adopted(
    spark: SparkSession, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    writer.append(4)
    writer.roll()
    writer.append(2)
    spark.sql(f"OPTIMIZE delta.`{writer.folder}`")
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # of 10,000 tasks
    spark.sql(f"VACUUM delta.`{writer.folder}`")
    assert writer.table.reload().file_count == 1
    writer.append(3)
    writer.roll()
    writer.first = 0
    rows = spark.sql(f"SELECT offset FROM delta.`{writer.folder}` VERSION AS OF 4 ORDER BY offset")
    assert [row.offset for row in rows.collect()] == list(range(12))
    assert writer.breaches() == []


def test_what_spark_deletes_stops_the_table_until_it_is_restored(
    spark: SparkSession, make_writer: Callable[[], Writer]
) -> None:
    writer = make_writer()
    writer.append(4)
    before = writer.table.state
    spark.sql(f"DELETE FROM delta.`{writer.folder}` WHERE offset = 7")
    with pytest.raises(StorageDamaged, match=r"05\.json: DELETE of Apache-Spark.*bus log repair.*to version 4"):
        writer.table.reload()
    spark.sql(f"RESTORE TABLE delta.`{writer.folder}` TO VERSION AS OF {before.version}")
    found = writer.table.reload()
    assert (found.version, found.high_watermark, found.log_start) == (6, 12, 0)
    writer.append(1)
    rows = spark.read.format("delta").load(writer.folder).orderBy("offset").select("offset")
    assert [row.offset for row in rows.collect()] == list(range(15))
