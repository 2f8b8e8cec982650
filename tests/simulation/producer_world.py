"""The producer's engine against a simulated broker and network, under virtual time.

The engine is the real one (`Sender`, its queues, batches and futures); threads, gRPC and the clock are replaced. One
seed decides everything that happens, so a failing seed can be run again.

Fault model. A stream delivers requests in order, each after a delay of its own, or it breaks: then what was on its way
may still arrive, late, after the requests of the next stream (but not in a restarted broker: connections end with the
process). A request may arrive twice. Answers are delayed, or lost with their stream. The broker may answer that it is
busy, that it is no leader, that the disk failed (before or after the commit), or not at all; it may restart, which
forgets all but the log. Records may be refused for good.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bus.client.cluster import PartitionLeader, TopicInfo
from bus.client.configs import ProducerConfig, parse_config
from bus.client.produce_batch import RECORD_OVERHEAD_BYTES, RecordFuture
from bus.client.sender import Errand, InitProducer, RefreshTopics, Request, Resume, Sender
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import ProducerStamp, sequence_after

ADDRESS = "broker:1"
TOPIC = "t"


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


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Row:
    value: int
    stamp: ProducerStamp | None  # of this record


@dataclass
class Sent:
    """One partition's share of a request, as it was when it was sent."""

    partition: int
    stamp: ProducerStamp | None
    values: list[int]


@dataclass
class SimulatedLog:
    """One partition: rows for ever, and what its leader keeps in memory."""

    rows: list[Row] = field(default_factory=list)
    fences: dict[int, int] = field(default_factory=dict)  # producer id -> lowest epoch that may append

    def last(self, producer_id: int) -> ProducerStamp | None:
        stamps = [row.stamp for row in self.rows if row.stamp is not None and row.stamp.producer_id == producer_id]
        return stamps[-1] if stamps else None

    def offset_of(self, stamp: ProducerStamp) -> int | None:
        return next((offset for offset, row in enumerate(self.rows) if row.stamp == stamp), None)


class World:
    def __init__(self, seed: int, faults: Faults, *, partitions: int = 2, **configs: Any) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.logs = [SimulatedLog() for _ in range(partitions)]
        self.life = 0  # of the broker
        self._producer_ids = itertools.count()
        self.names: dict[str, tuple[int, int]] = {}
        self.streams: list[SimulatedStream] = []
        self.is_healed = False
        self.config = parse_config(ProducerConfig, {"linger_ms": 2, "batch_size": 200, **configs})
        self._tick_at = 0.0
        self.sender = Sender(
            self,
            self.config,
            clock=lambda: self.now,
            backoff_s=lambda failures: min(0.1, 0.01 * 2**failures) * self.random.uniform(0.8, 1.2),
            open_stream=self._open_stream,
            run_errand=self._run_errand,
            wake=lambda: self.at(0.0, self._tick),
        )
        self.futures: list[tuple[int, int, RecordFuture]] = []  # value, partition that was asked for, future
        self.resolved: dict[int, int] = defaultdict(int)
        leaders = tuple(PartitionLeader(number, 0, 0, 0, "") for number in range(partitions))
        self.info = TopicInfo(TOPIC, "topic-id", leaders, 0.0)
        self.at(0.0, self._tick)

    # ------------------------------------------------------------ time and chance

    def at(self, delay: float, event: Callable[[], None]) -> None:
        self.at_time(self.now + delay, event)

    def at_time(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def chance(self, one_in: int) -> bool:
        return one_in > 0 and not self.is_healed and self.random.randrange(one_in) == 0

    def delay(self) -> float:
        return self.random.choice((0.0, 0.001, 0.002, 0.01, self.random.uniform(0, 0.1)))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def _tick(self) -> None:
        next_at = self.sender.tick()
        self._tick_at = next_at
        if next_at < 1e9:
            self.at(max(0.0, next_at - self.now), lambda: self._tick() if next_at == self._tick_at else None)

    # ------------------------------------------------------------ the user

    def send(self, value: int, partition: int) -> None:
        data = b"%d" % value
        with self.sender.lock:
            future = self.sender.add(
                TOPIC,
                data,
                None,
                None,
                partition,
                0,
                size_bytes=RECORD_OVERHEAD_BYTES + len(data),
                partition_count=len(self.logs),
                deadline=self.now,
            )
            assert future is not None
        self.sender.announce()
        self.futures.append((value, partition, future))
        future.add_done_callback(lambda _: self._count(value))

    def _count(self, value: int) -> None:
        self.resolved[value] += 1

    def settle(self) -> None:
        """The network heals; everything gets its outcome."""
        self.is_healed = True
        self.run(self.now + 3 * self.config.delivery_timeout_ms / 1000)

    # ------------------------------------------------------------ metadata

    def cached_topic(self, name: str) -> TopicInfo | None:
        return self.info

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        return ADDRESS

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    # ------------------------------------------------------------ calls beside the streams

    def _run_errand(self, errand: Errand) -> None:
        self.at(self.delay(), lambda: self._serve_errand(errand))

    def _serve_errand(self, errand: Errand) -> None:
        lost = BusError(ErrorCode.NETWORK_EXCEPTION, "lost")
        is_lost_before, is_lost_after = self.chance(self.faults.lost_call), self.chance(self.faults.lost_call)
        match errand:
            case RefreshTopics(topics):
                self.at(self.delay(), lambda: self.sender.on_refreshed(dict.fromkeys(topics)))
            case InitProducer():
                identity = (-1, -1) if is_lost_before else (next(self._producer_ids), 0)
                if is_lost_before or is_lost_after:
                    self.at(self.delay(), lambda: self.sender.on_no_identity(lost))
                else:
                    self.at(self.delay(), lambda: self.sender.on_identity(*identity))
            case Resume(queue, _, _, producer_id, epoch):
                log = self.logs[queue.partition]
                last = None
                if not is_lost_before:
                    log.fences[producer_id] = max(epoch, log.fences.get(producer_id, 0))
                    last = log.last(producer_id)
                if is_lost_before or is_lost_after:
                    self.at(self.delay(), lambda: self.sender.on_not_resumed(errand, lost))
                    return
                found = (-1, -1) if last is None else (last.producer_epoch, last.base_sequence)
                answer = {"last_epoch": found[0], "last_sequence": found[1], "version": len(log.rows)}
                self.at(self.delay(), lambda: self.sender.on_resumed(errand, **answer))

    # ------------------------------------------------------------ the broker

    def _open_stream(self, address: str) -> SimulatedStream:
        stream = SimulatedStream(self)
        self.streams.append(stream)
        return stream

    def restart(self) -> None:
        """Memory and connections are gone; the log stays."""
        self.life += 1
        for log in self.logs:
            log.fences.clear()
        for stream in self.streams:
            stream.break_off(may_arrive_late=False)

    def produce(self, sent: Sent) -> pb.PartitionProduceResponse:
        """By the contract of bus.proto, from the rows alone."""
        if self.chance(self.faults.busy):
            return _refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if self.chance(self.faults.disk_before):
            return _refusal(ErrorCode.KAFKA_STORAGE_ERROR)
        answer = self._append(sent)
        if self.chance(self.faults.disk_after):
            return _refusal(ErrorCode.KAFKA_STORAGE_ERROR)
        return answer

    def _append(self, sent: Sent) -> pb.PartitionProduceResponse:
        log, stamp = self.logs[sent.partition], sent.stamp
        if stamp is not None:
            last = log.last(stamp.producer_id)
            fence = max(log.fences.get(stamp.producer_id, 0), last.producer_epoch if last else 0)
            if stamp.producer_epoch < fence:
                return _refusal(ErrorCode.INVALID_PRODUCER_EPOCH)
            known = log.offset_of(stamp)
            if known is not None:
                return pb.PartitionProduceResponse(base_offset=known, version=known, log_append_time_ms=-1)
            follows = last is not None and stamp.base_sequence == sequence_after(last.base_sequence, 1)
            begins = stamp.base_sequence == 0 and (last is None or stamp.producer_epoch > last.producer_epoch)
            if not follows and not begins:
                return _refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        refused = [index for index, value in enumerate(sent.values) if self.is_refused(value)]
        if refused:
            answer = _refusal(ErrorCode.MESSAGE_TOO_LARGE)
            answer.record_errors.extend(pb.RecordError(index=index, message="large") for index in refused)
            return answer
        base_offset = len(log.rows)
        for position, value in enumerate(sent.values):
            log.rows.append(Row(value, stamp and _advance(stamp, position)))
        return pb.PartitionProduceResponse(base_offset=base_offset, version=len(log.rows), log_append_time_ms=-1)

    def is_refused(self, value: int) -> bool:
        """The same at every attempt."""
        return self.faults.refused_record > 0 and value % self.faults.refused_record == 7


class SimulatedStream:
    def __init__(self, world: World) -> None:
        self.address = ADDRESS
        self._world = world
        self._life = world.life
        self._arrives_at = 0.0  # of the last request
        self._answers_at = 0.0
        self._is_over = False
        self._is_silent = False

    def send(self, request: Request) -> None:
        world = self._world
        for part in request.parts:
            if part.payload is None:  # as the encoder does
                for chunk in part.chunks:
                    chunk.to_arrow()  # type: ignore[attr-defined]
                values = [int(value) for chunk in part.chunks for value in chunk.values.to_pylist()]  # type: ignore[attr-defined]
                part.payload = (values, 0, 0)
        shares = [Sent(part.queue.partition, part.stamp, part.payload[0]) for part in request.parts]
        self._arrives_at = max(self._arrives_at, world.now + world.delay())
        world.at_time(self._arrives_at, lambda: self._arrive(request.correlation_id, shares))
        if world.chance(world.faults.doubled_request):
            world.at_time(self._arrives_at + world.delay(), lambda: self._arrive_again(shares))
        if world.chance(world.faults.broken_stream):
            world.at(world.delay(), lambda: self.break_off(may_arrive_late=True))
        if world.chance(world.faults.restart):
            world.at(world.delay(), world.restart)
        self._is_silent = self._is_silent or world.chance(world.faults.silent_stream)

    def _arrive(self, correlation_id: int, shares: list[Sent]) -> None:
        world = self._world
        if self._life != world.life:
            return
        if self._is_over:
            if world.chance(world.faults.late_request):
                world.at(world.delay(), lambda: self._arrive_again(shares))
            return
        answers = [world.produce(share) for share in shares]
        self._answers_at = max(self._answers_at, world.now + world.delay())
        if not self._is_silent:
            world.at_time(self._answers_at, lambda: self._answer(correlation_id, answers))

    def _arrive_again(self, shares: list[Sent]) -> None:
        if self._life == self._world.life:
            for share in shares:
                self._world.produce(share)

    def _answer(self, correlation_id: int, answers: list[pb.PartitionProduceResponse]) -> None:
        if not self._is_over:
            is_busy = any(answer.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED for answer in answers)
            self._world.sender.on_answer(self, correlation_id, 20 if is_busy else 0, answers)

    def break_off(self, *, may_arrive_late: bool) -> None:
        if not self._is_over:
            self._is_over = True
            error = BusError(ErrorCode.NETWORK_EXCEPTION, "broken")
            self._world.at(self._world.delay(), lambda: self._world.sender.on_end(self, error))

    def cut(self, reason: str) -> None:
        self.break_off(may_arrive_late=True)

    def finish(self) -> None:
        self._is_over = True

    def join(self, timeout: float | None) -> None:
        pass


def _advance(stamp: ProducerStamp, count: int) -> ProducerStamp:
    return ProducerStamp(stamp.producer_id, stamp.producer_epoch, sequence_after(stamp.base_sequence, count))


def _refusal(code: ErrorCode) -> pb.PartitionProduceResponse:
    return pb.PartitionProduceResponse(
        error_code=int(code), error_message="simulated", base_offset=-1, version=-1, log_append_time_ms=-1
    )
