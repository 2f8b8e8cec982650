"""This broker's life in the cluster: it joins, sends heartbeats, follows the metadata, and is elected their leader.

Theory of operation. One broker is the controller: the leader of the metadata log, elected by the first commit under a
higher epoch. Every other broker keeps one heartbeat at the controller, which is answered as soon as there are newer
metadata; then the broker reads them from the log. Guards one promise: no broker is elected because it alone cannot
reach the controller. Only if the controller's process has ended, or its lease has not changed for a session, or the
leases of most brokers that are at work say that they cannot reach it, is there an election; a broker that loses it
follows the winner. A controller that hears nobody, and reaches those who say so, adds its own word to theirs. Clocks
and leases say when to try; the log alone says who won.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection

from bus.cluster_metadata.broker_decisions import (
    Elected,
    RegisterBroker,
    check_listeners_level,
    decide_elect_controller,
    decide_upgrade_features,
)
from bus.cluster_metadata.broker_liveness import election_rank, is_left_by_majority, may_replace, may_resign
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import apply_all
from bus.cluster_metadata.cluster_state import LEVEL_MAX, LEVEL_OF_CLUSTERS, ClusterState, ElectedController
from bus.errors import ErrorCode, JoinRefused, NotController, Refused, StorageFault
from bus.model import BrokerEndpoint, Step
from bus.ports import Clock, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.broker_heartbeats import BrokerHeartbeats
from bus.runtime.metadata.lease_keeper import LeaseKeeper
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Peers
from bus.runtime.metadata.producers import ProducerUses
from bus.runtime.replicas.in_sync_replicas import LaggingReplicas
from bus.runtime.tasks import TaskScope, time_limit, together
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)

# The brokers that are alive try one after another, so that mostly the first one wins without a race.
_ELECTION_DELAY_S = 0.2
_RETRY_S = 0.1
_LEAVE_POLL_S = 0.02
# A candidate asks the others so long whether they reach it.
_PROBE_S = 0.5
# The controller may fail to reach a broker this many times before the broker gives up: a network may be slow for a
# moment.
_UNREACHED_MAX = 3
# Errors of a broker whose request is wrong; a retry helps none of them.
_FINAL = frozenset(
    {ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
_NOT_ALLOWED = "; name its principal in super.users of every broker, or allow it ClusterAction on the cluster"


class BrokerLifecycle:
    """`join`, `start`, `serve` once clients are answered, then `leave` and `stop`."""

    def __init__(
        self,
        broker: RegisterBroker,
        metadata: MetadataLog,
        heartbeats: BrokerHeartbeats,
        storage: Storage,
        peers: Peers,
        uses: ProducerUses,
        lagging: LaggingReplicas,
        leases: LeaseKeeper,
        config: BrokerConfig,
        *,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
        on_replaced: Callable[[Refused], None],
    ) -> None:
        """`on_replaced` is told that another process is this broker from now on."""
        self._on_replaced = on_replaced
        self._broker = broker
        self._id = broker.endpoint.broker_id
        self._metadata = metadata
        self._heartbeats = heartbeats
        self._storage = storage
        self._peers = peers
        self._uses = uses
        self._lagging = lagging
        self._leases = leases
        self._session_ms = config.broker_session_timeout_ms
        self._interval_ms = config.broker_heartbeat_interval_ms
        self._shutdown_ms = config.controlled_shutdown_timeout_ms
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._broker_epoch = -1
        # Whom heartbeats, or the registration, have got no answer from, and since when.
        self._unanswered: tuple[BrokerEndpoint, float] | None = None
        self._controller: ElectedController | None = None  # as of the newest metadata
        self._unfenced: frozenset[int] = frozenset()  # the same
        self._is_serving = False
        self._is_replaced = False
        self._wants_shut_down = False
        self._may_shut_down = False
        self._running: asyncio.Task[None] | None = None
        self._unreached_count = 0  # times in a row
        self._logged_reason = ""  # the reason why it is not in the cluster now, as far as it was logged

    # ------------------------------------------------------------------ joining

    async def join(self) -> None:
        """Wait until this broker is registered and has followed the metadata up to its registration, or is the
        controller. Raises `JoinRefused`, or another `StorageFault`."""
        self._leases.start()
        while True:
            if await self._try_to_join():
                return
            await asyncio.sleep(_RETRY_S)

    async def _try_to_join(self) -> bool:
        await self._metadata.follow()
        controller = self._metadata.controller
        if controller is None or controller.broker_id == self._id or await self._is_gone(controller.broker_id):
            return await self._elect()
        if await self._register(controller):
            return True
        return await self._has_failed(controller) and await self._elect()

    async def _register(self, controller: BrokerEndpoint) -> bool:
        self._begin_to_wait_for(controller)
        answer = await self._peers.register(controller, self._broker, cluster_id=self._storage.cluster_id)
        if isinstance(answer, Refused):
            self._unreached_count += answer.code is ErrorCode.BROKER_NOT_AVAILABLE
            if answer.code in _FINAL or self._unreached_count >= _UNREACHED_MAX:
                remedy = _NOT_ALLOWED if answer.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else ""
                raise JoinRefused(f"broker {self._id} cannot join the cluster: {answer.message}{remedy}")
            self._tell(f"broker {self._id} cannot join the cluster yet: {answer.code.name}: {answer.message}")
            return False
        self._unreached_count, self._logged_reason, self._unanswered = 0, "", None
        self._broker_epoch = answer.broker_epoch
        await self._metadata.follow()
        _log.info("broker %d has joined the cluster of controller %d", self._id, controller.broker_id)
        return self._metadata.applied_offset >= answer.metadata_offset

    def _tell(self, reason: str) -> None:
        if reason != self._logged_reason:
            self._logged_reason = reason
            _log.warning("%s", reason)

    # ------------------------------------------------------------------ elections

    async def _is_gone(self, broker_id: int) -> bool:
        return not await self._calls.control(functools.partial(self._storage.is_alive, broker_id))

    def _begin_to_wait_for(self, controller: BrokerEndpoint) -> None:
        if self._unanswered is None or self._unanswered[0] != controller:
            self._unanswered = controller, self._clock.monotonic_ms()

    def _unanswered_ms(self, controller: BrokerEndpoint) -> float:
        """Return for how long that controller has taken nothing from this broker."""
        waiting_for, since_ms = self._unanswered or (None, 0.0)
        return self._clock.monotonic_ms() - since_ms if waiting_for == controller else 0.0

    async def _has_failed(self, controller: BrokerEndpoint) -> bool:
        """Tell whether the controller, which has not answered, is to be replaced: its lease has not changed for a
        session, or most brokers say in theirs that they cannot reach it. Who is at work has to be known by then, so
        leases are read before the session is over."""
        unanswered_ms = self._unanswered_ms(controller)
        others = self._metadata.cluster.brokers if unanswered_ms > self._session_ms / 4 else ()
        await self._leases.look({controller.broker_id, *others})
        elected = self._metadata.cluster.controller
        if elected is None:
            return False
        if self._leases.watch.is_silent(controller.broker_id, self._clock.monotonic_ms()):
            return True
        if unanswered_ms <= self._session_ms:
            return False
        self._leases.tell(elected.incarnation)
        leases = self._leases.find_working()
        return is_left_by_majority(leases, elected.incarnation) and may_replace(
            await self._find_reached(leases.keys() - {controller.broker_id}),
            leases,
            controller_id=controller.broker_id,
            incarnation=elected.incarnation,
        )

    async def _is_to_resign(self) -> bool:
        """Tell whether this controller is to say that nobody reaches it: see `may_resign`."""
        if not self._heartbeats.hears_nobody:
            return False
        others = self._metadata.cluster.brokers.keys() - {self._id}
        await self._leases.look(others)
        leases = {one: lease for one, lease in self._leases.find_working().items() if one in others}
        own = self._broker.incarnation
        leaving = [one for one, lease in leases.items() if lease.unreached == own]
        return may_resign(await self._find_reached(leaving), leases, own)

    async def _find_reached(self, broker_ids: Collection[int]) -> set[int]:
        """Return those of the brokers that answer this one, and itself. Somebody else who answers at the address of one
        does not count, nor a broker at which this one cannot log in: where no broker can log in at another, as
        the identity provider is gone, no heartbeat reaches any controller, and each new one would be left in
        turn."""
        brokers = self._metadata.cluster.brokers

        async def find(broker_id: int) -> int | None:
            answer = await self._peers.identify(brokers[broker_id].endpoint, timeout_s=_PROBE_S, needs_login=True)
            is_there = not isinstance(answer, Refused) and (
                (answer.cluster_id, answer.broker_id) == (self._storage.cluster_id, broker_id)
            )
            return broker_id if is_there else None

        others = [one for one in broker_ids if one in brokers and one != self._id]
        return {self._id, *(one for one in await together([find(one) for one in others]) if one is not None)}

    async def _elect(self) -> bool:
        """Become the controller, unless another one is faster."""
        before = self._metadata.cluster.controller
        gone = await self._find_gone()
        delay_s = election_rank(self._metadata.cluster, self._id, gone) * _ELECTION_DELAY_S
        if delay_s:
            await asyncio.sleep(delay_s)
            await self._metadata.follow()
            if self._metadata.cluster.controller != before:
                return False
            gone = await self._find_gone()
        if before is not None and before.broker_id != self._id:
            gone.add(before.broker_id)  # its process has ended, or it has failed
        decide = functools.partial(_decide_election, command=self._broker, gone=gone)
        answer = await self._metadata.elect(decide, instead_of=before)
        if isinstance(answer, Refused):
            if answer.code in _FINAL:
                raise JoinRefused(f"broker {self._id} cannot lead the cluster: {answer.message}")
            self._tell(f"broker {self._id} was not elected: {answer.message}")
            return False
        self._broker_epoch = answer.broker_epoch
        self._heartbeats.begin(gone)
        _log.info("broker %d is the controller, at epoch %d", self._id, self._metadata.leader_epoch)
        return True

    async def _find_gone(self) -> set[int]:
        """Other brokers whose process has ended."""
        others = self._metadata.cluster.brokers.keys() - {self._id}

        def find() -> set[int]:
            return {broker_id for broker_id in others if not self._storage.is_alive(broker_id)}

        return await self._calls.control(find) if others else set()

    # ------------------------------------------------------------------ living

    def start(self) -> None:
        self._running = self._tasks.start(self._run(), "lifecycle")

    def follow(self, cluster: ClusterState) -> None:
        """Before all who act on the metadata. Locks keep two processes from being the same broker, where they work; if
        they did not, the later one is."""
        own = cluster.brokers.get(self._id)
        if own is not None and own.incarnation != self._broker.incarnation and not self._is_replaced:
            self._is_replaced = True
            reason = f"another process was registered as broker {self._id}, at {own.endpoint.address}"
            _log.critical("%s; this one does nothing more", reason)
            self._on_replaced(Refused(ErrorCode.NOT_CONTROLLER, reason))
        if cluster.controller != self._controller:
            # The failure that ended the last controller may have broken other connections too, unnoticed so far.
            self._controller = cluster.controller
            self._peers.suspect_all()
        unfenced = frozenset(cluster.unfenced_brokers)
        for broker_id in sorted(self._unfenced - unfenced):
            self._peers.give_up(broker_id)
        self._unfenced = unfenced

    def serve(self) -> None:
        """Clients are answered from now on: partitions may be led here."""
        self._is_serving = True

    async def wait_until_unfenced(self) -> None:
        """Wait until this broker is unfenced: new partitions are placed on it, and it may lead."""
        while self._id not in self._metadata.cluster.unfenced_brokers:
            await self._metadata.wait_until_applied(self._metadata.applied_offset + 1)

    async def leave(self) -> None:
        """Have others lead what this broker leads, and wait until they know; not longer than
        controlled.shutdown.timeout.ms."""
        self._wants_shut_down = True
        try:
            async with time_limit(self._shutdown_ms / 1000):
                await self._leave()
        except asyncio.TimeoutError:
            _log.warning("the other brokers have not taken over in time; they will once this broker is gone")

    async def _leave(self) -> None:
        """This broker may become the controller meanwhile, or another one. It may have stood still until now, and a
        fenced one may be unfenced at this moment: so it asks, unless the last metadata say that there is nobody to take
        over."""
        with contextlib.suppress(StorageFault):
            await self._metadata.confirm()
        while not self._may_shut_down and not self._is_replaced and self._has_successors():
            if self._metadata.is_leading:
                with contextlib.suppress(NotController):
                    await self._heartbeats.hand_over()
                    return
            await asyncio.sleep(_LEAVE_POLL_S)

    def _has_successors(self) -> bool:
        return any(one != self._id for one in self._metadata.cluster.unfenced_brokers)

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._leases.stop()

    async def _run(self) -> None:
        while not self._is_replaced:
            try:
                await (self._lead() if self._metadata.is_leading else self._follow())
            except StorageFault as fault:
                is_refused = isinstance(fault, JoinRefused)
                self._tell(str(fault) if is_refused else f"the cluster metadata cannot be followed for now: {fault}")
                await asyncio.sleep(self._interval_ms / 1000)
            except Exception:
                _log.exception("a round of the broker's life in the cluster failed; the next one follows")
                await asyncio.sleep(self._interval_ms / 1000)

    async def _lead(self) -> None:
        gone = await self._find_gone()
        await self._metadata.check_leading()
        if self._metadata.is_leading:
            self._logged_reason, self._unanswered = "", None
            await self._heartbeats.look(gone, await self._find_working_of(self._heartbeats.find_late()))
            await self._heartbeats.balance()
            self._say_whether_it_resigns(await self._is_to_resign())
        is_alone = self._metadata.cluster.is_alone(self._id)
        await asyncio.sleep(self._interval_ms / 1000 if is_alone else _RETRY_S)

    def _say_whether_it_resigns(self, resigns: bool) -> None:
        own = self._broker.incarnation
        if resigns and self._leases.own.unreached != own:
            _log.error("no broker reaches this one, the controller, which reaches them: it resigns")
        self._leases.tell(own if resigns else "")

    async def _find_working_of(self, broker_ids: Collection[int]) -> Collection[int]:
        if not broker_ids:
            return ()
        await self._leases.look(broker_ids)
        now_ms = self._clock.monotonic_ms()
        return {one for one in broker_ids if self._leases.watch.was_seen_to_work(one, now_ms)}

    async def _follow(self) -> None:
        controller = self._metadata.controller
        if controller is None or controller.broker_id == self._id:
            if not await self._try_to_join():
                await asyncio.sleep(_RETRY_S)
            return
        if not self._is_serving:
            await self._metadata.follow()
            await asyncio.sleep(_RETRY_S)
            return
        heartbeat = BrokerHeartbeat(
            broker_id=self._id,
            broker_epoch=self._broker_epoch,
            incarnation=self._broker.incarnation,
            metadata_offset=self._metadata.applied_offset,
            wants_shut_down=self._wants_shut_down,
            max_wait_ms=self._interval_ms,
            used_producer_ids=self._uses.find_due(self._metadata.cluster.controller, self._clock.monotonic_ms()),
            lagging=self._lagging.own(),
            wants_fence=self._leases.writes.cannot_write,
            is_unanswered=self._unanswered_ms(controller) > self._session_ms,
        )
        answer = await self._beat(controller, heartbeat)
        if not isinstance(answer, Refused):
            self._logged_reason, self._unanswered = "", None
            self._leases.tell("")
            self._uses.note_reported(heartbeat.used_producer_ids)
            self._lagging.follow(answer.lagging)
            self._may_shut_down = answer.should_shut_down
            return
        if answer.code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            _log.warning("broker %d registers again: %s", self._id, answer.message)
            await self._register(controller)
        elif self._metadata.controller == controller:
            self._tell(f"no heartbeat reached the controller: {answer.code.name}: {answer.message}")
            is_laid_down = answer.code is ErrorCode.KAFKA_STORAGE_ERROR
            if is_laid_down:
                self._unanswered = None  # the controller has heard this broker, and its answer has arrived
            may_run = not self._leases.writes.has_failed  # else the fault may be that of all
            if await self._is_gone(controller.broker_id) or (
                may_run and (is_laid_down or await self._has_failed(controller))
            ):
                await self._elect()
        await asyncio.sleep(_RETRY_S)

    async def _beat(self, controller: BrokerEndpoint, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer | Refused:
        """The log is read on meanwhile: a broker whose heartbeat is lost may have been fenced, and another one elected.
        So are leases: what they said when the controller fell silent tells, a session later, that it did. Then the
        heartbeat is given up for one that says so: an answer may not come through where a request does."""
        # It is answered within an interval. One that says that it had no answer is the only thing there is to do.
        timeout_s = (self._interval_ms + self._session_ms / (2 if heartbeat.is_unanswered else 1)) / 1000
        self._begin_to_wait_for(controller)
        beat = asyncio.ensure_future(self._peers.heartbeat(controller, heartbeat, timeout_s=timeout_s))
        try:
            while not beat.done():
                has_failed = await self._has_failed(controller)
                is_late = self._unanswered_ms(controller) > self._session_ms
                if is_late and (has_failed or not heartbeat.is_unanswered):
                    return Refused(ErrorCode.REQUEST_TIMED_OUT, f"broker {controller.broker_id} is silent")
                await asyncio.wait([beat], timeout=_RETRY_S if is_late else self._interval_ms / 1000)
                await self._metadata.follow()
                if not beat.done() and self._metadata.controller != controller:
                    return Refused(ErrorCode.NOT_CONTROLLER, f"broker {controller.broker_id} was the controller")
            return beat.result()
        finally:
            beat.cancel()


def _decide_election(
    state: ClusterState, *, command: RegisterBroker, gone: set[int]
) -> Step[ClusterRecord, Elected | Refused]:
    """A root that never had several brokers may have them from its next election on."""
    refused = check_listeners_level(state, command)
    if refused is not None:
        return Step(refused)
    if state.level >= LEVEL_OF_CLUSTERS:
        return decide_elect_controller(state, command, gone_broker_ids=gone)
    upgrade = decide_upgrade_features(state, LEVEL_OF_CLUSTERS if state.brokers else LEVEL_MAX)
    election = decide_elect_controller(apply_all(state, upgrade.records), command, gone_broker_ids=gone)
    return Step(election.response, (*upgrade.records, *election.records))
