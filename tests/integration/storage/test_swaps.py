"""Files that somebody else prepared: which of them are taken, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ErrorCode, Refused, StorageDamaged
from bus.ports import Committed, Conflicted, PreparedFiles, SwapKind
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES
from tests.support.memory_store import MemoryStore
from tests.support.stores import ScriptedStore
from tests.support.table_bench import DAY_MS, FOLDER, TableBench

SAME, LAST = SwapKind.SAME_ROWS, SwapKind.LAST_OF_KEYS


def name_of(offset: int, suffix: str = "job") -> str:
    return f"{offset:020d}-{suffix}.parquet"


def rows_of(bench: TableBench) -> pa.Table:
    """Every column of every row, in the order of the log."""
    keys = [f"{FOLDER}/{file.path}" for file in bench.table.rewrites.files]
    return pa.concat_tables([pq.read_table(pa.BufferReader(bench.store.get(key)), schema=LOG_SCHEMA) for key in keys])


def write(bench: TableBench, rows: pa.Table, name: str, **options: Any) -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    bench.store.put(f"{FOLDER}/{name}", sink.getvalue().to_pybytes())
    return name


def some_rows() -> TableBench:
    """Offsets 0 to 11 in six files, with two producers."""
    bench = TableBench()
    for number in range(6):
        producer = (7 + number % 2, 0, 2 * (number // 2))
        bench.append((b"a", b"%d" % number), (b"%d" % number, b"x"), producer=producer)
    return bench


def check(bench: TableBench, adds: Sequence[str], kind: SwapKind = SAME, *, count: int = 6) -> PreparedFiles | Refused:
    return bench.table.rewrites.check_swap([file.path for file in bench.table.rewrites.files[:count]], adds, kind)


def swap(bench: TableBench, adds: Sequence[str], kind: SwapKind = SAME, *, count: int = 6) -> None:
    prepared = check(bench, adds, kind, count=count)
    assert isinstance(prepared, PreparedFiles), prepared
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=bench.now_ms), Committed)


def refused(answer: PreparedFiles | Refused) -> str:
    assert isinstance(answer, Refused)
    assert answer.code is ErrorCode.INVALID_REQUEST
    return answer.message


def test_the_same_rows_in_fewer_files_are_taken_with_statistics_of_our_own() -> None:
    bench = some_rows()
    before, rows = bench.rows(), rows_of(bench)
    bench.now_ms += 5_000
    adds = [write(bench, rows.slice(0, 7), name_of(0), row_group_size=3), write(bench, rows.slice(7), name_of(7))]
    swap(bench, adds)
    assert [(file.base_offset, file.next_offset, file.level) for file in bench.table.rewrites.files] == [
        (0, 7, 1),
        (7, 12, 1),
    ]
    assert [file.appended_ms for file in bench.table.rewrites.files] == [1_000_000] * 2
    assert bench.table.rewrites.files[0].producers == "7 0 0 0 0 3 8 0 0 0 0 2"
    for _ in range(2):
        assert bench.rows() == before
        assert bench.breaches() == []
        bench.reopen()


def test_files_in_the_middle_are_replaced_and_the_others_stay() -> None:
    bench = some_rows()
    before, files = bench.rows(), bench.table.rewrites.files
    name = write(bench, rows_of(bench).slice(4, 4), name_of(4))
    prepared = bench.table.rewrites.check_swap([file.path for file in files[2:4]], [name], SAME)
    assert isinstance(prepared, PreparedFiles)
    bench.append((b"a", b"9"))
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    assert [file.path for file in bench.table.rewrites.files[:4]] == [files[0].path, files[1].path, name, files[4].path]
    assert bench.rows()[:12] == before
    assert bench.breaches() == []


def test_what_key_compaction_left_out_may_be_missing_and_the_files_stand_for_it() -> None:
    bench = some_rows()
    rows = rows_of(bench)
    adds = [write(bench, rows.take([1, 3, 5]), name_of(0)), write(bench, rows.take([7, 10, 11]), name_of(6))]
    swap(bench, adds, LAST)
    assert [(file.base_offset, file.next_offset) for file in bench.reopen().rewrites.files] == [(0, 6), (6, 12)]
    assert [row[0] for row in bench.rows()] == [1, 3, 5, 7, 10, 11]
    assert bench.table.rewrites.compacted_to == 12
    assert bench.breaches() == []


def test_nullable_columns_as_other_engines_have_them_are_taken() -> None:
    bench = some_rows()
    headers = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
    rows = rows_of(bench)
    schema = pa.schema([field.with_nullable(True) for field in rows.schema])
    schema = schema.set(5, pa.field("headers", headers))
    columns = [pa.chunked_array([pa.nulls(12, headers)]) if name == "headers" else rows[name] for name in schema.names]
    swap(bench, [write(bench, pa.table(columns, schema=schema), name_of(0))])
    assert [row[0] for row in bench.reopen() and bench.rows()] == list(range(12))
    assert bench.breaches() == []
    bench.append((b"a", b"1"))
    bench.roll()
    assert bench.breaches() == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param([], "expected at least one file to add, found none", id="none"),
        pytest.param(["../1.parquet"], "expected the name of a file in the table's folder", id="another folder"),
        pytest.param([f"{0:020d}-a b.parquet"], "expected the name of a file", id="a character that needs an escape"),
        pytest.param(["part-0.parquet"], "expected the name of a file", id="no offset"),
        pytest.param([name_of(1)], "begins with the offset where the file has to begin", id="wrong"),
        pytest.param([name_of(0, "gone")], "expected a file in the table's folder, found none", id="not there"),
        pytest.param([name_of(0), name_of(0)], "expected every file once, found it twice", id="twice"),
    ],
)
def test_a_name_that_is_none_is_refused(names: list[str], said: str) -> None:
    bench = some_rows()
    for offset in (0, 1):
        write(bench, rows_of(bench), name_of(offset))
    assert said in refused(check(bench, names))


def test_files_that_some_version_names_are_refused() -> None:
    bench = some_rows()
    rows, live = rows_of(bench), bench.table.rewrites.files[0].path
    assert f"{live}: expected a file that no version names" in refused(check(bench, [live]))
    swap(bench, [write(bench, rows, name_of(0))])
    assert f"{live}: expected a file that no version names" in refused(check(bench, [live], count=1))


def test_files_that_some_version_names_are_refused_while_a_checkpoint_is_written() -> None:
    """Memory forgets a removed file once a checkpoint names it."""
    store = ScriptedStore(MemoryStore())
    bench = TableBench(store)  # type: ignore[arg-type]
    for number in range(3):
        bench.append((b"k", b"%d" % number))
        if number == 1:
            bench.table.cleanup.write_checkpoint()
    before = [file.path for file in bench.table.rewrites.files]
    bench.roll()
    store.before_next("get", bench.table.cleanup.write_checkpoint)
    assert "expected a file that no version names" in refused(check(bench, before, count=1))


def test_files_to_be_removed_that_are_none_or_do_not_follow_each_other_are_refused() -> None:
    bench = some_rows()
    paths = [file.path for file in bench.table.rewrites.files]
    name = write(bench, rows_of(bench), name_of(0))
    table = bench.table
    assert "at least one file to remove" in refused(table.rewrites.check_swap([], [name], SAME))
    assert "gone: expected a live file of version 6" in refused(
        table.rewrites.check_swap([paths[0], "gone"], [name], SAME)
    )
    assert f"{paths[2]}: expected the live file that follows {paths[0]}" in refused(
        table.rewrites.check_swap([paths[0], paths[2]], [name], SAME)
    )
    assert "follows" in refused(table.rewrites.check_swap([paths[1], paths[0]], [name], SAME))
    assert "follows" in refused(table.rewrites.check_swap([paths[0], paths[0]], [name], SAME))


def started_at(offset: int) -> TableBench:
    bench = some_rows()
    assert isinstance(bench.table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=1), Committed)
    return bench


@pytest.mark.parametrize(("kind", "offsets"), [(SAME, range(3, 12)), (LAST, (4, 11)), (SAME, range(2, 12))])
def test_rows_below_the_log_start_may_be_missing_in_a_file_that_begins_there(
    kind: SwapKind, offsets: Sequence[int]
) -> None:
    bench = started_at(3)
    rows = rows_of(bench)
    base = 2 if offsets[0] == 2 else 3
    name = write(bench, rows.filter(pc.is_in(rows["offset"], pa.array(offsets, pa.int64()))), name_of(base))
    swap(bench, [name], kind, count=5)
    (file,) = bench.reopen().rewrites.files
    assert (file.base_offset, file.next_offset) == (base, 12)
    assert [row[0] for row in bench.rows(3)] == [offset for offset in offsets if offset >= 3]
    assert bench.breaches() == []


@pytest.mark.parametrize(
    ("log_start", "base", "first", "said"),
    [
        (5, 4, 5, "expected offset 4, which is in the files to be removed, found it missing"),
        (5, 5, 4, "expected offsets of the files to be removed, found 4, which was deleted"),
        (5, 5, 6, "expected offset 5, which is in the files to be removed, found it missing"),
        # a job that has read an earlier log start, and one that makes up a later one
        (5, 3, 3, f"begins with the offset where the file has to begin, {4:020d}, or the log start, {5:020d}, found"),
        (5, 6, 6, f"begins with the offset where the file has to begin, {4:020d}, or the log start, {5:020d}, found"),
        (4, 5, 5, f"begins with the offset where the file has to begin, {4:020d}, found {5:020d}"),
    ],
)
def test_rows_from_the_log_start_on_may_not_be_missing(log_start: int, base: int, first: int, said: str) -> None:
    bench = started_at(log_start)
    rows = rows_of(bench)
    name = write(bench, rows.filter(pc.greater_equal(rows["offset"], first)), name_of(base))
    assert said in refused(check(bench, [name], count=4))


def test_key_compaction_that_begins_in_the_middle_is_refused() -> None:
    bench = some_rows()
    name = write(bench, rows_of(bench).slice(2), name_of(2))
    answer = bench.table.rewrites.check_swap([file.path for file in bench.table.rewrites.files[1:]], [name], LAST)
    assert "expected key compaction to begin with the first live file" in refused(answer)


@pytest.mark.parametrize(
    ("kind", "offsets", "said"),
    [
        (SAME, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11], "expected offset 6, which is in the files to be removed"),
        (SAME, [*range(11)], "expected offset 11 at its end, found 10"),
        (SAME, [*range(13)], "found 12, which is not in them"),
        (SAME, [0, *range(12)], "expected an offset above 0 after it, found 0"),
        (SAME, [*range(12), 6], "expected an offset above 11 after it, found 6"),
        (LAST, [*range(11)], "expected offset 11 at its end, found 10"),
        (LAST, [1, 11, 12], "found 12, which is not in them"),
        (LAST, [5, 3, 11], "expected an offset above 5 after it, found 3"),
        (LAST, [], "expected at least one row, found none"),
    ],
)
@pytest.mark.parametrize("group_rows", [1, 4, 100])
def test_offsets_that_are_lost_moved_or_invented_are_refused(
    kind: SwapKind, offsets: list[int], said: str, group_rows: int
) -> None:
    bench = some_rows()
    rows = rows_of(bench).take(pa.array([min(offset, 11) for offset in offsets], pa.int64()))
    rows = rows.set_column(0, LOG_SCHEMA.field("offset"), pa.array(offsets, pa.int64()))
    name = write(bench, rows, name_of(0), row_group_size=group_rows)
    message = refused(check(bench, [name], kind))
    assert message.startswith(f"{name}: ")
    assert said in message
    assert bench.table.rewrites.files == bench.reopen().rewrites.files


def test_a_second_file_that_repeats_the_end_of_the_first_is_refused() -> None:
    bench = some_rows()
    rows = rows_of(bench)
    adds = [write(bench, rows.slice(0, 7), name_of(0)), write(bench, rows.slice(6), name_of(7))]
    assert f"{adds[1]}: expected offsets of the files to be removed, found 6" in refused(check(bench, adds))


COLUMN_CHANGES: Mapping[str, Any] = {
    "a column is missing": lambda rows: rows.drop_columns(["headers"]),
    "a column too many": lambda rows: rows.append_column("more", rows["key"]),
    "another order": lambda rows: rows.select([*reversed(LOG_SCHEMA.names)]),
    "another type": lambda rows: rows.set_column(4, "value", rows["value"].cast(pa.string())),
    "no time zone": lambda rows: rows.set_column(1, "timestamp", rows["timestamp"].cast(pa.timestamp("us"))),
    "a null offset": lambda rows: with_nulls(rows, "offset"),
    "a null timestamp": lambda rows: with_nulls(rows, "timestamp"),
    "a null epoch": lambda rows: with_nulls(rows, "leader_epoch"),
    "a null timestamp type": lambda rows: with_nulls(rows, "timestamp_type"),
}


def with_nulls(rows: pa.Table, name: str) -> pa.Table:
    column = pc.if_else(pc.equal(rows["offset"], 5), pa.scalar(None, rows[name].type), rows[name])
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)


@pytest.mark.parametrize("change", COLUMN_CHANGES)
def test_columns_that_are_not_those_of_the_log_are_refused(change: str) -> None:
    bench = some_rows()
    name = write(bench, COLUMN_CHANGES[change](rows_of(bench)), name_of(0))
    message = refused(check(bench, [name]))
    assert message.startswith(f"{name}: expected ")
    assert "of type" in message or "the columns" in message or "found 1 null" in message


def test_bytes_that_cannot_be_decoded_are_refused() -> None:
    bench = some_rows()
    name = write(bench, rows_of(bench), name_of(0), write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(bench.store.get(f"{FOLDER}/{name}"))
    value = data.index(b"\x01\x00\x00\x00x")
    data[value + 4] ^= 1
    bench.store.put(f"{FOLDER}/{name}", bytes(data))
    assert f"{name}: expected a Parquet file that can be decoded" in refused(check(bench, [name]))
    bench.store.put(f"{FOLDER}/{name}", bytes(data[:-20]))
    assert f"{name}: expected a Parquet file that can be decoded" in refused(check(bench, [name]))
    bench.store.put(f"{FOLDER}/{name}", b"")
    assert f"{name}: expected a Parquet file that can be decoded" in refused(check(bench, [name]))


def test_row_groups_too_large_for_a_fetch_are_refused_unless_they_are_a_few_large_records() -> None:
    bench = TableBench()
    values = [bytes(ROW_GROUP_BYTES // 8)] * 150
    bench.append(*((None, value) for value in values))
    rows = rows_of(bench)
    options = {"compression": "zstd", "use_dictionary": False}
    whole = write(bench, rows, name_of(0, "whole"), **options)
    assert "expected row groups of at most 67108864 bytes" in refused(check(bench, [whole], count=1))
    swap(bench, [write(bench, rows, name_of(0), row_group_size=128, **options)], count=1)
    assert bench.breaches() == []


def test_rows_to_be_replaced_that_cannot_be_read_are_damage() -> None:
    bench = some_rows()
    name = write(bench, rows_of(bench), name_of(0))
    bad = bench.table.rewrites.files[3]
    bench.store.put(f"{FOLDER}/{bad.path}", bytes(bad.size_bytes))
    with pytest.raises(StorageDamaged, match=bad.path):
        check(bench, [name])


@settings(max_examples=80, deadline=None)
@given(
    kept=st.sets(st.integers(0, 13)),
    cuts=st.sets(st.integers(1, 11), max_size=3),
    kind=st.sampled_from([SAME, LAST]),
    group_rows=st.integers(1, 5),
)
def test_a_swap_is_taken_if_and_only_if_its_offsets_are_those_that_may_be(
    kept: set[int], cuts: set[int], kind: SwapKind, group_rows: int
) -> None:
    bench = some_rows()
    all_rows, offsets = rows_of(bench), sorted(kept)
    parts = [part for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), 99], strict=True)
             if (part := [offset for offset in offsets if low <= offset < high])]  # fmt: skip
    adds, base = [], 0
    for part in parts:
        rows = all_rows.take([min(offset, 11) for offset in part])
        rows = rows.set_column(0, LOG_SCHEMA.field("offset"), pa.array(part, pa.int64()))
        adds.append(write(bench, rows, name_of(base, f"{base}"), row_group_size=group_rows))
        base = part[-1] + 1
    answer = check(bench, adds, kind)
    is_fit = offsets == [*range(12)] if kind is SAME else bool(offsets) and offsets[-1] == 11
    assert isinstance(answer, PreparedFiles) == is_fit
    if isinstance(answer, PreparedFiles):
        assert isinstance(bench.table.rewrites.swap(answer, leader_epoch=0, now_ms=1), Committed)
        assert [row[0] for row in bench.rows()] == offsets
        assert bench.breaches() == []


def test_files_that_wait_for_their_swap_are_no_orphans_and_refused_ones_are() -> None:
    bench = some_rows()
    name = write(bench, rows_of(bench), name_of(0))
    assert bench.table.cleanup.find_orphans() == {name}
    refused(check(bench, [name], count=5))
    assert bench.table.cleanup.find_orphans() == {name}
    prepared = check(bench, [name])
    assert isinstance(prepared, PreparedFiles)
    assert bench.table.cleanup.find_orphans() == frozenset()
    assert f"{name}: expected a file of no other swap" in refused(check(bench, [name]))
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    assert bench.table.cleanup.find_orphans() == frozenset()


def test_a_swap_that_comes_too_late_leaves_no_file_and_no_name_under_way() -> None:
    bench = some_rows()
    name = write(bench, rows_of(bench), name_of(0))
    prepared = check(bench, [name])
    assert isinstance(prepared, PreparedFiles)
    bench.roll()
    assert isinstance(bench.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Conflicted)
    assert name not in bench.data_files()
    write(bench, rows_of(bench), name)
    assert bench.table.cleanup.find_orphans() == {name}


def test_ages_stay_few_and_never_grow_older() -> None:
    bench = TableBench()
    for day in range(300):
        bench.now_ms = 1_000_000 + day * DAY_MS
        bench.append((b"a", b"1"))
    swap(bench, [write(bench, rows_of(bench), name_of(0))], count=300)
    (file,) = bench.reopen().rewrites.files
    pairs = [pair.split(":") for pair in file.ages.split()]
    assert len(pairs) < 100
    appended = {offset + 1: 1_000_000 + offset * DAY_MS for offset in range(300)}
    assert all(int(since_ms) == appended[int(next_offset)] for next_offset, since_ms in pairs)
    assert int(pairs[-1][0]) == 300
