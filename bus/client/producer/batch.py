"""Records of `send()` from the call to their outcome, and the light futures that point at them.

A `RecordBatchBuilder` takes the records of one topic in the order of the calls. When it closes, its records become one
chunk for each partition; a chunk is produced or fails as one. A future is a batch and a position in it, so a record
costs no lock, no event and no result of its own. Guards one promise: a chunk is settled exactly once, and from then on
every future that points into it tells the same.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bus.client.producer.future import CallbackThreads, ProduceFuture
from bus.client.values import BatchMetadata, RecordMetadata
from bus.errors import BusError
from bus.model import TopicPartition
from bus.platform.reentry import CalledInside, Flag, OwnLock, later, logger_of

logger = logger_of(__name__)

Headers = Sequence[tuple[str, bytes | None]]
# Value, key, headers, partition, timestamp in milliseconds, and size in bytes, as `RecordBatchBuilder.add` takes them.
Record = tuple[bytes | None, bytes | None, Headers | None, int | None, int, int]
# The size of a record on the wire beside its bytes: offsets of the columns and the timestamp.
RECORD_OVERHEAD_BYTES = 24

_lock = OwnLock()  # one for all waiting: held for a few instructions only


class Outcome:
    """The outcome of a chunk: its place in the log, or its error."""

    __slots__ = ("error", "metadata", "offsets", "record_errors")

    def __init__(
        self,
        metadata: BatchMetadata | None,
        error: BusError | None,
        offsets: Sequence[int] | None = None,
        record_errors: Mapping[int, BusError] | None = None,
    ) -> None:
        self.metadata = metadata
        self.error = error
        self.offsets = offsets  # the offset of each produced record, if they are not dense
        self.record_errors = record_errors  # position in the chunk -> why this record alone was refused


class RowChunk:
    """The records of one batch that go to one partition, in order, as columns: what is left to be produced.

    `partition` is where they go. `values`, `keys` (None: no record has one) and `times_ms` are lists if the chunk is a
    whole batch, so that many small ones can be encoded as one; they are Arrow arrays (numpy for the times) if it is a
    part of one. `headers` maps positions to headers. `refused` are the records that the broker would not take, by their
    position at the beginning.
    """

    __slots__ = (
        "batch",
        "deadline_ms",
        "due_at_ms",
        "headers",
        "initial_count",
        "is_settled",
        "keys",
        "outcome",
        "partition",
        "positions",
        "record_count",
        "refused",
        "reserved_bytes",
        "size_bytes",
        "times_ms",
        "values",
    )
    payload = None  # it has rows

    def __init__(
        self,
        batch: RecordBatchBuilder,
        values: Any,
        keys: Any,
        times_ms: Any,
        headers: dict[int, Headers] | None,
        *,
        partition: TopicPartition,
        size_bytes: int,
    ) -> None:
        self.batch = batch
        self.partition = partition
        self.values = values
        self.keys = keys
        self.times_ms = times_ms
        self.headers = headers
        self.record_count = self.initial_count = len(values)
        self.size_bytes = size_bytes
        self.reserved_bytes = size_bytes
        self.deadline_ms = batch.deadline_ms
        self.due_at_ms = batch.due_at_ms
        self.is_settled = False
        self.outcome: Outcome | None = None
        self.positions: list[int] | None = None  # the positions of the remaining records, if some were refused
        self.refused: dict[int, BusError] = {}

    def to_arrow(self) -> None:
        """Columns as arrays from now on."""
        if isinstance(self.values, list):
            self.values, self.times_ms = pa.array(self.values, pa.binary()), np.array(self.times_ms, np.int64)
            self.keys = None if self.keys is None else pa.array(self.keys, pa.binary())

    def refuse_records(self, errors: Mapping[int, BusError]) -> None:
        """Take the records at these positions out; they fail when the others are settled."""
        self.to_arrow()
        positions = self.positions or list(range(self.record_count))
        kept = [index for index in range(self.record_count) if index not in errors]
        self.refused.update({positions[index]: error for index, error in errors.items()})
        self.values = self.values.take(pa.array(kept, pa.int64()))
        self.times_ms = self.times_ms[kept]
        if self.keys is not None:
            self.keys = self.keys.take(pa.array(kept, pa.int64()))
        if self.headers is not None:
            self.headers = {new: self.headers[old] for new, old in enumerate(kept) if old in self.headers}
        self.positions = [positions[index] for index in kept]
        self.record_count = len(kept)

    def settle(
        self, metadata: BatchMetadata | None, error: BusError | None, offsets: Sequence[int] | None = None
    ) -> None:
        """Its one outcome, with the lock of the sender held; `announce` follows without it."""
        assert not self.is_settled, "a chunk is settled once"
        self.outcome = Outcome(metadata, error, offsets, self.refused or None)
        self.is_settled = True  # last: a thread that sees it without the lock finds the outcome
        self.values, self.keys, self.headers = [], None, None

    @property
    def failure(self) -> BusError | None:
        return None if self.outcome is None else self.outcome.error

    def announce(self) -> None:
        self.batch.announce(self)

    def error_of(self, position: int) -> BusError | None:
        outcome = self.outcome
        assert outcome is not None, "asked for the outcome of a chunk that has none"
        if outcome.record_errors is None:
            return outcome.error
        return outcome.record_errors.get(position, outcome.error)

    def metadata_of(self, position: int) -> RecordMetadata:
        """Return the metadata of a record that has no error."""
        outcome = self.outcome
        found = None if outcome is None else outcome.metadata
        assert outcome is not None, "asked for the metadata of a record that has no outcome"
        assert found is not None, "asked for the metadata of a record that failed"
        index = position if self.positions is None else bisect.bisect_left(self.positions, position)
        offset = found.base_offset
        if outcome.offsets is not None:
            offset = outcome.offsets[index]
        elif offset >= 0:
            offset += index
        timestamp_ms = found.timestamp_ms if found.timestamp_ms >= 0 else int(self.times_ms[index])
        return RecordMetadata(found.topic, found.partition, offset, timestamp_ms, found.version)


class RecordBatchBuilder:
    """Invariant while open: `size_bytes <= limit_bytes <= reserved_bytes`, and only the holder of the sender's lock
    changes it. Closed once, whole or split."""

    __slots__ = (
        "_callback_threads",
        "_callbacks",
        "_called",
        "_event",
        "_order",
        "_ranks",
        "_starts",
        "chunks",
        "deadline_ms",
        "due_at_ms",
        "full_bytes",
        "headers",
        "keys",
        "limit_bytes",
        "partition_count",
        "partitions",
        "size_bytes",
        "times_ms",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: str,
        *,
        limit_bytes: int,
        due_at_ms: float,
        deadline_ms: float,
        partition_count: int = 1,
        callback_threads: CallbackThreads | None = None,
    ) -> None:
        self.topic = topic
        self._callback_threads = callback_threads
        self.partition_count = partition_count  # the number that the caller of the first record knew
        self.full_bytes = limit_bytes  # the batch is sent at this size, unless it may grow on
        self.limit_bytes = limit_bytes
        self.due_at_ms = due_at_ms
        self.deadline_ms = deadline_ms
        self.size_bytes = 0
        self.values: list[bytes | None] = []
        self.times_ms: list[int] = []
        self.keys: list[bytes | None] | None = None  # None: no record has a key
        self.headers: dict[int, Headers] | None = None
        self.partitions: dict[int, int] | None = None  # position -> the partition that was asked for
        self.chunks: tuple[RowChunk, ...] = ()  # empty while open
        self._starts: list[int] | None = None  # the first position of each chunk, in the order by partition
        self._order: Any = None  # the records in the order by partition; None: as they are
        self._ranks: list[int] | None = None  # the position of each record in that order
        self._event: Flag | None = None
        # Side by side, and no future among them: objects that live for a while keep the garbage collector busy.
        self._called: list[int] = []
        self._callbacks: list[_Callback] = []

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> RecordFuture:
        assert not self.chunks, "a closed batch takes no record"
        index = len(self.values)
        try:
            if key is not None and self.keys is None:
                self.keys = [None] * index
            if self.keys is not None:
                self.keys.append(key)
            if headers:
                self.headers = self.headers or {}
                self.headers[index] = headers
            if partition is not None:
                self.partitions = self.partitions or {}
                self.partitions[index] = partition
            self.size_bytes += size_bytes
            self.times_ms.append(timestamp_ms)
            self.values.append(value)
        except BaseException:  # an interrupt of the user's thread
            self.trim()
            raise
        return RecordFuture(self, index)

    @property
    def is_full(self) -> bool:
        """Not even an empty record would fit into what it was opened for."""
        return self.size_bytes + RECORD_OVERHEAD_BYTES > self.full_bytes

    @property
    def is_filled(self) -> bool:
        """Not even an empty record would fit into it as it is now, grown or not."""
        return self.size_bytes + RECORD_OVERHEAD_BYTES > self.limit_bytes

    # ------------------------------------------------------------ closing

    def trim(self) -> int:
        """Take away what an interrupt of the user's thread left half added, lest it shift what comes behind; how many
        records there are."""
        count = min(len(self.values), len(self.times_ms), len(self.values) if self.keys is None else len(self.keys))
        for column in (self.values, self.times_ms, self.keys):
            if column is not None:
                del column[count:]
        for sparse in (self.headers, self.partitions):
            if sparse is not None:
                sparse.pop(count, None)
        return count

    def close_whole(self, partition: int) -> list[tuple[int, RowChunk]]:
        """Everything goes to one partition."""
        chunk = RowChunk(
            self,
            self.values,
            self.keys,
            self.times_ms,
            self.headers,
            partition=TopicPartition(self.topic, partition),
            size_bytes=self.size_bytes,
        )
        self._close((chunk,))
        return [(partition, chunk)]

    def close_split(self, partitions: Any, keys: pa.Array | None) -> list[tuple[int, RowChunk]]:
        """`partitions`: an array with the partition of each record; `keys`: `self.keys` as an array."""
        counts = np.bincount(partitions)
        present = np.flatnonzero(counts).tolist()
        if len(present) == 1:
            return self.close_whole(present[0])
        order = np.arange(len(partitions))
        values, times_ms = pa.array(self.values, pa.binary()), np.array(self.times_ms, np.int64)
        if np.any(partitions[1:] < partitions[:-1]):
            self._order = order = np.argsort(partitions, kind="stable")
            indices = pa.array(order)
            values, times_ms = values.take(indices), times_ms[order]
            keys = None if keys is None else keys.take(indices)
        self._starts = []
        chunks = []
        start = 0
        for partition in present:
            count = int(counts[partition])
            headers = self._headers_of(order[start : start + count])
            chunk = RowChunk(
                self,
                values.slice(start, count),
                None if keys is None else keys.slice(start, count),
                times_ms[start : start + count],
                headers,
                partition=TopicPartition(self.topic, partition),
                size_bytes=count * RECORD_OVERHEAD_BYTES
                + _bytes_between(values, start, start + count)
                + (0 if keys is None else _bytes_between(keys, start, start + count))
                + sum(headers_bytes(found) for found in (headers or {}).values()),
            )
            chunks.append(chunk)
            self._starts.append(start)
            start += count
        self._close(tuple(chunks))
        return list(zip(present, chunks, strict=True))

    def _headers_of(self, chosen: Any) -> dict[int, Headers] | None:
        if self.headers is None:
            return None
        return {new: self.headers[old] for new, old in enumerate(chosen.tolist()) if old in self.headers} or None

    def _close(self, chunks: tuple[RowChunk, ...]) -> None:
        assert not self.chunks, "a batch is closed once"
        self.values, self.keys, self.headers, self.partitions = [], None, None, None
        self.times_ms = []
        self.chunks = chunks

    # ------------------------------------------------------------ outcomes

    def done(self) -> bool:
        """Every record of it."""
        return bool(self.chunks) and all(chunk.is_settled for chunk in self.chunks)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for all chunks. Raises `TimeoutError`."""
        if not self._wait_until(self.done, timeout):
            raise TimeoutError(f"expected the broker's answer within {timeout} s, found none yet")

    def chunk_of(self, index: int) -> tuple[RowChunk | None, int]:
        """The chunk of a record and its position there; None while the batch is open."""
        if not self.chunks:
            return None, index
        if self._starts is None:
            return self.chunks[0], index
        rank = self._rank(index)
        slot = bisect.bisect_right(self._starts, rank) - 1
        return self.chunks[slot], rank - self._starts[slot]

    def _rank(self, index: int) -> int:
        """Return a record's position in the order by partition."""
        return index if self._order is None else (self._ranks or self._rank_all())[index]

    def _rank_all(self) -> list[int]:
        ranks = np.empty(len(self._order), np.int32)
        ranks[self._order] = np.arange(len(ranks), dtype=np.int32)
        self._ranks = ranks.tolist()
        return self._ranks

    def is_done(self, index: int) -> bool:
        chunk, _ = self.chunk_of(index)
        return chunk is not None and chunk.is_settled

    def announce(self, chunk: RowChunk) -> None:
        """Wake those who wait for this chunk and run its callbacks. Without any lock held."""
        with _lock:
            event, self._event = self._event, None
            called, callbacks = self._take_callbacks(chunk)
        if event is not None:
            event.set()
        for index, callback in zip(called, callbacks, strict=True):
            try:
                callback(RecordFuture(self, index))
            except (Exception, SystemExit):  # a user's code, on a thread that must go on
                _note_failed_callback()

    def _take_callbacks(self, chunk: RowChunk) -> tuple[list[int], list[_Callback]]:
        """Those of the chunk's records; there may be one for every record."""
        called, callbacks = self._called, self._callbacks
        self._called, self._callbacks = [], []
        if self._starts is None or not called:
            return called, callbacks
        start = self._starts[self.chunks.index(chunk)]
        end = start + chunk.initial_count
        due: tuple[list[int], list[_Callback]] = [], []
        for index, callback in zip(called, callbacks, strict=True):
            indices, functions = due if start <= self._rank(index) < end else (self._called, self._callbacks)
            indices.append(index)
            functions.append(callback)
        return due

    def wait_for(self, index: int, timeout: float | None) -> bool:
        """False if the record has no outcome within `timeout` seconds."""
        return self.is_done(index) or self._wait_until(lambda: self.is_done(index), timeout)

    def _wait_until(self, is_done: Callable[[], bool], timeout: float | None) -> bool:
        if timeout is None and self._callback_threads is not None:
            self._callback_threads.check_may_wait()
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            with _lock:
                if is_done():
                    return True
                event = self._event = self._event or Flag()
            left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            if not event.wait(left):
                return is_done()

    def add_callback(self, index: int, callback: _Callback) -> None:
        try:
            with _lock:
                if not self.chunks or not self.is_done(index):
                    self._called.append(index)
                    self._callbacks.append(callback)
                    return
        except CalledInside:
            later(self.add_callback, index, callback)
            return
        try:
            callback(RecordFuture(self, index))
        except Exception:  # as on the producer's own thread
            _note_failed_callback()


_Callback = Callable[[Any], object]


class RecordFuture(ProduceFuture[RecordMetadata]):
    """The outcome of one `send`, once there is one.

    It fails with a `BusError`; its `retriable` tells whether sending the record again may help. After
    REQUEST_TIMED_OUT or NETWORK_EXCEPTION the record may still be, or come to be, in the log.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: RecordBatchBuilder, index: int) -> None:
        self._batch = batch
        self._index = index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordFuture):
            return NotImplemented
        return self._index == other._index and self._batch is other._batch

    def __hash__(self) -> int:
        return hash((id(self._batch), self._index))

    def done(self) -> bool:
        return self._batch.is_done(self._index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most `timeout` seconds. Raises the `BusError`, or `TimeoutError` if there is no outcome yet."""
        chunk, position = self._settled_chunk(timeout)
        error = chunk.error_of(position)
        if error is not None:
            raise error
        return chunk.metadata_of(position)

    def exception(self, timeout: float | None = None) -> BusError | None:
        """Wait as `result` does; None if all went well."""
        chunk, position = self._settled_chunk(timeout)
        return chunk.error_of(position)

    def _settled_chunk(self, timeout: float | None) -> tuple[RowChunk, int]:
        chunk, position = self._batch.chunk_of(self._index)
        if chunk is None or not chunk.is_settled:
            self.wait(timeout)
            chunk, position = self._batch.chunk_of(self._index)
            assert chunk is not None, "a record with an outcome is in no chunk"
        return chunk, position

    def place(self) -> RecordMetadata:
        """Return the `RecordMetadata` of a future that is done; for a record that failed, topic and partition (-1 if it
        has none), with offset, timestamp and version -1."""
        chunk, position = self._settled_chunk(0.0)
        if chunk.error_of(position) is None:
            return chunk.metadata_of(position)
        return RecordMetadata(chunk.partition.topic, chunk.partition.partition, -1, -1, -1)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """`callback(future)` runs on the producer's own thread, or at once if the future is done; it gets a future that
        equals this one.

        It must not block: answers wait behind it. What it raises is logged.
        """
        self._batch.add_callback(self._index, callback)

    def wait(self, timeout: float | None = None) -> None:
        """Raises `TimeoutError` if there is no outcome within `timeout` seconds."""
        if not self._batch.wait_for(self._index, timeout):
            raise TimeoutError(f"expected the broker's answer within {timeout} s, found none yet")


def _bytes_between(column: pa.Array, start: int, end: int) -> int:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return int(offsets[column.offset + end] - offsets[column.offset + start])


def headers_bytes(headers: Headers) -> int:
    return sum(len(name) * 4 + len(data or b"") for name, data in headers)


def _note_failed_callback() -> None:
    logger.exception("a callback of a produce future failed")
