"""What the engine asks of the world: threads, streams to the brokers, and the remote calls beside them.

One thread waits for time to pass (`Engine.tick`), another one, started when it is first needed, makes the calls that
block: metadata, identities, resuming. Every stream has a reading thread of its own (`RequestStream`). All are daemons:
a program that never closes its producer still ends; `exit_hooks` delivers what was accepted before it does.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from bus.client.config.parsing import ProducerConfig
from bus.client.connection.cluster import Cluster, TopicInfo, error_of
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import monotonic_ms
from bus.client.producer.engine import Engine
from bus.client.producer.sender import Errand, InitProducer, RefreshTopics, Request, Resume
from bus.client.producer.wire import PartEncoder
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

logger = logging.getLogger(__name__)


class ProduceStream:
    """An `engine.Stream` over gRPC."""

    def __init__(self, cluster: Cluster, address: str, engine: Engine, encoder: PartEncoder) -> None:
        self.address = address
        self._engine = engine
        self._encoder = encoder
        self._stream = RequestStream(cluster, address, "Produce", on_answer=self._answer, on_end=self._end)

    def send(self, request: Request) -> None:
        self._stream.send(self._encoder.encode(request))

    def cut(self, reason: str) -> None:
        self._stream.cut(reason)

    def finish(self) -> None:
        self._stream.finish()

    def join(self, timeout: float | None) -> None:
        self._stream.join(timeout)

    def _answer(self, stream: RequestStream, response: Any) -> None:
        self._engine.on_answer(self, response.correlation_id, response.throttle_time_ms, response.partitions)

    def _end(self, stream: RequestStream, error: BusError) -> None:
        self._engine.on_end(self, error)


class ProducerThreads:
    """Runs one `Engine`. `close` fails what is left and ends everything."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._encoder = PartEncoder(config)
        self._wake = threading.Event()
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._runner: threading.Thread | None = None
        self._identity_lock = threading.Lock()
        self.is_closed = False
        self.delivery_timeout_s = config.delivery_timeout_ms
        self.pack = self._encoder.pack
        self.engine = Engine(
            cluster,
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
        """With a `deadline_ms` a user waits for it: raises `BusError`."""
        request = pb.InitProducerIdRequest(
            name=self._config.name or "", producer_id=errand.producer_id, producer_epoch=errand.producer_epoch or 0
        )
        try:
            answer = self._cluster.call("InitProducerId", request, deadline_ms=deadline_ms)
            _check(answer)
        except BusError as error:
            if deadline_ms is not None:
                raise
            self.engine.on_no_identity(error)
        else:
            self.engine.on_identity(answer.producer_id, answer.producer_epoch)

    def _resume(self, errand: Resume) -> None:
        try:
            found = self.ask_where_it_ends(
                errand.address,
                errand.producer_id,
                errand.producer_epoch,
                [(errand.queue.topic, errand.queue.partition, errand.topic_id)],
            )[0]
        except BusError as error:
            self.engine.on_not_resumed(errand, error)
        else:
            self.engine.on_resumed(
                errand, last_epoch=found.last_epoch, last_sequence=found.last_sequence, version=found.version
            )

    def ask_where_it_ends(
        self,
        address: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int, str]],
        *,
        deadline_ms: float | None = None,
    ) -> Sequence[Any]:
        """ResumeProducer for partitions (topic, number, topic id) of one leader. Raises the first one's `BusError`."""
        request = pb.ResumeProducerRequest(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=[
                pb.ResumeProducerPartition(topic=topic, partition=partition, topic_id=topic_id)
                for topic, partition, topic_id in partitions
            ],
        )
        answers = self._cluster.call("ResumeProducer", request, address=address, deadline_ms=deadline_ms).partitions
        if len(answers) != len(partitions):
            raise BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"expected {len(partitions)} answers, found {len(answers)}")
        for answer in answers:
            _check(answer)
        return list(answers)

    def last_sequence(self, info: TopicInfo, partition: int, deadline_ms: float) -> int | None:
        """Of this producer, any epoch of it; waits for an identity and a leader until `deadline_ms`."""
        known: TopicInfo | None = info

        def ask() -> int | None:
            nonlocal known
            topic = known or self._cluster.refresh([info.name], deadline_ms=deadline_ms)[info.name]
            known = None  # a second attempt begins with fresh metadata
            address = self._cluster.leader_address(topic, partition)
            producer_id, epoch = self.engine.identity or self._new_identity(deadline_ms)
            if address is None:
                raise BusError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{partition} has no leader")
            asked = [(topic.name, partition, topic.topic_id)]
            found = self.ask_where_it_ends(address, producer_id, epoch, asked, deadline_ms=deadline_ms)[0]
            return None if found.last_sequence < 0 else int(found.last_sequence)

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
            self.engine.announce()  # what an interrupt left untold
        for thread in (*streams, self._keeper, self._runner):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.1, ends_at - time.monotonic()))
        return failed


def _check(answer: Any) -> None:
    if answer.error_code:
        raise error_of(answer.error_code, answer.error_message)
