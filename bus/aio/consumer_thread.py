"""The one thread on which the consumer of an event loop lives, and the calls that wait for it.

Guards two promises: calls run one after another, in the order in which they were made, so the consumer never sees two
threads; and while the thread waits for a coroutine of the user's, a rebalance callback, it serves the calls that this
very coroutine makes, and no others, so that the callback can commit and does not wait for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from bus.client.connection.processes import Home
from bus.errors import BusError, ErrorCode

ResultT = TypeVar("ResultT")

_Calls = queue.SimpleQueue["_Call | None"]


class _Inner:
    """The calls of one callback, and of the tasks that it starts, until it is over."""

    __slots__ = ("calls", "is_over")

    def __init__(self) -> None:
        self.calls: _Calls = queue.SimpleQueue()
        self.is_over = False


_inside: ContextVar[_Inner | None] = ContextVar("bus_consumer_callback", default=None)


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]

    def run(self) -> None:
        try:
            result = self.function()
        except BaseException as error:
            self._tell(self.future.set_exception, error)
        else:
            self._tell(self.future.set_result, result)

    def _tell(self, settle: Callable[[Any], None], outcome: Any) -> None:
        def tell() -> None:
            if not self.future.done():
                settle(outcome)

        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits
            self.future.get_loop().call_soon_threadsafe(tell)


class ConsumerThread:
    """Begins with the first call, in whose event loop it is used from then on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        self.home = Home("consumer")

    def call(self, function: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Run it when its turn comes. Cancelling the future does not stop what runs already."""
        self.home.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._serve, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        if self._loop is not loop:
            raise RuntimeError("expected the event loop of this consumer's first call, found another one")
        inner = _inside.get()
        is_inside = inner is not None and not inner.is_over
        if self._is_ending and not is_inside:
            raise BusError(ErrorCode.INVALID_REQUEST, "this consumer is closed")
        future: asyncio.Future[ResultT] = loop.create_future()
        (inner.calls if inner is not None and is_inside else self._calls).put(_Call(function, future))
        return future

    def end(self) -> None:
        """After the calls that wait already."""
        self._is_ending = True
        self._calls.put(None)

    def _serve(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            call.run()
            del call  # while nothing is to do, a consumer that was forgotten must not be kept

    # ------------------------------------------------------------ on the thread

    def await_here(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on the loop and wait for it; its own calls are served meanwhile."""
        assert self._loop is not None, "the thread began with a loop"
        inner = _Inner()

        async def marked() -> Any:
            _inside.set(inner)
            try:
                return await start()
            finally:
                inner.is_over = True

        done = asyncio.run_coroutine_threadsafe(marked(), self._loop)
        done.add_done_callback(lambda _: inner.calls.put(None))
        self._serve(inner.calls)
        return done.result()
