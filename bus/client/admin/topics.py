"""The administrator's calls about topics, their configs, views and logs: messages to values and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from typing import Any

from bus.addresses import format_address
from bus.client.admin.broker_calls import BrokerCalls, CallTimes, raise_failures
from bus.client.arguments import check_text
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.leader_calls import in_portions, leader_of
from bus.client.connection.retrying import CHANGES_MAX, monotonic_ms, portions
from bus.client.values import (
    ConfigDescription,
    DeletedRecords,
    LogDirDescription,
    MaintainedLog,
    NewTopic,
    PartitionDescription,
    ReplicaInfo,
    TopicDescription,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.model import TopicPartition


class TopicAdmin:
    """Every method blocks until the broker's answer and raises `BusError`."""

    def __init__(self, cluster: Cluster, calls: BrokerCalls) -> None:
        self._cluster = cluster
        self._calls = calls

    def create(self, topics: Iterable[tuple[NewTopic, Mapping[str, str]]], *, validate_only: bool) -> dict[str, str]:
        """Each with its configs as texts."""
        wanted = [
            pb.NewTopic(
                name=topic.name,
                partitions=-1 if topic.partitions is None else topic.partitions,
                configs=configs,
                replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
                replica_assignment=[pb.ReplicaList(broker_ids=ids) for ids in topic.replica_assignment],
            )
            for topic, configs in topics
        ]
        some_at_a_time = portions(
            wanted, CHANGES_MAX, lambda topic: 1 + len(topic.configs) + len(topic.replica_assignment)
        )
        results = self._change(
            "CreateTopics",
            [pb.CreateTopicsRequest(topics=some, validate_only=validate_only) for some in some_at_a_time],
        )
        return {result.name: result.topic_id for result in results}

    def delete(self, names: Sequence[str]) -> None:
        self._change("DeleteTopics", [pb.DeleteTopicsRequest(topics=some) for some in portions(names, CHANGES_MAX)])
        self._cluster.forget(names)

    def create_partitions(
        self, totals: Mapping[str, int], assigned: Mapping[str, Sequence[Sequence[int]]], *, validate_only: bool
    ) -> None:
        wanted = [
            pb.NewPartitions(
                name=name,
                partitions=total,
                replica_assignment=[pb.ReplicaList(broker_ids=ids) for ids in assigned.get(name, ())],
            )
            for name, total in totals.items()
        ]
        self._change(
            "CreatePartitions",
            [
                pb.CreatePartitionsRequest(topics=some, validate_only=validate_only)
                for some in portions(wanted, CHANGES_MAX, lambda topic: 1 + len(topic.replica_assignment))
            ],
        )
        self._cluster.forget(totals)

    def list(self, *, include_internal: bool) -> list[str]:
        response = self._calls.describe()
        return sorted(topic.name for topic in response.topics if include_internal or not topic.is_internal)

    def describe(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        response = self._calls.describe(names)
        raise_failures([(topic.name, topic.error_code, topic.error_message) for topic in response.topics])
        return {topic.name: _description(topic) for topic in response.topics}

    def _change(self, method: str, requests: Iterable[Any]) -> Sequence[Any]:
        results = [result for request in requests for result in self._calls.on_controller(method, request).topics]
        raise_failures([(result.name, result.error_code, result.error_message) for result in results])
        return results


def _description(topic: pb.TopicMetadata) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=partition.partition,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            error=str(error_of(partition.error_code, partition.error_message)) if partition.error_code else None,
            replicas=tuple(partition.replica_ids),
            isr=tuple(partition.isr_ids),
            is_offline=partition.is_offline,
        )
        for partition in topic.partitions
    ]
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(sorted(partitions, key=lambda partition: partition.partition)),
    )


# The administrator's calls about views of topics.


class ViewAdmin:
    """`on_controller` and `retrying` call the broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], retrying: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._retrying = retrying

    def create(
        self,
        name: str,
        topic: str,
        schema: str,
        columns: Sequence[str] | None,
        *,
        replace: bool,
        validate_only: bool,
    ) -> JsonView:
        request = pb.CreateViewRequest(
            view=pb.View(name=name, topic=topic, schema=schema, columns=columns or ()),
            has_usual_columns=columns is None,
            replace=replace,
            validate_only=validate_only,
        )
        response = self._on_controller("CreateView", request)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return _decode(response.view)

    def delete(self, name: str) -> None:
        response = self._on_controller("DeleteView", pb.DeleteViewRequest(name=name))
        if response.error_code:
            raise error_of(response.error_code, response.error_message)

    def list(self) -> list[JsonView]:
        response = self._retrying("ListViews", pb.ListViewsRequest())
        return [_decode(view) for view in response.views]


def _decode(view: pb.View) -> JsonView:
    return JsonView(view.name, view.topic, view.schema, tuple(view.columns))


# The administrator's calls for the life of the log: records deleted, maintenance by hand, files swapped by a job.
#
# Guards one promise: each partition is asked of its leader. Deleting is repeated while that may help, since a second
# time changes nothing; a swap is sent once, for its second answer would say that the files are gone. Maintenance takes
# as long as it takes: it has no deadline, and closing its iterator ends it.

ACTIONS = {
    "roll": pb.MAINTENANCE_ACTION_ROLL,
    "compact": pb.MAINTENANCE_ACTION_COMPACT,
    "clean": pb.MAINTENANCE_ACTION_CLEAN,
}
Results = Generator[MaintainedLog, None, None]
SWAP_KINDS = {"same_rows": pb.SWAP_KIND_SAME_ROWS, "last_of_keys": pb.SWAP_KIND_LAST_OF_KEYS}


class LogAdmin:
    """Every method blocks until the leaders' answers and raises `BusError`."""

    def __init__(self, cluster: Cluster, times: CallTimes) -> None:
        self._cluster = cluster
        self._retries = times.retries
        self._timeout_ms = times.default_api_timeout_ms

    # ------------------------------------------------------------ deleting records

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        deadline_ms = monotonic_ms() + self._timeout_ms
        answers: dict[TopicPartition, DeletedRecords | BusError] = {}

        def ask() -> None:
            waiting = [one for one in offsets if one not in answers or self._failure_that_may_pass(answers[one])]
            self._ask_to_delete({one: offsets[one] for one in waiting}, answers, deadline_ms)
            failures = {one: error for one in waiting if (error := self._failure_that_may_pass(answers[one]))}
            self._cluster.forget({one.topic for one in failures})
            for error in failures.values():
                raise error

        with suppress(BusError):  # each is among the answers
            self._cluster.retry(ask, deadline_ms=deadline_ms, retries=self._retries)
        raise_failures(
            [
                (str(one), int(answer.code), answer.message) if isinstance(answer, BusError) else (str(one), 0, "")
                for one, answer in answers.items()
            ]
        )
        return {one: answer for one in offsets if isinstance(answer := answers[one], DeletedRecords)}

    def _failure_that_may_pass(self, answer: DeletedRecords | BusError) -> BusError | None:
        return answer if isinstance(answer, BusError) and self._cluster.may_retry(answer) else None

    def _ask_to_delete(
        self,
        offsets: Mapping[TopicPartition, int],
        answers: dict[TopicPartition, DeletedRecords | BusError],
        deadline_ms: float,
    ) -> None:
        """An answer for each of `offsets`, one call a leader."""
        by_address: dict[str, list[TopicPartition]] = {}
        for one in offsets:
            try:
                by_address.setdefault(leader_of(self._cluster, one, deadline_ms=deadline_ms), []).append(one)
            except BusError as error:
                answers[one] = error
        for address, partitions in in_portions(by_address):
            request = pb.DeleteRecordsRequest(
                partitions=[
                    pb.DeleteRecordsPartition(topic=one.topic, partition=one.partition, offset=offsets[one])
                    for one in partitions
                ]
            )
            try:
                response = self._cluster.call("DeleteRecords", request, address=address, deadline_ms=deadline_ms)
            except BusError as error:
                answers.update(dict.fromkeys(partitions, error))
                continue
            answers.update({TopicPartition(item.topic, item.partition): _deleted(item) for item in response.partitions})

    # ------------------------------------------------------------ maintenance by hand

    def maintain(self, topic: str, action: str, partitions: Collection[int] | None) -> Results:
        """Begins at once; the iterator tells."""
        if not isinstance(action, str) or action not in ACTIONS:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected an action {_one_of(ACTIONS)}, found {action!r}")
        deadline_ms = monotonic_ms() + self._timeout_ms
        info = self._cluster.wait_topic(topic, deadline_ms=deadline_ms)
        wanted = range(len(info.partitions)) if partitions is None else sorted(set(partitions))
        by_address: dict[str, list[int]] = {}
        for number in wanted:
            address = leader_of(self._cluster, TopicPartition(topic, number), deadline_ms=deadline_ms)
            by_address.setdefault(address, []).append(number)
        streams = [
            self._cluster.open_answers(
                "MaintainLog",
                pb.MaintainLogRequest(action=ACTIONS[action], topic=topic, partitions=numbers),
                address=address,
            )
            for address, numbers in by_address.items()
        ]
        return _results(topic, streams)

    # ------------------------------------------------------------ files of a job

    def swap_files(
        self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: str, *, timeout_ms: float
    ) -> int:
        """Returns the version that has the new files."""
        if not isinstance(kind, str) or kind not in SWAP_KINDS:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected a kind {_one_of(SWAP_KINDS)}, found {kind!r}")
        request = pb.SwapFilesRequest(
            topic=partition.topic,
            partition=partition.partition,
            kind=SWAP_KINDS[kind],
            removes=removes,
            adds=adds,
        )
        address = leader_of(self._cluster, partition, deadline_ms=monotonic_ms() + self._timeout_ms)
        response = self._cluster.call("SwapFiles", request, address=address, timeout_ms=timeout_ms)
        if response.error_code:
            self._cluster.forget([partition.topic])
            raise error_of(response.error_code, response.error_message)
        return int(response.version)

    # ------------------------------------------------------------ what logs take

    def dirs_on(
        self, brokers: Sequence[int] | None, topics: Sequence[str], broker: pb.Broker, deadline_ms: float
    ) -> Iterator[tuple[int, dict[str, LogDirDescription]]]:
        """Nothing, unless the broker is one of `brokers`; None: all are. No `topics`: all."""
        if brokers is not None and broker.broker_id not in brokers:
            return
        address = format_address(broker.host, broker.port)
        request = pb.DescribeLogDirsRequest(topics=topics)
        response = self._cluster.call("DescribeLogDirs", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        yield broker.broker_id, {one.path: _log_dir(one) for one in response.log_dirs}


def _deleted(item: pb.DeleteRecordsPartitionResponse) -> DeletedRecords | BusError:
    if item.error_code:
        return error_of(item.error_code, item.error_message)
    return DeletedRecords(item.low_watermark, item.version)


def _log_dir(one: pb.LogDir) -> LogDirDescription:
    return LogDirDescription(
        one.total_bytes if one.total_bytes >= 0 else None,
        one.usable_bytes if one.usable_bytes >= 0 else None,
        {TopicPartition(each.topic, each.partition): _replica(each) for each in one.replicas},
        _error_in(one),
    )


def _replica(one: pb.LogDirReplica) -> ReplicaInfo:
    reclaimable_bytes = one.reclaimable_bytes if one.reclaimable_bytes >= 0 else None
    return ReplicaInfo(one.is_leader, one.size_bytes, one.file_count, reclaimable_bytes, _error_in(one))


def _error_in(one: pb.LogDir | pb.LogDirReplica) -> str | None:
    return str(error_of(one.error_code, one.error_message)) if one.error_code else None


def _results(topic: str, streams: Sequence[Generator[Any, None, None]]) -> Results:
    answers: list[tuple[str, int, str]] = []
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(closing(stream))
        for answer in chain.from_iterable(streams):
            name = str(TopicPartition(topic, answer.partition))
            answers.append((name, answer.error_code, answer.error_message))
            if not answer.error_code:
                yield _maintained(answer)
    raise_failures(answers)


def _maintained(answer: pb.MaintainLogResponse) -> MaintainedLog:
    return MaintainedLog(
        partition=answer.partition,
        version=answer.version,
        files_before=answer.files_before,
        files_after=answer.files_after,
        bytes_before=answer.bytes_before,
        bytes_after=answer.bytes_after,
        rewritten_bytes=answer.rewritten_bytes,
        log_start=answer.log_start,
        dropped_versions=answer.dropped_versions,
        deleted_files=answer.deleted_files,
        deleted_bytes=answer.deleted_bytes,
    )


def _one_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


_RESOURCE_TYPES = {"topic": pb.RESOURCE_TYPE_TOPIC, "broker": pb.RESOURCE_TYPE_BROKER}


class ConfigAdmin:
    """Every method blocks until the broker's answer and raises `BusError`. `kind` is topic or broker."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    def describe(self, name: str, kind: str, keys: Sequence[str]) -> list[ConfigDescription]:
        request = pb.DescribeConfigsRequest(resources=[_resource(name, kind)], keys=keys)
        response = self._calls.ask("DescribeConfigs", request)
        raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])
        return [_config_description(entry) for result in response.resources for entry in result.entries]

    def alter(
        self,
        name: str,
        kind: str,
        *,
        changes: Mapping[str, str],
        delete: Iterable[str],
        append: Mapping[str, str],
        subtract: Mapping[str, str],
        validate_only: bool,
    ) -> None:
        operations = [
            *(_operation(pb.ALTER_OPERATION_SET, key, value) for key, value in changes.items()),
            *(_operation(pb.ALTER_OPERATION_DELETE, key, "") for key in delete),
            *(_operation(pb.ALTER_OPERATION_APPEND, key, value) for key, value in append.items()),
            *(_operation(pb.ALTER_OPERATION_SUBTRACT, key, value) for key, value in subtract.items()),
        ]
        request = pb.AlterConfigsRequest(
            resources=[pb.AlterConfigsResource(resource=_resource(name, kind), operations=operations)],
            validate_only=validate_only,
        )
        response = self._calls.on_controller("AlterConfigs", request)
        raise_failures([(r.resource.name, r.error_code, r.error_message) for r in response.resources])


def _resource(name: str, kind: str) -> pb.ConfigResource:
    if not isinstance(kind, str) or kind not in _RESOURCE_TYPES:
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected a resource kind topic or broker, found {kind!r}")
    check_text("name", name)
    return pb.ConfigResource(type=_RESOURCE_TYPES[kind], name=name)


def _operation(operation: pb.AlterOperation, name: str, value: str) -> pb.AlterConfigOp:
    return pb.AlterConfigOp(name=name, operation=operation, value=value)


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
