"""The producer's engine: byte accounting, one stream for each leader, retries and time-outs.

Guards two promises: every chunk that is taken in is settled, by an answer, by a final error, by its delivery time-out
or by closing; and bytes that are not settled never exceed buffer.memory. One lock guards all state; gRPC calls,
futures and callbacks are never touched while it is held. Requests leave on the thread that makes them possible: the
caller's if the window is open, else the one that reads the answers. Only what waits for time passes (retries,
time-outs, new metadata) is the business of a thread of its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from bus.arrow_batches import encode_arrow_buffer
from bus.client.cluster import Cluster, TopicInfo, error_of
from bus.client.configs import ProducerConfig
from bus.client.produce_queue import Chunk, Outcome, Part, PartitionQueue, Settled
from bus.client.produce_wire import batch_of_rows, encode_partition, encode_request
from bus.client.request_stream import RequestStream
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

logger = logging.getLogger(__name__)

_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class _Request:
    __slots__ = ("correlation_id", "deadline", "parts")

    def __init__(self, correlation_id: int, parts: list[Part], deadline: float) -> None:
        self.correlation_id = correlation_id
        self.parts = parts
        self.deadline = deadline


class _Connection:
    """A stream and the requests on it that are not answered, oldest first."""

    __slots__ = ("requests", "stream")

    def __init__(self, stream: RequestStream) -> None:
        self.stream = stream
        self.requests: deque[_Request] = deque()


class Sender:
    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._request_timeout_s = min(config.request_timeout_ms, config.delivery_timeout_ms) / 1000
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)  # the keeper's
        self._room = threading.Condition(self._lock)  # of callers that wait for memory
        self._waiting_for_room = 0
        self._bytes = 0
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._connections: dict[str, _Connection] = {}
        self._correlation_id = 0
        self._stale_topics: set[str] = set()
        self._refresh_at = 0.0
        self._refresh_failures = 0
        self._is_closed = False
        self._keeper = threading.Thread(target=self._keep, name="bus-producer", daemon=True)
        self._keeper.start()

    # ------------------------------------------------------------ taking in

    def reserve(self, size_bytes: int, *, timeout_s: float) -> None:
        """Wait for `size_bytes` of buffer.memory. Raises `BusError` REQUEST_TIMED_OUT, or INVALID_REQUEST if closed."""
        limit = self._config.buffer_memory
        if size_bytes > limit:
            raise BusError(
                ErrorCode.MESSAGE_TOO_LARGE, f"expected at most buffer.memory={limit} bytes, found {size_bytes}"
            )
        with self._lock:
            if self._bytes + size_bytes > limit and not self._is_closed:
                self._waiting_for_room += 1
                try:
                    self._room.wait_for(lambda: self._is_closed or self._bytes + size_bytes <= limit, timeout_s)
                finally:
                    self._waiting_for_room -= 1
            if self._is_closed:
                raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")
            if self._bytes + size_bytes > limit:
                raise BusError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"waited {timeout_s:.3f} s (max.block.ms) for {size_bytes} bytes of buffer.memory={limit}: "
                    f"{self._bytes} bytes are not acknowledged yet",
                )
            self._bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back what was reserved and is not used."""
        with self._lock:
            self._release(size_bytes)

    def enqueue(self, topic: str, chunks: Sequence[tuple[int, Chunk]]) -> None:
        """Chunks with their partitions, their bytes reserved, in order. Never blocks."""
        with self._lock:
            if self._is_closed:
                self._release(sum(chunk.size_bytes for _, chunk in chunks))
                raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")
            touched: dict[PartitionQueue, None] = {}
            for partition, chunk in chunks:
                queue = self._queues.get((topic, partition))
                if queue is None:
                    queue = self._queues[topic, partition] = PartitionQueue(topic, partition)
                queue.pending.append(chunk)
                touched[queue] = None
            self._drain(touched)
            if any(queue.pending and not queue.in_flight for queue in touched):
                self._wake.notify()  # it waits for the end of a back-off, which the keeper did not expect

    def unsettled(self) -> list[Outcome]:
        """The futures of everything that is taken in and not settled."""
        with self._lock:
            chunks = [
                chunk
                for queue in self._queues.values()
                for chunk in [*(chunk for part in queue.in_flight for chunk in part.chunks), *queue.pending]
            ]
            return list({id(chunk.future): chunk.future for chunk in chunks if not chunk.is_settled}.values())

    # ------------------------------------------------------------ sending; the lock is held

    def _drain(self, queues: Iterable[PartitionQueue]) -> None:
        """Send what may be sent of these partitions, with one request for several partitions of one leader."""
        now, window = time.monotonic(), self._config.max_in_flight_requests_per_connection
        ready = [queue for queue in queues if queue.is_sendable(now=now, window=window)]
        while ready:
            by_address: dict[str, list[PartitionQueue]] = {}
            for queue in ready:
                address = self._address_of(queue, now)
                if address is not None:
                    by_address.setdefault(address, []).append(queue)
            for address, sendable in by_address.items():
                self._send(address, sendable, now)
            ready = [
                queue
                for sendable in by_address.values()
                for queue in sendable
                if queue.is_sendable(now=now, window=window)
            ]

    def _address_of(self, queue: PartitionQueue, now: float) -> str | None:
        info = self._cluster.cached_topic(queue.topic)
        address = None
        if info is not None and queue.partition < len(info.partitions):
            address = self._cluster.leader_address(info, queue.partition)
        if info is None or address is None:
            queue.retry_at = now + self._cluster.backoff.seconds(queue.failures)
            queue.failures += 1
            self._ask_for_metadata(queue.topic)
            return None
        if queue.in_flight and queue.address != address:
            return None  # the old leader answers first: two streams have no order between them
        self._address(queue, info, address)
        return address

    def _address(self, queue: PartitionQueue, info: TopicInfo, address: str) -> None:
        queue.address = address
        if queue.topic_id != info.topic_id or not queue.wire_head:
            queue.topic_id = info.topic_id
            queue.wire_head = pb.PartitionProduceData(
                topic=queue.topic, partition=queue.partition, topic_id=info.topic_id
            ).SerializeToString()

    def _send(self, address: str, queues: Sequence[PartitionQueue], now: float) -> None:
        """One chunk, or several records, of each queue; in several requests if one would be larger than allowed."""
        parts: list[Part] = []
        pieces: list[list[Any]] = []
        size = 0
        for queue in queues:
            chunks = queue.take(self._config.max_request_size)
            chunk_bytes = sum(chunk.size_bytes for chunk in chunks)
            if parts and size + chunk_bytes > self._config.max_request_size:
                self._post(address, parts, pieces, now)
                parts, pieces, size = [], [], 0
            part, wire = self._encode(queue, chunks)
            queue.in_flight.append(part)
            parts.append(part)
            pieces.append(wire)
            size += chunk_bytes
        self._post(address, parts, pieces, now)

    def _encode(self, queue: PartitionQueue, chunks: list[Chunk]) -> tuple[Part, list[Any]]:
        if chunks[0].row is None:
            payload, timestamp_ms = chunks[0].payload, chunks[0].timestamp_ms
        else:
            batch, timestamp_ms = batch_of_rows([chunk.row for chunk in chunks if chunk.row is not None])
            payload = encode_arrow_buffer(batch, self._config.compression_type)
        return Part(queue, chunks), encode_partition(queue.wire_head, payload, timestamp_ms)

    def _post(self, address: str, parts: list[Part], pieces: list[list[Any]], now: float) -> None:
        connection = self._connections.get(address)
        if connection is None:
            stream = RequestStream(self._cluster, address, "Produce", on_answer=self._on_answer, on_end=self._on_end)
            connection = self._connections[address] = _Connection(stream)
        self._correlation_id += 1
        connection.requests.append(_Request(self._correlation_id, parts, now + self._request_timeout_s))
        connection.stream.send(
            encode_request(
                correlation_id=self._correlation_id,
                acks=self._config.acks,
                timeout_ms=int(self._request_timeout_s * 1000),
                partitions=pieces,
            )
        )

    def _release(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        assert self._bytes >= 0, f"more bytes were released than reserved: {self._bytes}"
        if self._waiting_for_room:
            self._room.notify_all()

    def _note_settled(self, settled: Iterable[Settled]) -> list[Settled]:
        """Each chunk once, its bytes free again. The futures come after the lock: `_resolve`."""
        fresh: list[Settled] = []
        for item in settled:
            if not item[0].is_settled:
                item[0].is_settled = True
                fresh.append(item)
        if fresh:
            self._release(sum(chunk.size_bytes for chunk, _, _ in fresh))
        return fresh

    def _ask_for_metadata(self, topic: str) -> None:
        self._stale_topics.add(topic)
        self._wake.notify()

    # ------------------------------------------------------------ answers, on a stream's reading thread

    def _on_answer(self, stream: RequestStream, response: Any) -> None:
        settled: list[Settled] = []
        with self._lock:
            connection = self._connections.get(stream.address)
            if connection is None or connection.stream is not stream:
                return
            request = connection.requests[0] if connection.requests else None
            if request is None or request.correlation_id != response.correlation_id:
                expected = "no answer" if request is None else f"answer {request.correlation_id}"
                raise ValueError(f"expected {expected}, found answer {response.correlation_id}")
            if len(request.parts) != len(response.partitions):
                raise ValueError(f"expected {len(request.parts)} partitions, found {len(response.partitions)}")
            connection.requests.popleft()
            for part, answer in zip(request.parts, response.partitions, strict=True):
                if part.queue.is_current(part):
                    settled += self._take_answer(part, answer)
            fresh = self._note_settled(settled)
            self._drain({part.queue: None for part in request.parts})
        _resolve(fresh)

    def _take_answer(self, part: Part, answer: Any) -> list[Settled]:
        if not answer.error_code:
            return part.queue.acknowledge(part, answer.base_offset, answer.log_append_time_ms, answer.version)
        error = error_of(answer.error_code, answer.error_message or f"{answer.topic}-{answer.partition}")
        if not error.retriable:
            return part.queue.refuse(part, error)
        return self._repeat(part.queue, error, {id(part)})

    def _repeat(self, queue: PartitionQueue, error: BusError, failed: set[int]) -> list[Settled]:
        now = time.monotonic()
        queue.retry_at = now + self._cluster.backoff.seconds(queue.failures)
        logger.debug("producing to %s-%d is tried again: %s", queue.topic, queue.partition, error)
        if error.code in _STALE_METADATA:
            self._ask_for_metadata(queue.topic)
        self._wake.notify()
        return queue.repeat(error=error, failed=lambda part: id(part) in failed, retries=self._config.retries, now=now)

    def _on_end(self, stream: RequestStream, error: BusError) -> None:
        """The stream is gone: what was on it has an unknown outcome and is sent again, in order."""
        with self._lock:
            connection = self._connections.get(stream.address)
            if connection is None or connection.stream is not stream:
                return
            del self._connections[stream.address]
            parts = [part for request in connection.requests for part in request.parts]
            settled: list[Settled] = []
            if not error.retriable:
                settled += self._refuse_oldest(connection, error)
                error = BusError(ErrorCode.NETWORK_EXCEPTION, f"the stream ended with {error}")
            failed = {id(part) for part in parts}
            for queue in {part.queue: None for part in parts if part.queue.is_current(part)}:
                settled += self._repeat(queue, error, failed)
            fresh = self._note_settled(settled)
        _resolve(fresh)

    def _refuse_oldest(self, connection: _Connection, error: BusError) -> list[Settled]:
        """A broker that ends the stream for what a request contains means the oldest one."""
        settled: list[Settled] = []
        for part in connection.requests[0].parts if connection.requests else ():
            if part.queue.is_current(part):
                settled += part.queue.refuse(part, error)
        return settled

    # ------------------------------------------------------------ time, on the keeper's thread

    def _keep(self) -> None:
        while not self._is_closed:
            try:
                self._keep_once()
            except Exception:  # the loop's edge: without this thread nothing would ever time out
                logger.exception("the producer's keeper failed; it goes on")
                with self._lock:
                    self._wake.wait(1.0)

    def _keep_once(self) -> None:
        """Do what is due, or wait until something is."""
        with self._lock:
            if self._is_closed:
                return
            now = time.monotonic()
            fresh = self._note_settled(item for queue in self._queues.values() for item in queue.expire(now))
            silent = self._silent_streams(now)
            topics = self._topics_to_refresh(now)
            if not topics:
                self._drain(self._queues.values())
            if not (fresh or silent or topics):
                self._wake.wait(max(0.0, self._next_event(now) - time.monotonic()))
        _resolve(fresh)
        for stream in silent:
            stream.cut(f"no answer of the broker at {stream.address} within request.timeout.ms")
        if topics:
            self._refresh(topics)

    def _silent_streams(self, now: float) -> list[RequestStream]:
        """Streams whose oldest request is overdue, each once: their end comes from their own threads."""
        silent: list[RequestStream] = []
        for connection in self._connections.values():
            if connection.requests and now >= connection.requests[0].deadline:
                connection.requests[0].deadline = math.inf
                silent.append(connection.stream)
        return silent

    def _next_event(self, now: float) -> float:
        """When something is to be done that no answer brings. What is sent later cannot be due before the horizon."""
        horizon = now + max(0.01, self._request_timeout_s / 2)
        events = [horizon]
        for queue in self._queues.values():
            events.append(queue.next_deadline())
            if queue.pending and queue.retry_at > now:
                events.append(queue.retry_at)
        events += [connection.requests[0].deadline for connection in self._connections.values() if connection.requests]
        if self._stale_topics:
            events.append(self._refresh_at)
        return min(events, default=math.inf)

    def _topics_to_refresh(self, now: float) -> list[str]:
        if now < self._refresh_at:
            return []
        for topic in {topic for topic, _ in self._queues}:
            info = self._cluster.cached_topic(topic)
            if info is not None and self._cluster.is_stale(info):
                self._stale_topics.add(topic)
        return list(self._stale_topics)

    def _refresh(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                self._cluster.refresh([topic])
            except BusError as error:
                self._note_failed_refresh(topic, error)
            else:
                self._note_refresh(topic)

    def _note_refresh(self, topic: str) -> None:
        with self._lock:
            self._stale_topics.discard(topic)
            self._refresh_failures = 0
            self._refresh_at = time.monotonic() + self._cluster.backoff.seconds(0)
            info = self._cluster.cached_topic(topic)
            queues = [queue for queue in self._queues.values() if queue.topic == topic]
            count = len(info.partitions) if info is not None else 0
            error = BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} has {count} partitions now")
            gone = [queue for queue in queues if queue.partition >= count]
            fresh = self._note_settled(item for queue in gone for item in queue.fail_all(error))
            self._drain(queues)
        _resolve(fresh)

    def _note_failed_refresh(self, topic: str, error: BusError) -> None:
        with self._lock:
            self._refresh_at = time.monotonic() + self._cluster.backoff.seconds(self._refresh_failures)
            self._refresh_failures += 1
            fresh: list[Settled] = []
            if not error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._stale_topics.discard(topic)
                queues = [queue for queue in self._queues.values() if queue.topic == topic]
                fresh = self._note_settled(item for queue in queues for item in queue.fail_all(error))
        _resolve(fresh)

    # ------------------------------------------------------------ the end

    def close(self, *, timeout_s: float) -> None:
        """Fail what is not settled, end the streams and the threads. Safe to repeat."""
        deadline = time.monotonic() + timeout_s
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed before this was acknowledged")
        with self._lock:
            self._is_closed = True
            fresh = self._note_settled(item for queue in self._queues.values() for item in queue.fail_all(error))
            connections, self._connections = list(self._connections.values()), {}
            self._wake.notify_all()
            self._room.notify_all()
        _resolve(fresh)
        for connection in connections:
            if connection.requests:
                connection.stream.cut("the producer was closed")
            else:
                connection.stream.finish()
        for connection in connections:
            connection.stream.join(max(0.1, deadline - time.monotonic()))
        if threading.current_thread() is not self._keeper:
            self._keeper.join(max(0.1, deadline - time.monotonic()))


def _resolve(settled: Iterable[Settled]) -> None:
    for chunk, metadata, error in settled:
        chunk.future.resolve(chunk.slot, metadata, error)
