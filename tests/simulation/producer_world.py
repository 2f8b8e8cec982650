"""The producer's engine against simulated brokers and a network, under virtual time.

The engine is the real one (`Engine`, its queues, batches and futures); threads, gRPC and the clock are replaced. One
seed decides everything that happens, so a failing seed can be run again.

Fault model. A stream delivers requests in order, each after a delay of its own, or it breaks: then what was on its way
may still arrive, late, after the requests of the next stream (but not in a restarted broker: connections end with the
process). A request may arrive twice. Answers are delayed, or lost with their stream. A broker may answer that it is
busy, that it is no leader, that the disk failed (before or after the commit), or not at all; it may restart, which
forgets all but the log. Partitions move between two brokers, and clients learn of it late. A broker that lags behind
may not know the topic for a while. Records may be refused for good. In the client itself time passes while a stream
is opened, and streams that cannot be opened, calls that cannot be begun and requests that cannot be sent are tried
again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import LeaderHint, PartitionLeader, TopicInfo
from bus.client.connection.produce_requests import Produced
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES, RecordFuture
from bus.client.producer.connections import Errand, InitProducer, RefreshTopics, Request, Resume
from bus.client.producer.engine import Engine
from bus.errors import BusError, ErrorCode
from tests.simulation.broker_model import Sent, SimulatedCluster, refusal
from tests.support.murmur2 import partition_of_key

ADDRESSES = ("broker:1", "broker:2")
TOPIC = "t"
# A keeper that is woken so often at one instant has lost its way.
_TICKS_AT_ONCE_MAX = 1_000


@dataclass(frozen=True)
class Faults:
    """Chances of one in so many; 0: never."""

    broken_stream: int = 12
    silent_stream: int = 60
    doubled_request: int = 15
    late_request: int = 3  # of those that were on a stream when it broke
    busy: int = 25
    disk_before: int = 20
    disk_after: int = 20
    restart: int = 60
    refused_record: int = 40
    lost_call: int = 6  # of InitProducerId and ResumeProducer
    slow_opening: int = 4
    failed_opening: int = 6
    failed_begin: int = 12  # of a call beside the streams
    failed_send: int = 30
    moved_leader: int = 0
    unknown_topic: int = 0  # of the answers to a question for metadata


NO_FAULTS = Faults(**{each.name: 0 for each in fields(Faults)})


class World:
    """One client to begin with, and its calls by short names."""

    def __init__(self, seed: int, faults: Faults, *, partitions: int = 2, **configs: Any) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.cluster = SimulatedCluster(ADDRESSES, partitions, self.is_refused)
        self.logs = self.cluster.logs
        self.lives = dict.fromkeys(ADDRESSES, 0)
        self.streams: list[SimulatedStream] = []
        self.is_healed = False
        self.client = Client(self, **configs)
        self.engine = self.client.engine
        self.futures = self.client.futures
        self.resolved = self.client.resolved
        self.send = self.client.send

    # ------------------------------------------------------------ time and chance

    def at(self, delay_ms: float, event: Callable[[], None]) -> None:
        self.at_time(self.now_ms + delay_ms, event)

    def at_time(self, at_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._order), event))

    def chance(self, one_in: int) -> bool:
        return one_in > 0 and not self.is_healed and self.random.randrange(one_in) == 0

    def delay_ms(self) -> float:
        return self.random.choice((0.0, 1.0, 2.0, 10.0, self.random.uniform(0, 100)))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            at_ms, _, event = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, at_ms)  # an event may have taken time
            event()
        self.now_ms = max(self.now_ms, until_ms)

    def settle(self) -> None:
        """The network heals; everything gets its outcome."""
        self.is_healed = True
        self.run(self.now_ms + 3 * self.client.config.delivery_timeout_ms)

    def is_refused(self, value: int) -> bool:
        """The same at every attempt."""
        return self.faults.refused_record > 0 and value % self.faults.refused_record == 7

    # ------------------------------------------------------------ brokers

    def restart(self, address: str) -> None:
        """Memory and connections are gone; the log stays."""
        self.lives[address] += 1
        self.cluster.restart(address)
        for stream in self.streams:
            if stream.address == address:
                stream.break_off()

    def produce(self, address: str, sent: Sent) -> Produced:
        if self.chance(self.faults.busy):
            return refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if self.chance(self.faults.disk_before):
            return refusal(ErrorCode.KAFKA_STORAGE_ERROR)
        answer = self.cluster.append(address, sent)
        if self.chance(self.faults.disk_after):
            return refusal(ErrorCode.KAFKA_STORAGE_ERROR)
        is_moved = answer.error is not None and answer.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        if is_moved and self.random.randrange(3):
            led = self.logs[sent.partition].led[-3:]
            epoch, leader = self.random.choice(led)  # of a broker that may lag behind
            return answer._replace(leader=LeaderHint(0, epoch, leader))
        return answer


class Client:
    """A program with one producer."""

    def __init__(self, world: World, **configs: Any) -> None:
        self._world = world
        self.config = parse_config(ProducerConfig, {"linger_ms": 2, "batch_size": 200, **configs})
        self._tick_at_ms = 0.0
        self._ticked_at_ms = -1.0
        self._ticks_at_once = 0
        self._known = [log.led[-1] for log in world.logs]  # leader epochs and leaders, as far as it knows
        self.engine = Engine(
            self,
            self.config,
            clock=lambda: world.now_ms,
            backoff_ms=lambda failures: min(100, 10 * 2**failures) * world.random.uniform(0.8, 1.2),
            open_stream=self._open_stream,
            run_errand=self._run_errand,
            wake=lambda: world.at(0.0, self._tick),
        )
        self.futures: list[tuple[int, int, RecordFuture]] = []  # value, partition, future
        self.resolved: dict[int, int] = defaultdict(int)
        leaders = tuple(PartitionLeader(number, 0, 0, 0, "") for number in range(len(world.logs)))
        self._info = TopicInfo(TOPIC, "topic-id", leaders, 0.0)
        world.at(0.0, self._tick)

    def _tick(self) -> None:
        world = self._world
        self._ticks_at_once = self._ticks_at_once + 1 if world.now_ms == self._ticked_at_ms else 0
        self._ticked_at_ms = world.now_ms
        assert self._ticks_at_once < _TICKS_AT_ONCE_MAX, f"ticks without end at {world.now_ms} ms"
        next_at_ms = self._tick_at_ms = self.engine.tick()
        if next_at_ms < 1e12:
            tick_at_ms = max(world.now_ms, next_at_ms)
            world.at_time(tick_at_ms, lambda: self._tick() if next_at_ms == self._tick_at_ms else None)

    def _open_stream(self, address: str) -> SimulatedStream:
        world = self._world
        if world.chance(world.faults.slow_opening):
            world.now_ms += world.delay_ms()
        if world.chance(world.faults.failed_opening):
            raise RuntimeError("simulated: no more threads")
        stream = SimulatedStream(world, self.engine, address)
        world.streams.append(stream)
        return stream

    def _run_errand(self, errand: Errand) -> None:
        world = self._world
        if world.chance(world.faults.failed_begin):
            raise RuntimeError("simulated: no more threads")
        world.at(world.delay_ms(), lambda: self._serve(errand))

    # ------------------------------------------------------------ the user

    def send(self, value: int, partition: int | None, key: bytes | None = None) -> None:
        """The record's time is its value. Raises what `send` raises."""
        width = self._world.random.choice((1, 1, 1, 120))  # a large one may not fit into the batch that is open
        data = b"%0*d" % (width, value)
        try:
            with self.engine.lock:
                record = (data, key, None, partition, value, RECORD_OVERHEAD_BYTES + len(data) + len(key or b""))
                future = self.engine.add(TOPIC, record, len(self._known), deadline_ms=self._world.now_ms)
        finally:
            self.engine.announce()
        assert future is not None
        if partition is None:
            assert key is not None
            partition = partition_of_key(key, len(self._known))
        self.futures.append((value, partition, future))
        future.add_done_callback(lambda _: self._count(value))

    def _count(self, value: int) -> None:
        self.resolved[value] += 1

    # ------------------------------------------------------------ metadata

    def topic(self, name: str) -> TopicInfo | None:
        return self._info

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        return self._known[partition][1]

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> None:
        self._known[partition] = max(self._known[partition], (hint.leader_epoch, hint.address))

    # ------------------------------------------------------------ calls beside the streams

    def _serve(self, errand: Errand) -> None:
        world = self._world
        is_lost_before, is_lost_after = world.chance(world.faults.lost_call), world.chance(world.faults.lost_call)
        answer = self._answer_to(errand) if not is_lost_before else None
        if is_lost_before or is_lost_after:
            answer = ErrorCode.NETWORK_EXCEPTION
        world.at(world.delay_ms(), lambda: self._take_answer(errand, answer))

    def _answer_to(self, errand: Errand) -> Any:
        world = self._world
        match errand:
            case RefreshTopics():
                if world.chance(world.faults.unknown_topic):
                    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return [world.random.choice(log.led[-2:]) for log in world.logs]  # of a broker that may lag behind
            case InitProducer(producer_id, epoch):
                return world.cluster.init_producer(self.config.name, producer_id, epoch)
            case Resume(queue, address, _, producer_id, epoch):
                return world.cluster.resume(address, queue.partition, producer_id, epoch)

    def _take_answer(self, errand: Errand, answer: Any) -> None:
        error = BusError(answer, "simulated") if isinstance(answer, ErrorCode) else None
        match errand:
            case RefreshTopics(topics):
                if error is None:
                    self._known = [max(known, told) for known, told in zip(self._known, answer, strict=True)]
                self.engine.on_refreshed(dict.fromkeys(topics, error))
            case InitProducer():
                if error is None:
                    self.engine.on_identity(*answer)
                else:
                    self.engine.on_no_identity(error)
            case Resume():
                if error is None:
                    self.engine.on_resumed(
                        errand,
                        last_epoch=answer.last_epoch,
                        last_sequence=answer.last_sequence,
                        version=answer.version,
                    )
                else:
                    self.engine.on_not_resumed(errand, error)


class SimulatedStream:
    def __init__(self, world: World, engine: Engine, address: str) -> None:
        self.address = address
        self._world = world
        self._engine = engine
        self._life = world.lives[address]
        self._arrives_at_ms = 0.0  # of the last request
        self._answers_at_ms = 0.0
        self._is_over = False
        self._is_silent = False

    def send(self, request: Request) -> None:
        world = self._world
        if world.chance(world.faults.failed_send):
            raise MemoryError("simulated")
        for part in request.parts:
            if part.payload is None:  # as the encoder does
                part.payload = (_records_of(part.chunks), 0, 0)
        shares = [Sent(part.queue.partition, part.stamp, part.payload[0]) for part in request.parts]
        self._arrives_at_ms = max(self._arrives_at_ms, world.now_ms + world.delay_ms())
        world.at_time(self._arrives_at_ms, lambda: self._arrive(request.correlation_id, shares))
        if world.chance(world.faults.doubled_request):
            world.at_time(self._arrives_at_ms + world.delay_ms(), lambda: self._arrive_again(shares))
        if world.chance(world.faults.broken_stream):
            world.at(world.delay_ms(), self.break_off)
        if world.chance(world.faults.restart):
            world.at(world.delay_ms(), lambda: world.restart(self.address))
        if world.chance(world.faults.moved_leader):
            partition, address = world.random.randrange(len(world.logs)), world.random.choice(ADDRESSES)
            world.at(world.delay_ms(), lambda: world.cluster.move(partition, address))
        self._is_silent = self._is_silent or world.chance(world.faults.silent_stream)

    def _arrive(self, correlation_id: int, shares: list[Sent]) -> None:
        world = self._world
        if self._life != world.lives[self.address]:
            return
        if self._is_over:
            if world.chance(world.faults.late_request):
                world.at(world.delay_ms(), lambda: self._arrive_again(shares))
            return
        answers = [world.produce(self.address, share) for share in shares]
        self._answers_at_ms = max(self._answers_at_ms, world.now_ms + world.delay_ms())
        if not self._is_silent:
            world.at_time(self._answers_at_ms, lambda: self._answer(correlation_id, answers))

    def _arrive_again(self, shares: list[Sent]) -> None:
        if self._life == self._world.lives[self.address]:
            for share in shares:
                self._world.produce(self.address, share)

    def _answer(self, correlation_id: int, answers: list[Produced]) -> None:
        if not self._is_over:
            codes = [answer.error.code for answer in answers if answer.error is not None]
            is_busy = ErrorCode.THROTTLING_QUOTA_EXCEEDED in codes
            self._engine.on_answer(self, correlation_id, 20 if is_busy else 0, answers)

    def break_off(self) -> None:
        if not self._is_over:
            self._is_over = True
            error = BusError(ErrorCode.NETWORK_EXCEPTION, "broken")
            self._world.at(self._world.delay_ms(), lambda: self._engine.on_end(self, error))

    def cut(self, reason: str, *, is_late: bool = False) -> None:
        self.break_off()

    def finish(self) -> None:
        self._is_over = True

    def join(self, timeout: float | None) -> None:
        pass


def _records_of(chunks: list[Any]) -> list[tuple[int, int]]:
    records: list[tuple[int, int]] = []
    for chunk in chunks:
        chunk.to_arrow()
        records += zip(map(int, chunk.values.to_pylist()), map(int, chunk.times_ms), strict=True)
    return records
