"""The engine's threads, streams to the brokers, and remote calls beside them.

One thread waits for time to pass (`Engine.tick`), another one, started when it is first needed, makes the calls that
block: metadata, identities, resuming. Every stream has a reading thread of its own (`RequestStream`). All are daemons:
a program that never closes its producer still ends; `watch_producer` delivers what was accepted before it does.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  Arrow imports it with pandas, with the first array: too late at the end
import math
import os
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from bus.client.config.clients import ProducerConfig
from bus.client.connection.cluster import Cluster
from bus.client.connection.metadata_cache import TopicInfo
from bus.client.connection.produce_requests import (
    Payload,
    WireCompression,
    decode_produced,
    encode_request,
    encode_share,
    init_producer_id,
    resume_producer,
)
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.batch import RowChunk
from bus.client.producer.connections import Errand, InitProducer, RefreshTopics, Request, Resume
from bus.client.producer.engine import Engine
from bus.client.producer.future import wait_all
from bus.client.producer.queue import Part
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition
from bus.platform.reentry import Flag, Turn, later, logger_of
from bus.records.log_schema import HEADERS_TYPE, TIMESTAMP_TYPE

logger = logger_of(__name__)


class ProduceStream:
    """An `engine.Stream` over gRPC."""

    def __init__(self, cluster: Cluster, address: str, engine: Engine, encoder: PartEncoder) -> None:
        self.address = address
        self._engine = engine
        self._encoder = encoder
        self._stream = RequestStream(cluster, address, "Produce", on_answer=self._answer, on_end=self._end)

    def send(self, request: Request) -> None:
        self._stream.send(self._encoder.encode(request))

    def cut(self, reason: str, *, is_late: bool = False) -> None:
        self._stream.cut(reason, is_late=is_late)

    def finish(self) -> None:
        self._stream.finish()

    def join(self, timeout: float | None) -> None:
        self._stream.join(timeout)

    def _answer(self, stream: RequestStream, response: Any) -> None:
        produced = decode_produced(response.partitions)
        self._engine.on_answer(self, response.correlation_id, response.throttle_time_ms, produced)

    def _end(self, stream: RequestStream, error: BusError) -> None:
        self._engine.on_end(self, error)


class ProducerThreads:
    """Runs one `Engine`. `close` fails what is left and ends everything."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._encoder = PartEncoder(config)
        self._wake = Flag()
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._runner: threading.Thread | None = None
        self._identity_lock = Turn()
        self._instance_id = uuid.uuid4().bytes if config.name else b""
        self.is_closed = False
        self.delivery_timeout_s = config.delivery_timeout_ms / 1000
        self.pack = self._encoder.pack
        self.engine = Engine(
            cluster.metadata,
            config,
            clock=monotonic_ms,
            backoff_ms=cluster.backoff.ms,
            open_stream=self._open_stream,
            run_errand=self._run_errand,
            wake=self._wake.set,
        )
        self._keeper = threading.Thread(target=self._keep, name="bus-producer", daemon=True)
        self._keeper.start()

    def _open_stream(self, address: str) -> ProduceStream:
        return ProduceStream(self._cluster, address, self.engine, self._encoder)

    def _keep(self) -> None:
        while True:
            self._wake.clear()
            if self.is_closed:  # asked after clearing: `close` sets both, the event last
                return
            try:
                wakes_at_ms = self.engine.tick()
            except Exception:  # the loop's edge: without this thread nothing would ever time out
                logger.exception("the producer's keeper failed; it goes on")
                wakes_at_ms = monotonic_ms() + 1_000
            self._wake.wait(None if wakes_at_ms == math.inf else max(0.0, wakes_at_ms - monotonic_ms()) / 1000)

    # ------------------------------------------------------------ remote calls

    def _run_errand(self, errand: Errand) -> None:
        if self._runner is None:
            runner = threading.Thread(target=self._run_errands, name="bus-producer-calls", daemon=True)
            runner.start()  # fails if there are too many threads: another errand tries again
            self._runner = runner
        self._errands.put(errand)

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                self._run(errand)
            except Exception as failure:  # the loop's edge: the sender waits for an answer
                logger.exception("a call of the producer failed")
                error = BusError(ErrorCode.NETWORK_EXCEPTION, f"the call failed: {failure!r}")
                self.engine.on_no_answer(errand, error)

    def _run(self, errand: Errand) -> None:
        match errand:
            case RefreshTopics(topics):
                self.engine.on_refreshed({topic: self._refresh(topic) for topic in topics})
            case InitProducer():
                with self._identity_lock:
                    if errand.producer_id is not None or self.engine.identity is None:
                        self._init_producer(errand)
            case Resume():
                self._resume(errand)

    def _refresh(self, topic: str) -> BusError | None:
        try:
            self._cluster.refresh([topic])
        except BusError as error:
            return error
        return None

    def _init_producer(self, errand: InitProducer, *, deadline_ms: float | None = None) -> None:
        """Get a producer id. With a `deadline_ms` a user waits for it: raises `BusError`."""
        try:
            producer_id, epoch = init_producer_id(
                self._cluster,
                self._config.name,
                errand.producer_id,
                errand.producer_epoch,
                instance_id=self._instance_id,
                deadline_ms=deadline_ms,
            )
        except BusError as error:
            if deadline_ms is not None:
                raise
            self.engine.on_no_identity(error)
        else:
            self.engine.on_identity(producer_id, epoch)

    def _resume(self, errand: Resume) -> None:
        partition = TopicPartition(errand.queue.topic, errand.queue.partition)
        identity = errand.producer_id, errand.producer_epoch
        try:
            end = resume_producer(self._cluster, errand.address, identity, partition, errand.topic_id)
        except BusError as error:
            self.engine.on_not_resumed(errand, error)
        else:
            self.engine.on_resumed(
                errand, last_epoch=end.last_epoch, last_sequence=end.last_sequence, version=end.version
            )

    def last_sequence(self, info: TopicInfo, partition: int, deadline_ms: float) -> int | None:
        """Return the last sequence of this producer in any of its epochs; waits for an identity and a leader until
        `deadline_ms`."""
        known: TopicInfo | None = info

        def ask() -> int | None:
            nonlocal known
            topic = known or self._cluster.refresh([info.name], deadline_ms=deadline_ms)[info.name]
            known = None  # a second attempt begins with fresh metadata
            address = self._cluster.metadata.leader_address(topic, partition)
            identity = self.engine.identity or self._new_identity(deadline_ms)
            place = TopicPartition(topic.name, partition)
            if address is None:
                raise BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader")
            end = resume_producer(self._cluster, address, identity, place, topic.topic_id, deadline_ms=deadline_ms)
            return None if end.last_sequence < 0 else end.last_sequence

        return self._cluster.retry(ask, deadline_ms=deadline_ms)

    def _new_identity(self, deadline_ms: float) -> tuple[int, int]:
        """The first one; the sender's own question for it may come first, or at the same time."""
        if not self._identity_lock.acquire(timeout=max(0.0, deadline_ms - monotonic_ms()) / 1000):
            raise BusError(ErrorCode.REQUEST_TIMED_OUT, "InitProducerId: no answer in time")
        try:
            if self.engine.identity is None:
                self._init_producer(InitProducer(None, None), deadline_ms=deadline_ms)
        finally:
            self._identity_lock.release()
        identity = self.engine.identity
        assert identity is not None, "an identity was given"
        return identity

    # ------------------------------------------------------------ the end

    def close(self, error: BusError, *, timeout_s: float) -> int:
        """Fail what is not settled with `error`; how many records that were. Safe to repeat. An interrupt ends it at
        once, and leaves nothing that waits."""
        ends_at = time.monotonic() + timeout_s
        self.is_closed = True
        streams: list[Any] = []
        try:
            failed, streams = self.engine.close(error)
            for stream in streams:
                stream.join(max(0.1, ends_at - time.monotonic()))
        finally:
            self._errands.put(None)
            self._wake.set()
            self._cluster.close()  # ends the calls that no answer comes to
            self.engine.announce()  # results that an interrupt left unannounced
        for thread in (*streams, self._keeper, self._runner):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.1, ends_at - time.monotonic()))
        return failed


_KEY, _VALUE = pa.field("key", pa.binary()), pa.field("value", pa.binary())
_HEADERS, _TIMESTAMP = pa.field("headers", HEADERS_TYPE), pa.field("timestamp", TIMESTAMP_TYPE)
_VALUE_ONLY = pa.schema([_VALUE])


class PartEncoder:
    """Parts of partitions as requests: rows as columns, each part encoded once, however often it is sent."""

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


_EXIT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0  # the time for threads and streams to end, after all records have their outcome
_HURRIED_CLOSE_S = 0.2  # the same, beyond the time-out that the caller gave

_producers: weakref.WeakSet[Any] = weakref.WeakSet()
_finalizers: weakref.WeakKeyDictionary[Any, weakref.finalize[[ProducerThreads], Any]] = weakref.WeakKeyDictionary()
_open_threads: set[ProducerThreads] = set()
_inherited: list[ProducerThreads] = []  # the parent's threads: kept, because destroying a connection would send on it


def watch_producer(producer: Any, threads: ProducerThreads) -> None:
    """Deliver what `producer` accepted, or say that it was not delivered, where the program never closes it. Its
    threads must not refer to it.

    At the end of the interpreter every open producer flushes for as long as its delivery.timeout.ms allows, all of them
    for ten seconds at most, and reports what it could not deliver. A producer that is garbage flushes in the
    background. After a fork it belongs to the parent: the child's copy refuses every call, sends nothing a second time,
    and leaves the parent's connections alone even when it is garbage.
    """
    _producers.add(producer)
    _open_threads.add(threads)
    finalizer = weakref.finalize(producer, _end_in_background, threads)
    finalizer.atexit = False
    _finalizers[producer] = finalizer


def forget_producer(producer: Any) -> None:
    """Watch it no longer: it was closed."""
    _producers.discard(producer)
    finalizer = _finalizers.pop(producer, None)
    if finalizer is not None:
        finalizer.detach()


def flush_and_end(threads: ProducerThreads, timeout: float | None) -> None:
    """Flush for `timeout` seconds, then end the threads. What is left fails with REQUEST_TIMED_OUT."""
    try:
        unsettled = threads.engine.start_flush()
        try:
            wait_all(unsettled, timeout)
        except TimeoutError:
            pass  # the futures tell
        finally:
            threads.engine.end_flush()
    finally:
        _open_threads.discard(threads)
        within = "" if timeout is None else f" within {timeout:g} s"
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, f"the producer was closed before this was acknowledged{within}")
        orderly_s = _CLOSE_TIMEOUT_S if timeout is None else min(_CLOSE_TIMEOUT_S, timeout + _HURRIED_CLOSE_S)
        threads.close(error, timeout_s=orderly_s)


def _failed_count(threads: ProducerThreads) -> int:
    """The number of records that have ever failed."""
    return int(threads.engine.metrics.snapshot(monotonic_ms())["record-error-total"])


def _end_in_background(threads: ProducerThreads) -> None:
    """Memory may be collected anywhere, also in a step of a client: nothing is waited for here."""
    later(_begin_end, threads)


def _begin_end(threads: ProducerThreads) -> None:
    thread = threading.Thread(
        target=_end_and_report, args=(threads, None, _failed_count(threads)), name="bus-producer-end", daemon=True
    )
    thread.start()


def _end_and_report(threads: ProducerThreads, timeout: float | None, failed_before: int) -> None:
    flush_and_end(threads, timeout)
    failed = _failed_count(threads) - failed_before
    if failed:
        logger.error("a producer that was never closed could not deliver %s", count_of(failed, "record"))


@atexit.register
def _end_all() -> None:
    until = time.monotonic() + _EXIT_TIMEOUT_S
    failed_before = {threads: _failed_count(threads) for threads in list(_open_threads)}
    for threads in failed_before:
        threads.engine.start_flush()  # all of them now: they share the time
    for threads, failed in failed_before.items():
        _end_and_report(threads, max(0.0, min(threads.delivery_timeout_s, until - time.monotonic())), failed)


def _disown_all() -> None:
    for finalizer in list(_finalizers.values()):
        finalizer.detach()
    _finalizers.clear()
    _inherited.extend(_open_threads)
    _open_threads.clear()
    for producer in list(_producers):
        producer.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
