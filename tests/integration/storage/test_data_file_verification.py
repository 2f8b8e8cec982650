"""Each rule about the rows of one data file, and what is said of a file that breaks it."""

from __future__ import annotations

import struct
import zlib
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bus.records.log_schema import LOG_SCHEMA, delta_schema_string
from bus.storage_delta.files.proved_parquet import FileSums, encode_sums
from bus.storage_delta.verify.data_file_verification import check_data_file
from bus.storage_delta.verify.replay import AddedFile
from tests.support.memory_store import MemoryStore

SECOND = 1_767_225_600  # 2026-01-01T00:00:00Z
MS = SECOND * 1000
PATH = f"{0:020d}-a.parquet"


def row(offset: int, *, epoch: int | None = 0, second: int | None = 0, kind: int | None = 0) -> dict[str, Any]:
    time = None if second is None else datetime.fromtimestamp(SECOND + second, timezone.utc)
    values = {"offset": offset, "timestamp": time, "timestamp_type": kind, "leader_epoch": epoch}
    return dict.fromkeys(LOG_SCHEMA.names) | {"headers": []} | values


def stats_of(rows: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """True ones of rows with times and without producers, but for what is `changed`: `max_offset=3`."""
    bounds = {
        end: {
            "offset": choose(row["offset"] for row in rows),
            "timestamp": f"{choose(row['timestamp'] for row in rows if row['timestamp']):%Y-%m-%dT%H:%M:%S}.000Z",
        }
        for end, choose in (("minValues", min), ("maxValues", max))
    }
    nulls = {"offset": 0, "timestamp": 0, "producer_id": len(rows), "sequence": len(rows)}
    stats = {"numRecords": len(rows), **bounds, "nullCount": nulls}
    for name, value in changed.items():
        kind, _, column = name.partition("_")
        if kind == "records":
            stats["numRecords"] = value
        else:
            stats[{"min": "minValues", "max": "maxValues", "nulls": "nullCount"}[kind]][column] = value
    return stats


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    schema = pa.schema([field.with_nullable(True) for field in LOG_SCHEMA])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, store_schema=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def check(
    rows: list[dict[str, Any]],
    stats: dict[str, Any] | None = None,
    *,
    tag: str | None = "",
    data: bytes | None = None,
    sums: str | None = None,
    epoch_min: int = -1,
    may_have_holes: bool = False,
) -> list[tuple[str, str, str]]:
    """`tag` None: of another engine; empty: a true one."""
    data = parquet_of(rows) if data is None else data
    stats = stats_of(rows) if stats is None else stats
    if tag == "":
        first, last = (int(stats[end]["offset"]) for end in ("minValues", "maxValues"))
        times = [one["timestamp"] for one in rows if one["timestamp"]]
        epoch = max(one["leader_epoch"] or 0 for one in rows)
        first_ms, last_ms = (int(choose(times).timestamp()) * 1000 for choose in (min, max))
        tag = f"{first} {last + 1} {len(rows)} {first_ms} {last_ms} {epoch}"
    store = MemoryStore()
    store.put(f"t/{PATH}", data)
    file = AddedFile(PATH, len(data), 1, stats, tag, sums=sums)
    return check_data_file(
        store,
        "t",
        file,
        delta_schema_string(LOG_SCHEMA),
        epoch_min=epoch_min,
        is_read=True,
        may_have_holes=may_have_holes,
    ).breaches


def test_rows_of_a_healthy_file_break_no_rule() -> None:
    assert check([row(0), row(1, epoch=1, second=4), row(2, epoch=1, kind=1)], epoch_min=0) == []


def test_offsets_are_dense_in_our_files_and_in_the_order_of_the_rows() -> None:
    def told(*offsets: int) -> list[tuple[str, str, str]]:
        found = check([row(offset) for offset in offsets], stats_of([row(offset) for offset in range(len(offsets))]))
        return [one for one in found if one[0] == "offsets are dense"]

    assert told(0, 1, 3) == [("offsets are dense", "offset 2 after 1", "3")]
    assert told(1, 0) == [("offsets are dense", "offset 2 after 1", "0")]
    assert told(0, 0) == [("offsets are dense", "offset 1 after 0", "0")]


def test_a_compacted_file_may_have_holes_and_a_foreign_one_any_order() -> None:
    assert check([row(0), row(7)], may_have_holes=True) == []
    twice = check([row(0), row(7), row(7)], may_have_holes=True)
    assert twice == [("offsets grow", "an offset above 7 after it", "7")]
    assert check([row(9), row(8)], tag=None) == []
    lost = check([row(9), row(7)], stats_of([row(7), row(9)]), tag=None)
    assert ("offsets are dense", "offset 8 after 7", "9") in lost


def test_leader_epochs_never_fall_within_a_file_or_between_files() -> None:
    promise = "leader epochs never go back"
    fallen = check([row(0, epoch=2), row(1, epoch=1)])
    assert fallen == [(promise, "a leader epoch of at least 2", "1 at offset 1")]
    assert check([row(0, epoch=2)], epoch_min=3) == [(promise, "a leader epoch of at least 3", "2 at offset 0")]


def test_nulls_and_types_are_told() -> None:
    promise = "no offset, timestamp, type or epoch is null"
    assert check([row(0), row(1, second=None)])[0] == (promise, "a value in every timestamp", "1 null")
    assert check([row(0), row(1, epoch=None)])[0] == (promise, "a value in every leader_epoch", "1 null")
    assert check([row(0), row(1, kind=None)])[0] == (promise, "a value in every timestamp_type", "1 null")
    assert check([row(0), row(1, kind=5)]) == [("timestamp types are known", "0 or 1", "0, 5")]


def test_statistics_are_held_against_the_rows() -> None:
    rows, promise = [row(0), row(1, second=4)], "statistics are true"
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"records": 1}, "numRecords 2", "1"),
        ({"max_timestamp": "2026-01-01T00:00:03.000Z"}, f"maxValues.timestamp {MS + 4000} ms", f"{MS + 3000} ms"),
        ({"min_timestamp": "2026-01-01T00:00:00.001Z"}, f"minValues.timestamp {MS} ms", f"{MS + 1} ms"),
        ({"min_sequence": 4}, "minValues.sequence None", "4"),
        ({"nulls_sequence": 0}, "nullCount.sequence 2", "0"),
    ]
    for changed, expected, found in wrong:
        assert (promise, expected, found) in check(rows, stats_of(rows, **changed)), changed
    lying = f"0 2 2 {MS} {MS + 4000} 1"
    assert check(rows, tag=lying) == [(promise, f"the tag '0 2 2 {MS} {MS + 4000} 0'", f"'{lying}'")]
    assert check(rows, data=parquet_of([])) == [(promise, "2 records", "none")]


def test_statistics_inside_the_file_are_held_against_its_row_groups() -> None:
    """A reader that skips row groups by them would miss a row."""
    rows = [row(number) for number in range(10)]
    data = parquet_of(rows)
    lying = data.replace(b"\x08" + struct.pack("<q", 9), b"\x08" + struct.pack("<q", 8))
    assert lying != data
    told = "row group 0 with offset from (0, 9)"
    assert check(rows, data=lying, sums=sums_of(lying)) == [("statistics are true", told, "(0, 8)")]
    ((promise, _, found),) = check(rows, data=lying)
    assert promise == "live files are readable"
    assert "expected offset from 0 to 8, found (0, 9)" in found


def sums_of(data: bytes) -> str:
    columns = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    last = columns.column(columns.num_columns - 1)
    end = (last.dictionary_page_offset or last.data_page_offset) + last.total_compressed_size
    return encode_sums(FileSums(end, zlib.crc32(data[end:]), (zlib.crc32(data[:end]),)))
