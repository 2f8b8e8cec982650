"""The broker's knowledge of the cluster, and the partitions it leads.

Theory of operation. What the broker knows is `__cluster_metadata` replayed, and changes as metadata_log.py says. Tables
of a new topic are created before the record that makes it exist, so a topic never points at nothing; files of a deleted
topic go after the record that ends it. Both take long, so other changes do not wait for them: who creates or deletes a
topic has its name for as long as that takes (topic_names_in_use.py). What a call has begun here runs to its end in a
task of the broker's, also if the caller goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.cluster_metadata.cluster import ClusterState, Topic
from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    TopicResult,
    decide_alter_topic_configs,
    decide_auto_create_topic,
    decide_create_internal_topic,
    decide_create_partitions,
    decide_create_topic,
    decide_delete_topic,
    decide_raise_leader_epoch,
    decide_start_broker,
    decide_topic_files_deleted,
)
from bus.cluster_metadata.cluster_records import ClusterRecord
from bus.cluster_metadata.configs import describe_topic_configs, find_contradiction, resolve_topic_config
from bus.cluster_metadata.names import is_internal_topic
from bus.cluster_metadata.producer_decisions import (
    InitProducer,
    check_init_producer,
    decide_allocate_producer_ids,
    decide_init_producer,
    needs_new_id,
)
from bus.cluster_metadata.producer_ids import ProducerIdentity, check_producer
from bus.cluster_metadata.view_decisions import CreateView, decide_create_view, decide_delete_view
from bus.config.broker import BrokerConfig, describe_broker_config
from bus.config.keys import ConfigEntry
from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, show_way_out
from bus.json_views import JsonView
from bus.model import BrokerEndpoint, ProducerStamp, Step, TopicPartition
from bus.partition_log.appends import AppendRules
from bus.ports import Clock, PartitionTable, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_log import Decide, MetadataLog
from bus.runtime.metadata.producer_id_pool import ProducerIdPool
from bus.runtime.metadata.producer_names import ProducerNames
from bus.runtime.metadata.topic_names_in_use import TopicNamesInUse
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock
from bus.runtime.partitions.maintenance_ticker import MaintenanceTicker
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_settings import PartitionSettings, metadata_maintenance, settings_of
from bus.runtime.partitions.tail_cache import TailCache
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

TopicAnswer = TopicResult | Refused
OnTopicDeleted = Callable[[str, str], None]
# So many races for the metadata lost in a row are enough.
_STARTS_MAX = 5


class Cluster:
    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        *,
        clock: Clock,
        new_topic_id: Callable[[], str],
        calls: BlockingCalls,
        tasks: TaskScope,
    ) -> None:
        self.config = config
        self._storage = storage
        self._clock = clock
        self._new_topic_id = new_topic_id
        self._calls = calls
        self._tasks = tasks
        self._cache = TailCache(config.log_cache_bytes)
        self._begun = TaskScope("cluster")  # what calls have begun
        self._partitions: dict[TopicPartition, Partition] = {}
        self._is_started = False
        self._unusable: dict[TopicPartition, Refused] = {}  # partitions whose table could not be opened
        self._names = TopicNamesInUse()
        self._removals: dict[str, set[asyncio.Task[None]]] = {}  # of deleted topics' files, by name, while under way
        self._producer_ids = ProducerIdPool(self._allocate_producer_ids, tasks)
        self._on_topic_deleted: list[OnTopicDeleted] = []
        self._maintenance = Maintenance(
            MaintenanceClock(clock),
            IoThrottle(config.log_cleaner_io_max_bytes_per_second),
            backoff_s=config.log_cleaner_backoff_ms / 1000,
        )
        self._metadata = MetadataLog(
            storage,
            self,
            rules=metadata_maintenance(config),
            clock=clock,
            calls=calls,
            maintenance=self._maintenance,
        )
        self._producer_names = ProducerNames(
            self._metadata,
            expiration_ms=config.transactional_id_expiration_ms,
            now_ms=self._maintenance.clock.now_ms,
            calls=calls,
        )
        self._ticker = MaintenanceTicker(
            config.log_retention_check_interval_ms / 1000,
            self._maintenance.clock,
            lambda: [*self._partitions.values(), self._metadata.upkeep],
        )

    async def start(self, endpoint: BrokerEndpoint) -> None:
        """Replay the metadata, take the leadership of every partition at a new epoch, open all tables.

        A partition whose table is damaged is refused from then on, the others serve. Raises `StorageFault` if the
        metadata log itself cannot be read or written.
        """
        self._endpoint = endpoint
        await self._metadata.open()
        await self._take_leadership()
        self._is_started = True
        led = self.state.partitions_led_by(endpoint.broker_id)
        await asyncio.gather(*(self._open(name, is_at_start=True) for name in led))
        for topic_id, name in self.state.deleted_topics.items():
            self._remove(name, topic_id)
        self._ticker.start()
        self._producer_names.start(self._tasks)

    async def _take_leadership(self) -> None:
        """Another broker that starts at the same time has read the same metadata: the one that loses the race reads
        them again, and takes a higher epoch than the other."""
        for _ in range(_STARTS_MAX):
            others = self.state.brokers.keys() - {self._endpoint.broker_id}
            (started,) = await self._metadata.change(
                [functools.partial(decide_start_broker, endpoint=self._endpoint, gone_broker_ids=others)]
            )
            if not isinstance(started, Refused):
                return
            _log.warning("the leadership could not be taken, to be tried again: %s", started.message)
            reason = started.message
            await self._metadata.raise_epoch()
        raise StorageFault(f"the leadership could not be taken in {_STARTS_MAX} attempts: {reason}")

    async def end_changes(self) -> None:
        """Before the broker stops: what calls have begun ends, what comes from now on is refused."""
        self._producer_names.stop()
        await self._begun.join()
        while self._removals:
            await asyncio.wait({task for tasks in self._removals.values() for task in tasks})
        await self._metadata.end()

    async def end_maintenance(self) -> None:
        """Before the broker stops: begin nothing more, give up what is being prepared, and leave logs that are opened
        quickly."""
        self._ticker.stop()
        partitions = list(self._partitions.values())
        await asyncio.gather(*(partition.end_maintenance() for partition in partitions))
        checkpoints = asyncio.gather(
            *(partition.write_last_checkpoint() for partition in partitions),
            self._metadata.upkeep.write_last_checkpoint(),
        )
        with contextlib.suppress(asyncio.TimeoutError):  # without them the next start takes longer, and that is all
            await asyncio.wait_for(checkpoints, self.config.controlled_shutdown_timeout_ms / 1000)

    @property
    def state(self) -> ClusterState:
        return self._metadata.cluster

    @property
    def endpoint(self) -> BrokerEndpoint:
        return self._endpoint

    @property
    def retention_clock(self) -> MaintenanceClock:
        """By which what is old goes: it follows a wall clock that jumps ahead slowly."""
        return self._maintenance.clock

    @property
    def storage(self) -> Storage:
        return self._storage

    # ------------------------------------------------------------------ look-ups

    def is_internal(self, topic: str) -> bool:
        return is_internal_topic(topic)

    def find_partition(self, name: TopicPartition, topic_id: str = "") -> Partition | Refused:
        """`topic_id`, if not empty, has to be the topic's: else it was deleted and created again."""
        partition = self._partitions.get(name)
        topic = self.state.topics.get(name.topic)
        if topic is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name.topic!r}")
        if topic_id and topic_id != topic.topic_id:
            return Refused(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"topic {name.topic} has the id {topic.topic_id}, found {topic_id}: was it deleted and created again?",
            )
        if partition is not None:
            return partition
        if name in self._unusable:
            return self._unusable[name]
        return Refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"expected a partition of {name.topic} from 0 to {len(topic.partitions) - 1}, found {name.partition}",
        )

    def append_rules(self, topic: str) -> AppendRules | None:
        """None if there is no such topic."""
        found = self.state.topics.get(topic)
        return None if found is None else self._settings(found).append_rules

    def partition_error(self, name: TopicPartition) -> Refused | None:
        """Why a partition that exists does not serve; None if it does."""
        found = self.find_partition(name)
        return found if isinstance(found, Refused) else found.stopped

    def describe_broker(self) -> list[ConfigEntry]:
        return describe_broker_config(self.config)

    def describe_topic(self, name: str) -> list[ConfigEntry] | Refused:
        topic = self.state.topics.get(name)
        if topic is None:
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name!r}")
        return describe_topic_configs(topic.configs, self.config)

    def on_topic_deleted(self, tell: OnTopicDeleted) -> None:
        """Have `tell` called with name and id of each topic that is deleted from now on."""
        self._on_topic_deleted.append(tell)

    # ------------------------------------------------------------------ changes

    async def create_topics(self, commands: Sequence[CreateTopic]) -> list[TopicAnswer]:
        decisions = [
            functools.partial(
                decide_create_topic,
                command=command,
                topic_id=self._new_topic_id(),
                leader_id=self._endpoint.broker_id,
                partitions_default=self.config.num_partitions,
                broker=self.config,
            )
            for command in commands
        ]
        answers = await self._begun.finish(
            self._create([command.name for command in commands], decisions), "create-topics"
        )
        self._warn_of_contradictions(answers)
        return answers

    async def auto_create_topics(self, names: Sequence[str]) -> dict[str, Refused]:
        """Create those that do not exist, for a client that asked for them by name; the refusals, by name. Does
        nothing if `auto.create.topics.enable` is false. Callers at once get one and the same topic."""
        missing = [name for name in dict.fromkeys(names) if name not in self.state.topics]
        if not missing or not self.config.auto_create_topics_enable:
            return {}
        decisions = [
            functools.partial(
                decide_auto_create_topic,
                name=name,
                topic_id=self._new_topic_id(),
                leader_id=self._endpoint.broker_id,
                partitions_default=self.config.num_partitions,
                broker=self.config,
            )
            for name in missing
        ]
        answers = await self._begun.finish(self._create(missing, decisions), "auto-create-topics")
        created = [answer for answer in answers if not isinstance(answer, Refused)]
        for topic in created:
            _log.info("topic %s was created for a client that asked for it", topic.name, extra={"topic": topic.name})
        return {name: answer for name, answer in zip(missing, answers, strict=True) if isinstance(answer, Refused)}

    async def create_internal_topic(
        self, name: str, *, partitions: int, configs: Mapping[str, str], kept: Mapping[str, str]
    ) -> TopicAnswer:
        """The topic as it is, created if it was not there. Callers at once get one and the same. `kept`: what the bus
        itself has to know of the topic."""
        decide = functools.partial(
            decide_create_internal_topic,
            name=name,
            topic_id=self._new_topic_id(),
            leader_id=self._endpoint.broker_id,
            partitions=partitions,
            configs=configs,
            kept=kept,
        )
        (answer,) = await self._begun.finish(self._create([name], [decide]), f"create/{name}")
        return answer

    async def create_partitions(self, commands: Sequence[CreatePartitions]) -> list[TopicAnswer]:
        decisions = [
            functools.partial(decide_create_partitions, command=command, leader_id=self._endpoint.broker_id)
            for command in commands
        ]
        return await self._begun.finish(
            self._create([command.name for command in commands], decisions), "create-partitions"
        )

    async def _create(self, names: Sequence[str], decisions: Sequence[Decide[TopicResult]]) -> list[TopicAnswer]:
        """Tables first, then the records. Only this waits for files of deleted topics of these names."""
        async with self._names.hold(names):
            steps = await self._look_ahead_without_removals(names, decisions)
            answers = [step.response for step in steps]
            tables: dict[TopicPartition, PartitionTable] = {}
            prepared: list[int] = []
            for place, step in enumerate(steps):
                if step.records and not isinstance(step.response, Refused):
                    created = await self._create_tables(step.response)
                    if isinstance(created, Refused):
                        answers[place] = created
                    else:
                        tables.update(created)
                        prepared.append(place)

            def serve(committed: Sequence[TopicAnswer]) -> None:
                for name, table in tables.items():
                    if self.state.leadership(name) is not None:
                        self._serve(name, table)

            committed = await self._metadata.change([decisions[place] for place in prepared], serve)
            for place, answer in zip(prepared, committed, strict=True):
                answers[place] = answer
            return answers

    async def _look_ahead_without_removals(
        self, names: Sequence[str], decisions: Sequence[Decide[TopicResult]]
    ) -> list[Step[ClusterRecord, TopicAnswer]]:
        while True:
            steps = await self._metadata.look_ahead(decisions)
            removals = {task for name in names for task in self._removals.get(name, ())}
            if not removals:
                return steps
            await asyncio.wait(removals)

    async def delete_topics(self, commands: Sequence[DeleteTopic]) -> list[TopicAnswer]:
        return await self._begun.finish(self._delete(commands), "delete-topics")

    async def _delete(self, commands: Sequence[DeleteTopic]) -> list[TopicAnswer]:
        def remove(answers: Sequence[TopicAnswer]) -> None:
            for answer in answers:
                if not isinstance(answer, Refused):
                    self._remove(answer.name, answer.topic_id)
                    for tell in self._on_topic_deleted:
                        tell(answer.name, answer.topic_id)

        known = [command.name for command in commands if command.name in self.state.topics]
        async with self._names.hold(known):
            return await self._metadata.change(
                [functools.partial(decide_delete_topic, command=command) for command in commands], remove
            )

    async def alter_topic_configs(self, commands: Sequence[AlterTopicConfigs]) -> list[TopicAnswer]:
        def configure(answers: Sequence[TopicAnswer]) -> None:
            for answer in answers:
                if not isinstance(answer, Refused) and (topic := self.state.topics.get(answer.name)) is not None:
                    settings = self._settings(topic)
                    for partition in self._partitions_of(topic.name, len(topic.partitions)):
                        partition.configure(settings)

        answers = await self._metadata.change(
            [
                functools.partial(decide_alter_topic_configs, command=command, broker=self.config)
                for command in commands
            ],
            configure,
        )
        self._warn_of_contradictions(answers)
        return answers

    def _warn_of_contradictions(self, answers: Sequence[TopicAnswer]) -> None:
        for answer in answers:
            if not isinstance(answer, Refused):
                contradiction = find_contradiction(resolve_topic_config(answer.configs, self.config))
                if contradiction is not None:
                    _log.warning("%s", contradiction, extra={"topic": answer.name})

    # ------------------------------------------------------------------ views

    async def create_view(self, command: CreateView) -> JsonView | Refused:
        (answer,) = await self._metadata.change([functools.partial(decide_create_view, command=command)])
        return answer

    async def delete_view(self, name: str) -> JsonView | Refused:
        (answer,) = await self._metadata.change([functools.partial(decide_delete_view, name=name)])
        return answer

    # ------------------------------------------------------------------ producers

    async def init_producer(
        self,
        name: str | None,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        keeps_epoch: bool = False,
    ) -> ProducerIdentity | Refused:
        """Without a name: an id that nobody ever had, at epoch 0, and only one in a thousand costs a commit. With it:
        that name's id and an epoch that nobody ever had, committed before the answer; then every lower epoch is fenced.

        `producer_id` and `producer_epoch` are those of a caller that has the name's identity. One that `keeps_epoch`
        gets the identity as it is, and nobody is fenced. Refused as `decide_init_producer` says, or INVALID_REQUEST (an
        identity, or an epoch to keep, without a name).
        """
        current = None if producer_id is None else ProducerIdentity(producer_id, producer_epoch or 0)
        if name is None:
            if current is not None:
                return Refused(
                    ErrorCode.INVALID_REQUEST, f"expected a producer id with a name only, found {producer_id} without"
                )
            if keeps_epoch:
                return Refused(ErrorCode.INVALID_REQUEST, "expected a name whose epoch is to be kept, found none")
            unnamed = await self._producer_ids.take()
            return unnamed if isinstance(unnamed, Refused) else ProducerIdentity(unnamed, 0)
        command = InitProducer(name, current, keeps_epoch)
        refused = check_init_producer(command)
        if refused is not None:
            return refused
        new_id: int | None = None
        while True:
            if needs_new_id(self.state, command):
                taken = await self._producer_ids.take()
                if isinstance(taken, Refused):
                    return taken
                new_id = taken
            (answer,) = await self._metadata.change([functools.partial(_decide_init, command=command, new_id=new_id)])
            if isinstance(answer, ProducerIdentity):
                self._producer_names.saw(answer.producer_id)
            if answer is not None:  # else the name has come to need a new id meanwhile
                return answer

    def check_producer(self, stamp: ProducerStamp) -> Refused | None:
        """Why nothing of this identity may be appended anywhere; None if it may be. For every batch: one look-up."""
        producers = self.state.producers
        if producers.by_id.find(stamp.producer_id) is not None:
            self._producer_names.saw(stamp.producer_id)
        return check_producer(producers, stamp)

    async def _allocate_producer_ids(self) -> range | Refused:
        decide = functools.partial(decide_allocate_producer_ids, broker_id=self._endpoint.broker_id)
        (block,) = await self._metadata.change([decide])
        return block

    # ------------------------------------------------------------------ following the metadata

    def follow_fencing(self, fenced: Refused) -> None:
        for partition in self._partitions.values():
            partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER, fenced.message)

    async def follow_reload(self) -> None:
        """A change whose answer was lost may have been committed: its partitions are to be opened, or to go."""
        if not self._is_started:
            return  # the leadership is not taken yet
        for name in self.state.partitions_led_by(self._endpoint.broker_id):
            if name not in self._partitions and name not in self._unusable:
                await self._open(name)
        for topic_id, topic in self.state.deleted_topics.items():
            if topic not in self.state.topics and any(name.topic == topic for name in self._partitions):
                self._remove(topic, topic_id)

    # ------------------------------------------------------------------ partitions

    async def _create_tables(self, topic: TopicResult) -> dict[TopicPartition, PartitionTable] | Refused:
        """Tables for those partitions of the topic that have none yet. If one cannot be created, the others are waited
        for all the same: what a retry creates must not meet them."""
        names = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        new = [name for name in names if self.state.leadership(name) is None]
        created = await asyncio.gather(
            *(
                self._calls.commit(functools.partial(self._storage.create_partition, name, topic_id=topic.topic_id))
                for name in new
            ),
            return_exceptions=True,
        )
        tables: dict[TopicPartition, PartitionTable] = {}
        for name, table in zip(new, created, strict=True):
            if isinstance(table, StorageFault):
                return Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(table))
            if isinstance(table, BaseException):
                raise table
            tables[name] = table
        return tables

    async def _open(self, name: TopicPartition, *, is_at_start: bool = False) -> None:
        topic = self.state.topics[name.topic]
        try:
            table = await self._calls.open(
                functools.partial(self._storage.open_partition, name, topic_id=topic.topic_id)
            )
        except StorageFault as fault:
            way_out = f"; {show_way_out(name.topic, name.partition)}" if isinstance(fault, StorageDamaged) else ""
            self._unusable[name] = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {fault}{way_out}")
            _log.error("partition does not serve: %s", fault, extra={"topic": name.topic, "partition": name.partition})
            return
        if is_at_start:
            await self._raise_epoch(name, log_epoch=table.state.leader_epoch)
        self._serve(name, table)

    async def _raise_epoch(self, name: TopicPartition, *, log_epoch: int) -> None:
        """A log that has a higher epoch than its leader would fence it. The broker that may change the metadata has
        the right to lead, so where they are older than the log, they follow it."""
        leadership = self.state.leadership(name)
        if leadership is None or leadership.leader_epoch >= log_epoch:
            return
        decide = functools.partial(
            decide_raise_leader_epoch, name=name, leader_id=self._endpoint.broker_id, above=log_epoch
        )
        (raised,) = await self._metadata.change([decide])
        where = {"topic": name.topic, "partition": name.partition}
        _log.warning("the log has leader epoch %d, above the metadata's; now: %s", log_epoch, raised, extra=where)

    def _serve(self, name: TopicPartition, table: PartitionTable) -> None:
        leadership = self.state.leadership(name)
        assert leadership is not None, f"{name} is served but not known"
        self._partitions[name] = Partition(
            name,
            table,
            leader_epoch=leadership.leader_epoch,
            settings=self._settings(self.state.topics[name.topic]),
            queue_bytes_max=self.config.queued_max_bytes,
            clock=self._clock,
            calls=self._calls,
            cache=self._cache,
            tasks=self._tasks,
            maintenance=self._maintenance,
        )

    def _settings(self, topic: Topic) -> PartitionSettings:
        return settings_of(topic.name, resolve_topic_config(topic.configs, self.config), self.config)

    def _partitions_of(self, topic: str, count: int) -> Iterable[Partition]:
        names = (TopicPartition(topic, number) for number in range(count))
        return [self._partitions[name] for name in names if name in self._partitions]

    def _remove(self, name: str, topic_id: str) -> None:
        """In the background; a topic of the same name is not created before the files are gone."""
        partitions = [self._partitions.pop(of) for of in list(self._partitions) if of.topic == name]
        for of in [of for of in self._unusable if of.topic == name]:
            del self._unusable[of]
        removal = self._tasks.start(self._remove_topic(name, topic_id, partitions), f"delete/{name}")
        self._removals.setdefault(name, set()).add(removal)
        removal.add_done_callback(functools.partial(self._forget_removal, name))

    def _forget_removal(self, name: str, removal: asyncio.Task[None]) -> None:
        self._removals[name].discard(removal)
        if not self._removals[name]:
            del self._removals[name]

    async def _remove_topic(self, name: str, topic_id: str, partitions: Sequence[Partition]) -> None:
        await asyncio.gather(*(partition.retire() for partition in partitions))
        try:
            await self._calls.housekeep(functools.partial(self._storage.delete_topic, name, topic_id=topic_id))
        except StorageFault as fault:
            _log.warning("files of the deleted topic %s stay until the next start: %s", name, fault)
            return
        await self._metadata.change([functools.partial(decide_topic_files_deleted, topic_id=topic_id)])


def _decide_init(
    state: ClusterState, command: InitProducer, new_id: int | None
) -> Step[ClusterRecord, ProducerIdentity | Refused | None]:
    if new_id is None and needs_new_id(state, command):
        return Step(None)
    return decide_init_producer(state, command, new_producer_id=new_id)
