"""Parts of a producer's partitions as requests: rows as columns, each part encoded once, however often it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.produce_requests import Payload, WireCompression, encode_request, encode_share
from bus.client.producer.batch import RowChunk
from bus.client.producer.connections import Request
from bus.client.producer.queue import Part
from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE

_KEY, _VALUE = pa.field("key", pa.binary()), pa.field("value", pa.binary())
_HEADERS, _TIMESTAMP = pa.field("headers", HEADERS_TYPE), pa.field("timestamp", TIMESTAMP_TYPE)
_VALUE_ONLY = pa.schema([_VALUE])


class PartEncoder:
    def __init__(self, config: ProducerConfig) -> None:
        self._acks = config.acks
        self._timeout_ms = config.request_timeout_ms
        self._transactional_id = config.transactional_id
        self._compression = WireCompression.of(config)

    def encode(self, request: Request) -> bytes:
        shares = map(self._encode_part, request.parts)
        return encode_request(
            request.correlation_id,
            shares,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            transactional_id=self._transactional_id,
        )

    def _encode_part(self, part: Part) -> list[Any]:
        if part.payload is None:
            part.payload, part.timestamp_ms = self._records_of(part)
        queue = part.queue
        return encode_share(
            queue.topic,
            queue.partition,
            queue.topic_id,
            part.payload,
            stamp=part.stamp,
            timestamp_ms=part.timestamp_ms,
        )

    def _records_of(self, part: Part) -> tuple[Any, int | None]:
        first = part.chunks[0]
        if first.payload is not None:
            return first.payload, first.timestamp_ms  # type: ignore[attr-defined]
        batch, timestamp_ms = batch_of_rows(part.chunks)  # type: ignore[arg-type]
        return self.pack(batch), timestamp_ms

    def pack(self, batch: pa.RecordBatch) -> Payload:
        """Arrow bytes, compressed as the producer is told to."""
        return self._compression.encode(batch)


def batch_of_rows(chunks: Sequence[RowChunk]) -> tuple[pa.RecordBatch, int | None]:
    """Rows as the smallest batch that holds them; the timestamp apart if it is the same in all of them."""
    values, keys, times_ms = _columns_of(chunks)
    fields, arrays = [_VALUE], [values]
    if keys is not None:
        fields.append(_KEY)
        arrays.append(keys)
    if any(chunk.headers for chunk in chunks):
        fields.append(_HEADERS)
        arrays.append(_headers_of(chunks))
    timestamp_ms: int | None = int(times_ms[0])
    if (times_ms != timestamp_ms).any():
        timestamp_ms = None
        fields.append(_TIMESTAMP)
        arrays.append(pa.array(times_ms * 1000).view(TIMESTAMP_TYPE))
    schema = _VALUE_ONLY if len(fields) == 1 else pa.schema(fields)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), timestamp_ms


def _columns_of(chunks: Sequence[RowChunk]) -> tuple[pa.Array, pa.Array | None, Any]:
    """Values, keys (None: there is none), and times as a numpy array."""
    has_keys = any(chunk.keys is not None for chunk in chunks)
    if not has_keys and all(type(chunk.values) is list for chunk in chunks):  # one conversion for all
        values = pa.array(list(chain.from_iterable(chunk.values for chunk in chunks)), pa.binary())
        return values, None, np.array(list(chain.from_iterable(chunk.times_ms for chunk in chunks)), np.int64)
    for chunk in chunks:
        chunk.to_arrow()
    keys = [pa.nulls(chunk.record_count, pa.binary()) if chunk.keys is None else chunk.keys for chunk in chunks]
    return (
        _concat([chunk.values for chunk in chunks]),
        _concat(keys) if has_keys else None,
        np.concatenate([chunk.times_ms for chunk in chunks]),
    )


def _concat(columns: Sequence[pa.Array]) -> pa.Array:
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def _headers_of(chunks: Sequence[RowChunk]) -> pa.Array:
    rows: list[list[dict[str, Any]]] = []
    for chunk in chunks:
        headers = chunk.headers or {}
        rows += [
            [{"key": name, "value": data} for name, data in headers.get(position, ())]
            for position in range(chunk.record_count)
        ]
    return pa.array(rows, HEADERS_TYPE)
