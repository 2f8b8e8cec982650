"""Batches of the log as Parquet bytes with their Delta statistics.

Guards one promise: what the log's entry says about a file (size, offsets, timestamps, counts) is true of its bytes.
Rows lie in offset order, in row groups small enough that a fetch decodes little more than it sends. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bus.model import LogBatch, sequence_after
from bus.ports import FoundOffset
from bus.records.arrow_batches import complete_columns
from bus.records.log_schema import TIMESTAMP_TYPE
from bus.storage_delta.files.batch_runs import RUN_COLUMNS, columns_of
from bus.storage_delta.files.live_file import LiveFile, data_file_name
from bus.storage_delta.files.producer_spans import (
    PRODUCER_COLUMNS,
    ProducerStatistics,
    Stamps,
    merge_producer_column,
    stamps_of,
    statistics_of_one,
    statistics_of_rows,
    statistics_of_stamps,
)
from bus.storage_delta.files.proved_parquet import FileSums, encode_sums, sum_of, sums_of_pieces
from bus.storage_delta.files.small_parquet import encode_small, may_be_small

ROW_GROUP_BYTES = 4 << 20
STREAMED_BYTES_MIN = 2 * ROW_GROUP_BYTES
# Up to so many rows, of so many bytes, Arrow's writer costs more than they do (see small_parquet.py).
SMALL_ROWS_MAX = 256
SMALL_BYTES_MAX = 256 << 10
# The columns that the broker adds, in bytes per row.
_ADDED_ROW_BYTES = 24

# Statistics of key and value would cost time and space and prune nothing.
_STATISTICS = [
    "offset",
    "timestamp",
    "timestamp_type",
    "producer_id",
    "producer_epoch",
    "sequence",
    "leader_epoch",
]
# Nearly constant in a file: a dictionary makes them a few bytes. It is a waste of time for all others.
_DICTIONARIES = ["timestamp_type", "leader_epoch"]
_DICTIONARIES_AND_TIMESTAMP = [*_DICTIONARIES, "timestamp"]
# The page of a dictionary takes more than so few values do.
_DICTIONARY_ROWS_MIN = 8
# These stay the same or go up by one: as differences they are a few bits each, in no more time than plain.
_ENCODINGS = dict.fromkeys(("offset", "producer_id", "producer_epoch", "sequence"), "DELTA_BINARY_PACKED")
# Times of many batches: too many for a dictionary, and close to each other.
_REWRITTEN_ENCODINGS = {**_ENCODINGS, "timestamp": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True)
class EncodedFile:
    data: pa.Buffer
    file: LiveFile
    stats: str  # JSON, as `add.stats` wants it

    @property
    def name(self) -> str:
        return self.file.path


def encode_data_file(
    batches: Sequence[LogBatch],
    schema: pa.Schema,
    *,
    name_suffix: str,
    compression: str,
    committed_ms: int = 0,
    notes: Mapping[str, str] | None = None,
) -> EncodedFile:
    """`batches` follow each other without a gap. The file is named by its first offset and `name_suffix`. `notes`: what
    its footer says beside, for a repair that has no version of it."""
    stamps = stamps_of(batches) if len(batches) > 1 else None
    brought = _brought_columns(batches)
    if compression == "none" and is_small(batches) and brought.isdisjoint(RUN_COLUMNS) and may_be_small(schema):
        return _encode_small(
            batches, schema, stamps, name_suffix=name_suffix, committed_ms=committed_ms, notes=notes or {}
        )
    rows = _merge(batches, stamps, brought, schema)
    sink = pa.BufferOutputStream()
    ends: list[int] = []
    with open_parquet_writer(
        sink, schema, compression=compression, dictionaries=_dictionaries_for(batches, rows.num_rows)
    ) as writer:
        for group in _cut(rows, batches):
            writer.write_batch(group, row_group_size=group.num_rows)
            ends.append(sink.tell())
        if notes:
            writer.add_key_value_metadata(notes)
    data = sink.getvalue()
    offsets = (batches[0].base_offset, batches[-1].next_offset - 1)
    if "offset" in brought:
        offsets = (rows.column("offset")[0].as_py(), rows.column("offset")[-1].as_py())
    file, stats = _describe(
        batches,
        name_suffix,
        size_bytes=data.size,
        record_count=rows.num_rows,
        offsets=offsets,
        times_us=_min_max_us(batches, [rows.column("timestamp")]),
        producers=(
            _producer_statistics(batches, stamps, rows.num_rows)
            if brought.isdisjoint(PRODUCER_COLUMNS)
            else statistics_of_rows(rows)
        ),
        sums=_sums_of(data, ends),
        committed_ms=committed_ms,
    )
    return EncodedFile(data, file, stats)


def is_small(batches: Sequence[LogBatch]) -> bool:
    """True if these are few rows: what is done for each file costs more than they do."""
    return sum(batch.record_count for batch in batches) <= SMALL_ROWS_MAX and _size_bytes(batches) <= SMALL_BYTES_MAX


def _encode_small(
    batches: Sequence[LogBatch],
    schema: pa.Schema,
    stamps: Stamps | None,
    *,
    name_suffix: str,
    committed_ms: int,
    notes: Mapping[str, str],
) -> EncodedFile:
    row_count = sum(batch.record_count for batch in batches)
    columns = columns_of(batches, schema)
    encoded = encode_small(schema, columns, row_count, notes)
    file, stats = _describe(
        batches,
        name_suffix,
        size_bytes=len(encoded.data),
        record_count=row_count,
        offsets=(batches[0].base_offset, batches[-1].next_offset - 1),
        times_us=_min_max_us(batches, columns[1] or ()),
        producers=_producer_statistics(batches, stamps, row_count),
        sums=_sums_of(encoded.data, [encoded.tail_start]),
        committed_ms=committed_ms,
    )
    return EncodedFile(pa.py_buffer(encoded.data), file, stats)


def is_streamed(batches: Sequence[LogBatch]) -> bool:
    """True if `StreamedFile` can take `batches` and they are large: for large batches, touching fresh memory costs more
    than encoding."""
    if _size_bytes(batches) < STREAMED_BYTES_MIN:
        return False
    return _brought_columns(batches).isdisjoint(("offset", *PRODUCER_COLUMNS))


class StreamedFile:
    """The same file as that of `encode_data_file`, but for where its row groups end, a row group at a time: the memory
    that it takes beside `batches` is that of one of them. First all of `parts`, then `describe`."""

    def __init__(
        self,
        batches: Sequence[LogBatch],
        schema: pa.Schema,
        *,
        name_suffix: str,
        compression: str,
        committed_ms: int = 0,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._name_suffix = name_suffix
        self._compression = compression
        self._committed_ms = committed_ms
        self._notes = notes
        self._pieces: list[tuple[int, int]] = []  # (size in bytes, checksum) of each row group
        self._sums: FileSums | None = None
        self._size_bytes = 0
        self._times_us: list[tuple[int, int]] = []
        self.name = data_file_name(batches[0].base_offset, name_suffix)

    def parts(self) -> Iterator[bytes]:
        """The file's bytes: a part for each row group, and one for the end."""
        sink = PartSink()
        writer = open_parquet_writer(
            pa.PythonFile(sink, mode="w"),
            self._schema,
            compression=self._compression,
            dictionaries=_dictionaries_for(self._batches, self._record_count),
        )
        for group in self._row_groups():
            writer.write_batch(group, row_group_size=group.num_rows)
            part = sink.take()
            self._pieces.append((len(part), sum_of(part)))
            self._size_bytes += len(part)
            yield part
        if self._notes:
            writer.add_key_value_metadata(self._notes)
        writer.close()
        part = sink.take()
        self._size_bytes += len(part)
        self._sums = sums_of_pieces(self._pieces, sum_of(part))
        yield part

    @property
    def _record_count(self) -> int:
        return sum(batch.record_count for batch in self._batches)

    def _row_groups(self) -> Iterator[pa.RecordBatch]:
        for previous, run in pairwise(chain([None], _runs(self._batches))):
            assert run is not None
            assert previous is None or run[0].base_offset == previous[-1].next_offset, f"a gap at {run[0].base_offset}"
            rows = merge_batches(run, self._schema)
            self._times_us.append(_min_max_us(run, [rows.column("timestamp")]))
            yield from _cut(rows, run)

    def describe(self) -> tuple[LiveFile, str]:
        """Its entry and its statistics."""
        batches = self._batches
        assert self._sums is not None, f"{self.name}: expected all parts to be taken"
        minima, maxima = zip(*self._times_us, strict=True)
        stamps = stamps_of(batches)
        return _describe(
            batches,
            self._name_suffix,
            size_bytes=self._size_bytes,
            record_count=self._record_count,
            offsets=(batches[0].base_offset, batches[-1].next_offset - 1),
            times_us=(min(minima), max(maxima)),
            producers=ProducerStatistics(self._record_count) if stamps is None else statistics_of_stamps(stamps),
            sums=self._sums,
            committed_ms=self._committed_ms,
        )


class PartSink:
    """A sink that collects what Arrow writes until `take` fetches it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._parts.append(data)
        self._position += len(data)
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        self.closed = True


def _runs(batches: Sequence[LogBatch]) -> Iterator[Sequence[LogBatch]]:
    """About a row group's bytes each, or one larger batch."""
    run: list[LogBatch] = []
    size_bytes = 0
    for batch in batches:
        if run and size_bytes + _size_bytes([batch]) > ROW_GROUP_BYTES:
            yield run
            run, size_bytes = [], 0
        run.append(batch)
        size_bytes += _size_bytes([batch])
    yield run


def _describe(
    batches: Sequence[LogBatch],
    name_suffix: str,
    *,
    size_bytes: int,
    record_count: int,
    offsets: tuple[int, int],
    times_us: tuple[int, int],
    producers: ProducerStatistics,
    sums: FileSums,
    committed_ms: int,
) -> tuple[LiveFile, str]:
    file = LiveFile(
        path=data_file_name(batches[0].base_offset, name_suffix),
        size_bytes=size_bytes,
        base_offset=batches[0].base_offset,
        next_offset=batches[-1].next_offset,
        record_count=record_count,
        timestamp_min_ms=times_us[0] // 1000,
        timestamp_max_ms=times_us[1] // 1000,
        leader_epoch=max(batch.leader_epoch for batch in batches),
        producers=producers.spans,
        committed_ms=committed_ms,
        sums=encode_sums(sums),
    )
    return file, encode_stats(record_count, producers, offsets=offsets, times_us=times_us)


def _dictionaries_for(batches: Sequence[LogBatch], record_count: int) -> Sequence[str]:
    if record_count < _DICTIONARY_ROWS_MIN:
        return ()
    has_one_timestamp = all(batch.timestamp_ms is not None for batch in batches)
    return _DICTIONARIES_AND_TIMESTAMP if has_one_timestamp else _DICTIONARIES


def _cut(rows: pa.RecordBatch, batches: Sequence[LogBatch]) -> Iterator[pa.RecordBatch]:
    """`rows`, those of `batches`, by row groups."""
    row_count = max(1, ROW_GROUP_BYTES * rows.num_rows // _size_bytes(batches))
    for first in range(0, rows.num_rows, row_count):
        yield rows.slice(first, row_count)


def _sums_of(data: Any, ends: Sequence[int]) -> FileSums:
    """Row groups end at `ends`."""
    view = memoryview(data)
    pieces = [(end - start, sum_of(view[start:end])) for start, end in pairwise([0, *ends])]
    return sums_of_pieces(pieces, sum_of(view[ends[-1] :]))


def open_parquet_writer(
    sink: Any,
    schema: pa.Schema,
    *,
    compression: str,
    dictionaries: Sequence[str] = _DICTIONARIES,
    is_rewritten: bool = False,
) -> pq.ParquetWriter:
    """A data file of the log as the bus writes it, rows in offset order. The caller decides where a row group ends.
    One of rewritten rows, which is read for long, has a page index."""
    return pq.ParquetWriter(
        sink,
        schema,
        store_schema=False,
        compression=compression,
        use_dictionary=list(dictionaries),
        column_encoding=_REWRITTEN_ENCODINGS if is_rewritten else _ENCODINGS,
        write_statistics=_STATISTICS,
        write_page_checksum=True,
        write_page_index=is_rewritten,
    )


def _brought_columns(batches: Sequence[LogBatch]) -> set[str]:
    """The columns that some batch brings. Asked once for all batches: of each it costs as much as a small array."""
    brought: set[str] = set().union(*[batch.columns.schema.names for batch in batches])
    if "timestamp" in brought and all(batch.timestamp_ms is not None for batch in batches):
        brought.remove("timestamp")  # LogAppendTime: the producers' own times do not count
    return brought


def merge_batches(batches: Sequence[LogBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of batches that follow each other without a gap, with all columns of the log."""
    return _merge(batches, stamps_of(batches), _brought_columns(batches), schema)


def _merge(batches: Sequence[LogBatch], stamps: Stamps | None, brought: set[str], schema: pa.Schema) -> pa.RecordBatch:
    for previous, batch in pairwise(batches):
        assert batch.base_offset == previous.next_offset, f"{batch.base_offset} follows {previous.next_offset}"
    if len(batches) == 1:
        return complete_columns(batches[0], value_type=schema.field("value").type)
    counts = np.array([batch.record_count for batch in batches])
    arrays = [
        _concat_column(batches, field) if field.name in brought else _merge_column(batches, counts, stamps, field)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _concat_column(batches: Sequence[LogBatch], field: pa.Field) -> pa.Array:
    """A column that some of the batches bring."""
    name = field.name
    value_type = field.type if name == "value" else None
    present = [_index_of(batch, name) for batch in batches]
    return pa.concat_arrays(
        [
            batch.columns.column(index) if index >= 0 else complete_columns(batch, [name], value_type).column(0)
            for batch, index in zip(batches, present, strict=True)
        ]
    )


def _merge_column(batches: Sequence[LogBatch], counts: Any, stamps: Stamps | None, field: pa.Field) -> pa.Array:
    """A column that none of them brings."""
    match field.name:
        case "offset":
            return pa.array(np.arange(batches[0].base_offset, batches[-1].next_offset, dtype=np.int64))
        case "timestamp":
            micros = np.array([batch.timestamp_ms for batch in batches], np.int64) * 1000
            return pa.array(np.repeat(micros, counts)).view(TIMESTAMP_TYPE)
        case "timestamp_type" | "leader_epoch":
            values = np.array([int(getattr(batch, field.name)) for batch in batches], np.int32)
            return pa.array(np.repeat(values, counts))
        case _ if stamps is not None and field.name in PRODUCER_COLUMNS:
            return merge_producer_column(stamps, field)
        case _:
            return pa.nulls(int(counts.sum()), field.type)


def _producer_statistics(batches: Sequence[LogBatch], stamps: Stamps | None, row_count: int) -> ProducerStatistics:
    """Return the statistics of batches that bring no producer columns of their own."""
    if stamps is not None:
        return statistics_of_stamps(stamps)
    only = batches[0].producer if len(batches) == 1 else None
    return ProducerStatistics(row_count) if only is None else statistics_of_one(only, row_count)


def _index_of(batch: LogBatch, name: str) -> int:
    """Return the position of the column, or -1 if the batch has no use for it: the single timestamp of a batch
    (LogAppendTime) overrides a column of timestamps."""
    if name == "timestamp" and batch.timestamp_ms is not None:
        return -1
    return int(batch.columns.schema.get_field_index(name))


def _size_bytes(batches: Sequence[LogBatch]) -> int:
    return sum(batch.size_bytes + batch.record_count * _ADDED_ROW_BYTES for batch in batches)


def _min_max_us(batches: Sequence[LogBatch], times: Sequence[pa.Array]) -> tuple[int, int]:
    """`times`: the timestamps of all rows, looked at unless each batch has a single one."""
    constants = [batch.timestamp_ms for batch in batches if batch.timestamp_ms is not None]
    if len(constants) == len(batches):
        return min(constants) * 1000, max(constants) * 1000
    micros = [array.view(pa.int64()).to_numpy() for array in times]
    return min(int(each.min()) for each in micros), max(int(each.max()) for each in micros)


def encode_stats(
    record_count: int, producers: ProducerStatistics, *, offsets: tuple[int, int], times_us: tuple[int, int]
) -> str:
    """Statistics by the Delta protocol, from the first and the last offset and timestamp. Timestamps have milliseconds
    there, so the bounds are rounded outwards: not every reader allows for a maximum that was cut."""
    minima = f'"offset":{offsets[0]},"timestamp":"{format_timestamp(times_us[0] // 1000)}"'
    maxima = f'"offset":{offsets[1]},"timestamp":"{format_timestamp(-(-times_us[1] // 1000))}"'
    for name, bounds in (("producer_id", producers.producer_ids), ("sequence", producers.sequences)):
        if bounds is not None:
            minima, maxima = f'{minima},"{name}":{bounds[0]}', f'{maxima},"{name}":{bounds[1]}'
    nulls = producers.null_count
    return (
        f'{{"numRecords":{record_count},"minValues":{{{minima}}},"maxValues":{{{maxima}}},'
        f'"nullCount":{{"offset":0,"timestamp":0,"producer_id":{nulls},"sequence":{nulls}}}}}'
    )


def format_timestamp(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds. Arithmetic by numpy: it knows all the years that a producer may send."""
    return f"{np.datetime64(timestamp_ms, 'ms')}Z"


def slice_batch(batch: LogBatch, *, start: int, stop: int) -> LogBatch:
    """Return the records at positions `start` up to, but not including, `stop`: at least one. The fields of the part
    are its own: its offsets (also where some are missing), size, largest timestamp and first sequence. Copies nothing.
    """
    assert 0 <= start < stop <= batch.record_count, f"{start} to {stop} of {batch.record_count}"
    if start == 0 and stop == batch.record_count:
        return batch
    columns = batch.columns.slice(start, stop - start)
    base_offset, next_offset = batch.base_offset + start, batch.base_offset + stop
    if "offset" in columns.schema.names:
        # A hole belongs to the part behind it, so that parts which follow each other leave none between them.
        offsets = batch.columns.column("offset")
        base_offset = offsets[start - 1].as_py() + 1 if start else batch.base_offset
        next_offset = offsets[stop - 1].as_py() + 1 if stop < batch.record_count else batch.next_offset
    producer = batch.producer
    if producer is not None and start:
        producer = replace(producer, base_sequence=sequence_after(producer.base_sequence, start))
    sliced = replace(
        batch,
        base_offset=base_offset,
        next_offset=next_offset,
        record_count=stop - start,
        size_bytes=columns.nbytes,
        columns=columns,
        producer=producer,
    )
    if batch.timestamp_ms is not None:
        return sliced
    micros = columns.column("timestamp").view(pa.int64()).to_numpy()
    return replace(sliced, timestamp_max_ms=int(micros.max()) // 1000)


def position_of(batch: LogBatch, offset: int) -> int:
    """How many records of `batch` lie before `offset`."""
    index = batch.columns.schema.get_field_index("offset")
    if index < 0:
        return min(max(offset - batch.base_offset, 0), batch.record_count)
    return int(np.searchsorted(batch.columns.column(index).to_numpy(), offset))


def count_within(batch: LogBatch, max_bytes: int) -> int:
    """How many records from the first on take at most `max_bytes`: none, if the first one is larger."""
    if batch.size_bytes <= max_bytes:
        return batch.record_count
    sized = [column for column in batch.columns.columns if column.type == pa.binary()]
    ends = [
        np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
        for column in sized
    ]
    variable: Any = sum(((end[1:] - end[0]).astype(np.int64) for end in ends), np.zeros(batch.record_count, np.int64))
    fixed = max(0, batch.size_bytes - int(variable[-1])) / batch.record_count
    totals = variable + fixed * np.arange(1, batch.record_count + 1)
    return int(np.searchsorted(totals, max_bytes, side="right"))


def find_in_batch(batch: LogBatch, timestamp_ms: int) -> FoundOffset:
    position = 0
    found_ms = batch.timestamp_ms
    if found_ms is None:
        micros = batch.columns.column("timestamp").view(pa.int64()).to_numpy()
        position = int(np.argmax(micros >= timestamp_ms * 1000))
        found_ms = int(micros[position]) // 1000
    names = batch.columns.schema.names
    offset, epoch = batch.base_offset + position, batch.leader_epoch
    if "offset" in names:
        offset = batch.columns.column("offset")[position].as_py()
    if "leader_epoch" in names:
        epoch = batch.columns.column("leader_epoch")[position].as_py()
    return FoundOffset(offset=offset, timestamp_ms=found_ms, leader_epoch=epoch)
