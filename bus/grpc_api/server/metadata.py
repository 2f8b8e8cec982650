"""Offsets, metadata, topics, configs and views over gRPC: messages to values, and answers back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.broker_api.authorization import Access
from bus.broker_api.metadata import (
    ConfigChange,
    ConfigResource,
    MetadataApi,
    OffsetQuestion,
    ResourceKind,
)
from bus.broker_api.requests import InvalidArgument
from bus.cluster_metadata.cluster_decisions import CreatePartitions, CreateTopic, CreateView, DeleteTopic
from bus.cluster_metadata.configs import AlterOperation, ConfigOperation
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import Converted, encode_broker, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import CONFIG, LISTED_OFFSET, OPERATIONS, TOPIC, VIEW
from bus.model import TopicPartition
from bus.runtime.metadata.controller import TopicAnswer
from bus.runtime.tasks import LoopShares

_KINDS = {pb.RESOURCE_TYPE_TOPIC: ResourceKind.TOPIC, pb.RESOURCE_TYPE_BROKER: ResourceKind.BROKER}


class MetadataHandler:
    def __init__(self, api: MetadataApi, shares: LoopShares, listener: str) -> None:
        self._api = api
        self._shares = shares
        self._listener = listener

    # ------------------------------------------------------------------ offsets and metadata

    async def list_offsets(self, access: Access, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        answers = await self._api.list_offsets(access, Converted(request.partitions, _question))
        response = pb.ListOffsetsResponse()
        listed = (
            LISTED_OFFSET.encode_answer(answer, topic=asked.topic, partition=asked.partition)
            for asked, answer in zip(request.partitions, answers, strict=True)
        )
        await self._shares.begin().extend(response.partitions, listed)
        return response

    async def metadata(self, access: Access, request: pb.MetadataRequest) -> pb.MetadataResponse:
        found = await self._api.describe(
            access,
            request.topics,
            may_create=request.allow_auto_topic_creation,
            with_operations=request.include_authorized_operations,
        )
        response = pb.MetadataResponse(
            cluster_id=found.cluster_id,
            controller_id=found.controller_id,
            brokers=[shown for broker in found.brokers if (shown := encode_broker(broker, self._listener)) is not None],
            root=found.root_url,
            metadata_offset=found.metadata_offset,
        )
        share = self._shares.begin()
        for name, topic in found.topics:
            if share.is_used_up:
                await share.wait()
            if isinstance(topic, Refused):
                response.topics.append(TOPIC.encode_answer(topic, name=name))
            else:
                operations = map(OPERATIONS.number, topic.operations)
                await TOPIC.encode_in_slices(response.topics.add, topic.topic, share, authorized_operations=operations)
        return response

    # ------------------------------------------------------------------ topics

    async def create_topics(self, access: Access, request: pb.CreateTopicsRequest) -> pb.CreateTopicsResponse:
        commands = [
            CreateTopic(
                topic.name,
                topic.partitions,
                dict(topic.configs),
                request.validate_only,
                topic.replication_factor,
                [tuple(replicas.broker_ids) for replicas in topic.replica_assignment],
            )
            for topic in request.topics
        ]
        answers = await self._api.create_topics(access, commands)
        return pb.CreateTopicsResponse(topics=_topic_results((c.name for c in commands), answers))

    async def delete_topics(self, access: Access, request: pb.DeleteTopicsRequest) -> pb.DeleteTopicsResponse:
        answers = await self._api.delete_topics(access, [DeleteTopic(name) for name in request.topics])
        return pb.DeleteTopicsResponse(topics=_topic_results(request.topics, answers))

    async def create_partitions(
        self, access: Access, request: pb.CreatePartitionsRequest
    ) -> pb.CreatePartitionsResponse:
        commands = [
            CreatePartitions(
                topic.name,
                topic.partitions,
                request.validate_only,
                [tuple(replicas.broker_ids) for replicas in topic.replica_assignment],
            )
            for topic in request.topics
        ]
        answers = await self._api.create_partitions(access, commands)
        return pb.CreatePartitionsResponse(topics=_topic_results((c.name for c in commands), answers))

    # ------------------------------------------------------------------ configs

    async def describe_configs(self, access: Access, request: pb.DescribeConfigsRequest) -> pb.DescribeConfigsResponse:
        answers = await self._api.describe_configs(
            access, Converted(request.resources, _resource), frozenset(request.keys)
        )
        response, share = pb.DescribeConfigsResponse(), self._shares.begin()
        for resource, entries in zip(request.resources, answers, strict=True):
            if share.is_used_up:
                await share.wait()
            answer = response.resources.add(resource=resource)
            if isinstance(entries, Refused):
                with_error(answer, entries)
            else:
                answer.entries.extend(map(CONFIG.encode, entries))
        return response

    async def alter_configs(self, access: Access, request: pb.AlterConfigsRequest) -> pb.AlterConfigsResponse:
        changes = Converted(request.resources, _change)
        answers = await self._api.alter_configs(access, changes, validate_only=request.validate_only)
        response = pb.AlterConfigsResponse()
        for item, refusal in zip(request.resources, answers, strict=True):
            answer = response.resources.add(resource=item.resource)
            if refusal is not None:
                with_error(answer, refusal)
        return response

    # ------------------------------------------------------------------ views

    async def create_view(self, access: Access, request: pb.CreateViewRequest) -> pb.CreateViewResponse:
        asked = request.view
        command = CreateView(
            name=asked.name,
            topic=asked.topic,
            schema=asked.schema,
            columns=None if request.has_usual_columns else tuple(asked.columns),
            replaces=request.replace,
            validate_only=request.validate_only,
        )
        answer = await self._api.create_view(access, command)
        if isinstance(answer, Refused):
            return with_error(pb.CreateViewResponse(), answer)
        return pb.CreateViewResponse(view=VIEW.encode(answer))

    async def delete_view(self, access: Access, request: pb.DeleteViewRequest) -> pb.DeleteViewResponse:
        answer = await self._api.delete_view(access, request.name)
        return with_error(pb.DeleteViewResponse(), answer) if isinstance(answer, Refused) else pb.DeleteViewResponse()

    async def list_views(self, access: Access, _: pb.ListViewsRequest) -> pb.ListViewsResponse:
        response = pb.ListViewsResponse()
        await self._shares.begin().extend(response.views, map(VIEW.encode, await self._api.views(access)))
        return response


def _question(asked: pb.ListOffsetsPartition) -> OffsetQuestion:
    return OffsetQuestion(
        TopicPartition(asked.topic, asked.partition),
        asked.timestamp_ms,
        asked.version if asked.HasField("version") else None,
        asked.current_leader_epoch if asked.HasField("current_leader_epoch") else None,
    )


def _topic_results(names: Iterable[str], answers: Sequence[TopicAnswer]) -> list[pb.TopicResult]:
    return [
        with_error(pb.TopicResult(name=name), answer)
        if isinstance(answer, Refused)
        else pb.TopicResult(name=name, topic_id=answer.topic_id, partitions=answer.partitions)
        for name, answer in zip(names, answers, strict=True)
    ]


def _resource(resource: pb.ConfigResource) -> ConfigResource:
    kind = _KINDS.get(resource.type)
    if kind is not None:
        return ConfigResource(kind, resource.name)
    known = ", ".join(pb.ResourceType.keys())
    unknown = Refused(ErrorCode.INVALID_REQUEST, f"expected a type among {known}, found {resource.type}")
    return ConfigResource(unknown, resource.name)


def _change(item: pb.AlterConfigsResource) -> ConfigChange:
    return _resource(item.resource), _operations(item.operations)


def _operations(operations: Iterable[pb.AlterConfigOp]) -> list[ConfigOperation]:
    return [ConfigOperation(item.name, _operation(item.operation), item.value) for item in operations]


def _operation(number: int) -> AlterOperation:
    try:
        return AlterOperation(number)
    except ValueError:
        known = ", ".join(f"{one.value} ({one.name})" for one in AlterOperation)
        raise InvalidArgument(f"expected an operation on a config among {known}, found {number}") from None
