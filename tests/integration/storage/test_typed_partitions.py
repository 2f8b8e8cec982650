"""Partitions of internal topics: typed by their topic, opened by writers and readers, and what each version left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import bus.storage_delta.root as root_module
from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, KeyedRow, PartitionTable
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE, INTERNAL_VALUE_TYPES
from bus.storage_delta.root import open_reader, open_storage
from bus.storage_delta.typed_log import DeltaKeyedRows
from tests.support.stores import led, log_batch

OFFSETS_3 = TopicPartition(CONSUMER_OFFSETS_TOPIC, 3)
ORDERS = TopicPartition("orders", 0)


def keyed_batch(rows: list[KeyedRow], base_offset: int, topic_rows: DeltaKeyedRows) -> LogBatch:
    batch = topic_rows.encode(rows, now_ms=1_000)
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=0,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        timestamp_ms=1_000,
        timestamp_max_ms=1_000,
        columns=batch.columns,
    )


def commit(table: PartitionTable, batch: LogBatch) -> None:
    assert isinstance(table.append([batch], leader_epoch=0, now_ms=1_000), Committed)


def test_the_table_of_an_internal_topic_is_typed_and_a_reader_finds_structs(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    rows = storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)
    table = led(storage.create_partition(OFFSETS_3, topic_id="id"))
    commit(table, keyed_batch([KeyedRow(b"k", {"group_id": "g", "committed_offset": 5})], 0, rows))
    commit(table, keyed_batch([KeyedRow(b"k", None)], 1, rows))
    storage.close()

    storage = open_storage(str(tmp_path))
    reader = open_reader(str(tmp_path)).open_partition(OFFSETS_3)
    for log in (led(storage.open_partition(OFFSETS_3, topic_id="id")).log, reader):
        batches = log.read(0, end_offset=2, max_bytes=1 << 20)
        found = [row for batch in batches for row in rows.decode(batch)]
        assert [row.key for row in found] == [b"k", b"k"]
        assert found[0].value is not None
        assert found[0].value["committed_offset"] == 5
        assert found[1].value is None
        assert batches[0].columns.schema.field("value").type == CONSUMER_OFFSETS_VALUE_TYPE
    storage.close()


def test_a_table_of_an_earlier_struct_gets_the_new_fields_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = pa.struct(list(CONSUMER_OFFSETS_VALUE_TYPE)[:6])
    monkeypatch.setitem(INTERNAL_VALUE_TYPES, CONSUMER_OFFSETS_TOPIC, earlier)
    assert root_module.INTERNAL_VALUE_TYPES is INTERNAL_VALUE_TYPES
    storage = open_storage(str(tmp_path))
    table = led(storage.create_partition(OFFSETS_3, topic_id="id"))
    commit(table, keyed_batch([KeyedRow(b"k", {"committed_offset": 5})], 0, storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)))
    storage.close()
    monkeypatch.undo()

    before = open_reader(str(tmp_path)).open_partition(OFFSETS_3)
    (old,) = before.read(0, end_offset=1, max_bytes=1 << 20)
    assert old.columns.schema.field("value").type == earlier
    storage = open_storage(str(tmp_path))
    rows = storage.keyed_rows(CONSUMER_OFFSETS_TOPIC)
    table = led(storage.open_partition(OFFSETS_3, topic_id="id"))
    commit(table, keyed_batch([KeyedRow(b"k", {"commit_ms": 9})], 1, rows))
    found = [row.value for batch in table.log.read(0, end_offset=2, max_bytes=1 << 20) for row in rows.decode(batch)]
    assert [(value or {})["committed_offset"] for value in found] == [5, None]
    assert [(value or {})["commit_ms"] for value in found] == [None, 9]
    storage.close()


def test_each_version_tells_the_high_watermark_that_it_left(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    table = led(storage.create_partition(ORDERS, topic_id="id"))
    commit(table, log_batch(0, [b"a", b"b"]))
    commit(table, log_batch(2, [b"c"]))
    assert [table.log.high_watermark_at(version) for version in (-1, 0, 1, 2, 3)] == [None, 0, 2, 3, None]
    (tmp_path / "topics/orders/0/_delta_log" / f"{1:020d}.json").unlink()
    assert [table.log.high_watermark_at(version) for version in (0, 1, 2)] == [0, None, 3]
    storage.close()
