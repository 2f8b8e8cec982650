"""Uses of a consumer that would do damage silently: two threads at once, and no close.

Guards two promises. Positions and rebalance callbacks of a consumer make sense in one thread only, so a second one that
comes while the first is inside is refused, as by Kafka's ConcurrentModificationException. Taking turns is fine, and so
is a call from a callback of the first one's. Ctrl-C at any step of a call leaves the client open to the thread that was
inside, which has to close it. And the partitions of a consumer that the program lets go of without closing it do not
wait for max.poll.interval.ms. What is garbage leaves its group at once, in the background, without a commit and without
callbacks: what the program had in hand comes again, to another member.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from bus.client.connection.cluster import Cluster
from bus.client.connection.processes import Home
from bus.client.consumer.fetcher import Fetcher
from bus.client.consumer.group_client import GroupClient
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import later, logger_of

P = ParamSpec("P")
SelfT = TypeVar("SelfT", bound="OneThread")
ResultT = TypeVar("ResultT")

_THREAD = "thread"


class OneThread:
    """The base of a class with methods that are `exclusive`."""

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}  # the thread that is inside, if one is
        self._home = Home(type(self).__name__.lower())


def exclusive(method: Callable[Concatenate[SelfT, P], ResultT]) -> Callable[Concatenate[SelfT, P], ResultT]:
    """One thread at a time in all methods of an object that are marked so. Raises `BusError` INVALID_REQUEST."""

    @wraps(method)
    def guarded(self: SelfT, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        self._home.check()
        here = threading.get_ident()
        if self._inside.get(_THREAD) == here:
            return method(self, *args, **kwargs)
        try:
            # One step, with nothing for an interrupt to tear between having entered and being known to have entered.
            if self._inside.setdefault(_THREAD, here) != here:
                raise _occupied(self, method.__name__.lstrip("_"))
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


logger = logger_of(__name__)

_LEAVE_TIMEOUT_MS = 10_000


def end_when_forgotten(
    consumer: Any, group: GroupClient | None, fetcher: Fetcher, cluster: Cluster
) -> weakref.finalize[[GroupClient | None, Fetcher, Cluster], Any]:
    """From now on `consumer` may be forgotten; nothing else may refer to it. Detach it when it is closed."""
    finalizer = weakref.finalize(consumer, _end_in_background, group, fetcher, cluster)
    finalizer.atexit = False  # the process ends, and with it the connections
    return finalizer


def _end_in_background(group: GroupClient | None, fetcher: Fetcher, cluster: Cluster) -> None:
    """Memory may be collected anywhere, also in a step of a client: nothing is waited for here, and nobody called. In a
    child of a fork it is a copy that is garbage, and the member is its parent's."""
    if cluster.home.is_here():
        later(_tell_and_end, group, fetcher, cluster)


def _tell_and_end(group: GroupClient | None, fetcher: Fetcher, cluster: Cluster) -> None:
    is_member = group is not None and group.subscription is not None
    if not is_member and not fetcher.is_connected:
        cluster.close()
        return
    threading.Thread(target=_end, args=(group, fetcher, cluster), name="bus-consumer-end", daemon=True).start()
    of_group = f" of group {group.group_id!r}" if group is not None else ""
    message = f"a consumer{of_group} was never closed: close() it, or use it in a with block; nothing is committed"
    logger.warning(message)
    warnings.warn(message, ResourceWarning, stacklevel=2)


def _end(group: GroupClient | None, fetcher: Fetcher, cluster: Cluster) -> None:
    try:
        if group is not None:
            group.abandon("the consumer was forgotten, and not closed", _LEAVE_TIMEOUT_MS)
    finally:
        fetcher.close()
        cluster.close()
