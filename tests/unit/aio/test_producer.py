"""The producer of asyncio over one that blocks when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from bus import BusError, ErrorCode
from bus.aio.producer import Outcomes, Producer

WAIT_S = 20
T = TypeVar("T")


class BlockingProducer:
    """Has room or has none; records are acknowledged when the test says so."""

    def __init__(self, *, has_room: bool = True) -> None:
        self.room = threading.Event()
        if has_room:
            self.room.set()
        self.is_waiting = threading.Event()
        self.is_closed = False
        self.accepted: list[Any] = []
        self.threads: list[int] = []
        self.pending: list[Future[Any]] = []
        self.refusal: BaseException | None = None
        self.flushes: list[tuple[float | None, int]] = []
        self.closed_with: list[float | None] = []
        self.is_telling = True  # flush ends with the futures done, and not a moment before
        self.has_flushed = threading.Event()

    def _accept(self, value: Any) -> Future[Any]:
        if self.is_closed:
            raise BusError(ErrorCode.INVALID_REQUEST, "this producer is closed")
        if self.refusal is not None:
            raise self.refusal
        future: Future[Any] = Future()
        self.accepted.append(value)
        self.threads.append(threading.get_ident())
        self.pending.append(future)
        return future

    def _send_now(self, topic: str, value: Any, *rest: Any) -> Future[Any] | None:
        return self._accept((topic, value, *rest)) if self.room.is_set() else None

    def send(self, topic: str, value: Any, *rest: Any) -> Future[Any]:
        self.is_waiting.set()
        assert self.room.wait(WAIT_S)
        return self._accept((topic, value, *rest))

    def send_batch(self, topic: str, table: Any, partition: int | None) -> Future[Any]:
        self.is_waiting.set()
        assert self.room.wait(WAIT_S)
        return self._accept((topic, table, partition))

    def flush(self, timeout: float | None) -> None:
        self.flushes.append((timeout, len(self.accepted)))
        if self.is_telling:
            self.acknowledge()
        self.has_flushed.set()

    def close(self, timeout: float | None) -> None:
        self.closed_with.append(timeout)
        self.is_closed = True
        self.room.set()
        self.acknowledge()

    def partitions_for(self, topic: str) -> list[int]:
        self.threads.append(threading.get_ident())
        return [0, 1]

    def last_sequence(self, topic: str, partition: int) -> int | None:
        return 41

    def metrics(self) -> dict[str, float]:
        return {"record-send-total": float(len(self.accepted))}

    def topic_metrics(self) -> dict[str, dict[str, float]]:
        return {"t": {}}

    def acknowledge(self) -> None:
        pending, self.pending = self.pending, []
        for offset, future in enumerate(pending):
            future.set_result(offset)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def values(blocking: BlockingProducer) -> list[Any]:
    return [call[1] for call in blocking.accepted]


def run(
    scenario: Callable[[Producer, BlockingProducer], Awaitable[T]],
    *,
    has_room: bool = True,
    clock: Clock | None = None,
    line_max: int = 1_000,
) -> T:
    async def main() -> T:
        blocking = BlockingProducer(has_room=has_room)
        producer = Producer._over(blocking, max_block_s=60.0, clock=clock or Clock(), line_max=line_max)
        try:
            return await asyncio.wait_for(scenario(producer, blocking), WAIT_S)
        finally:
            blocking.room.set()
            await producer.close()

    return asyncio.run(main())


async def wait_in_thread(event: threading.Event) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, WAIT_S)


def test_record_is_accepted_at_once_on_the_loops_thread_and_awaited_for_its_outcome() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        future = producer.send("t", b"v", b"k", [("h", None)], 3, 77)
        assert blocking.accepted == [("t", b"v", b"k", [("h", None)], 3, 77)]
        assert blocking.threads == [threading.get_ident()]
        assert not future.done()
        blocking.acknowledge()
        assert await future == 0  # type: ignore[comparison-overlap]

    run(scenario)


def test_loop_goes_on_while_there_is_no_room_and_the_order_is_kept() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures = [producer.send("t", number) for number in range(10)]
        await wait_in_thread(blocking.is_waiting)  # the loop runs, while the line's thread is held
        assert values(blocking) == []
        blocking.room.set()
        # There is room now, and yet whoever comes is behind those who waited.
        futures += [producer.send("t", number) for number in range(10, 20)]
        await producer.flush()
        assert values(blocking) == list(range(20))
        await asyncio.gather(*futures)
        assert threading.get_ident() not in blocking.threads[:10]

    run(scenario, has_room=False)


def test_after_the_line_is_served_records_go_the_short_way_again() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        waiting = producer.send("t", 0)
        blocking.room.set()
        await producer.flush()
        await waiting
        direct = producer.send("t", 1)
        assert values(blocking) == [0, 1]
        assert blocking.threads[-1] == threading.get_ident()
        blocking.acknowledge()
        await direct

    run(scenario, has_room=False)


def test_batch_is_handed_over_in_a_thread_and_records_keep_their_place_around_it() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures: list[asyncio.Future[Any]] = [producer.send("t", 0)]
        blocking.room.clear()
        futures.append(producer.send_batch("t", "table", partition=2))
        blocking.room.set()
        futures.append(producer.send("t", 2))
        await producer.flush()
        await asyncio.gather(*futures)
        assert values(blocking) == [0, "table", 2]
        assert blocking.accepted[1] == ("t", "table", 2)
        assert blocking.threads[1] != threading.get_ident()

    run(scenario)


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("error", [BusError(ErrorCode.MESSAGE_TOO_LARGE, "found 9"), TypeError("no bytes")])
def test_what_is_wrong_with_a_record_comes_through_its_future(has_room: bool, error: Exception) -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        blocking.refusal = error
        future = producer.send("t", "v")
        blocking.room.set()
        with pytest.raises(type(error)) as caught:
            await future
        assert caught.value is error

    run(scenario, has_room=has_room)


def test_cancelling_who_waits_does_not_cancel_the_record() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        async def send(value: int) -> None:
            await producer.send("t", value)

        accepted, lined_up = asyncio.create_task(send(0)), None
        await asyncio.sleep(0)
        blocking.room.clear()
        lined_up = asyncio.create_task(send(1))
        await wait_in_thread(blocking.is_waiting)
        for task in (accepted, lined_up):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        blocking.room.set()
        await producer.flush()
        assert values(blocking) == [0, 1]
        assert all(future.done() for future in blocking.pending)

    run(scenario)


def test_who_waited_for_max_block_ms_in_line_does_not_wait_again() -> None:
    clock = Clock()

    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        first = producer.send("t", 0)
        await wait_in_thread(blocking.is_waiting)
        late = [producer.send("t", number) for number in (1, 2)]
        clock.now = 60.0
        in_time = producer.send("t", 3)
        blocking.refusal = BusError(ErrorCode.REQUEST_TIMED_OUT, "waited in vain")
        has_room_for = iter([False, True])  # of those that are late, the second
        blocking._send_now = (  # type: ignore[method-assign]
            lambda *call: blocking._accept(call) if next(has_room_for) else None
        )
        blocking.room.set()
        with pytest.raises(BusError, match="in vain"):
            await first
        with pytest.raises(BusError, match=r"waited 60 s \(max.block.ms\) in line .* of 't'"):
            await late[0]
        with pytest.raises(BusError, match="in vain"):
            await late[1]
        with pytest.raises(BusError, match="in vain"):
            await in_time

    run(scenario, has_room=False, clock=clock)


def test_full_line_is_refused_and_those_in_it_are_not() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures = [producer.send("t", number) for number in range(4)]
        for future in futures[3:]:
            with pytest.raises(BusError, match="fewer than 3 calls") as caught:
                await future
            assert caught.value.retriable
        blocking.room.set()
        await producer.flush()
        await asyncio.gather(*futures[:3])
        assert values(blocking) == [0, 1, 2]

    run(scenario, has_room=False, line_max=3)


def test_flush_waits_for_the_line_and_gives_the_producer_what_is_left_of_the_time() -> None:
    clock = Clock()

    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures = [producer.send("t", number) for number in range(3)]
        await wait_in_thread(blocking.is_waiting)
        flushing = asyncio.create_task(producer.flush(timeout=WAIT_S))
        await asyncio.sleep(0)
        clock.now = 5.0
        blocking.room.set()
        await flushing
        ((timeout, accepted),) = blocking.flushes
        assert accepted == 3
        assert timeout in (WAIT_S, WAIT_S - 5.0)  # whether its thread had begun by then is chance
        await asyncio.gather(*futures)

    run(scenario, has_room=False, clock=clock)


def test_flush_ends_when_the_loop_knows_the_outcomes() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures = [producer.send("t", number) for number in range(3)]
        futures[0].cancel()
        blocking.is_telling = False
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        await wait_in_thread(blocking.has_flushed)
        later = producer.send("t", 3)
        blocking.pending.pop()
        blocking.acknowledge()
        await flushing
        assert all(future.done() for future in futures)
        assert not later.done()
        later.cancel()

    run(scenario)


def test_flush_that_finds_some_in_line_at_its_end_says_so() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        future = producer.send("t", 0)
        with pytest.raises(TimeoutError, match="within 0 s"):
            await producer.flush(timeout=0)
        assert blocking.flushes == []
        blocking.room.set()
        await producer.flush()
        await future

    run(scenario, has_room=False)


def test_closing_flushes_the_line_first_and_happens_once() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        async with producer:
            futures = [producer.send("t", number) for number in range(3)]
            blocking.room.set()
        assert values(blocking) == [0, 1, 2]
        assert all(future.done() for future in futures)  # no outcome comes after the end
        await asyncio.gather(producer.close(), producer.close())
        assert blocking.closed_with == [None]

    run(scenario, has_room=False)


def test_closing_in_no_time_turns_away_who_is_in_line() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        futures = [producer.send("t", number) for number in range(3)]
        await wait_in_thread(blocking.is_waiting)
        await producer.close(timeout=0)
        assert blocking.closed_with == [0]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert values(blocking) == []
        assert {type(outcome) for outcome in outcomes} == {BusError}

    run(scenario, has_room=False)


def test_closing_goes_on_when_who_awaits_it_is_cancelled() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        future = producer.send("t", 0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        blocking.room.set()
        await producer.close()
        assert values(blocking) == [0]
        await future

    run(scenario, has_room=False)


def test_closed_producer_refuses_through_the_future() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        await producer.close()
        for future in (producer.send("t", 0), producer.send_batch("t", "table")):
            with pytest.raises(BusError, match="closed"):
                await future

    run(scenario)


def test_questions_are_asked_in_a_thread() -> None:
    async def scenario(producer: Producer, blocking: BlockingProducer) -> None:
        assert await producer.partitions_for("t") == [0, 1]
        assert threading.get_ident() not in blocking.threads
        assert await producer.last_sequence("t", 0) == 41
        assert producer.metrics() == {"record-send-total": 0.0}
        assert producer.topic_metrics() == {"t": {}}

    run(scenario)


def test_another_event_loop_is_refused() -> None:
    blocking = BlockingProducer()
    producer = Producer._over(blocking, max_block_s=1.0, clock=Clock())

    async def use() -> None:
        producer.send("t", 0).cancel()

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="found another one"):
        asyncio.run(use())


def test_configs_are_checked_at_once() -> None:
    with pytest.raises(BusError, match="'linger_ms'"):
        Producer("127.0.0.1:1", linger=5)  # type: ignore[call-arg]  # refused at run time, too


class CountingLoop:
    """Stands for a loop that runs what it was asked to when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.is_closed = False

    def call_soon_threadsafe(self, callback: Any) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.asked.append(callback)

    def run(self) -> None:
        asked, self.asked = self.asked, []
        for callback in asked:
            callback()


class Pending:
    """The part of an asyncio future that is needed, without a loop."""

    def __init__(self) -> None:
        self.outcome: Any = None

    def done(self) -> bool:
        return self.outcome is not None

    def set_result(self, result: Any) -> None:
        self.outcome = result

    def set_exception(self, error: BaseException) -> None:
        self.outcome = error


def settled(outcome: Any) -> Any:
    future: Future[Any] = Future()
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


def test_outcomes_that_gather_share_one_call_into_the_loop() -> None:
    loop = CountingLoop()
    outcomes = Outcomes(loop)  # type: ignore[arg-type]
    pending = [Pending() for _ in range(1_000)]
    error = ValueError("refused")
    for number, future in enumerate(pending[:-1]):
        outcomes.callback_for(future)(settled(number))  # type: ignore[arg-type]
    outcomes.fail(pending[-1], error)  # type: ignore[arg-type]
    assert len(loop.asked) == 1
    assert not any(future.done() for future in pending)
    loop.run()
    assert [future.outcome for future in pending] == [*range(999), error]


def test_outcome_that_comes_after_the_loop_looked_calls_again() -> None:
    loop = CountingLoop()
    outcomes = Outcomes(loop)  # type: ignore[arg-type]
    for number in range(3):
        future = Pending()
        outcomes.callback_for(future)(settled(number))  # type: ignore[arg-type]
        assert len(loop.asked) == 1
        loop.run()
        assert future.outcome == number


def test_outcome_of_a_failed_record_is_its_error() -> None:
    loop, future, error = CountingLoop(), Pending(), ValueError("refused")
    outcomes = Outcomes(loop)  # type: ignore[arg-type]
    outcomes.callback_for(future)(settled(error))  # type: ignore[arg-type]
    loop.run()
    assert future.outcome is error


def test_future_that_was_cancelled_is_passed_by() -> None:
    loop, cancelled, other = CountingLoop(), Pending(), Pending()
    cancelled.outcome = "cancelled"
    outcomes = Outcomes(loop)  # type: ignore[arg-type]
    outcomes.callback_for(cancelled)(settled(1))  # type: ignore[arg-type]
    outcomes.callback_for(other)(settled(2))  # type: ignore[arg-type]
    loop.run()
    assert (cancelled.outcome, other.outcome) == ("cancelled", 2)


def test_loop_that_is_closed_is_no_error_of_the_producers_thread() -> None:
    loop, future = CountingLoop(), Pending()
    loop.is_closed = True
    Outcomes(loop).callback_for(future)(settled(1))  # type: ignore[arg-type]
    assert not future.done()


def test_every_outcome_of_many_threads_arrives() -> None:
    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        outcomes = Outcomes(loop)
        futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(4_000)]

        def settle(part: list[tuple[int, asyncio.Future[int]]]) -> None:
            for number, future in part:
                outcomes.callback_for(future)(settled(number))

        numbered = list(enumerate(futures))
        threads = [threading.Thread(target=settle, args=(numbered[start::4],)) for start in range(4)]
        for thread in threads:
            thread.start()
        found = await asyncio.wait_for(asyncio.gather(*futures), 20)
        for thread in threads:
            thread.join()
        return found

    assert asyncio.run(run()) == list(range(4_000))


@pytest.mark.parametrize("outcome", [7, ValueError("refused")])
def test_future_is_resolved_on_the_loops_own_thread(outcome: Any) -> None:
    async def run() -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        threads: list[int] = []
        future.add_done_callback(lambda _: threads.append(threading.get_ident()))
        thread = threading.Thread(target=Outcomes(loop).callback_for(future), args=(settled(outcome),))
        thread.start()
        await asyncio.wait([future])
        thread.join()
        future.exception()
        return threads[0]

    assert asyncio.run(run()) == threading.get_ident()
