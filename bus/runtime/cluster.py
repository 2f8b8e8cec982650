"""One broker in its cluster: the metadata log, the controller, and the partitions that follow, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from bus.cluster_metadata.broker_decisions import RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.cluster_metadata.cluster_state import LEVEL_OF_LEASES, ClusterState
from bus.cluster_metadata.producer_decisions import look_interval_ms
from bus.errors import ErrorCode, NotController, Refused, StorageFault
from bus.model import BrokerEndpoint, TopicPartition
from bus.ports import Clock, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.broker_heartbeats import BrokerHeartbeats
from bus.runtime.metadata.broker_lifecycle import BrokerLifecycle
from bus.runtime.metadata.controller import Controller
from bus.runtime.metadata.lease_keeper import LeaseKeeper
from bus.runtime.metadata.metadata_log import LeadershipProof, MetadataLog
from bus.runtime.metadata.peers import Peers
from bus.runtime.metadata.producers import Producers, ProducerUses
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock, MaintenanceTicker
from bus.runtime.partitions.partition_host import AWAITED_OPENING_S, PartitionHost
from bus.runtime.partitions.partition_settings import metadata_maintenance
from bus.runtime.replicas.in_sync_replicas import LaggingReplicas
from bus.runtime.replicas.leader_watch import LeaderWatch
from bus.runtime.tasks import TaskScope, time_limit
from bus.settings.broker import BrokerConfig

# A stop waits so long for maintenance that is under way: else brokers that live for moments never finish any.
_FINISH_S_MAX = 1.0


class Cluster:
    """`start`, `serve` once clients are answered; `leave`, then `end_changes`, then `end_maintenance`."""

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        endpoint: BrokerEndpoint,
        *,
        clock: Clock,
        peers: Peers,
        new_topic_id: Callable[[], str],
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self.config = config
        self._peers = peers
        self.endpoint = endpoint
        self.storage = storage
        self.retention_clock = MaintenanceClock(clock)  # follows a wall clock that jumps ahead slowly
        maintenance = Maintenance(
            self.retention_clock,
            IoThrottle(config.log_cleaner_io_max_bytes_per_second, clock),
            backoff_s=config.log_cleaner_backoff_ms / 1000,
        )
        self.metadata = MetadataLog(
            storage,
            broker_id=endpoint.broker_id,
            rules=metadata_maintenance(config),
            clock=clock,
            calls=calls,
            maintenance=maintenance,
        )
        uses = ProducerUses(look_interval_ms(config.transactional_id_expiration_ms))
        self.host = PartitionHost(
            endpoint.broker_id,
            storage,
            config,
            self._raise_leader_epoch,
            clock=clock,
            calls=calls,
            tasks=tasks,
            maintenance=maintenance,
        )
        self.lagging = LaggingReplicas(endpoint.broker_id, self.host.in_sync, clock)
        self._proof = LeadershipProof(self.metadata, broker_id=endpoint.broker_id, clock=clock, tasks=tasks)
        leases = LeaseKeeper(
            endpoint.broker_id,
            storage,
            config,
            has_older=lambda: self.metadata.cluster.level < LEVEL_OF_LEASES,
            clock=clock,
            calls=calls,
            tasks=tasks,
        )
        self.heartbeats = BrokerHeartbeats(
            self.metadata,
            peers,
            uses,
            self.lagging,
            config,
            writes=leases.writes,
            broker_id=endpoint.broker_id,
            cluster_id=storage.cluster_id,
            clock=clock,
            tasks=tasks,
        )
        self._lifecycle = BrokerLifecycle(
            RegisterBroker(endpoint, storage.incarnation, config.broker_rack or None),
            self.metadata,
            self.heartbeats,
            storage,
            peers,
            uses,
            self.lagging,
            leases,
            config,
            clock=clock,
            calls=calls,
            tasks=tasks,
            on_replaced=self._step_down,
        )
        self._leader_watch = LeaderWatch(
            endpoint.broker_id, peers, self.host.followed, tasks, self.host.followed_partitions.note_answer
        )
        self.controller = Controller(
            self.metadata,
            self.host,
            storage,
            config,
            endpoint,
            new_topic_id=new_topic_id,
            calls=calls,
            wait_until_followed=self.heartbeats.wait_until_followed,
        )
        self.producers = Producers(
            self.metadata,
            uses,
            broker_id=endpoint.broker_id,
            expiration_ms=config.transactional_id_expiration_ms,
            now_ms=self.retention_clock.now_ms,
            calls=calls,
            tasks=tasks,
            wait_until_followed=self.heartbeats.wait_until_followed,
        )
        self._ticker = MaintenanceTicker(
            config.log_retention_check_interval_ms / 1000,
            self.retention_clock,
            lambda: [*self.host.partitions, *filter(None, [self.metadata.maintenance])],
        )

    @property
    def state(self) -> ClusterState:
        return self.metadata.cluster

    @property
    def has_proved_leadership(self) -> bool:
        """`prove_leadership` does not have to wait."""
        return self._proof.is_fresh

    async def prove_leadership(self, *, by_new_look: bool = False) -> Refused | None:
        """Wait for a proof before anything is answered as a leader: see `LeadershipProof.wait`."""
        return await self._proof.wait(by_new_look=by_new_look)

    async def start(self) -> None:
        """Join the cluster, as its controller if there is none, and open all partitions that this broker leads.

        A partition whose table is damaged is refused from then on, the others serve. Raises `JoinRefused`, or another
        `StorageFault` if the metadata log itself cannot be read or written.
        """
        await self.metadata.open()
        await self._lifecycle.join()
        self._lifecycle.start()
        self.metadata.add_follower(self._lifecycle.follow)
        self.metadata.add_follower(self.host.follow)
        self.metadata.add_follower(self._leader_watch.follow)
        self.metadata.add_follower(self.controller.follow)
        self.metadata.add_follower(self.heartbeats.follow)
        await self.host.wait_until_settled()
        self._ticker.start()
        self.producers.start()

    async def _raise_leader_epoch(self, name: TopicPartition, above: int) -> None:
        """Have the controller, whichever broker that is, raise the leader epoch. Raises `NotController` if it does not
        take the call, or refuses because the metadata have changed; `StorageFault` if there is no higher epoch."""
        own = self.state.brokers.get(self.endpoint.broker_id)
        command = RaiseLeaderEpoch(name, self.endpoint.broker_id, own.broker_epoch if own else 0, above)
        try:
            answer = await self.controller.raise_leader_epoch(command)
        except NotController:
            controller = self.metadata.controller
            if controller is None or controller.broker_id == self.endpoint.broker_id:
                raise
            answer = await self._peers.raise_leader_epoch(controller, command)
        if isinstance(answer, Refused):
            message = f"the leader epoch of {name} was not raised above {above}: {answer.message}"
            raise (StorageFault if answer.code is ErrorCode.INVALID_REQUEST else NotController)(message)

    def _step_down(self, reason: Refused) -> None:
        self.metadata.stop(reason)
        self.host.step_down(reason)

    def serve(self) -> None:
        """Clients are answered from now on."""
        self._lifecycle.serve()

    async def catch_up(self, asked: Mapping[TopicPartition, int | None]) -> bool:
        """Wait for a moment until partitions that a client expects to be led here are ready: until this broker has
        learned of the leader epochs in `asked`, and has opened the partitions that it is opening. Refusing at once
        would take longer, because a client pauses before it retries. Return True if waiting helped."""
        was_behind = self._is_behind(asked)
        if was_behind:
            with contextlib.suppress(asyncio.TimeoutError):
                async with time_limit(AWAITED_OPENING_S):
                    while self._is_behind(asked):
                        await self.metadata.wait_until_applied(self.metadata.applied_offset + 1)
        return await self.host.wait_for_openings(asked) or was_behind

    def _is_behind(self, asked: Mapping[TopicPartition, int | None]) -> bool:
        known = ((epoch, self.state.leadership(name)) for name, epoch in asked.items() if epoch is not None)
        return any(leadership is not None and leadership.leader_epoch < epoch for epoch, leadership in known)

    async def wait_until_unfenced(self) -> None:
        await self._lifecycle.wait_until_unfenced()

    async def leave(self) -> None:
        """Prepare the stop of the broker: commit what was answered before its commit, and have other brokers, if there
        are any, lead what this one leads."""
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_FINISH_S_MAX):
                await asyncio.gather(*(partition.end_pace() for partition in self.host.partitions))
        await self._lifecycle.leave()

    async def end_changes(self) -> None:
        """Before the broker stops: what calls have begun ends, what comes from now on is refused."""
        await self._lifecycle.stop()
        self.heartbeats.stop()
        self.producers.stop()
        self.host.end_openings()
        self._leader_watch.stop()
        await self.metadata.end()

    async def end_maintenance(self) -> None:
        """Prepare the stop of the broker: finish maintenance that ends in a moment, give up the rest, and leave logs
        that open quickly."""
        self._ticker.stop()
        partitions = self.host.partitions
        finishing = asyncio.gather(*(partition.finish_maintenance() for partition in partitions))
        with contextlib.suppress(asyncio.TimeoutError):
            async with time_limit(_FINISH_S_MAX):
                await finishing
        await asyncio.gather(*(partition.end_maintenance() for partition in partitions))
        checkpoints = asyncio.gather(
            *(partition.write_last_checkpoint() for partition in partitions),
            *(one.write_last_checkpoint() for one in filter(None, [self.metadata.maintenance])),
        )
        with contextlib.suppress(asyncio.TimeoutError):  # without them the next start takes longer, and that is all
            async with time_limit(self.config.controlled_shutdown_timeout_ms / 1000):
                await checkpoints
