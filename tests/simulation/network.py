"""Calls of all simulated worlds: a request may be lost, doubled, given up or timed out."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Protocol

from bus.errors import BusError, ErrorCode
from tests.simulation.world import SimulatedWorld


class RequestFaults(Protocol):
    """Chances of one in so many; 0: never."""

    @property
    def lost_request(self) -> int: ...
    @property
    def doubled_request(self) -> int: ...


def broken(why: str = "broken") -> BusError:
    return BusError(ErrorCode.NETWORK_EXCEPTION, f"simulated: {why}")


class SimulatedCall(ABC):
    """One request with one answer. `_at_server` has what answers it there."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._network = world
        self._is_over = False
        self._at_server: list[asyncio.Future[Any]] = []

    def _set_out(
        self, faults: RequestFaults, *, timeout_s: float, is_repeatable: bool = True, late_s: float = 0.0
    ) -> None:
        """`late_s`: so much later at most may the second one of a doubled request come."""
        network = self._network
        network.at(timeout_s, self._time_out)
        if network.chance(faults.lost_request):
            self._be_lost()
            return
        network.at(network.delay(), self._arrive)
        if is_repeatable and network.chance(faults.doubled_request):
            network.at(network.delay() + network.delay() + late_s * network.random.random(), self._arrive)

    def give_up(self) -> None:
        """The client is gone; the server may hear of it."""
        self._is_over = True
        if self._network.random.random() < 0.5:
            self._network.at(self._network.delay(), self._withdraw)

    def _withdraw(self) -> None:
        for answering in self._at_server:
            answering.cancel()

    def _be_lost(self) -> None:
        """Some losses are noticed soon, others not before the timeout."""
        if self._network.random.random() < 0.5:
            self._fail_soon("lost")

    def _fail_soon(self, why: str) -> None:
        self._network.at(self._network.delay(), lambda: self._end(broken(why)))

    def _break_off(self) -> None:
        self._fail_soon("the server is gone")

    def _time_out(self) -> None:
        if not self._is_over:
            self._end(BusError(ErrorCode.REQUEST_TIMED_OUT, "simulated: no answer in time"))
            self._withdraw()

    @abstractmethod
    def _arrive(self) -> None:
        """At the server, if it is still the one to which the request went."""

    @abstractmethod
    def _end(self, answer: Any) -> None:
        """The client gets `answer`, a `BusError` among others; only the first one counts."""
