"""The producer's engine without threads, network and clock: what it sends when, and what it makes of answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import LeaderHint, PartitionLeader, TopicInfo
from bus.client.connection.produce_requests import Produced
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES, RecordFuture
from bus.client.producer.connections import EPOCH_MAX, Errand, InitProducer, RefreshTopics, Request, Resume
from bus.client.producer.engine import Engine
from bus.client.producer.future import BatchFuture, RunChunk
from bus.client.producer.queue import PartitionQueue
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

OK = object()
WAIT_S = 20


class FakeStream:
    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: list[Request] = []
        self.cut_for: list[str] = []
        self.is_finished = False

    def send(self, request: Request) -> None:
        for part in request.parts:
            part.payload = part.payload or (b"encoded", 0, 7)
        self.requests.append(request)

    def cut(self, reason: str, *, is_late: bool = False) -> None:
        self.cut_for.append(reason)

    def finish(self) -> None:
        self.is_finished = True

    def join(self, timeout: float | None) -> None:
        raise AssertionError("streams are joined by who owns the threads")


class Bench:
    """A sender whose clock, streams and remote calls are in the test's hands. Partition n is led by `leaders[n]`."""

    def __init__(self, *leaders: str | None, identity: tuple[int, int] | None = (7, 0), **configs: Any) -> None:
        self.now_ms = 1_000_000.0
        self.leaders = list(leaders or ("a",))
        self.is_known = True
        self.topic_id = "id"
        self.streams: list[FakeStream] = []
        self.errands: list[Errand] = []
        self.wakes = 0
        self.on_open: Callable[[], None] = lambda: None
        self.config = parse_config(ProducerConfig, {"linger_ms": 0, **configs})
        self.engine = Engine(
            self,
            self.config,
            clock=lambda: self.now_ms,
            backoff_ms=lambda failures: 100.0 * 2**failures,
            open_stream=self._open_stream,
            run_errand=self.errands.append,
            wake=self._wake,
        )
        self.engine.tick()
        if identity is not None:
            self.engine.on_identity(*identity)

    def _open_stream(self, address: str) -> FakeStream:
        self.on_open()
        self.streams.append(FakeStream(address))
        return self.streams[-1]

    def _wake(self) -> None:
        self.wakes += 1

    # ------------------------------------------------------------ metadata

    def topic(self, name: str) -> TopicInfo | None:
        leaders = tuple(PartitionLeader(number, number, 0, 0, "") for number in range(len(self.leaders)))
        return TopicInfo(name, self.topic_id, leaders, 0.0) if self.is_known else None

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        return self.leaders[partition]

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> None:
        self.leaders[partition] = hint.address

    # ------------------------------------------------------------ the user

    def send(self, value: bytes, partition: int = 0, *, topic: str = "t", deadline_ms: float | None = None) -> Any:
        try:
            with self.engine.lock:
                return self.engine.add(
                    topic,
                    (value, None, None, partition, 0, RECORD_OVERHEAD_BYTES + len(value)),
                    len(self.leaders),
                    deadline_ms=self.now_ms if deadline_ms is None else deadline_ms,
                )
        finally:
            self.engine.announce_soon()

    def send_run(self, value: bytes, partition: int = 0, *, deadline_ms: float = 120_000) -> BatchFuture:
        future = BatchFuture(1)
        chunk = RunChunk(
            future,
            0,
            (value, 0, len(value)),
            partition=TopicPartition("t", partition),
            record_count=1,
            size_bytes=len(value),
            timestamp_ms=5,
            deadline_ms=self.now_ms + deadline_ms,
        )
        with self.engine.lock:
            self.engine.add_chunks("t", [(partition, chunk)], size_bytes=len(value), deadline_ms=self.now_ms)
        self.engine.announce()
        return future

    # ------------------------------------------------------------ the broker

    def sent(self, address: str | None = None) -> list[list[tuple[int, int, int]]]:
        """Return, for each request, partition, epoch and first sequence of its parts."""
        return [
            [
                (
                    part.queue.partition,
                    -1 if part.stamp is None else part.stamp.producer_epoch,
                    -1 if part.stamp is None else part.stamp.base_sequence,
                )
                for part in request.parts
            ]
            for stream in self.streams
            if address in (None, stream.address)
            for request in stream.requests
        ]

    def answer(self, *answers: Any, stream: int = -1, throttle_ms: int = 0) -> None:
        """To the oldest request of the stream that has none. `OK` or an error code for each partition, or responses."""
        found = self.streams[stream]
        connection = self.engine.sender.connections.by_address[found.address]
        request = connection.requests[0]
        responses = [
            Produced(base_offset=0, version=1)
            if one is OK
            else Produced(BusError(one, "refused"))
            if isinstance(one, ErrorCode)
            else one
            for one in answers or (OK,) * len(request.parts)
        ]
        self.engine.on_answer(found, request.correlation_id, throttle_ms, responses)

    def end(self, error: BusError | None = None, stream: int = -1) -> None:
        self.engine.on_end(self.streams[stream], error or BusError(ErrorCode.NETWORK_EXCEPTION, "broken"))

    def take_errand(self) -> Any:
        (errand,) = self.errands
        self.errands.clear()
        return errand

    def pass_time(self, ms: float) -> float:
        """Nothing but the wake-ups that were promised happens meanwhile; returns when the next one is to come."""
        until_ms = self.now_ms + ms
        while (next_at := self.engine.sender.agenda.wakes_at_ms) <= until_ms:
            self.now_ms = max(self.now_ms, next_at)
            self.engine.tick()
        self.now_ms = until_ms
        return self.engine.sender.agenda.wakes_at_ms

    @property
    def used_bytes(self) -> int:
        return self.engine.pool.total_bytes - self.engine.pool.available_bytes


def code_of(future: Any) -> ErrorCode | None:
    error = future.exception(0)
    return None if error is None else error.code


# ---------------------------------------------------------------- what is sent when


def test_without_linger_a_record_leaves_at_once_and_its_memory_comes_back_with_the_answer() -> None:
    bench = Bench()
    future = bench.send(b"a")
    assert bench.sent() == [[(0, 0, 0)]]
    assert bench.used_bytes == RECORD_OVERHEAD_BYTES + 1
    bench.answer(OK)
    assert future.result(0).offset == 0
    assert bench.used_bytes == 0


def test_lingering_record_leaves_when_its_time_is_up_and_the_owner_is_woken_for_it() -> None:
    bench = Bench(linger_ms=50)
    wakes = bench.wakes
    bench.send(b"a")
    assert bench.sent() == []
    assert bench.wakes == wakes + 1
    bench.pass_time(49)
    assert bench.sent() == []
    bench.pass_time(2)
    assert len(bench.sent()) == 1


@pytest.mark.parametrize("size", [1_000 - RECORD_OVERHEAD_BYTES, 5_000])
def test_batch_that_is_full_waits_for_no_company(size: int) -> None:
    bench = Bench(linger_ms=60_000, batch_size=1_000, delivery_timeout_ms=200_000)
    bench.send(b"x" * size)
    assert len(bench.sent()) == 1


def fill_while_busy(bench: Bench, count: int) -> None:
    """One request of two records is under way; `count` more records come, two of which fill a batch."""
    bench.send(bytes(90))
    bench.send(bytes(90))
    assert bench.sent() == [[(0, 0, 0)]]
    for _ in range(count):
        bench.send(bytes(90))
    assert len(bench.sent()) == 1, "it would only have waited behind the first"


def test_full_batch_grows_on_behind_what_is_under_way_and_leaves_with_the_answer() -> None:
    bench = Bench(batch_size=240, linger_ms=1_000)
    fill_while_busy(bench, 5)
    bench.answer(OK)
    assert bench.sent()[1:] == [[(0, 0, 2)]]
    (part,) = bench.streams[0].requests[1].parts
    assert [chunk.record_count for chunk in part.chunks] == [5], "one batch, not three"


def test_full_batch_waits_for_no_answer_longer_than_it_lingers() -> None:
    bench = Bench(batch_size=240, linger_ms=1_000)
    fill_while_busy(bench, 3)
    bench.now_ms += 1_000
    bench.engine.tick()
    assert bench.sent()[1:] == [[(0, 0, 2)]]


def test_batch_grows_to_a_bound_and_not_beyond_the_memory() -> None:
    bench = Bench(batch_size=2_000, linger_ms=1_000, buffer_memory=80_000)
    for _ in range(30):
        bench.send(bytes(900))
    batch = bench.engine.accumulator.open["t"]
    assert 2_000 < batch.limit_bytes <= 10_000, "an eighth of the memory"
    assert bench.engine.pool.available_bytes >= 80_000 - 30 * 924 - 10_000


def test_batch_that_its_one_record_fills_does_not_grow() -> None:
    bench = Bench(batch_size=100, linger_ms=1_000)
    for _ in range(3):
        bench.send(bytes(90))
    assert not bench.engine.accumulator.open


def test_record_that_no_longer_fits_sends_the_batch_before_it() -> None:
    bench = Bench(linger_ms=60_000, batch_size=1_000, delivery_timeout_ms=200_000)
    bench.send(b"x" * 600)
    bench.send(b"y" * 600)
    assert len(bench.sent()) == 1
    bench.pass_time(60_000)
    bench.answer(OK)
    assert len(bench.sent()) == 2


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_record_whose_batch_is_opened_while_a_connection_is_made_is_sent(linger_ms: int) -> None:
    bench = Bench(linger_ms=linger_ms, batch_size=1_000)

    def take_a_while() -> None:
        bench.now_ms += 1_000

    bench.on_open = take_a_while
    futures = [bench.send(value * 600) for value in (b"x", b"y")]
    bench.pass_time(1_000)
    chunks = [chunk for request in bench.streams[0].requests for part in request.parts for chunk in part.chunks]
    assert [chunk.record_count for chunk in chunks] == [1, 1]
    while bench.engine.sender.connections.by_address["a"].requests:
        bench.answer(OK)
    assert [code_of(future) for future in futures] == [None, None]
    assert bench.used_bytes == 0


def test_one_request_has_a_part_of_each_partition_of_a_leader() -> None:
    bench = Bench("a", "b", "a", linger_ms=10)
    for partition in (0, 1, 2):
        bench.send(b"x", partition)
    bench.pass_time(10)
    assert (bench.sent("a"), bench.sent("b")) == ([[(0, 0, 0), (2, 0, 0)]], [[(1, 0, 0)]])


def test_window_is_of_each_connection() -> None:
    bench = Bench("a", "b", max_in_flight_requests_per_connection=2)
    for _ in range(3):
        bench.send_run(b"x", 0)
    bench.send_run(b"x", 1)
    assert (len(bench.sent("a")), len(bench.sent("b"))) == (2, 1)
    bench.answer(OK, stream=0)
    assert (len(bench.sent("a")), len(bench.sent("b"))) == (3, 1)


def test_partition_that_waited_longest_is_first_when_not_all_fit_a_request() -> None:
    bench = Bench("a", "a", "a", max_request_size=1_024, max_in_flight_requests_per_connection=1)
    bench.send_run(b"x" * 10, 0)
    for partition in (0, 1, 2, 0):
        bench.send_run(b"x" * 600, partition)
    order = []
    for _ in range(5):
        order.append([partition for partition, _, _ in bench.sent()[-1]])
        bench.answer()
    assert order == [[0], [0], [1], [2], [0]]


def test_muted_connection_rests_for_the_time_it_was_told_and_others_do_not() -> None:
    bench = Bench("a", "b")
    bench.send_run(b"x", 0)
    bench.answer(OK, throttle_ms=500)
    bench.send_run(b"x", 0)
    bench.send_run(b"x", 1)
    assert (len(bench.sent("a")), len(bench.sent("b"))) == (1, 1)
    bench.pass_time(499)
    assert len(bench.sent("a")) == 1
    bench.pass_time(2)
    assert len(bench.sent("a")) == 2


def test_long_throttle_by_a_quota_is_logged_and_that_of_a_full_queue_is_not(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a")
    bench.send_run(b"x", 0)
    bench.answer(ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_ms=20_000)
    assert [said for said in caplog.messages if "throttled" in said] == []
    bench.pass_time(20_001)
    bench.answer(OK, throttle_ms=30_000)
    (said,) = (said for said in caplog.messages if "throttled" in said)
    assert "throttled by the broker at a" in said
    assert "for 30000 ms by the quota producer_byte_rate" in said


def test_batch_that_lingers_while_the_window_opens_leaves_when_its_time_is_up() -> None:
    bench = Bench(linger_ms=10, max_in_flight_requests_per_connection=1)
    bench.send(b"a")
    bench.pass_time(10)
    bench.send(b"b")
    bench.pass_time(5)  # the owner looks while nothing can be sent
    bench.engine.tick()
    bench.answer(OK)
    assert len(bench.sent()) == 1, "it is not due yet"
    bench.pass_time(6)
    assert len(bench.sent()) == 2


def test_flush_sends_what_lingers_and_ends() -> None:
    bench = Bench(linger_ms=60_000, delivery_timeout_ms=200_000)
    futures = [bench.send(b"a"), bench.send(b"b")]
    (batch,) = bench.engine.start_flush()
    assert len(bench.sent()) == 1
    bench.answer(OK)
    batch.wait(0)
    bench.engine.end_flush()
    assert all(future.done() for future in futures)
    bench.send(b"c")
    bench.pass_time(1_000)
    assert len(bench.sent()) == 1, "what comes after a flush lingers again"


# ---------------------------------------------------------------- memory


class Waiting:
    """A thread in `send`, known to wait for memory."""

    def __init__(self, bench: Bench, value: bytes, *, topic: str = "t") -> None:
        self.future: RecordFuture | None = None
        self.error: BaseException | None = None
        self._bench = bench
        before = bench.engine.pool.waiting_count
        self._thread = threading.Thread(target=self._send, args=(value, topic), daemon=True)
        self._thread.start()
        while True:  # whoever holds the lock sees it in line, or not yet there
            with bench.engine.lock:
                if bench.engine.pool.waiting_count > before:
                    return

    def _send(self, value: bytes, topic: str) -> None:
        try:
            self.future = self._bench.send(value, topic=topic, deadline_ms=self._bench.now_ms + 10**6)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def crowded(**configs: Any) -> Bench:
    """Room for one record of 3,000 bytes, and it is taken."""
    bench = Bench(
        **{"buffer_memory": 4_096, "max_request_size": 4_096, "batch_size": 1_000, **configs},
    )
    bench.send(b"x" * 3_000, topic="first")
    return bench


def test_who_waits_for_memory_hurries_all_that_lingers() -> None:
    bench = Bench(linger_ms=60_000, delivery_timeout_ms=200_000, buffer_memory=4_096, max_request_size=4_096)
    bench.send(b"x" * 2_000, topic="first")
    bench.engine.tick()
    waiting = Waiting(bench, b"y" * 3_000)
    assert len(bench.sent()) == 1
    bench.answer(OK)
    waiting.finish()


def test_batch_that_was_opened_while_others_wait_for_memory_does_not_linger() -> None:
    bench = crowded(linger_ms=60_000, delivery_timeout_ms=200_000)
    bench.engine.start_flush()
    bench.engine.end_flush()
    first, second = Waiting(bench, b"y" * 3_000), Waiting(bench, b"z" * 3_000, topic="other")
    bench.answer(OK)
    first.finish()
    bench.pass_time(1_000)
    assert len(bench.sent()) == 2, "the memory that it holds is waited for"
    bench.answer(OK)
    second.finish()


def test_memory_that_nobody_may_wait_for_refuses_and_leaves_nothing_behind() -> None:
    bench = crowded()
    with bench.engine.lock:
        refused = bench.engine.add("t", (b"y" * 3_000, None, None, 0, 0, 3_024), 1, deadline_ms=None)
    assert refused is None
    bench.answer(OK)
    assert bench.used_bytes == 0


def test_failure_for_good_reaches_who_waits_for_memory_and_gives_everything_back() -> None:
    bench = crowded(name="loader", identity=None)
    bench.take_errand()
    waiting = Waiting(bench, b"y" * 3_000)
    bench.engine.on_no_identity(BusError(ErrorCode.INVALID_REQUEST, "no"))
    waiting.finish()
    assert isinstance(waiting.error, BusError)
    assert waiting.error.code is ErrorCode.INVALID_REQUEST
    assert bench.used_bytes == 0
    assert bench.sent() == []


def test_closing_reaches_who_waits_for_memory_and_gives_everything_back() -> None:
    bench = crowded()
    waiting = Waiting(bench, b"y" * 3_000)
    failed, _ = bench.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
    waiting.finish()
    assert failed == 1
    assert "closed" in str(waiting.error)
    assert bench.used_bytes == 0


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("correlation_id", "count", "message"), [(9, 1, "expected answer 1, found answer 9"), (1, 2, "expected 1 part")]
)
def test_answer_that_fits_no_request_is_refused(correlation_id: int, count: int, message: str) -> None:
    bench = Bench()
    bench.send(b"a")
    with pytest.raises(ValueError, match=message):
        bench.engine.on_answer(bench.streams[0], correlation_id, 0, [Produced()] * count)
    bench.end()
    bench.pass_time(1_000)
    bench.answer(OK)


def test_answers_of_a_stream_that_ended_change_nothing() -> None:
    bench = Bench()
    future = bench.send(b"a")
    bench.end()
    bench.engine.on_answer(bench.streams[0], 1, 0, [Produced()])
    bench.end(stream=0)
    assert not future.done()


def test_failed_part_goes_again_after_its_back_off_with_the_same_stamp() -> None:
    bench = Bench()
    future = bench.send_run(b"a")
    bench.answer(ErrorCode.KAFKA_STORAGE_ERROR)
    assert isinstance(bench.errands.pop() if bench.errands else RefreshTopics(("t",)), RefreshTopics)
    bench.pass_time(99)
    assert len(bench.sent()) == 1
    bench.pass_time(2)
    assert bench.sent() == [[(0, 0, 0)], [(0, 0, 0)]]
    bench.answer(OK)
    assert future.result(0)[0].base_offset == 0


def test_retries_that_go_on_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.send_run(b"a")
    told = []
    for _ in range(5):
        bench.answer(ErrorCode.NOT_ENOUGH_REPLICAS)
        bench.pass_time(5_000)
        told.append(sum("producing to t-0 is tried again" in message for message in caplog.messages))
    assert told == [0, 0, 1, 1, 1]
    assert "NOT_ENOUGH_REPLICAS" in caplog.text


def test_broken_stream_costs_one_back_off_however_much_was_on_it() -> None:
    bench = Bench()
    futures = [bench.send_run(b"a") for _ in range(5)]
    bench.end()
    bench.pass_time(101)
    assert bench.sent()[5:] == [[(0, 0, sequence)] for sequence in range(5)]
    for _ in range(5):
        bench.answer(OK)
    assert [code_of(future) for future in futures] == [None] * 5


def test_stream_that_ends_for_what_a_request_contains_costs_the_oldest_one() -> None:
    bench = Bench()
    futures = [bench.send_run(b"a"), bench.send_run(b"b")]
    bench.end(BusError(ErrorCode.INVALID_REQUEST, "unreadable"))
    assert [future.done() for future in futures] == [True, False]
    bench.pass_time(200)
    resume = next(errand for errand in bench.errands if isinstance(errand, Resume))
    bench.engine.on_resumed(resume, last_epoch=-1, last_sequence=-1, version=-1)
    bench.answer(OK)
    assert [code_of(future) for future in futures] == [ErrorCode.INVALID_REQUEST, None]


def test_duplicate_counts_as_acknowledged_with_an_unknown_offset() -> None:
    bench = Bench()
    future = bench.send_run(b"a")
    bench.answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert future.result(0)[0].base_offset == -1


def test_request_that_is_not_answered_in_time_cuts_its_stream_once() -> None:
    bench = Bench(request_timeout_ms=1_000)
    bench.send(b"a")
    bench.pass_time(999)
    assert bench.streams[0].cut_for == []
    bench.pass_time(2_000)
    assert len(bench.streams[0].cut_for) == 1
    assert "request.timeout.ms" in bench.streams[0].cut_for[0]


def test_delivery_time_out_fails_what_waits_and_gives_its_memory_back() -> None:
    bench = Bench(None, request_timeout_ms=500, delivery_timeout_ms=1_000)
    future = bench.send(b"a")
    bench.pass_time(999)
    assert not future.done()
    bench.pass_time(2)
    assert code_of(future) is ErrorCode.REQUEST_TIMED_OUT
    assert bench.used_bytes == 0


def test_each_record_times_out_at_its_own_time_whatever_became_of_those_before() -> None:
    bench = Bench(None, None, request_timeout_ms=500, delivery_timeout_ms=1_000)
    futures = []
    for partition in (0, 1, 0):
        futures.append(bench.send(b"a", partition))
        bench.pass_time(100)
    bench.pass_time(699)
    for count in (0, 1, 2, 3):
        assert [future.done() for future in futures] == [True] * count + [False] * (3 - count)
        bench.pass_time(100)


def test_what_waits_is_not_looked_at_for_its_time_out_before_the_first_one_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    expire = PartitionQueue.expire
    monkeypatch.setattr(PartitionQueue, "expire", lambda queue, now_ms: looks.append(now_ms) or expire(queue, now_ms))
    bench = Bench(*[None] * 50, request_timeout_ms=500, delivery_timeout_ms=1_000)
    for partition in range(50):
        bench.send(b"a", partition)
    for _ in range(20):
        bench.pass_time(45)
        bench.engine.tick()
    assert looks == []
    bench.pass_time(101)
    assert len(looks) == 50


# ---------------------------------------------------------------- metadata


def refreshed(bench: Bench, error: BusError | None = None) -> None:
    bench.pass_time(1_000)
    errand = bench.take_errand()
    assert errand == RefreshTopics(("t",))
    bench.engine.on_refreshed({"t": error})


def test_partition_without_a_leader_waits_and_asks_for_one() -> None:
    bench = Bench(None)
    future = bench.send(b"a")
    refreshed(bench, BusError(ErrorCode.NETWORK_EXCEPTION, "nobody there"))
    assert not future.done()
    bench.leaders[0] = "a"
    refreshed(bench)
    bench.pass_time(10_000)
    bench.answer(OK)
    assert future.result(0).offset == 0


def test_topic_that_does_not_exist_fails_its_records_and_no_others() -> None:
    bench = Bench(None)
    future = bench.send(b"a")
    other = bench.send(b"b", topic="other")
    refreshed(bench, BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no"))
    assert code_of(future) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not other.done()


def test_partitions_that_are_gone_fail_what_waits_for_them() -> None:
    bench = Bench("a", None)
    future = bench.send(b"a", 1)
    del bench.leaders[1]
    refreshed(bench)
    assert code_of(future) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "has 1 partition now" in str(future.exception(0))


def test_partition_that_was_given_up_is_resumed_before_its_numbers_are_used_again() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.answer(OK)
    second = bench.send(b"b")
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    refreshed(bench, BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "as a broker says that lags behind"))
    assert second.done()
    before = len(bench.sent())
    bench.send(b"c")
    bench.pass_time(1_000)
    assert len(bench.sent()) == before, (
        "as number 0 of epoch 0 the broker would take it for the first record, sent again"
    )
    resume = bench.take_errand()
    bench.engine.on_resumed(resume, last_epoch=0, last_sequence=0, version=1)
    assert bench.sent()[before:] == [[(0, 1, 1)]]


def test_new_leader_gets_nothing_until_the_old_one_has_answered() -> None:
    bench = Bench("a")
    first = bench.send_run(b"x")
    bench.leaders[0] = "b"
    second = bench.send_run(b"y")
    assert [stream.address for stream in bench.streams] == ["a"]
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.pass_time(200)
    assert bench.sent("b")[0] == [(0, 0, 0)]
    while bench.engine.sender.connections.by_address["b"].requests:
        bench.answer(OK)
    assert (code_of(first), code_of(second)) == (None, None)


# ---------------------------------------------------------------- identity


def test_nothing_leaves_without_an_identity_and_one_question_asks_for_it() -> None:
    bench = Bench("a", "a", identity=None)
    bench.send(b"a", 0)
    bench.send(b"b", 1)
    assert bench.take_errand() == InitProducer(None, None)
    assert bench.sent() == []
    bench.engine.on_identity(9, 0)
    assert bench.sent() == [[(0, 0, 0), (1, 0, 0)]]


def test_question_for_an_identity_is_repeated_with_growing_pauses() -> None:
    bench = Bench(identity=None)
    bench.send(b"a")
    for pause in (100, 200, 400):
        bench.take_errand()
        bench.engine.on_no_identity(BusError(ErrorCode.NETWORK_EXCEPTION, "lost"))
        bench.pass_time(pause * 0.99)
        assert not bench.errands
        bench.pass_time(pause * 0.02)
    bench.take_errand()
    bench.engine.on_identity(9, 0)
    assert len(bench.sent()) == 1


def test_without_idempotence_nobody_asks_for_an_identity() -> None:
    bench = Bench(identity=None, enable_idempotence=False)
    bench.send(b"a")
    assert bench.sent() == [[(0, -1, -1)]]
    assert not bench.errands


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_fenced_producer_fails_everything_and_every_later_call(code: ErrorCode) -> None:
    bench = Bench("a", "a")
    futures = [bench.send_run(b"a"), bench.send_run(b"b"), bench.send_run(b"c", 1)]
    bench.answer(code)
    assert [code_of(future) for future in futures] == [code] * 3
    assert bench.used_bytes == 0
    for call in (bench.send, bench.send_run):
        with pytest.raises(BusError) as caught:
            call(b"d")
        assert caught.value.code is code


def test_fenced_producer_is_told_what_the_same_answer_says_is_in_the_log() -> None:
    bench = Bench("a", "a", linger_ms=10)
    futures = [bench.send(b"a", 0), bench.send(b"b", 1)]
    bench.pass_time(10)
    bench.answer(ErrorCode.PRODUCER_FENCED, OK)
    assert [code_of(future) for future in futures] == [ErrorCode.PRODUCER_FENCED, None]


def resumed_bench(**configs: Any) -> tuple[Bench, BatchFuture, Resume]:
    """The second record was refused, the third waits until the partition is resumed."""
    bench = Bench(**configs)
    bench.send_run(b"a")
    bench.answer(OK)
    bench.send_run(b"b")
    bench.answer(ErrorCode.INVALID_RECORD)
    future = bench.send_run(b"c")
    assert len(bench.sent()) == 2
    return bench, future, bench.take_errand()


def test_partition_goes_on_under_the_next_epoch_where_the_log_ends() -> None:
    bench, _, resume = resumed_bench()
    assert (resume.producer_id, resume.producer_epoch, resume.address) == (7, 1, "a")
    bench.engine.on_resumed(resume, last_epoch=0, last_sequence=0, version=1)
    assert bench.sent()[2:] == [[(0, 1, 1)]]


def test_resuming_is_tried_again_under_the_same_epoch() -> None:
    bench, _, resume = resumed_bench()
    bench.engine.on_not_resumed(resume, BusError(ErrorCode.NETWORK_EXCEPTION, "lost"))
    assert not [errand for errand in bench.errands if isinstance(errand, Resume)]
    bench.pass_time(1_000)
    assert [errand for errand in bench.errands if isinstance(errand, Resume)] == [resume]


def test_resuming_that_is_not_allowed_costs_the_records_of_the_partition_alone() -> None:
    bench, future, resume = resumed_bench()
    denied = BusError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "User:a may not Write topic t")
    bench.engine.on_not_resumed(resume, denied)
    with pytest.raises(BusError, match="User:a may not Write topic t"):
        future.result(0)
    bench.errands.clear()
    later = bench.send(b"4")
    bench.engine.on_resumed(bench.take_errand(), last_epoch=0, last_sequence=0, version=1)  # it may by now
    bench.answer()
    assert later.result(0).topic == "t"


def test_resuming_that_is_refused_for_good_is_the_end() -> None:
    bench, future, resume = resumed_bench()
    bench.engine.on_not_resumed(resume, BusError(ErrorCode.PRODUCER_FENCED, "another"))
    assert code_of(future) is ErrorCode.PRODUCER_FENCED
    with pytest.raises(BusError, match="another"):
        bench.send(b"d")


def test_after_the_last_epoch_comes_another_producer_id() -> None:
    bench, future, resume = resumed_bench(identity=(7, EPOCH_MAX - 1))
    assert resume.producer_epoch == EPOCH_MAX
    bench.engine.on_resumed(resume, last_epoch=EPOCH_MAX - 1, last_sequence=0, version=1)
    assert len(bench.sent()) == 2
    assert bench.take_errand() == InitProducer(None, None)
    bench.engine.on_identity(8, 0)
    assert bench.sent()[2:] == [[(0, 0, 0)]]
    part = bench.streams[-1].requests[-1].parts[0]
    assert part.stamp is not None
    assert part.stamp.producer_id == 8
    bench.answer(OK)
    assert code_of(future) is None


def test_partition_whose_records_time_out_between_two_producer_ids_goes_on() -> None:
    bench = Bench(identity=(7, EPOCH_MAX - 1), request_timeout_ms=500, delivery_timeout_ms=1_000)
    first, second = bench.send_run(b"a"), bench.send_run(b"b", deadline_ms=300)
    bench.answer(ErrorCode.INVALID_RECORD)
    bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    resume = bench.take_errand()
    queue = resume.queue
    queue.retry_at_ms = bench.now_ms + 400  # it backs off while the new identity would be asked for
    bench.engine.on_resumed(resume, last_epoch=-1, last_sequence=-1, version=-1)
    bench.pass_time(500)
    assert (first.done(), second.done()) == (True, True)
    third = bench.send_run(b"c")
    bench.pass_time(100)
    assert bench.take_errand() == InitProducer(None, None)
    bench.engine.on_identity(8, 0)
    bench.answer(OK)
    assert code_of(third) is None


# ---------------------------------------------------------------- named producers


def test_named_producer_resumes_each_partition_before_its_first_record() -> None:
    bench = Bench("a", "a", identity=(7, 3), name="loader")
    bench.send(b"a", 0)
    assert bench.sent() == []
    resume = bench.take_errand()
    assert (resume.queue.partition, resume.producer_epoch) == (0, 3)
    bench.engine.on_resumed(resume, last_epoch=2, last_sequence=41, version=9)
    assert bench.sent() == [[(0, 3, 42)]]


def test_named_producer_takes_a_higher_epoch_from_the_broker_for_all_its_partitions() -> None:
    bench = Bench("a", "a", identity=(7, 3), name="loader")
    futures = [bench.send(b"a", 0), bench.send(b"b", 1)]
    for resume in list(bench.errands):
        bench.engine.on_resumed(resume, last_epoch=-1, last_sequence=-1, version=-1)  # type: ignore[arg-type]
    bench.errands.clear()
    requests = bench.sent()
    assert requests == [[(0, 3, 0)], [(1, 3, 0)]]
    bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.take_errand() == InitProducer(7, 3)
    bench.engine.on_identity(7, 4)
    resume = bench.take_errand()
    assert (resume.queue.partition, resume.producer_epoch) == (0, 4)
    bench.answer(ErrorCode.PRODUCER_FENCED)  # the other partition has not moved to the new epoch yet
    other = bench.take_errand()
    assert (other.queue.partition, other.producer_epoch) == (1, 4)
    for one in (resume, other):
        bench.engine.on_resumed(one, last_epoch=-1, last_sequence=-1, version=-1)
    assert bench.sent()[2:] == [[(0, 4, 0)], [(1, 4, 0)]]
    bench.answer()
    bench.answer()
    assert [code_of(future) for future in futures] == [None, None]


# ---------------------------------------------------------------- the end


def test_closing_fails_each_record_once_and_ends_the_streams_that_are_idle() -> None:
    bench = Bench("a", "b", linger_ms=60_000, delivery_timeout_ms=200_000)
    runs = [bench.send_run(b"x", 0), bench.send_run(b"x", 1)]
    bench.answer(OK, stream=0)
    lingering = bench.send(b"y")
    failed, streams = bench.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
    assert failed == 2
    assert [code_of(future) for future in (*runs, lingering)] == [None, *[ErrorCode.REQUEST_TIMED_OUT] * 2]
    idle, busy = bench.streams
    assert streams == [idle, busy]
    assert (idle.is_finished, idle.cut_for) == (True, [])
    assert (busy.is_finished, len(busy.cut_for)) == (False, 1)
    assert bench.used_bytes == 0
    assert bench.engine.tick() == math.inf
    with pytest.raises(BusError, match="closed"):
        bench.send(b"z")
    assert bench.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "again")) == (0, [])


def test_late_answer_after_closing_changes_nothing() -> None:
    bench = Bench()
    future = bench.send(b"a")
    bench.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
    bench.engine.on_answer(bench.streams[0], 1, 0, [Produced()])
    bench.end()
    assert code_of(future) is ErrorCode.REQUEST_TIMED_OUT


def test_idle_sender_asks_for_no_early_wake_up() -> None:
    bench = Bench(request_timeout_ms=30_000)
    bench.send(b"a")
    bench.answer(OK)
    assert bench.engine.tick() - bench.now_ms >= 10_000


# ---------------------------------------------------------------- faults of its surroundings


def no_more_threads(*_: Any) -> None:
    raise RuntimeError("no more threads")


def test_stream_that_cannot_be_opened_is_opened_after_a_pause() -> None:
    bench = Bench()
    bench.on_open = no_more_threads
    futures = [bench.send_run(b"a"), bench.send_run(b"b")]
    bench.on_open = lambda: None
    bench.pass_time(50)
    assert bench.sent() == []
    bench.pass_time(100)
    while bench.engine.sender.connections.by_address["a"].requests:
        bench.answer(OK)
    assert [code_of(future) for future in futures] == [None, None]
    assert bench.used_bytes == 0


def test_answer_of_one_broker_counts_though_no_stream_to_another_one_can_be_opened() -> None:
    bench = Bench("a", None)
    first, other = bench.send(b"a", 0), bench.send(b"b", 1)
    bench.leaders[1] = "b"
    bench.now_ms += 1_000
    bench.on_open = no_more_threads
    bench.answer(OK)
    assert (code_of(first), other.done()) == (None, False)
    bench.on_open = lambda: None
    bench.pass_time(1_000)
    bench.answer(OK)
    assert code_of(other) is None


@pytest.mark.parametrize("kind", [InitProducer, RefreshTopics, Resume])
def test_call_that_cannot_be_begun_is_begun_again(kind: type[Errand]) -> None:
    bench = Bench(None if kind is RefreshTopics else "a", identity=None if kind is InitProducer else (7, 0))
    bench.engine._run_errand = no_more_threads
    future = bench.send(b"a")
    if kind is Resume:
        bench.send(b"b")
        bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        bench.answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.pass_time(200)
    bench.engine._run_errand = bench.errands.append
    bench.pass_time(1_000)
    assert [type(errand) for errand in bench.errands].count(kind) == 1
    assert not future.done()


def test_records_of_a_topic_that_is_unknown_for_a_while_go_where_they_were_sent() -> None:
    bench = Bench("a", "a", "a", linger_ms=10)
    bench.send(b"a", 1)
    bench.send(b"b", 2)
    bench.is_known = False
    bench.pass_time(10)
    bench.is_known = True
    bench.pass_time(1_000)
    assert bench.sent() == [[(1, 0, 0), (2, 0, 0)]]


class Interrupt(BaseException):
    pass


def test_outcomes_behind_a_callback_that_was_interrupted_are_told_all_the_same() -> None:
    def interrupt(future: Any) -> None:
        raise Interrupt

    bench = Bench("a", "a", linger_ms=10)
    futures = [bench.send(b"a", 0), bench.send(b"b", 1)]
    seen: list[int] = []
    futures[0].add_done_callback(interrupt)
    futures[1].add_done_callback(lambda future: seen.append(future.result(0).partition))
    bench.pass_time(10)
    wakes = bench.wakes
    with pytest.raises(Interrupt):
        bench.answer(OK, OK)
    assert (seen, bench.wakes) == ([], wakes + 1)
    bench.engine.tick()
    assert seen == [1]


def test_callbacks_of_a_partition_keep_its_order_though_several_threads_tell() -> None:
    bench = Bench("a", "a", batch_size=0, max_in_flight_requests_per_connection=1)
    seen: list[int] = []

    def tick_beside(future: Any) -> None:
        thread = threading.Thread(target=bench.engine.tick)
        thread.start()
        thread.join(WAIT_S)
        seen.append(0)

    bench.send(b"before")
    bench.send(b"0").add_done_callback(tick_beside)
    bench.send(b"1").add_done_callback(lambda future: seen.append(1))
    bench.send(b"2", 1).add_done_callback(lambda future: seen.append(2))
    bench.answer(OK)
    bench.answer(OK, OK)
    assert seen == [2, 0, 1]


def test_flush_is_refused_in_a_callback_after_other_callbacks_ran_in_it() -> None:
    bench = Bench("a", "a")
    seen: list[bool] = []

    def close(future: Any) -> None:
        bench.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
        seen.append(bench.engine.is_in_callback)

    bench.send(b"a").add_done_callback(close)
    bench.send(b"b", 1).add_done_callback(lambda future: None)
    bench.answer(OK)
    assert seen == [True]
    assert not bench.engine.is_in_callback


def test_no_callback_runs_on_a_users_thread_that_sends() -> None:
    bench = Bench("a", "a", linger_ms=10)
    seen: list[str] = []
    future = bench.send(b"a", 0)
    future.add_done_callback(lambda _: seen.append(threading.current_thread().name))
    bench.pass_time(10)
    part = bench.streams[0].requests[0].parts[0]
    with bench.engine.lock:  # the answer has just come, and its thread has not announced it yet
        bench.engine.sender.queues.settle(part.queue.acknowledge(part, 0, -1, 1))
    wakes = bench.wakes
    bench.send(b"b", 1)
    bench.engine.start_flush()
    assert (seen, bench.wakes > wakes) == ([], True)
    bench.engine.tick()
    assert len(seen) == 1


# ---------------------------------------------------------------- leaders that move


def moved_to(address: str, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> Produced:
    return Produced(BusError(code, "moved"), leader=LeaderHint(7, 3, address))


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_part_that_is_refused_with_the_new_leader_goes_there_at_once_and_in_order(code: ErrorCode) -> None:
    bench = Bench("a")
    futures = [bench.send_run(value) for value in (b"x", b"y", b"z")]
    bench.errands.clear()
    bench.answer(moved_to("b", code), stream=0)
    bench.answer(moved_to("b", code), stream=0)
    assert bench.sent("b") == [], "what is under way to the old leader is answered first"
    bench.answer(moved_to("b", code), stream=0)
    assert [part for request in bench.sent("b") for part in request] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert bench.errands == [], "no metadata were asked for"
    while bench.engine.sender.connections.by_address["b"].requests:
        bench.answer(OK)
    assert [code_of(future) for future in futures] == [None] * 3


def test_broker_that_names_itself_as_the_leader_is_asked_again_after_a_pause() -> None:
    bench = Bench("a")
    bench.send_run(b"x")
    bench.answer(moved_to("a"))
    assert len(bench.sent()) == 1
    bench.pass_time(1_000)
    assert len(bench.sent()) == 2


def test_broker_that_opens_the_partition_is_asked_again_with_pauses_that_do_not_grow() -> None:
    bench = Bench("a")
    bench.send_run(b"x")
    for attempts in (2, 3, 4, 5):
        bench.answer(moved_to("a"))
        bench.pass_time(101)
        assert len(bench.sent()) == attempts


def test_part_whose_leader_is_gone_goes_to_the_new_one_as_soon_as_metadata_name_it() -> None:
    bench = Bench("a")
    future = bench.send_run(b"x")
    for pause_ms in (100, 200):
        bench.end()
        bench.pass_time(0)
        assert isinstance(bench.take_errand(), RefreshTopics)
        bench.engine.on_refreshed({"t": None})
        assert bench.sent("b") == []
        bench.pass_time(pause_ms)
    bench.end()
    bench.pass_time(0)
    bench.take_errand()
    bench.leaders[0] = "b"
    bench.engine.on_refreshed({"t": None})
    assert bench.sent("b") == [[(0, 0, 0)]]
    bench.answer(OK)
    assert code_of(future) is None


def test_metadata_that_name_the_same_leader_shorten_no_pause() -> None:
    bench = Bench("a")
    bench.send_run(b"x")
    bench.end()
    bench.pass_time(0)
    bench.take_errand()
    bench.engine.on_refreshed({"t": None})
    bench.pass_time(99)
    assert len(bench.sent()) == 1
    bench.pass_time(1)
    assert len(bench.sent()) == 2


def test_pauses_begin_anew_at_another_leader() -> None:
    bench = Bench("a")
    bench.send_run(b"x")
    for pause_ms in (100, 200, 400):
        bench.answer(ErrorCode.KAFKA_STORAGE_ERROR)
        bench.pass_time(pause_ms)
    bench.leaders[0] = "b"
    bench.answer(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.pass_time(800)
    assert len(bench.sent("b")) == 1
    bench.answer(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.pass_time(100)
    assert len(bench.sent("b")) == 2


def test_part_that_is_refused_without_a_hint_waits_for_metadata() -> None:
    bench = Bench("a")
    bench.send_run(b"x")
    bench.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(bench.sent()) == 1
    assert bench.engine.sender._leaders.next_event() < 1e9


def test_record_of_a_finalizer_is_taken_while_another_thread_takes_in_those_before_it() -> None:
    """Records that come inside of a step are counted without the lock, which their thread has already."""
    bench = Bench("a")
    sender = bench.engine.sender

    class TakenInMeanwhile:
        @property
        def limit_bytes(self) -> int:
            sender._late.popleft()
            return 0

    sender._late.append(TakenInMeanwhile())  # type: ignore[arg-type]
    sender.add_late("t", (b"x", None, None, 0, 0, RECORD_OVERHEAD_BYTES + 1), 1, bench.now_ms)
    bench.engine.tick()
    assert [len(stream.requests) for stream in bench.streams] == [1]
