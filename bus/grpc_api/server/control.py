"""Offsets, metadata, topics and configs over gRPC: each item of a request gets its own answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.cluster_metadata.cluster import Topic
from bus.cluster_metadata.cluster_decisions import AlterTopicConfigs, CreatePartitions, CreateTopic, DeleteTopic
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation, describe_topic_configs
from bus.cluster_metadata.names import is_internal_topic
from bus.config.broker import describe_broker_config
from bus.config.keys import ConfigEntry
from bus.errors import ErrorCode, Refused, StorageFault, show_names
from bus.grpc_api.server.requests import InvalidArgument
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.partition_log.reads import ListedOffset
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShare, LoopShares
from bus.runtime.metadata.controller import TopicAnswer

# Of one request: each is a table of the storage, and the others are asked for again.
_AUTO_CREATED_MAX = 100


class ControlHandler:
    def __init__(self, cluster: Cluster, shares: LoopShares) -> None:
        self._cluster = cluster
        self._shares = shares

    # ------------------------------------------------------------------ offsets and metadata

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        response, share = pb.ListOffsetsResponse(), self._shares.begin()
        for asked in request.partitions:
            if share.is_used_up:
                await share.wait()
            response.partitions.append(await self._list_offset(asked))
        return response

    async def _list_offset(self, asked: pb.ListOffsetsPartition) -> pb.ListOffsetsPartitionResponse:
        answer = pb.ListOffsetsPartitionResponse(
            topic=asked.topic, partition=asked.partition, offset=-1, timestamp_ms=-1, version=-1
        )
        epoch = asked.current_leader_epoch if asked.HasField("current_leader_epoch") else None
        partition = self._cluster.host.find(TopicPartition(asked.topic, asked.partition))
        listed: ListedOffset | Refused
        if isinstance(partition, Refused):
            listed = partition
        else:
            try:
                listed = (
                    await partition.list_offset_at(asked.version, epoch)
                    if asked.HasField("version")
                    else await partition.list_offset(asked.timestamp_ms, epoch)
                )
                answer.version = partition.state.version
            except StorageFault as fault:
                listed = Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.name}: {fault}")
        if isinstance(listed, Refused):
            _set_error(answer, listed)
        else:
            answer.offset, answer.timestamp_ms = listed.offset, listed.timestamp_ms
            answer.leader_epoch = listed.leader_epoch
        return answer

    async def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        """A topic that is named twice is told once: its partitions may be thousands."""
        asked = list(dict.fromkeys(request.topics))
        refused: Mapping[str, Refused] = {}
        if request.allow_auto_topic_creation:
            missing = [name for name in asked if name not in self._cluster.state.topics]
            refused = await self._cluster.controller.auto_create_topics(missing[:_AUTO_CREATED_MAX])
        state = self._cluster.state
        names = asked or sorted(state.topics)
        response = pb.MetadataResponse(
            cluster_id=self._cluster.storage.cluster_id,
            controller_id=self._cluster.endpoint.broker_id,
            brokers=[
                pb.Broker(broker_id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in state.brokers.values()
            ],
            root=self._cluster.storage.root_url,
        )
        share = self._shares.begin()
        for name in names:
            if share.is_used_up:
                await share.wait()
            answer = response.topics.add(name=name)
            topic = state.topics.get(name)
            if topic is not None:
                await self._tell_topic(answer, topic, share)
                continue
            message = f"expected an existing topic, found {show_names([name])!r}"
            # Why it was not created for the caller, if it was to be.
            _set_error(answer, refused.get(name) or Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
        return response

    async def _tell_topic(self, answer: pb.TopicMetadata, topic: Topic, share: LoopShare) -> None:
        answer.topic_id = topic.topic_id
        answer.is_internal = is_internal_topic(topic.name)
        for number in range(len(topic.partitions)):
            if share.is_used_up:
                await share.wait()
            answer.partitions.append(self._partition(topic, number))

    def _partition(self, topic: Topic, number: int) -> pb.PartitionMetadata:
        leadership = topic.partitions[number]
        answer = pb.PartitionMetadata(
            partition=number, leader_id=leadership.leader_id, leader_epoch=leadership.leader_epoch
        )
        error = self._cluster.host.find_error(TopicPartition(topic.name, number))
        if error is not None:
            _set_error(answer, error)
        return answer

    # ------------------------------------------------------------------ topics

    async def create_topics(self, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
        commands = [
            CreateTopic(topic.name, topic.partitions, dict(topic.configs), request.validate_only)
            for topic in request.topics
        ]
        answers = await self._cluster.controller.create_topics(commands)
        return pb.CreateTopicsResponse(topics=_topic_results((c.name for c in commands), answers))

    async def delete_topics(self, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
        answers = await self._cluster.controller.delete_topics([DeleteTopic(name) for name in request.topics])
        return pb.DeleteTopicsResponse(topics=_topic_results(request.topics, answers))

    async def create_partitions(self, request: pb.CreatePartitionsRequest) -> pb.CreatePartitionsResponse:
        commands = [CreatePartitions(topic.name, topic.partitions, request.validate_only) for topic in request.topics]
        answers = await self._cluster.controller.create_partitions(commands)
        return pb.CreatePartitionsResponse(topics=_topic_results((c.name for c in commands), answers))

    # ------------------------------------------------------------------ configs

    async def describe_configs(self, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
        """A resource that is named twice is described once: its entries are many."""
        response, share = pb.DescribeConfigsResponse(), self._shares.begin()
        keys, described = frozenset(request.keys), set()
        for resource in request.resources:
            if share.is_used_up:
                await share.wait()
            is_again = (resource.type, resource.name) in described
            described.add((resource.type, resource.name))
            response.resources.append(self._describe(resource, keys, is_again=is_again))
        return response

    def _describe(self, resource: pb.ConfigResource, keys: frozenset[str], *, is_again: bool) -> pb.ConfigsResult:
        answer = pb.ConfigsResult(resource=resource)
        entries: Sequence[ConfigEntry] | Refused
        if is_again:
            message = f"expected each resource once in a request, found {show_names([resource.name])!r} again"
            entries = Refused(ErrorCode.INVALID_REQUEST, message)
        elif resource.type not in pb.ResourceType.values():
            known = ", ".join(pb.ResourceType.keys())
            entries = Refused(ErrorCode.INVALID_REQUEST, f"expected a type among {known}, found {resource.type}")
        elif resource.type == pb.RESOURCE_TYPE_BROKER:
            entries = self._check_broker(resource) or describe_broker_config(self._cluster.config)
        elif (topic := self._cluster.state.topics.get(resource.name)) is not None:
            entries = describe_topic_configs(topic.configs, self._cluster.config)
        else:
            message = f"expected an existing topic, found {resource.name!r}"
            entries = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if isinstance(entries, Refused):
            _set_error(answer, entries)
            return answer
        answer.entries.extend(_config_entry(entry) for entry in entries if not keys or entry.name in keys)
        return answer

    def _check_broker(self, resource: pb.ConfigResource) -> Refused | None:
        own = str(self._cluster.endpoint.broker_id)
        if resource.name in ("", own):
            return None
        return Refused(ErrorCode.INVALID_REQUEST, f"expected the broker that answers, {own}, found {resource.name!r}")

    async def alter_configs(self, request: pb.AlterConfigsRequest) -> pb.AlterConfigsResponse:
        topics = [item for item in request.resources if item.resource.type == pb.RESOURCE_TYPE_TOPIC]
        answers = iter(
            await self._cluster.controller.alter_topic_configs(
                [
                    AlterTopicConfigs(item.resource.name, _operations(item.operations), request.validate_only)
                    for item in topics
                ]
            )
        )
        read_only = Refused(
            ErrorCode.INVALID_REQUEST, "broker configs are read at start: change the file or the option and restart"
        )
        response = pb.AlterConfigsResponse()
        for item in request.resources:
            answer = pb.ConfigsResult(resource=item.resource)
            outcome = next(answers) if item.resource.type == pb.RESOURCE_TYPE_TOPIC else read_only
            if isinstance(outcome, Refused):
                _set_error(answer, outcome)
            response.resources.append(answer)
        return response


def _operations(operations: Iterable[pb.AlterConfigOp]) -> list[ConfigOperation]:
    return [ConfigOperation(item.name, _operation(item.operation), item.value) for item in operations]


def _operation(number: int) -> AlterOperation:
    try:
        return AlterOperation(number)
    except ValueError:
        known = ", ".join(f"{one.value} ({one.name})" for one in AlterOperation)
        raise InvalidArgument(f"expected an operation on a config among {known}, found {number}") from None


def _topic_results(names: Iterable[str], answers: Sequence[TopicAnswer]) -> list[pb.TopicResult]:
    results = []
    for name, answer in zip(names, answers, strict=True):
        result = pb.TopicResult(name=name)
        if isinstance(answer, Refused):
            _set_error(result, answer)
        else:
            result.topic_id, result.partitions = answer.topic_id, answer.partitions
        results.append(result)
    return results


def _config_entry(entry: ConfigEntry) -> pb.ConfigEntry:
    return pb.ConfigEntry(
        name=entry.name,
        value=entry.value,
        default_value=entry.default,
        is_default=entry.is_default,
        type=entry.type,
        valid_values=entry.valid_values,
        documentation=entry.documentation,
        is_read_only=entry.is_read_only,
    )


def _set_error(
    answer: pb.ListOffsetsPartitionResponse
    | pb.TopicMetadata
    | pb.PartitionMetadata
    | pb.TopicResult
    | pb.ConfigsResult,
    refusal: Refused,
) -> None:
    answer.error_code = int(refusal.code)  # type: ignore[assignment]
    answer.error_message = refusal.message
