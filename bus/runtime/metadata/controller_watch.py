"""Wakes calls that wait until the cluster has another controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from bus.model import BrokerEndpoint

_LOOK_S = 0.1


class ControllerWatch:
    """Wakes calls when there is another controller. It looks once for all of them: while a controller hangs, thousands
    may wait. `controller`: the one that is known now. For one event loop."""

    def __init__(self, controller: Callable[[], BrokerEndpoint | None]) -> None:
        self._controller = controller
        # keyed by the controller that the waiting callers know; no entry is empty
        self._waiting: dict[BrokerEndpoint | None, set[asyncio.Event]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def waking(self, wake: asyncio.Event, known: BrokerEndpoint | None) -> Iterator[None]:
        """Set `wake` soon after the controller is another one than `known`, while the block runs."""
        waiting = self._waiting.setdefault(known, set())
        waiting.add(wake)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        try:
            yield
        finally:
            waiting.discard(wake)
            if not waiting and self._waiting.get(known) is waiting:
                del self._waiting[known]

    def _look(self) -> None:
        controller, self._timer = self._controller(), None
        for known, waiting in self._waiting.items():
            if known != controller:
                for wake in waiting:
                    wake.set()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
