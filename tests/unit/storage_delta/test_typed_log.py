"""The bus's own records as columns and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bus.model import CONSUMER_OFFSETS_TOPIC, LogBatch, RecordBatch, TimestampType
from bus.ports import KeyedRow
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE
from bus.storage_delta.typed_log import DeltaKeyedRows

ROWS = DeltaKeyedRows(CONSUMER_OFFSETS_TOPIC, CONSUMER_OFFSETS_VALUE_TYPE)
MEMBER = {
    "member_id": "m",
    "subscription": b"\x00\xff",
    "topics": ["a"],
    "partitions": [{"topic": "a", "partition": 1}],
}


def placed(batch: RecordBatch, base_offset: int = 7) -> LogBatch:
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + batch.record_count,
        record_count=batch.record_count,
        size_bytes=batch.size_bytes,
        leader_epoch=0,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        timestamp_ms=batch.timestamp_min_ms,
        timestamp_max_ms=batch.timestamp_max_ms,
        columns=batch.columns,
    )


def there(fields: dict[str, Any] | Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def test_rows_come_back_in_order_with_tombstones_and_nested_values() -> None:
    rows = [
        KeyedRow(b'["offset","g","a",0]', {"type": "OffsetCommitted", "committed_offset": 2**60}),
        KeyedRow(b'["offset","g","a",0]', None),
        KeyedRow(b'["group","g"]', {"type": "GroupStored", "generation": 3, "members": [MEMBER]}),
        KeyedRow(b"", {}),
    ]
    batch = ROWS.encode(rows, now_ms=5)
    assert (batch.record_count, batch.timestamp_min_ms, batch.timestamp_max_ms, batch.has_timestamps) == (
        4,
        5,
        5,
        False,
    )
    found = list(ROWS.decode(placed(batch)))
    assert [row.key for row in found] == [row.key for row in rows]
    assert found[1].value is None
    assert there(found[0].value) == rows[0].value
    assert found[2].value is not None
    assert there(found[2].value["members"][0]) == MEMBER
    assert found[3].value is not None
    assert there(found[3].value) == {}
    assert set(found[0].value or ()) == {field.name for field in CONSUMER_OFFSETS_VALUE_TYPE}


@pytest.mark.parametrize(
    "value",
    [{"generation": "three"}, {"generation": 2**31}, {"members": 5}, {"generation": True}, {"group_id": 3}],
)
def test_a_value_of_another_type_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected rows of __consumer_offsets"):
        ROWS.encode([KeyedRow(b"k", {}), KeyedRow(b"k", value)], now_ms=5)


def test_a_field_that_the_struct_has_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"found \['offsets'\]"):
        ROWS.encode([KeyedRow(b"k", {"offsets": 1})], now_ms=5)


@pytest.mark.parametrize(("names", "kept"), [(["key", "value"], [b"k"]), (["value"], [])])
def test_a_record_without_a_key_costs_itself_and_is_logged(
    names: list[str], kept: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    columns = {
        "key": pa.array([b"k", None], pa.binary()),
        "value": pa.array([{"partition": 1}, {"partition": 2}], CONSUMER_OFFSETS_VALUE_TYPE),
    }
    batch = ROWS.encode([KeyedRow(b"k", {}), KeyedRow(b"k", {})], now_ms=5)
    keyless = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
    rows = list(ROWS.decode(replace(placed(batch), columns=keyless)))
    assert [row.key for row in rows] == kept
    assert all(row.value is not None and row.value["partition"] == 1 for row in rows)
    assert "offsets 7 to 8: expected a key" in caplog.text
