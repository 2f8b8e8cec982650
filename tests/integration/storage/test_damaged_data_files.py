"""A data file that has changed since it was written is named as damaged, wherever it changed: no read gives other rows,
raises anything else, or ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bus.errors import RecordsDamaged
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from bus.storage_delta.files.live_file import LiveFile
from tests.support.table_bench import FOLDER, TableBench

FLIPS = 150


def appended() -> tuple[TableBench, LiveFile]:
    bench = TableBench()
    bench.append(*((b"key %d" % n, b"value %d" % n) for n in range(8)))
    (file,) = bench.table.log.view.live_files
    return bench, file


def rolled() -> tuple[TableBench, LiveFile]:
    bench = TableBench()
    for first in range(0, 8, 4):
        bench.append(*((b"key %d" % n, b"value %d" % n) for n in range(first, first + 4)))
    bench.roll()
    (file,) = bench.table.log.view.live_files
    return bench, file


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Bits over the whole file, every page header and every part of the footer among them; and what disks do."""
    for number in range(FLIPS):
        bit = number * len(data) * 8 // FLIPS + number % 8
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(damaged)
    for start in range(0, len(data), 512):
        yield f"zeros at {start}", data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :]
    for length in (0, 4, len(data) // 2, len(data) - 1):
        yield f"cut to {length}", data[:length]
    yield "longer", data + b"\0"


def read_each_way(bench: TableBench, file: LiveFile) -> list[object]:
    """The rows that each way to read the file gives; None where it says that the file is damaged."""
    found: list[object] = []
    for read in (
        lambda reader: reader.scan(file, LOG_SCHEMA.names),
        lambda reader: reader.scan(file, ["offset"]),
        lambda reader: reader.read_columns(file, ["offset", "sequence"], lambda _: True),
        lambda reader: ((one.base_offset, one.next_offset, one.columns) for one in reader.batches_from(file, 0)),
        lambda reader: [reader.find_timestamp(file, 0)],
    ):
        reader = DataReader(bench.store, FOLDER, LOG_SCHEMA, ReadCache())
        try:
            found.append(list(read(reader)))
        except RecordsDamaged as damaged:
            named = f"{file.path}: expected {file.size_bytes} bytes with offsets 0 to 7"
            found.append(None if named in str(damaged) else str(damaged))
    return found


@pytest.mark.parametrize("make", [appended, rolled])
def test_every_change_of_a_file_is_found_before_it_is_decoded(make: object) -> None:
    bench, file = make()  # type: ignore[operator]
    data = bytes(bench.store.get(f"{FOLDER}/{file.path}"))
    good = read_each_way(bench, file)
    assert None not in good
    for damage, damaged in damages(data):
        bench.store.put(f"{FOLDER}/{file.path}", damaged)
        assert read_each_way(bench, file) == [None] * len(good), damage


def test_a_file_of_an_earlier_bus_is_tried_where_a_crash_costs_nothing() -> None:
    bench, file = appended()
    data = bytes(bench.store.get(f"{FOLDER}/{file.path}"))
    file = replace(file, sums="")
    reader = DataReader(bench.store, FOLDER, LOG_SCHEMA, ReadCache())
    (good,) = reader.scan(file, LOG_SCHEMA.names)
    for damage, damaged in damages(data):
        bench.store.put(f"{FOLDER}/{file.path}", damaged)
        try:
            (found,) = DataReader(bench.store, FOLDER, LOG_SCHEMA, ReadCache()).scan(file, LOG_SCHEMA.names)
        except RecordsDamaged:
            continue
        assert found.equals(good), damage


def test_a_file_of_an_earlier_bus_that_rots_after_it_was_tried_is_found() -> None:
    bench, file = appended()
    file = replace(file, sums="")
    cache = ReadCache()
    reader = DataReader(bench.store, FOLDER, LOG_SCHEMA, cache)
    list(reader.scan(file, LOG_SCHEMA.names))
    damaged = bytearray(bench.store.get(f"{FOLDER}/{file.path}"))
    damaged[-40] ^= 1
    bench.store.put(f"{FOLDER}/{file.path}", bytes(damaged))
    with pytest.raises(RecordsDamaged, match="expected the checksum"):
        list(reader.scan(file, LOG_SCHEMA.names))


def test_two_files_that_were_swapped_are_both_damaged() -> None:
    bench = TableBench()
    for first in (0, 4):
        bench.append(*((b"key %d" % n, b"value %d" % n) for n in range(first, first + 4)))
    files = bench.table.log.view.live_files
    both = [bytes(bench.store.get(f"{FOLDER}/{file.path}")) for file in files]
    assert len(both[0]) == len(both[1])
    for file, data in zip(files, reversed(both), strict=True):
        bench.store.put(f"{FOLDER}/{file.path}", data)
    reader = DataReader(bench.store, FOLDER, LOG_SCHEMA, ReadCache())
    for file in files:
        with pytest.raises(RecordsDamaged, match="expected the checksum"):
            list(reader.batches_from(file, file.base_offset))


def test_no_damage_is_carried_into_a_rewritten_file() -> None:
    bench = TableBench()
    for first in (0, 4):
        bench.append(*((b"key %d" % n, b"value %d" % n) for n in range(first, first + 4)))
    file = bench.table.log.view.live_files[1]
    data = bytes(bench.store.get(f"{FOLDER}/{file.path}"))
    before = bench.data_files()
    for bit in range(0, len(data) * 8, len(data) * 8 // 20):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        bench.store.put(f"{FOLDER}/{file.path}", bytes(damaged))
        for rewrite in (bench.prepare_roll, bench.compact):
            with pytest.raises(RecordsDamaged, match=file.path):
                rewrite()
    assert bench.data_files() == before
