"""The consumer that users hold: assignment and positions, records and Arrow tables out.

Guards the contract of the position: it is the offset of the next record that the user gets, whichever way (poll,
poll_arrow or iteration) the last one came. Finding leaders and positions happens in the caller's thread, inside poll;
fetching ahead happens beside it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from bus.client.assigned_partition import AssignedPartition
from bus.client.cluster import Cluster
from bus.client.configs import ConsumerConfig, parse_addresses, parse_config
from bus.client.fetched import PollTables, records_of
from bus.client.fetcher import Fetcher
from bus.client.list_offsets import list_offsets
from bus.client.values import ConsumerRecord, OffsetAndTimestamp
from bus.errors import BusError, ErrorCode
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

logger = logging.getLogger(__name__)

_RESET_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_Runs = list[tuple[TopicPartition, pa.RecordBatch]]


class Consumer:
    """Reads the partitions that `assign` names, in offset order within each. For one thread; only `wakeup` may come
    from another.

    Takes Kafka's configs with underscores for dots; an unknown one is an error. Raises `BusError` INVALID_CONFIG.
    `auto_offset_reset` (latest unless given): where to go without a position, or when the position is no longer, or
    not yet, in the log. No connection is made before the first call that needs one.
    """

    def __init__(self, address: str | list[str], **configs: Any) -> None:
        self._config = parse_config(ConsumerConfig, configs)
        self._cluster = Cluster(parse_addresses(address), self._config)
        self._fetcher = Fetcher(self._cluster, self._config)
        self._tables = PollTables()
        self._turn = 0
        self._iterating: tuple[AssignedPartition, Iterator[ConsumerRecord]] | None = None
        self._is_awoken = False
        self._is_closed = False

    # ------------------------------------------------------------ assignment and positions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others. One that was assigned before keeps its position."""
        self._check_open()
        self._iterating = None
        wanted = list(dict.fromkeys(partitions))
        with self._fetcher.lock:
            kept = self._fetcher.assigned
            self._fetcher.assigned = {key: kept.get(key) or AssignedPartition(key) for key in wanted}
            self._fetcher.cut_all()

    def assignment(self) -> set[TopicPartition]:
        return set(self._fetcher.assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record from `partition` is the one at `offset`, or the first after it."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise BusError(ErrorCode.INVALID_REQUEST, f"{partition}: expected an offset of 0 or more, found {offset!r}")
        self._iterating = None
        with self._fetcher.lock:
            self._assigned(partition).seek(offset)
            self._fetcher.fetch_anew(partition)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """To the first retained record of these partitions, or of all; looked up when it is needed."""
        self._unset(partitions, "earliest")

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Behind the last record of these partitions, or of all, at the time when it is looked up: at the next poll
        or `position`."""
        self._unset(partitions, "latest")

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that the user gets; looked up by auto_offset_reset if there is none yet."""
        with self._fetcher.lock:
            position = self._assigned(partition).position
        if position is None:
            self._find_positions([partition], timeout_s=self._config.default_api_timeout_ms / 1000)
            position = self._assigned(partition).position
            assert position is not None, f"{partition} has no position after it was found"
        return position

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls give nothing of these until `resume`; what was fetched ahead is kept."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {key for key, partition in self._fetcher.assigned.items() if partition.is_paused}

    def _set_paused(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        self._iterating = None
        with self._fetcher.lock:
            for partition in partitions:
                self._assigned(partition).is_paused = is_paused

    def _unset(self, partitions: Iterable[TopicPartition], reset: str) -> None:
        self._iterating = None
        with self._fetcher.lock:
            for partition in list(partitions) or list(self._fetcher.assigned):
                self._assigned(partition).unset_position(reset)
                self._fetcher.fetch_anew(partition)

    def _assigned(self, partition: TopicPartition) -> AssignedPartition:
        self._check_open()
        assigned = self._fetcher.assigned.get(partition)
        if assigned is None:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected an assigned partition, found {partition}")
        return assigned

    # ------------------------------------------------------------ records

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_records` (max_poll_records); empty if none came within `timeout_ms`.

        Waits longer only where it has to find a leader or a position first. Raises `BusError` for what does not mend
        itself; the position stays.
        """
        records: list[ConsumerRecord] = []
        for partition, batch in self._take(timeout_ms, max_records or self._config.max_poll_records):
            records += records_of(partition, batch)
        return records

    def poll_arrow(self, timeout_ms: int = 500, max_records: int | None = None) -> pa.Table:
        """The next records as a table, the fast path: `topic`, `partition` and the columns of the log.

        All that is there, whole batches, unless `max_records` bounds it (max_poll_records does not). Its chunks are
        the batches as they came, without a copy. Otherwise as `poll`; an empty table if nothing came.
        """
        return self._tables.table_of(self._take(timeout_ms, max_records or sys.maxsize))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever, waiting for new ones; ends after `wakeup` or `close`. The position follows each record."""
        return self

    def __next__(self) -> ConsumerRecord:
        while True:
            if self._iterating is not None:
                partition, records = self._iterating
                record = next(records, None)
                if record is not None:
                    with self._fetcher.lock:
                        partition.advance_to(1, record.offset + 1)
                    return record
            if not self._peek_records():
                raise StopIteration

    def wakeup(self) -> None:
        """End the poll that waits, or else the next one, with what it has; end the iteration. From any thread."""
        with self._fetcher.lock:
            self._is_awoken = True
            self._fetcher.changed.notify_all()

    def _peek_records(self) -> bool:
        """Make the next records ready for iteration; False after a wake-up."""
        self._iterating = None
        while True:
            self._wait_for_records(60.0)
            with self._fetcher.lock:
                if self._is_awoken:
                    self._is_awoken = False
                    return False
                for partition in self._in_turn():
                    batch = partition.peek(self._config.max_poll_records)
                    if batch is not None:
                        self._iterating = partition, iter(records_of(partition.partition, batch))
                        return True

    def _take(self, timeout_ms: int, max_records: int) -> _Runs:
        self._iterating = None
        self._wait_for_records(timeout_ms / 1000)
        runs: _Runs = []
        with self._fetcher.lock:
            self._is_awoken = False
            for partition in self._in_turn():
                try:
                    while max_records and (batch := partition.peek(max_records)) is not None:
                        partition.advance(batch)
                        max_records -= batch.num_rows
                        runs.append((partition.partition, batch))
                except BusError:
                    # What is damaged is fetched again; what was taken already must reach the user first.
                    self._fetcher.fetch_anew(partition.partition)
                    if not runs:
                        raise
            self._fetcher.fetch(time.monotonic())
        return runs

    def _in_turn(self) -> list[AssignedPartition]:
        """The partitions with something to give, another one first each time."""
        ready = [p for p in self._fetcher.assigned.values() if p.buffer and not p.is_paused and p.position is not None]
        self._turn += 1
        first = self._turn % len(ready) if ready else 0
        return ready[first:] + ready[:first]

    def _wait_for_records(self, timeout_s: float) -> None:
        """Until a partition has records, or `wakeup`, or the time is over."""
        deadline = time.monotonic() + timeout_s
        if not self._fetcher.assigned:
            self._check_open()
            raise BusError(ErrorCode.INVALID_REQUEST, "no partition is assigned: call assign() first")
        while True:
            self._check_open()
            self._find_leaders_and_positions(deadline)
            with self._fetcher.lock:
                now = time.monotonic()
                self._fetcher.cut_silent(now)
                if self._raise_error_or_is_ready() or now >= deadline:
                    return
                self._fetcher.fetch(now)
                if not self._is_unsettled():
                    self._fetcher.changed.wait(max(0.0, min(deadline, self._fetcher.next_event(now)) - now))

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

    # ------------------------------------------------------------ leaders and positions

    def _is_unsettled(self) -> bool:
        now = time.monotonic()
        return any(
            ((partition.position is None and not partition.is_paused) or partition.is_leader_doubtful)
            and now >= partition.retry_at
            for partition in self._fetcher.assigned.values()
        )

    def _find_leaders_and_positions(self, deadline: float) -> None:
        now = time.monotonic()
        due = [partition for partition in self._fetcher.assigned.values() if now >= partition.retry_at]
        doubtful = [
            partition for partition in due if partition.is_leader_doubtful or self._is_leader_unknown(partition)
        ]
        unset = [partition for partition in due if partition.position is None and not partition.is_paused]
        if not (doubtful or unset):
            return
        try:
            self._find_leaders(doubtful)
            if unset:
                keys = [partition.partition for partition in unset if partition.position is None]
                self._find_positions(keys, timeout_s=max(0.0, deadline - time.monotonic()))
        except BusError as error:
            if not self._cluster.may_retry(error):
                raise
            logger.info("finding leaders and positions is tried again: %s", error)
            self._put_off([*doubtful, *unset])

    def _put_off(self, partitions: list[AssignedPartition]) -> None:
        with self._fetcher.lock:
            for partition in {id(partition): partition for partition in partitions}.values():
                self._fetcher.put_off(partition, time.monotonic())

    def _is_leader_unknown(self, partition: AssignedPartition) -> bool:
        info = self._cluster.cached_topic(partition.partition.topic)
        if info is None or not partition.topic_id or self._cluster.is_stale(info):
            return True
        # Another topic's look-up may have brought metadata of this one.
        return partition.topic_id != info.topic_id

    def _find_leaders(self, partitions: list[AssignedPartition]) -> None:
        topics = {partition.partition.topic for partition in partitions}
        self._cluster.forget({p.partition.topic for p in partitions if p.is_leader_doubtful})
        for partition in partitions:
            self._cluster.wait_partition(partition.partition.topic, partition.partition.partition, timeout_s=0.0)
        with self._fetcher.lock:
            for partition in [p for p in self._fetcher.assigned.values() if p.partition.topic in topics]:
                self._note_leader(partition)

    def _note_leader(self, partition: AssignedPartition) -> None:
        info = self._cluster.cached_topic(partition.partition.topic)
        if info is None or partition.partition.partition >= len(info.partitions):
            return
        if partition.topic_id not in ("", info.topic_id):
            logger.warning("%s was deleted and created again: resetting the position", partition.partition)
            partition.unset_position(None)
        partition.topic_id = info.topic_id
        partition.leader_epoch = info.partitions[partition.partition.partition].leader_epoch
        address = self._cluster.leader_address(info, partition.partition.partition)
        partition.is_leader_doubtful = address is None
        if address is None:
            self._fetcher.put_off(partition, time.monotonic())

    def _find_positions(self, keys: list[TopicPartition], *, timeout_s: float) -> None:
        wanted: dict[TopicPartition, int] = {}
        for key in keys:
            reset = self._assigned(key).reset or self._config.auto_offset_reset
            if reset == "none":
                raise BusError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{key} has no position, and auto_offset_reset is none")
            wanted[key] = _RESET_TIMESTAMPS[reset]
        for key, listed in list_offsets(self._cluster, wanted, timeout_s=timeout_s).items():
            with self._fetcher.lock:
                self._assigned(key).seek(listed.offset)

    # ------------------------------------------------------------ questions

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first retained offset of each."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last record."""
        return self._offsets(partitions, LATEST_TIMESTAMP)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record whose timestamp is at or after the given one; None if there is none."""
        for partition, timestamp_ms in timestamps_ms.items():
            if timestamp_ms < 0:
                raise BusError(
                    ErrorCode.INVALID_REQUEST, f"{partition}: expected a timestamp of 0 or more, found {timestamp_ms}"
                )
        listed = list_offsets(self._cluster, timestamps_ms, timeout_s=self._config.default_api_timeout_ms / 1000)
        return {
            partition: OffsetAndTimestamp(found.offset, found.timestamp_ms, found.leader_epoch)
            if found.offset >= 0
            else None
            for partition, found in listed.items()
        }

    def partitions_for(self, topic: str) -> set[TopicPartition]:
        """The partitions of `topic`. Raises `BusError` if there is no such topic."""
        info = self._cluster.wait_topic(topic, timeout_s=self._config.default_api_timeout_ms / 1000)
        return {TopicPartition(topic, number) for number in range(len(info.partitions))}

    def topics(self) -> set[str]:
        """All topics but the bus's own."""
        return {topic.name for topic in self._cluster.describe().topics if not topic.is_internal}

    def _offsets(self, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, at)
        listed = list_offsets(self._cluster, wanted, timeout_s=self._config.default_api_timeout_ms / 1000)
        return {partition: found.offset for partition, found in listed.items()}

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self._fetcher.close()
        self._cluster.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this consumer is closed")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
