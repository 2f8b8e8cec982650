"""Connections on which nothing comes any more while a call waits there, one whose answer may take minutes: a machine
without threads, clock or I/O.

A join waits for the other members of its group, and maintenance for its work, so that they are silent says nothing of
the connection; and a network that has forgotten it swallows their answers without a word. So after a silence a small
question goes out on the same connection, again and again while the silence lasts. Guards two promises: a call is given
up only where that question had no answer either, so never because its own answer takes long; and where nothing comes
any more it is given up within twice the longest patience of a call on its connection. `now_ms` are milliseconds of one
clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Heard(Protocol):
    @property
    def heard_at_ms(self) -> float:
        """When something came on it last, or when it was made."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Heard)


@dataclass(frozen=True, slots=True, eq=False)
class PatientCall(Generic[ConnectionT]):
    """A call whose answer may take long. `patience_ms`: how long its connection may be silent before it is asked, and
    how long the question has."""

    connection: ConnectionT
    patience_ms: float
    begun_at_ms: float
    give_up: Callable[[], object]


@dataclass(slots=True)
class _Waiting(Generic[ConnectionT]):
    """The calls that wait on one connection; there is one at least."""

    calls: set[PatientCall[ConnectionT]] = field(default_factory=set)
    asked_at_ms: float = -math.inf
    is_asking: bool = False

    def due_ms(self, heard_at_ms: float) -> float:
        if self.is_asking:
            return math.inf
        return min(max(heard_at_ms, self.asked_at_ms, call.begun_at_ms) + call.patience_ms for call in self.calls)


class SilentConnections(Generic[ConnectionT]):
    def __init__(self) -> None:
        self._waiting: dict[ConnectionT, _Waiting[ConnectionT]] = {}

    def begin(
        self, connection: ConnectionT, patience_ms: float, give_up: Callable[[], object], now_ms: float
    ) -> PatientCall[ConnectionT]:
        """A call waits on the connection from now on, until `end`."""
        call = PatientCall(connection, patience_ms, now_ms, give_up)
        self._waiting.setdefault(connection, _Waiting()).calls.add(call)
        return call

    def end(self, call: PatientCall[ConnectionT]) -> None:
        """It has its answer, or is not waited for any more. Safe to repeat."""
        waiting = self._waiting.get(call.connection)
        if waiting is not None:
            waiting.calls.discard(call)
            if not waiting.calls:
                del self._waiting[call.connection]

    def next_event(self) -> float:
        """When `tick` may have something to do; infinity while it has not, without any other event."""
        return min(
            (waiting.due_ms(connection.heard_at_ms) for connection, waiting in self._waiting.items()),
            default=math.inf,
        )

    def tick(self, now_ms: float) -> list[tuple[ConnectionT, float]]:
        """The connections on which a question is to be sent now, and how long each may take; `note_settled` or
        `note_unanswered` follows for each."""
        found = []
        for connection, waiting in self._waiting.items():
            if now_ms >= waiting.due_ms(connection.heard_at_ms):
                waiting.asked_at_ms, waiting.is_asking = now_ms, True
                found.append((connection, min(call.patience_ms for call in waiting.calls)))
        return found

    def note_settled(self, connection: ConnectionT) -> None:
        """The question was answered, or could not be asked: then the connection is broken, and its calls end by
        themselves."""
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.is_asking = False

    def note_unanswered(self, connection: ConnectionT) -> list[PatientCall[ConnectionT]]:
        """Nothing came in time: returns the calls to be given up, which have ended here."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            return []
        waiting.is_asking = False
        if connection.heard_at_ms >= waiting.asked_at_ms:
            return []
        del self._waiting[connection]
        return list(waiting.calls)
