"""Takes what was fetched and gives it out: for polls in runs of batches, for iteration record by record.

Guards four promises: before anything is given out, the group has had its say, so that nothing comes of a partition
that was given up; every partition with records has its turn; what a call has taken but not given, because it failed,
is taken by the next one; and, for automatic commits, a record counts as done when the caller comes back for more,
commits past it or seeks (`InHand`). Waits in the thread that polls; the lock is the fetcher's.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import pyarrow as pa

from bus.client.config.clients import ConsumerConfig
from bus.client.connection.retrying import monotonic_ms
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.consumer.fetcher import Fetcher
from bus.client.consumer.group_client import GroupClient
from bus.client.consumer.metrics import ConsumerMetrics
from bus.client.consumer.positions import Positions
from bus.client.consumer.records import RecordBuilder
from bus.client.values import ConsumerRecord
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

Runs = list[tuple[TopicPartition, pa.RecordBatch]]

_ITERATION_WAIT_MS = 60_000


class RecordReader:
    def __init__(
        self,
        fetcher: Fetcher,
        positions: Positions,
        group: GroupClient | None,
        config: ConsumerConfig,
        builder: RecordBuilder,
        metrics: ConsumerMetrics,
    ) -> None:
        self._fetcher = fetcher
        self._positions = positions
        self._group = group
        self._config = config
        self._builder = builder
        self._metrics = metrics
        self._turn = 0
        self._iterating: tuple[AssignedPartition, Iterator[ConsumerRecord]] | None = None
        self._in_hand: InHand[AssignedPartition] = InHand()
        self._is_awoken = False
        self.was_awoken = False  # the last `take` ended so
        self.is_closed = False

    def check_open(self) -> None:
        if self.is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this consumer is closed")

    def wakeup(self) -> None:
        """End the wait that goes on, or else the next one. From any thread, and from a signal handler or a
        finalizer, which may come while its thread holds the lock itself: there another thread waits for it."""
        is_main = threading.current_thread() is threading.main_thread()
        may_wait = not is_main and not self._fetcher.lock.is_held_here()
        if self._fetcher.lock.acquire(blocking=may_wait):
            try:
                self._awake()
            finally:
                self._fetcher.lock.release()
        else:
            # Not threading.Thread: what was interrupted may be starting one, with the lock of that module held.
            _thread.start_new_thread(self.wakeup, ())

    def _awake(self) -> None:
        self._is_awoken = True
        self._fetcher.changed.notify_all()

    def stop_iterating(self) -> None:
        """The position, or what is assigned, becomes another one: what iteration has read ahead counts no more."""
        self._iterating = None

    # ------------------------------------------------------------ what the caller has in hand

    def come_back(self) -> None:
        """The caller asks for more: what it was given counts as done."""
        self._in_hand.come_back()

    @contextmanager
    def giving(self) -> Iterator[None]:
        """Give back the records that are taken inside the block, if they do not reach the caller."""
        try:
            yield
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """The positions go back to where the records begin that the last call gave."""
        self._iterating = None
        with self._fetcher.lock:
            for partition, offset in self._in_hand.first().items():
                if self._fetcher.assigned.get(partition.partition) is partition:
                    self._go_back(partition, offset)
        self._in_hand.come_back()

    def go_back(self, key: TopicPartition, offset: int) -> None:
        """Records from `offset` on were taken and are not given; those before it are still in hand."""
        with self._fetcher.lock:
            partition = self._fetcher.assigned.get(key)
            if partition is not None:
                self._go_back(partition, offset)

    def _go_back(self, partition: AssignedPartition, offset: int) -> None:
        if partition.position is not None and offset < partition.position:
            partition.seek(offset)
            self._fetcher.fetch_anew(partition.partition)

    def settle(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The caller says by a commit that everything below these is done."""
        for key, offset in offsets.items():
            partition = self._fetcher.assigned.get(key)
            if partition is not None:
                self._in_hand.settle(partition, offset)

    def drop_from_hand(self, partition: AssignedPartition) -> None:
        """The caller chose another position."""
        self._in_hand.drop(partition)

    # ------------------------------------------------------------ taking

    def take(self, timeout_ms: float, max_records: int) -> Runs:
        """The next records, whole batches or parts of them; nothing if none came in time."""
        self._iterating = None
        may_give = self._wait(timeout_ms)
        runs: Runs = []
        with self._fetcher.lock:
            self.was_awoken, self._is_awoken = self._is_awoken, False
            for partition in self._in_turn() if may_give else ():
                try:
                    while max_records and (batch := partition.peek(max_records)) is not None:
                        self._advance(partition, batch.num_rows, _last_offset(batch) + 1)
                        max_records -= batch.num_rows
                        self._metrics.count_given(partition.partition.topic, batch.num_rows)
                        runs.append((partition.partition, batch))
                except BusError:
                    # Damaged records are fetched again; the records before them must reach the user first.
                    self._fetcher.fetch_anew(partition.partition)
                    if not runs:
                        raise
            now_ms = monotonic_ms()
            for key in {key for key, _ in runs}:
                self._metrics.record_position(self._fetcher.assigned[key], now_ms)
            self._fetcher.fetch(now_ms)
        return runs

    def next_record(self) -> ConsumerRecord | None:
        """The next one, however long it takes; None after a wake-up. The position follows."""
        self._in_hand.come_back()
        while True:
            if self._group is None or self._group.between_records():
                try:
                    record = self._next_read_ahead()
                except BaseException:  # an interrupt may come between taking a record and giving it
                    self.give_back()
                    raise
                if record is not None:
                    return record
            if not self._peek():
                return None

    def _next_read_ahead(self) -> ConsumerRecord | None:
        if self._iterating is None:
            return None
        partition, records = self._iterating
        record = next(records, None)
        if record is not None:
            self._metrics.count_given(record.topic, 1)
            with self._fetcher.lock:
                self._advance(partition, 1, record.offset + 1)
        return record

    def _advance(self, partition: AssignedPartition, count: int, next_offset: int) -> None:
        assert partition.position is not None, f"{partition.partition} has no position"
        self._in_hand.give(partition, partition.position, next_offset)
        partition.advance_to(count, next_offset)

    def _peek(self) -> bool:
        """Make the next records ready for iteration; False after a wake-up."""
        self._iterating = None
        while True:
            may_give = self._wait(_ITERATION_WAIT_MS)
            with self._fetcher.lock:
                if self._is_awoken:
                    self._is_awoken = False
                    return False
                for partition in self._in_turn() if may_give else ():
                    batch = partition.peek(self._config.max_poll_records)
                    if batch is not None:
                        self._metrics.record_position(partition, monotonic_ms())
                        self._iterating = partition, self._builder.one_by_one(partition.partition, batch)
                        return True

    def _in_turn(self) -> list[AssignedPartition]:
        """The partitions with something to give, another one first each time."""
        ready = [p for p in self._fetcher.assigned.values() if p.buffer and not p.is_paused and p.position is not None]
        self._turn += 1
        first = self._turn % len(ready) if ready else 0
        return ready[first:] + ready[:first]

    # ------------------------------------------------------------ waiting

    def _wait(self, timeout_ms: float) -> bool:
        """Wait until a partition has records, or `wakeup`, or the time is over. False: the group needs more before any
        record may be returned."""
        began_at_ms = monotonic_ms()
        deadline_ms = began_at_ms + timeout_ms
        group = self._group
        with self._fetcher.lock:
            self._metrics.begin_poll(began_at_ms)
        while True:
            self.check_open()
            may_give = group is None or group.work(deadline_ms)
            if not self._fetcher.assigned and (group is None or group.subscription is None):
                raise BusError(
                    ErrorCode.INVALID_REQUEST, "nothing is assigned: call assign() or, with a group_id, subscribe()"
                )
            self._positions.settle(monotonic_ms())
            with self._fetcher.lock:
                now_ms = self._metrics.last_poll_at_ms = monotonic_ms()
                self._fetcher.cut_silent(now_ms)
                if self._raise_error_or_is_ready() or now_ms >= deadline_ms:
                    self._metrics.end_poll(now_ms)
                    return may_give
                self._fetcher.fetch(now_ms)
                if not self._positions.is_due(now_ms) and (group is None or not group.is_pressed()):
                    until_ms = min(deadline_ms, self._fetcher.next_event(now_ms))
                    if group is not None:
                        until_ms = min(until_ms, group.next_event(now_ms))
                    self._fetcher.changed.wait(max(0.0, until_ms - now_ms) / 1000)

    def _raise_error_or_is_ready(self) -> bool:
        is_ready = False
        for partition in self._fetcher.assigned.values():
            is_ready = is_ready or (bool(partition.buffer) and not partition.is_paused)
        if is_ready or self._is_awoken:
            return True
        for partition in self._fetcher.assigned.values():
            if partition.error is not None:
                error, partition.error = partition.error, None
                raise error
        return False


def _last_offset(batch: pa.RecordBatch) -> int:
    return int(batch.column("offset")[-1].as_py())


PlaceT = TypeVar("PlaceT")


class InHand(Generic[PlaceT]):
    """The offsets of the last call's records by place, a partition: `first <= offset < next`."""

    def __init__(self) -> None:
        self._ranges: dict[PlaceT, tuple[int, int]] = {}

    def come_back(self) -> None:
        """The caller asks for more: what it was given is done."""
        self._ranges.clear()

    def give(self, place: PlaceT, first: int, next_offset: int) -> None:
        """More of the same call extends what it gave before."""
        held = self._ranges.get(place)
        self._ranges[place] = (first if held is None else held[0], next_offset)

    def settle(self, place: PlaceT, offset: int) -> None:
        """The caller says that everything below `offset` is done, and nothing else."""
        held = self._ranges.get(place)
        if held is not None:
            if offset < held[1]:
                self._ranges[place] = (offset, held[1])
            else:
                del self._ranges[place]

    def drop(self, place: PlaceT) -> None:
        """The caller chose another position."""
        self._ranges.pop(place, None)

    def first(self) -> Mapping[PlaceT, int]:
        """The offsets to continue from if these records are to come again."""
        return {place: first for place, (first, _) in self._ranges.items()}
