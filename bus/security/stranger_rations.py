"""Bounds of what callers may send before they have proved who they are. Time is an argument, in seconds.

What a stranger sends costs the broker up to 150 times as much memory for a field of a header, and 900 times as much for
a call, before any handler can refuse it. So a connection, an address and all strangers together have rations of bytes
that are given back slowly, and what a connection has sent no longer counts once its caller has logged in. Guards these
promises: strangers have never sent more lately than the rations and `modest_bytes` of each connection; a login that is
modest and follows its connection within `login_s_max` is not ended halfway by its own address, since it would begin
again; an address that has few connections and has sent little is let in, unless so many others have a new connection
each that all places are taken; and a connection that has not logged in within `login_s_max` makes room for a new one,
of its own address or, where all places are taken, of any: so those that lie idle keep no user out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Ration:
    """A bound: `bytes_max` at once, of which `bytes_a_second` are given back."""

    bytes_max: int
    bytes_a_second: int


@dataclass(frozen=True, slots=True)
class RationSizes:
    """Rations that logins fit into. One takes one to four kilobytes, with client certificates up to twelve. A client of
    PLAIN may send what flow control allows (64 KiB) behind a token of 16 KiB before its password is checked."""

    connection: Ration = Ration(128 * 1024, 1024)
    address: Ration = Ration(512 * 1024, 16 * 1024)
    all_together: Ration = Ration(1024 * 1024, 256 * 1024)
    modest_bytes: int = 4 * 1024  # for a connection, while its address or all together have used up their ration
    modest_address_bytes: int = 16 * 1024  # for an address, while all together have used up theirs
    connections_max: int = 1_024  # strangers at a time
    address_connections_max: int = 256
    login_s_max: float = 10.0  # from the connection on; later it has to make room for others

    def within(self, connections_max: int) -> RationSizes:
        """Leave half of the places of a listener with `connections_max` connections to callers who have logged in, and
        most of the others to other addresses. Each stranger takes a second open file
        (`bus.grpc_api.server.connections.strangers`)."""
        strangers_max = max(2, min(self.connections_max, connections_max // 2))
        address_max = max(1, min(self.address_connections_max, strangers_max // 4))
        return replace(self, connections_max=strangers_max, address_connections_max=address_max)


@dataclass(slots=True)
class _Used:
    ration: Ration
    _bytes: float = 0.0
    _at_s: float = 0.0

    def bytes(self, now_s: float) -> float:
        given_back = max(0.0, now_s - self._at_s) * self.ration.bytes_a_second
        self._bytes, self._at_s = max(0.0, self._bytes - given_back), max(now_s, self._at_s)
        return self._bytes

    def add(self, count: float, now_s: float) -> None:
        self._bytes = max(0.0, self.bytes(now_s) + count)

    def is_over(self, now_s: float) -> bool:
        return self.bytes(now_s) > self.ration.bytes_max


@dataclass(slots=True)
class _Address:
    used: _Used
    connections: dict[Hashable, None] = field(default_factory=dict)  # the oldest first


@dataclass(slots=True)
class _Connection:
    address: str
    used: _Used
    began_s: float
    received: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """An answer to `admit`. `instead_of`: a connection that has to end for it, and why; it has left already."""

    instead_of: Hashable | None = None
    why: str = ""


class StrangerRations:
    """Connections by any key. Whatever refuses one says why; the connection is then to be ended."""

    def __init__(self, sizes: RationSizes | None = None) -> None:
        self.sizes = sizes or RationSizes()
        self._all = _Used(self.sizes.all_together)
        self._addresses: dict[str, _Address] = {}
        self._connections: dict[Hashable, _Connection] = {}  # the oldest first

    def admit(self, connection: Hashable, address: str, now_s: float) -> Admitted | str:
        """Count it as a stranger's, until `leave` or `recognise`. Returns why not, if it may not stay."""
        sizes = self.sizes
        if address not in self._addresses:
            self._forget_idle(now_s)
        known = self._addresses.get(address) or _Address(_Used(sizes.address))
        refused = self._excess(known, now_s)
        if refused is not None:
            return refused
        admitted = self._room_for(known, now_s)
        if isinstance(admitted, Admitted):
            if admitted.instead_of is not None:
                self.leave(admitted.instead_of)
            self._addresses[address] = known
            known.connections[connection] = None
            self._connections[connection] = _Connection(address, _Used(sizes.connection), now_s)
        return admitted

    def _room_for(self, address: _Address, now_s: float) -> Admitted | str:
        sizes = self.sizes
        if len(address.connections) >= sizes.address_connections_max:
            crowd = f"its address has {sizes.address_connections_max} connections without a login"
            return self._instead_of_oldest(address.connections, crowd, now_s)
        if len(self._connections) < sizes.connections_max:
            return Admitted()
        crowder = self._oldest_of_the_most(len(address.connections))
        if crowder is None:
            crowd = f"there are {sizes.connections_max} connections without a login"
            return self._instead_of_oldest(self._connections, crowd, now_s)
        return Admitted(crowder, "its address has the most connections without a login")

    def _instead_of_oldest(self, connections: Iterable[Hashable], crowd: str, now_s: float) -> Admitted | str:
        oldest = next(iter(connections))
        if now_s - self._connections[oldest].began_s < self.sizes.login_s_max:
            return crowd
        return Admitted(oldest, f"it has not logged in for {self.sizes.login_s_max:g} s, and {crowd}")

    def _oldest_of_the_most(self, count: int) -> Hashable | None:
        """A connection of the address that has the most, if those are more than `count` and one."""
        most = max(self._addresses.values(), key=lambda one: len(one.connections))
        return next(iter(most.connections)) if len(most.connections) > count + 1 else None

    def receive(self, connection: Hashable, received: int, now_s: float) -> str | None:
        """Note that the connection has sent `received` bytes since it began. None: it may continue, or its caller is
        known; otherwise the reason why not."""
        found = self._connections.get(connection)
        if found is None:
            return None
        count, found.received = received - found.received, received
        address = self._addresses[found.address]
        for used in (found.used, address.used, self._all):
            used.add(count, now_s)
        if found.used.is_over(now_s):
            return f"it has sent more than {self.sizes.connection.bytes_max} bytes without a login"
        return None if received <= self.sizes.modest_bytes else self._excess(address, now_s)

    def left_of(self, connection: Hashable, now_s: float) -> int:
        """The bytes that are left of a connection's own ration."""
        found = self._connections.get(connection)
        return 0 if found is None else max(0, found.used.ration.bytes_max - math.ceil(found.used.bytes(now_s)))

    def _excess(self, address: _Address, now_s: float) -> str | None:
        if address.used.is_over(now_s):
            return f"its address has sent more than {self.sizes.address.bytes_max} bytes without a login"
        if self._all.is_over(now_s) and address.used.bytes(now_s) > self.sizes.modest_address_bytes:
            return f"callers without a login have sent more than {self.sizes.all_together.bytes_max} bytes"
        return None

    def recognise(self, connection: Hashable, now_s: float) -> None:
        """Stop counting what the connection has sent, because its caller has logged in. Bytes given back meanwhile stay
        given back."""
        found = self._connections.get(connection)
        if found is None:
            return
        owed = found.used.bytes(now_s)
        for used in (self._addresses[found.address].used, self._all):
            used.add(-owed, now_s)
        self.leave(connection)

    def leave(self, connection: Hashable) -> None:
        """Note that the connection has ended without a login; what it has sent still counts."""
        found = self._connections.pop(connection, None)
        if found is not None:
            del self._addresses[found.address].connections[connection]

    def _forget_idle(self, now_s: float) -> None:
        """Drop addresses that owe nothing. The others are few, as what all together may owe is bounded."""
        idle = [name for name, one in self._addresses.items() if not one.connections and not one.used.bytes(now_s)]
        for name in idle:
            del self._addresses[name]
