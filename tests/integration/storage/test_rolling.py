"""Rolling of a table: small files become one, and rows, readers and the log's promises do not notice."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import StorageDamaged, StorageFault, StorageFull
from bus.model import LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, Conflicted, MaintenanceStopped, no_pace
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES, SMALL_ROWS_MAX
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.maintenance.rewrites import Rolling
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import LocalStore
from tests.support.memory_store import MemoryStore
from tests.support.stores import FailingFileSystem, ScriptedStore, led, log_batch
from tests.support.table_bench import DAY_MS, FOLDER, TableBench


def parquet_of(bench: TableBench, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(bench.store.get(f"{FOLDER}/{path}")))


def actions_of(bench: TableBench, version: int) -> list[dict[str, Any]]:
    text = bench.store.get(f"{FOLDER}/_delta_log/{version_name(version)}")
    return [json.loads(line) for line in text.splitlines()]


def table_of(bench: TableBench) -> pa.Table:
    """Every column of every row, in the order of the log."""
    files = bench.table.rewrites.files
    return pa.concat_tables([parquet_of(bench, file.path).read() for file in files]).combine_chunks()


def test_the_rows_of_all_files_are_those_of_one_and_no_change_of_data() -> None:
    bench = TableBench()
    for number in range(5):
        bench.append((b"a", b"%d" % number), (None, b"x"), (b"b", None))
    rows, table, before = bench.rows(), table_of(bench), bench.table.state
    prepared = bench.roll()
    after = bench.table.state
    assert (len(prepared.removes), prepared.added_count, after.file_count) == (5, 1, 1)
    assert (after.version, after.log_start, after.high_watermark) == (before.version + 1, 0, 15)
    assert after.size_bytes == prepared.rewritten_bytes
    for _ in range(2):
        assert bench.rows() == bench.rows(max_bytes=1) == rows
        assert table_of(bench).equals(table)
        assert bench.restart().state == after
    changes = [next(iter(action.values())) for action in actions_of(bench, after.version)]
    assert {change["dataChange"] for change in changes if "dataChange" in change} == {False}
    assert bench.table.rewrites.compacted_to == 0
    assert bench.breaches() == []


def test_a_run_in_the_middle_is_rolled_and_its_neighbours_stay() -> None:
    bench = TableBench()
    for number in range(6):
        bench.append((b"a", b"%d" % number))
    rows, neighbours = (
        bench.rows(),
        [file.path for file in (*bench.table.rewrites.files[:2], bench.table.rewrites.files[5])],
    )
    bench.roll(2, 3)
    files = bench.table.rewrites.files
    assert [(file.base_offset, file.next_offset, file.level) for file in files] == [
        (0, 1, 0),
        (1, 2, 0),
        (2, 5, 1),
        (5, 6, 0),
    ]
    assert [files[0].path, files[1].path, files[3].path] == neighbours
    assert bench.rows() == rows
    bench.append((b"a", b"9"))
    assert bench.breaches() == []


def test_what_is_appended_meanwhile_stays_and_what_was_replaced_meanwhile_is_not_replaced_again() -> None:
    bench = TableBench()
    for number in range(3):
        bench.append((b"a", b"%d" % number))
    first, late = bench.prepare_roll(), bench.prepare_roll()
    bench.append((b"a", b"3"))
    assert isinstance(bench.table.rewrites.swap(first, leader_epoch=0, now_ms=bench.now_ms), Committed)
    files = bench.data_files()
    assert isinstance(bench.table.rewrites.swap(late, leader_epoch=0, now_ms=bench.now_ms), Conflicted)
    assert len(files - bench.data_files()) == late.added_count
    assert [row[0] for row in bench.rows()] == [0, 1, 2, 3]


def test_files_that_are_not_live_any_more_are_not_rolled() -> None:
    bench = TableBench()
    for number in range(3):
        bench.append((b"a", b"%d" % number))
    chosen = bench.table.rewrites.files
    bench.roll(0, 2)
    with pytest.raises(StorageFault, match="have changed"):
        bench.table.rewrites.prepare_roll(chosen, compression="none", now_ms=1, tombstone_retention_ms=1)


def test_a_rolled_file_is_sorted_by_offset_with_a_page_index_and_row_groups_for_a_fetch() -> None:
    bench = TableBench()
    chance = random.Random(1)
    for _ in range(30):
        bench.append(*((b"k", chance.randbytes(4000)) for _ in range(200)))
    bench.roll()
    (file,) = bench.table.rewrites.files
    metadata = parquet_of(bench, file.path).metadata
    assert metadata.num_row_groups > 3
    following = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        # But for the last one: about the size, for tables of 0.8 MB are not cut.
        if index < metadata.num_row_groups - 1:
            assert ROW_GROUP_BYTES <= group.total_byte_size < 1.3 * ROW_GROUP_BYTES
        offsets = group.column(0)
        assert offsets.path_in_schema == "offset"
        assert (offsets.statistics.min, offsets.statistics.max) == (following, following + group.num_rows - 1)
        assert offsets.has_offset_index
        assert offsets.has_column_index
        following += group.num_rows
    assert following == 6000


@pytest.mark.parametrize(("compression", "codec"), [("none", "UNCOMPRESSED"), ("zstd", "ZSTD"), ("gzip", "GZIP")])
def test_a_rolled_file_is_compressed_as_it_is_told(compression: str, codec: str) -> None:
    bench = TableBench()
    bench.append((b"a", b"1" * 100))
    bench.append((b"a", b"2" * 100))
    prepared = bench.prepare_roll(compression=compression)
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    group = parquet_of(bench, bench.table.rewrites.files[0].path).metadata.row_group(0)
    assert {group.column(index).compression for index in range(group.num_columns)} == {codec}


def test_a_file_tells_how_often_and_since_when() -> None:
    bench = TableBench()
    for minute in range(4):
        bench.now_ms = 1_000_000 + 60_000 * minute
        bench.append((b"a", b"1"))
    bench.now_ms += DAY_MS // 2
    for _ in range(2):
        bench.roll(0, 2)
        (file, *_) = bench.reopen().rewrites.files
        assert file.appended_ms == max(1_060_000, file.appended_ms)
    assert [(file.level, file.appended_ms) for file in bench.table.rewrites.files] == [(2, 1_120_000), (0, 1_180_000)]
    assert bench.breaches() == []


def test_a_tombstone_goes_as_early_after_rolling_as_without() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", None))
    bench.now_ms += 50_000
    bench.append((b"b", b"1"))
    bench.roll(retention_ms=90_000)
    bench.now_ms += 40_000
    bench.append((b"c", b"1"))
    assert [row[0] for row in bench.compact(retention_ms=91_000) and bench.rows()] == [1, 2, 3]
    bench.append((b"c", b"1"))
    bench.compact(retention_ms=90_000)
    assert [row[0] for row in bench.rows()] == [2, 4]


def test_statistics_name_the_largest_timestamp_and_find_it() -> None:
    bench = TableBench()
    for base, time_us in enumerate([5_000_001, 9_000_999, 7_000_000, 6_000_000]):
        batch = log_batch(base, [b"v"], timestamps_us=[time_us], leader_epoch=base // 2)
        assert isinstance(bench.table.append([batch], leader_epoch=base // 2, now_ms=1), Committed)
    assert isinstance(bench.table.rewrites.swap(bench.prepare_roll(), leader_epoch=1, now_ms=1), Committed)
    (file,) = bench.reopen().rewrites.files
    assert (file.timestamp_max_ms, bench.table.state.leader_epoch) == (9_000, 1)
    found = bench.table.log.find_max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (1, 9_000, 0)
    assert bench.breaches() == []


def test_a_compacted_run_keeps_its_holes_and_what_it_stands_for() -> None:
    bench = TableBench()
    for _ in range(3):
        bench.append((b"a", b"1"), (b"b", b"2"))
    bench.compact()
    bench.append((b"a", b"3"))
    bench.compact()
    rows = bench.rows()
    bench.roll()
    (file,) = bench.reopen().rewrites.files
    assert (file.base_offset, file.next_offset, file.record_count) == (0, 7, 2)
    assert bench.rows() == rows == [(5, b"b", b"2"), (6, b"a", b"3")]
    assert bench.table.rewrites.compacted_to == 7
    assert bench.breaches() == []


def test_the_rows_of_producers_are_found_after_rolling_and_excluded_where_they_are_not() -> None:
    bench = TableBench()
    for number in range(20):
        bench.append((b"a", b"1"), (b"a", b"2"), producer=(7 + number % 2, 0, 2 * (number // 2)))
        bench.append((b"a", b"3"))
    bench.roll()
    (file,) = bench.reopen().rewrites.files
    assert file.producers == "7 0 0 0 0 19 8 0 0 0 0 19"
    for producer_id in (7, 8):
        last = bench.table.producers.find_last_sequence(producer_id)
        assert last is not None
        assert last.last_sequence == 19
    assert bench.breaches() == []


def test_sequences_that_wrap_are_two_spans() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), producer=(7, 3, 2**31 - 1))
    bench.append((b"a", b"1"), (b"a", b"2"), producer=(7, 3, 0))
    bench.roll()
    assert bench.reopen().rewrites.files[0].producers == f"7 0 3 0 {2**31 - 1} 0 7 0 3 0 0 1"
    assert bench.breaches() == []


def rewrite_all_as_another_engine(bench: TableBench, order: Sequence[int]) -> None:
    """All rows as one file whose rows lie in that order."""
    files = bench.table.rewrites.files
    rows = table_of(bench).take(list(order))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=2)
    data = sink.getvalue().to_pybytes()
    offsets = rows.column("offset").to_pylist()
    producer_ids = [value for value in rows.column("producer_id").to_pylist() if value is not None]
    times = [f"{rows.column('timestamp')[0].as_py():%Y-%m-%dT%H:%M:%S}.000Z"]
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {"offset": min(offsets), "timestamp": times[0]},
        "maxValues": {"offset": max(offsets), "timestamp": times[0]},
        "nullCount": {"offset": 0, "timestamp": 0, **dict.fromkeys(("producer_id", "sequence"), rows.num_rows)},
    }
    assert not producer_ids
    add = {"path": "part-0.parquet", "partitionValues": {}, "size": len(data), "modificationTime": 1}
    actions = [
        {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "another"}},
        *({"remove": {"path": file.path, "deletionTimestamp": 1, "dataChange": False}} for file in files),  # type: ignore[attr-defined]
        {"add": {**add, "dataChange": False, "stats": json.dumps(stats)}},
    ]
    bench.store.put(f"{FOLDER}/part-0.parquet", data)
    version = version_name(bench.table.state.version + 1)
    bench.store.create(f"{FOLDER}/_delta_log/{version}", "\n".join(map(json.dumps, actions)).encode())


def test_what_another_engine_left_out_of_order_is_in_order_after_rolling() -> None:
    bench = TableBench()
    for number in range(5):
        bench.append((b"%d" % number, b"v"))
    rows, table = bench.rows(), table_of(bench)
    rewrite_all_as_another_engine(bench, [3, 1, 4, 0, 2])
    bench.reopen()
    bench.append((b"5", b"v"))
    bench.roll()
    (file,) = bench.reopen().rewrites.files
    assert file.is_ordered
    assert bench.rows()[:5] == rows
    assert table_of(bench).slice(0, 5).equals(table)
    assert bench.breaches() == []


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_roll_that_is_stopped_leaves_nothing(calls: int) -> None:
    bench = TableBench()
    for _ in range(5):
        bench.append((b"a", b"1"))
    before, bytes_seen = bench.data_files(), []

    def pace(byte_count: int) -> None:
        bytes_seen.append(byte_count)
        if len(bytes_seen) == calls:
            raise MaintenanceStopped

    with pytest.raises(MaintenanceStopped):
        bench.table.rewrites.prepare_roll(
            bench.table.rewrites.files, compression="none", now_ms=1, tombstone_retention_ms=1, pace=pace
        )
    assert bench.data_files() == before
    assert all(byte_count > 0 for byte_count in bytes_seen)


def test_all_bytes_that_are_read_and_written_are_paced() -> None:
    bench = TableBench()
    for _ in range(5):
        bench.append((b"a", b"1" * 1000))
    read_bytes, paced = bench.table.state.size_bytes, []
    prepared = bench.table.rewrites.prepare_roll(
        bench.table.rewrites.files, compression="none", now_ms=1, tombstone_retention_ms=1, pace=paced.append
    )
    assert sum(paced) == read_bytes + prepared.rewritten_bytes


@pytest.mark.parametrize("operation", ["write_parts", "get_range"])
def test_a_fault_while_preparing_leaves_nothing_and_the_next_try_succeeds(operation: str) -> None:
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)
    bench.append((b"a", b"1"))
    bench.append((b"a", b"2"))
    bench.reopen()
    before = bench.data_files()
    store.fail_next(operation, StorageFault("no room"))
    with pytest.raises(StorageFault):
        bench.prepare_roll()
    assert bench.data_files() == before
    bench.roll()
    assert bench.rows() == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_a_file_whose_rows_are_not_those_of_its_entry_is_damage_and_nothing_stays() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.append((b"a", b"3"), (b"a", b"4"))
    first, second = bench.table.rewrites.files
    data = bench.store.get(f"{FOLDER}/{first.path}")
    other = bench.store.get(f"{FOLDER}/{second.path}")
    assert len(data) == len(other)
    bench.store.put(f"{FOLDER}/{second.path}", data)
    before = bench.data_files()
    with pytest.raises(StorageDamaged, match=f"{second.path}: expected .* offsets 2 to 3: expected the .*checksum"):
        bench.prepare_roll()
    assert bench.data_files() == before


def test_small_files_of_this_process_are_joined_without_decoding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TableBench()
    for number in range(5):
        bench.append((b"a", b"%d" % number), (None, None), producer=(7, 0, 2 * number))
    bench.append(*[(b"a", b"2")] * (SMALL_ROWS_MAX + 1))
    bench.append((b"b", b"3"))
    expected, decoded = table_of(bench), []
    scan = DataReader.scan
    monkeypatch.setattr(
        DataReader,
        "scan",
        lambda reader, file, names: [decoded.append(file.base_offset), *scan(reader, file, names)][1:],
    )
    bench.roll()
    assert decoded == [10]
    assert table_of(bench).equals(expected)
    assert bench.breaches() == []


def test_a_file_that_rots_before_it_is_rolled_is_damage_also_where_its_rows_are_in_memory() -> None:
    for at in (0, 20, -20, -1):
        bench = TableBench()
        bench.append((b"a", b"1"), (b"a", b"2"))
        bench.append((b"a", b"3"))
        file = bench.table.rewrites.files[0]
        data = bytearray(bench.store.get(f"{FOLDER}/{file.path}"))
        data[at] ^= 1
        bench.store.put(f"{FOLDER}/{file.path}", bytes(data))
        for _ in range(2):
            with pytest.raises(StorageDamaged, match=file.path):
                bench.prepare_roll()
        assert len(bench.table.rewrites.files) == 2


def three_large_records(tmp_path: Path, disk: FailingFileSystem) -> TableBench:
    chance = random.Random(1)
    bench = TableBench(LocalStore(str(tmp_path), disk))
    for _ in range(3):
        bench.append((b"a", chance.randbytes(ROW_GROUP_BYTES)))
    return bench


def test_a_rolled_file_on_disk_is_synced_part_by_part(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    bench = three_large_records(tmp_path, disk)
    rows = bench.rows(max_bytes=1 << 30)
    disk.calls.clear()
    prepared = bench.prepare_roll()
    assert disk.calls == ["write", "fsync"] * 4 + ["fsync"]  # three row groups, the footer, the folder
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    bench.reopen()
    assert bench.rows(max_bytes=1 << 30) == rows
    assert bench.breaches() == []


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("nth", [1, 3, 4])
def test_a_disk_that_is_full_in_the_middle_leaves_nothing_and_the_table_goes_on(
    tmp_path: Path, call: str, nth: int
) -> None:
    disk = FailingFileSystem()
    bench = three_large_records(tmp_path, disk)
    state, before = bench.table.state, bench.data_files()
    disk.fail(call, nth, errno.ENOSPC)
    with pytest.raises(StorageFull):
        bench.prepare_roll()
    assert bench.data_files() == before
    assert bench.table.cleanup.find_orphans() == frozenset()
    assert bench.table.state == state
    bench.append((b"a", b"4"))
    bench.roll()
    assert [row[0] for row in bench.rows(max_bytes=1 << 30)] == [0, 1, 2, 3]
    assert bench.breaches() == []


def test_other_readers_read_a_rolled_file_and_skip_by_its_statistics(tmp_path: Path) -> None:
    bench = TableBench(LocalStore(str(tmp_path)))
    for number in range(20):
        batch = log_batch(50 * number, [b"%d" % number] * 50, timestamps_us=[10**15 + number * 1_234_567] * 50)
        assert isinstance(bench.table.append([batch], leader_epoch=0, now_ms=1), Committed)
    before = deltalake.DeltaTable(f"{tmp_path}/{FOLDER}").to_pyarrow_table().sort_by("offset")
    bench.roll()
    path = f"{tmp_path}/{FOLDER}"
    judged = deltalake.DeltaTable(path)
    assert len(judged.file_uris()) == 1
    assert judged.to_pyarrow_table().equals(before)
    file = bench.table.rewrites.files[0].path
    counted = f"select count(*), count(distinct timestamp), max(\"offset\") from '{path}/{file}'"
    assert duckdb.sql(counted).fetchall() == [(1000, 20, 999)]
    (add,) = judged.get_add_actions(flatten=True).to_struct_array().to_pylist()
    assert (add["min.offset"], add["max.offset"], add["num_records"]) == (0, 999, 1000)


def test_files_of_other_sizes_stand_for_all_offsets_between_them() -> None:
    bench = TableBench()
    chance = random.Random(2)
    for _ in range(8):
        bench.append((b"a", chance.randbytes(ROW_GROUP_BYTES // 2)))
    view = bench.table.log.view
    rolling = Rolling(
        bench.store,
        FOLDER,
        bench.table.log.data,
        bench.table._schema,
        FilesUnderWay(bench.store, FOLDER),
    )
    prepared = rolling.prepare(
        view.live_files,
        compression="none",
        now_ms=1,
        log_start=0,
        tombstone_retention_ms=1,
        pace=no_pace,
        file_bytes_max=2 * ROW_GROUP_BYTES,
    )
    rows = bench.rows(max_bytes=1 << 30)
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    assert [(file.base_offset, file.next_offset) for file in bench.reopen().rewrites.files] == [(0, 4), (4, 8)]
    assert bench.rows(max_bytes=1 << 30) == rows
    assert bench.breaches() == []


def test_a_typed_table_is_rolled_too() -> None:
    storage = open_storage_on(MemoryStore(), exclusive=False)
    name = TopicPartition("__consumer_offsets", 0)
    table = led(storage.create_partition(name, topic_id="id"))
    for base in range(0, 40, 2):
        values = pa.array([{"group_id": "g", "committed_offset": base}, None], table._schema.field("value").type)
        columns = pa.RecordBatch.from_arrays([pa.array([b"k", b"gone"]), values], names=["key", "value"])
        batch = LogBatch(base, base + 2, 2, columns.nbytes, 0, TimestampType.CREATE_TIME, 1_000, 1_000, columns)
        assert isinstance(table.append([batch], leader_epoch=0, now_ms=1_000), Committed)
    prepared = table.rewrites.prepare_roll(
        table.rewrites.files, compression="none", now_ms=1_000, tombstone_retention_ms=DAY_MS
    )
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=1_000), Committed)
    (batch,) = led(storage.open_partition(name, topic_id="id")).log.read(0, end_offset=40, max_bytes=1 << 20)
    found = list(storage.keyed_rows("__consumer_offsets").decode(batch))
    assert [row.value and row.value["committed_offset"] for row in found[-2:]] == [38, None]
    assert len(found) == 40


STEPS = st.one_of(
    st.lists(st.tuples(st.sampled_from([None, b"a", b"b"]), st.none() | st.binary(max_size=3)), min_size=1, max_size=4),
    st.sampled_from(["reopen", "restart", "compact"]),
    st.tuples(st.integers(0, 8), st.integers(1, 8)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_whatever_is_rolled_the_rows_are_those_that_were_there(steps: list[object]) -> None:
    bench = TableBench()
    for step in steps:
        match step:
            case "reopen":
                bench.reopen()
            case "restart":
                bench.restart()
            case "compact":
                if (prepared := bench.prepare()) is not None:
                    bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=bench.now_ms)
            case list():
                bench.append(*step)
            case (int(first), int(count)):
                rows = bench.rows()
                if bench.table.rewrites.files[first : first + count]:
                    bench.roll(first, count)
                assert bench.rows() == rows
    assert bench.breaches() == []
    assert bench.reopen().state.high_watermark == bench.table.state.high_watermark


def start_at(bench: TableBench, offset: int) -> None:
    assert isinstance(bench.table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=bench.now_ms), Committed)


@pytest.mark.parametrize("count", [1, 3])
def test_rolling_leaves_out_what_lies_below_the_log_start(tmp_path: Path, count: int) -> None:
    """Native readers go by the files: they would show deleted records for as long as these are rewritten."""
    bench = TableBench(LocalStore(str(tmp_path)))
    for number in range(4):
        bench.append(*((b"k", b"%d" % n) for n in range(5 * number, 5 * number + 5)))
    start_at(bench, 7)
    rows = bench.rows(7)
    bench.roll(0, count)
    assert [file.base_offset for file in bench.table.rewrites.files] == [7, *range(5 + 5 * count, 20, 5)]
    assert bench.rows(7) == rows
    found = pa.table(deltalake.DeltaTable(str(tmp_path / FOLDER)).to_pyarrow_table()).column("offset").to_pylist()
    assert sorted(found) == sorted(table_of(bench).column("offset").to_pylist()) == list(range(7, 20))
    changes = [action[name]["dataChange"] for action in actions_of(bench, 6) for name in action if name in "addremove"]
    assert changes == [False] * (count + 1)  # a stream over the table passes over the commit
    assert bench.breaches() == []
    bench.reopen()
    assert (bench.table.state.log_start, bench.rows(7)) == (7, rows)
    bench.table.cleanup.write_checkpoint()
    assert bench.breaches() == []


def test_a_file_of_which_nothing_might_be_left_is_rolled_whole() -> None:
    """Key compaction has taken records from before its last one, which may be the only one behind the log start."""
    bench = TableBench()
    bench.append(*((b"a", b"%d" % n) for n in range(6)))
    bench.compact()
    start_at(bench, 3)
    bench.roll(0, 1)
    assert [(file.base_offset, file.record_count) for file in bench.table.rewrites.files] == [(0, 1)]
    assert bench.rows(3) == [(5, b"a", b"5")]
    assert bench.breaches() == []
