"""Sends Arrow batches with given stamps to the leaders of their partitions, until each is in the log.

The shell of `stamped_lanes.py`: streams, time, metadata. The calling thread does the work; the threads that read
answers only put them into a line. Memory is bounded: `send` waits while `buffer.memory` is full of what is not
acknowledged.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.cluster import Cluster, TopicInfo, hint_of
from bus.client.connection.produce_requests import WireCompression, encode_request, encode_share
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.model import ProducerStamp, TopicPartition
from bus.spark.sink.stamped_lanes import Part, StampedLanes

_ACKS_ALL = -1
# A request holds one part of each of several partitions, which commit side by side, up to about this size.
_REQUEST_BYTES = 8 * 1024 * 1024
# The broker answers a request that is late by itself; who hears nothing for this much longer gives the stream up.
_SILENCE_S = 5.0


@dataclass(slots=True, eq=False)
class _Line:
    """A stream to one leader, and the requests on it whose answers are to come, oldest first."""

    stream: RequestStream
    unanswered: deque[tuple[float, Sequence[Part]]] = field(default_factory=deque)


Event = tuple[RequestStream, Any]  # a response, or the `BusError` that ended the stream


class StampedWriter:
    """The records of one producer under one epoch. For one thread. `close` gives up what is not acknowledged."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        *,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._compression = WireCompression.of(config)
        self._lanes = StampedLanes(
            in_flight_max=config.max_in_flight_requests_per_connection,
            patience_s=config.delivery_timeout_ms / 1000,
            backoff_s=lambda attempts: cluster.backoff.ms(attempts) / 1000,
        )
        self._topic_ids: dict[str, str] = {}
        self._lines: dict[str, _Line] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._correlation_id = 0

    def partition_count(self, topic: str) -> int:
        """Waits for a broker. Raises `BusError`."""
        return len(self._topic(topic).partitions)

    def send(self, partition: TopicPartition, base_sequence: int, records: pa.RecordBatch) -> None:
        """Returns when there is room for more. `records` has the columns of a produce request, and one row at least.

        Sequences of a partition follow one another without a gap. Raises the `BusError` that no repetition helps
        against, of these records or of earlier ones.
        """
        self._topic_ids.setdefault(partition.topic, self._topic(partition.topic).topic_id)
        payload = self._compression.encode(records)
        part = Part(partition, base_sequence, records.num_rows, payload[0].size, payload)
        self._lanes.add(part, time.monotonic())
        # One part is always admitted, however large.
        limit = max(self._config.buffer_memory, part.size_bytes)
        self._work(lambda: self._lanes.unsettled_bytes <= limit)

    def flush(self) -> None:
        """Returns when all records are in the log, committed. Raises as `send`."""
        self._work(lambda: self._lanes.is_done)

    def close(self) -> None:
        for line in self._lines.values():
            if line.unanswered:
                line.stream.cut("the writer was closed")
            else:
                line.stream.finish()
        self._lines.clear()

    # ------------------------------------------------------------ the work

    def _work(self, is_enough: Callable[[], bool]) -> None:
        while True:
            self._take_events()
            self._lanes.check_patience(time.monotonic())
            if self._lanes.failure is not None:
                raise self._lanes.failure
            self._send_ready()
            if is_enough():
                return
            self._wait()

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self._take(*event)

    def _wait(self) -> None:
        now_s = time.monotonic()
        waits = [wait for wait in (self._lanes.wait_s(now_s), self._silence_s(now_s)) if wait is not None]
        try:
            event = self._events.get(timeout=min(waits, default=None))
        except queue.Empty:
            self._cut_silent()
        else:
            self._take(*event)

    def _take(self, stream: RequestStream, what: Any) -> None:
        line = self._lines.get(stream.address)
        if line is None or line.stream is not stream:
            return  # of a stream that was given up
        if isinstance(what, BusError):
            self._give_up(line, what)
            return
        _, parts = line.unanswered.popleft()
        now_s = time.monotonic()
        for part, answer in zip(parts, what.partitions, strict=True):
            hint = hint_of(answer)
            name = part.partition
            has_moved = hint is not None and self._cluster.take_hint(name.topic, name.partition, hint)
            if answer.error_code and not has_moved:
                self._cluster.forget([name.topic])
            self._lanes.on_answer(
                part,
                answer.error_code,
                answer.error_message,
                throttle_s=what.throttle_time_ms / 1000,
                now_s=now_s,
            )

    def _give_up(self, line: _Line, error: BusError) -> None:
        del self._lines[line.stream.address]
        for _, parts in line.unanswered:
            for part in parts:
                self._lose(part, error)

    def _lose(self, part: Part, error: BusError) -> None:
        self._cluster.forget([part.partition.topic])
        self._lanes.on_lost(part, error, time.monotonic())

    def _silence_s(self, now_s: float) -> float | None:
        """Until when the oldest request of a stream should have an answer; None: all have theirs."""
        oldest = [line.unanswered[0][0] for line in self._lines.values() if line.unanswered]
        return max(0.0, min(oldest) + self._limit_s - now_s) if oldest else None

    def _cut_silent(self) -> None:
        now_s = time.monotonic()
        for line in list(self._lines.values()):
            if line.unanswered and now_s >= line.unanswered[0][0] + self._limit_s:
                reason = f"no answer of the broker at {line.stream.address} within {self._limit_s:g} s"
                line.stream.cut(reason, is_late=True)
                self._give_up(line, BusError(ErrorCode.NETWORK_EXCEPTION, reason))

    @property
    def _limit_s(self) -> float:
        return self._config.request_timeout_ms / 1000 + _SILENCE_S

    # ------------------------------------------------------------ sending

    def _send_ready(self) -> None:
        by_address: dict[str, list[Part]] = {}
        for part in self._lanes.take_ready(time.monotonic()):
            try:
                address = self._leader(part.partition)
            except BusError as error:
                self._lose(part, error)
            else:
                by_address.setdefault(address, []).append(part)
        for address, parts in by_address.items():
            for together in _requests(parts):
                self._send(address, together)

    def _send(self, address: str, parts: Sequence[Part]) -> None:
        line = self._lines.get(address)
        if line is None:
            try:
                line = self._lines[address] = _Line(self._open(address))
            except Exception as failure:  # it is tried again, as what a stream has lost
                error = BusError(ErrorCode.NETWORK_EXCEPTION, f"no stream to {address}: {failure!r}")
                for part in parts:
                    self._lose(part, failure if isinstance(failure, BusError) else error)
                return
        line.unanswered.append((time.monotonic(), parts))
        line.stream.send(self._encode(parts))

    def _open(self, address: str) -> RequestStream:
        def tell(stream: RequestStream, what: Any) -> None:
            self._events.put((stream, what))

        return RequestStream(self._cluster, address, "Produce", on_answer=tell, on_end=tell)

    def _encode(self, parts: Sequence[Part]) -> bytes:
        self._correlation_id += 1
        timeout_ms = self._config.request_timeout_ms
        return encode_request(
            self._correlation_id, map(self._encode_part, parts), acks=_ACKS_ALL, timeout_ms=timeout_ms
        )

    def _encode_part(self, part: Part) -> list[Any]:
        topic, number = part.partition.topic, part.partition.partition
        stamp = ProducerStamp(self._producer_id, self._producer_epoch, part.base_sequence)
        return encode_share(topic, number, self._topic_ids[topic], part.payload, stamp=stamp)

    # ------------------------------------------------------------ who leads

    def _topic(self, name: str) -> TopicInfo:
        info = self._cluster.cached_topic(name)
        if info is not None and not self._cluster.is_stale(info):
            return info
        deadline_ms = monotonic_ms() + self._config.delivery_timeout_ms
        return self._cluster.retry(lambda: self._cluster.refresh([name])[name], deadline_ms=deadline_ms)

    def _leader(self, partition: TopicPartition) -> str:
        """One question at most: who waits for a broker waits with what was sent."""
        info = self._cluster.cached_topic(partition.topic)
        if info is None or self._cluster.is_stale(info):
            info = self._cluster.refresh([partition.topic])[partition.topic]
        address = self._cluster.leader_address(info, partition.partition)
        if address is None:
            self._cluster.forget([partition.topic])
            raise BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
        return address


def _requests(parts: Sequence[Part]) -> list[list[Part]]:
    requests: list[list[Part]] = []
    size_bytes = 0
    for part in parts:
        if not requests or size_bytes + part.size_bytes > _REQUEST_BYTES:
            requests.append([])
            size_bytes = 0
        requests[-1].append(part)
        size_bytes += part.size_bytes
    return requests
