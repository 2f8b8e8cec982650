"""Signs of life of brokers: their leases, which come through where the network is cut, and their answers to the
controller at the addresses that they advertise.

A lease is a small file that a broker writes anew all the time, in the way in which it commits. So it changes as long as
the broker is at work and can write. Guards three promises: a controller is replaced against its will only if more than
half of the brokers that are at work cannot reach it, and one that finds out that nobody reaches it says so itself; a
controller that hears less than half of them fences none that is at work; and a fault of the storage that all brokers
have is held against none of them. Signs of life say when to try, never what is safe. Times are milliseconds of one
monotonic clock, the watching broker's own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bus.cluster_metadata.cluster_state import Broker, ClusterState

# The size of a small commit: a lease must not succeed where the disk has no room for one.
_LEASE_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Lease:
    """`unreached`: the incarnation of the controller that has taken no heartbeat of this broker for a session. Of a
    controller that resigns, as nobody reaches it, its own."""

    renewals: int
    unreached: str = ""


def encode_lease(lease: Lease) -> bytes:
    return f"{lease.renewals} {lease.unreached}".encode().ljust(_LEASE_BYTES - 1) + b"\n"


def decode_lease(data: bytes) -> Lease:
    """Read whatever is there: a lease that cannot be read says that its broker reaches the controller."""
    renewals, _, unreached = data.decode(errors="replace").partition(" ")
    is_number = renewals.isdecimal() and len(renewals) < 20
    return Lease(int(renewals), unreached.strip()) if is_number else Lease(0)


@dataclass(slots=True)
class _Seen:
    content: bytes
    lock: bytes
    since_ms: float
    read_ms: float
    has_changed: bool = False  # while it was watched


class LeaseWatch:
    """The leases of other brokers, as far as they were read."""

    def __init__(self, session_ms: float) -> None:
        self._session_ms = session_ms
        self._seen: dict[int, _Seen] = {}

    def note(self, broker_id: int, content: bytes, now_ms: float, *, lock: bytes = b"") -> None:
        """Note the content of a lease file. The file is missing for a moment while it is rewritten, so its absence
        means nothing. `lock`: the content of the broker's lock, if there may be brokers that renew only that."""
        seen = self._seen.get(broker_id)
        if seen is None:
            self._seen[broker_id] = _Seen(content, lock, now_ms, now_ms)
            return
        if (content and seen.content != content) or (lock and seen.lock != lock):
            seen.has_changed = now_ms - seen.read_ms <= self._session_ms
            seen.content, seen.lock, seen.since_ms = content or seen.content, lock or seen.lock, now_ms
        seen.read_ms = now_ms

    def note_ended(self, broker_id: int) -> None:
        """Its process is gone."""
        self._seen.pop(broker_id, None)

    def was_read_since(self, broker_id: int, ms: float) -> bool:
        seen = self._seen.get(broker_id)
        return seen is not None and seen.read_ms > ms

    def is_silent(self, broker_id: int, now_ms: float) -> bool:
        """Tell whether it has not changed for a session. Of a broker of which nothing was ever read, no lease is known,
        and it is not held against it that it has none: heartbeats decide."""
        seen = self._seen.get(broker_id)
        return seen is not None and bool(seen.content or seen.lock) and now_ms - seen.since_ms > self._session_ms

    def find_working(self, now_ms: float) -> dict[int, Lease]:
        """The leases of the brokers that may be at work: they are not silent."""
        return {
            broker_id: decode_lease(seen.content)
            for broker_id, seen in self._seen.items()
            if now_ms - seen.since_ms <= self._session_ms
        }

    def was_seen_to_work(self, broker_id: int, now_ms: float) -> bool:
        """Tell whether it has renewed its lease within a session, before the eyes of this broker."""
        seen = self._seen.get(broker_id)
        return seen is not None and seen.has_changed and now_ms - seen.since_ms <= self._session_ms


class WriteSession:
    """Tells whether this broker can write, by the renewals of its own lease. `tick` is to be called each `tick_ms`: a
    time in which the broker stood still itself is no fault of the storage."""

    def __init__(self, session_ms: float, *, tick_ms: float, now_ms: float) -> None:
        self._session_ms = session_ms
        self._tick_ms = tick_ms
        self._ticked_ms = now_ms
        self._written_ms = now_ms  # when the last renewal that succeeded began
        self._failed_ms = -math.inf
        self.has_failed = False  # the last time
        self.cannot_write = False  # for at least the session time-out

    def note_success(self, began_ms: float) -> None:
        self._written_ms = max(self._written_ms, began_ms)
        self.has_failed = self.cannot_write = False

    def note_failure(self, now_ms: float) -> None:
        self._failed_ms = now_ms
        self.has_failed = True

    def tick(self, now_ms: float) -> None:
        stall_ms = now_ms - self._ticked_ms - 2 * self._tick_ms
        self._ticked_ms = now_ms
        if stall_ms > 0:
            self._written_ms += stall_ms
        self.cannot_write = now_ms - self._written_ms > self._session_ms

    def is_well(self, now_ms: float) -> bool:
        """Tell whether every renewal of the last session has succeeded: then it is their own fault if others fail."""
        return not self.cannot_write and now_ms - self._failed_ms > self._session_ms


def is_cut_off(heard: Collection[int], working: Collection[int]) -> bool:
    """Tell whether a controller does not hear more than half of the brokers that are at work, itself among them. At
    half of them it stays: nobody can tell which half the clients reach."""
    unheard = len(set(working) - set(heard))
    return 2 * unheard > len({*heard, *working})


def is_left_by_majority(leases: Mapping[int, Lease], incarnation: str) -> bool:
    """Tell whether more than half of the brokers that are at work, the controller of that incarnation among them,
    cannot reach it."""
    return is_majority([one for one, lease in leases.items() if lease.unreached == incarnation], leases)


def may_resign(reached: Collection[int], leases: Mapping[int, Lease], incarnation: str) -> bool:
    """Tell whether nobody reaches the controller of that incarnation, which has heard of no broker for a session, while
    it reaches them: more than half of the others that are at work, whose `leases` these are, are `reached` and say that
    they cannot reach it. If it does not reach them either, nobody can tell which side the clients reach."""
    return is_majority(
        [one for one, lease in leases.items() if lease.unreached == incarnation and one in reached], leases
    )


def may_replace(reached: Collection[int], leases: Mapping[int, Lease], *, controller_id: int, incarnation: str) -> bool:
    """Tell whether a candidate, who is in `reached` itself, reaches more than half of the brokers that are at work.
    Else it would be left by them in turn. The controller until now, of that incarnation, counts unless it has
    resigned."""
    controller = leases.get(controller_id)
    has_resigned = controller is not None and controller.unreached == incarnation
    standing = leases.keys() - {controller_id} if has_resigned else leases.keys()
    return is_majority(standing & set(reached), standing)


def is_majority(some: Collection[int], of: Collection[int]) -> bool:
    """Tell whether they are more than half."""
    return 2 * len(some) > len(of)


def election_rank(state: ClusterState, broker_id: int, gone_broker_ids: Collection[int] = ()) -> int:
    """Count the brokers that try to be elected before this one: those that are unfenced, then the fenced ones, which
    may be cut off or unable to write, and last the controller until now. Whose process has ended does not try."""
    controller = None if state.controller is None else state.controller.broker_id
    others = sorted(state.brokers.keys() - {controller, *gone_broker_ids})
    order = sorted(others, key=lambda one: state.brokers[one].is_fenced)
    return order.index(broker_id) if broker_id in order else len(order)


@dataclass(slots=True)
class _Probe:
    life: tuple[str, int]
    begun_ms: float  # start of the last probe
    is_waiting: bool = False  # no answer to the last question yet
    has_answered: bool = False  # ever
    silent_ms: float | None = None  # start of the first probe that failed since the last answer


class BrokerReach:
    """The brokers that answer the controller's probes at the addresses that they advertise.

    A broker whose heartbeats go out, and are answered, may be reached by nobody: no client, and no other broker. So the
    controller asks each one who it is, at its address, all the time. This is soft state of one controller, as sessions
    are. Guards three promises: a broker that nobody reaches is fenced a session after the first question that it has
    not answered, and not unfenced before it has answered one; a controller that is not answered by more than half of
    the brokers that it hears, itself among them, holds that against none of them; and a time in which the controller
    stood still is no silence of theirs. `find_due` is to be called at least once per `tick_ms`: a later call is the
    controller's stall. The controller's own broker is not probed: it counts as reached."""

    def __init__(self, session_ms: float, *, tick_ms: float, controller_id: int, now_ms: float) -> None:
        self._session_ms = session_ms
        self._interval_ms, self._retry_ms = session_ms / 2, session_ms / 8
        # A network may lose what is sent on one connection: within a session there is time for a second one.
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
        """Return the broker epochs, by id, of the unfenced brokers that send heartbeats and have answered no probe for
        a session. Empty unless more than half of all brokers that send heartbeats answer: otherwise the controller
        itself may reach nobody, and with two brokers nobody can tell."""
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
