"""The producer that users hold: records and batches in, futures out.

Guards the contract of `send` and `send_batch`: what is wrong with the call itself is raised at once and nothing was
sent; everything later comes through the future. Never looks at single records of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from bus.arrow_batches import encode_arrow_buffer
from bus.client.cluster import Cluster, TopicInfo
from bus.client.configs import ProducerConfig, parse_addresses, parse_config
from bus.client.partitioning import Partitioner
from bus.client.produce_future import BatchFuture, ProduceFuture, RecordFuture, wait_all
from bus.client.produce_queue import Chunk
from bus.client.produce_wire import Row
from bus.client.sender import Sender
from bus.client.values import RecordMetadata
from bus.errors import BusError, ErrorCode

# What a record costs in memory beside its bytes; also keeps a record of no bytes from being free.
_RECORD_OVERHEAD_BYTES = 96
_ENVELOPE_BYTES = 1_024  # schema, metadata and padding of an Arrow stream
_TIMESTAMP_MAX_MS = (2**63 - 1) // 1000  # the log keeps microseconds
_COLUMNS = ("value", "key", "headers", "timestamp")


class Producer:
    """Sends records to topics. Safe to share between threads; one producer for a process is best.

    Delivery is at least once: a request whose outcome is unknown (the connection broke, no answer in time) is sent
    again, together with everything of its partition that followed, so that the order of a partition is kept; records
    may then be in the log twice. `retries=0` gives at most once. `acks`: "all" (the default), 1 or 0.

    Takes Kafka's configs with underscores for dots; an unknown one is an error. Raises `BusError` INVALID_CONFIG.
    No connection is made before the first call.
    """

    def __init__(self, address: str | list[str], **configs: Any) -> None:
        self._config = parse_config(ProducerConfig, configs)
        self._cluster = Cluster(parse_addresses(address), self._config)
        self._partitioner = Partitioner()
        self._sender = Sender(self._cluster, self._config)
        self._is_closed = False

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> ProduceFuture[RecordMetadata]:
        """Send one record; its future gives a `RecordMetadata`.

        Without `partition` the key decides (as Kafka's default partitioner does), without a key the partitions take
        turns. Without `timestamp_ms` the record has the time of this call. Waits up to max.block.ms for metadata and
        for buffer.memory. Raises `BusError`: nothing was sent.
        """
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        value, key, headers = _bytes("value", value), _bytes("key", key), _headers(headers)
        size = _record_bytes(value, key, headers)
        if size > self._config.max_request_size:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected a record of at most max.request.size={self._config.max_request_size} bytes, found {size}",
            )
        info = self._topic(topic, partition, deadline)
        if partition is None:
            partition = self._partitioner.of_record(topic, key, size, len(info.partitions))
        now_ms = time.time_ns() // 1_000_000
        row: Row = (key, value, headers, now_ms if timestamp_ms is None else _timestamp(timestamp_ms))
        future = RecordFuture()
        chunk = Chunk(
            future=future,
            slot=0,
            row=row,
            payload=None,
            record_count=1,
            size_bytes=size,
            timestamp_ms=row[3],
            deadline=time.monotonic() + self._config.delivery_timeout_ms / 1000,
        )
        self._sender.reserve(size, timeout_s=max(0.0, deadline - time.monotonic()))
        self._sender.enqueue(topic, [(partition, chunk)])
        return future

    def send_batch(self, topic: str, table: pa.Table | pa.RecordBatch, partition: int | None = None) -> BatchFuture:
        """Send many records at once, the fast path; the future gives a list of `BatchMetadata`.

        `table` has the column `value` and may have `key`, `headers` (list<struct<key string, value binary>>) and
        `timestamp`. Without `partition`, records with a key go where `send` would put them; those without go to one
        partition together, the next batch's to the next. A partition's records keep their order. A batch larger than
        max.request.size is sent in several requests. An empty one is done at once, with nothing in it.

        Waits up to max.block.ms for metadata and for buffer.memory. Raises `BusError`: nothing was sent, unless
        REQUEST_TIMED_OUT says how many records were.
        """
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        batch = _one_batch(table)
        if batch.num_rows == 0:
            return BatchFuture(0)
        info = self._topic(topic, partition, deadline)
        if partition is not None:
            parts = [(partition, batch)]
        else:
            parts = self._partitioner.split(topic, batch, len(info.partitions))
        timestamp_ms = None if "timestamp" in batch.schema.names else time.time_ns() // 1_000_000
        runs = [(number, run) for number, part in parts for run in self._runs(part)]
        future = BatchFuture(len(runs))
        self._hand_over(topic, runs, future, timestamp_ms, deadline)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before this call has its outcome; errors stay in the futures.

        Raises `TimeoutError` after `timeout` seconds.
        """
        wait_all([future for future in self._sender.unsettled() if isinstance(future, ProduceFuture)], timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end. What is not acknowledged within `timeout` seconds fails with REQUEST_TIMED_OUT."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush(timeout)
        except TimeoutError:
            pass  # the futures tell
        finally:
            self._sender.close(timeout_s=2.0)
            self._cluster.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def partitions_for(self, topic: str) -> list[int]:
        """The partition numbers of `topic`. Raises `BusError`."""
        info = self._topic(topic, None, time.monotonic() + self._config.max_block_ms / 1000)
        return list(range(len(info.partitions)))

    def _topic(self, topic: str, partition: int | None, deadline: float) -> TopicInfo:
        """From the cache, however old: the sender keeps it fresh. `partition`, if given, exists."""
        info = self._cluster.cached_topic(topic)
        if info is not None and (partition is None or 0 <= partition < len(info.partitions)):
            return info
        if self._is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")
        return self._cluster.wait_partition(topic, partition or 0, timeout_s=deadline - time.monotonic())

    def _runs(self, part: pa.RecordBatch) -> list[tuple[Any, int]]:
        """The part as payloads of at most max.request.size, each with its record count."""
        limit = self._config.max_request_size
        payload = None
        if part.nbytes <= limit * 4:  # far larger ones are not worth the try; compression may make it fit
            payload = encode_arrow_buffer(part, self._config.compression_type)
            if len(payload) <= limit:
                return [(payload, part.num_rows)]
        if part.num_rows == 1:
            found = len(payload) if payload is not None else part.nbytes
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected a record of at most max.request.size={limit} bytes, found {found}",
            )
        size = len(payload) if payload is not None else part.nbytes
        pieces = min(part.num_rows, max(2, -(-size // max(1, limit - _ENVELOPE_BYTES))))
        rows = -(-part.num_rows // pieces)
        return [run for start in range(0, part.num_rows, rows) for run in self._runs(part.slice(start, rows))]

    def _hand_over(
        self,
        topic: str,
        runs: list[tuple[int, tuple[Any, int]]],
        future: BatchFuture,
        timestamp_ms: int | None,
        deadline: float,
    ) -> None:
        """In groups that fit buffer.memory; normally one."""
        group: list[tuple[int, Chunk]] = []
        group_bytes = handed_over = 0
        room = self._config.buffer_memory // 2
        for slot, (partition, (payload, record_count)) in enumerate(runs):
            if group and group_bytes + len(payload) > room:
                self._hand_over_group(topic, group, group_bytes, deadline, handed_over)
                handed_over += sum(chunk.record_count for _, chunk in group)
                group, group_bytes = [], 0
            chunk = Chunk(
                future=future,
                slot=slot,
                row=None,
                payload=payload,
                record_count=record_count,
                size_bytes=len(payload),
                timestamp_ms=timestamp_ms,
                deadline=time.monotonic() + self._config.delivery_timeout_ms / 1000,
            )
            group.append((partition, chunk))
            group_bytes += len(payload)
        if group:
            self._hand_over_group(topic, group, group_bytes, deadline, handed_over)

    def _hand_over_group(
        self, topic: str, group: list[tuple[int, Chunk]], size_bytes: int, deadline: float, handed_over: int
    ) -> None:
        try:
            self._sender.reserve(size_bytes, timeout_s=max(0.0, deadline - time.monotonic()))
        except BusError as error:
            if handed_over:
                raise BusError(error.code, f"{error.message}; {handed_over} records of the batch were sent") from None
            raise
        self._sender.enqueue(topic, group)


# What cannot be encoded is found out here, at the call: later it would stop the records behind it as well.


def _bytes(name: str, data: bytes | None) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"expected {name} as bytes or None, found {type(data).__name__}")


def _headers(headers: Sequence[tuple[str, bytes | None]] | None) -> Sequence[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    checked: list[tuple[str, bytes | None]] = []
    for name, data in headers:
        if not isinstance(name, str):
            raise TypeError(f"expected a header's name as text, found {type(name).__name__}")
        name.encode()  # a lone surrogate has no bytes: UnicodeEncodeError says where it is
        checked.append((name, _bytes(f"header {name!r}", data)))
    return checked


def _timestamp(timestamp_ms: int) -> int:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise TypeError(f"expected timestamp_ms as an integer, found {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= _TIMESTAMP_MAX_MS:
        raise BusError(
            ErrorCode.INVALID_TIMESTAMP, f"expected a timestamp from 0 to {_TIMESTAMP_MAX_MS} ms, found {timestamp_ms}"
        )
    return timestamp_ms


def _record_bytes(value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, data in headers or ():
        size += len(name) * 4 + len(data or b"")
    return size


def _one_batch(table: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """The table as one batch, copied only if it is in pieces. Raises `BusError` INVALID_RECORD."""
    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        raise TypeError(f"expected a pyarrow Table or RecordBatch, found {type(table).__name__}")
    names = table.schema.names
    unknown = [name for name in names if name not in _COLUMNS]
    if "value" not in names or unknown or len(set(names)) != len(names):
        raise BusError(
            ErrorCode.INVALID_RECORD,
            f"expected the column value, and perhaps key, headers and timestamp, each once; found {', '.join(names)}",
        )
    if isinstance(table, pa.RecordBatch):
        return table
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise BusError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"expected a batch below 2 GiB a column, found {table.nbytes} bytes"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
