"""A sender whose identity is given, as a task of Spark's is: in order, each part with its stamp until it is in the log,
and nothing is asked of the log."""

from __future__ import annotations

import math
import random
import sys
from collections import deque
from typing import Any

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import LeaderHint, PartitionLeader, TopicInfo, error_of
from bus.client.connection.produce_requests import Produced
from bus.client.producer.accumulator import BufferPool
from bus.client.producer.connections import Connection, Cut, Open, RefreshTopics, Request, Send, Wake
from bus.client.producer.future import BatchFuture, RunChunk
from bus.client.producer.queue import Part
from bus.client.producer.sender import Sender
from bus.errors import BusError, ErrorCode
from bus.model import ProducerStamp, TopicPartition
from bus.platform.reentry import OwnLock

LOST = BusError(ErrorCode.NETWORK_EXCEPTION, "the stream ended")
COUNT = 10  # records of a part


class Bench:
    """Each partition has a leader of its own, so a request has one part; its parts are told by partition and first
    sequence."""

    def __init__(self, *, in_flight_max: int = 5) -> None:
        config = parse_config(ProducerConfig, {"max_in_flight_requests_per_connection": in_flight_max})
        self.pool = BufferPool(sys.maxsize, OwnLock())
        self.sender = Sender(
            self, config, self.pool, backoff_ms=lambda failures: 1_000.0 * (1 + failures), given=(7, 3)
        )
        self.topic_id = "id"
        self._sent: list[tuple[int, int]] = []
        self.under_way: dict[int, deque[tuple[Connection, Request]]] = {0: deque(), 1: deque()}

    def topic(self, name: str) -> TopicInfo | None:
        return TopicInfo(name, self.topic_id, tuple(PartitionLeader(n, n, 0, 0, "") for n in range(2)), 0.0)

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        return f"leader {partition}"

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> None: ...

    def add(self, count: int, *partitions: int) -> Bench:
        for partition in partitions or (0,):
            for _ in range(count):
                chunk = RunChunk(
                    BatchFuture(1),
                    0,
                    (b"rows", 0, 4),
                    partition=TopicPartition("t", partition),
                    record_count=COUNT,
                    size_bytes=100,
                    timestamp_ms=None,
                    deadline_ms=math.inf,
                )
                self.pool.try_take(100)
                self.sender.take_in("t", [(partition, chunk)], 0.0)
        return self

    def sent(self, now_ms: float = 0.0) -> list[tuple[int, int]]:
        """Return what was sent since the last time."""
        self.sender.tick(now_ms)
        self._carry_out(now_ms)
        found, self._sent = sorted(self._sent), []
        return found

    def _carry_out(self, now_ms: float) -> None:
        instructions = self.sender.agenda.instructions
        while instructions:
            match instructions.popleft():
                case Open(address):
                    self.sender.on_opened(address, now_ms)
                case Send(connection, request):
                    (part,) = request.parts
                    assert part.queue.topic_id == "id"
                    self.under_way[part.queue.partition].append((connection, request))
                    self._sent.append((part.queue.partition, stamp_of(part).base_sequence))
                case Cut():
                    pass  # its end is the test's
                case RefreshTopics():
                    self.sender.on_refreshed({"t": None}, now_ms)
                case Wake():
                    pass
                case errand:
                    raise AssertionError(f"expected no question, found {errand}")

    def answer(
        self, partition: int = 0, code: int = ErrorCode.NONE, *, throttle_ms: int = 0, now_ms: float = 0.0
    ) -> Part:
        """Answer the oldest part under way."""
        connection, request = self.under_way[partition].popleft()
        produced = Produced(error_of(code, "as the test wants it") if code else None)
        self.sender.on_answer(connection, request.correlation_id, throttle_ms, [produced], now_ms)
        self._carry_out(now_ms)
        return request.parts[0]

    def end_stream(self, partition: int = 0, now_ms: float = 0.0) -> None:
        connection, _ = self.under_way[partition][0]
        self.under_way[partition].clear()
        self.sender.on_end(connection, LOST, now_ms)
        self._carry_out(now_ms)

    @property
    def failures(self) -> list[BusError]:
        return [chunk.failure for chunk in self.sender.queues.settled if chunk.failure is not None]

    @property
    def is_done(self) -> bool:
        return self.pool.available_bytes == self.pool.total_bytes


def stamp_of(part: Part) -> ProducerStamp:
    assert part.stamp is not None
    assert (part.stamp.producer_id, part.stamp.producer_epoch) == (7, 3)
    return part.stamp


def test_second_part_of_a_partition_waits_until_the_first_is_in_the_log() -> None:
    bench = Bench().add(3, 0, 1)
    assert bench.sent() == [(0, 0), (1, 0)]
    assert bench.sent() == []
    bench.answer(1)
    assert bench.sent() == [(1, 10), (1, 20)]


def test_no_more_are_under_way_than_the_broker_remembers() -> None:
    bench = Bench(in_flight_max=3).add(9)
    assert bench.sent() == [(0, 0)]
    bench.answer()
    assert bench.sent() == [(0, 10), (0, 20), (0, 30)]
    bench.answer()
    assert bench.sent() == [(0, 40)]


def test_after_a_refusal_nothing_is_sent_until_all_have_answered_then_first_things_first_and_alone() -> None:
    bench = Bench().add(5)
    bench.sent()
    bench.answer()
    assert bench.sent() == [(0, 10), (0, 20), (0, 30), (0, 40)]
    bench.answer(code=ErrorCode.KAFKA_STORAGE_ERROR)
    bench.answer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.sent(20_000.0) == []
    bench.end_stream()
    assert bench.failures == []
    assert bench.sent(500.0) == [], "the back-off is not over"
    assert bench.sent(5_000.0) == [(0, 10)]
    bench.answer(now_ms=5_000.0)
    assert bench.sent(5_000.0) == [(0, 20), (0, 30), (0, 40)]


def test_part_that_was_there_already_is_settled() -> None:
    bench = Bench().add(1)
    bench.sent()
    bench.answer(code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert bench.is_done
    assert bench.failures == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # nothing before it is missing
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_RECORD,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ],
)
def test_what_no_repetition_helps_against_ends_it(code: ErrorCode) -> None:
    bench = Bench().add(2)
    bench.sent()
    bench.answer(code=code)
    assert bench.failures[0].code is code
    assert bench.failures[0].message == "as the test wants it"
    assert bench.sent(100_000.0) == []
    assert bench.is_done, "what is behind it fails, too"


def test_code_of_a_newer_broker_ends_it_by_its_number() -> None:
    bench = Bench().add(1)
    bench.sent()
    bench.answer(code=12345)
    assert bench.failures[0].message == "error code 12345: as the test wants it"


def test_throttled_partition_waits_as_long_as_it_was_told() -> None:
    bench = Bench().add(1, 0, 1)
    bench.sent()
    bench.answer(code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_ms=7_000)
    bench.answer(1)
    assert bench.sent(6_900.0) == []
    assert bench.sender.agenda.wakes_at_ms == 7_000.0
    assert bench.sent(7_000.0) == [(0, 0)]


def test_partitions_of_a_topic_that_was_made_anew_stay_with_the_one_that_it_was() -> None:
    bench = Bench().add(1)
    bench.sent()
    bench.topic_id = "another"
    bench.add(1, 1)
    assert bench.sent() == [(1, 0)]  # and refused by the broker, since the request says so


class NaiveLog:
    """A partition of the broker's: takes the next sequence of a producer, and repeats."""

    def __init__(self, older_epoch_ended_at: int) -> None:
        self.following = {0, older_epoch_ended_at}
        self.sequences: list[int] = []

    def take(self, request: Request) -> ErrorCode:
        (part,) = request.parts
        sequence = stamp_of(part).base_sequence
        if sequence in self.sequences:
            return ErrorCode.NONE
        if sequence not in self.following:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.sequences.append(sequence)
        self.following = {sequence + part.record_count}
        return ErrorCode.NONE


@pytest.mark.parametrize("seed", range(200))
def test_every_part_is_in_the_log_once_and_in_order_whatever_is_refused_or_lost(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench().add(12, 0, 1)
    # Where the older epoch ended a part of this one might be taken for its continuation.
    logs = [NaiveLog(chance.choice([10, 20, 50])) for _ in range(2)]
    now_ms = 0.0
    while not bench.is_done:
        assert bench.failures == []
        bench.sent(now_ms)
        now_ms = now_ms + 10 if any(bench.under_way.values()) else max(now_ms + 1, bench.sender.agenda.wakes_at_ms)
        while any(bench.under_way.values()) and chance.random() < 0.8:
            partition = chance.choice([number for number, found in bench.under_way.items() if found])
            play(bench, partition, logs[partition], chance, now_ms)
    assert [log.sequences for log in logs] == [list(range(0, 120, COUNT))] * 2


def play(bench: Bench, partition: int, log: NaiveLog, chance: random.Random, now_ms: float) -> None:
    requests: list[Any] = [request for _, request in bench.under_way[partition]]
    match chance.choice(["taken", "taken", "taken", "refused", "lost", "late"]):
        case "taken":
            bench.answer(partition, log.take(requests[0]), now_ms=now_ms)
        case "refused":
            bench.answer(partition, ErrorCode.THROTTLING_QUOTA_EXCEEDED, now_ms=now_ms)
        case "lost":
            for request in requests[: chance.randint(0, len(requests))]:
                log.take(request)
            bench.end_stream(partition, now_ms)
        case "late":
            log.take(requests[0])
            bench.answer(partition, ErrorCode.REQUEST_TIMED_OUT, now_ms=now_ms)
