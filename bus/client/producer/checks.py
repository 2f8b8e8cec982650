"""Checks of the parts of a record.

They run when `send` is called: a record that cannot be encoded would stop the records behind it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from bus.client.arguments import no_record
from bus.client.producer.batch import Headers
from bus.errors import BusError, ErrorCode
from bus.model import TIMESTAMP_MS_MAX
from bus.records.arrow_batches import MistimedRecords, check_timestamp_type
from bus.records.log_schema import TIMESTAMP_TYPE

_COLUMNS = ("value", "key", "headers", "timestamp")


def check_bytes(name: str, data: Any) -> bytes | None:
    """Raises TypeError."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise no_record(f"{name} as bytes or None", data, "encode it, or give the producer a serializer")


def check_headers(headers: Any) -> Headers | None:
    """Raises TypeError or ValueError."""
    if headers is None:
        return None
    if isinstance(headers, (str, bytes, Mapping)) or not isinstance(headers, Iterable):
        hint = "give list(headers.items())" if isinstance(headers, Mapping) else ""
        raise no_record("headers as a list of pairs (name, value)", headers, hint)
    checked: list[tuple[str, bytes | None]] = []
    for header in headers:
        if not isinstance(header, (tuple, list)) or len(header) != 2:
            raise no_record("headers as a list of pairs (name, value)", header, repr(header))
        name, data = header
        if not isinstance(name, str):
            raise no_record("a header's name as text", name)
        name.encode()  # a lone surrogate has no bytes: UnicodeEncodeError says where it is
        checked.append((name, check_bytes(f"header {name!r}", data)))
    return checked or None


def check_partition(partition: Any) -> int | None:
    """Raises TypeError."""
    if partition is None or type(partition) is int:
        return partition
    if isinstance(partition, bool) or not hasattr(partition, "__index__"):
        raise no_record("partition as an integer or None", partition)
    return operator.index(partition)


def check_timestamp(timestamp_ms: Any) -> int:
    """Raises TypeError, or `BusError` INVALID_TIMESTAMP."""
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise no_record("timestamp_ms as an integer, milliseconds since 1970", timestamp_ms)
    if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise BusError(
            ErrorCode.INVALID_TIMESTAMP, f"expected a timestamp from 0 to {TIMESTAMP_MS_MAX} ms, found {timestamp_ms}"
        )
    return timestamp_ms


def one_batch(table: Any) -> pa.RecordBatch:
    """The table as one batch, copied only if it is in pieces. Raises TypeError, or `BusError` INVALID_RECORD or
    INVALID_TIMESTAMP."""
    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        raise no_record("a pyarrow Table or RecordBatch", table)
    names = table.schema.names
    unknown = [name for name in names if name not in _COLUMNS]
    if "value" not in names or unknown or len(set(names)) != len(names):
        raise BusError(
            ErrorCode.INVALID_RECORD,
            f"expected the column value, and perhaps key, headers and timestamp, each once; found {', '.join(names)}",
        )
    if "timestamp" in names:
        try:
            check_timestamp_type(TIMESTAMP_TYPE, _plain(table.schema.field("timestamp").type))
        except MistimedRecords as error:
            raise BusError(ErrorCode.INVALID_TIMESTAMP, str(error)) from None
    if any(_is_shared(field.type) for field in table.schema):
        table = table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))
    if isinstance(table, pa.RecordBatch):
        return table
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise BusError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"expected a batch below 2 GiB a column, found {table.nbytes} bytes"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _is_shared(kind: pa.DataType) -> bool:
    """Values that share bytes: a broker does not take them, since a few bytes could claim any size."""
    return pa.types.is_dictionary(kind) or kind in (pa.binary_view(), pa.string_view())


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.binary() if _is_shared(kind) else kind
