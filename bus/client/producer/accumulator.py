"""The memory of a producer, and the accumulator of `send()` that fills it: one open batch a topic, closed into one
chunk for each partition.

All records of a topic share one open batch, whatever decides their partition: so they keep the order of the calls, and
the hash of the keys is computed for whole columns when the batch closes. A batch closes when it is full (batch.size, or
batch.size for each partition once it has keys) or when its time is up (linger.ms); a full one may grow on while it
would only wait behind others, since a few large batches cost everybody less than many small ones. Guards buffer.memory:
an open batch has its bytes reserved, what it did not use is given back when it closes; never more than `total_bytes`
are out, and what is given back goes to the longest waiter first, whole, however small the wishes of those behind it
(Kafka's BufferPool). A part of the sender's machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bus.client.config.clients import ProducerConfig
from bus.client.connection.metadata_cache import TopicInfo
from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.batch import RecordBatchBuilder, RowChunk
from bus.client.producer.future import CallbackThreads
from bus.client.producer.partitioning import partitions_of_keys
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import Flag, OwnLock
from bus.platform.signals import uninterrupted

ResultT = TypeVar("ResultT")


class _Waiter:
    __slots__ = ("event", "is_granted", "is_released", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self.is_released = False  # the lock
        self.event = Flag()


class BufferPool:
    """The count of bytes that are taken in and not settled; it holds none. `lock` is its owner's and is held at every
    call; `wait` gives it up while it waits."""

    def __init__(self, total_bytes: int, lock: OwnLock, clock: Callable[[], float] = monotonic_ms) -> None:
        self.total_bytes = total_bytes
        self.available_bytes = total_bytes
        self._lock = lock
        self._clock = clock
        self._waiters: deque[_Waiter] = deque()
        self._closed_by: BusError | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    def try_take(self, size_bytes: int) -> bool:
        """Never past a thread that waits."""
        if self._waiters or size_bytes > self.available_bytes:
            return False
        self.available_bytes -= size_bytes
        return True

    def wait(
        self, size_bytes: int, deadline_ms: float, on_wait: Callable[[float], None], use: Callable[[], ResultT]
    ) -> ResultT:
        """Take the bytes, or wait for them until `deadline_ms`; `on_wait` gets the milliseconds that it took. Returns
        what `use` makes of them: no interrupt comes in between, or they would be lost.

        Raises `BusError`: MESSAGE_TOO_LARGE at once if there will never be so many, REQUEST_TIMED_OUT, or what `close`
        was given.
        """
        if size_bytes > self.total_bytes:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"expected at most buffer.memory={self.total_bytes} bytes at once, found {size_bytes}",
            )
        if self._closed_by is not None:
            raise self._closed_by
        with uninterrupted:
            if self.try_take(size_bytes):
                return use()
        waiter = _Waiter(size_bytes)
        started_ms = self._clock()
        interrupt: BaseException | None = None
        try:
            with uninterrupted:
                self._waiters.append(waiter)
                self._lock.release()
                waiter.is_released = True
            waiter.event.wait(max(0.0, deadline_ms - self._clock()) / 1000)
        except BaseException as failure:  # an interrupt of the user's thread: the lock comes first
            interrupt = failure
        with uninterrupted:
            if waiter.is_released:
                self._lock.acquire()
            on_wait(self._clock() - started_ms)
            if waiter.is_granted and interrupt is None:
                return use()
            self._give_up(waiter)
        if interrupt is not None:
            raise interrupt
        if self._closed_by is not None:
            raise self._closed_by
        raise BusError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"waited {(self._clock() - started_ms) / 1000:.3f} s (max.block.ms) for {size_bytes} bytes of "
            f"buffer.memory={self.total_bytes}: {self.available_bytes} are free, "
            f"{self.total_bytes - self.available_bytes} are not acknowledged yet",
        )

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.is_granted:
            self.give_back(waiter.size_bytes)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
            self._grant()

    def give_back(self, size_bytes: int) -> None:
        self.available_bytes += size_bytes
        assert self.available_bytes <= self.total_bytes, f"{self.available_bytes} of {self.total_bytes} bytes are free"
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        while self._waiters and self._waiters[0].size_bytes <= self.available_bytes:
            waiter = self._waiters.popleft()
            self.available_bytes -= waiter.size_bytes
            waiter.is_granted = True
            waiter.event.set()

    def close(self, reason: BusError) -> None:
        """Every call that waits now or would have to wait later raises `reason`. Safe to repeat."""
        self._closed_by = self._closed_by or reason
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.event.set()


# A batch that is split among many partitions, or grows on, is no gain beyond this.
_BATCH_BYTES_MAX = 512 * 1024
# The minimum share of one partition in a large batch: many small parts cost the broker a commit each.
_SHARE_BYTES_MIN = 64 * 1024


class RecordAccumulator:
    """`choose(topic, info, size_bytes, now)` gives the partition for records that nothing else decides."""

    def __init__(
        self, config: ProducerConfig, pool: BufferPool, choose: Callable[[str, TopicInfo, int, float], int]
    ) -> None:
        self._config = config
        self._pool = pool
        self._choose = choose
        self._ignores_keys = config.partitioner_ignore_keys
        self._bytes_max = min(_BATCH_BYTES_MAX, config.buffer_memory // 8, config.max_request_size // 2)
        self._linger_ms = config.linger_ms
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self.open: dict[str, RecordBatchBuilder] = {}
        self.callback_threads = CallbackThreads()

    def limit_for(self, record_bytes: int, partition_count: int, *, has_key: bool) -> int:
        """How large a batch is to become that begins with such a record."""
        limit = self._config.batch_size
        if has_key and not self._ignores_keys:
            limit = max(limit, min(limit * partition_count, self._bytes_max))
        return max(record_bytes, limit)

    def open_batch(self, topic: str, limit_bytes: int, partition_count: int, now_ms: float) -> RecordBatchBuilder:
        """`limit_bytes` are taken from the pool."""
        assert topic not in self.open, f"{topic} has an open batch"
        due_at_ms = now_ms + self._linger_ms
        batch = self.open[topic] = self._new_batch(topic, limit_bytes, partition_count, now_ms, due_at_ms)
        return batch

    def new_late_batch(self, topic: str, limit_bytes: int, partition_count: int, now_ms: float) -> RecordBatchBuilder:
        """Make a batch for one record that came while the lock was held by its own thread. It changes nothing here:
        `open_late` does, which takes its bytes from the pool."""
        return self._new_batch(topic, limit_bytes, partition_count, now_ms, now_ms)

    def open_late(self, batch: RecordBatchBuilder) -> None:
        assert batch.topic not in self.open, f"{batch.topic} has an open batch"
        self.open[batch.topic] = batch

    def _new_batch(
        self, topic: str, limit_bytes: int, partition_count: int, now_ms: float, due_at_ms: float
    ) -> RecordBatchBuilder:
        return RecordBatchBuilder(
            topic,
            limit_bytes=limit_bytes,
            due_at_ms=due_at_ms,
            deadline_ms=now_ms + self._delivery_timeout_ms,
            partition_count=partition_count,
            callback_threads=self.callback_threads,
        )

    def grow(self, batch: RecordBatchBuilder) -> bool:
        """Room for as much again, if there is memory and the batch is not large already. Not for a batch that its one
        record fills: large records, or batch.size=0, which asks for a batch a record."""
        more = min(batch.limit_bytes, self._bytes_max - batch.limit_bytes)
        if len(batch.values) <= 1 or more <= 0 or not self._pool.try_take(more):
            return False
        batch.limit_bytes += more
        return True

    def close(self, batch: RecordBatchBuilder, info: TopicInfo | None, now_ms: float) -> list[tuple[int, RowChunk]]:
        """Its chunks by partition. `info` None: the topic is not known any more, though it may be again. Then records
        go where they would have gone when the batch was opened."""
        batch.trim()
        chunks = self._split(batch, info, now_ms)
        del self.open[batch.topic]  # only now: an interrupt while it was split leaves it as it was
        self._pool.give_back(batch.limit_bytes - sum(chunk.reserved_bytes for _, chunk in chunks))
        return chunks

    def _split(self, batch: RecordBatchBuilder, info: TopicInfo | None, now_ms: float) -> list[tuple[int, RowChunk]]:
        if batch.partitions is None and (batch.keys is None or self._ignores_keys):
            shares = self._spread(batch.topic, info, batch.size_bytes, now_ms)
            if len(shares) == 1:
                return batch.close_whole(shares[0])
            keys = None if batch.keys is None else pa.array(batch.keys, pa.binary())
            return batch.close_split(_in_turn(shares, len(batch.values)), keys)
        keys = None if batch.keys is None else pa.array(batch.keys, pa.binary())
        return batch.close_split(self._partitions_of(batch, keys, info, now_ms), keys)

    def _partitions_of(
        self, batch: RecordBatchBuilder, keys: pa.Array | None, info: TopicInfo | None, now_ms: float
    ) -> Any:
        """Return the partition of each record: the requested one, else that of its key, else one by the spreading of
        the remaining records."""
        records = len(batch.values)
        chosen = batch.partitions or {}
        if keys is None or self._ignores_keys:
            partitions = np.full(records, -1, np.int64)
        else:
            count = batch.partition_count if info is None else len(info.partitions)
            partitions = partitions_of_keys(keys, count)
            if keys.null_count:
                partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        for position, partition in chosen.items():
            partitions[position] = partition
        undecided = np.flatnonzero(partitions < 0)
        if len(undecided):
            shares = self._spread(batch.topic, info, batch.size_bytes * len(undecided) // records, now_ms)
            partitions[undecided] = _in_turn(shares, len(undecided))
        return partitions

    def _spread(self, topic: str, info: TopicInfo | None, size_bytes: int, now_ms: float) -> list[int]:
        """The partitions that share so many bytes in equal parts, in ascending order: one for an ordinary batch, and
        several for one that has grown while the broker was busy. Of an unknown topic one is as good as any."""
        if info is None:
            return [0]
        most = max(1, size_bytes // max(_SHARE_BYTES_MIN, self._config.batch_size))
        shares = min(len(info.partitions), most)
        return sorted(self._choose(topic, info, size_bytes // shares, now_ms) for _ in range(shares))


def _in_turn(shares: Sequence[int], records: int) -> Any:
    """The partition of each of so many records: the first run of them is the first share, and so on."""
    return np.array(shares, np.int64)[np.arange(records) * len(shares) // max(1, records)]
