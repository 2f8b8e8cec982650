"""Records of idempotent producers, judged by Spark's own Delta: the same rows, and the same MERGE."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.ports import Committed, ProducerProgress
from bus.records.arrow_batches import check_records, complete_columns, sequences_of
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.root import DeltaStorage, open_storage
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import led

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
LAST = SEQUENCE_MODULUS - 1
Row = tuple[int | None, int | None, int | None]
KEY = ("producer_id", "producer_epoch", "sequence")


def batch_of(producer_id: int, epoch: int, base_sequence: int, count: int) -> RecordBatch:
    values = pa.array([b"%d" % ((base_sequence + at) % SEQUENCE_MODULUS) for at in range(count)], pa.binary())
    records = check_records(pa.RecordBatch.from_arrays([values], names=["value"]), default_timestamp_ms=NOW_MS)
    return replace(records, producer=ProducerStamp(producer_id, epoch, base_sequence))


def placed(batch: RecordBatch, base_offset: int) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=0,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=NOW_MS,
        timestamp_max_ms=NOW_MS,
        columns=batch.columns,
        producer=batch.producer,
    )


def append(table: DeltaPartitionTable, *batches: RecordBatch) -> None:
    log_batches, producers = [], {}
    offset = table.state.high_watermark
    for batch in batches:
        log_batches.append(placed(batch, offset))
        offset += batch.record_count
        if (stamp := batch.producer) is not None:
            last = int(sequences_of(batch)[-1])
            producers[stamp.producer_id] = ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)
    outcome = table.append(log_batches, leader_epoch=0, now_ms=NOW_MS, producers=list(producers.values()))
    assert isinstance(outcome, Committed)


# In the order of their offsets: interleaved, epochs that begin anew and that go on, sequences that wrap, and one batch
# without a producer.
COMMITS = [
    [batch_of(7, 0, 0, 5), batch_of(8, 0, LAST - 3, 3)],
    [batch_of(8, 0, LAST, 4), replace(batch_of(0, 0, 0, 2), producer=None), batch_of(7, 0, 5, 1)],
    [batch_of(7, 1, 0, 300), batch_of(8, 4, 3, 2)],
]


@pytest.fixture
def storage(tmp_path: Path) -> DeltaStorage:
    return open_storage(str(tmp_path / "root"))


@pytest.fixture
def table(storage: DeltaStorage) -> DeltaPartitionTable:
    table = led(storage.create_partition(PARTITION, topic_id="id"))
    for commit in COMMITS:
        append(table, *commit)
    return table


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "root" / partition_folder(PARTITION))


def expected_rows() -> list[tuple[int, bytes, Row]]:
    rows: list[tuple[int, bytes, Row]] = []
    for commit in COMMITS:
        for batch in commit:
            for at in range(batch.record_count):
                stamp, value = batch.producer, batch.columns.column("value")[at].as_py()
                key: Row = (None, None, None)
                if stamp is not None:
                    sequence = (stamp.base_sequence + at) % SEQUENCE_MODULUS
                    key = (stamp.producer_id, stamp.producer_epoch, sequence)
                rows.append((len(rows), value, key))
    return rows


def test_every_engine_reads_the_same_stamps(spark: SparkSession, table: DeltaPartitionTable, url: str) -> None:
    expected = expected_rows()
    with_spark = spark.read.format("delta").load(url).orderBy("offset").select("offset", "value", *KEY).collect()
    assert [(row[0], bytes(row[1]), tuple(row[2:])) for row in with_spark] == expected
    judged = deltalake.DeltaTable(url)
    rows = judged.to_pyarrow_table(columns=["offset", "value", *KEY]).sort_by("offset")
    assert [(row["offset"], row["value"], tuple(row[name] for name in KEY)) for row in rows.to_pylist()] == expected
    files = ", ".join(f"'{uri}'" for uri in judged.file_uris())
    with duckdb.connect() as connection:
        found = connection.sql(
            f'SELECT "offset", value, {", ".join(KEY)} FROM read_parquet([{files}]) ORDER BY "offset"'
        ).fetchall()
    assert [(row[0], row[1], tuple(row[2:])) for row in found] == expected


ASKED = [
    batch_of(7, 0, 3, 6),  # a part is there
    batch_of(7, 0, 0, 2),  # all
    batch_of(8, 0, LAST - 5, 12),  # around the end, both ends missing
    batch_of(7, 1, 290, 20),
    batch_of(8, 4, 0, 7),
    batch_of(7, 2, 0, 5),  # a new epoch
    batch_of(9, 0, 0, 5),  # a new producer
]


@pytest.mark.parametrize("is_optimized", [False, True])
def test_a_merge_inserts_exactly_what_is_called_missing(
    spark: SparkSession,
    storage: DeltaStorage,
    table: DeltaPartitionTable,
    url: str,
    tmp_path: Path,
    is_optimized: bool,
) -> None:
    if is_optimized:
        deltalake.DeltaTable(url).optimize.compact()
        table = led(storage.open_partition(PARTITION, topic_id="id"))
        assert table.state.file_count == 1
    high_watermark = table.state.high_watermark
    missing = [row for batch in ASKED for row in keys_of(table.producers.match(batch).missing)]
    copy = shutil.copytree(url, tmp_path / "copy")
    source = write_source(tmp_path / "source.parquet", ASKED, high_watermark)
    condition = " AND ".join(f"target.{name} = source.{name}" for name in KEY)
    (
        DeltaTable.forPath(spark, str(copy))
        .alias("target")
        .merge(spark.read.parquet(str(source)).alias("source"), condition)
        .whenNotMatchedInsertAll()
        .execute()
    )
    merged = spark.read.format("delta").load(str(copy))
    inserted = merged.where(f"offset >= {high_watermark}").orderBy("offset").select(*KEY).collect()
    assert [tuple(row) for row in inserted] == missing
    assert merged.count() == high_watermark + len(missing)
    assert 0 < len(missing) < sum(batch.record_count for batch in ASKED)


def keys_of(batch: RecordBatch | None) -> list[Row]:
    if batch is None:
        return []
    assert batch.producer is not None
    key = batch.producer.producer_id, batch.producer.producer_epoch
    return [(*key, sequence) for sequence in sequences_of(batch).tolist()]


def write_source(path: Path, batches: Sequence[RecordBatch], base_offset: int) -> Path:
    rows = []
    for batch in batches:
        rows.append(complete_columns(placed(batch, base_offset)))
        base_offset += batch.record_count
    pq.write_table(pa.Table.from_batches(rows), path)
    return path
