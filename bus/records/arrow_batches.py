"""Arrow batches at the edges: what comes from a socket is checked here, what goes to a reader is completed here.

Guards one promise: a batch that gets past `decode_records` has exactly the log's types, valid buffers, no null
timestamp and no null header, so nothing behind it checks again. The schema is judged before any column is looked at:
there are types whose values take a few bytes on the wire and gigabytes once they are validated or cast. Works on whole
columns, never on single records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import show_names
from bus.model import (
    SEQUENCE_MODULUS,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_STORED_MS_MAX,
    TIMESTAMP_STORED_MS_MIN,
    LogBatch,
    RecordBatch,
)
from bus.records.log_schema import HEADERS_TYPE, LOG_COLUMNS, LOG_SCHEMA, TIMESTAMP_TYPE, log_schema

_IPC_OPTIONS = {
    codec: pa.ipc.IpcWriteOptions(compression=codec if codec != "none" else None) for codec in ("none", "lz4", "zstd")
}


# Schema, metadata and padding of a sound payload are smaller.
_ENVELOPE_BYTES_MAX = 8 * 1024


class MalformedRecords(ValueError):
    """These bytes are no batch of records; the message says what was expected and what was found."""


class MistimedRecords(MalformedRecords):
    """A timestamp is none that the log can hold."""


def encode_arrow(batch: pa.RecordBatch, compression: str = "none") -> bytes:
    """One record batch as an Arrow IPC stream. `compression` of its buffers: none, lz4 or zstd."""
    return encode_arrow_buffer(batch, compression).to_pybytes()  # type: ignore[no-any-return]


def encode_arrow_buffer(batch: pa.RecordBatch, compression: str = "none") -> pa.Buffer:
    """`encode_arrow` without the last copy, for those who put it behind other bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC_OPTIONS[compression]) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


# A view into a larger message may begin anywhere, and numbers must not. Where an Arrow is too old to move them to where
# they belong, the whole payload is.
_ALIGNED = (
    pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific) if hasattr(pa.ipc, "Alignment") else None
)


def decode_arrow(
    payload: bytes | memoryview, check_schema: Callable[[pa.Schema], None] = lambda schema: None
) -> pa.RecordBatch:
    """The one record batch of an Arrow IPC stream; several are combined. Raises `MalformedRecords`, and what
    `check_schema` raises before any batch is read.

    The batch keeps `payload` alive and is a view of it where Arrow allows.
    """
    if _ALIGNED is None:
        payload = bytes(payload)
    try:
        with pa.ipc.open_stream(payload, options=_ALIGNED) as reader:
            reader.schema.names  # noqa: B018  # names that are not UTF-8 are found when they are decoded
            check_schema(reader.schema)
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, schema=reader.schema).combine_chunks()
        combined = table.to_batches()
        return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=reader.schema)
    except MalformedRecords:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise MalformedRecords(f"expected an Arrow IPC stream, found {len(payload)} bytes: {error}") from None


def decode_records(
    payload: bytes | memoryview, *, default_timestamp_ms: int, value_type: pa.DataType | None = None
) -> RecordBatch:
    """A producer's Arrow bytes as a checked batch. Raises `MalformedRecords`."""
    schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
    batch = decode_arrow(payload, lambda found: _check_schema(found, schema))
    checked = _check_columns(batch, schema, default_timestamp_ms)
    # The columns are views: what else lies in the payload, and in buffers that it has compressed, stays in memory too.
    kept_bytes = max(len(payload), checked.columns.get_total_buffer_size()) - _ENVELOPE_BYTES_MAX
    return checked if kept_bytes <= checked.size_bytes else replace(checked, size_bytes=kept_bytes)


def check_records(
    batch: pa.RecordBatch, *, default_timestamp_ms: int, value_type: pa.DataType | None = None
) -> RecordBatch:
    """Columns `value` and optionally `key`, `headers`, `timestamp`, cast to the log's types where nothing is lost."""
    schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
    _check_schema(batch.schema, schema)
    return _check_columns(batch, schema, default_timestamp_ms)


_PRODUCED_COLUMNS = ("key", "value", "headers", "timestamp")


def _check_schema(found: pa.Schema, schema: pa.Schema) -> None:
    """Raises `MalformedRecords` unless the columns are a producer's, of types that the log's columns are cast from."""
    names = found.names
    if "value" not in names:
        raise MalformedRecords(f"expected a column 'value', found columns {show_names(names) or '(none)'}")
    if len(set(names)) != len(names):
        raise MalformedRecords(f"expected each column once, found {show_names(names)}")
    unknown = [name for name in names if name not in _PRODUCED_COLUMNS]
    if unknown:
        raise MalformedRecords(f"expected columns among {', '.join(_PRODUCED_COLUMNS)}, found {show_names(unknown)}")
    for field in found:
        expected = schema.field(field.name).type
        if field.type != expected and not _is_plain(field.type):
            raise MalformedRecords(
                f"expected column '{field.name}' of type {expected} or one like it, found {_said(field.type)}"
            )
    if "timestamp" in names:
        check_timestamp_type(schema.field("timestamp").type, found.field("timestamp").type)


def check_timestamp_type(expected: pa.DataType, found: pa.DataType) -> None:
    """Raises `MistimedRecords` for numbers: they do not say whether they count seconds, milliseconds or microseconds,
    and records of a wrong time are deleted by it."""
    if not any(is_one(found) for is_one in _TIMES):
        raise MistimedRecords(
            f"expected column 'timestamp' of type {expected} or another one that has a unit, found {_said(found)}: "
            'for milliseconds cast it to pa.timestamp("ms", "UTC")'
        )


_TIMES = (
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_null,
)


def _check_columns(batch: pa.RecordBatch, schema: pa.Schema, default_timestamp_ms: int) -> RecordBatch:
    names = batch.schema.names
    if batch.num_rows == 0:
        raise MalformedRecords("expected at least one record, found an empty batch")
    if not TIMESTAMP_STORED_MS_MIN <= default_timestamp_ms <= TIMESTAMP_STORED_MS_MAX:
        raise MistimedRecords(f"expected timestamps from 0 to {TIMESTAMP_MS_MAX}, found {default_timestamp_ms}")

    columns: dict[str, pa.Array] = {}
    for name in _PRODUCED_COLUMNS:
        if name in names:
            columns[name] = _cast(batch.column(name), schema.field(name).type, name)
    if "key" in columns and columns["key"].null_count == batch.num_rows:
        del columns["key"]
    if "headers" in columns:
        if columns["headers"].null_count == batch.num_rows:
            del columns["headers"]
        else:
            _check_headers(columns["headers"])

    timestamp_min_ms = timestamp_max_ms = default_timestamp_ms
    if "timestamp" in columns:
        timestamps = columns["timestamp"]
        if timestamps.null_count:
            default = pa.scalar(default_timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP_TYPE)
            timestamps = columns["timestamp"] = timestamps.fill_null(default)
        micros = timestamps.view(pa.int64()).to_numpy()
        timestamp_min_ms, timestamp_max_ms = int(micros.min()) // 1000, int(micros.max()) // 1000

    checked = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return RecordBatch(
        record_count=batch.num_rows,
        size_bytes=checked.nbytes,
        record_bytes_max=_record_bytes_max(columns, checked.nbytes),
        timestamp_min_ms=timestamp_min_ms,
        timestamp_max_ms=timestamp_max_ms,
        has_timestamps="timestamp" in columns,
        columns=checked,
        keyless_count=columns["key"].null_count if "key" in columns else batch.num_rows,
    )


def _check_headers(headers: pa.ListArray) -> None:
    """`null_count` of a struct says nothing of its fields, and theirs nothing of the struct."""
    entries = headers.flatten()
    if entries.null_count:
        raise MalformedRecords(f"expected headers, found {entries.null_count} that are null as a whole")
    if entries.field("key").null_count:
        raise MalformedRecords("expected a key in every header, found null")


def join_records(batches: Sequence[RecordBatch], value_type: pa.DataType | None = None) -> RecordBatch:
    """One batch of all their records, in order, in memory of its own. Records of a batch without timestamps get that of
    their batch."""
    if len(batches) == 1:
        return batches[0]
    schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
    brought = set[str]().union(*[batch.columns.schema.names for batch in batches])
    if len({batch.timestamp_min_ms for batch in batches}) > 1:
        brought.add("timestamp")
    names = [name for name in _PRODUCED_COLUMNS if name in brought]
    columns = [pa.concat_arrays([_own_column(batch, schema.field(name)) for batch in batches]) for name in names]
    joined = _check_columns(pa.RecordBatch.from_arrays(columns, names=names), schema, batches[0].timestamp_min_ms)
    return replace(joined, producer=batches[0].producer)


def _own_column(batch: RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.columns.schema.get_field_index(field.name)
    if index >= 0:
        return batch.columns.column(index)
    if field.name == "timestamp":
        return _timestamps(batch.record_count, batch.timestamp_min_ms)
    return _nulls(batch.record_count, field.type)


def select_records(batch: RecordBatch, is_kept: Any) -> RecordBatch:
    """The records of an idempotent producer's batch at the positions where the array `is_kept` is true: at least one.
    They keep their sequences, as a column."""
    assert batch.producer is not None, "only sequences tell which records are left"
    sequences = sequences_of(batch)[is_kept]
    kept = batch.columns.filter(pa.array(is_kept))
    columns = {name: kept.column(name) for name in kept.schema.names}
    columns["sequence"] = pa.array(sequences)
    selected = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    timestamp_min_ms, timestamp_max_ms = batch.timestamp_min_ms, batch.timestamp_max_ms
    if batch.has_timestamps:
        micros = columns["timestamp"].view(pa.int64()).to_numpy()
        timestamp_min_ms, timestamp_max_ms = int(micros.min()) // 1000, int(micros.max()) // 1000
    return replace(
        batch,
        record_count=selected.num_rows,
        size_bytes=selected.nbytes,
        record_bytes_max=_record_bytes_max(columns, selected.nbytes),
        timestamp_min_ms=timestamp_min_ms,
        timestamp_max_ms=timestamp_max_ms,
        columns=selected,
        keyless_count=columns["key"].null_count if "key" in columns else selected.num_rows,
        producer=replace(batch.producer, base_sequence=int(sequences[0])),
    )


def sequences_of(batch: RecordBatch) -> Any:
    """The sequence of each record of an idempotent producer's batch, as an array of int32."""
    assert batch.producer is not None, "a batch of no producer has no sequences"
    index = batch.columns.schema.get_field_index("sequence")
    if index >= 0:
        return batch.columns.column(index).to_numpy()
    return dense_sequences(batch.producer.base_sequence, batch.record_count)


def _cast(array: pa.Array, expected: pa.DataType, name: str) -> pa.Array:
    if array.type == expected:
        return array
    refused = MistimedRecords if expected == TIMESTAMP_TYPE else MalformedRecords
    try:
        return array.cast(expected)
    except (pa.ArrowException, ValueError) as error:
        raise refused(f"expected column '{name}' of type {expected}, found {_said(array.type)}: {error}") from None


# Types in which many values share the same bytes: a cast would take any amount for a few of them on the wire.
_SHARING_TYPES = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_binary_view,
    pa.types.is_string_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_union,
)


# The nesting of headers, or of a map that is like them.
_NESTING_MAX = 3
_FIELDS_MAX = 2


def _is_plain(arrow_type: pa.DataType, nesting_left: int = _NESTING_MAX) -> bool:
    """True if every value has bytes of its own, down to the innermost, and the type is not nested deeper than the
    log's."""
    if isinstance(arrow_type, pa.BaseExtensionType) or any(is_one(arrow_type) for is_one in _SHARING_TYPES):
        return False
    fields = arrow_type.num_fields
    if fields > _FIELDS_MAX or (fields and not nesting_left):
        return False
    return all(_is_plain(arrow_type.field(index).type, nesting_left - 1) for index in range(fields))


def _said(arrow_type: pa.DataType) -> str:
    """Describe the type for a message: a nested type may have a name of any length."""
    text = str(arrow_type) if not arrow_type.num_fields else f"a nested type ({type(arrow_type).__name__})"
    return text[:100]


# A batch below this is not searched for its largest record: no limit on a record is as small.
_SMALL_BATCH_BYTES = 1024


def _record_bytes_max(columns: dict[str, pa.Array], total_bytes: int) -> int:
    """Key + value + headers of the largest record; `total_bytes`, an upper bound, if the batch is small."""
    if total_bytes <= _SMALL_BATCH_BYTES:
        return total_bytes
    sizes: Any = 0
    for name in ("key", "value"):
        array = columns.get(name)
        if array is None:
            continue
        if pa.types.is_binary(array.type):
            offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
            sizes = sizes + (offsets[1:] - offsets[:-1])
        else:
            sizes = sizes + array.nbytes // len(array)
    if "headers" in columns:
        sizes = sizes + _header_bytes(columns["headers"])
    return int(np.max(sizes))


def _header_bytes(headers: pa.ListArray) -> Any:
    entries = headers.flatten()
    lengths = pc.add(
        pc.binary_length(entries.field("key")), pc.fill_null(pc.binary_length(entries.field("value")), 0)
    ).to_numpy(zero_copy_only=False)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False))
    totals = np.concatenate([[0], np.cumsum(lengths)])
    per_record_end = totals[ends]
    return np.diff(np.concatenate([[0], per_record_end]))


def records_from_rows(
    rows: Sequence[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None]],
) -> pa.RecordBatch:
    """Plain records, (key, value, headers, timestamp_ms) each, as the batch that a producer sends."""
    arrays = {
        "key": _array([row[0] for row in rows], pa.binary()),
        "value": _array([row[1] for row in rows], pa.binary()),
        "headers": _headers_array([row[2] for row in rows]),
        "timestamp": _array([None if row[3] is None else row[3] * 1000 for row in rows], pa.int64()).cast(
            TIMESTAMP_TYPE
        ),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _headers_array(rows: Sequence[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    headers = [header for row in rows if row for header in row]
    if not headers:
        return pa.nulls(len(rows), HEADERS_TYPE)
    counts = np.array([len(row) if row else 0 for row in rows], np.int32)
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])),
        pa.StructArray.from_arrays(
            [_array([key for key, _ in headers], pa.string()), _array([value for _, value in headers], pa.binary())],
            fields=list(HEADERS_TYPE.value_type),
        ),
        type=HEADERS_TYPE,
        mask=pa.array(counts == 0),
    )


# Arrow holds the GIL while it looks at Python's values: about a millisecond for this many.
_SLICE_VALUES = 8 * 1024


def _array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    if len(values) <= _SLICE_VALUES:
        return pa.array(values, data_type)
    starts = range(0, len(values), _SLICE_VALUES)
    return pa.concat_arrays([pa.array(values[start : start + _SLICE_VALUES], data_type) for start in starts])


def complete_columns(
    batch: LogBatch, names: Sequence[str] = LOG_COLUMNS, value_type: pa.DataType | None = None
) -> pa.RecordBatch:
    """`batch` with every column of the log that `names` asks for, those that it leaves out filled in."""
    schema = LOG_SCHEMA if value_type is None else log_schema(value_type)
    present = set(batch.columns.schema.names)
    if batch.timestamp_ms is not None:
        present.discard("timestamp")  # LogAppendTime: the producer's own times do not count
    arrays = [
        batch.columns.column(name) if name in present else _absent_column(batch, schema.field(name)) for name in names
    ]
    if names is not LOG_COLUMNS:
        schema = pa.schema([schema.field(name) for name in names])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def concat_columns(batches: Sequence[LogBatch], names: Sequence[str], value_type: pa.DataType) -> pa.RecordBatch:
    """`complete_columns` of several batches as one, column by column: a hundred thousand batches of one record each are
    a matter of seconds the other way."""
    schema = log_schema(value_type)
    arrays = [_concat_column(batches, schema.field(name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))


def _concat_column(batches: Sequence[LogBatch], field: pa.Field) -> pa.Array:
    if field.name == "timestamp" and all(batch.timestamp_ms is not None for batch in batches):
        times = np.array([batch.timestamp_ms for batch in batches], np.int64)
        counts = [batch.record_count for batch in batches]
        return pa.array(np.repeat(times * 1000, counts)).view(TIMESTAMP_TYPE)
    return pa.concat_arrays([_column_of(batch, field) for batch in batches])


def _column_of(batch: LogBatch, field: pa.Field) -> pa.Array:
    index = batch.columns.schema.get_field_index(field.name)
    if index < 0 or (batch.timestamp_ms is not None and field.name == "timestamp"):
        return _absent_column(batch, field)
    return batch.columns.column(index)


# Arrays cannot change, so small commits, which all need the same few, share them.
_SHARED_COUNT_MAX = 1024


def _nulls(count: int, data_type: pa.DataType) -> pa.Array:
    return pa.nulls(count, data_type)


def _repeated(count: int, value: int, dtype: Any = np.int32) -> pa.Array:
    return pa.array(np.full(count, value, dtype))


def _timestamps(count: int, timestamp_ms: int) -> pa.Array:
    return _repeated(count, timestamp_ms * 1000, np.int64).view(TIMESTAMP_TYPE)


_shared_nulls = lru_cache(maxsize=256)(_nulls)
_shared_repeated = lru_cache(maxsize=256)(_repeated)


def _absent_column(batch: LogBatch, field: pa.Field) -> pa.Array:
    count = batch.record_count
    is_small = count <= _SHARED_COUNT_MAX
    match field.name:
        case "offset":
            return pa.array(np.arange(batch.base_offset, batch.base_offset + count, dtype=np.int64))
        case "timestamp":
            assert batch.timestamp_ms is not None, f"batch at {batch.base_offset} has neither timestamp nor its column"
            return _timestamps(count, batch.timestamp_ms)
        case "timestamp_type":
            return (_shared_repeated if is_small else _repeated)(count, int(batch.timestamp_type))
        case "leader_epoch":
            return (_shared_repeated if is_small else _repeated)(count, batch.leader_epoch)
        case "producer_id" if batch.producer is not None:
            return _repeated(count, batch.producer.producer_id, np.int64)
        case "producer_epoch" if batch.producer is not None:
            return (_shared_repeated if is_small else _repeated)(count, batch.producer.producer_epoch, np.int16)
        case "sequence" if batch.producer is not None:
            return pa.array(dense_sequences(batch.producer.base_sequence, count))
        case _:
            return (_shared_nulls if is_small else _nulls)(count, field.type)


def dense_sequences(base_sequence: int, count: int) -> Any:
    """The sequences of `count` records as an array of int32: after the largest comes 0."""
    if base_sequence + count <= SEQUENCE_MODULUS:
        return np.arange(base_sequence, base_sequence + count, dtype=np.int32)
    sequences = np.arange(base_sequence, base_sequence + count, dtype=np.int64)
    return (sequences % SEQUENCE_MODULUS).astype(np.int32)
