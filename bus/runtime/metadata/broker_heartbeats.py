"""The brokers of the cluster, as the controller sees them: who registers, who is alive, and how far each has followed.

Theory of operation. What is said here is memory of the controller's: a new controller begins with fresh sessions. What
counts is in the metadata: a registration, and whether a broker is fenced. A heartbeat is answered as soon as there are
newer metadata than the broker has, so a change is known everywhere a moment after its commit. Guards one promise: to
take a heartbeat never waits for a change of the metadata, so a busy controller fences no broker that is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bus.cluster_metadata.broker_decisions import (
    BrokerSessions,
    RegisterBroker,
    check_advertised_address,
    decide_controlled_shutdown,
    decide_fence_brokers,
    decide_hand_over,
    decide_register_broker,
    decide_unfence_broker,
)
from bus.cluster_metadata.broker_liveness import BrokerReach, WriteSession
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_state import Broker, ClusterState
from bus.cluster_metadata.partition_placement import decide_elect_leaders, find_imbalance
from bus.errors import ErrorCode, NotController, Refused, count_of
from bus.model import Step, TopicPartition
from bus.ports import Clock
from bus.runtime.metadata.controller import PORTION_PAUSE_S, portion_size
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Peers, Registered
from bus.runtime.metadata.producers import ProducerUses
from bus.runtime.replicas.in_sync_replicas import LaggingReplicas
from bus.runtime.tasks import TaskScope, time_limit
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)

T = TypeVar("T")
# A broker listens before it registers; it has to wait for less than its own call may take.
_IDENTIFY_MS_MAX = 2_000
_IDENTIFY_RETRY_MS = 100
_NOT_CONTROLLER = Refused(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
_CANNOT_WRITE = Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the controller cannot write to the storage")


class BrokerHeartbeats:
    def __init__(
        self,
        metadata: MetadataLog,
        peers: Peers,
        uses: ProducerUses,
        lagging: LaggingReplicas,
        config: BrokerConfig,
        *,
        writes: WriteSession,
        broker_id: int,
        cluster_id: str,
        clock: Clock,
        tasks: TaskScope,
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._uses = uses
        self._lagging = lagging
        self._config = config
        self._writes = writes
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._clock = clock
        self._tasks = tasks
        self._sessions: BrokerSessions | None = None  # None: another broker is the controller
        self._reach = self._begin_reach()
        self._asking: set[asyncio.Task[None]] = set()  # ask the addresses for the broker that answers there
        self._unreached: dict[int, str] = {}  # the reasons why brokers were not reached the last time
        self._leaving: dict[int, int] = {}  # broker epochs, by id, of those that want to shut down
        self._balanced_ms = 0.0  # when leaders were looked through last
        self._moves: deque[TopicPartition] = deque()  # partitions that are to move to their preferred leaders
        self._heard = asyncio.Event()  # set, and replaced, at newer metadata and at each heartbeat
        self._is_stopped = False

    def follow(self, cluster: ClusterState) -> None:
        """Behind those who act on the metadata."""
        if not self._metadata.is_leading:
            self._sessions = None
        self._note_heard()

    def _note_heard(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()

    # ------------------------------------------------------------------ as the controller

    def begin(self, gone: Collection[int]) -> None:
        """This broker is the controller from now on."""
        self._leaving.clear()
        self._moves.clear()
        self._lagging.begin()
        self._balanced_ms = self._clock.monotonic_ms()
        self._sessions = BrokerSessions(
            self._metadata.cluster,
            self._config,
            controller_id=self._broker_id,
            end_offset=self._metadata.applied_offset,
            now_ms=self._clock.monotonic_ms(),
            gone_broker_ids=gone,
        )
        self._reach = self._begin_reach()
        self._unreached.clear()
        self._note_heard()

    def _begin_reach(self) -> BrokerReach:
        return BrokerReach(
            self._config.broker_session_timeout_ms,
            tick_ms=self._config.broker_heartbeat_interval_ms,
            controller_id=self._broker_id,
            now_ms=self._clock.monotonic_ms(),
        )

    def stop(self) -> None:
        """Stop: no heartbeat comes any longer, so nothing waits for one."""
        self._is_stopped = True
        for asking in self._asking:
            asking.cancel()
        self._note_heard()

    @property
    def hears_nobody(self) -> bool:
        """See `BrokerSessions.hears_nobody`."""
        return self._sessions is not None and self._sessions.hears_nobody(self._clock.monotonic_ms())

    async def register(self, command: RegisterBroker, *, cluster_id: str) -> Registered | Refused:
        """See `decide_register_broker` and `check_advertised_address`: the controller asks for the broker where it says
        that it is, for two seconds at most. INVALID_REGISTRATION also for a broker of another root."""
        if cluster_id != self._cluster_id:
            return Refused(
                ErrorCode.INVALID_REGISTRATION,
                f"expected a broker of the root with cluster id {self._cluster_id}, found one of {cluster_id[:100]!r}",
            )
        if self._sessions is None:
            return _NOT_CONTROLLER
        self._sessions.note_arrival(self._clock.monotonic_ms())
        decide = functools.partial(decide_register_broker, command=command)
        foreseen = decide(self._metadata.cluster).response
        refused = foreseen if isinstance(foreseen, Refused) else await self._check_address(command)
        if refused is not None:
            _log.warning("%s: %s", refused.code.name, refused.message)
            return refused
        sessions = self._sessions
        epoch = _NOT_CONTROLLER if sessions is None else await self._change(decide)
        if isinstance(epoch, Refused) or sessions is None:
            return epoch
        end_offset = self._metadata.applied_offset
        broker_id = command.endpoint.broker_id
        self._leaving.pop(broker_id, None)
        sessions.begin(broker_id, epoch, end_offset=end_offset, now_ms=self._clock.monotonic_ms())
        self._reach.note_registered(broker_id, (command.incarnation, epoch), self._clock.monotonic_ms())
        return Registered(epoch, end_offset)

    async def _check_address(self, command: RegisterBroker) -> Refused | None:
        """Asks again for a moment, as the way to a broker that was there before is tried again with delays."""
        deadline_ms = self._clock.monotonic_ms() + _IDENTIFY_MS_MAX
        while True:
            timeout_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
            found = await self._peers.identify(command.endpoint, timeout_s=timeout_s, needs_login=False)
            is_over = self._clock.monotonic_ms() + 2 * _IDENTIFY_RETRY_MS > deadline_ms
            if not isinstance(found, Refused) or is_over:
                return check_advertised_address(command, found, cluster_id=self._cluster_id)
            await asyncio.sleep(_IDENTIFY_RETRY_MS / 1000)

    async def take(self, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer | Refused:
        """Answer at once if there are newer metadata than the broker has, else as soon as there are, and after
        `max_wait_ms` or the heartbeat interval at the latest. A controller that cannot write refuses the heartbeat, so
        that the others elect one who can, but takes note that the broker is alive: if nobody can write, it remains the
        controller."""
        sessions, broker_id = self._sessions, heartbeat.broker_id
        if sessions is None or not self._metadata.is_leading:
            return _NOT_CONTROLLER
        refused = sessions.heartbeat(
            self._metadata.cluster,
            broker_id,
            heartbeat.broker_epoch,
            heartbeat.incarnation,
            applied_offset=heartbeat.metadata_offset,
            end_offset=self._metadata.applied_offset,
            now_ms=self._clock.monotonic_ms(),
            wants_fence=heartbeat.wants_fence,
            is_unanswered=heartbeat.is_unanswered,
        )
        if refused is not None:
            return refused
        if self._writes.cannot_write:  # only now: a broker that was not heard would be fenced at the first write
            return _CANNOT_WRITE
        named = self._metadata.cluster.producers.by_id
        for producer_id in heartbeat.used_producer_ids:
            if named.get(producer_id) is not None:
                self._uses.note(producer_id)
        self._lagging.take(broker_id, heartbeat.lagging)
        if heartbeat.wants_shut_down:
            self._leaving[broker_id] = heartbeat.broker_epoch
        self._note_heard()
        end_offset = self._metadata.applied_offset
        if heartbeat.metadata_offset >= end_offset and not self._may_leave(broker_id):
            newer = self._metadata.wait_until_applied(end_offset + 1)
            wait_ms = min(heartbeat.max_wait_ms, self._config.broker_heartbeat_interval_ms)
            with contextlib.suppress(asyncio.TimeoutError):
                async with time_limit(wait_ms / 1000):
                    await newer
        lagging = self._lagging.merge(self._metadata.cluster)
        return HeartbeatAnswer(self._metadata.applied_offset, self._may_leave(broker_id), lagging)

    def find_late(self) -> Sequence[int]:
        """See `BrokerSessions.find_late`."""
        sessions = self._sessions
        return () if sessions is None else sessions.find_late(self._metadata.cluster, self._clock.monotonic_ms())

    async def look(self, gone: Collection[int], working: Collection[int] = ()) -> None:
        """Fence brokers that are gone or silent, those that cannot write, those that are not reached, and those that
        want to shut down; unfence those that have caught up and are reached. To be called once in each heartbeat
        interval, or more often. `working`: the late ones that are at work nevertheless."""
        sessions = self._sessions
        if sessions is None:
            return
        cluster, now_ms = self._metadata.cluster, self._clock.monotonic_ms()
        lost = {one: cluster.brokers[one].broker_epoch for one in cluster.unfenced_brokers if one in gone}
        was_cut_off = sessions.is_cut_off
        lost.update(sessions.check(cluster, now_ms, set(working) - set(gone)))
        if sessions.is_cut_off and not was_cut_off:
            _log.error(
                "brokers %s are at work and not heard here, most of all: this one takes itself for cut off and leaves "
                "it to them to elect another controller",
                sorted(working),
            )
        if self._writes.is_well(now_ms):
            lost.update(sessions.find_failing(cluster))
        for broker in self._reach.find_due(cluster, now_ms):
            asking = self._tasks.start(self._ask_for(broker, self._reach), f"reach/{broker.broker_id}")
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        heard = {one for one in cluster.brokers if one not in gone and sessions.is_live(cluster, one, now_ms)}
        unreached = self._reach.find_unreached(cluster, heard, now_ms)
        lost.update(unreached)
        if lost:
            reasons = [self._unreached[one] for one in unreached if one in self._unreached]
            fenced = await self._change(functools.partial(decide_fence_brokers, broker_epochs=lost))
            if not isinstance(fenced, Refused):
                _log.warning("brokers that are gone, silent or not reached, or cannot write, were fenced: %s", fenced)
                for reason in reasons:
                    _log.warning("%s; its heartbeats come through, and others lead until it is reached", reason)
        for broker_id, broker_epoch in list(self._leaving.items()):
            if not await self._move_portion(broker_id, broker_epoch):
                await self._move_leaders(broker_id, broker_epoch)
        for broker_id, broker in self._metadata.cluster.brokers.items():
            may_lead = broker_id not in gone and broker_id not in self._leaving
            may_lead = may_lead and self._reach.is_reached(self._metadata.cluster, broker_id)
            if may_lead and sessions.may_unfence(self._metadata.cluster, broker_id, now_ms):
                epoch = broker.broker_epoch
                await self._change(functools.partial(decide_unfence_broker, broker_id=broker_id, broker_epoch=epoch))

    async def _ask_for(self, broker: Broker, reach: BrokerReach) -> None:
        """Ask at the address of a broker whether it is there."""
        refused: Refused | None = None
        is_known = False
        try:
            timeout_s = reach.timeout_ms / 1000
            found = await self._peers.identify(broker.endpoint, timeout_s=timeout_s, needs_login=False)
            command = RegisterBroker(broker.endpoint, broker.incarnation)
            refused, is_known = check_advertised_address(command, found, cluster_id=self._cluster_id), True
        finally:
            reach.note(broker, is_answer=is_known and refused is None)
        if refused is not None:
            self._unreached[broker.broker_id] = refused.message

    async def balance(self) -> None:
        """Give leadership back to preferred leaders that have returned (auto.leader.rebalance.enable): a portion in
        each call. To be called often; it looks once in each leader.imbalance.check.interval.seconds."""
        now_ms, config = self._clock.monotonic_ms(), self._config
        if self._sessions is None or not config.auto_leader_rebalance_enable:
            return
        if now_ms - self._balanced_ms >= 1000 * config.leader_imbalance_check_interval_seconds:
            self._balanced_ms = now_ms
            found = find_imbalance(self._metadata.cluster, config.leader_imbalance_per_broker_percentage)
            self._moves = deque(found)
            if found:
                _log.info("%s go to their preferred leaders", count_of(len(found), "partition"))
        if self._moves:
            count = min(portion_size(len(self._moves)), len(self._moves))
            portion = [self._moves.popleft() for _ in range(count)]
            movable = self._find_movable(portion)
            if movable:
                await self._change(functools.partial(decide_elect_leaders, partitions=movable))

    def _find_movable(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return those whose preferred leaders are reached now: the next check finds the others again."""
        cluster = self._metadata.cluster
        return [
            one
            for one in partitions
            if (topic := cluster.topics.get(one.topic)) is not None
            and one.partition < len(topic.partitions)
            and self._reach.is_reached(cluster, topic.replicas(one.partition)[0])
        ]

    async def hand_over(self) -> None:
        """Hand over before the controller itself stops: others lead what it leads, and all of them know. Waits out a
        fault of the log, and its own election, which may make it a leader. Raises `NotController`."""
        while self._check_sessions() is None:
            await self._heard.wait()
        own = self._metadata.cluster.brokers[self._broker_id]
        is_moving = True
        while is_moving:
            is_moving = await self._move_portion(self._broker_id, own.broker_epoch)
            await asyncio.sleep(PORTION_PAUSE_S if is_moving else 0)
        has_failed = True
        while has_failed:
            has_failed = await self._move_leaders(self._broker_id, own.broker_epoch) is ErrorCode.KAFKA_STORAGE_ERROR
            await asyncio.sleep(PORTION_PAUSE_S if has_failed else 0)
        await self.wait_until_followed(self._metadata.applied_offset)

    async def _move_portion(self, broker_id: int, broker_epoch: int) -> bool:
        """Have others lead a portion of what a stopping broker leads. False: the rest is one portion."""
        cluster = self._metadata.cluster
        count = cluster.leader_counts.get(broker_id, 0)
        portion = portion_size(count)
        if count <= portion or cluster.unfenced_brokers == [broker_id]:
            return False
        decide = functools.partial(decide_hand_over, broker_id=broker_id, broker_epoch=broker_epoch, count_max=portion)
        return await self._change(decide) is None

    async def _move_leaders(self, broker_id: int, broker_epoch: int) -> ErrorCode:
        """Have others lead what the broker leads. NONE if they do now; otherwise the reason why they do not."""
        broker = self._metadata.cluster.brokers.get(broker_id)
        if broker is None or broker.is_fenced:
            return ErrorCode.NONE
        decide = functools.partial(decide_controlled_shutdown, broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await self._change(decide)
        return answer.code if isinstance(answer, Refused) else ErrorCode.NONE

    async def wait_until_followed(self, metadata_offset: int) -> None:
        """Wait until every broker that is not fenced has followed the metadata. Raises `NotController` if this broker
        can no longer tell: another broker is the controller, or this one stops."""
        while not self._have_followed(metadata_offset):
            await self._heard.wait()

    def _have_followed(self, metadata_offset: int) -> bool:
        sessions = self._check_sessions()
        return sessions is not None and sessions.have_applied(self._metadata.cluster, metadata_offset)

    def _check_sessions(self) -> BrokerSessions | None:
        """None: this broker was elected a moment ago, and its memory may be that of before. Raises `NotController`."""
        if self._is_stopped or not self._metadata.is_leading:
            raise NotController("this broker does not hear any more how far the others have followed the metadata")
        return self._sessions

    def _may_leave(self, broker_id: int) -> bool:
        """True if every broker that is not fenced knows that this one leads nothing, or if it is no longer
        registered."""
        if broker_id not in self._leaving or self._sessions is None:
            return False
        cluster = self._metadata.cluster
        broker = cluster.brokers.get(broker_id)
        return broker is None or (
            broker.is_fenced and self._sessions.have_applied(cluster, self._metadata.applied_offset)
        )

    async def _change(self, decide: Callable[[ClusterState], Step[ClusterRecord, T | Refused]]) -> T | Refused:
        try:
            (answer,) = await self._metadata.change([decide])
        except NotController:
            return _NOT_CONTROLLER
        if isinstance(answer, Refused):
            _log.warning("%s: %s", answer.code.name, answer.message)
        return answer
