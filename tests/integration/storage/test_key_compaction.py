"""Key compaction of a table: what stays, what goes, and that offsets, readers and the log's promises do not notice."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import StorageDamaged, StorageFault
from bus.model import LogBatch, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.ports import Committed, Conflicted, PreparedFiles, ProducerMatch, ProducerProgress, Unknown
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.maintenance import key_compaction
from bus.storage_delta.maintenance.key_compaction import KeyCompaction
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.store import Data, ObjectStore, OutcomeUnknown
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.memory_store import MemoryStore
from tests.support.stores import ScriptedStore, led, log_batch
from tests.support.table_bench import DAY_MS, FOLDER, NAME, Row, TableBench
from tests.support.version_files import without_sum


def compaction_of(store: ObjectStore, table: DeltaPartitionTable, *, file_bytes_max: int) -> KeyCompaction:
    under_way = FilesUnderWay(store, FOLDER)
    return KeyCompaction(store, FOLDER, table.log.data, table._schema, under_way, file_bytes_max=file_bytes_max)


def test_the_last_record_of_each_key_stays_at_its_offset_and_records_without_a_key_stay() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"), (None, b"x"))
    bench.append((b"a", b"2"), (None, b"y"), (b"c", None))
    before = bench.table.state
    prepared = bench.compact()
    kept = [(1, b"b", b"1"), (2, None, b"x"), (3, b"a", b"2"), (4, None, b"y"), (5, b"c", None)]
    after = bench.table.state
    assert (after.version, after.log_start, after.high_watermark) == (before.version + 1, 0, 6)
    assert (after.file_count, len(prepared.removes), prepared.added_count) == (1, 2, 1)
    assert after.size_bytes == prepared.rewritten_bytes
    for table in (bench.table, bench.reopen()):
        assert table.state == after
        assert bench.rows() == kept
        assert bench.rows(max_bytes=1) == kept
    assert bench.breaches() == []


@pytest.mark.parametrize("offset", range(9))
def test_a_read_inside_a_hole_goes_on_behind_it(offset: int) -> None:
    bench = TableBench()
    for _ in range(4):
        bench.append((b"a", b"1"), (b"b", b"2"))
    bench.compact()
    bench.append((b"c", b"3"))
    expected = [row for row in [(6, b"a", b"1"), (7, b"b", b"2"), (8, b"c", b"3")] if row[0] >= offset]
    assert bench.rows(offset) == bench.rows(offset, max_bytes=1) == expected
    assert all(
        batch.next_offset <= 8 for batch in bench.table.log.read(min(offset, 7), end_offset=8, max_bytes=1 << 20)
    )


def test_timestamps_find_what_is_left() -> None:
    bench = TableBench()
    for base, (key, time_ms) in enumerate([(b"a", 5_000), (b"a", 9_000), (b"b", 7_000), (b"a", 6_000), (b"c", 6_400)]):
        batch = log_batch(base, [b"v"], keys=[key], timestamp_ms=time_ms)
        assert isinstance(bench.table.append([batch], leader_epoch=0, now_ms=1), Committed)
    bench.compact()
    found = {time_ms: bench.table.log.find_timestamp(time_ms) for time_ms in (0, 6_500, 7_000, 7_001)}
    assert {time_ms: result and result.offset for time_ms, result in found.items()} == {
        0: 2,
        6_500: 2,
        7_000: 2,
        7_001: None,
    }
    largest = bench.table.log.find_max_timestamp()
    assert largest is not None
    assert (largest.offset, largest.timestamp_ms) == (2, 7_000)
    assert bench.breaches() == []


def test_a_tombstone_goes_once_it_was_there_for_its_retention_however_often_it_was_compacted() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", None))
    bench.append((b"b", b"1"), (b"z", b"1"))
    for step in range(1, 9):
        bench.now_ms = 1_000_000 + step * 10_000
        bench.append((b"z", str(step).encode()))
        bench.compact(retention_ms=80_000)
        is_there = (1, b"a", None) in bench.rows()
        assert is_there == (step < 8), f"{step * 10} s after it was appended"
    assert bench.rows() == [(2, b"b", b"1"), (11, b"z", b"8")]
    assert bench.reopen().state.log_start == 0
    assert bench.breaches() == []


def test_of_a_log_of_nothing_but_expired_tombstones_the_last_record_stays() -> None:
    bench = TableBench()
    bench.append((b"a", None), (b"b", None))
    bench.append((b"c", None))
    bench.compact(retention_ms=0)
    assert bench.rows() == [(2, b"c", None)]
    assert bench.prepare(retention_ms=0) is None
    assert (bench.reopen().state.log_start, bench.table.state.high_watermark) == (0, 3)
    bench.append((b"c", b"1"))
    bench.compact(retention_ms=0)
    assert bench.rows() == [(3, b"c", b"1")]
    assert bench.breaches() == []


def test_a_record_without_key_and_value_is_no_tombstone() -> None:
    bench = TableBench()
    bench.append((None, None), (b"a", None), (b"a", b"1"), (b"b", None), (b"c", b"1"))
    bench.compact(retention_ms=0)
    assert bench.rows() == [(0, None, None), (2, b"a", b"1"), (4, b"c", b"1")]


def test_nothing_to_gain_writes_nothing_and_counts_as_seen() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"))
    assert len(bench.table.rewrites.find_backlog()) == 1
    before = bench.data_files()
    assert bench.prepare() is None
    assert bench.data_files() == before
    assert list(bench.table.rewrites.find_backlog()) == []
    bench.append((b"c", b"1"))
    assert len(bench.table.rewrites.find_backlog()) == 1
    assert len(bench.reopen().rewrites.find_backlog()) == 2


def test_what_is_appended_between_preparing_and_swapping_stays() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"))
    bench.append((b"a", b"2"))
    prepared = bench.prepare()
    assert prepared is not None
    bench.append((b"a", b"3"))
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=bench.now_ms), Committed)
    assert len(bench.table.rewrites.find_backlog()) == 1
    assert all(file.size_bytes > 0 for file in bench.table.rewrites.find_backlog())
    for _ in range(2):
        assert bench.rows() == [(1, b"a", b"2"), (2, b"a", b"3")]
        bench.reopen()
    assert bench.breaches() == []


def test_files_are_cut_at_their_size_and_cover_all_offsets_between_them() -> None:
    bench = TableBench()
    chance = random.Random(5)
    size = ROW_GROUP_BYTES // 4
    for number in range(12):
        bench.append((f"{number % 9}".encode(), chance.randbytes(size)), (b"hole", b"x"))
    expected = [(row[0], row[1]) for row in bench.rows(max_bytes=1 << 30) if row[1] != b"hole" or row[0] == 23][3:]
    view = bench.table.log.view
    compaction = compaction_of(bench.store, bench.table, file_bytes_max=3 * size)
    prepared = compaction.prepare(view.live_files, now_ms=1, tombstone_retention_ms=DAY_MS)
    assert prepared is not None
    assert prepared.added_count > 2
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    assert bench.reopen().state.file_count == prepared.added_count
    assert [(row[0], row[1]) for row in bench.rows()] == expected
    assert bench.breaches() == []


def three_files() -> TableBench:
    """Compacted to a file for each two offsets, of which the first one of each is missing; a dense one behind."""
    bench = TableBench()
    for number in range(4):
        bench.append((b"hole", b"x"), (b"%d" % number, b"y"))
    table = bench.table
    compaction = compaction_of(bench.store, table, file_bytes_max=1)
    prepared = compaction.prepare(table.log.view.live_files[:3], now_ms=1, tombstone_retention_ms=DAY_MS)
    assert prepared is not None
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    return bench


def rewritten(bench: TableBench, file: LiveFile, *, is_reversed: bool) -> tuple[pa.Table, bytes]:
    rows = pq.read_table(pa.BufferReader(bench.store.get(f"{FOLDER}/{file.path}")))
    if is_reversed:
        rows = rows.take(list(reversed(range(rows.num_rows))))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return rows, sink.getvalue().to_pybytes()


def rewrite_as_another_engine(bench: TableBench, file: LiveFile, *, is_reversed: bool = False) -> None:
    rows, data = rewritten(bench, file, is_reversed=is_reversed)
    offsets = sorted(rows.column("offset").to_pylist())
    times = [f"{rows.column('timestamp')[0].as_py():%Y-%m-%dT%H:%M:%S}.000Z"]
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {"offset": offsets[0], "timestamp": times[0]},
        "maxValues": {"offset": offsets[-1], "timestamp": times[0]},
        "nullCount": {"offset": 0, "timestamp": 0, "producer_id": rows.num_rows, "sequence": rows.num_rows},
    }
    add = {
        "path": "part-0.parquet",
        "partitionValues": {},
        "size": len(data),
        "modificationTime": 1,
        "dataChange": False,
        "stats": json.dumps(stats),
    }
    actions = [
        {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "another"}},
        {"remove": {"path": file.path, "deletionTimestamp": 1, "dataChange": False}},
        {"add": add},
    ]
    bench.store.put(f"{FOLDER}/part-0.parquet", data)
    version = version_name(bench.table.state.version + 1)
    bench.store.create(f"{FOLDER}/_delta_log/{version}", "\n".join(map(json.dumps, actions)).encode())


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_compacted_file_that_another_engine_rewrote_is_adopted_with_the_holes_beside_it(index: int) -> None:
    bench = three_files()
    expected = bench.rows()
    files = bench.table.log.view.live_files
    assert [(file.base_offset, file.next_offset) for file in files] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    rewrite_as_another_engine(bench, files[index])
    bench.reopen()
    assert bench.rows() == expected
    assert (bench.table.state.log_start, bench.table.state.high_watermark) == (0, 8)
    assert bench.breaches() == []
    for rewrite in (bench.roll, bench.compact):  # by us again: the file stands for the hole before it
        bench.append((b"new", b"1"))
        rewrite()
        bench.reopen()
        assert (bench.table.state.log_start, bench.table.rewrites.files[0].base_offset) == (0, 0)
        assert bench.rows()[0] == expected[0]
        assert bench.breaches() == []


def test_rows_that_another_engine_shuffled_are_compacted_in_the_order_of_their_offsets() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"c", b"1"), (b"b", b"2"), (b"d", b"1"))
    rewrite_as_another_engine(bench, bench.table.log.view.live_files[0], is_reversed=True)
    bench.reopen()
    bench.compact()
    assert bench.rows() == [(1, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2"), (5, b"d", b"1")]
    assert bench.breaches() == []


def test_rows_of_a_compacted_file_out_of_order_are_found() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"c", b"1"))
    bench.compact()
    (file,) = bench.table.log.view.live_files
    _, data = rewritten(bench, file, is_reversed=True)
    version = f"{FOLDER}/_delta_log/{version_name(2)}"
    told = without_sum(bench.store.get(version)).replace(b'"size":%d' % file.size_bytes, b'"size":%d' % len(data))
    bench.store.put(f"{FOLDER}/{file.path}", data)
    bench.store.put(version, told)
    (breach,) = map(str, bench.breaches())
    assert "offsets grow" in breach
    assert "an offset above 3 after it, found 2" in breach


@pytest.mark.parametrize("index", [1, 2])
def test_a_compacted_file_that_is_gone_from_the_log_is_damage_though_holes_are_none(index: int) -> None:
    bench = three_files()
    gone = bench.table.log.view.live_files[index]
    actions = [
        {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": "another"}},
        {"remove": {"path": gone.path, "deletionTimestamp": 1, "dataChange": False}},
    ]
    version = version_name(bench.table.state.version + 1)
    bench.store.create(f"{FOLDER}/_delta_log/{version}", "\n".join(map(json.dumps, actions)).encode())
    with pytest.raises(StorageDamaged, match=f"expected offset {gone.base_offset} after"):
        bench.reopen()
    assert bench.breaches() != []


def test_the_producers_of_the_rows_that_stay_are_found_again() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"), producer=(7, 0, 0))
    bench.append((b"a", b"2"), producer=(8, 0, 0))
    bench.append((b"c", b"2"), (b"a", b"3"), producer=(7, 0, 2))
    bench.compact()
    assert bench.reopen().producers.progress[8].last_sequence == 0
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 0, 3)
    ended = bench.table.producers.find_last_sequence(8)  # its only record fell, and is in the log's memory
    assert ended == ProducerProgress(8, 0, 0, updated_ms=bench.now_ms)
    assert bench.breaches() == []


def test_a_repeat_of_what_was_compacted_is_told_from_what_was_never_there() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"), producer=(7, 0, 0))
    bench.append((b"a", b"2"), producer=(8, 0, 0))
    columns = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), pa.array([b"1", b"1"])], names=["key", "value"])
    repeat = RecordBatch(2, 4, 2, 0, 0, False, columns, ProducerStamp(7, 0, 0))
    assert bench.table.producers.match(repeat) == ProducerMatch([0, 1], None, has_holes=False)
    bench.roll()
    assert bench.table.producers.match(repeat) == ProducerMatch([0, 1], None, has_holes=False)
    bench.compact()
    for _ in range(2):
        match = bench.table.producers.match(repeat)
        assert (match.offsets, match.has_holes) == ([-1, 1], True)
        bench.reopen()
    bench.roll()
    assert bench.table.producers.match(repeat).offsets == [-1, 1]


def test_a_producer_whose_last_records_fell_goes_on_behind_them() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), producer=(7, 2, 0))
    bench.append((b"a", b"3"), producer=(8, 0, 0))
    bench.compact()
    bench.table.producers.forget(updated_before_ms=bench.now_ms + 1)
    assert bench.table.producers.find_last_sequence(7) == ProducerProgress(7, 2, 2, bench.now_ms)


def test_a_conflict_removes_the_new_files_and_the_log_is_read_again() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"))
    prepared = bench.prepare()
    assert prepared is not None
    rival = led(bench.storage.open_partition(NAME, topic_id="id"))
    assert isinstance(rival.append([log_batch(2, [b"3"], keys=[b"b"])], leader_epoch=1, now_ms=1), Committed)
    outcome = bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1)
    assert isinstance(outcome, Conflicted)
    assert (outcome.version, outcome.leader_epoch) == (2, 1)
    bench.table.reload()
    assert bench.table.cleanup.find_orphans() == frozenset()
    assert [row[0] for row in bench.rows()] == [0, 1, 2]


def test_files_that_were_replaced_meanwhile_are_not_replaced_again() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"))
    late = bench.prepare()
    assert late is not None
    bench.compact()
    version = bench.table.state.version
    assert isinstance(bench.table.rewrites.swap(late, leader_epoch=0, now_ms=1), Conflicted)
    assert bench.table.reload().version == version
    assert bench.table.cleanup.find_orphans() == frozenset()
    assert bench.rows() == [(1, b"a", b"2")]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_unknown_outcome_is_settled_by_reading_the_log(is_there: bool) -> None:
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)
    bench.append((b"a", b"1"), (b"a", b"2"))
    prepared = bench.prepare()
    assert prepared is not None
    store.fail_next("create", OutcomeUnknown("the folder was not synced"), after_doing_it=is_there)
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Unknown)
    bench.table.reload()
    assert bench.table.state.version == (2 if is_there else 1)
    assert bench.rows() == [(0, b"a", b"1"), (1, b"a", b"2")][1 if is_there else 0 :]
    assert len(bench.table.cleanup.find_orphans()) == (0 if is_there else 1)
    bench.append((b"b", b"1"))
    assert bench.breaches() == []


@pytest.mark.parametrize(("files_kept", "reads"), [(0, 8), (1, 7), (100, 4)])
def test_small_files_are_read_once_as_long_as_memory_has_room(
    monkeypatch: pytest.MonkeyPatch, files_kept: int, reads: int
) -> None:
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)
    for number in range(4):
        bench.append((b"a", b"%d" % number), (b"%d" % number, b"x"))
    bench.reopen()
    monkeypatch.setattr(key_compaction, "_KEPT_BYTES_MAX", files_kept * bench.table.rewrites.files[0].size_bytes)
    store.calls.clear()
    bench.compact()
    assert store.calls.count("get_range") == reads
    assert bench.rows() == [(1, b"0", b"x"), (3, b"1", b"x"), (5, b"2", b"x"), (6, b"a", b"3"), (7, b"3", b"x")]


@pytest.mark.parametrize("operation", ["write_parts", "get_range"])
def test_a_fault_while_preparing_leaves_nothing_and_the_next_try_succeeds(operation: str) -> None:
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.reopen()
    before = bench.data_files()
    store.fail_next(operation, StorageFault("no room"))
    with pytest.raises(StorageFault):
        bench.prepare()
    assert bench.data_files() == before
    bench.compact()
    assert bench.rows() == [(1, b"a", b"2")]


def test_a_fault_after_the_first_of_several_files_leaves_none() -> None:
    class FullAfterOne(ScriptedStore):
        def write_parts(self, key: str, parts: Iterable[Data]) -> None:
            if "write_parts" in self.calls:
                raise StorageFault("no room")
            self.calls.append("write_parts")
            self._store.write_parts(key, parts)

    bench = TableBench()
    for number in range(4):
        bench.append((b"%d" % number, random.Random(number).randbytes(1000)), (b"hole", b"x"))
    before = bench.data_files()
    table = bench.table
    full = FullAfterOne(bench.store)
    compaction = compaction_of(full, table, file_bytes_max=1)
    with pytest.raises(StorageFault):
        compaction.prepare(table.log.view.live_files, now_ms=1, tombstone_retention_ms=DAY_MS)
    assert full.calls.count("delete") == 1
    assert bench.data_files() == before


def test_a_fault_of_the_swap_leaves_the_table_as_it_was() -> None:
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)
    bench.append((b"a", b"1"), (b"a", b"2"))
    prepared, before = bench.prepare(), bench.table.state
    assert prepared is not None
    store.fail_next("create", StorageFault("no room"))
    with pytest.raises(StorageFault):
        bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1)
    assert bench.table.state == before
    assert bench.rows() == [(0, b"a", b"1"), (1, b"a", b"2")]
    assert len(bench.data_files()) == 1
    bench.append((b"b", b"1"))


def test_a_crash_before_the_swap_leaves_a_table_that_opens_clean() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"a", b"2"))
    bench.prepare()
    bench.reopen()
    assert len(bench.table.cleanup.find_orphans()) == 1
    bench.compact()
    assert bench.rows() == [(1, b"a", b"2")]
    assert bench.breaches() == []


KEYS = st.sampled_from([None, b"a", b"b", b"c", b"d", b""])
VALUES = st.none() | st.binary(max_size=3)
APPEND = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(APPEND | st.sampled_from(["compact", "reopen", "wait", "swap late"]), max_size=25))
def test_whatever_is_done_the_table_has_the_last_value_of_each_key(steps: list[object]) -> None:
    bench = TableBench()
    model: list[Row] = []
    late: PreparedFiles | None = None
    for step in steps:
        match step:
            case "compact":
                prepared, late = bench.prepare(retention_ms=100), None
                if prepared is not None:
                    bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=bench.now_ms)
            case "swap late":
                if late is not None:
                    bench.table.rewrites.swap(late, leader_epoch=0, now_ms=bench.now_ms)
                late = bench.prepare(retention_ms=100)
            case "reopen":
                bench.reopen()
                late = None
            case "wait":
                bench.now_ms += 60
            case list():
                model += [(len(model) + number, *record) for number, record in enumerate(step)]
                bench.append(*step)
    found = bench.rows()
    assert set(found) <= set(model)
    assert [row for row in found if row[1] is None] == [row for row in model if row[1] is None]
    last = {row[1]: row[2] for row in model if row[1] is not None}
    values = {row[1]: row[2] for row in found if row[1] is not None}
    assert {key: value for key, value in values.items() if value is not None} == {
        key: value for key, value in last.items() if value is not None
    }
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    assert not model or found[-1] == model[-1]
    bench.reopen()
    assert bench.rows() == found
    assert bench.breaches() == []


def test_a_typed_table_is_compacted_too() -> None:
    storage = open_storage_on(MemoryStore(), exclusive=False)
    name = TopicPartition("__consumer_offsets", 0)
    table = led(storage.create_partition(name, topic_id="id"))
    for base in range(0, 40, 2):
        values = pa.array([{"group_id": "g", "committed_offset": base}, None], table._schema.field("value").type)
        columns = pa.RecordBatch.from_arrays([pa.array([b"k", b"gone"]), values], names=["key", "value"])
        batch = LogBatch(base, base + 2, 2, columns.nbytes, 0, TimestampType.CREATE_TIME, 1_000, 1_000, columns)
        assert isinstance(table.append([batch], leader_epoch=0, now_ms=1_000), Committed)
    prepared = table.rewrites.prepare_key_compaction(now_ms=1_000, tombstone_retention_ms=DAY_MS)
    assert prepared is not None
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=1_000), Committed)
    (batch,) = led(storage.open_partition(name, topic_id="id")).log.read(0, end_offset=40, max_bytes=1 << 20)
    found = list(storage.keyed_rows("__consumer_offsets").decode(batch))
    assert [(row.key, row.value and row.value["committed_offset"]) for row in found] == [(b"k", 38), (b"gone", None)]


def test_compaction_takes_what_lies_below_the_log_start_though_it_is_the_last_of_its_key() -> None:
    bench = TableBench()
    bench.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    bench.append((b"c", b"2"), (b"d", b"1"))
    assert isinstance(bench.table.cleanup.advance_log_start(2, leader_epoch=0, now_ms=bench.now_ms), Committed)
    bench.compact()
    assert bench.rows(2) == bench.rows() == [(3, b"c", b"2"), (4, b"d", b"1")]
    assert [(file.base_offset, file.next_offset) for file in bench.table.rewrites.files] == [(2, 5)]
    assert bench.breaches() == []
    assert bench.reopen().state.log_start == 2
