"""Topics, partitions and their offsets, views and configs: what they are, and changes of them. Each item of a request
gets an answer of its own."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from bus.broker_api.audit import change_event
from bus.broker_api.authorization import Access
from bus.broker_api.calls import CREATE_TOPIC, Need
from bus.broker_api.client_quotas import ClientQuotas
from bus.broker_api.requests import Items
from bus.cluster_metadata.cluster_decisions import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    CreateView,
    DeleteTopic,
)
from bus.cluster_metadata.cluster_state import Topic, replica_state
from bus.cluster_metadata.configs import ConfigOperation, describe_topic_configs, is_internal_topic
from bus.descriptions import ConfigDescription, ListedOffset, PartitionDescription, TopicDescription
from bus.errors import ErrorCode, Refused, StorageFault, show_names
from bus.json_views import JsonView
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.audit_log import AuditLog
from bus.runtime.cluster import Cluster
from bus.runtime.metadata.controller import TopicAnswer
from bus.runtime.tasks import LoopShare, LoopShares
from bus.security.acls import CLUSTER_NAME, AclOperation, AclResource, AclResourceType
from bus.settings.broker import describe_broker_config

# By one request: each is a table of the storage, and the client requests the others again.
_AUTO_CREATED_MAX = 100


@dataclass(frozen=True, slots=True)
class OffsetQuestion:
    """`timestamp_ms` may be one of the special ones (partition_log/reads.py). With `version` the question is for
    the high watermark that this version of the table left, and `timestamp_ms` does not count."""

    partition: TopicPartition
    timestamp_ms: int
    version: int | None
    current_leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class TopicWithOperations:
    """`operations`: what the caller may do with the topic, as far as it was asked for."""

    topic: TopicDescription
    operations: Sequence[AclOperation] = ()


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The topics of a request, and the brokers that serve them. `metadata_offset`: one past the last record of the
    cluster metadata that this tells of, at least."""

    cluster_id: str
    controller_id: int
    brokers: Sequence[BrokerEndpoint]
    root_url: str
    topics: Sequence[tuple[str, TopicWithOperations | Refused]]
    metadata_offset: int


class ResourceKind(Enum):
    TOPIC = "topic"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """`kind` is a refusal where the request names no kind that there is."""

    kind: ResourceKind | Refused
    name: str


ConfigChange = tuple[ConfigResource, Sequence[ConfigOperation]]


class MetadataApi:
    def __init__(self, cluster: Cluster, quotas: ClientQuotas, audit: AuditLog, shares: LoopShares) -> None:
        self._cluster = cluster
        self._quotas = quotas
        self._audit = audit
        self._shares = shares

    # ------------------------------------------------------------------ offsets

    async def list_offsets(self, access: Access, questions: Items[OffsetQuestion]) -> list[ListedOffset | Refused]:
        return await access.answer_items(questions, lambda one: one.partition.topic, self._list_offsets)

    async def _list_offsets(self, questions: Sequence[OffsetQuestion]) -> list[ListedOffset | Refused]:
        refused = await self._cluster.prove_leadership()
        answers: list[ListedOffset | Refused] = []
        share = self._shares.begin()
        for question in questions:
            if share.is_used_up:
                await share.wait()
            answers.append(refused or await self._list_offset(question))
        return answers

    async def _list_offset(self, question: OffsetQuestion) -> ListedOffset | Refused:
        partition = self._cluster.host.find(question.partition)
        if isinstance(partition, Refused):
            return partition
        epoch = question.current_leader_epoch
        try:
            if question.version is not None:
                listed = await partition.list_offset_at(question.version, epoch)
            else:
                listed = await partition.list_offset(question.timestamp_ms, epoch)
        except StorageFault as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.name}: {fault}")
        if isinstance(listed, Refused):
            return listed
        return ListedOffset(listed.offset, listed.timestamp_ms, listed.leader_epoch, partition.state.version)

    # ------------------------------------------------------------------ the cluster

    async def describe(
        self, access: Access, names: Iterable[str], *, may_create: bool, with_operations: bool = False
    ) -> ClusterMetadata:
        """No names: all topics that the caller may see. One that is named twice is described once: its partitions may
        be thousands. One that may not be described is refused whether it exists or not; the brokers are described to
        everybody. `may_create`: those that do not exist are created, if the broker is configured so."""
        named = list(dict.fromkeys(names))
        refused = dict(await access.refusals(access.call.item_needs[0], named)) if named else {}
        uncreated: Mapping[str, Refused] = {}
        if may_create:
            missing = [name for name in named if name not in refused and name not in self._cluster.state.topics]
            refused.update(await access.refusals(access.call.creation_needs[0], missing))
            permitted = [name for name in missing if name not in refused]
            uncreated = await self._auto_create(permitted[:_AUTO_CREATED_MAX], access)
        state, metadata_offset = self._cluster.state, self._cluster.metadata.applied_offset
        topics: list[tuple[str, TopicWithOperations | Refused]] = []
        share = self._shares.begin()
        for name in named or await access.filter_visible(sorted(state.topics), str):
            if share.is_used_up:
                await share.wait()
            topic = None if name in refused else state.topics.get(name)
            if topic is None:
                # Why it may not be described, or was not created for the caller, if it was to be.
                why = refused.get(name) or uncreated.get(name)
                topics.append((name, why or _no_topic(show_names([name]))))
            else:
                operations = access.operations(AclResource(AclResourceType.TOPIC, name)) if with_operations else ()
                topics.append((name, TopicWithOperations(await self._describe_topic(topic, share), operations)))
        return ClusterMetadata(
            self._cluster.storage.cluster_id,
            self._cluster.endpoint.broker_id if state.controller is None else state.controller.broker_id,
            [broker.endpoint for broker in state.brokers.values() if not broker.is_fenced],
            self._cluster.storage.root_url,
            topics,
            metadata_offset,
        )

    async def _auto_create(self, names: Sequence[str], access: Access) -> Mapping[str, Refused]:
        """Create the topics if the broker is configured so. Return by name why one was not created, the
        `controller_mutation_rate` of the caller included."""
        config = self._cluster.config
        if not names or not config.auto_create_topics_enable:
            return {}

        async def create_and_audit(allowed: Sequence[str]) -> list[Refused | None]:
            creation = await self._cluster.controller.auto_create_topics(allowed)
            self._audit_created(creation.created, access)
            return [creation.refused.get(name) for name in allowed]

        async def create(allowed: Sequence[str]) -> list[Refused | None]:
            # They are created whoever waits for it, so the audit has them whoever does.
            return await self._cluster.metadata.tasks.finish(create_and_audit(allowed), "topics of a client")

        outcomes = await self._quotas.within_mutation_quota(
            access.caller, names, lambda _: config.num_partitions, create
        )
        return {name: refused for name, refused in zip(names, outcomes, strict=True) if refused is not None}

    def _audit_created(self, names: Iterable[str], access: Access) -> None:
        """Whoever sends a call on chooses the name of the client, so the row has its own, too."""
        sender = access.changes.reporter.caller
        is_sent_on = sender is not access.caller
        rule = f"sent on by {sender.principal} from {sender.host}" if is_sent_on else ""
        for name in names:
            self._audit.add(
                change_event(
                    access.caller,
                    self._audit.now_ms(),
                    call="Metadata",
                    operation=CREATE_TOPIC.operation.value,
                    resource_type=CREATE_TOPIC.resource_type.value,
                    resource=name,
                    rule=rule,
                )
            )

    async def _describe_topic(self, topic: Topic, share: LoopShare) -> TopicDescription:
        unfenced = frozenset(self._cluster.state.unfenced_brokers)
        described = (self._describe_partition(topic, number, unfenced) for number in range(len(topic.partitions)))
        partitions: list[PartitionDescription] = await share.extend([], described)
        return TopicDescription(topic.name, topic.topic_id, is_internal_topic(topic.name), tuple(partitions))

    def _describe_partition(self, topic: Topic, number: int, unfenced: Collection[int]) -> PartitionDescription:
        name, leadership = TopicPartition(topic.name, number), topic.partitions[number]
        replicas = replica_state(topic, number, unfenced, self._cluster.lagging.of(name))
        return PartitionDescription(
            partition=number,
            leader_id=leadership.leader_id,
            leader_epoch=leadership.leader_epoch,
            error=self._find_error(name, leadership.leader_id),
            replicas=replicas.replicas,
            isr=replicas.in_sync,
            is_offline=replicas.is_offline,
        )

    def _find_error(self, name: TopicPartition, leader_id: int) -> Refused | None:
        """Return why a partition cannot be used. If another broker leads it, this one knows only whether that broker is
        there."""
        if leader_id == self._cluster.endpoint.broker_id:
            return self._cluster.host.find_error(name)
        leader = self._cluster.state.brokers.get(leader_id)
        if leader is None or leader.is_fenced:
            return Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {leader_id}, which leads {name}, is gone")
        return None

    # ------------------------------------------------------------------ topics and views

    async def create_topics(self, access: Access, commands: Sequence[CreateTopic]) -> list[TopicAnswer]:
        async def create(permitted: Sequence[CreateTopic]) -> list[TopicAnswer]:
            return await self._quotas.within_mutation_quota(
                access.caller, permitted, self._cost_of_creation, self._cluster.controller.create_topics
            )

        is_change = any(not one.validate_only for one in commands)
        return await access.change_items(commands, _name, create, is_change=is_change)

    def _cost_of_creation(self, command: CreateTopic) -> int:
        default = self._cluster.config.num_partitions
        asked = len(command.replica_assignment) or (command.partitions if command.partitions > 0 else default)
        return 0 if command.validate_only else asked

    async def delete_topics(self, access: Access, commands: Sequence[DeleteTopic]) -> list[TopicAnswer]:
        async def delete(permitted: Sequence[DeleteTopic]) -> list[TopicAnswer]:
            return await self._quotas.within_mutation_quota(
                access.caller,
                permitted,
                lambda command: self._partition_count(command.name),
                self._cluster.controller.delete_topics,
            )

        return await access.change_items(commands, _name, delete)

    def _partition_count(self, topic: str) -> int:
        found = self._cluster.state.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    async def create_partitions(self, access: Access, commands: Sequence[CreatePartitions]) -> list[TopicAnswer]:
        async def create(permitted: Sequence[CreatePartitions]) -> list[TopicAnswer]:
            return await self._quotas.within_mutation_quota(
                access.caller, permitted, self._cost_of_growth, self._cluster.controller.create_partitions
            )

        is_change = any(not one.validate_only for one in commands)
        return await access.change_items(commands, _name, create, is_change=is_change)

    def _cost_of_growth(self, command: CreatePartitions) -> int:
        return 0 if command.validate_only else command.partitions - self._partition_count(command.name)

    async def create_view(self, access: Access, command: CreateView) -> JsonView | Refused:
        """The caller needs a right to the topic of a view that is replaced, too, and does not learn its name."""
        before = self._topic_of_view(command.name) if command.replaces else None
        return await access.change(
            command.name,
            lambda: self._cluster.controller.create_view(command),
            [command.topic, *filter(None, [before])],
            reported_name=lambda topic: topic if topic == command.topic else f"of view {command.name}",
            is_change=not command.validate_only,
        )

    async def delete_view(self, access: Access, name: str) -> JsonView | Refused:
        """A view that is not there is refused as one of a topic of its name: nothing tells it from one that the caller
        may not delete."""
        return await access.change(
            name,
            lambda: self._cluster.controller.delete_view(name),
            [self._topic_of_view(name) or name],
            reported_name=lambda _: f"of view {name}",
        )

    def _topic_of_view(self, name: str) -> str | None:
        view = self._cluster.state.views.get(name.casefold())
        return None if view is None else view.topic

    async def views(self, access: Access) -> Sequence[JsonView]:
        """Return those of topics that the caller may see, sorted by name."""
        views = self._cluster.state.views
        return await access.filter_visible([views[name] for name in sorted(views)], lambda view: view.topic)

    # ------------------------------------------------------------------ configs

    async def describe_configs(
        self, access: Access, resources: Items[ConfigResource], keys: frozenset[str]
    ) -> list[Sequence[ConfigDescription] | Refused]:
        """`keys`: no others; empty: all. A resource that is named twice is described once: its entries are many."""

        async def describe(permitted: Sequence[ConfigResource]) -> list[Sequence[ConfigDescription] | Refused]:
            return await self._describe_configs(permitted, keys)

        need_of = functools.partial(_need_of, access.call.item_needs)
        return await access.answer_items(resources, _secured_name, describe, need_of)

    async def _describe_configs(
        self, resources: Sequence[ConfigResource], keys: frozenset[str]
    ) -> list[Sequence[ConfigDescription] | Refused]:
        answers: list[Sequence[ConfigDescription] | Refused] = []
        described: set[ConfigResource] = set()
        share = self._shares.begin()
        for resource in resources:
            if share.is_used_up:
                await share.wait()
            if resource in described:
                message = f"expected each resource once in a request, found {show_names([resource.name])!r} again"
                answers.append(Refused(ErrorCode.INVALID_REQUEST, message))
                continue
            described.add(resource)
            entries = self._describe_config(resource)
            if not isinstance(entries, Refused) and keys:
                entries = [entry for entry in entries if entry.name in keys]
            answers.append(entries)
        return answers

    def _describe_config(self, resource: ConfigResource) -> Sequence[ConfigDescription] | Refused:
        match resource.kind:
            case Refused():
                return resource.kind
            case ResourceKind.BROKER:
                return self._check_broker(resource.name) or describe_broker_config(self._cluster.config)
            case ResourceKind.TOPIC:
                topic = self._cluster.state.topics.get(resource.name)
                if topic is None:
                    return _no_topic(resource.name)
                return describe_topic_configs(topic.configs, self._cluster.config)

    def _check_broker(self, name: str) -> Refused | None:
        own = str(self._cluster.endpoint.broker_id)
        if name in ("", own):
            return None
        return Refused(ErrorCode.INVALID_REQUEST, f"expected the broker that answers, {own}, found {name!r}")

    async def alter_configs(
        self, access: Access, changes: Items[ConfigChange], *, validate_only: bool
    ) -> list[Refused | None]:
        async def alter(permitted: Sequence[ConfigChange]) -> list[Refused | None]:
            return await self._alter_configs(permitted, validate_only=validate_only)

        return await access.change_items(
            changes,
            lambda change: _secured_name(change[0]),
            alter,
            lambda change: _need_of(access.call.item_needs, change[0]),
            changed_name=lambda change: change[0].name,
            is_change=not validate_only,
        )

    async def _alter_configs(self, changes: Sequence[ConfigChange], *, validate_only: bool) -> list[Refused | None]:
        commands = [
            AlterTopicConfigs(resource.name, operations, validate_only)
            for resource, operations in changes
            if resource.kind is ResourceKind.TOPIC
        ]
        answers = iter(await self._cluster.controller.alter_topic_configs(commands))
        read_only = Refused(
            ErrorCode.INVALID_REQUEST, "broker configs are read at start: change the file or the option and restart"
        )
        outcomes: list[Refused | None] = []
        for resource, _ in changes:
            match resource.kind:
                case Refused():
                    outcomes.append(resource.kind)
                case ResourceKind.BROKER:
                    outcomes.append(read_only)
                case ResourceKind.TOPIC:
                    answer = next(answers)
                    outcomes.append(answer if isinstance(answer, Refused) else None)
        return outcomes


def _name(command: CreateTopic | DeleteTopic | CreatePartitions) -> str:
    return command.name


def _secured_name(resource: ConfigResource) -> str:
    """The name by which ACLs know the resource: configs of brokers are those of the cluster."""
    return resource.name if resource.kind is ResourceKind.TOPIC else CLUSTER_NAME


def _need_of(needs: Sequence[Need], resource: ConfigResource) -> Need:
    of_topics, of_cluster = needs
    return of_topics if resource.kind is ResourceKind.TOPIC else of_cluster


def _no_topic(name: str) -> Refused:
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name!r}")
