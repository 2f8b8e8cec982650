"""The administrator's client: topics and configs, logs, offsets, consumer groups, transactions, the cluster.

Guards one promise: a call that returns has done all that it was asked. Items are tried all, and if any failed, one
`BusError` tells of every failure, with the code of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from bus.client.admin import offset_targets as targets
from bus.client.admin.broker_calls import BrokerCalls, CoordinatorCalls
from bus.client.admin.cluster import ClusterAdmin
from bus.client.admin.groups import GroupAdmin
from bus.client.admin.offset_targets import partitions_to_start, starting_point
from bus.client.admin.topics import ConfigAdmin, LogAdmin, TopicAdmin, ViewAdmin
from bus.client.admin.transactions import OPEN_STATES, UNREADABLE, TransactionAdmin
from bus.client.admin.users import AclAdmin, QuotaAdmin, UserAdmin
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
    check_topic_partition,
    check_topic_partitions,
    offsets_by_partition,
    wrong_type,
    wrong_value,
)
from bus.client.config.parsing import (
    MISSING,
    AdminConfig,
    EffectiveSetting,
    client_addresses,
    describe,
    parse_with_origins,
)
from bus.client.connection.cluster import Cluster
from bus.client.connection.leader_calls import AtVersion, OffsetQuestion, list_offsets
from bus.client.values import (
    ClusterDescription,
    CommittedOffset,
    ConfigDescription,
    DeletedRecords,
    FencedProducer,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    ListedOffset,
    LogDirDescription,
    MaintainedLog,
    NewTopic,
    OffsetAndMetadata,
    PartitionReassignment,
    ProducerState,
    QuotaEntity,
    QuotaUsage,
    ScramCredentialInfo,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
    check_broker_ids,
    check_committed,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.security.acls import AclBinding, AclBindingFilter
from bus.tables.point_in_time import Bound

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import AdminSettings


class Admin:
    """Every method blocks until the broker's answer and raises `BusError`.

    With several items, all are tried; if some failed, the error has the code of the first and the messages of all,
    and the others are done.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[AdminSettings]) -> None:
        self._config, self._origins = parse_with_origins(AdminConfig, configs)
        self._cluster = Cluster(client_addresses(address, configs), self._config)
        self._calls = calls = BrokerCalls(self._cluster, self._config)
        self._topics = TopicAdmin(self._cluster, calls)
        self._configs = ConfigAdmin(calls)
        self._logs = LogAdmin(self._cluster, self._config)
        self._views = ViewAdmin(calls.on_controller, calls.ask)
        self._acls = AclAdmin(calls.on_controller, calls.ask)
        self._users = UserAdmin(calls.on_controller, calls.ask)
        self._brokers = ClusterAdmin(calls.on_controller, calls.ask)
        self._quotas = QuotaAdmin(self._cluster, calls.on_controller, calls.ask)
        self._groups = GroupAdmin(self._cluster, self._coordinators(pb.COORDINATOR_TYPE_GROUP))
        coordinators = self._coordinators(pb.COORDINATOR_TYPE_TRANSACTION)
        self._transactions = TransactionAdmin(self._cluster, coordinators)

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """The settings that this client has, by name, each with where it is from: the program, the command line, the
        environment, the profile, or the default. Secrets are hidden."""
        return describe(self._config, self._origins)

    def _coordinators(self, key_type: pb.CoordinatorType) -> CoordinatorCalls:
        timeout_ms, retries = self._config.default_api_timeout_ms, self._config.retries
        return CoordinatorCalls(self._cluster, key_type, timeout_ms=timeout_ms, retries=retries)

    # ------------------------------------------------------------ topics

    def create_topics(self, topics: Sequence[NewTopic], validate_only: bool = False) -> dict[str, str]:
        """Create them, or only check that they could be; the topic ids by name."""
        is_trial = check_flag("validate_only", validate_only)
        wanted = check_items("topics", topics, _check_new_topic, "NewTopic")
        with_configs = [(topic, check_configs("configs", topic.configs)) for topic in wanted]
        return self._topics.create(with_configs, validate_only=is_trial)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete them with all their records. The files go in the background."""
        self._topics.delete(check_texts("names", names))

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
        self._topics.create_partitions(totals, assigned, validate_only=is_trial)

    def list_topics(self, include_internal: bool = False) -> list[str]:
        """Names, sorted."""
        return self._topics.list(include_internal=check_flag("include_internal", include_internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """These topics, or all, by name. Raises UNKNOWN_TOPIC_OR_PARTITION for a name that is no topic."""
        wanted = [] if names is None else check_texts("names", names)
        if names is not None and not wanted:
            return {}
        return self._topics.describe(wanted)

    # ------------------------------------------------------------ configs

    def describe_configs(
        self, name: str = "", kind: str = "topic", keys: Sequence[str] = ()
    ) -> list[ConfigDescription]:
        """The configs of a topic, or with `kind` "broker" of a broker (`name` empty: the one that answers)."""
        return self._configs.describe(name, kind, check_texts("keys", keys))

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
        self._configs.alter(
            name,
            kind,
            changes=check_configs("changes", changes or {}),
            delete=check_texts("delete", delete),
            append=check_configs("append", append or {}),
            subtract=check_configs("subtract", subtract or {}),
            validate_only=check_flag("validate_only", validate_only),
        )

    # ------------------------------------------------------------ logs

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records of each partition below an offset, -1 for all that are committed; where the log starts
        now, by partition. An offset below the log start changes nothing.

        Raises OFFSET_OUT_OF_RANGE for an offset beyond the high watermark, POLICY_VIOLATION where `cleanup.policy` is
        compact alone, INVALID_TOPIC_EXCEPTION for the bus's own topics.
        """
        return self._logs.delete_records(offsets_by_partition("offsets", offsets, _check_offset_or_all))

    def maintain_log(
        self, topic: str, action: str, partitions: Collection[int] | None = None
    ) -> Generator[MaintainedLog, None, None]:
        """Have the leaders do now what they do by themselves in time, in these partitions, or in all: "roll" small data
        files into large ones, "compact" by key, or "clean" what retention lets go, old versions and removed files.

        Begins at once. The iterator gives the result of each partition as it is finished, in no order, and raises at
        its end if any failed: POLICY_VIOLATION for "compact" where `cleanup.policy` has no compact. There is no
        deadline. Who closes the iterator ends the call: partitions that were not begun stay as they are.
        """
        if partitions is not None:
            partitions = check_items("partitions", partitions, check_integer, "integers")
        return self._logs.maintain(check_topic(topic), action, partitions)

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
        return self._logs.swap_files(swapped, removes, adds, kind, timeout_ms=timeout_ms)

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
        found = dict(self._calls.ask_each(functools.partial(self._logs.dirs_on, chosen, named or [])))
        missing = [one for one in chosen or () if one not in found]
        if missing:
            message = f"expected brokers that are registered and not fenced, found {', '.join(map(str, missing))}"
            raise BusError(ErrorCode.BROKER_NOT_AVAILABLE, message)
        return found

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
        texts = (check_text("name", name), check_topic(topic), check_text("schema", schema))
        shown = None if columns is None else check_texts("columns", columns)
        return self._views.create(
            *texts,
            shown,
            replace=check_flag("replace", replace),
            validate_only=check_flag("validate_only", validate_only),
        )

    def delete_view(self, name: str) -> None:
        """The topic stays as it is. Raises INVALID_REQUEST if there is no such view."""
        self._views.delete(check_text("name", name))

    def list_views(self) -> list[JsonView]:
        """All of them, sorted by name."""
        return self._views.list()

    # ------------------------------------------------------------ offsets

    def list_offsets(self, wanted: Mapping[TopicPartition, OffsetQuestion]) -> dict[TopicPartition, ListedOffset]:
        """For each partition a timestamp in milliseconds (the first offset at or after it), or -1 latest,
        -2 earliest, -3 the record with the largest timestamp; or `AtVersion`: the high watermark at that version."""
        wanted = offsets_by_partition("wanted", wanted, _check_question)
        return list_offsets(self._cluster, wanted, deadline_ms=self._calls.deadline_ms())

    # ------------------------------------------------------------ the cluster

    def describe_cluster(self, *, include_fenced_brokers: bool = False) -> ClusterDescription:
        """Return the cluster as the broker that answers knows it. A fenced broker has ended, is silent, is not reached
        at its address, or has not caught up."""
        is_whole = check_flag("include_fenced_brokers", include_fenced_brokers)
        return self._brokers.describe(include_fenced_brokers=is_whole)

    def elect_leaders(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Let the preferred leader, the first replica, lead these partitions, or all; the leaders of those that have
        changed. A partition that it leads already is left as it is; without `partitions` also one whose preferred
        leader is fenced, for which PREFERRED_LEADER_NOT_AVAILABLE is raised otherwise."""
        if partitions is not None:
            partitions = check_topic_partitions("partitions", partitions)
        return self._brokers.elect_leaders(None if partitions is None else list(partitions))

    def alter_partition_reassignments(self, assignments: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Give each partition these replicas, the preferred leader first. They count at once: no data is copied, since
        all brokers read the same tables. A leader that is no replica any more hands over.

        Raises INVALID_REPLICA_ASSIGNMENT for a broker that is not registered or is named twice. None would cancel a
        reassignment that is under way: NO_REASSIGNMENT_IN_PROGRESS.
        """
        checked = check_mapping(
            "assignments", assignments, check_topic_partition, _check_replicas, "from TopicPartition to broker ids"
        )
        self._brokers.alter_reassignments(checked)

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Those that are under way: none, since a reassignment counts at once."""
        return self._brokers.list_reassignments()

    def unregister_broker(self, broker_id: int) -> None:
        """Take a broker out of the cluster for good. It has ended; one that runs would register again. Raises
        INVALID_REQUEST while it leads a partition or is a replica, for the controller and for the last broker,
        BROKER_ID_NOT_REGISTERED."""
        self._brokers.unregister_broker(check_integer("broker_id", broker_id))

    def update_features(self, levels: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Finalize the levels of features, of which there is one: `bus.version`. There is no way back. Raises
        INVALID_UPDATE_VERSION for a level below the finalized one, or at which a broker cannot work."""
        checked = check_mapping("levels", levels, check_text, check_integer, "from feature to level")
        self._brokers.update_features(checked, validate_only=check_flag("validate_only", validate_only))

    # ------------------------------------------------------------ quotas

    def describe_client_quotas(
        self, filter: QuotaEntity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of all entities, or of those that have the parts of `filter`; `DEFAULT_NAME` and `ANY_NAME` stand
        for names. `strict`: and no other part. By name, per second."""
        wanted = QuotaEntity() if filter is None else _check_quota_entity("filter", filter)
        return self._quotas.describe(wanted, is_strict=check_flag("strict", strict))

    def alter_client_quotas(
        self, alterations: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set quotas of entities by name, None takes one away; what is not named stays. For each entity all of it is
        done, or nothing. Names: `producer_byte_rate`, `consumer_byte_rate`, `controller_mutation_rate`, `request_rate`.
        Raises INVALID_REQUEST for a name or a value that cannot be."""
        checked = check_mapping(
            "alterations", alterations, _check_quota_entity, _check_quota_changes, "from QuotaEntity to quotas by name"
        )
        self._quotas.alter(checked, validate_only=check_flag("validate_only", validate_only))

    def describe_quota_usage(self) -> list[QuotaUsage]:
        """What is used of quotas at each broker, by those who have used any of late."""
        return self._calls.ask_each(self._quotas.usage_on)

    # ------------------------------------------------------------ groups

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """All groups, or those in one of `states`, sorted by id."""
        wanted = check_texts("states", states)
        found = self._calls.ask_each(lambda broker, deadline_ms: self._groups.list_on(broker, wanted, deadline_ms))
        by_id = {group.group_id: group for group in found}
        return [by_id[group_id] for group_id in sorted(by_id)]

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """By id, in the order of `group_ids`. Raises GROUP_ID_NOT_FOUND for an id that is no group's."""
        return self._groups.describe(check_texts("group_ids", group_ids))

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete them with their offsets. Raises NON_EMPTY_GROUP for a group that has members."""
        self._groups.delete(check_texts("group_ids", group_ids))

    @overload
    def list_group_offsets(
        self, group_ids: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...

    @overload
    def list_group_offsets(
        self, group_ids: list[str] | tuple[str, ...], partitions: Collection[TopicPartition] | None = None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]: ...

    def list_group_offsets(
        self, group_ids: str | list[str] | tuple[str, ...], partitions: Collection[TopicPartition] | None = None
    ) -> Any:
        """What one group has committed, or several, by id: of these partitions, or of all. A partition of which nothing
        is committed is not in the answer, nor is any of a group that does not exist."""
        if partitions is not None:
            partitions = check_topic_partitions("partitions", partitions)
        if isinstance(group_ids, str):
            return self._groups.fetch_offsets([group_ids], partitions)[group_ids]
        return self._groups.fetch_offsets(check_texts("group_ids", group_ids), partitions)

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit for a group that has no member; one that does not exist comes to be. Raises UNKNOWN_MEMBER_ID if it
        has members."""
        committed = offsets_by_partition("offsets", offsets, check_committed)
        if committed:
            self._groups.commit_offsets(check_text("group_id", group_id), committed)

    def delete_group_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Forget what the group committed there. Raises GROUP_SUBSCRIBED_TO_TOPIC where a member subscribes."""
        named = check_topic_partitions("partitions", partitions)
        self._groups.delete_offsets(check_text("group_id", group_id), named)

    def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Iterable[str] = (),
        group_instance_ids: Iterable[str] = (),
        reason: str = "removed by an administrator",
    ) -> None:
        """Put these members out of the group, or all if none is named. One that lives joins again by itself."""
        check_text("group_id", group_id)
        check_text("reason", reason)
        leaving = [pb.LeavingMember(member_id=one, reason=reason) for one in check_texts("member_ids", member_ids)]
        static = check_texts("group_instance_ids", group_instance_ids)
        leaving += [pb.LeavingMember(group_instance_id=one, reason=reason) for one in static]
        if not leaving:
            members = self.describe_groups([group_id])[group_id].members
            leaving = [
                pb.LeavingMember(member_id=one.member_id, group_instance_id=one.group_instance_id, reason=reason)
                for one in members
            ]
        if leaving:
            self._groups.remove_members(group_id, leaving)

    def create_group(
        self,
        group_id: str,
        topics: Iterable[str | TopicPartition] | None = None,
        start: str | None = None,
        *,
        offsets_of: str | None = None,
        timestamp_ms: int | None = None,
        at_version: Bound | None = None,
    ) -> dict[TopicPartition, int]:
        """Give a group its first offsets before its first member starts, in whole topics or in single partitions; what
        was committed, by partition.

        One of these says where: `start` "earliest" or "latest"; `offsets_of` another group (all its partitions, if no
        topics are named); `timestamp_ms`, the first record at or after it; `at_version`, the high watermark at that
        Delta version of the partition, one number or a mapping from topic or `TopicPartition`. A partition of which the
        other group has no offset, or no version is named, stays without one.

        Raises INVALID_REQUEST if the group exists; if two callers create it at the same time, the later offsets count.
        """
        target = starting_point(start, offsets_of, timestamp_ms, at_version)
        if topics is not None:
            topics = check_items("topics", topics, _check_topic_or_partition, "text or TopicPartition")
        self._check_no_group(check_text("group_id", group_id))
        partitions = partitions_to_start(
            topics, offsets_of, list_group_offsets=self.list_group_offsets, describe_topics=self.describe_topics
        )
        planned = targets.plan_offsets(self, group_id, partitions, target)
        if not planned:
            raise BusError(ErrorCode.INVALID_REQUEST, f"group {group_id!r}: expected at least one offset, found none")
        offsets = {partition: plan.offset for partition, plan in planned.items()}
        self.alter_group_offsets(group_id, offsets)
        return offsets

    def _check_no_group(self, group_id: str) -> None:
        try:
            state = self.describe_groups([group_id])[group_id].state
        except BusError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return
        raise BusError(
            ErrorCode.INVALID_REQUEST, f"group {group_id!r} exists, its state is {state}; its offsets can be altered"
        )

    # ------------------------------------------------------------ transactions

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = (), *, duration_ms: int = 0
    ) -> list[TransactionListing]:
        """All transactional ids, or those that fit all that is given (KIP-664), sorted: in one of `states`, with one of
        `producer_ids`, with a transaction that has been open for longer than `duration_ms` (KIP-994). Raises
        INVALID_REQUEST for a state that there is not."""
        wanted_states = check_texts("states", states)
        wanted_ids = check_items("producer_ids", producer_ids, _check_producer_id, "integers")
        check_integer("duration_ms", duration_ms, 0, INT_64_MAX)
        return self._list_transactions(wanted_states, wanted_ids, duration_ms)

    def _list_transactions(
        self, states: Sequence[str], producer_ids: Sequence[int], duration_ms: int, deadline_ms: float | None = None
    ) -> list[TransactionListing]:
        found = self._calls.ask_each(
            lambda broker, until_ms: self._transactions.list_on(broker, states, producer_ids, duration_ms, until_ms),
            deadline_ms,
        )
        by_id = {one.transactional_id: one for one in found}
        return [by_id[name] for name in sorted(by_id)]

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """By id, in the order of `transactional_ids`. Raises TRANSACTIONAL_ID_NOT_FOUND for an id that was never
        initialised, or has expired."""
        return self._transactions.describe(check_texts("transactional_ids", transactional_ids))

    def describe_producers(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Who has records in each of these partitions, and whose are staged beside it, sorted by producer id."""
        named = check_topic_partitions("partitions", partitions)
        return self._transactions.describe_producers(named, self._calls.deadline_ms())

    def abort_transaction(
        self, transactional_id: str, *, producer_id: int | None = None, producer_epoch: int | None = None
    ) -> TransactionDescription:
        """End the open transaction of an id without its producer, and with nothing of it in any partition or group;
        what it was. The producer's next call is refused with TRANSACTION_ABORTABLE, and it may begin again. With
        `producer_id` and `producer_epoch` only the transaction of these.

        Raises INVALID_TXN_STATE if none is open, or another one, or if it is decided that it is committed;
        TRANSACTIONAL_ID_NOT_FOUND.
        """
        check_text("transactional_id", transactional_id)
        if (producer_id is None) != (producer_epoch is None):
            raise wrong_value("producer_id and producer_epoch, or neither", (producer_id, producer_epoch))
        found = self._transactions.describe([transactional_id])[transactional_id]
        expected = found.producer_id, found.open_epoch
        if producer_id is not None:
            _check_producer_id("producer_id", producer_id)
            expected = producer_id, check_integer("producer_epoch", producer_epoch, 0)
        elif found.state not in ("Ongoing", "PrepareAbort"):
            raise BusError(
                ErrorCode.INVALID_TXN_STATE,
                f"{transactional_id}: expected a transaction that is open and not decided, found {found.state}",
            )
        self._transactions.abort(transactional_id, expected)
        return found

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, FencedProducer]:
        """Shut out every producer that has one of these ids, as another instance would: what it has open is aborted,
        and each of its calls is refused for good. By id the lowest identity that is not refused. Raises
        TRANSACTIONAL_ID_NOT_FOUND."""
        return self._transactions.fence(check_texts("transactional_ids", transactional_ids))

    def find_hanging_transactions(
        self, partitions: Collection[TopicPartition] | None = None, *, older_than_ms: int = 900_000
    ) -> list[HangingTransaction]:
        """What is staged in these partitions, or in all, and what is pending in any group, of transactions that are not
        open, if the last of it came longer ago than `older_than_ms`: `transaction.max.timeout.ms`, since a first batch
        may be there before its transaction is. No reader waits for it; the leaders delete what is staged in time."""
        check_integer("older_than_ms", older_than_ms, 0, INT_64_MAX)
        if partitions is not None:
            partitions = check_topic_partitions("partitions", partitions)
        else:
            described = self.describe_topics().values()
            partitions = [
                TopicPartition(topic.name, one.partition)
                for topic in described
                if not topic.is_internal
                for one in topic.partitions
            ]
        deadline_ms = self._calls.deadline_ms()
        return self._transactions.find_hanging(
            partitions,
            describe_groups=self._describe_all_groups,
            list_open=lambda: self._list_transactions((*OPEN_STATES, UNREADABLE), (), 0, deadline_ms),
            older_than_ms=older_than_ms,
            deadline_ms=deadline_ms,
        )

    def _describe_all_groups(self) -> Iterable[GroupDescription]:
        listed = [one.group_id for one in self.list_groups()]
        return self._groups.describe(listed, may_be_gone=True).values()

    # ------------------------------------------------------------ users

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """These users, or all, by name: for which mechanisms they have a password. Raises RESOURCE_NOT_FOUND for a name
        that is no user."""
        wanted = [] if users is None else check_texts("users", users)
        return {} if users is not None and not wanted else self._users.describe(wanted)

    def alter_user_scram_credentials(
        self, alterations: Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]
    ) -> None:
        """Create users, give them new passwords, delete them (KIP-554). Who logs in with an earlier password is logged
        out: at once at one broker, a second later at the latest at all."""
        self._users.alter(check_items("alterations", alterations, _check_alteration, "upsertions and deletions"))

    # ------------------------------------------------------------ access control lists

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add these bindings; one that is there already is no error. Every broker that serves acts by them then. Raises
        SECURITY_DISABLED if the broker has no authorizer, CLUSTER_AUTHORIZATION_FAILED."""
        self._acls.create(check_items("acls", acls, _check_acl, "AclBinding"))

    def describe_acls(self, acl_filter: AclBindingFilter | None = None) -> list[AclBinding]:
        """The bindings that the filter finds, or all, in the order in which they were added."""
        wanted = AclBindingFilter() if acl_filter is None else _check_acl_filter("acl_filter", acl_filter)
        return self._acls.describe(wanted)

    def delete_acls(self, filters: Iterable[AclBindingFilter]) -> dict[AclBindingFilter, list[AclBinding]]:
        """Remove the bindings that any of the filters finds; which those were, by filter. No broker that serves acts by
        them then."""
        return self._acls.delete(check_items("filters", filters, _check_acl_filter, "AclBindingFilter"))

    def close(self) -> None:
        """Safe to repeat."""
        self._cluster.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_acl(name: str, value: Any) -> AclBinding:
    if not isinstance(value, AclBinding):
        raise wrong_type(f"{name} as an AclBinding", value)
    return value


def _check_acl_filter(name: str, value: Any) -> AclBindingFilter:
    if not isinstance(value, AclBindingFilter):
        raise wrong_type(f"{name} as an AclBindingFilter", value)
    return value


def _check_alteration(name: str, value: Any) -> UserScramCredentialUpsertion | UserScramCredentialDeletion:
    if not isinstance(value, (UserScramCredentialUpsertion, UserScramCredentialDeletion)):
        raise wrong_type(f"{name} as a UserScramCredentialUpsertion or UserScramCredentialDeletion", value)
    return value


def _check_new_topic(name: str, value: Any) -> NewTopic:
    if not isinstance(value, NewTopic):
        raise wrong_type(f"{name} as a NewTopic", value, f"give NewTopic({value!r})" if isinstance(value, str) else "")
    return value


def _check_topic_or_partition(name: str, value: Any) -> str | TopicPartition:
    return check_topic_partition(name, value) if isinstance(value, TopicPartition) else check_text(name, value)


def _check_producer_id(name: str, value: Any) -> int:
    return check_integer(name, value, 0, INT_64_MAX)


def _check_replicas(name: str, value: Any) -> Sequence[int] | None:
    return None if value is None else check_items(name, value, check_integer, "integers")


def _check_offset_or_all(name: str, value: Any) -> int:
    """The broker judges the range: OFFSET_OUT_OF_RANGE names the partition's own bounds."""
    return check_integer(name, value, -INT_64_MAX, INT_64_MAX)


def _check_question(name: str, value: Any) -> OffsetQuestion:
    if isinstance(value, AtVersion):
        check_integer(f"the version of {name}", value.version, 0, INT_64_MAX)
        return value
    return check_integer(name, value, -INT_64_MAX, INT_64_MAX)  # a time before 1970 is one, too


def _check_quota_entity(name: str, value: Any) -> QuotaEntity:
    if not isinstance(value, QuotaEntity):
        raise wrong_type(f"{name} as a QuotaEntity", value)
    for part in (value.user, value.client_id):
        if part is not None:
            check_text(f"a name in {name}", part)
    return value


def _check_quota_changes(name: str, value: Any) -> dict[str, float | None]:
    return check_mapping(name, value, check_text, _check_limit, "from quota to number, or None")


def _check_limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(f"{name} as a number, or None", value)
    return float(value)
