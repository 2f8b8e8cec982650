"""The process that a client belongs to, and processes that can have no client.

A client has threads and connections, and a child of a fork has neither: it has copies of their memory, whose use would
steal the parent's answers, speak on its connections, or wait for threads that are not there. Guards two promises. A
client refuses its use in a child by name, and nothing of it is destroyed there: to destroy a connection is to speak on
it. And a child makes no client of its own where gRPC may abort it or hang: if the parent has had a connection, also one
that is closed, since gRPC goes on in threads of its own after that, and does not say when they have ended. Nor is there
one where gevent or eventlet have replaced threads, as gRPC's own are none of theirs.
"""

from __future__ import annotations

import os
import sys
import weakref
from functools import partial
from typing import Any

from bus.errors import BusError, ErrorCode

# The primitives that a client waits with, by the names of gevent and eventlet.
_THREADS = ("thread", "threading", "queue")


class Home:
    """The process in which this was made."""

    __slots__ = ("_kind", "_pid")

    def __init__(self, kind: str) -> None:
        """`kind`: what belongs to it, for messages."""
        self._kind = kind
        self._pid = os.getpid()

    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises `BusError` INVALID_REQUEST in another process."""
        here = os.getpid()
        if here != self._pid:
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                f"this {self._kind} belongs to process {self._pid}, found {here}: make a new one after a fork",
            )


class _Living:
    """Objects, as long as others refer to them. May be used anywhere, also by a finalizer."""

    def __init__(self) -> None:
        self._found: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: object) -> None:
        self._found[id(thing)] = weakref.ref(thing, partial(self._forget, id(thing)))

    def _forget(self, key: int, _: object) -> None:
        self._found.pop(key, None)

    def all(self) -> list[Any]:
        return [thing for found in tuple(self._found.values()) if (thing := found()) is not None]


_kept = _Living()
_inherited: list[Any] = []
_has_connected = False  # this process, at some time
_connected_parent: int | None = None  # from which this process was forked, or the one before it


def keep_in_children(thing: object) -> None:
    """Whatever a child does with its copy, it is not destroyed."""
    _kept.add(thing)


def note_connected(connection: object) -> None:
    global _has_connected
    _has_connected = True
    keep_in_children(connection)


def check_may_connect() -> None:
    """Raises `BusError` INVALID_REQUEST in a process that can have no clients."""
    if _connected_parent is not None:
        raise BusError(
            ErrorCode.INVALID_REQUEST,
            f"expected a process that was not forked, or was before its parent connected a client, found a child of "
            f"process {_connected_parent}, which had connected one: gRPC does not survive that, also where the client "
            "was closed; connect none before the fork, or start processes with spawn or forkserver",
        )
    found = _patched_threads()
    if found is not None:
        raise BusError(
            ErrorCode.INVALID_REQUEST,
            f"expected threads of Python, found those of {found}: clients wait for threads of gRPC, which are none of "
            "its greenlets, and would hang; leave threads and queues unpatched, as with gevent.monkey.patch_all("
            "thread=False, queue=False), or use clients in another process",
        )


def _patched_threads() -> str | None:
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and any(gevent.is_module_patched(name) for name in _THREADS):
        return "gevent (gevent.monkey.patch_all)"
    if eventlet is not None and any(eventlet.is_monkey_patched(name) for name in _THREADS):
        return "eventlet (eventlet.monkey_patch)"
    return None


def _begin_in_child() -> None:
    global _connected_parent
    _inherited.extend(_kept.all())
    if _has_connected and _connected_parent is None:
        _connected_parent = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
