"""Keeps a client to one thread at a time.

Guards a user from silent damage: positions and rebalance callbacks of a consumer make sense in one thread only, so a
second one that comes while the first is inside is refused, as by Kafka's ConcurrentModificationException. Taking turns
is fine, and so is a call from a callback of the first one's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from bus.errors import BusError, ErrorCode

P = ParamSpec("P")
SelfT = TypeVar("SelfT", bound="OneThread")
ResultT = TypeVar("ResultT")


class OneThread:
    """What has methods that are `exclusive`."""

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._inside = 0  # the thread that is inside


def exclusive(method: Callable[Concatenate[SelfT, P], ResultT]) -> Callable[Concatenate[SelfT, P], ResultT]:
    """One thread at a time in all methods of an object that are marked so. Raises `BusError` INVALID_REQUEST."""

    @wraps(method)
    def guarded(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        here = threading.get_ident()
        if self._inside == here:
            return method(self, *args, **kwargs)
        if not self._entrance.acquire(blocking=False):
            raise _occupied(self, method.__name__)
        self._inside = here
        try:
            return method(self, *args, **kwargs)
        finally:
            self._inside = 0
            self._entrance.release()

    return cast("Callable[Concatenate[SelfT, P], ResultT]", guarded)


def _occupied(client: Any, name: str) -> BusError:
    inside = next((thread.name for thread in threading.enumerate() if thread.ident == client._inside), "another one")
    return BusError(
        ErrorCode.INVALID_REQUEST,
        f"a {type(client).__name__.lower()} is for one thread at a time: expected {name}() from thread {inside!r}, "
        f"which is in a call, found thread {threading.current_thread().name!r}; only wakeup() may come from any",
    )
