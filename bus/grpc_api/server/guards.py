"""Guards around every call: for a request that cannot be read, an error that no handler foresaw, the end of a stream.

Guards one promise: each call ends with an answer or with a status that says what was wrong, never with silence. A
request that cannot be read ends with INVALID_ARGUMENT, one beyond a limit with RESOURCE_EXHAUSTED; an error of the
broker itself ends with INTERNAL and one entry in its log, and the broker goes on. When the broker stops, nothing more
is read from a stream, and what was read is still answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from bus.addresses import counted_host
from bus.broker_api.client_quotas import CallerPace
from bus.broker_api.pipeline import Handle, Wrap, read_in_turn, within
from bus.broker_api.requests import (
    BrokerStopping,
    Caller,
    Held,
    InvalidArgument,
    OverQuota,
    RequestMemory,
    Unavailable,
    new_request_id,
)
from bus.errors import ErrorCode
from bus.grpc_api.server.conversions import caller_of
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest
from bus.runtime.logs import request_id
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.tasks import TaskScope, time_limit
from bus.security.scram import SESSION_EXPIRED

_log = logging.getLogger(__name__)
RequestT = TypeVar("RequestT")

_STATUS_SECONDS_MAX = 10.0


class StreamLogin(Protocol):
    """The login by which a stream was begun."""

    @property
    def is_ended(self) -> bool: ...

    def watch(self, on_end: Callable[[], object]) -> Callable[[], None]:
        """Calls it at the end; returns what forgets it."""
        ...


stream_login: ContextVar[StreamLogin | None] = ContextVar("stream_login", default=None)


def of_one_request(
    handle: Callable[..., Any], name: str, seconds_max: float | None = None
) -> Callable[[AsyncIterator[Any], grpc.aio.ServicerContext], Any]:
    """Turns a handler of one request, a coroutine or an async generator, into one of a stream of requests. gRPC reads a
    single request, up to its size limit, before it calls the handler; of a stream it reads when asked. So a caller can
    be refused before its request takes memory. `name`: of the request's type, for errors. `seconds_max`: how long the
    request may take to arrive; None: no limit."""
    if inspect.isasyncgenfunction(handle):

        async def answers(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async for answer in handle(await _only_one(requests, name, seconds_max), context):
                yield answer

        return answers

    async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        return await handle(await _only_one(requests, name, seconds_max), context)

    return answer


async def _only_one(requests: AsyncIterator[Any], name: str, seconds_max: float | None) -> Any:
    """`Unreadable` if there is none, if it does not arrive in time, or if the caller's login ends before it does."""
    login = stream_login.get()
    try:
        async with time_limit(seconds_max):
            if login is None:
                return await anext(requests)
            async with contextlib.aclosing(_until_end(requests, login)) as until_end:
                request = await anext(until_end)
    except UnreadableRequest:
        return _LOGGED_OUT
    except StopAsyncIteration:
        return Unreadable(grpc.StatusCode.INVALID_ARGUMENT, f"expected a {name}, found the end of the call")
    except asyncio.TimeoutError:
        message = f"expected a whole {name} within {seconds_max:.0f} s"
        return Unreadable(grpc.StatusCode.DEADLINE_EXCEEDED, message)
    finally:
        await _close(requests)
    return _LOGGED_OUT if login.is_ended else request


async def _close(requests: AsyncIterator[Any]) -> None:
    """gRPC's iterator refers to itself: until it is closed, or a garbage collection comes, it keeps the request that it
    gave last."""
    generator = aiter(requests)
    if isinstance(generator, AsyncGenerator):
        with contextlib.suppress(RuntimeError):  # a task of the call, which is cancelled, still reads it: so it ends
            await generator.aclose()


def guarded(handle: Handle) -> Handle:
    """The stage GUARD of a call of one request, with one answer or several. Several end, and `handle` is closed, when
    the login ends that the call was begun by."""
    if inspect.isasyncgenfunction(handle):

        async def answers(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            request_id.set(new_request_id())
            _log_request(request, context)
            login = stream_login.get()
            try:
                async with contextlib.aclosing(handle(_readable(request), context)) as found:
                    async for one in found if login is None else _until_end(found, login):
                        yield one
            except Exception as error:
                await abort_for(error, context)

        return answers

    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        request_id.set(new_request_id())
        _log_request(request, context)
        try:
            return await handle(_readable(request), context)
        except Exception as error:
            await abort_for(error, context)

    return answer


def guarded_stream(handle: Handle) -> Handle:
    """The stage GUARD of a stream of requests. `handle` gets the requests up to the first that cannot be read; there
    its iterator raises `UnreadableRequest`, which it raises itself once all requests before are answered."""

    async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        request_id.set(new_request_id())
        try:
            await handle(_readable_ones(requests, context), context)
        except Exception as error:
            await abort_for(error, context)
        finally:
            await _close(requests)

    return answer


async def hold_requests(
    memory: RequestMemory, requests: AsyncIterator[RequestT], pace: CallerPace
) -> AsyncIterator[tuple[RequestT, Held]]:
    """Read them in turn. Raises `UnreadableRequest` at one that is to be refused for memory."""
    async for request, held in read_in_turn(requests, memory, pace, _size_of):
        if held is None:
            raise UnreadableRequest(_NO_ROOM)
        yield request, held


def _size_of(request: Any) -> int:
    size_bytes: int = request.ByteSize()
    return size_bytes


_NO_ROOM = Unreadable(
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "expected fewer requests of one client that wait for their answers (queued.max.request.bytes); retry later",
)


@contextlib.contextmanager
def hold_request(memory: RequestMemory, request: Any, context: grpc.aio.ServicerContext) -> Iterator[Sequence[Any]]:
    """The stage HOLD_MEMORY of a call of one request. In place of the request is what stands for it if the client has
    as many waiting as it may."""
    if isinstance(request, Unreadable):
        yield request, context
        return
    client = context.peer()
    if not memory.has_room(client):
        yield _NO_ROOM, context
        return
    held = memory.hold(client, request.ByteSize())
    try:
        yield request, context
    finally:
        held.drop()


def _readable(request: RequestT | Unreadable) -> RequestT:
    if isinstance(request, Unreadable):
        raise UnreadableRequest(request)
    return request


async def _readable_ones(
    requests: AsyncIterator[RequestT | Unreadable], context: grpc.aio.ServicerContext
) -> AsyncIterator[RequestT]:
    login = stream_login.get()
    async for request in requests if login is None else _until_end(requests, login):
        _log_request(request, context)
        yield _readable(request)


_LOGGED_OUT = Unreadable(grpc.StatusCode.UNAUTHENTICATED, SESSION_EXPIRED)


def check_login() -> None:
    """Check the login of a call that has waited, before the call tells its caller anything. Raises `UnreadableRequest`
    if the caller is not logged in any more."""
    login = stream_login.get()
    if login is not None and login.is_ended:
        raise UnreadableRequest(_LOGGED_OUT)


@contextlib.contextmanager
def until_logout() -> Iterator[None]:
    """Around a long wait whose result only a caller that is still logged in may have: once the login ends, the block is
    cancelled as if the caller had gone away, and `UnreadableRequest` is raised."""
    check_login()
    login, task = stream_login.get(), asyncio.current_task()
    if login is None or task is None:
        yield
        return
    forget = login.watch(task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        check_login()
        raise
    finally:
        forget()


async def _until_end(messages: AsyncIterator[RequestT], login: StreamLogin) -> AsyncGenerator[RequestT, None]:
    """Raises `UnreadableRequest` in the place of the next message once the login has ended, also while it waits for
    one. A request that comes in at that very moment was not read, and its sender gets no answer; a handler that works
    on its next answer is cancelled, as when its caller goes away."""
    waiting: asyncio.Task[Any] | None = None

    def wake() -> None:
        if waiting is not None:
            waiting.cancel()

    forget = login.watch(wake)
    try:
        while not login.is_ended:
            waiting = asyncio.current_task()
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if not login.is_ended:
                    raise
                break
            finally:
                waiting = None
            yield message
        raise UnreadableRequest(_LOGGED_OUT)
    finally:
        forget()


def _log_request(request: object, context: grpc.aio.ServicerContext) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        kind = request.message if isinstance(request, Unreadable) else type(request).__name__
        _log.debug("%s from %s", kind, context.peer())


async def abort_for(error: Exception, context: grpc.aio.ServicerContext) -> NoReturn:
    """The status that tells the client of it. A client that does not read what comes before it is not waited for, and
    gets it when it does."""
    try:
        async with time_limit(_STATUS_SECONDS_MAX):
            await _abort_for(error, context)
    except asyncio.TimeoutError:
        _log.debug("the client does not read its status: %s", error)
    except grpc.aio.InternalError as held_up:
        _log.debug("the client gets no status, as it does not read its first answer: %s", held_up)
    raise asyncio.CancelledError from error


async def _abort_for(error: Exception, context: grpc.aio.ServicerContext) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, grpc.aio.InternalError):
        # Reading and writing raise it for a call that has ended: the client went away before its answer was sent.
        _log.debug("the client has gone: %s", error)
        raise asyncio.CancelledError from error
    status, details = status_of(error)
    if status is grpc.StatusCode.INTERNAL:
        _log.error("request failed", exc_info=error)
    await context.abort(status, details)
    raise AssertionError("abort raises")


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status that says of a call how it ended, and its details."""
    match error:
        case UnreadableRequest():
            return error.status, str(error)
        case OverQuota():
            return grpc.StatusCode.RESOURCE_EXHAUSTED, f"{ErrorCode.THROTTLING_QUOTA_EXCEEDED.name}: {error}"
        case InvalidArgument():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)
        case BrokerStopping() | Unavailable():
            return grpc.StatusCode.UNAVAILABLE, str(error)
        case _:
            return grpc.StatusCode.INTERNAL, f"the broker failed; see its log for {request_id.get()}"


# Of a call that was refused before its work began.
_NOTHING_DONE = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
)


def ending_of(error: Exception) -> str | None:
    """How the status says that an error ended a call; None if its work did not begin."""
    status, details = status_of(error)
    return None if status in _NOTHING_DONE else f"{status.name}, {details}"


# What gRPC logs, with a traceback, of a call whose last batch failed before it noticed that the client was gone: the
# connection broke while the status was sent, behind all that a handler can catch.
_LAST_BATCH_FAILED = "ExecuteBatchError raised in core by servicer method"
_BATCH_FAILED = 'Failed "execute_batch"'  # and not "Failed grpc_call_start_batch", which would be a fault of ours


def quiet_departures() -> None:
    """Log clients that leave while their answer is sent in one line at DEBUG, and not with gRPC's traceback. Safe to
    repeat."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_departure)


def _is_no_departure(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    is_departure = (
        text.startswith(_LAST_BATCH_FAILED)
        and isinstance(error, grpc.aio.InternalError)
        and str(error).startswith(_BATCH_FAILED)
    )
    if is_departure:
        _log.debug("the client has gone before its status was sent: %s", text)
    return not is_departure


class CallsInFlight:
    """The calls whose handlers run."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = asyncio.Event()

    def counted(self, handle: Handle) -> Handle:
        return within(self._one)(handle)

    @contextlib.contextmanager
    def _one(self, *arguments: Any) -> Iterator[Sequence[Any]]:
        self._count += 1
        try:
            yield arguments
        finally:
            self._count -= 1
            self._ended.set()

    async def wait_until_none(self) -> None:
        while self._count:
            self._ended.clear()
            await self._ended.wait()


class StreamRegistry:
    """The readers of all open streams. After `drain`, which begins `stopping`, nothing more is read; what was read is
    still answered."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._readers = TaskScope("stream")

    def start(self, reader: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._readers.start(reader, name)

    async def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """To its end, in a task that `drain` cancels: then it raises `Unavailable`. Raises what `work` raises."""
        task = self.start(_error_of(work), name)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise Unavailable("the broker stops")
        if (error := task.result()) is not None:
            raise error

    async def drain(self) -> None:
        self._stopping.begin()
        await self._readers.cancel()


async def _error_of(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Return the error that ends the work: an exception of the task itself would be logged as a fault."""
    try:
        await work
    except Exception as error:
        return error
    return None


class OpenStreams:
    """Counts the streams that each caller has open.

    Guards one promise: no caller takes so many that others get none. A caller is a principal at a host: without
    authentication all programs of one machine are one. Calls of one answer are bounded by the memory that they take
    (broker_api/requests.py) and by gRPC, which lets so many run on one connection.
    """

    def __init__(self, count_max: int) -> None:
        """`count_max`: of one caller."""
        self._count_max = count_max
        self._counts: Counter[tuple[str, str]] = Counter()  # > 0 each

    def opened(self, listener: str) -> Wrap:
        """The stage OPEN_STREAM of calls that come by the listener."""

        @contextlib.contextmanager
        def enter(request: Any, context: grpc.aio.ServicerContext) -> Iterator[Sequence[Any]]:
            with self.one(caller_of(context, listener)):
                yield request, context

        return within(enter)

    @contextlib.contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """Raises `UnreadableRequest` if the caller has as many as it may."""
        key = caller.principal, counted_host(caller.host)
        if self._counts[key] >= self._count_max:
            raise UnreadableRequest(
                Unreadable(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"expected at most {self._count_max} open streams of {caller.principal} from {caller.host} "
                    "(client.streams.count.max), found more; close some",
                )
            )
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
