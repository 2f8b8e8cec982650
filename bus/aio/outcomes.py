"""From the producer's threads to the event loop: futures of asyncio that learn their outcome there.

Guards two promises: every future whose loop still runs is resolved, on the loop's own thread, and one call into the
loop carries all outcomes that gathered before it ran: waking a loop costs far more than an outcome does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Settled(Protocol):
    """A future of the producer that is done."""

    def result(self) -> Any: ...

    def exception(self) -> BaseException | None: ...


class Outcomes:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[asyncio.Future[Any], Settled | BaseException]] = deque()
        self._is_called = False  # the loop was asked to look, and has not yet
        self._unresolved: set[asyncio.Future[Any]] = set()

    def new_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._unresolved.add(future)
        return future

    def unresolved(self) -> list[asyncio.Future[Any]]:
        """Those whose outcome has not arrived, cancelled ones too. On the loop's thread."""
        return list(self._unresolved)

    def refuse(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Fail it at once. On the loop's thread."""
        self._unresolved.discard(future)
        future.set_exception(error)

    def callback_for(self, future: asyncio.Future[Any]) -> Callable[[Settled], None]:
        """For the `add_done_callback` of the producer's future. Safe from any thread."""

        def on_done(settled: Settled) -> None:
            self._put(future, settled)

        return on_done

    def fail(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Safe from any thread."""
        self._put(future, error)

    def _put(self, future: asyncio.Future[Any], outcome: Settled | BaseException) -> None:
        # First the outcome, then the question: if `_is_called` is found set, the loop looks afterwards.
        self._arrived.append((future, outcome))
        if self._is_called:
            return
        self._is_called = True
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: no coroutine waits any more
            self._arrived.clear()

    def _resolve(self) -> None:
        self._is_called = False
        while self._arrived:
            future, outcome = self._arrived.popleft()
            self._unresolved.discard(future)
            if future.done():  # who waited was cancelled; the record was not
                continue
            error = outcome if isinstance(outcome, BaseException) else outcome.exception()
            if error is not None:
                future.set_exception(error)
            else:
                assert not isinstance(outcome, BaseException)
                future.set_result(outcome.result())
