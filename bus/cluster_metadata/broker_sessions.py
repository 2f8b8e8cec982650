"""Which brokers the controller takes for alive, by their heartbeats.

Soft state of one controller: no record holds it, and a new controller begins with fresh sessions. A session decides
only when a broker is to be fenced, never what is safe. Guards three promises: a heartbeat of an earlier life of a
broker extends nothing; a time in which the controller itself stood still counts against no broker (KAFKA-15019); and a
controller that is cut off from the others fences none that is at work. Times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.cluster_metadata.broker_leases import is_cut_off
from bus.cluster_metadata.cluster_state import ClusterState
from bus.config.broker import BrokerConfig
from bus.errors import ErrorCode, Refused


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_ms: float
    applied_offset: int  # one past the last record of the cluster metadata that the broker has applied
    start_offset: int  # the broker may be unfenced once it has applied so much
    wants_fence: bool = False
    is_unanswered: bool = False  # its last heartbeat said so


class BrokerSessions:
    """`check` is to be called once per `broker.heartbeat.interval.ms`: what it comes later is the controller's stall.

    The controller's own broker needs no session: it is alive. `end_offset`: one past the last record of the cluster
    metadata.
    """

    def __init__(
        self,
        state: ClusterState,
        config: BrokerConfig,
        *,
        controller_id: int,
        end_offset: int,
        now_ms: float,
        gone_broker_ids: Collection[int] = (),
    ) -> None:
        """Every registered broker gets a fresh session, but those of which the caller knows that they are gone."""
        self._controller_id = controller_id
        self._timeout_ms = config.broker_session_timeout_ms
        self._interval_ms = config.broker_heartbeat_interval_ms
        self._checked_ms = now_ms
        self.is_cut_off = False  # as of the last check
        self._sessions = {
            broker_id: _Session(broker.broker_epoch, now_ms, 0, end_offset)
            for broker_id, broker in state.brokers.items()
            if broker_id not in gone_broker_ids and broker_id != controller_id
        }

    def begin(self, broker_id: int, broker_epoch: int, *, end_offset: int, now_ms: float) -> None:
        """After a registration is committed: of a new life, or again of the one that has a session."""
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.heard_ms = now_ms
        else:
            self._sessions[broker_id] = _Session(broker_epoch, now_ms, 0, end_offset)

    def heartbeat(
        self,
        state: ClusterState,
        broker_id: int,
        broker_epoch: int,
        incarnation: str,
        *,
        applied_offset: int,
        end_offset: int,
        now_ms: float,
        wants_fence: bool = False,
        is_unanswered: bool = False,
    ) -> Refused | None:
        """Extends the session. A fenced broker whose session ended, and that is heard again, has one again. It may have
        applied a record whose commit has not ended at the controller; but of `applied_offset` no more is believed than
        `end_offset`, up to which the controller knows the log.

        A broker that answers do not reach (`is_unanswered`) is reached by nobody, or the controller by none: its
        session is not extended, and ends soon; nor is it unfenced.

        Refused: BROKER_ID_NOT_REGISTERED; STALE_BROKER_EPOCH for another broker epoch or incarnation than the
        registered one. Either way the broker has to register again.
        """
        broker = state.brokers.get(broker_id)
        if broker is None:
            message = f"expected a registered broker, found broker {broker_id}"
            return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if broker.life != (incarnation, broker_epoch):
            expected, found = f"{broker.broker_epoch} of {broker.incarnation}", f"{broker_epoch} of {incarnation}"
            message = f"broker {broker_id}: expected broker epoch {expected}, found {found}"
            return Refused(ErrorCode.STALE_BROKER_EPOCH, message)
        known = self._sessions.get(broker_id)
        heard_ms = now_ms if known is None or known.broker_epoch != broker_epoch else known.heard_ms
        self.begin(broker_id, broker_epoch, end_offset=end_offset, now_ms=now_ms)
        session = self._sessions[broker_id]
        if is_unanswered:
            session.heard_ms = min(heard_ms, now_ms - self._timeout_ms + 2 * self._interval_ms)
        session.wants_fence, session.is_unanswered = wants_fence, is_unanswered
        session.applied_offset = max(session.applied_offset, min(applied_offset, end_offset))
        return None

    def check(self, state: ClusterState, now_ms: float, working: Collection[int] = ()) -> dict[int, int]:
        """Broker epochs, by id, of the unfenced brokers that are to be fenced. The same ones again, until they are.

        `working`: brokers that are at work, whether they are heard or not, by their leases. If those are the greater
        part, it is the controller that is cut off: they are spared, and decide about it themselves."""
        stall_ms = max(0.0, now_ms - self._checked_ms - self._interval_ms)
        self._checked_ms = now_ms
        for broker_id, session in list(self._sessions.items()):
            session.heard_ms = min(now_ms, session.heard_ms + stall_ms)
            if broker_id not in state.brokers:
                del self._sessions[broker_id]
        heard = {broker_id for broker_id in state.brokers if self.is_live(state, broker_id, now_ms)}
        self.is_cut_off = is_cut_off(heard, state.brokers.keys() & {*working, *heard})
        spared = set(working) if self.is_cut_off else set()
        return {
            broker_id: state.brokers[broker_id].broker_epoch
            for broker_id in state.unfenced_brokers
            if broker_id not in heard and broker_id not in spared
        }

    def find_late(self, state: ClusterState, now_ms: float) -> list[int]:
        """Registered brokers that were not heard for half a session, if an unfenced one is among them: their leases
        will tell which side is cut off."""
        late = [
            broker_id
            for broker_id in sorted(state.brokers)
            if broker_id != self._controller_id
            and ((session := self._sessions.get(broker_id)) is None or now_ms - session.heard_ms > self._timeout_ms / 2)
        ]
        return late if any(not state.brokers[broker_id].is_fenced for broker_id in late) else []

    def find_failing(self, state: ClusterState) -> dict[int, int]:
        """Broker epochs, by id, of the unfenced brokers that ask to be fenced."""
        return {
            broker_id: session.broker_epoch
            for broker_id in state.unfenced_brokers
            if (session := self._sessions.get(broker_id)) is not None and session.wants_fence
        }

    def is_live(self, state: ClusterState, broker_id: int, now_ms: float) -> bool:
        """Whether the registered life of the broker has a session. Between two checks a stall is not known yet."""
        if broker_id == self._controller_id:
            return True
        session = self._sessions.get(broker_id)
        broker = state.brokers.get(broker_id)
        return (
            session is not None
            and broker is not None
            and session.broker_epoch == broker.broker_epoch
            and now_ms - session.heard_ms < self._timeout_ms
        )

    def may_unfence(self, state: ClusterState, broker_id: int, now_ms: float) -> bool:
        """Tell whether the broker is fenced, alive, reached by answers, does not ask to be fenced, and has applied its
        own registration. The end of the log does not count: it may move faster than the broker follows
        (KAFKA-13959)."""
        broker, session = state.brokers.get(broker_id), self._sessions.get(broker_id)
        return (
            broker is not None
            and broker.is_fenced
            and session is not None
            and not session.wants_fence
            and not session.is_unanswered
            and self.is_live(state, broker_id, now_ms)
            and session.applied_offset >= session.start_offset
        )

    def have_applied(self, state: ClusterState, offset: int) -> bool:
        """Whether every unfenced broker has applied the records below `offset`: what they say holds everywhere."""
        return all(
            broker_id == self._controller_id
            or ((session := self._sessions.get(broker_id)) is not None and session.applied_offset >= offset)
            for broker_id in state.unfenced_brokers
        )
