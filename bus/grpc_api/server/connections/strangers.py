"""Ends connections whose callers send too much before they log in.

Theory of operation. gRPC holds a listener's connections, and reads and parses what comes by them before any handler is
asked. None of its limits tells a caller that has logged in from one that has not, and its limit of headers does not
hold until the client has acknowledged it. So gRPC shows each connection before it reads from it (socket_mutator.py).
The system lets a few kilobytes of it arrive (tcp_arrivals.py), a login's worth. A thread that watches a duplicate of
the descriptor, and reads nothing, learns how much has arrived and asks the rations of `bus.security.stranger_rations`:
so more may arrive, or the connection is cut. Once a call has proved who its caller is, the bound is lifted and the
duplicate closed: a connection that has logged in costs nothing more. Counted are the bytes of TCP, so TLS makes no
difference. Where the system can do none of this, only gRPC's own limits hold, and a line at the start says so.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from bus.addresses import counted_host, format_address
from bus.grpc_api.server.connections.socket_mutator import IS_TRIED, socket_mutator
from bus.grpc_api.server.connections.tcp_arrivals import (
    IS_AVAILABLE,
    bound_arrivals,
    bytes_received,
    discard_and_shut,
    first_sequence,
    lift_bound,
    save_first_sequences,
)
from bus.security.audit_trail import DENIAL_INTERVAL_MS, DenialCounts
from bus.security.stranger_rations import Admitted, StrangerRations

_log = logging.getLogger(__name__)

_FIRST_BYTES_MAX = 16 * 1024  # more arrives once the thread has looked
_LOOK_INTERVAL_S = 0.001  # what comes meanwhile is looked at together
_SWEEP_INTERVAL_S = 0.2  # for arrivals that no event tells of

# An arrival that gRPC has read before the thread looks is told only as something that may be written to.
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET if IS_AVAILABLE else 0

_Key = tuple[str, str]  # the listener, and the peer as gRPC writes it


@dataclass(slots=True)
class _Watched:
    """A connection whose caller is not known. `connection`: a duplicate of gRPC's descriptor. `bound`: the bytes that
    may arrive; None: there is none."""

    key: _Key
    host: str
    connection: socket.socket
    first_sequence: int | None
    bound: int | None = None

    def bound_to(self, bytes_max: int) -> None:
        if self.first_sequence is not None:
            bound_arrivals(self.connection, self.first_sequence, bytes_max)
            self.bound = bytes_max


@dataclass(frozen=True, slots=True)
class _Ended:
    listener: str
    host: str
    reason: str
    count: int = 1


class Strangers:
    """Strangers' connections to a broker. `start` once, and `close` when no connection comes any more."""

    def __init__(self, rations: StrangerRations | None = None) -> None:
        self._rations = rations or StrangerRations()
        self._lock = threading.Lock()  # held for no system call that waits, and not while something is logged
        self._by_key: dict[_Key, _Watched] = {}
        self._by_descriptor: dict[int, _Watched] = {}
        self._ended: list[_Ended] = []  # to be logged by the thread
        self._counts: DenialCounts[_Ended] = DenialCounts(_merge)
        self._counts_due_s = 0.0
        self._is_closed = False
        self._epoll = select.epoll() if IS_AVAILABLE and IS_TRIED else None
        self._thread = threading.Thread(target=self._watch, name="strangers", daemon=True)

    def listener_options(self, listener: str) -> Sequence[tuple[str, Any]]:
        """Options for gRPC's server of a listener whose callers have to prove who they are."""
        if self._epoll is None:
            _log.warning(
                "listener %s: this system, or this release of gRPC, cannot bound what arrives before a login; put "
                "something in front of the broker that bounds connections by address",
                listener,
            )
            return ()
        return (socket_mutator(_note_listening, lambda descriptor: self._note_connection(listener, descriptor)),)

    def start(self) -> None:
        if self._epoll is not None:
            self._thread.start()

    def close(self) -> None:
        """End the thread, which is not waited for."""
        self._is_closed = True
        if not self._thread.is_alive():
            self._end()

    def recognise(self, listener: str, peer: str) -> None:
        """Lift the bound of a connection whose caller has proved who it is. `peer`: as gRPC writes it."""
        key = listener, unquote(peer) if "%" in peer else peer
        if key not in self._by_key:
            return
        with self._lock:
            watched = self._by_key.get(key)
            if watched is None:
                return
            self._rations.recognise(key, time.monotonic())
            if watched.bound is not None:
                with suppress(OSError):  # it may have ended meanwhile
                    lift_bound(watched.connection)
            self._forget(watched)

    # ------------------------------------------------------------ in a thread of gRPC's

    def _note_connection(self, listener: str, descriptor: int) -> None:
        """Take a connection that nothing has been read from."""
        connection = socket.socket(fileno=descriptor)
        try:
            self._admit(listener, connection)
        finally:
            connection.detach()

    def _admit(self, listener: str, connection: socket.socket) -> None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        try:
            host, port = connection.getpeername()[:2]
        except OSError:
            return  # it has ended
        peer, address = _peer_of(host, port)
        key = listener, peer
        host = host if ":" in address else address  # an IPv4 address as it is written
        with self._lock:
            if self._is_closed:
                return
            if (stale := self._by_key.get(key)) is not None:
                self._leave(stale)
            admitted = self._rations.admit(key, address, time.monotonic())
            if isinstance(admitted, Admitted):
                self._make_room(admitted)
                try:
                    self._watch_over(key, host, connection)
                    return
                except OSError as error:  # there may be no open file left; what is not watched has no bound
                    self._rations.leave(key)
                    admitted = f"it cannot be watched ({error.strerror})"
            self._ended.append(_Ended(listener, host, admitted))
            with suppress(OSError):
                discard_and_shut(connection)

    def _make_room(self, admitted: Admitted) -> None:
        for watched in list(self._by_key.values()) if admitted.instead_of is not None else ():
            if watched.key == admitted.instead_of:
                self._cut(watched, admitted.why)

    def _watch_over(self, key: _Key, host: str, connection: socket.socket) -> None:
        """Raises `OSError`; then nothing is kept of it."""
        assert self._epoll is not None
        first = first_sequence(connection)
        watched = _Watched(key, host, _duplicate(connection), first)
        try:
            watched.bound_to(_FIRST_BYTES_MAX)
            self._epoll.register(watched.connection.fileno(), _EVENTS)
        except OSError:
            watched.connection.close()
            raise
        self._by_key[key] = self._by_descriptor[watched.connection.fileno()] = watched

    # ------------------------------------------------------------ in the thread

    def _end(self) -> None:
        with self._lock:
            for watched in list(self._by_key.values()):
                self._forget(watched)
            if self._epoll is not None:
                self._epoll.close()

    def _watch(self) -> None:
        assert self._epoll is not None
        try:
            self._watch_until_closed(self._epoll)
        finally:
            self._end()

    def _watch_until_closed(self, epoll: select.epoll) -> None:
        swept_s = 0.0
        while not self._is_closed:
            events = epoll.poll(_SWEEP_INTERVAL_S)
            if time.monotonic() - swept_s >= _SWEEP_INTERVAL_S:
                events += [(descriptor, 0) for descriptor in list(self._by_descriptor)]
                swept_s = time.monotonic()
            for descriptor, event in events:
                with self._lock:
                    self._look(descriptor, event)
            self._log_ended()
            time.sleep(_LOOK_INTERVAL_S)

    def _look(self, descriptor: int, event: int) -> None:
        watched = self._by_descriptor.get(descriptor)
        if watched is None:
            return
        if event & (select.EPOLLHUP | select.EPOLLERR):
            self._leave(watched)
            return
        try:
            received = bytes_received(watched.connection)
        except OSError:
            self._leave(watched)
            return
        refused = self._rations.receive(watched.key, received, time.monotonic())
        if refused is not None:
            self._cut(watched, refused)
        elif watched.bound is not None and watched.bound - received <= _FIRST_BYTES_MAX // 2:
            # One byte more than the rest of its ration, by which it is seen that it is used up.
            watched.bound_to(received + self._rations.left_of(watched.key, time.monotonic()) + 1)

    def _cut(self, watched: _Watched, reason: str) -> None:
        self._ended.append(_Ended(watched.key[0], watched.host, reason))
        with suppress(OSError):
            discard_and_shut(watched.connection)
        self._leave(watched)

    def _leave(self, watched: _Watched) -> None:
        self._rations.leave(watched.key)
        self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        assert self._epoll is not None
        descriptor = watched.connection.fileno()
        self._by_key.pop(watched.key, None)
        self._by_descriptor.pop(descriptor, None)
        with suppress(OSError):
            self._epoll.unregister(descriptor)
        watched.connection.close()

    def _log_ended(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        now_s = time.monotonic()
        for one in ended:
            if self._counts.is_empty:
                self._counts_due_s = now_s + DENIAL_INTERVAL_MS / 1000
            if self._counts.add((one.listener, counted_host(one.host), ""), "", one):
                _log.warning("closed a connection from %s at listener %s: %s", one.host, one.listener, one.reason)
        if not self._counts.is_empty and now_s >= self._counts_due_s:
            counted, lost = self._counts.take()
            for one in counted:
                _log.warning(
                    "closed %d more connections from %s at listener %s: %s",
                    one.count,
                    one.host,
                    one.listener,
                    one.reason,
                )
            if lost:
                _log.warning("closed %d more connections of callers without a login", lost)


def _merge(known: _Ended, new: _Ended) -> _Ended:
    return _Ended(new.listener, new.host, new.reason, known.count + new.count)


def _note_listening(descriptor: int) -> None:
    listening = socket.socket(fileno=descriptor)
    try:
        with suppress(OSError):  # without it the thread alone bounds what arrives
            save_first_sequences(listening)
    finally:
        listening.detach()


def _duplicate(connection: socket.socket) -> socket.socket:
    """Duplicate it without `socket.dup`, which would make it block, for gRPC too: that is a property of what both
    descriptors stand for."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def _peer_of(host: str, port: int) -> tuple[str, str]:
    """The peer as gRPC writes it, unquoted; and what counts as its address."""
    address = counted_host(host)
    if ":" in address:
        return f"ipv6:{format_address(host, port)}", address
    return f"ipv4:{format_address(address, port)}", address
