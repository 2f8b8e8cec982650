"""Keeps a client to one thread at a time.

Guards a user from silent damage: positions and rebalance callbacks of a consumer make sense in one thread only, so a
second one that comes while the first is inside is refused, as by Kafka's ConcurrentModificationException. Taking turns
is fine, and so is a call from a callback of the first one's. Ctrl-C at any step of a call leaves the client open to the
thread that was inside, which has to close it.
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

_THREAD = "thread"


class OneThread:
    """What has methods that are `exclusive`."""

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}  # the thread that is inside, if one is


def exclusive(method: Callable[Concatenate[SelfT, P], ResultT]) -> Callable[Concatenate[SelfT, P], ResultT]:
    """One thread at a time in all methods of an object that are marked so. Raises `BusError` INVALID_REQUEST."""

    @wraps(method)
    def guarded(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        here = threading.get_ident()
        if self._inside.get(_THREAD) == here:
            return method(self, *args, **kwargs)
        try:
            # One step, with nothing for an interrupt to tear between having entered and being known to have entered.
            if self._inside.setdefault(_THREAD, here) != here:
                raise _occupied(self, method.__name__)
            return method(self, *args, **kwargs)
        finally:
            if self._inside.get(_THREAD) == here:
                del self._inside[_THREAD]

    return cast("Callable[Concatenate[SelfT, P], ResultT]", guarded)


def _occupied(client: Any, name: str) -> BusError:
    ident = client._inside.get(_THREAD)
    inside = next((thread.name for thread in threading.enumerate() if thread.ident == ident), "another one")
    return BusError(
        ErrorCode.INVALID_REQUEST,
        f"a {type(client).__name__.lower()} is for one thread at a time: expected {name}() from thread {inside!r}, "
        f"which is in a call, found thread {threading.current_thread().name!r}; only wakeup() may come from any",
    )
