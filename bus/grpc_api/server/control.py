"""Offsets, metadata, topics and configs over gRPC: each item of a request gets its own answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bus.config_keys import ConfigEntry
from bus.errors import ErrorCode, Refused, StorageFault
from bus.grpc_api.server.requests import InvalidArgument
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.partition_log.reads import ListedOffset
from bus.runtime.cluster import Cluster, TopicAnswer
from bus.topics.cluster import Topic
from bus.topics.cluster_decisions import AlterTopicConfigs, CreatePartitions, CreateTopic, DeleteTopic
from bus.topics.configs import AlterOperation, ConfigOperation

# Of one request: each is a table of the storage, and the others are asked for again.
_AUTO_CREATED_MAX = 100


class ControlHandler:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # ------------------------------------------------------------------ offsets and metadata

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        return pb.ListOffsetsResponse(partitions=[await self._list_offset(asked) for asked in request.partitions])

    async def _list_offset(self, asked: pb.ListOffsetsPartition) -> pb.ListOffsetsPartitionResponse:
        answer = pb.ListOffsetsPartitionResponse(
            topic=asked.topic, partition=asked.partition, offset=-1, timestamp_ms=-1, version=-1
        )
        epoch = asked.current_leader_epoch if asked.HasField("current_leader_epoch") else None
        partition = self._cluster.find_partition(TopicPartition(asked.topic, asked.partition))
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
        asked = list(request.topics)
        refused: Mapping[str, Refused] = {}
        if request.allow_auto_topic_creation:
            missing = [name for name in asked if name not in self._cluster.state.topics]
            refused = await self._cluster.auto_create_topics(missing[:_AUTO_CREATED_MAX])
        state = self._cluster.state
        names = asked or sorted(state.topics)
        return pb.MetadataResponse(
            cluster_id=self._cluster.storage.cluster_id,
            controller_id=self._cluster.endpoint.broker_id,
            brokers=[
                pb.Broker(broker_id=broker.broker_id, host=broker.host, port=broker.port)
                for broker in state.brokers.values()
            ],
            topics=[self._topic(name, state.topics.get(name), refused.get(name)) for name in names],
            root=self._cluster.storage.root_url,
        )

    def _topic(self, name: str, topic: Topic | None, refused: Refused | None) -> pb.TopicMetadata:
        """`refused`: why it was not created for the caller."""
        if topic is None:
            answer = pb.TopicMetadata(name=name)
            unknown = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name!r}")
            _set_error(answer, refused or unknown)
            return answer
        return pb.TopicMetadata(
            name=name,
            topic_id=topic.topic_id,
            is_internal=self._cluster.is_internal(name),
            partitions=[self._partition(topic, number) for number in range(len(topic.partitions))],
        )

    def _partition(self, topic: Topic, number: int) -> pb.PartitionMetadata:
        leadership = topic.partitions[number]
        answer = pb.PartitionMetadata(
            partition=number, leader_id=leadership.leader_id, leader_epoch=leadership.leader_epoch
        )
        error = self._cluster.partition_error(TopicPartition(topic.name, number))
        if error is not None:
            _set_error(answer, error)
        return answer

    # ------------------------------------------------------------------ topics

    async def create_topics(self, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
        commands = [
            CreateTopic(topic.name, topic.partitions, dict(topic.configs), request.validate_only)
            for topic in request.topics
        ]
        answers = await self._cluster.create_topics(commands)
        return pb.CreateTopicsResponse(topics=_topic_results((c.name for c in commands), answers))

    async def delete_topics(self, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
        answers = await self._cluster.delete_topics([DeleteTopic(name) for name in request.topics])
        return pb.DeleteTopicsResponse(topics=_topic_results(request.topics, answers))

    async def create_partitions(self, request: pb.CreatePartitionsRequest) -> pb.CreatePartitionsResponse:
        commands = [CreatePartitions(topic.name, topic.partitions, request.validate_only) for topic in request.topics]
        answers = await self._cluster.create_partitions(commands)
        return pb.CreatePartitionsResponse(topics=_topic_results((c.name for c in commands), answers))

    # ------------------------------------------------------------------ configs

    async def describe_configs(self, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
        return pb.DescribeConfigsResponse(
            resources=[self._describe(resource, frozenset(request.keys)) for resource in request.resources]
        )

    def _describe(self, resource: pb.ConfigResource, keys: frozenset[str]) -> pb.ConfigsResult:
        answer = pb.ConfigsResult(resource=resource)
        entries: Sequence[ConfigEntry] | Refused
        if resource.type == pb.RESOURCE_TYPE_BROKER:
            entries = self._check_broker(resource) or self._cluster.describe_broker()
        else:
            entries = self._cluster.describe_topic(resource.name)
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
            await self._cluster.alter_topic_configs(
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
