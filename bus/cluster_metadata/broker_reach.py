"""The brokers that the controller reaches at the addresses that they advertise, and those that nobody seems to reach.

A broker whose heartbeats go out, and are answered, may be reached by nobody: no client, and no other broker. So the
controller asks each one who it is, at its address, all the time. Soft state of one controller, as sessions are: it says
when to fence, never what is safe. Guards three promises: a broker that nobody reaches is fenced a session after the
first question that it has not answered, and not unfenced before it has answered one; a controller that is not answered
by more than half of the brokers that it hears, itself among them, holds that against none of them; and a time in which
the controller stood still is no silence of theirs. Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.cluster_metadata.broker_leases import is_majority
from bus.cluster_metadata.cluster_state import Broker, ClusterState


@dataclass(slots=True)
class _Probe:
    life: tuple[str, int]
    begun_ms: float  # start of the last probe
    is_waiting: bool = False  # no answer to the last question yet
    has_answered: bool = False  # ever
    silent_ms: float | None = None  # start of the first probe that failed since the last answer


class BrokerReach:
    """The brokers that answer the controller's probes. `find_due` is to be called at least once per `tick_ms`: a later
    call is the controller's stall. The controller's own broker is not probed: it counts as reached."""

    def __init__(self, session_ms: float, *, tick_ms: float, controller_id: int, now_ms: float) -> None:
        self._session_ms = session_ms
        self._interval_ms, self._retry_ms = session_ms / 2, session_ms / 8
        # A network may swallow what is sent on one connection: within a session there is time for another one.
        self.timeout_ms = session_ms * 3 / 4
        self._tick_ms = tick_ms
        self._ticked_ms = now_ms
        self._controller_id = controller_id
        self._probes: dict[int, _Probe] = {}

    def find_due(self, state: ClusterState, now_ms: float) -> list[Broker]:
        """Return the brokers that are due for a probe, and note that it begins. Each broker has one probe at a time;
        `note` ends it."""
        stall_ms = max(0.0, now_ms - self._ticked_ms - self._tick_ms)
        self._ticked_ms = now_ms
        for broker_id, probe in list(self._probes.items()):
            probe.begun_ms = min(now_ms, probe.begun_ms + stall_ms)
            if probe.silent_ms is not None:
                probe.silent_ms = min(now_ms, probe.silent_ms + stall_ms)
            broker = state.brokers.get(broker_id)
            if broker is None or broker.life != probe.life:
                del self._probes[broker_id]
        others = [broker for broker_id, broker in state.brokers.items() if broker_id != self._controller_id]
        due = [broker for broker in others if self._is_due(broker, now_ms)]
        for broker in due:
            probe = self._probes.setdefault(broker.broker_id, _Probe(broker.life, now_ms))
            probe.begun_ms, probe.is_waiting = now_ms, True
        return due

    def _is_due(self, broker: Broker, now_ms: float) -> bool:
        probe = self._probes.get(broker.broker_id)
        if probe is None:
            return True
        pause_ms = self._interval_ms if probe.silent_ms is None else self._retry_ms
        return not probe.is_waiting and now_ms - probe.begun_ms >= pause_ms

    def note(self, broker: Broker, *, is_answer: bool) -> None:
        """Take the outcome of the question to that life of a broker: whether it, and nobody else, has answered."""
        probe = self._probes.get(broker.broker_id)
        if probe is None or probe.life != broker.life:
            return
        probe.is_waiting = False
        if is_answer:
            probe.has_answered, probe.silent_ms = True, None
        elif probe.silent_ms is None:
            probe.silent_ms = probe.begun_ms

    def note_registered(self, broker_id: int, life: tuple[str, int], now_ms: float) -> None:
        """Take note that this life has answered at its address, as it registered."""
        self._probes[broker_id] = _Probe(life, now_ms, has_answered=True)

    def find_unreached(self, state: ClusterState, heard: Collection[int], now_ms: float) -> dict[int, int]:
        """Return the broker epochs, by id, of the unfenced brokers that are heard and have answered nothing for a
        session. Empty if those that do answer are not more than half of all that are heard: then it may be the
        controller that reaches nobody, and of two nobody can tell."""
        everyone = {*heard, self._controller_id}
        silent = {broker_id for broker_id in everyone if self._is_silent(state, broker_id, now_ms)}
        answering = {one for one in everyone - silent if one == self._controller_id or self._has_answered(state, one)}
        if not is_majority(answering, everyone):
            return {}
        return {one: state.brokers[one].broker_epoch for one in state.unfenced_brokers if one in silent}

    def is_reached(self, state: ClusterState, broker_id: int) -> bool:
        """Tell whether the registered life of the broker has answered, and has left nothing unanswered since."""
        probe = self._find(state, broker_id)
        is_own = broker_id == self._controller_id
        return is_own or (probe is not None and probe.has_answered and probe.silent_ms is None)

    def _is_silent(self, state: ClusterState, broker_id: int, now_ms: float) -> bool:
        probe = self._find(state, broker_id)
        return probe is not None and probe.silent_ms is not None and now_ms - probe.silent_ms >= self._session_ms

    def _has_answered(self, state: ClusterState, broker_id: int) -> bool:
        probe = self._find(state, broker_id)
        return probe is not None and probe.has_answered

    def _find(self, state: ClusterState, broker_id: int) -> _Probe | None:
        probe, broker = self._probes.get(broker_id), state.brokers.get(broker_id)
        return probe if probe is not None and broker is not None and probe.life == broker.life else None
