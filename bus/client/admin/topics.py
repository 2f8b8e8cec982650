"""The administrator's calls about topics: what they are, their configs, logs, offsets and views.

Guards one promise: each partition's log is asked of its leader. Deleting is repeated while that may help, since a
second time changes nothing; a swap is sent once, for its second answer would say that the files are gone. Maintenance
takes as long as it takes: it has no deadline, and closing its iterator ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from typing import Any

from bus.client.admin.broker_calls import BrokerCalls, raise_failures
from bus.client.arguments import (
    INT_64_MAX,
    check_configs,
    check_flag,
    check_integer,
    check_items,
    check_mapping,
    check_text,
    check_texts,
    check_topic,
    offsets_by_partition,
    wrong_type,
    wrong_value,
)
from bus.client.connection.leader_calls import AtVersion, OffsetQuestion, in_portions, leader_of, list_offsets
from bus.client.connection.metadata_cache import error_of
from bus.client.connection.retrying import CHANGES_MAX, portions
from bus.client.values import NewTopic, check_broker_ids
from bus.descriptions import (
    ConfigDescription,
    DeletedRecords,
    ListedOffset,
    LogDirDescription,
    MaintainedLog,
    TopicDescription,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import CONFIG, DELETED_RECORDS, LOG_DIR, MAINTAINED_LOG, TOPIC, VIEW
from bus.json_views import JsonView
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition

_RESOURCE_TYPES = {"topic": pb.RESOURCE_TYPE_TOPIC, "broker": pb.RESOURCE_TYPE_BROKER}
_ACTIONS = {
    "roll": pb.MAINTENANCE_ACTION_ROLL,
    "compact": pb.MAINTENANCE_ACTION_COMPACT,
    "clean": pb.MAINTENANCE_ACTION_CLEAN,
    "upgrade": pb.MAINTENANCE_ACTION_UPGRADE,
}
_SWAP_KINDS = {"same_rows": pb.SWAP_KIND_SAME_ROWS, "last_of_keys": pb.SWAP_KIND_LAST_OF_KEYS}

Deletions = dict[TopicPartition, DeletedRecords | BusError]


class TopicAdmin:
    _calls: BrokerCalls

    # ------------------------------------------------------------ topics

    def create_topics(self, topics: Sequence[NewTopic], validate_only: bool = False) -> dict[str, str]:
        """Create them, or only check that they could be; the topic ids by name."""
        is_trial = check_flag("validate_only", validate_only)
        wanted = list(map(_encode_new_topic, check_items("topics", topics, _check_new_topic, "NewTopic")))
        some_at_a_time = portions(
            wanted, CHANGES_MAX, lambda topic: 1 + len(topic.configs) + len(topic.replica_assignment)
        )
        requests = [pb.CreateTopicsRequest(topics=some, validate_only=is_trial) for some in some_at_a_time]
        return {result.name: result.topic_id for result in self._change_topics("CreateTopics", requests)}

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete them with all their records. The files go in the background."""
        named = check_texts("names", names)
        requests = [pb.DeleteTopicsRequest(topics=some) for some in portions(named, CHANGES_MAX)]
        self._change_topics("DeleteTopics", requests)
        self._calls.cluster.metadata.forget(named)

    def create_partitions(
        self,
        totals: Mapping[str, int],
        validate_only: bool = False,
        *,
        replica_assignment: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """Grow topics to new totals. Keys are spread again: a key's later records may go to another partition.
        `replica_assignment`: for a topic the broker ids of each partition that is added, the preferred leader first;
        of others the cluster places them."""
        is_trial = check_flag("validate_only", validate_only)
        totals = check_mapping("totals", totals, check_text, check_integer, "from topic to number of partitions")
        assigned = {
            check_text("replica_assignment", topic): check_items(
                "replica_assignment", lists, check_broker_ids, "lists of broker ids"
            )
            for topic, lists in (replica_assignment or {}).items()
        }
        unknown = sorted(assigned.keys() - totals.keys())
        if unknown:
            names = ", ".join(sorted(totals))
            raise wrong_value(f"replica_assignment of topics that totals names, {names}", unknown[0])
        wanted = [
            pb.NewPartitions(name=name, partitions=total, replica_assignment=_encode_replicas(assigned.get(name, ())))
            for name, total in totals.items()
        ]
        some_at_a_time = portions(wanted, CHANGES_MAX, lambda topic: 1 + len(topic.replica_assignment))
        requests = [pb.CreatePartitionsRequest(topics=some, validate_only=is_trial) for some in some_at_a_time]
        self._change_topics("CreatePartitions", requests)
        self._calls.cluster.metadata.forget(totals)

    def _change_topics(self, method: str, requests: Iterable[Any]) -> Sequence[Any]:
        results = [result for request in requests for result in self._calls.on_controller(method, request).topics]
        raise_failures([(result.name, result.error_code, result.error_message) for result in results])
        return results

    def list_topics(self, include_internal: bool = False) -> list[str]:
        """Names, sorted."""
        is_whole = check_flag("include_internal", include_internal)
        return sorted(topic.name for topic in self._calls.describe().topics if is_whole or not topic.is_internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """These topics, or all, by name. Raises UNKNOWN_TOPIC_OR_PARTITION for a name that is no topic."""
        wanted = [] if names is None else check_texts("names", names)
        if names is not None and not wanted:
            return {}
        topics = self._calls.describe(wanted).topics
        raise_failures([(topic.name, topic.error_code, topic.error_message) for topic in topics])
        return {topic.name: TOPIC.decode(topic) for topic in topics}

    # ------------------------------------------------------------ configs

    def describe_configs(
        self, name: str = "", kind: str = "topic", keys: Sequence[str] = ()
    ) -> list[ConfigDescription]:
        """The configs of a topic, or with `kind` "broker" of a broker (`name` empty: the one that answers)."""
        wanted = check_texts("keys", keys)
        request = pb.DescribeConfigsRequest(resources=[_encode_resource(name, kind)], keys=wanted)
        resources = self._calls.ask("DescribeConfigs", request).resources
        raise_failures([(one.resource.name, one.error_code, one.error_message) for one in resources])
        return [CONFIG.decode(entry) for one in resources for entry in one.entries]

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
            *_encode_operations(pb.ALTER_OPERATION_SET, check_configs("changes", changes or {}).items()),
            *_encode_operations(pb.ALTER_OPERATION_DELETE, [(key, "") for key in check_texts("delete", delete)]),
            *_encode_operations(pb.ALTER_OPERATION_APPEND, check_configs("append", append or {}).items()),
            *_encode_operations(pb.ALTER_OPERATION_SUBTRACT, check_configs("subtract", subtract or {}).items()),
        ]
        is_trial = check_flag("validate_only", validate_only)
        altered = pb.AlterConfigsResource(resource=_encode_resource(name, kind), operations=operations)
        request = pb.AlterConfigsRequest(resources=[altered], validate_only=is_trial)
        resources = self._calls.on_controller("AlterConfigs", request).resources
        raise_failures([(one.resource.name, one.error_code, one.error_message) for one in resources])

    # ------------------------------------------------------------ logs

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records of each partition below an offset, -1 for all that are committed; where the log starts
        now, by partition. An offset below the log start changes nothing.

        Raises OFFSET_OUT_OF_RANGE for an offset beyond the high watermark, POLICY_VIOLATION where `cleanup.policy` is
        compact alone, INVALID_TOPIC_EXCEPTION for the bus's own topics.
        """
        wanted = offsets_by_partition("offsets", offsets, _check_offset_or_all)
        deadline_ms = self._calls.deadline_ms()
        answers: Deletions = {}

        def ask() -> None:
            waiting = [one for one in wanted if one not in answers or self._failure_that_may_pass(answers[one])]
            self._ask_to_delete({one: wanted[one] for one in waiting}, answers, deadline_ms)
            failures = {one: error for one in waiting if (error := self._failure_that_may_pass(answers[one]))}
            self._calls.cluster.metadata.forget({one.topic for one in failures})
            for error in failures.values():
                raise error

        with suppress(BusError):  # each is among the answers
            self._calls.retrying(ask, deadline_ms)
        raise_failures(
            [
                (str(one), int(answer.code), answer.message) if isinstance(answer, BusError) else (str(one), 0, "")
                for one, answer in answers.items()
            ]
        )
        return {one: answer for one in wanted if isinstance(answer := answers[one], DeletedRecords)}

    def _failure_that_may_pass(self, answer: DeletedRecords | BusError) -> BusError | None:
        return answer if isinstance(answer, BusError) and self._calls.cluster.may_retry(answer) else None

    def _ask_to_delete(self, offsets: Mapping[TopicPartition, int], answers: Deletions, deadline_ms: float) -> None:
        """Add an answer for each of `offsets`, by one call a leader."""
        cluster = self._calls.cluster
        by_address: dict[str, list[TopicPartition]] = {}
        for one in offsets:
            try:
                by_address.setdefault(leader_of(cluster, one, deadline_ms=deadline_ms), []).append(one)
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
                response = cluster.call("DeleteRecords", request, address=address, deadline_ms=deadline_ms)
            except BusError as error:
                answers.update(dict.fromkeys(partitions, error))
                continue
            answers.update(
                {TopicPartition(one.topic, one.partition): _decode_deleted(one) for one in response.partitions}
            )

    def maintain_log(
        self, topic: str, action: str, partitions: Collection[int] | None = None
    ) -> Generator[MaintainedLog, None, None]:
        """Have the leaders do now what they do by themselves in time, in these partitions, or in all: "roll" small data
        files into large ones, "compact" by key, or "clean" what retention lets go, old versions and removed files. What
        they do only if they are asked: "upgrade" keeps other Delta engines from writing to the tables, or lets them, as
        `delta.foreign.writers.enable` of the topic says.

        Begins at once. The iterator gives the result of each partition as it is finished, in no order, and raises at
        its end if any failed: POLICY_VIOLATION for "compact" where `cleanup.policy` has no compact, UNSUPPORTED_VERSION
        for "upgrade" below level 6 of `bus.version`. There is no deadline. Who closes the iterator ends the call:
        partitions that were not begun stay as they are.
        """
        if partitions is not None:
            partitions = check_items("partitions", partitions, check_integer, "integers")
        check_topic(topic)
        number = _one_of(_ACTIONS, "an action", action)
        cluster, deadline_ms = self._calls.cluster, self._calls.deadline_ms()
        info = cluster.wait_topic(topic, deadline_ms=deadline_ms)
        wanted = range(len(info.partitions)) if partitions is None else sorted(set(partitions))
        by_address: dict[str, list[int]] = {}
        for one in wanted:
            address = leader_of(cluster, TopicPartition(topic, one), deadline_ms=deadline_ms)
            by_address.setdefault(address, []).append(one)
        streams = [
            cluster.open_answers(
                "MaintainLog", pb.MaintainLogRequest(action=number, topic=topic, partitions=some), address=address
            )
            for address, some in by_address.items()
        ]
        return _read_maintained(topic, streams)

    def swap_files(
        self,
        topic: str,
        partition: int,
        removes: Sequence[str],
        adds: Sequence[str],
        kind: str = "same_rows",
        *,
        timeout_ms: int = 3_600_000,
    ) -> int:
        """Put files that a job wrote into the partition's folder in place of live ones, by name, both in offset order;
        the Delta version that has them. The leader reads `adds` first.

        `kind` "same_rows": every offset of `removes`, and no other; "last_of_keys": some may be missing, but not the
        last one. Raises INVALID_REQUEST if the files are not that, or if `removes` are not live any more: then nothing
        has changed. Is not repeated: after REQUEST_TIMED_OUT, NETWORK_EXCEPTION or KAFKA_STORAGE_ERROR the table tells
        whether the swap took place.
        """
        swapped = TopicPartition(check_topic(topic), check_integer("partition", partition))
        removes, adds = check_texts("removes", removes), check_texts("adds", adds)
        timeout_ms = check_integer("timeout_ms", timeout_ms, 1)
        request = pb.SwapFilesRequest(
            topic=swapped.topic,
            partition=swapped.partition,
            kind=_one_of(_SWAP_KINDS, "a kind", kind),
            removes=removes,
            adds=adds,
        )
        cluster = self._calls.cluster
        address = leader_of(cluster, swapped, deadline_ms=self._calls.deadline_ms())
        response = cluster.call("SwapFiles", request, address=address, timeout_ms=timeout_ms)
        if response.error_code:
            cluster.metadata.forget([swapped.topic])
            raise error_of(response.error_code, response.error_message)
        return int(response.version)

    def describe_log_dirs(
        self, topics: Iterable[str] | None = None, brokers: Iterable[int] | None = None
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return what these topics, or all, take in the root, and what room its volume has, as these brokers, or all,
        see it (KIP-113, KIP-827): by broker id and path. Each broker has the partitions that it leads or follows. The
        bytes of a partition are its leader's, so a sum counts no file twice.

        Raises UNKNOWN_TOPIC_OR_PARTITION, and BROKER_NOT_AVAILABLE for a broker that is not there or is fenced.
        """
        named = None if topics is None else check_texts("topics", topics)
        chosen = None if brokers is None else check_items("brokers", brokers, check_integer, "broker ids")
        if named is not None:
            self.describe_topics(name for name in named if name != CLUSTER_METADATA_TOPIC)
        if named == [] or chosen == []:
            return {}
        request = pb.DescribeLogDirsRequest(topics=named or [])
        found = dict(self._calls.ask_each("DescribeLogDirs", request, _decode_log_dirs, broker_ids=chosen))
        missing = [one for one in chosen or () if one not in found]
        if missing:
            message = f"expected brokers that are registered and not fenced, found {', '.join(map(str, missing))}"
            raise BusError(ErrorCode.BROKER_NOT_AVAILABLE, message)
        return found

    # ------------------------------------------------------------ offsets

    def list_offsets(self, wanted: Mapping[TopicPartition, OffsetQuestion]) -> dict[TopicPartition, ListedOffset]:
        """Ask of each partition for a timestamp in milliseconds (the first offset at or after it), or -1 latest,
        -2 earliest, -3 the record with the largest timestamp; or `AtVersion`: the high watermark at that version."""
        wanted = offsets_by_partition("wanted", wanted, _check_question)
        return list_offsets(self._calls.cluster, wanted, deadline_ms=self._calls.deadline_ms())

    # ------------------------------------------------------------ views

    def create_view(
        self,
        name: str,
        topic: str,
        schema: str,
        columns: Sequence[str] | None = None,
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> JsonView:
        """Show the values of a topic, JSON objects, as typed columns under a name of their own, in SQL of every engine
        and session. `schema` is DDL: `carrier STRING, delay INT, legs ARRAY<STRUCT<origin: STRING>>`.

        `columns` of the records are shown too: without them partition, offset, timestamp, key, and `_corrupt`, the
        value where it is no JSON object. Raises INVALID_REQUEST for a name that is taken and a schema that cannot be.
        """
        view = pb.View(
            name=check_text("name", name),
            topic=check_topic(topic),
            schema=check_text("schema", schema),
            columns=() if columns is None else check_texts("columns", columns),
        )
        request = pb.CreateViewRequest(
            view=view,
            has_usual_columns=columns is None,
            replace=check_flag("replace", replace),
            validate_only=check_flag("validate_only", validate_only),
        )
        return VIEW.decode(self._calls.on_controller("CreateView", request).view)

    def delete_view(self, name: str) -> None:
        """The topic stays as it is. Raises INVALID_REQUEST if there is no such view."""
        self._calls.on_controller("DeleteView", pb.DeleteViewRequest(name=check_text("name", name)))

    def list_views(self) -> list[JsonView]:
        """All of them, sorted by name."""
        return list(map(VIEW.decode, self._calls.ask("ListViews", pb.ListViewsRequest()).views))


def _check_new_topic(name: str, value: Any) -> NewTopic:
    if not isinstance(value, NewTopic):
        raise wrong_type(f"{name} as a NewTopic", value, f"give NewTopic({value!r})" if isinstance(value, str) else "")
    return value


def _check_offset_or_all(name: str, value: Any) -> int:
    """The broker judges the range: OFFSET_OUT_OF_RANGE names the partition's own bounds."""
    return check_integer(name, value, -INT_64_MAX, INT_64_MAX)


def _check_question(name: str, value: Any) -> OffsetQuestion:
    if isinstance(value, AtVersion):
        check_integer(f"the version of {name}", value.version, 0, INT_64_MAX)
        return value
    return check_integer(name, value, -INT_64_MAX, INT_64_MAX)  # a time before 1970 is one, too


def _one_of(numbers: Mapping[str, Any], what: str, name: Any) -> Any:
    """The number of a name. Raises `BusError` INVALID_REQUEST for any other."""
    if not isinstance(name, str) or name not in numbers:
        *others, last = numbers
        raise BusError(ErrorCode.INVALID_REQUEST, f"expected {what} {', '.join(others)} or {last}, found {name!r}")
    return numbers[name]


def _encode_new_topic(topic: NewTopic) -> pb.NewTopic:
    return pb.NewTopic(
        name=topic.name,
        partitions=-1 if topic.partitions is None else topic.partitions,
        configs=check_configs("configs", topic.configs),
        replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
        replica_assignment=_encode_replicas(topic.replica_assignment),
    )


def _encode_replicas(assigned: Sequence[Sequence[int]]) -> list[pb.ReplicaList]:
    return [pb.ReplicaList(broker_ids=ids) for ids in assigned]


def _encode_resource(name: str, kind: str) -> pb.ConfigResource:
    number = _one_of(_RESOURCE_TYPES, "a resource kind", kind)
    return pb.ConfigResource(type=number, name=check_text("name", name))


def _encode_operations(operation: pb.AlterOperation, values: Iterable[tuple[str, str]]) -> list[pb.AlterConfigOp]:
    return [pb.AlterConfigOp(name=name, operation=operation, value=value) for name, value in values]


def _decode_deleted(item: pb.DeleteRecordsPartitionResponse) -> DeletedRecords | BusError:
    if item.error_code:
        return error_of(item.error_code, item.error_message)
    return DELETED_RECORDS.decode(item)


def _decode_log_dirs(
    broker: pb.Broker, response: pb.DescribeLogDirsResponse
) -> Iterator[tuple[int, dict[str, LogDirDescription]]]:
    yield broker.broker_id, {one.path: LOG_DIR.decode(one) for one in response.log_dirs}


def _read_maintained(topic: str, streams: Sequence[Generator[Any, None, None]]) -> Generator[MaintainedLog, None, None]:
    answers: list[tuple[str, int, str]] = []
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(closing(stream))
        for answer in chain.from_iterable(streams):
            name = str(TopicPartition(topic, answer.partition))
            answers.append((name, answer.error_code, answer.error_message))
            if not answer.error_code:
                yield MAINTAINED_LOG.decode(answer)
    raise_failures(answers)
