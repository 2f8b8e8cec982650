"""Produce requests as bytes: what `bus.proto` says, with one copy of the records instead of four.

Guards one promise: the bytes are exactly a `ProduceRequest` that the generated code would parse. The generated code
writes everything but the payload, which is put behind it: protobuf allows fields in any order (measured for 1 MB:
0.02 ms against 0.5 ms).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE

_LENGTH_DELIMITED = 2


def _tag(message: Any, name: str) -> bytes:
    return varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_PARTITIONS = _tag(pb.ProduceRequest, "partitions")
_ARROW = _tag(pb.PartitionProduceData, "arrow")
_KEY, _VALUE = pa.field("key", pa.binary()), pa.field("value", pa.binary())
_HEADERS, _TIMESTAMP = pa.field("headers", HEADERS_TYPE), pa.field("timestamp", TIMESTAMP_TYPE)

# One record on its way: key, value, headers, timestamp in milliseconds.
Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]] | None, int]


def encode_partition(head: bytes, payload: Any, timestamp_ms: int | None) -> list[Any]:
    """The pieces of one `PartitionProduceData`; `head` holds its topic, partition and topic id."""
    if timestamp_ms is not None:
        head += pb.PartitionProduceData(timestamp_ms=timestamp_ms).SerializeToString()
    size = len(payload)
    prefix = head + _ARROW + varint(size)
    return [_PARTITIONS + varint(len(prefix) + size) + prefix, payload]


def encode_request(*, correlation_id: int, acks: int, timeout_ms: int, partitions: Sequence[list[Any]]) -> bytes:
    """The whole request; `partitions` from `encode_partition`."""
    head = pb.ProduceRequest(correlation_id=correlation_id, acks=acks, timeout_ms=timeout_ms).SerializeToString()
    pieces = [head]
    for partition in partitions:
        pieces += partition
    return b"".join(pieces)


def batch_of_rows(rows: Sequence[Row]) -> tuple[pa.RecordBatch, int | None]:
    """Rows as the smallest batch that holds them; the timestamp apart if it is the same in all of them."""
    fields, arrays = [_VALUE], [pa.array([row[1] for row in rows], pa.binary())]
    if any(row[0] is not None for row in rows):
        fields.append(_KEY)
        arrays.append(pa.array([row[0] for row in rows], pa.binary()))
    if any(row[2] for row in rows):
        fields.append(_HEADERS)
        arrays.append(pa.array([[{"key": k, "value": v} for k, v in row[2] or ()] for row in rows], HEADERS_TYPE))
    timestamp_ms: int | None = rows[0][3]
    if any(row[3] != timestamp_ms for row in rows):
        timestamp_ms = None
        fields.append(_TIMESTAMP)
        arrays.append(pa.array([row[3] * 1000 for row in rows], pa.int64()).view(TIMESTAMP_TYPE))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), timestamp_ms
