"""Sends the Arrow batches of a task to the leaders of their partitions, as the producer that the task is, until each is
in the log.

The SDK's sender decides what is sent when, and what is sent again; the writer is its shell: streams, time, metadata.
The calling thread does the work; threads that read answers only put them into a queue. Memory is bounded: `send` waits
while `buffer.memory` is full of what is not acknowledged.

The writers of one Python worker share a connection to each cluster and the ids of producers, since a micro-batch has no
time to connect again. What they keep never changes, or is asked for again when the broker does not know it.
"""

from __future__ import annotations

import math
import queue
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bus.client.config.clients import ProducerConfig
from bus.client.connection.cluster import Cluster
from bus.client.connection.produce_requests import decode_produced, init_producer_id
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.accumulator import BufferPool
from bus.client.producer.connections import Connection, Cut, Open, RefreshTopics, Send, Wake
from bus.client.producer.future import BatchFuture, RunChunk
from bus.client.producer.sender import Sender
from bus.client.producer.threads import PartEncoder
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import OwnLock
from bus.spark.sink.sink_options import Application, SinkOptions
from bus.spark.source.source_options import OptionError

EPOCHS_PER_NAME = 32_000  # an epoch has 15 bits


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The producer that a task is, and its epoch. `batch`: of a streaming query its number, of a batch write its
    version.

    Guards one promise: a task that runs again, in the same attempt of a batch or in a later one, is the same producer
    with the same epoch, and no other task ever is. The producer's name is made of the query and the number of the task,
    and the epoch is the number of the batch; after every `EPOCHS_PER_NAME` batches another name begins.
    """

    producer_name: str
    producer_epoch: int
    batch: int
    task: int

    @property
    def first_turn(self) -> int:
        """The position at which rows with neither key nor partition begin: tasks and batches take turns."""
        return self.task + self.batch


def task_identity(writer: Application, task: int) -> TaskIdentity:
    generation, epoch = divmod(writer.version, EPOCHS_PER_NAME)
    return TaskIdentity(f"spark.{writer.name}.{task}.{generation}", epoch, writer.version, task)


SendRows = Callable[[TopicPartition, pa.RecordBatch], None]


class PartBuffer:
    """Gathers the rows of each partition until they are worth a request, in the order in which they were added. Memory
    is bounded, however many partitions there are."""

    def __init__(self, send: SendRows, *, part_bytes: int, buffered_bytes_max: int) -> None:
        self._send = send
        self._part_bytes = part_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._buffered: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._total_bytes = 0
        self.record_count = 0  # of what was sent

    def add(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        self._buffered.setdefault(partition, []).append(records)
        self._bytes[partition] = self._bytes.get(partition, 0) + records.nbytes
        self._total_bytes += records.nbytes
        if self._bytes[partition] >= self._part_bytes:
            self._emit(partition)
        while self._total_bytes > self._buffered_bytes_max:
            self._emit(max(self._bytes, key=self._bytes.__getitem__))

    def flush(self) -> None:
        for partition in list(self._buffered):
            self._emit(partition)

    def _emit(self, partition: TopicPartition) -> None:
        batches = self._buffered.pop(partition)
        self._total_bytes -= self._bytes.pop(partition)
        for records in _pieces(pa.concat_batches(batches), self._part_bytes):
            self.record_count += records.num_rows
            self._send(partition, records)


def _pieces(records: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split the records into halves, and these again, until each piece is small enough, or a single record."""
    if records.nbytes <= bytes_max or records.num_rows == 1:
        yield records
        return
    half = records.num_rows // 2
    yield from _pieces(records.slice(0, half), bytes_max)
    yield from _pieces(records.slice(half), bytes_max)


Event = tuple[RequestStream, Any]  # a response, or the `BusError` that ended the stream


class StampedWriter:
    """The records of one producer under one epoch: those of a partition have sequences from 0 on, in the order in which
    they are sent, and are appended in it, each once. For one thread. `close` gives up what is not acknowledged."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, *, producer_id: int, producer_epoch: int) -> None:
        self._cluster = cluster
        self._config = config
        self._encoder = PartEncoder(config)
        self._pool = BufferPool(sys.maxsize, OwnLock())  # it counts; `send` waits
        self._sender = Sender(
            cluster.metadata, config, self._pool, backoff_ms=cluster.backoff.ms, given=(producer_id, producer_epoch)
        )
        self._streams: dict[Connection, RequestStream] = {}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._progress_ms = 0.0  # when something was acknowledged, or there was nothing that could be
        self._no_metadata: BusError | None = None  # why leaders were not found, the last time

    def partition_count(self, topic: str) -> int:
        """Waits for a broker. Raises `BusError`."""
        deadline_ms = monotonic_ms() + self._config.delivery_timeout_ms
        return len(self._cluster.wait_topic(topic, deadline_ms=deadline_ms).partitions)

    @property
    def unacknowledged_bytes(self) -> int:
        return self._pool.total_bytes - self._pool.available_bytes

    def send(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        """Returns when there is room for more. `records` has the columns of a produce request, and one row at least;
        they follow those that were sent to the partition before. Raises the `BusError` that no repetition helps
        against, of these records or of earlier ones."""
        if not self.unacknowledged_bytes:
            self._progress_ms = monotonic_ms()
        payload = self._encoder.pack(records)
        size_bytes = payload[0].size
        chunk = RunChunk(
            BatchFuture(1),
            0,
            payload,
            partition=partition,
            record_count=records.num_rows,
            size_bytes=size_bytes,
            timestamp_ms=None,
            deadline_ms=math.inf,  # see `_check_patience`
        )
        self._pool.try_take(size_bytes)
        self._sender.take_in(partition.topic, [(partition.partition, chunk)], monotonic_ms())
        self._carry_out()
        # One part is always admitted, however large.
        limit = max(self._config.buffer_memory, size_bytes)
        self._work(lambda: self.unacknowledged_bytes <= limit)

    def flush(self) -> None:
        """Returns when all records are in the log, committed. Raises as `send`."""
        self._work(lambda: not self.unacknowledged_bytes)

    def close(self) -> None:
        for connection, stream in self._streams.items():
            if connection.requests:
                stream.cut("the writer was closed")
            else:
                stream.finish()
        self._streams.clear()

    # ------------------------------------------------------------ the work

    def _work(self, is_enough: Callable[[], bool]) -> None:
        while True:
            self._take_events()
            self._sender.tick(monotonic_ms())
            self._carry_out()
            self._take_settled()
            if is_enough():
                return
            self._check_patience()
            self._wait()

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self._take(*event)

    def _wait(self) -> None:
        until_ms = min(self._sender.agenda.wakes_at_ms, self._progress_ms + self._config.delivery_timeout_ms + 1)
        try:
            event = self._events.get(timeout=max(0.0, until_ms - monotonic_ms()) / 1000)
        except queue.Empty:
            return
        self._take(*event)

    def _take(self, stream: RequestStream, what: Any) -> None:
        connection = self._sender.connections.by_address.get(stream.address)
        if connection is None or self._streams.get(connection) is not stream:
            return  # of a stream that was given up
        if isinstance(what, BusError):
            del self._streams[connection]
            self._sender.on_end(connection, what, monotonic_ms())
        else:
            answers = decode_produced(what.partitions)
            try:
                self._sender.on_answer(connection, what.correlation_id, what.throttle_time_ms, answers, monotonic_ms())
            except ValueError as error:
                stream.cut(f"an answer of {stream.address} made no sense: {error}")
        self._carry_out()  # before the next event, which may be the end of the stream

    def _take_settled(self) -> None:
        """Raises the first failure: nothing is sent after it."""
        settled = self._sender.queues.settled
        while settled:
            chunk = settled.popleft()
            if chunk.failure is not None:
                self._cluster.metadata.forget([chunk.partition.topic])
                raise BusError(chunk.failure.code, f"{chunk.partition}: {chunk.failure.message}")
            self._progress_ms = monotonic_ms()

    def _check_patience(self) -> None:
        """Fails when nothing has been acknowledged for too long."""
        patience_ms = self._config.delivery_timeout_ms
        if monotonic_ms() - self._progress_ms <= patience_ms:
            return
        refusals = [lane.last_failure for lane in self._sender.queues.active if lane.last_failure is not None]
        why = next((str(refusal) for refusal in [*refusals, self._no_metadata] if refusal is not None), "no answer")
        raise BusError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"nothing was acknowledged for {patience_ms / 1000:g} s (delivery.timeout.ms); the last refusal: {why}",
        )

    # ------------------------------------------------------------ what the sender wants

    def _carry_out(self) -> None:
        instructions = self._sender.agenda.instructions
        while instructions:
            match instructions.popleft():
                case Open(address):
                    self._open(address)
                case Send(connection, request):
                    self._streams[connection].send(self._encoder.encode(request))
                case Cut(connection, reason):
                    self._streams[connection].cut(reason, is_late=True)
                case RefreshTopics(topics):
                    self._sender.on_refreshed({topic: self._refresh(topic) for topic in topics}, monotonic_ms())
                case Wake():
                    pass  # each round has a tick
                case errand:
                    raise AssertionError(f"expected no question for an identity, which is given, found {errand}")

    def _open(self, address: str) -> None:
        def enqueue(stream: RequestStream, what: Any) -> None:
            self._events.put((stream, what))

        try:
            stream = RequestStream(self._cluster, address, "Produce", on_answer=enqueue, on_end=enqueue)
        except Exception as failure:  # it is tried again, as what a stream has lost
            self._no_metadata = BusError(ErrorCode.NETWORK_EXCEPTION, f"no stream to {address}: {failure!r}")
            self._sender.on_not_opened(address, monotonic_ms())
        else:
            self._streams[self._sender.on_opened(address, monotonic_ms())] = stream

    def _refresh(self, topic: str) -> BusError | None:
        try:
            self._cluster.refresh([topic])
        except BusError as error:
            self._no_metadata = error
            return error
        return None


_PRODUCER_IDS_MAX = 10_000
_clusters: dict[tuple[tuple[str, ...], ProducerConfig], Cluster] = {}
_topics_seen: set[tuple[tuple[str, ...], str]] = set()
_producer_ids: dict[tuple[tuple[str, ...], str], int] = {}


def open_writer(options: SinkOptions, producer_name: str, producer_epoch: int) -> StampedWriter:
    """Waits for a broker. Raises `BusError`."""
    cluster = _cluster(options)
    return StampedWriter(
        cluster,
        options.config,
        producer_id=_producer_id(options, cluster, producer_name),
        producer_epoch=producer_epoch,
    )


def partition_count(options: SinkOptions, topic: str) -> int:
    """Waits for a broker. Raises `BusError`."""
    deadline_ms = monotonic_ms() + options.config.delivery_timeout_ms
    return len(_cluster(options).wait_topic(topic, deadline_ms=deadline_ms).partitions)


def check_topic(options: SinkOptions, *, must_answer: bool) -> None:
    """That the topic of the options exists, asked once. If no broker answers, and none `must_answer`, tasks will wait.

    Raises `OptionError`.
    """
    if options.topic is None or (options.addresses, options.topic) in _topics_seen:
        return
    try:
        _cluster(options).refresh([options.topic])
    except BusError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise OptionError(f"topic: {error.message}; make it with: bus topics create {options.topic}") from None
        if not error.retriable:
            raise OptionError(f"topic: {error.message}") from None
        if must_answer:
            raise OptionError(f"bus.bootstrap.servers: {error.message}") from None
    else:
        _topics_seen.add((options.addresses, options.topic))


def forget_producer(options: SinkOptions, producer_name: str) -> None:
    """The broker does not know its id: the next task asks for it."""
    _producer_ids.pop((options.addresses, producer_name), None)


def _cluster(options: SinkOptions) -> Cluster:
    key = (options.addresses, options.config)
    if key not in _clusters:
        _clusters[key] = Cluster(options.addresses, options.config)
    return _clusters[key]


def _producer_id(options: SinkOptions, cluster: Cluster, name: str) -> int:
    known = _producer_ids.get((options.addresses, name))
    if known is not None:
        return known
    deadline_ms = monotonic_ms() + options.config.delivery_timeout_ms
    producer_id, _ = cluster.retry(lambda: init_producer_id(cluster, name, keep_epoch=True), deadline_ms=deadline_ms)
    if len(_producer_ids) >= _PRODUCER_IDS_MAX:
        _producer_ids.clear()
    _producer_ids[options.addresses, name] = producer_id
    return producer_id
