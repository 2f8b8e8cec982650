"""The administrator's client: topics, their partitions and configs, offsets, the cluster.

Guards one promise: a call that returns has done all that it was asked. Items are tried all, and if any failed, one
`BusError` tells of every failure, with the code of the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from bus.client.cluster import Cluster, error_of
from bus.client.configs import AdminConfig, parse_addresses, parse_config
from bus.client.list_offsets import list_offsets
from bus.client.values import (
    BrokerInfo,
    ClusterDescription,
    ConfigDescription,
    ListedOffset,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

_RESOURCE_TYPES = {"topic": pb.RESOURCE_TYPE_TOPIC, "broker": pb.RESOURCE_TYPE_BROKER}
_OPERATIONS = {
    "set": pb.ALTER_OPERATION_SET,
    "delete": pb.ALTER_OPERATION_DELETE,
    "append": pb.ALTER_OPERATION_APPEND,
    "subtract": pb.ALTER_OPERATION_SUBTRACT,
}


class Admin:
    """Every method blocks until the broker's answer and raises `BusError`.

    With several items, all are tried; if some failed, the error has the code of the first and the messages of all,
    and the others are done.
    """

    def __init__(self, address: str | list[str], **configs: Any) -> None:
        self._config = parse_config(AdminConfig, configs)
        self._cluster = Cluster(parse_addresses(address), self._config)

    # ------------------------------------------------------------ topics

    def create_topics(self, topics: Sequence[NewTopic], validate_only: bool = False) -> dict[str, str]:
        """Create them, or only check that they could be; the topic ids by name."""
        request = pb.CreateTopicsRequest(
            topics=[
                pb.NewTopic(
                    name=topic.name,
                    partitions=-1 if topic.partitions is None else topic.partitions,
                    configs={name: config_text(value) for name, value in topic.configs.items()},
                )
                for topic in topics
            ],
            validate_only=validate_only,
        )
        results = self._change("CreateTopics", request, lambda response: response.topics)
        return {result.name: result.topic_id for result in results}

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete them with all their records. The files go in the background."""
        wanted = list(names)
        self._change("DeleteTopics", pb.DeleteTopicsRequest(topics=wanted), lambda response: response.topics)
        self._cluster.forget(wanted)

    def create_partitions(self, totals: Mapping[str, int], validate_only: bool = False) -> None:
        """Grow topics to new totals. Keys are spread anew: a key's later records may go to another partition."""
        request = pb.CreatePartitionsRequest(
            topics=[pb.NewPartitions(name=name, partitions=total) for name, total in totals.items()],
            validate_only=validate_only,
        )
        self._change("CreatePartitions", request, lambda response: response.topics)
        self._cluster.forget(totals)

    def list_topics(self, include_internal: bool = False) -> list[str]:
        """Names, sorted."""
        response = self._retrying(self._cluster.describe)
        return sorted(topic.name for topic in response.topics if include_internal or not topic.is_internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """These topics, or all, by name. Raises UNKNOWN_TOPIC_OR_PARTITION for a name that is no topic."""
        wanted = [] if names is None else list(names)
        if names is not None and not wanted:
            return {}
        response = self._retrying(lambda: self._cluster.describe(wanted))
        _raise_failures([(topic.name, topic.error_code, topic.error_message) for topic in response.topics])
        return {topic.name: _topic_description(topic) for topic in response.topics}

    # ------------------------------------------------------------ configs

    def describe_configs(
        self, name: str = "", kind: str = "topic", keys: Sequence[str] = ()
    ) -> list[ConfigDescription]:
        """The configs of a topic, or with `kind` "broker" of a broker (`name` empty: the one that answers)."""
        request = pb.DescribeConfigsRequest(resources=[_resource(name, kind)], keys=keys)
        response = self._retrying(lambda: self._cluster.call("DescribeConfigs", request))
        _raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])
        return [_config_description(entry) for result in response.resources for entry in result.entries]

    def alter_configs(
        self,
        name: str,
        changes: Mapping[str, object] | None = None,
        *,
        kind: str = "topic",
        delete: Iterable[str] = (),
        append: Mapping[str, object] | None = None,
        subtract: Mapping[str, object] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Incremental: set `changes`, give `delete` back to their defaults, `append` to and `subtract` from lists;
        what is not named keeps its value. All of it is done, or nothing."""
        operations = [
            *(_operation("set", key, value) for key, value in (changes or {}).items()),
            *(_operation("delete", key, "") for key in delete),
            *(_operation("append", key, value) for key, value in (append or {}).items()),
            *(_operation("subtract", key, value) for key, value in (subtract or {}).items()),
        ]
        request = pb.AlterConfigsRequest(
            resources=[pb.AlterConfigsResource(resource=_resource(name, kind), operations=operations)],
            validate_only=validate_only,
        )
        response = self._on_controller("AlterConfigs", request)
        _raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])

    # ------------------------------------------------------------ offsets and the cluster

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """For each partition a timestamp in milliseconds (the first offset at or after it), or -1 latest,
        -2 earliest, -3 the record with the largest timestamp."""
        return list_offsets(self._cluster, wanted, timeout_s=self._config.default_api_timeout_ms / 1000)

    def describe_cluster(self) -> ClusterDescription:
        response = self._retrying(self._cluster.describe)
        brokers = sorted(response.brokers, key=lambda broker: int(broker.broker_id))
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers=tuple(BrokerInfo(broker.broker_id, broker.host, broker.port) for broker in brokers),
            root_url=response.root,
        )

    def close(self) -> None:
        """Safe to repeat."""
        self._cluster.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ calls

    def _change(self, method: str, request: Any, results_of: Callable[[Any], Any]) -> list[Any]:
        results = list(results_of(self._on_controller(method, request)))
        _raise_failures([(result.name, result.error_code, result.error_message) for result in results])
        return results

    def _on_controller(self, method: str, request: Any) -> Any:
        """Once, at the controller: after an unknown outcome the second answer would not be the first one's."""
        self._retrying(self._cluster.describe)
        return self._cluster.call(method, request, address=self._cluster.controller_address)

    def _retrying(self, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self._config.default_api_timeout_ms / 1000
        attempt = 0
        while True:
            try:
                return ask()
            except BusError as error:
                delay = self._cluster.backoff.seconds(attempt)
                is_over = attempt >= self._config.retries or time.monotonic() + delay >= deadline
                if is_over or not self._cluster.may_retry(error):
                    raise
            attempt += 1
            time.sleep(delay)


def config_text(value: object) -> str:
    """A config value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _raise_failures(results: Sequence[tuple[str, int, str]]) -> None:
    failures = [(name, error_of(code, message)) for name, code, message in results if code]
    if len(failures) == 1:
        raise failures[0][1]
    if failures:
        raise BusError(
            failures[0][1].code,
            f"{len(failures)} of {len(results)} failed: " + "; ".join(f"{name!r}: {error}" for name, error in failures),
        )


def _resource(name: str, kind: str) -> pb.ConfigResource:
    if kind not in _RESOURCE_TYPES:
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected a resource kind topic or broker, found {kind!r}")
    return pb.ConfigResource(type=_RESOURCE_TYPES[kind], name=name)


def _operation(operation: str, name: str, value: object) -> pb.AlterConfigOp:
    return pb.AlterConfigOp(name=name, operation=_OPERATIONS[operation], value=config_text(value))


def _topic_description(topic: pb.TopicMetadata) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=partition.partition,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            error=str(error_of(partition.error_code, partition.error_message)) if partition.error_code else None,
        )
        for partition in topic.partitions
    ]
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(sorted(partitions, key=lambda partition: partition.partition)),
    )


def _config_description(entry: pb.ConfigEntry) -> ConfigDescription:
    return ConfigDescription(
        name=entry.name,
        value=entry.value,
        default_value=entry.default_value,
        is_default=entry.is_default,
        is_read_only=entry.is_read_only,
        type=entry.type,
        valid_values=entry.valid_values,
        documentation=entry.documentation,
    )
