"""An internal topic whose partitions are coordinators: its creation, and a shard for each partition that this broker
leads.

Theory of operation. The topic is created when the first entity needs it. The shards follow the metadata behind the host
of the partitions: one opens when its partition is open here, and closes with it. Guards one promise: all that is said
of an entity is said by one shard, that of the leader of its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from bus.cluster_metadata.cluster_state import ClusterState, Topic
from bus.errors import ErrorCode, NotController, Refused
from bus.machine import AnswerT, CommandT, NoticeT, RecordT, StateT
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.shard import CoordinatorShard
from bus.runtime.partitions.partition import Partition
from bus.runtime.tasks import TaskScope

# Configs of a coordinator's topic, whatever the broker's defaults are. A record may be as large as the members of a
# group make it. The broker that writes a record stamps it. The long commit interval that suits tables of records would
# delay every rebalance and every transaction, so the interval is short: such a topic consists of many small commits,
# and compaction merges them.
COORDINATOR_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "commit.burst": "10000",
    "commit.interval.ms": "10",
    "max.message.bytes": "104857600",
    "message.timestamp.type": "LogAppendTime",
}


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How the topic is created. `title` names its coordinators in the names of tasks."""

    name: str
    title: str
    partitions: int
    kept: Mapping[str, str]


class CoordinatedTopic(Generic[StateT, CommandT, RecordT, AnswerT, NoticeT]):
    """A coordinator's topic. `new_shard` opens the shard of a partition that serves here. `check_topic` says why
    nothing of the topic can be coordinated. `on_closed` gets each shard that has closed because its partition is led
    elsewhere, or again."""

    def __init__(
        self,
        plan: TopicPlan,
        cluster: Cluster,
        tasks: TaskScope,
        *,
        new_shard: Callable[[int, Partition], CoordinatorShard[StateT, CommandT, RecordT, AnswerT, NoticeT]],
        check_topic: Callable[[Topic], Refused | None] = lambda _: None,
        on_closed: Callable[[int, Refused], None] = lambda number, moved: None,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._tasks = tasks
        self._new_shard = new_shard
        self._check_topic = check_topic
        self._on_closed = on_closed
        self._shards: dict[int, tuple[CoordinatorShard[StateT, CommandT, RecordT, AnswerT, NoticeT], Partition]] = {}
        self._creation: asyncio.Task[Refused | None] | None = None
        self._unusable: Refused | None = None
        self._is_closed = False
        self.topic: Topic | None = None  # as of the newest metadata

    def start(self) -> None:
        """Load what there is, in the background."""
        self._cluster.metadata.add_follower(self.follow)

    async def log_all(self) -> None:
        """See `CoordinatorShard.log_all`."""
        await asyncio.gather(*(shard.log_all() for shard in self.serving()))

    def close(self) -> None:
        """Refuse every waiting and every new call; only calls whose commit is in flight still get their answers."""
        self._is_closed = True
        for shard in self.serving():
            shard.close()

    # ------------------------------------------------------------------ the topic

    async def prepare(self) -> Refused | None:
        """Create the topic if it is not there; of many callers at once, one does. COORDINATOR_NOT_AVAILABLE if it
        cannot be created for now. Raises `NotController`."""
        if self.topic is not None:
            return None
        self._cluster.metadata.check_is_controller()
        if self._creation is None:
            self._creation = self._tasks.start(self._create(), f"{self._plan.title}/create")
        creation = self._creation
        await asyncio.wait([creation])  # a caller may be cancelled; the topic is created all the same
        return creation.result()

    async def _create(self) -> Refused | None:
        try:
            created = await self._cluster.controller.create_internal_topic(
                self._plan.name, partitions=self._plan.partitions, configs=COORDINATOR_CONFIGS, kept=self._plan.kept
            )
            if isinstance(created, Refused):
                return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, created.message)
            if self.topic is None:
                return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._plan.name} is not known here yet")
            return None
        except NotController as error:
            return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        finally:
            self._creation = None

    def find(self, number: int) -> BrokerEndpoint | Refused:
        """The broker that coordinates what belongs to that partition."""
        assert self.topic is not None, "there is no partition without its topic"
        if self._unusable is not None:
            return self._unusable
        leader_id = self.topic.partitions[number].leader_id
        if leader_id == self._cluster.endpoint.broker_id:
            shard = self.shard(number)
            if isinstance(shard, Refused) and shard.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return shard
            return self._cluster.endpoint
        leader = self._cluster.state.brokers.get(leader_id)
        if leader is None or leader.is_fenced:
            return Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {leader_id}, which leads {self._name(number)}, is gone"
            )
        return leader.endpoint

    # ------------------------------------------------------------------ shards

    def follow(self, cluster: ClusterState) -> None:
        """Each state of the metadata, behind the host of the partitions."""
        topic = cluster.topics.get(self._plan.name)
        if topic is self.topic:
            return
        self.topic = topic
        self._unusable = None if topic is None else self._check_topic(topic)
        for number, (_, partition) in list(self._shards.items()):
            if self._cluster.host.find(self._name(number)) is not partition:
                self._close_shard(number)
        if not self._is_closed and any(isinstance(self.shard(number), Refused) for number in self.led_here()):
            self._tasks.start(self._open_shards(), f"{self._plan.title}/open")

    async def _open_shards(self) -> None:
        """Those whose partitions are being opened."""
        await self._cluster.host.wait_until_settled(self._plan.name)
        for number in self.led_here():
            self.shard(number)

    def led_here(self) -> list[int]:
        """The numbers of the partitions that this broker leads."""
        partitions = () if self.topic is None else self.topic.partitions
        broker_id = self._cluster.endpoint.broker_id
        return [number for number, leadership in enumerate(partitions) if leadership.leader_id == broker_id]

    def serving(self) -> Iterator[CoordinatorShard[StateT, CommandT, RecordT, AnswerT, NoticeT]]:
        """The shards that are open here."""
        return (shard for shard, _ in self._shards.values())

    def shard(self, number: int) -> CoordinatorShard[StateT, CommandT, RecordT, AnswerT, NoticeT] | Refused:
        """That of a partition that could not be opened at first is there once the partition serves."""
        shard, _ = self._shards.get(number, (None, None))
        return self._open_shard(number) if shard is None else shard

    def _open_shard(self, number: int) -> CoordinatorShard[StateT, CommandT, RecordT, AnswerT, NoticeT] | Refused:
        """Refused while the partition does not serve here."""
        assert self.topic is not None, "there is no partition without its topic"
        if self._unusable is not None:
            return self._unusable
        partition = self._cluster.host.find(self._name(number))
        if isinstance(partition, Refused):
            if self.topic.partitions[number].leader_id != self._cluster.endpoint.broker_id:
                return Refused(ErrorCode.NOT_COORDINATOR, partition.message)
            is_being_opened = partition.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_being_opened else ErrorCode.COORDINATOR_NOT_AVAILABLE
            return Refused(code, partition.message)
        shard = self._new_shard(number, partition)
        self._shards[number] = shard, partition
        if self._is_closed:
            shard.close()
        return shard

    def _close_shard(self, number: int) -> None:
        """Its entities are another broker's, or are read again at a new leader epoch."""
        moved = Refused(ErrorCode.NOT_COORDINATOR, f"{self._name(number)}: its leader has changed")
        shard, _ = self._shards.pop(number)
        shard.close(moved)
        self._on_closed(number, moved)

    def _name(self, number: int) -> TopicPartition:
        return TopicPartition(self._plan.name, number)
