"""The controller: what commands change in the cluster metadata, and the files of topics that come and go.

Theory of operation. A command is decided by the rules (cluster_metadata/) and its records are appended by the metadata
log; brokers follow that log, so nothing here tells a partition to open or close. Tables of a new topic are created
before the record that makes it exist, so a topic never points at nothing; files of a deleted topic go after the record
that ends it. Both take long, so other changes do not wait for them: a caller that creates or deletes a topic has its
name for as long as that takes (`TopicNamesInUse`). Calls to a controller that is replaced are woken by
`ControllerWatch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bus.cluster_metadata.broker_decisions import decide_unregister_broker, decide_upgrade_features
from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    CreateView,
    DeleteTopic,
    RaiseLeaderEpoch,
    TopicResult,
    are_tables_managed,
    decide_alter_quotas,
    decide_alter_topic_configs,
    decide_auto_create_topic,
    decide_create_acls,
    decide_create_internal_topic,
    decide_create_partitions,
    decide_create_topic,
    decide_create_view,
    decide_delete_acls,
    decide_delete_topic,
    decide_delete_view,
    decide_raise_leader_epoch,
    decide_topic_files_deleted,
)
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_state import ClusterState
from bus.cluster_metadata.configs import collision_key, find_contradiction, resolve_topic_config
from bus.cluster_metadata.partition_placement import decide_elect_leaders, decide_reassign_partitions
from bus.errors import ErrorCode, NotController, Refused, StorageFault
from bus.json_views import JsonView
from bus.model import BrokerEndpoint, Step, TopicPartition
from bus.ports import PartitionTable, Storage
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_log import Decide, MetadataLog
from bus.runtime.partitions.partition_host import PartitionHost
from bus.security.acls import AclBinding, AclBindingFilter
from bus.security.quotas import AlterQuotas, Quotas
from bus.settings.broker import BrokerConfig

_log = logging.getLogger(__name__)
T = TypeVar("T")


# The new leaders open a smallest portion in about this time.
PORTION_PAUSE_S = 0.1
_PORTION_MIN = 16
# The number of portions at first; portions shrink as fewer partitions remain, so all have moved within some seconds.
_PORTIONS = 40


def portion_size(count: int) -> int:
    """Return how many of the `count` remaining partitions move now, in an election or the shutdown of a broker. A
    partition is without service from the record that moves it until its new leader has fenced and opened it, and a
    broker opens one partition after another; moving in portions, each partition waits only for those of its own
    portion."""
    return max(_PORTION_MIN, count // _PORTIONS)


class TopicNamesInUse:
    """Names of topics whose tables are being created or deleted.

    Guards one promise: of two callers whose names collide, one is at work at a time, in the order they came. What
    has no such name in common goes on side by side.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()  # the holders of each lock, including those that wait

    @contextlib.asynccontextmanager
    async def hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """All of `names` at once, until the block ends. Not to be nested."""
        async with contextlib.AsyncExitStack() as stack:
            # always in the same order, so that no two callers deadlock
            for key in sorted({collision_key(name) for name in names}):
                stack.callback(self._leave, key)
                self._users[key] += 1
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    def _leave(self, key: str) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key], self._locks[key]


TopicAnswer = TopicResult | Refused
OnTopicDeleted = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class AutoCreation:
    """The outcome for topics that did not exist; a topic that another call created meanwhile is in neither list."""

    created: Sequence[str] = ()
    refused: Mapping[str, Refused] = field(default_factory=dict)


class Controller:
    """Every call but `follow` raises `NotController` while another broker is. `host` has the partitions of this broker;
    `wait_until_followed` waits until all brokers know the metadata up to an offset, or raises `NotController`."""

    def __init__(
        self,
        metadata: MetadataLog,
        host: PartitionHost,
        storage: Storage,
        config: BrokerConfig,
        endpoint: BrokerEndpoint,
        *,
        new_topic_id: Callable[[], str],
        calls: BlockingCalls,
        wait_until_followed: Callable[[int], Awaitable[None]],
    ) -> None:
        self._metadata = metadata
        self._wait_until_followed = wait_until_followed
        self._host = host
        self._storage = storage
        self._config = config
        self._endpoint = endpoint
        self._new_topic_id = new_topic_id
        self._calls = calls
        self._names = TopicNamesInUse()
        self._removals: dict[str, asyncio.Task[None]] = {}  # the removals of topics in `deleted_topics`, by topic id
        self._deleted: frozenset[str] = frozenset()  # ids of topics whose deletion was announced
        self._on_topic_deleted: list[OnTopicDeleted] = []

    # ------------------------------------------------------------------ leaders

    async def raise_leader_epoch(self, command: RaiseLeaderEpoch) -> int | Refused:
        """A log that has a higher epoch than its leader would fence it. The broker that leads by the metadata has the
        right to lead, so where they are older than the log, they follow it."""
        raised = await self._change(decide_raise_leader_epoch, command=command)
        name = command.partition
        where = {"topic": name.topic, "partition": name.partition}
        _log.warning("the log has leader epoch %d, above the metadata's; now: %s", command.above, raised, extra=where)
        return raised

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, changes_max: int | None
    ) -> Mapping[TopicPartition, int | Refused] | Refused:
        """Elect leaders in portions (`portion_size`), as `decide_elect_leaders` says."""
        decide = functools.partial(decide_elect_leaders, partitions=partitions, changes_max=changes_max)
        (step,) = await self._metadata.look_ahead([decide])
        if isinstance(step.response, Refused):
            return step.response
        answers = dict(step.response)
        left = [partition for partition, answer in answers.items() if not isinstance(answer, Refused)]
        while left:
            count = portion_size(len(left))
            portion, left = left[:count], left[count:]
            moved = await self._change(decide_elect_leaders, partitions=portion)
            if isinstance(moved, Refused):
                return moved
            answers |= moved
            if left:
                await asyncio.sleep(PORTION_PAUSE_S)
        if partitions is not None:
            return answers
        return {partition: answer for partition, answer in answers.items() if not isinstance(answer, Refused)}

    async def reassign_partitions(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Mapping[TopicPartition, Sequence[int] | Refused] | Refused:
        return await self._change(decide_reassign_partitions, assignments=assignments)

    # ------------------------------------------------------------------ brokers

    async def unregister_broker(self, broker_id: int) -> Refused | None:
        return await self._change(decide_unregister_broker, broker_id=broker_id)

    async def upgrade_features(self, level: int, *, validate_only: bool) -> int | Refused:
        decide = functools.partial(decide_upgrade_features, level=level)
        if validate_only:
            (step,) = await self._metadata.look_ahead([decide])
            return step.response
        (answer,) = await self._metadata.change([decide])
        return answer

    # ------------------------------------------------------------------ topics

    async def create_topics(self, commands: Sequence[CreateTopic]) -> list[TopicAnswer]:
        decisions = [
            self._of_new_topic(decide_create_topic, self._new_topic_id(), command=command) for command in commands
        ]
        answers = await self._create([command.name for command in commands], decisions)
        self._warn_of_contradictions(answers)
        return answers

    async def auto_create_topics(self, names: Sequence[str]) -> AutoCreation:
        """Create those that do not exist, for a client that asked for them by name. Does nothing if
        `auto.create.topics.enable` is false. Callers at once get one and the same topic."""
        missing = [name for name in dict.fromkeys(names) if name not in self._metadata.cluster.topics]
        if not missing or not self._config.auto_create_topics_enable:
            return AutoCreation()
        topic_ids = [self._new_topic_id() for _ in missing]
        decisions = [
            self._of_new_topic(decide_auto_create_topic, topic_id, name=name)
            for name, topic_id in zip(missing, topic_ids, strict=True)
        ]
        created, refused = [], {}
        answers = await self._create(missing, decisions)
        for name, topic_id, answer in zip(missing, topic_ids, answers, strict=True):
            if isinstance(answer, Refused):
                refused[name] = answer
            elif answer.topic_id == topic_id:
                created.append(name)
                _log.info("topic %s was created for a client that asked for it", name, extra={"topic": name})
        return AutoCreation(created, refused)

    def _of_new_topic(
        self, decide: Callable[..., Step[ClusterRecord, T]], topic_id: str, **command: object
    ) -> Decide[T]:
        return functools.partial(
            decide,
            **command,
            topic_id=topic_id,
            leader_id=self._endpoint.broker_id,
            partitions_default=self._config.num_partitions,
            broker=self._config,
            is_case_blind=self._storage.is_case_blind,
        )

    async def create_internal_topic(
        self, name: str, *, partitions: int, configs: Mapping[str, str], kept: Mapping[str, str]
    ) -> TopicAnswer:
        """Return the topic, created if it does not exist. Concurrent callers get the same topic. `kept`: configs that
        the bus itself stores with the topic."""
        decide = functools.partial(
            decide_create_internal_topic,
            name=name,
            topic_id=self._new_topic_id(),
            leader_id=self._endpoint.broker_id,
            partitions=partitions,
            configs=configs,
            kept=kept,
            broker=self._config,
        )
        (answer,) = await self._create([name], [decide])
        return answer

    async def create_partitions(self, commands: Sequence[CreatePartitions]) -> list[TopicAnswer]:
        decisions = [
            functools.partial(
                decide_create_partitions,
                command=command,
                leader_id=self._endpoint.broker_id,
                broker=self._config,
            )
            for command in commands
        ]
        return await self._create([command.name for command in commands], decisions)

    async def delete_topics(self, commands: Sequence[DeleteTopic]) -> list[TopicAnswer]:
        return await self._metadata.tasks.finish(self._delete(commands), "delete")

    async def _delete(self, commands: Sequence[DeleteTopic]) -> list[TopicAnswer]:
        known = [command.name for command in commands if command.name in self._metadata.cluster.topics]
        async with self._names.hold(known):
            return await self._metadata.change(
                [functools.partial(decide_delete_topic, command=command) for command in commands]
            )

    async def alter_topic_configs(self, commands: Sequence[AlterTopicConfigs]) -> list[TopicAnswer]:
        answers = await self._metadata.change(
            [
                functools.partial(decide_alter_topic_configs, command=command, broker=self._config)
                for command in commands
            ]
        )
        self._warn_of_contradictions(answers)
        return answers

    def _warn_of_contradictions(self, answers: Sequence[TopicAnswer]) -> None:
        for answer in answers:
            if not isinstance(answer, Refused):
                contradiction = find_contradiction(resolve_topic_config(answer.configs, self._config))
                if contradiction is not None:
                    _log.warning("%s", contradiction, extra={"topic": answer.name})

    # ------------------------------------------------------------------ views

    async def create_view(self, command: CreateView) -> JsonView | Refused:
        return await self._change(decide_create_view, command=command)

    async def delete_view(self, name: str) -> JsonView | Refused:
        return await self._change(decide_delete_view, name=name)

    # ------------------------------------------------------------------ quotas

    async def alter_quotas(self, commands: Sequence[AlterQuotas]) -> list[Quotas | Refused]:
        return await self._metadata.change([functools.partial(decide_alter_quotas, command=one) for one in commands])

    # ------------------------------------------------------------------ access control lists

    async def create_acls(self, acls: Sequence[AclBinding]) -> list[Refused | None] | Refused:
        """Answered once every broker that is not fenced has applied them."""
        return await self._change_everywhere(decide_create_acls, acls=acls)

    async def delete_acls(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding]] | Refused:
        """The same."""
        return await self._change_everywhere(decide_delete_acls, filters=filters)

    async def _change_everywhere(self, decide: Callable[..., Step[ClusterRecord, T]], **command: object) -> T | Refused:
        answer = await self._change(decide, **command)
        await self._wait_until_followed(self._metadata.applied_offset)
        return answer

    async def _change(self, decide: Callable[..., Step[ClusterRecord, T]], **command: object) -> T | Refused:
        (answer,) = await self._metadata.change([functools.partial(decide, **command)])
        return answer

    # ------------------------------------------------------------------ tables of new topics

    async def _create(self, names: Sequence[str], decisions: Sequence[Decide[TopicResult]]) -> list[TopicAnswer]:
        return await self._metadata.tasks.finish(self._create_with_tables(names, decisions), "create")

    async def _create_with_tables(
        self, names: Sequence[str], decisions: Sequence[Decide[TopicResult]]
    ) -> list[TopicAnswer]:
        """Tables first, then the records. Only this waits for files of deleted topics of these names."""
        async with self._names.hold(names):
            steps = await self._look_ahead_without_removals(names, decisions)
            answers = [step.response for step in steps]
            tables: dict[tuple[str, int], PartitionTable] = {}
            prepared: list[int] = []
            for place, step in enumerate(steps):
                if step.records and not isinstance(step.response, Refused):
                    created = await self._create_tables(step.response)
                    if isinstance(created, Refused):
                        answers[place] = created
                    else:
                        tables.update(created)
                        prepared.append(place)
            with self._host.handing_over(tables):
                committed = await self._metadata.change([decisions[place] for place in prepared])
            for place, answer in zip(prepared, committed, strict=True):
                answers[place] = answer
                await self._host.wait_until_settled(names[place])
            return answers

    async def _look_ahead_without_removals(
        self, names: Sequence[str], decisions: Sequence[Decide[TopicResult]]
    ) -> list[Step[ClusterRecord, TopicAnswer]]:
        while True:
            steps = await self._metadata.look_ahead(decisions)
            deleted = self._metadata.cluster.deleted_topics.items()
            removals = {
                self._removals[topic_id] for topic_id, name in deleted if name in names and topic_id in self._removals
            }
            if all(removal.done() for removal in removals):  # also where files could not be removed
                return steps
            await asyncio.wait(removals)

    async def _create_tables(self, topic: TopicResult) -> dict[tuple[str, int], PartitionTable] | Refused:
        """Tables for those partitions of the topic that have none yet. If one cannot be created, the others are waited
        for all the same: what a retry creates must not meet them."""
        try:
            # creating removes an existing table, which may be another controller's
            await self._metadata.check_leading()
        except StorageFault as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))
        self._metadata.check_is_controller()
        names = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        new = [name for name in names if self._metadata.cluster.leadership(name) is None]
        create = functools.partial(
            self._storage.create_partition,
            topic_id=topic.topic_id,
            is_managed=are_tables_managed(self._metadata.cluster, topic.configs),
            check_removal=self._metadata.check_is_last,
        )
        created = await asyncio.gather(
            *(self._calls.commit(functools.partial(create, name)) for name in new), return_exceptions=True
        )
        tables: dict[tuple[str, int], PartitionTable] = {}
        for name, table in zip(new, created, strict=True):
            if isinstance(table, StorageFault):
                return Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(table))
            if isinstance(table, BaseException):
                raise table
            tables[topic.topic_id, name.partition] = table
        return tables

    # ------------------------------------------------------------------ files of deleted topics

    def on_topic_deleted(self, tell: OnTopicDeleted) -> None:
        """Have `tell` called with name and id of each topic that is deleted from now on."""
        self._on_topic_deleted.append(tell)

    def follow(self, cluster: ClusterState) -> None:
        """Behind the host. The controller removes the files of each topic that a state names as deleted, once; if that
        fails, the next controller does."""
        for topic_id, name in cluster.deleted_topics.items():
            if topic_id not in self._deleted:
                for tell in self._on_topic_deleted:
                    tell(name, topic_id)
            if topic_id not in self._removals and self._metadata.is_leading:
                removal = self._metadata.tasks.start(self._remove_files(name, topic_id), f"delete/{name}")
                self._removals[topic_id] = removal
        self._deleted = frozenset(cluster.deleted_topics)
        self._removals = {key: removal for key, removal in self._removals.items() if key in self._deleted}

    async def _remove_files(self, name: str, topic_id: str) -> None:
        """Remove the files of a topic once no broker leads a partition of it."""
        try:
            await self._wait_until_followed(self._metadata.applied_offset)
            await self._host.wait_until_settled(name)
            await self._calls.housekeep(functools.partial(self._storage.delete_topic, name, topic_id=topic_id))
            await self._change(decide_topic_files_deleted, topic_id=topic_id)
        except StorageFault as fault:
            _log.warning("files of the deleted topic %s stay until the next start: %s", name, fault)
        except NotController:
            self._removals.pop(topic_id, None)  # this broker may be the next controller
            _log.info("files of the deleted topic %s are the next controller's to remove", name)


_LOOK_S = 0.1


class ControllerWatch:
    """Wakes calls when there is another controller. It looks once for all of them: while a controller hangs, thousands
    may wait. `controller`: the one that is known now. For one event loop."""

    def __init__(self, controller: Callable[[], BrokerEndpoint | None]) -> None:
        self._controller = controller
        # keyed by the controller that the waiting callers know; no entry is empty
        self._waiting: dict[BrokerEndpoint | None, set[asyncio.Event]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def waking(self, wake: asyncio.Event, known: BrokerEndpoint | None) -> Iterator[None]:
        """Set `wake` soon after the controller is another one than `known`, while the block runs."""
        waiting = self._waiting.setdefault(known, set())
        waiting.add(wake)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        try:
            yield
        finally:
            waiting.discard(wake)
            if not waiting and self._waiting.get(known) is waiting:
                del self._waiting[known]

    def _look(self) -> None:
        controller, self._timer = self._controller(), None
        for known, waiting in self._waiting.items():
            if known != controller:
                for wake in waiting:
                    wake.set()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
