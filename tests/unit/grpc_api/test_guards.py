"""Guards around every call tell faults of the broker from clients that went away."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc

from bus.broker_api.requests import RequestMemory
from bus.grpc_api.server.guards import (
    guarded,
    guarded_stream,
    hold_requests,
    of_one_request,
    quiet_departures,
    stream_login,
)
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.virtual_time import run_virtually


class Context:
    """The context of a call that nothing may be written to."""

    def __init__(self) -> None:
        self.aborted: list[tuple[grpc.StatusCode, str]] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted.append((code, details))
        raise grpc.aio.AbortError


async def no_requests() -> AsyncIterator[Any]:
    for request in ():
        yield request


def ended_by(error: Exception) -> Context:
    async def handle(requests: AsyncIterator[Any], context: Any) -> None:
        raise error

    context = Context()
    asyncio.run(guarded_stream(handle)(no_requests(), context))
    return context


def test_client_that_left_while_its_answer_was_written_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(asyncio.CancelledError):
        ended_by(grpc.aio.InternalError("Failed grpc_call_start_batch"))
    assert not caplog.records


def log_of_grpc(text: str, error: Exception, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the broker's log of what gRPC's server logs about a call that ended with this error."""
    quiet_departures()
    caplog.clear()
    caplog.set_level(logging.INFO)
    try:
        raise error
    except Exception:
        logging.getLogger("grpc._cython.cygrpc").exception(text)
    return caplog.messages


def test_client_that_left_while_its_status_was_sent_is_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    text = "ExecuteBatchError raised in core by servicer method [/bus.v1.Bus/SaslAuthenticate]"
    departure = cygrpc.ExecuteBatchError('Failed "execute_batch": (<SendStatusFromServerOperation>,)')
    assert log_of_grpc(text, departure, caplog) == []
    for other_text, other_error in (
        ("Unexpected [ExecuteBatchError] raised by servicer method [x]", departure),
        (text, cygrpc.ExecuteBatchError("Failed grpc_call_start_batch: 8")),
        (text, RuntimeError('Failed "execute_batch"')),
    ):
        assert log_of_grpc(other_text, other_error, caplog) == [other_text]


def test_error_that_nothing_foresaw_is_in_the_log_and_ends_the_call_with_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(grpc.aio.AbortError):
        ended_by(RuntimeError("a bug"))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "a bug" in str(record.exc_info[1])


def test_each_request_is_in_the_log_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield pb.MetadataRequest()

    async def handle(taken: AsyncIterator[Any], context: Any) -> None:
        assert [request async for request in taken] == [pb.MetadataRequest()]

    caplog.set_level(logging.DEBUG, logger="bus.grpc_api")
    asyncio.run(guarded_stream(handle)(requests(), Context()))
    assert [record.getMessage() for record in caplog.records] == ["MetadataRequest from ipv4:127.0.0.1:1"]


class Login:
    def __init__(self) -> None:
        self.is_ended = False
        self.watchers: list[Callable[[], None]] = []

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        self.watchers.append(on_end)
        return lambda: self.watchers.remove(on_end)

    def end(self) -> None:
        self.is_ended = True
        for on_end in list(self.watchers):
            on_end()


@pytest.mark.parametrize("is_answering", [False, True])
def test_a_call_of_many_answers_ends_with_the_login_that_it_was_begun_by(is_answering: bool) -> None:
    left: list[str] = []
    context, login = Context(), Login()

    async def handle(_: pb.MaintainLogRequest, __: Any) -> AsyncGenerator[int, None]:
        try:
            yield 1
            left.append("answered")
            await asyncio.Event().wait()
        finally:
            left.append("left")

    async def answers() -> list[int]:
        stream_login.set(login)
        found: list[int] = []
        with contextlib.suppress(grpc.aio.AbortError):
            async for answer in guarded(handle)(pb.MaintainLogRequest(), context):
                found.append(answer)
                if is_answering:  # the answer is being written
                    login.end()
                else:
                    asyncio.get_running_loop().call_soon(login.end)
        return found

    assert asyncio.run(asyncio.wait_for(answers(), 30)) == [1]
    assert context.aborted == [(grpc.StatusCode.UNAUTHENTICATED, "the session has expired; log in again")]
    assert left == (["left"] if is_answering else ["answered", "left"])
    assert not login.watchers


class Pace:
    """The pace of a caller that is held each time until `let_go`."""

    def __init__(self) -> None:
        self.caller = SimpleNamespace(connection=1)
        self.steps: list[str] = []
        self.let_go = asyncio.Semaphore(0)

    async def wait(self) -> None:
        self.steps.append("wait")
        await self.let_go.acquire()

    def note_request(self) -> None:
        self.steps.append("charge")


def test_a_stream_of_a_caller_that_is_held_is_not_read_and_what_was_read_is_not_handed_on() -> None:
    async def requests(pace: Pace) -> AsyncIterator[Any]:
        for number in (1, 2):
            pace.steps.append(f"read {number}")
            yield pb.HeartbeatRequest(group_id="g")

    async def do() -> None:
        pace, memory = Pace(), RequestMemory(1_000)
        held_requests: Any = hold_requests(memory, requests(pace), pace)  # type: ignore[arg-type]
        first = asyncio.ensure_future(anext(held_requests))
        for expected in (["wait"], ["wait", "read 1", "wait"]):
            for _ in range(3):
                await asyncio.sleep(0)
            assert pace.steps == expected
            assert (memory.bytes_left(1) < 1_000) is ("read 1" in expected)  # what waits counts
            pace.let_go.release()
        _, held = await first
        assert pace.steps[-1] == "charge"
        held.drop()
        second = asyncio.ensure_future(anext(held_requests))
        pace.let_go.release()
        for _ in range(3):
            await asyncio.sleep(0)
        assert pace.steps[-2:] == ["read 2", "wait"]
        second.cancel()  # its client goes away while it waits
        await asyncio.wait([second])
        assert memory.bytes_left(1) == 1_000

    asyncio.run(do())


async def read_only_one(requests: AsyncIterator[Any], seconds_max: float | None = None) -> Any:
    async def handle(request: Any, context: Any) -> Any:
        return request

    return await of_one_request(handle, "ListViewsRequest", seconds_max)(requests, Context())  # type: ignore[arg-type]


def test_a_request_that_was_begun_and_does_not_come_is_given_up() -> None:
    async def never() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def play() -> None:
        given_up = await read_only_one(never(), seconds_max=10)
        assert given_up.status is grpc.StatusCode.DEADLINE_EXCEEDED
        assert given_up.message == "expected a whole ListViewsRequest within 10 s"
        assert asyncio.get_running_loop().time() == pytest.approx(10)

    run_virtually(play())


class Requests:
    """An iterator of requests like gRPC's: it has its generator, which refers to it."""

    def __init__(self, *requests: Any) -> None:
        self._requests = list(requests)
        self._generator = self._generate()

    async def _generate(self) -> AsyncIterator[Any]:
        while self._requests:
            request = self._requests.pop(0)
            yield request

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._generator

    async def __anext__(self) -> Any:
        return await anext(self._generator)


class Request:
    pass


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_is_kept_by_nothing_when_its_call_has_ended(is_stream: bool) -> None:
    async def refuse(requests: AsyncIterator[Any], context: Any) -> None:
        await anext(requests)

    async def play() -> None:
        request = Request()
        kept = weakref.ref(request)
        requests: Any = Requests(request, Request())
        del request
        if is_stream:
            await guarded_stream(refuse)(requests, Context())
        else:
            await read_only_one(requests)
        del requests
        for _ in range(3):
            await asyncio.sleep(0)
        assert kept() is None, "a garbage collection would be needed"

    gc.disable()
    try:
        asyncio.run(play())
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()])
def test_a_stream_ends_as_its_handler_does_though_a_task_still_reads_it(error: BaseException | None) -> None:
    async def never() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def handle(requests: AsyncIterator[Any], context: Any) -> None:
        reading = asyncio.ensure_future(anext(requests))
        await asyncio.sleep(0)
        reading.cancel()
        if error is not None:
            raise error

    async def play() -> None:
        with contextlib.nullcontext() if error is None else pytest.raises(asyncio.CancelledError):
            await guarded_stream(handle)(never(), Context())

    asyncio.run(play())


def test_a_request_that_comes_after_its_callers_login_has_ended_is_refused() -> None:
    login = Login()

    async def late() -> AsyncIterator[Any]:
        login.is_ended = True
        yield pb.ListViewsRequest()

    async def play() -> None:
        stream_login.set(login)
        refused = await read_only_one(late())
        assert refused.status is grpc.StatusCode.UNAUTHENTICATED
        login.is_ended = False
        assert await read_only_one(one_request()) == pb.ListViewsRequest()
        assert not login.watchers

    async def one_request() -> AsyncIterator[Any]:
        yield pb.ListViewsRequest()

    asyncio.run(play())


def test_a_request_that_never_comes_is_waited_for_no_longer_than_its_callers_login() -> None:
    login = Login()

    async def never() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def play() -> None:
        stream_login.set(login)
        asyncio.get_running_loop().call_later(60, login.end)
        refused = await read_only_one(never())
        assert refused.status is grpc.StatusCode.UNAUTHENTICATED
        assert asyncio.get_running_loop().time() == pytest.approx(60)
        assert not login.watchers

    run_virtually(play())
