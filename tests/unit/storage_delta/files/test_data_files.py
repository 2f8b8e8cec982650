"""Batches to Parquet and back, in memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bus.errors import StorageDamaged
from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, TimestampType
from bus.records.arrow_batches import complete_columns
from bus.records.log_schema import HEADERS_TYPE, LOG_SCHEMA
from bus.storage_delta.files.data_files import (
    EncodedFile,
    StreamedFile,
    count_within,
    encode_data_file,
    format_timestamp,
    is_streamed,
    merge_batches,
    position_of,
    slice_batch,
)
from bus.storage_delta.files.data_reader import DataReader, ReadCache
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, ScriptedStore, log_batch


def encode(batches: list[LogBatch], compression: str = "none") -> EncodedFile:
    return encode_data_file(batches, LOG_SCHEMA, name_suffix="x", compression=compression)


def parquet_bytes(rows: pa.Table, **options: bool) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    return sink.getvalue().to_pybytes()


def reader_of(encoded: EncodedFile, data: bytes | None = None) -> DataReader:
    store = MemoryStore()
    store.put(f"t/{encoded.file.path}", encoded.data if data is None else data)
    return DataReader(store, "t", LOG_SCHEMA, ReadCache())


def read_all(encoded: EncodedFile) -> pa.Table:
    batches = reader_of(encoded).batches_from(encoded.file, encoded.file.base_offset)
    return pa.Table.from_batches([complete_columns(batch) for batch in batches])


def merged(batches: list[LogBatch]) -> pa.RecordBatch:
    return merge_batches(batches, LOG_SCHEMA)


MIXED = [
    log_batch(10, [b"a", None], keys=[b"k", None], leader_epoch=2),
    log_batch(12, [b"c"], timestamps_us=[NOW_MS * 1000 + 1], leader_epoch=3, producer=(7, 1, 40)),
    log_batch(13, [b"d", b"e"], timestamp_ms=NOW_MS - 5, timestamp_type=TimestampType.LOG_APPEND_TIME, leader_epoch=3),
]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_come_back_row_by_row(compression: str) -> None:
    expected = pa.Table.from_batches([complete_columns(batch) for batch in MIXED])
    assert read_all(encode(MIXED, compression)).equals(expected)


def test_merged_columns_equal_the_completed_batches() -> None:
    expected = pa.Table.from_batches([complete_columns(batch) for batch in MIXED]).combine_chunks()
    assert pa.Table.from_batches([merged(MIXED)]).equals(expected)
    plain = [log_batch(base, [b"v"], timestamp_ms=base) for base in range(5)]
    expected = pa.Table.from_batches([complete_columns(batch) for batch in plain]).combine_chunks()
    assert pa.Table.from_batches([merged(plain)]).equals(expected)


def test_log_append_time_beats_the_times_that_a_producer_sent() -> None:
    sent = log_batch(0, [b"a", b"b"], timestamps_us=[1, 2])
    stamped = replace(sent, timestamp_ms=NOW_MS, timestamp_max_ms=NOW_MS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    behind = log_batch(2, [b"c"], timestamps_us=[3])
    for batches in ([stamped], [stamped, behind]):
        encoded = encode(batches)
        assert read_all(encoded).column("timestamp").cast(pa.int64()).to_pylist()[:2] == [NOW_MS * 1000] * 2
        assert encoded.file.timestamp_max_ms == NOW_MS


def test_headers_survive() -> None:
    headers = pa.array([[("a", b"1"), ("b", None)], None, []], HEADERS_TYPE)
    columns = pa.RecordBatch.from_arrays([pa.array([b"1", b"2", b"3"]), headers], names=["value", "headers"])
    batch = LogBatch(0, 3, 3, columns.nbytes, 0, TimestampType.CREATE_TIME, NOW_MS, NOW_MS, columns)
    assert read_all(encode([batch])).column("headers").to_pylist() == headers.to_pylist()


def test_the_entry_is_true_of_the_file() -> None:
    encoded = encode(MIXED)
    assert (encoded.file.base_offset, encoded.file.next_offset, encoded.file.record_count) == (10, 15, 5)
    assert encoded.file.size_bytes == encoded.data.size
    assert (encoded.file.timestamp_min_ms, encoded.file.timestamp_max_ms) == (NOW_MS - 5, NOW_MS)
    assert encoded.file.leader_epoch == 3
    assert encoded.file.path == "00000000000000000010-x.parquet"


def test_statistics_are_bounds_though_timestamps_are_cut_to_milliseconds() -> None:
    stats = json.loads(encode(MIXED).stats)
    assert stats == {
        "numRecords": 5,
        "minValues": {"offset": 10, "timestamp": "2023-11-14T22:13:19.995Z", "producer_id": 7, "sequence": 40},
        "maxValues": {"offset": 14, "timestamp": "2023-11-14T22:13:20.001Z", "producer_id": 7, "sequence": 40},
        "nullCount": {"offset": 0, "timestamp": 0, "producer_id": 4, "sequence": 4},
    }


def test_parquet_types_are_those_of_the_protocol() -> None:
    schema = pq.read_schema(pa.BufferReader(encode(MIXED).data))
    assert schema.remove_metadata().equals(LOG_SCHEMA)


def test_columns_that_say_nothing_are_left_out() -> None:
    encoded = encode([log_batch(0, [b"a", b"b"], leader_epoch=4)])
    (batch,) = reader_of(encoded).batches_from(encoded.file, 0)
    assert batch.columns.schema.names == ["value"]
    assert (batch.timestamp_ms, batch.timestamp_max_ms, batch.leader_epoch) == (NOW_MS, NOW_MS, 4)


def test_a_timestamp_with_microseconds_stays_a_column() -> None:
    encoded = encode([log_batch(0, [b"a"], timestamps_us=[NOW_MS * 1000 + 7])])
    (batch,) = reader_of(encoded).batches_from(encoded.file, 0)
    assert batch.timestamp_ms is None
    assert batch.timestamp_max_ms == NOW_MS
    assert complete_columns(batch).column("timestamp").cast(pa.int64()).to_pylist() == [NOW_MS * 1000 + 7]


def test_large_files_have_row_groups_and_a_read_skips_those_before_it() -> None:
    encoded = encode([log_batch(0, [bytes(1000)] * 20_000)])
    assert encoded.file.size_bytes > 16 << 20
    store = ScriptedStore(MemoryStore())
    store.put(f"t/{encoded.file.path}", encoded.data)
    reader = DataReader(store, "t", LOG_SCHEMA, ReadCache())  # type: ignore[arg-type]
    batches = list(reader.batches_from(encoded.file, 19_000))
    assert len(batches) == 1
    assert 3 << 20 < batches[0].size_bytes < 5 << 20
    assert batches[0].base_offset <= 19_000 < batches[0].next_offset == 20_000
    assert sum(batch.record_count for batch in reader.batches_from(encoded.file, 0)) == 20_000


def test_what_was_decoded_is_not_decoded_again() -> None:
    encoded = encode([log_batch(0, [b"a"])])
    store = ScriptedStore(MemoryStore())
    store.put(f"t/{encoded.file.path}", encoded.data)
    reader = DataReader(store, "t", LOG_SCHEMA, ReadCache())  # type: ignore[arg-type]
    first = list(reader.batches_from(encoded.file, 0))
    calls = len(store.calls)
    assert list(reader.batches_from(encoded.file, 0)) == first
    assert len(store.calls) == calls


def test_committed_batches_are_kept_once_and_within_their_bound() -> None:
    batch = log_batch(0, [b"x" * 100])
    cache = ReadCache(committed_bytes_max=3 * batch.size_bytes)
    for key in "abcd":
        cache.add_committed(key, [batch])
    assert cache.take_committed("a") is None
    assert cache.take_committed("b") == [batch]
    assert cache.take_committed("b") is None
    cache.add_committed("e", [batch])
    assert [cache.take_committed(key) is None for key in "cde"] == [False] * 3
    cache.add_committed("f", [batch] * 4)
    assert cache.take_committed("f") is None


def test_the_cache_stays_within_its_bytes_and_footers() -> None:
    cache = ReadCache(decoded_bytes_max=4000, footers_max=3)
    store = MemoryStore()
    reader = DataReader(store, "t", LOG_SCHEMA, cache)
    for base in range(20):
        encoded = encode([log_batch(base, [bytes(900)])])
        store.put(f"t/{encoded.file.path}", encoded.data)
        assert len(list(reader.batches_from(encoded.file, base))) == 1
    assert 0 < cache._decoded_bytes <= 4000
    assert cache._decoded_bytes == sum(batch.size_bytes for batch in cache._decoded.values())
    assert len(cache._footers) == 3


def test_offsets_of_a_file_with_holes_stay_a_column() -> None:
    rows = complete_columns(log_batch(0, [b"a", b"b", b"c", b"d"]))
    data = parquet_bytes(pa.Table.from_batches([rows]).take([0, 3]))
    encoded = encode([log_batch(0, [b"a"])])
    file = reader_of(encoded, data).check_foreign(encoded.file.path, len(data))
    assert (file.base_offset, file.next_offset, file.record_count, file.is_ordered) == (0, 4, 2, True)
    (batch,) = reader_of(encoded, data).batches_from(file, 0)
    assert batch.columns.column("offset").to_pylist() == [0, 3]
    assert [position_of(batch, offset) for offset in range(5)] == [0, 1, 1, 1, 2]
    tail = slice_batch(batch, start=1, stop=2)
    assert (tail.base_offset, tail.next_offset, tail.record_count) == (1, 4, 1)
    assert slice_batch(batch, start=0, stop=1).next_offset == tail.base_offset


def test_rows_that_another_engine_shuffled_are_read_in_offset_order() -> None:
    rows = complete_columns(log_batch(5, [b"a", b"b", b"c"], timestamps_us=[1000, 2000, 3000]))
    data = parquet_bytes(pa.Table.from_batches([rows]).take([2, 0, 1]), use_deprecated_int96_timestamps=True)
    encoded = encode([log_batch(5, [b"a"])])
    reader = reader_of(encoded, data)
    file = reader.check_foreign(encoded.file.path, len(data))
    assert not file.is_ordered
    (batch,) = reader.batches_from(file, 5)
    assert pa.Table.from_batches([complete_columns(batch)]).equals(pa.Table.from_batches([rows]))


@pytest.mark.parametrize("name", ["offset", "timestamp", "leader_epoch"])
def test_a_foreign_file_without_an_essential_column_is_damage(name: str) -> None:
    rows = pa.Table.from_batches([complete_columns(log_batch(0, [b"a"]))]).drop_columns([name])
    data = parquet_bytes(rows)
    encoded = encode([log_batch(0, [b"a"])])
    with pytest.raises(StorageDamaged, match=name):
        reader_of(encoded, data).check_foreign(encoded.file.path, len(data))


def test_a_bad_file_is_damage_that_names_file_and_expectation() -> None:
    encoded = encode([log_batch(0, [b"a" * 100] * 50)])
    whole = encoded.data.to_pybytes()
    garbled = whole[: len(whole) // 2] + b"\xff" * (len(whole) - len(whole) // 2)
    for data, found in ((whole[:-10], f"found {len(whole) - 10} bytes"), (garbled, ""), (whole + b"x", "found")):
        with pytest.raises(StorageDamaged, match=rf"{encoded.file.path}: expected {len(whole)} bytes.*{found}"):
            list(reader_of(encoded, data).batches_from(encoded.file, 0))
    with pytest.raises(StorageDamaged, match="no such file"):
        list(DataReader(MemoryStore(), "t", LOG_SCHEMA, ReadCache()).batches_from(encoded.file, 0))


def test_count_within_counts_by_the_bytes_of_each_record() -> None:
    batch = log_batch(0, [bytes(10), bytes(10_000), bytes(10), bytes(10)])
    assert count_within(batch, 5) == 0
    assert count_within(batch, 100) == 1
    assert count_within(batch, 10_000) == 1
    assert count_within(batch, 10_020) == 2
    assert count_within(batch, 1 << 20) == 4
    assert count_within(slice_batch(batch, start=2, stop=4), 25) == 1


def test_a_slice_knows_its_own_timestamps() -> None:
    batch = log_batch(0, [b"a", b"b", b"c"], timestamps_us=[3000, 9000, 5000])
    assert slice_batch(batch, start=2, stop=3).timestamp_max_ms == 5
    assert slice_batch(batch, start=0, stop=2).timestamp_max_ms == 9


# ------------------------------------------------------------------ idempotent producers

LAST = SEQUENCE_MODULUS - 1


def stamped(base_offset: int, count: int, stamp: tuple[int, int, int] | None) -> LogBatch:
    batch = log_batch(base_offset, [b"v"] * count)
    return batch if stamp is None else replace(batch, producer=ProducerStamp(*stamp))


def run_of(*parts: tuple[int, tuple[int, int, int] | None]) -> list[LogBatch]:
    """Batches that follow each other; each part is a count of records and their stamp."""
    batches: list[LogBatch] = []
    for count, stamp in parts:
        batches.append(stamped(batches[-1].next_offset if batches else 0, count, stamp))
    return batches


def producers_of(table: pa.Table) -> list[tuple[int | None, int | None, int | None]]:
    names = ("producer_id", "producer_epoch", "sequence")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def expected_of(batches: list[LogBatch]) -> list[tuple[int | None, int | None, int | None]]:
    rows: list[tuple[int | None, int | None, int | None]] = []
    for batch in batches:
        for at in range(batch.record_count):
            stamp = batch.producer
            rows.append(
                (None, None, None)
                if stamp is None
                else (stamp.producer_id, stamp.producer_epoch, (stamp.base_sequence + at) % SEQUENCE_MODULUS)
            )
    return rows


GROUPS = {
    "one": run_of((3, (7, 1, 40))),
    "one that wraps": run_of((5, (7, 1, LAST - 2))),
    "none": run_of((2, None), (1, None)),
    "mixed": run_of((2, (7, 1, 0)), (1, None), (3, (2**40, 0, LAST - 1)), (2, (7, 1, 2)), (2, (7, 2, 0)), (4, None)),
    "large": run_of((2000, (7, 0, 5)), (3, (8, 0, 0))),
}


@pytest.mark.parametrize("batches", GROUPS.values(), ids=GROUPS)
def test_stamps_become_columns_and_come_back(batches: list[LogBatch]) -> None:
    encoded = encode(batches)
    in_file = pq.read_table(pa.BufferReader(encoded.data))
    assert producers_of(in_file) == expected_of(batches)
    assert producers_of(read_all(encoded)) == expected_of(batches)


@pytest.mark.parametrize("batches", GROUPS.values(), ids=GROUPS)
def test_statistics_of_producers_are_those_of_the_rows(batches: list[LogBatch]) -> None:
    encoded = encode(batches)
    stats = json.loads(encoded.stats)
    rows = pq.read_table(pa.BufferReader(encoded.data))
    for name in ("producer_id", "sequence"):
        bounds = pc.min_max(rows.column(name)).as_py()
        assert (stats["minValues"].get(name), stats["maxValues"].get(name)) == (bounds["min"], bounds["max"])
        assert stats["nullCount"][name] == rows.column(name).null_count


def test_columns_that_a_batch_brings_say_what_its_stamp_would() -> None:
    """The rest of a batch brings its sequences, whatever its neighbours bring."""
    left = log_batch(2, [b"v", b"v"])
    columns = left.columns.append_column("sequence", pa.array([1, 4], pa.int32()))
    batches = [
        stamped(0, 2, (7, 0, 9)),
        replace(left, columns=columns, producer=ProducerStamp(8, 3, 1)),
        stamped(4, 1, None),
        log_batch(5, [b"v"], producer=(9, 2, 6)),
    ]
    encoded = encode(batches)
    expected = [(7, 0, 9), (7, 0, 10), (8, 3, 1), (8, 3, 4), (None, None, None), (9, 2, 6)]
    assert producers_of(read_all(encoded)) == expected
    assert encoded.file.producers == "7 0 0 0 9 1 8 0 3 0 1 0 8 0 3 0 4 0 9 0 2 0 6 0"
    assert json.loads(encoded.stats)["nullCount"]["sequence"] == 1
    alone = encode([replace(batches[1], base_offset=0, next_offset=2)])
    assert producers_of(read_all(alone)) == expected[2:4]


def test_rows_of_one_stamp_are_read_as_a_stamp() -> None:
    for batches in (GROUPS["one"], GROUPS["one that wraps"], run_of((2, (7, 0, 5)), (3, (7, 0, 7)))):
        encoded = encode(batches)
        (batch,) = reader_of(encoded).batches_from(encoded.file, 0)
        assert batch.columns.schema.names == ["value"]
        assert batch.producer == batches[0].producer


def test_rows_of_one_producer_whose_sequences_are_not_dense_keep_them() -> None:
    """A minimum, a maximum and a count would have them dense."""
    swapped = log_batch(0, [b"v"] * 4)
    columns = swapped.columns.append_column("sequence", pa.array([5, 7, 6, 8], pa.int32()))
    encoded = encode([replace(swapped, columns=columns, producer=ProducerStamp(7, 0, 5))])
    (batch,) = reader_of(encoded).batches_from(encoded.file, 0)
    assert batch.columns.column("sequence").to_pylist() == [5, 7, 6, 8]
    assert producers_of(read_all(encoded)) == [(7, 0, sequence) for sequence in (5, 7, 6, 8)]


def test_a_slice_goes_on_with_its_own_sequence() -> None:
    batch = stamped(0, 5, (7, 1, LAST - 1))
    tail = slice_batch(batch, start=3, stop=5)
    assert tail.producer == ProducerStamp(7, 1, 1)
    assert complete_columns(tail, ["sequence"]).column(0).to_pylist() == [1, 2]
    assert slice_batch(batch, start=0, stop=2).producer == batch.producer


def test_numbers_that_go_up_by_one_take_hardly_any_room() -> None:
    plain = encode(run_of((10_000, None))).file.size_bytes
    assert encode(run_of((10_000, (2**40, 3, 10**9)))).file.size_bytes - plain < 2_000


def test_append_time_beats_the_times_of_all_batches_of_a_group() -> None:
    own = [log_batch(offset, [b"v"], timestamps_us=[1000 + offset]) for offset in range(3)]
    batches = [replace(batch, timestamp_ms=NOW_MS + at) for at, batch in enumerate(own)]
    rows = merged(batches)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [(NOW_MS + at) * 1000 for at in range(3)]


def test_timestamps_of_statistics_have_milliseconds() -> None:
    assert format_timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert format_timestamp(1_700_000_000_001) == "2023-11-14T22:13:20.001Z"
    assert format_timestamp(-1) == "1969-12-31T23:59:59.999Z"


STREAMED = [
    replace(log_batch(10, [bytes(3_000_000)] * 3, leader_epoch=2), producer=ProducerStamp(7, 1, 40)),
    log_batch(13, [b"c" * 3_000_000], timestamps_us=[NOW_MS * 1000 + 1], leader_epoch=3),
    *(log_batch(14 + at, [b"d" * 500_000], timestamp_ms=NOW_MS - at, leader_epoch=3) for at in range(9)),
    replace(log_batch(23, [b"e", None], keys=[b"k", None]), producer=ProducerStamp(8, 1, SEQUENCE_MODULUS - 1)),
]


def test_many_batches_are_streamed_as_the_file_that_they_would_be_at_once() -> None:
    whole = encode(STREAMED)
    streamed = StreamedFile(STREAMED, LOG_SCHEMA, name_suffix="x", compression="none", notes={"bus.note": "1"})
    parts = list(streamed.parts())
    file, stats = streamed.describe()
    assert max(map(len, parts)) < 6 << 20, "about a row group at a time"
    assert len(parts) > 4
    data = b"".join(parts)
    assert file.size_bytes == len(data)
    assert stats == whole.stats
    assert replace(file, size_bytes=0, sums="") == replace(whole.file, size_bytes=0, sums="")
    assert streamed.name == file.path
    assert pq.read_metadata(pa.BufferReader(data)).metadata[b"bus.note"] == b"1"
    expected = pa.Table.from_batches([complete_columns(batch) for batch in STREAMED])
    assert read_all(EncodedFile(pa.py_buffer(data), file, stats)).equals(expected)


def test_damage_in_a_streamed_file_is_found_by_its_sums() -> None:
    streamed = StreamedFile(STREAMED, LOG_SCHEMA, name_suffix="x", compression="none")
    data = bytearray(b"".join(streamed.parts()))
    data[len(data) // 2] ^= 1
    with pytest.raises(StorageDamaged):
        read_all(EncodedFile(pa.py_buffer(bytes(data)), *streamed.describe()))


def test_few_bytes_and_rows_that_bring_their_offsets_are_not_streamed() -> None:
    assert is_streamed(STREAMED)
    assert not is_streamed(MIXED)
    columns = STREAMED[0].columns.append_column("offset", pa.array([10, 11, 12]))
    assert not is_streamed([replace(STREAMED[0], columns=columns), *STREAMED[1:]])
