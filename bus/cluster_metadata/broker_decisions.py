"""Decisions about the brokers of a cluster: which one is the controller, which are registered, which may lead.

Guards these promises: each life of a broker has a broker epoch above every earlier one; a broker that is fenced leads
nothing unless no broker is unfenced; every leader is registered. At level 0 a root has one broker, which is written as
the records of that level say it, and everything that needs several brokers is refused. Which brokers are alive comes in
as an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bus.cluster_metadata import cluster_records as records
from bus.cluster_metadata.broker_liveness import is_cut_off
from bus.cluster_metadata.broker_records import encode_listeners, parse_listeners
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_state import (
    BUS_VERSION,
    LEVEL_MAX,
    LEVEL_MIN,
    LEVEL_OF_CLUSTERS,
    LEVEL_OF_LISTENERS,
    Broker,
    ClusterState,
)
from bus.cluster_metadata.partition_placement import count_moved, move_leaders, refuse_level
from bus.errors import ErrorCode, Refused, count_of, show_names, show_range
from bus.model import BrokerEndpoint, Step
from bus.settings.broker import BrokerConfig

_LISTENERS_MAX = 64
_TEXT_LENGTH_MAX = 255  # for host, rack and incarnation


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """One life of a broker, as it says itself. `incarnation` is another one in each life."""

    endpoint: BrokerEndpoint
    incarnation: str
    rack: str | None = None
    level_min: int = LEVEL_MIN
    level_max: int = LEVEL_MAX


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker, its incarnation and its root, as they answer at an address."""

    cluster_id: str
    broker_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Elected:
    broker_id: int
    broker_epoch: int  # 0 at level 0
    partitions: int  # how many it leads now


@dataclass(frozen=True, slots=True)
class ShutdownGranted:
    """The broker is fenced. `partitions_left`: those that it still leads, as no other broker is unfenced."""

    partitions_moved: int
    partitions_left: int


def decide_elect_controller(
    state: ClusterState, command: RegisterBroker, *, gone_broker_ids: Collection[int] = ()
) -> Step[ClusterRecord, Elected]:
    """The first change under a new controller epoch: the broker is the controller, registered and unfenced.

    A new life of it gets a new broker epoch, and every partition that it leads a new leader epoch, by one record for
    all of them, so that what an earlier life may still have in flight is fenced. A life that is registered keeps both.
    The brokers of which the caller knows that they are gone are fenced, and their partitions get other leaders; at
    level 0 they are unregistered, and this broker leads all.
    """
    own = command.endpoint.broker_id
    gone = set(gone_broker_ids) & state.brokers.keys() - {own}
    if state.level < LEVEL_OF_CLUSTERS:
        return _start_alone(state, command.endpoint, sorted(gone))
    before = state.brokers.get(own)
    changes: list[ClusterRecord] = [records.ControllerElected(own, command.incarnation)]
    epoch = state.broker_epoch_max + 1
    if before is not None and before.incarnation == command.incarnation:
        epoch = before.broker_epoch
        changes += _amend(command, before)
        if before.is_fenced:
            changes.append(records.BrokerUnfenced(own, epoch))
    else:
        changes += [*_started(command, epoch), records.BrokerUnfenced(own, epoch)]
        if state.leader_counts.get(own):
            changes.append(records.LeaderEpochsRaised(own))
    changes += [_fenced(state, one) for one in sorted(gone) if not state.brokers[one].is_fenced]
    unfenced = sorted({own, *state.unfenced_brokers} - gone)
    moves = move_leaders(state, state.brokers.keys() - set(unfenced), unfenced)
    led_count = state.leader_counts.get(own, 0) + count_moved(moves, to=own)
    return Step(Elected(own, epoch, led_count), (*changes, *moves))


def _start_alone(state: ClusterState, endpoint: BrokerEndpoint, gone: Collection[int]) -> Step[ClusterRecord, Elected]:
    own = endpoint.broker_id
    led_count = state.leader_counts.get(own, 0)
    taken = [
        records.LeaderChanged(topic.name, topic.topic_id, number, own, leadership.leader_epoch + 1)
        for topic in state.topics.values()
        for number, leadership in enumerate(topic.partitions)
        if leadership.leader_id in gone
    ]
    return Step(
        Elected(own, 0, led_count + len(taken)),
        (
            records.BrokerRegistered(own, endpoint.host, endpoint.port),
            *((records.LeaderEpochsRaised(own),) if led_count else ()),
            *taken,
            *(records.BrokerUnregistered(broker_id) for broker_id in gone),
        ),
    )


def decide_register_broker(state: ClusterState, command: RegisterBroker) -> Step[ClusterRecord, int | Refused]:
    """Registers a life of a broker, fenced; the response is its broker epoch. An earlier life of it has ended, as the
    lock of its id was free. A life that registers again keeps its epoch, and stays fenced or unfenced as it is. What
    an earlier life leads gets other leaders, if there is an unfenced broker.

    Refused: UNSUPPORTED_VERSION (level 0, or one that the broker cannot work at), INVALID_REGISTRATION.
    """
    refused = (
        _check_level(state, "more than one broker")
        or check_listeners_level(state, command)
        or _check_registration(state, command)
    )
    if refused is not None:
        return Step(refused)
    broker_id = command.endpoint.broker_id
    before = state.brokers.get(broker_id)
    if before is not None and before.incarnation == command.incarnation:
        return Step(before.broker_epoch, tuple(_amend(command, before)))
    epoch = state.broker_epoch_max + 1
    others = [one for one in state.unfenced_brokers if one != broker_id]
    moves: list[ClusterRecord] = move_leaders(state, [broker_id], others) if others else []
    if not others and state.leader_counts.get(broker_id):
        moves = [records.LeaderEpochsRaised(broker_id)]
    return Step(epoch, (*_started(command, epoch), *moves))


def check_advertised_address(
    command: RegisterBroker, found: BrokerIdentity | Refused, *, cluster_id: str
) -> Refused | None:
    """A broker that the controller does not reach at its address would be no use as a leader, and as the controller it
    would fence all others. `found`: who answered there, or why there was no answer.

    Refused: BROKER_NOT_AVAILABLE (no answer), INVALID_REGISTRATION (another broker, another life, another root).
    """
    endpoint = command.endpoint
    where = f"broker {endpoint.broker_id} advertises {endpoint.address}"
    if isinstance(found, Refused):
        message = f"{where}, where the controller does not reach it: {found.message}"
        return Refused(ErrorCode.BROKER_NOT_AVAILABLE, message)
    if found.cluster_id != cluster_id:
        who = f"a broker of another root, with cluster id {found.cluster_id[:_TEXT_LENGTH_MAX]!r}"
    elif found.broker_id != endpoint.broker_id:
        who = f"broker {found.broker_id}"
    elif found.incarnation != command.incarnation:
        who = "another process that is this broker"
    else:
        return None
    return Refused(ErrorCode.INVALID_REGISTRATION, f"{where}, where the controller reaches {who}")


def decide_unfence_broker(
    state: ClusterState, broker_id: int, broker_epoch: int
) -> Step[ClusterRecord, Refused | None]:
    """The broker may lead from now on. It takes over what fenced brokers lead, if it is the first one that is unfenced.
    Refused: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH, UNSUPPORTED_VERSION (level 0)."""
    broker = _registered(state, broker_id, broker_epoch)
    if isinstance(broker, Refused):
        return Step(broker)
    if not broker.is_fenced:
        return Step(None)
    unfenced = sorted([*state.unfenced_brokers, broker_id])
    moves = move_leaders(state, state.brokers.keys() - set(unfenced), unfenced)
    return Step(None, (records.BrokerUnfenced(broker_id, broker_epoch), *moves))


def decide_fence_brokers(
    state: ClusterState, broker_epochs: Mapping[int, int]
) -> Step[ClusterRecord, Sequence[int] | Refused]:
    """Fence brokers whose sessions have ended, and give their partitions other leaders; the response names the fenced
    brokers. Ignores a broker that is fenced or gone, or has another broker epoch by now. Refused: UNSUPPORTED_VERSION
    (level 0)."""
    refused = _check_level(state, "a fenced broker")
    if refused is not None:
        return Step(refused)
    fenced = [one for one in state.unfenced_brokers if state.brokers[one].broker_epoch == broker_epochs.get(one)]
    return Step(fenced, (*(_fenced(state, one) for one in fenced), *_move_from(state, fenced)))


def decide_controlled_shutdown(
    state: ClusterState, broker_id: int, broker_epoch: int
) -> Step[ClusterRecord, ShutdownGranted | Refused]:
    """Fence a broker that is about to stop, and give its partitions other leaders. The last unfenced broker keeps its
    partitions and stays unfenced. The broker may stop when every unfenced broker has applied the records. Refused as
    `decide_unfence_broker`."""
    broker = _registered(state, broker_id, broker_epoch)
    if isinstance(broker, Refused):
        return Step(broker)
    led_count = state.leader_counts.get(broker_id, 0)
    if broker.is_fenced or state.unfenced_brokers == [broker_id]:
        return Step(ShutdownGranted(0, led_count))
    return Step(ShutdownGranted(led_count, 0), (_fenced(state, broker_id), *_move_from(state, [broker_id])))


def decide_hand_over(
    state: ClusterState, broker_id: int, broker_epoch: int, count_max: int
) -> Step[ClusterRecord, Refused | None]:
    """Give up to `count_max` partitions of a broker that is about to stop other leaders; the broker continues. The last
    unfenced broker keeps all. Refused as `decide_unfence_broker`."""
    broker = _registered(state, broker_id, broker_epoch)
    if isinstance(broker, Refused):
        return Step(broker)
    return Step(None, tuple(_move_from(state, [broker_id], count_max=count_max)))


def decide_unregister_broker(state: ClusterState, broker_id: int) -> Step[ClusterRecord, Refused | None]:
    """A broker that is decommissioned. Refused: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST for the last broker, for the
    controller, and while it leads or is a replica; UNSUPPORTED_VERSION (level 0)."""
    refused = _check_level(state, "a broker that leaves")
    if refused is not None:
        return Step(refused)
    if broker_id not in state.brokers:
        return Step(_not_registered(state, broker_id))
    reason = _reason_to_stay(state, broker_id)
    if reason is not None:
        message = f"broker {broker_id} cannot be unregistered: {reason}"
        return Step(Refused(ErrorCode.INVALID_REQUEST, message))
    return Step(None, (records.BrokerUnregistered(broker_id),))


def decide_upgrade_features(state: ClusterState, level: int) -> Step[ClusterRecord, int | Refused]:
    """Finalizes a level of bus.version, for ever: records of that level may be written from now on. The response is the
    level. Brokers that were registered at level 0 say no range: such a root has one broker, the caller.

    Refused: INVALID_UPDATE_VERSION for a level that is lower than now, or that this program or a registered broker
    cannot work at.
    """
    if level == state.level:
        return Step(level)
    if not state.level < level <= LEVEL_MAX:
        message = f"expected a level of {BUS_VERSION} {show_range(state.level, LEVEL_MAX)}, found {level}"
        return Step(Refused(ErrorCode.INVALID_UPDATE_VERSION, message))
    unable = [
        broker.broker_id
        for broker in state.brokers.values()
        if broker.broker_epoch > 0 and not broker.level_min <= level <= broker.level_max
    ]
    if unable:
        message = f"{BUS_VERSION} {level}: expected brokers that can work at it, found {show_names(map(str, unable))}"
        return Step(Refused(ErrorCode.INVALID_UPDATE_VERSION, message))
    return Step(level, (records.FeatureLevel(BUS_VERSION, level),))


# ------------------------------------------------------------------ checks


def check_listeners_level(state: ClusterState, command: RegisterBroker) -> Refused | None:
    """Refused, UNSUPPORTED_VERSION: a broker with other listeners than PLAINTEXT, on a root whose level has no record
    for them. A root without brokers gets the highest level with its first one."""
    if not command.endpoint.listeners or state.level >= LEVEL_OF_LISTENERS or not state.brokers:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"listeners need {BUS_VERSION} {LEVEL_OF_LISTENERS}, found {state.level}: start the broker with listen, run "
        "bus cluster features upgrade once all brokers are of this version, then start it with listeners",
    )


def _check_level(state: ClusterState, what: str) -> Refused | None:
    return refuse_level(state, what) if state.level < LEVEL_OF_CLUSTERS else None


def _check_registration(state: ClusterState, command: RegisterBroker) -> Refused | None:
    endpoint = command.endpoint
    is_right = (
        0 <= endpoint.broker_id < 2**31
        and _is_text(endpoint.host)
        and " " not in endpoint.host
        and 1 <= endpoint.port <= 65535
        and (command.rack is None or _is_text(command.rack))
        and _is_text(command.incarnation)
        and _are_listeners(endpoint)
        and 0 <= command.level_min <= command.level_max < 2**31
    )
    if not is_right:
        text = show_names([f"{command}"])
        message = f"expected a broker with host, port, incarnation and a rack if any, as printable text, found {text}"
        return Refused(ErrorCode.INVALID_REGISTRATION, message)
    if not command.level_min <= state.level <= command.level_max:
        return Refused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"expected a broker that can work at {BUS_VERSION} {state.level}, found broker {endpoint.broker_id} "
            f"with levels {command.level_min} to {command.level_max}",
        )
    return None


def _are_listeners(endpoint: BrokerEndpoint) -> bool:
    """True if the encoded listeners can be read back, and their number and size are bounded."""
    listeners = endpoint.listeners
    if not listeners:
        return True
    if len(listeners) > _LISTENERS_MAX or not all(_is_text(one.host) and len(one.name) <= 64 for one in listeners):
        return False
    try:
        return parse_listeners(encode_listeners(listeners)) == listeners
    except ValueError:
        return False


def _is_text(text: str) -> bool:
    return 1 <= len(text) <= _TEXT_LENGTH_MAX and text.isprintable()


def _registered(state: ClusterState, broker_id: int, broker_epoch: int) -> Broker | Refused:
    refused = _check_level(state, "a broker in a cluster")
    if refused is not None:
        return refused
    broker = state.brokers.get(broker_id)
    if broker is None:
        return _not_registered(state, broker_id)
    if broker.broker_epoch != broker_epoch:
        message = f"broker {broker_id}: expected broker epoch {broker.broker_epoch}, found {broker_epoch}"
        return Refused(ErrorCode.STALE_BROKER_EPOCH, message)
    return broker


def _not_registered(state: ClusterState, broker_id: int) -> Refused:
    known = show_names(map(str, sorted(state.brokers)))
    return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"expected one of the brokers {known}, found {broker_id}")


def _reason_to_stay(state: ClusterState, broker_id: int) -> str | None:
    if len(state.brokers) == 1:
        return "it is the last broker"
    if state.controller is not None and state.controller.broker_id == broker_id:
        return "it is the controller"
    led_count = state.leader_counts.get(broker_id)
    if led_count:
        return f"it leads {count_of(led_count, 'partition')}"
    followed_count = sum(broker_id in replicas for topic in state.topics.values() for replicas in topic.assignments)
    return f"it is a replica of {count_of(followed_count, 'partition')}" if followed_count else None


# ------------------------------------------------------------------ records


def _started(command: RegisterBroker, broker_epoch: int) -> list[ClusterRecord]:
    endpoint = command.endpoint
    started = records.BrokerStarted(
        endpoint.broker_id,
        endpoint.host,
        endpoint.port,
        command.rack,
        command.incarnation,
        broker_epoch,
        command.level_min,
        command.level_max,
    )
    if not endpoint.listeners:
        return [started]
    return [started, records.BrokerListeners(endpoint.broker_id, broker_epoch, encode_listeners(endpoint.listeners))]


def _amend(command: RegisterBroker, before: Broker) -> list[ClusterRecord]:
    """Return records for what the incarnation newly says of itself, none if it says nothing new."""
    known = (before.endpoint, before.rack, before.level_min, before.level_max)
    says = (command.endpoint, command.rack, command.level_min, command.level_max)
    return [] if says == known else _started(command, before.broker_epoch)


def _fenced(state: ClusterState, broker_id: int) -> records.BrokerFenced:
    return records.BrokerFenced(broker_id, state.brokers[broker_id].broker_epoch)


def _move_from(state: ClusterState, leaving: Collection[int], *, count_max: int | None = None) -> list[ClusterRecord]:
    unfenced = [one for one in state.unfenced_brokers if one not in leaving]
    return move_leaders(state, leaving, unfenced, count_max=count_max) if unfenced else []


def _show(broker: Broker) -> str:
    return broker.endpoint.address


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_ms: float
    applied_offset: int  # one past the last record of the cluster metadata that the broker has applied
    start_offset: int  # the broker may be unfenced once it has applied the records below it
    wants_fence: bool = False
    is_unanswered: bool = False  # its last heartbeat said so


class BrokerSessions:
    """The brokers that the controller considers alive, by their heartbeats. Soft state of one controller: no record
    holds it, and a new controller begins with fresh sessions. A session decides only when a broker is fenced, never
    what is safe. Guards three promises: a heartbeat of an earlier incarnation of a broker extends nothing; a time in
    which the controller itself stalled counts against no broker (KAFKA-15019); and a controller that is cut off from
    the others fences no working broker. Times are milliseconds of one monotonic clock.

    `check` is to be called once per `broker.heartbeat.interval.ms`: a later call is the controller's stall.

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
        self._arrived_ms = now_ms  # when a call of another broker arrived last
        self.is_cut_off = False  # at the last check
        self._sessions = {
            broker_id: _Session(broker.broker_epoch, now_ms, 0, end_offset)
            for broker_id, broker in state.brokers.items()
            if broker_id not in gone_broker_ids and broker_id != controller_id
        }

    def note_arrival(self, now_ms: float) -> None:
        """Take note that another broker has registered, or has tried to."""
        self._arrived_ms = now_ms

    def hears_nobody(self, now_ms: float) -> bool:
        """Tell whether no call of another broker, taken or refused, has arrived for a session. To be asked after a
        check."""
        return now_ms - self._arrived_ms > self._timeout_ms

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
        self._arrived_ms = now_ms
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
        self._arrived_ms = min(now_ms, self._arrived_ms + stall_ms)
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
        """True if the registered incarnation of the broker has a session. A stall is noticed only at the next check."""
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
        """True if every unfenced broker has applied the records below `offset`, so that these hold everywhere."""
        return all(
            broker_id == self._controller_id
            or ((session := self._sessions.get(broker_id)) is not None and session.applied_offset >= offset)
            for broker_id in state.unfenced_brokers
        )
