"""All records of `__cluster_metadata`: their form as rows, their replay, and the snapshot with which the log begins.

Records of topics, brokers and producers are in modules of their own, those of views, quotas, ACLs, the level and
snapshots here. Guards three promises. What was written is what is read back, `decode_record(encode_record(r)) == r`,
for ever; so a type's name and the meaning of its fields never change, and a new fact gets a new type. A row is one
struct for all types: the field `type` names the record and what it lacks is null. Rows come from disk, so decoding
checks and never asserts. `apply_all` is the only way in which a `ClusterState` changes, live and while loading. And
`replay(snapshot_of(state)) == state`: a snapshot is ordinary records between `SnapshotBegan` and `SnapshotEnded`,
written as one commit, and a replay of it needs no record before it.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

from bus.cluster_metadata.broker_records import (
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ControllerElected,
    snapshot_brokers,
)
from bus.cluster_metadata.cluster_draft import ClusterDraft, ClusterRecord, Mending
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, LEVEL_MAX, LEVEL_OF_SECURITY, ClusterState
from bus.cluster_metadata.producer_records import (
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    ProducerUsed,
    snapshot_producers,
)
from bus.cluster_metadata.topic_records import (
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ReplicasAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    snapshot_topics,
)
from bus.errors import show_range
from bus.json_views import JsonView
from bus.security.acls import (
    AclBinding,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    check_acl,
)
from bus.security.quotas import decode_entity, decode_quotas, encode_entity, encode_quotas

# A smaller log is read in no time.
_SNAPSHOT_RECORDS_MIN = 200


@dataclass(frozen=True, slots=True)
class SnapshotBegan(ClusterRecord):
    """The beginning of a snapshot of `record_count` records, which replaces all records before it."""

    record_count: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.begin_snapshot(self.record_count)


@dataclass(frozen=True, slots=True)
class SnapshotEnded(ClusterRecord):
    record_count: int

    def apply(self, draft: ClusterDraft) -> None:
        draft.end_snapshot()

    def mend(self, mending: Mending) -> str:
        mending.draft.accept_snapshot()
        return "the snapshot is taken as it is"


@dataclass(frozen=True, slots=True)
class ViewCreated(ClusterRecord):
    """The topic's values can be read as typed columns under this name; a view of the name before is replaced."""

    view_name: str  # names that differ in case only are one
    topic: str  # the topic's name, whichever topic has it
    view_schema: str  # DDL
    view_columns: str  # the record's own columns beside those of the schema, separated by commas

    def apply(self, draft: ClusterDraft) -> None:
        columns = tuple(self.view_columns.split(",")) if self.view_columns else ()
        draft.views.put(self.view_name.casefold(), JsonView(self.view_name, self.topic, self.view_schema, columns))

    def describe(self) -> str | None:
        return f"view {self.view_name} of topic {self.topic} was created"


@dataclass(frozen=True, slots=True)
class ViewDeleted(ClusterRecord):
    view_name: str

    def apply(self, draft: ClusterDraft) -> None:
        name = self.view_name
        assert name.casefold() in draft.views.now, f"expected a view {name}, found none"
        draft.views.remove(name.casefold())

    def describe(self) -> str | None:
        return f"view {self.view_name} was deleted"


@dataclass(frozen=True, slots=True)
class ClientQuotaChanged(ClusterRecord):
    """The quotas of an entity are these from here on, and no others (`encode_entity`, `encode_quotas`)."""

    since_level: ClassVar[int] = LEVEL_OF_SECURITY
    entity: str
    quotas: str | None  # None: it no longer has any

    def apply(self, draft: ClusterDraft) -> None:
        try:
            entity = decode_entity(self.entity)
            quotas = None if self.quotas is None else decode_quotas(self.quotas)
        except ValueError as error:
            raise AssertionError(f"quotas of {self.entity}: {error}") from None
        if quotas is not None:
            draft.quotas.put(entity, quotas)
        else:
            assert entity in draft.quotas.now, f"expected quotas of {entity}, found none"
            draft.quotas.remove(entity)

    def describe(self) -> str | None:
        try:
            entity = str(decode_entity(self.entity))
        except ValueError:
            entity = self.entity
        return f"quotas of {entity}: {'none any more' if self.quotas is None else self.quotas}"


@dataclass(frozen=True, slots=True)
class AclAdded(ClusterRecord):
    """The access control list of the cluster has this binding from here on; it had not before."""

    since_level: ClassVar[int] = LEVEL_OF_SECURITY
    acl: str  # `encode_acl`

    def apply(self, draft: ClusterDraft) -> None:
        draft.acls.add(_applicable_acl(self.acl))

    def describe(self) -> str | None:
        return f"ACL was added: {parse_acl(self.acl)}"


@dataclass(frozen=True, slots=True)
class AclRemoved(ClusterRecord):
    """It has this binding no more."""

    since_level: ClassVar[int] = LEVEL_OF_SECURITY
    acl: str  # the binding as it was added

    def apply(self, draft: ClusterDraft) -> None:
        draft.acls.remove(_applicable_acl(self.acl))

    def describe(self) -> str | None:
        return f"ACL was removed: {parse_acl(self.acl)}"


@dataclass(frozen=True, slots=True)
class FeatureLevel(ClusterRecord):
    """The cluster works at this level of the feature from here on."""

    feature: str  # BUS_VERSION
    level: int  # > every earlier one

    def apply(self, draft: ClusterDraft) -> None:
        feature, level = self.feature, self.level
        assert feature == BUS_VERSION, f"expected the feature {BUS_VERSION}, found {feature!r}"
        assert draft.level < level <= LEVEL_MAX, (
            f"expected a level of {feature} {show_range(draft.level + 1, LEVEL_MAX)}, found {level}: "
            "written by a newer version?"
        )
        draft.level = level

    def describe(self) -> str | None:
        return f"{self.feature} is {self.level}"


def _applicable_acl(text: str) -> AclBinding:
    try:
        return parse_acl(text)
    except ValueError as error:
        raise AssertionError(str(error)) from None


# In this order an error names the types that this version knows.
RECORD_TYPES: Sequence[type[ClusterRecord]] = (
    BrokerRegistered,
    BrokerUnregistered,
    TopicCreated,
    PartitionsAdded,
    LeaderChanged,
    LeadersChanged,
    LeaderEpochsRaised,
    TopicConfigChanged,
    TopicDeleted,
    TopicFilesDeleted,
    ProducerIdsAllocated,
    ProducerNamed,
    ProducerUsed,
    ProducerExpired,
    ProducerIdsRetired,
    SnapshotBegan,
    SnapshotEnded,
    ViewCreated,
    ViewDeleted,
    BrokerStarted,
    BrokerListeners,
    BrokerFenced,
    BrokerUnfenced,
    ControllerElected,
    ReplicasAssigned,
    ClientQuotaChanged,
    AclAdded,
    AclRemoved,
    FeatureLevel,
)
_TYPES: Mapping[str, type[Any]] = {record_type.__name__: record_type for record_type in RECORD_TYPES}
# Fields whose column has another name than they have; every other field is the column of its name.
_COLUMNS = {
    "leader_id": "broker_id",
    "name": "config_name",
    "value": "config_value",
    "listeners": "config_value",
    "entity": "config_name",
    "quotas": "config_value",
    "acl": "config_value",
}
_NULLABLE = {"config_value", "rack"}
_WITH_VALUE = (BrokerListeners, AclAdded, AclRemoved)  # the records whose config_value is never null
_ACL_FIELDS = tuple(field.name for field in fields(AclBinding))
# Column -> the range of its values; as wide as the column is.
_INTEGERS = {
    **dict.fromkeys(("partition", "partitions", "broker_id", "leader_epoch", "port"), (0, 2**31 - 1)),
    **dict.fromkeys(("level", "level_min", "level_max"), (0, 2**31 - 1)),
    **dict.fromkeys(("producer_id", "next_producer_id", "used_ms", "record_count", "broker_epoch"), (0, 2**63 - 1)),
    "producer_epoch": (0, 2**15 - 1),
    "last_producer_epoch": (-1, 2**15 - 1),
}


# the fields of each type, and their columns
_FIELDS: Mapping[str, Sequence[tuple[str, str]]] = {
    name: tuple((field.name, _COLUMNS.get(field.name, field.name)) for field in fields(record_type))
    for name, record_type in _TYPES.items()
}


def encode_record(record: ClusterRecord) -> dict[str, Any]:
    """The row of a record; columns that it does not have are left out, which reads as null."""
    name = type(record).__name__
    return {"type": name, **{column: getattr(record, field) for field, column in _FIELDS[name]}}


def decode_record(row: Mapping[str, Any]) -> ClusterRecord:
    """Raises `ValueError` for a type that this version does not know, and for a field that is missing or wrong."""
    type_name = row.get("type")
    record_type = _TYPES.get(type_name) if isinstance(type_name, str) else None
    if record_type is None:
        known = ", ".join(_TYPES)
        raise ValueError(f"expected a record of type {known}, found {type_name!r}: written by a newer version?")
    if record_type in _WITH_VALUE and row.get("config_value") is None:
        raise ValueError(f"{type_name}: expected a string in the field config_value, found None")
    record: ClusterRecord = record_type(*[_column(row, column) for _, column in _FIELDS[record_type.__name__]])
    return record


def encode_acl(acl: AclBinding) -> str:
    """Encode the binding as a JSON object with a member for each field."""
    return json.dumps({field: _text(getattr(acl, field)) for field in _ACL_FIELDS}, ensure_ascii=False)


def parse_acl(text: str) -> AclBinding:
    """Raises `ValueError` for anything but the JSON of a binding that there can be."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.keys() != set(_ACL_FIELDS) or not all(map(_is_text, found.values())):
        raise ValueError(f"expected a binding as JSON with the fields {', '.join(_ACL_FIELDS)}, found {text!r}")
    acl = AclBinding(
        AclResourceType(found["resource_type"]),
        found["resource_name"],
        PatternType(found["pattern_type"]),
        found["principal"],
        found["host"],
        AclOperation(found["operation"]),
        AclPermission(found["permission"]),
    )
    refused = check_acl(acl)
    if refused is not None:
        raise ValueError(refused.message)
    return acl


def _text(value: str | Enum) -> str:
    return str(value.value) if isinstance(value, Enum) else value


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _column(row: Mapping[str, Any], column: str) -> Any:
    value = row.get(column)
    if column in _INTEGERS:
        low, high = _INTEGERS[column]
        is_right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        expected = f"an integer from {low} to {high}"
    else:
        is_right = isinstance(value, str) or (value is None and column in _NULLABLE)
        expected = "a string"
    if not is_right:
        raise ValueError(f"{row['type']}: expected {expected} in the field {column}, found {value!r}")
    return value


def replay_cluster(
    rows: Iterable[Mapping[str, Any]], *, first_offset: int = 0, state: ClusterState = EMPTY_CLUSTER
) -> ClusterState:
    """The state after the rows of the metadata log, in offset order from `first_offset` on; `state` is that before
    them.

    Raises `ValueError` that names the offset for a row that cannot be read or that contradicts those before it.
    """
    draft = ClusterDraft(state)
    for offset, row in enumerate(rows, first_offset):
        try:
            draft.apply(decode_record(row))
        except (ValueError, AssertionError) as error:
            raise ValueError(f"record at offset {offset} of the cluster metadata: {error}") from error
    try:
        return draft.finish()
    except AssertionError as error:
        raise ValueError(f"the cluster metadata: {error}") from error


def apply(state: ClusterState, record: ClusterRecord) -> ClusterState:
    return apply_all(state, (record,))


def apply_all(state: ClusterState, records: Iterable[ClusterRecord]) -> ClusterState:
    """The state after all of `records`; each map of the state that they change is copied once."""
    draft = ClusterDraft(state)
    for record in records:
        draft.apply(record)
    return draft.finish()


def is_snapshot_due(log_records: int, state: ClusterState) -> bool:
    """`log_records` is how many the log has, with the snapshot that it begins with."""
    if log_records <= max(_SNAPSHOT_RECORDS_MIN, 3 * _size_without_leaders(state)):
        return False
    # Partitions of a topic that are led alike have one object.
    changes = sum(sum(map(operator.is_not, topic.partitions, topic.partitions[1:])) for topic in state.topics.values())
    return log_records > 3 * (_size_without_leaders(state) + 2 * changes)


def _size_without_leaders(state: ClusterState) -> int:
    """About as many records as the snapshot has if the partitions of each topic are led alike."""
    topics = sum(2 + len(topic.configs) + bool(topic.assignments) for topic in state.topics.values())
    producers = 2 * len(state.producers.by_name) + len(state.producers.retired.ranges)
    return (
        topics
        + producers
        + len(state.views)
        + len(state.quotas)
        + len(state.acls)
        + 2 * len(state.brokers)
        + 2 * len(state.deleted_topics)
    )


def snapshot_of(state: ClusterState) -> list[ClusterRecord]:
    """Return the records of a snapshot in an order in which each record can be applied to those before it."""
    records: list[ClusterRecord] = [FeatureLevel(BUS_VERSION, state.level)] if state.level else []
    records += itertools.chain(
        snapshot_brokers(state), snapshot_topics(state), snapshot_producers(state), _snapshot_settings(state)
    )
    return [SnapshotBegan(len(records)), *records, SnapshotEnded(len(records))]


def _snapshot_settings(state: ClusterState) -> Iterator[ClusterRecord]:
    """Views, quotas, and ACLs in the order in which they were added: the first of several that allow is reported."""
    for view in state.views.values():
        yield ViewCreated(view.name, view.topic, view.schema, ",".join(view.columns))
    for entity, quotas in state.quotas.items():
        yield ClientQuotaChanged(encode_entity(entity), encode_quotas(quotas))
    for acl in state.acls:
        yield AclAdded(encode_acl(acl))
