from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from bus.aio.outcomes import Outcomes


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
    """As much of an asyncio future as is needed, without a loop."""

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
