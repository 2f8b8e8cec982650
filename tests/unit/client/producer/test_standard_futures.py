"""Futures of a producer with the tools of the standard library, which look at what each of its futures has inside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from typing import Any

import pytest

from bus.client.producer.batch import RecordBatchBuilder
from bus.client.producer.future import BatchFuture
from bus.client.values import BatchMetadata, RecordMetadata
from bus.errors import BusError, ErrorCode

LATE = BusError(ErrorCode.REQUEST_TIMED_OUT, "found no answer")
Resolve = Callable[[BusError | None], None]


def record_future() -> tuple[Future[Any], Resolve]:
    batch = RecordBatchBuilder("t", limit_bytes=100, due_at_ms=0, deadline_ms=0)
    future = batch.add(b"v", None, None, None, 5, 1)

    def resolve(error: BusError | None) -> None:
        [(_, chunk)] = batch.close_whole(0)
        chunk.settle(None if error else BatchMetadata("t", 0, 7, 1, 5, 3), error)
        chunk.announce()

    return future, resolve


def batch_future() -> tuple[Future[Any], Resolve]:
    future = BatchFuture(1)
    return future, lambda error: future.resolve(0, None if error else BatchMetadata("t", 0, 7, 1, 5, 3), error)


@pytest.fixture(params=[record_future, batch_future])
def kind(request: pytest.FixtureRequest) -> Callable[[], tuple[Future[Any], Resolve]]:
    return request.param  # type: ignore[no-any-return]


Kind = Callable[[], tuple[Future[Any], Resolve]]


class SignallingWaiters(list[Any]):
    """Tells when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self.is_waited_for.set()


def resolve_when_waited_for(future: Any, resolve: Resolve, error: BusError | None) -> threading.Thread:
    waiters = SignallingWaiters()
    with future._condition:
        future._waiters = waiters

    def run() -> None:
        assert waiters.is_waited_for.wait(20)
        resolve(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("error", [None, LATE])
@pytest.mark.parametrize("return_when", [FIRST_COMPLETED, FIRST_EXCEPTION, ALL_COMPLETED])
def test_wait_returns_when_the_outcome_comes(kind: Kind, error: BusError | None, return_when: str) -> None:
    future, resolve = kind()
    thread = resolve_when_waited_for(future, resolve, error)
    done, open_ = concurrent.futures.wait([future], 20, return_when)
    thread.join()
    assert (done, open_) == ({future}, set())


def test_wait_that_times_out_leaves_the_future_as_it_is(kind: Kind) -> None:
    future, resolve = kind()
    assert concurrent.futures.wait([future], 0) == (set(), {future})
    resolve(None)
    assert concurrent.futures.wait([future], 0) == ({future}, set())


def test_wait_for_futures_of_which_some_are_done(kind: Kind) -> None:
    (first, resolve_first), (second, resolve_second) = kind(), kind()
    resolve_first(None)
    assert concurrent.futures.wait([first, second], 20, FIRST_COMPLETED) == ({first}, {second})
    thread = resolve_when_waited_for(second, resolve_second, LATE)
    assert concurrent.futures.wait([first, second], 20) == ({first, second}, set())
    thread.join()


def test_as_completed_gives_futures_in_the_order_of_their_outcomes(kind: Kind) -> None:
    (first, resolve_first), (second, resolve_second) = kind(), kind()
    resolve_second(None)
    completed = concurrent.futures.as_completed([first, second], 20)
    assert next(completed) is second
    resolve_first(LATE)
    assert next(completed) is first
    assert list(completed) == []


def test_wait_mixes_with_futures_of_an_executor(kind: Kind) -> None:
    future, resolve = kind()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(resolve, None)
        assert concurrent.futures.wait([future, other], 20) == ({future, other}, set())


def test_wrapped_future_gives_the_result_to_an_event_loop(kind: Kind) -> None:
    async def program() -> Any:
        future, resolve = kind()
        wrapped = asyncio.wrap_future(future)
        threading.Thread(target=resolve, args=(None,)).start()
        return await wrapped, future.result(0)

    found, expected = asyncio.run(program())
    assert found == expected
    assert isinstance(found, RecordMetadata) or found == [BatchMetadata("t", 0, 7, 1, 5, 3)]


def test_wrapped_future_raises_the_error_in_an_event_loop(kind: Kind) -> None:
    async def program() -> None:
        future, resolve = kind()
        wrapped = asyncio.wrap_future(future)
        threading.Thread(target=resolve, args=(LATE,)).start()
        with pytest.raises(BusError) as raised:
            await wrapped
        assert raised.value is LATE

    asyncio.run(program())


def test_cancelling_a_wrapped_future_calls_no_record_back(kind: Kind) -> None:
    async def program() -> None:
        future, resolve = kind()
        wrapped = asyncio.wrap_future(future)
        assert wrapped.cancel()
        await asyncio.sleep(0)
        assert not future.cancel()
        assert not future.cancelled()
        assert future.running()
        resolve(None)
        assert future.result(0) is not None
        assert not future.running()

    asyncio.run(program())


def test_threads_that_look_at_a_future_together_see_one_state(kind: Kind) -> None:
    """The state is made by whoever looks first; nobody may wait on one that is replaced."""
    for _ in range(50):
        future, resolve = kind()
        looked: list[Any] = []
        together = threading.Barrier(3)

        def look(future: Any = future, looked: list[Any] = looked, together: threading.Barrier = together) -> None:
            together.wait(20)
            looked.append((future._condition, future._waiters))

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        together.wait(20)
        resolve(None)
        for thread in threads:
            thread.join()
        assert looked[0][0] is looked[1][0]
        assert looked[0][1] is looked[1][1]
        assert concurrent.futures.wait([future], 20) == ({future}, set())


def test_name_that_no_future_has_is_an_attribute_error(kind: Kind) -> None:
    future, _ = kind()
    assert not hasattr(future, "colour")
    assert "pending" in repr(future)
