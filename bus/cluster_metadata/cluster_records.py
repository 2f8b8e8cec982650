"""The records of `__cluster_metadata`, and their form as rows of that log.

Guards one promise: what was written is what is read back, `decode_record(encode_record(r)) == r`, for ever; so a type's
name and the meaning of its fields never change, and a new fact gets a new type. A row is one struct for all types: the
field `type` names the record and what it lacks is null. Rows come from disk, so decoding checks and never asserts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, get_args

from bus.addresses import bare_host, format_address
from bus.authorization.acls import (
    AclBinding,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    check_acl,
)
from bus.model import ListenerAddress


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker serves at this address, its first or another one."""

    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """The broker is gone and leads nothing any more."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic: str
    topic_id: str
    partitions: int  # 0 .. partitions - 1, each led by `leader_id` at epoch 0
    leader_id: int


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    topic: str
    topic_id: str
    partitions: int  # the new total
    leader_id: int  # of the new ones


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    topic: str
    topic_id: str
    partition: int
    leader_id: int  # may be the same broker, after its restart
    leader_epoch: int  # > every earlier one of the partition


@dataclass(frozen=True, slots=True)
class LeadersChanged:
    """`LeaderChanged` for neighbours: `partitions` of them, from `partition` on."""

    topic: str
    topic_id: str
    partition: int
    partitions: int
    leader_id: int
    leader_epoch: int  # > every earlier one of each of them


@dataclass(frozen=True, slots=True)
class LeaderEpochsRaised:
    """The broker leads on whatever it leads, each partition at an epoch that is higher by one: it was restarted."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    topic: str
    topic_id: str
    name: str
    value: str | None  # None: the override is gone, the default holds


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic is gone for users; its files may still be there."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TopicFilesDeleted:
    topic_id: str


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """The broker may give the producer ids below `next_producer_id` that no block before had (KIP-730)."""

    broker_id: int
    next_producer_id: int  # > every earlier one: the next block begins here


@dataclass(frozen=True, slots=True)
class ProducerNamed:
    """The producer of this name has this identity from now on, and every lower epoch of it is fenced."""

    producer_name: str
    producer_id: int  # the same for ever
    producer_epoch: int  # > every earlier one of the name
    last_producer_epoch: int  # of the caller that asked for a higher one; -1 if a new instance came (KIP-360)


@dataclass(frozen=True, slots=True)
class ProducerUsed:
    """The producer of this name was seen at this time; to be known a while later, not to the second."""

    producer_name: str
    used_ms: int


@dataclass(frozen=True, slots=True)
class ProducerExpired:
    """The name is forgotten; its id has no owner any more, and may not write."""

    producer_name: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRetired:
    """Ids from `producer_id` on and below `next_producer_id` have no owner any more, and may not write."""

    producer_id: int
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """What came before counts no more: the records that follow, so many, say all that was known by then."""

    record_count: int


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    record_count: int


@dataclass(frozen=True, slots=True)
class ViewCreated:
    """The topic's values can be read as typed columns under this name; a view of the name before is replaced."""

    view_name: str  # names that differ in case only are one
    topic: str  # by its name, whichever topic that is
    view_schema: str  # DDL
    view_columns: str  # of the records, beside those of the schema; with commas between them


@dataclass(frozen=True, slots=True)
class ViewDeleted:
    view_name: str


@dataclass(frozen=True, slots=True)
class BrokerStarted:
    """One life of a broker is registered, fenced at first. The record again, with the same incarnation and the same
    broker epoch, changes what it says of the broker and leaves it fenced or unfenced as it is."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    incarnation: str
    broker_epoch: int  # > every earlier one of the cluster
    level_min: int  # the levels of bus.version that the broker can work at
    level_max: int


@dataclass(frozen=True, slots=True)
class BrokerListeners:
    """Clients reach that life of the broker by these listeners, not by the address in `BrokerStarted`, which other
    brokers use. A later `BrokerStarted` without this record behind it says that there is the listener PLAINTEXT only.

    `listeners`: `NAME:PROTOCOL://host:port` with commas between them.
    """

    broker_id: int
    broker_epoch: int
    listeners: str


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """The broker is gone or silent. It stays registered, and is chosen as leader only if no broker is unfenced."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerUnfenced:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControllerElected:
    """This life of the broker changes the metadata from here on. The broker may register only behind this record."""

    broker_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReplicasAssigned:
    """The brokers that are to follow `partitions` partitions from `partition` on; leaders stay as they are.

    `replicas`: for each partition the broker ids with commas between them, the preferred leader first; semicolons
    between the partitions. One list: each partition has it.
    """

    topic: str
    topic_id: str
    partition: int
    partitions: int
    replicas: str


@dataclass(frozen=True, slots=True)
class ClientQuotaChanged:
    """The quotas of an entity are these from here on, and no others (`encode_entity`, `encode_quotas`)."""

    entity: str
    quotas: str | None  # None: it has none any more


@dataclass(frozen=True, slots=True)
class AclAdded:
    """The access control list of the cluster has this binding from here on; it had not before."""

    acl: str  # `encode_acl`


@dataclass(frozen=True, slots=True)
class AclRemoved:
    """It has this binding no more."""

    acl: str  # as it was added


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The cluster works at this level of the feature from here on."""

    feature: str  # BUS_VERSION
    level: int  # > every earlier one


BUS_VERSION = "bus.version"
# Levels of BUS_VERSION: which record types the log may have. 0: those up to ViewDeleted. 1: all but
# BrokerListeners and those of level 3.
LEVEL_MIN, LEVEL_MAX = 0, 5
LEVEL_OF_CLUSTERS = 1  # from which on a root may have several brokers
LEVEL_OF_LISTENERS = 2  # from which on a broker may have other listeners than PLAINTEXT
LEVEL_OF_SECURITY = 3  # from which on there are quotas and ACLs
LEVEL_OF_ONE_PHASE = 4  # from which on a version alone may decide a transaction; the records are those of 3
LEVEL_OF_RISING_NUMBERS = 5  # from which on a transactional id begins at its producer id; the records are those of 3
LEVEL_OF_LEASES = 5  # from which on every broker has a lease in a file of its own; the records are those of 3
# Of each type that the log may not have from the beginning: the level from which on it may.
_LEVELS: Mapping[type[Any], int] = {
    **dict.fromkeys((BrokerStarted, BrokerFenced, BrokerUnfenced, ControllerElected), LEVEL_OF_CLUSTERS),
    ReplicasAssigned: LEVEL_OF_CLUSTERS,
    BrokerListeners: LEVEL_OF_LISTENERS,
    **dict.fromkeys((ClientQuotaChanged, AclAdded, AclRemoved), LEVEL_OF_SECURITY),
}

ClusterRecord = (
    BrokerRegistered
    | BrokerUnregistered
    | TopicCreated
    | PartitionsAdded
    | LeaderChanged
    | LeadersChanged
    | LeaderEpochsRaised
    | TopicConfigChanged
    | TopicDeleted
    | TopicFilesDeleted
    | ProducerIdsAllocated
    | ProducerNamed
    | ProducerUsed
    | ProducerExpired
    | ProducerIdsRetired
    | SnapshotBegan
    | SnapshotEnded
    | ViewCreated
    | ViewDeleted
    | BrokerStarted
    | BrokerListeners
    | BrokerFenced
    | BrokerUnfenced
    | ControllerElected
    | ReplicasAssigned
    | ClientQuotaChanged
    | AclAdded
    | AclRemoved
    | FeatureLevel
)

_TYPES: Mapping[str, type[Any]] = {record_type.__name__: record_type for record_type in get_args(ClusterRecord)}
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
_WITH_VALUE = (BrokerListeners, AclAdded, AclRemoved)  # whose config_value is not null
_ACL_FIELDS = tuple(field.name for field in fields(AclBinding))
_LISTENER = re.compile(r"([A-Z0-9_.-]+):([A-Z_]+)://([^,\s]+):([0-9]{1,5})", re.ASCII)
# Column -> the range of its values; as wide as the column is.
_INTEGERS = {
    **dict.fromkeys(("partition", "partitions", "broker_id", "leader_epoch", "port"), (0, 2**31 - 1)),
    **dict.fromkeys(("level", "level_min", "level_max"), (0, 2**31 - 1)),
    **dict.fromkeys(("producer_id", "next_producer_id", "used_ms", "record_count", "broker_epoch"), (0, 2**63 - 1)),
    "producer_epoch": (0, 2**15 - 1),
    "last_producer_epoch": (-1, 2**15 - 1),
}


# Of each type: its fields, and the columns that they are in.
_FIELDS: Mapping[str, Sequence[tuple[str, str]]] = {
    name: tuple((field.name, _COLUMNS.get(field.name, field.name)) for field in fields(record_type))
    for name, record_type in _TYPES.items()
}


def level_of(record: ClusterRecord) -> int:
    """Of BUS_VERSION, from which on the log may have the record."""
    return _LEVELS.get(type(record), 0)


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


def assign_replicas(topic: str, topic_id: str, partition: int, lists: Sequence[Sequence[int]]) -> ReplicasAssigned:
    """One list of broker ids for each partition from `partition` on."""
    different = lists[:1] if len(set(map(tuple, lists))) == 1 else lists
    text = ";".join(",".join(map(str, replicas)) for replicas in different)
    return ReplicasAssigned(topic, topic_id, partition, len(lists), text)


def parse_replicas(text: str) -> list[tuple[int, ...]]:
    """Raises `ValueError` for anything but lists of numbers."""
    lists = []
    for part in text.split(";"):
        numbers = part.split(",")
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ValueError(f"expected broker ids with commas between them, found {part!r}")
        lists.append(tuple(map(int, numbers)))
    return lists


def encode_listeners(listeners: Iterable[ListenerAddress]) -> str:
    return ",".join(f"{one.name}:{one.protocol}://{format_address(one.host, one.port)}" for one in listeners)


def parse_listeners(text: str) -> tuple[ListenerAddress, ...]:
    """Raises `ValueError` for anything but at least one listener, each name once."""
    parts = [_LISTENER.fullmatch(part) for part in text.split(",")]
    found = [ListenerAddress(part[1], part[2], bare_host(part[3]), int(part[4])) for part in parts if part is not None]
    if len(found) < len(parts) or len({one.name for one in found}) < len(parts):
        raise ValueError(f"expected NAME:PROTOCOL://host:port with commas between them, each name once, found {text!r}")
    return tuple(found)


def encode_acl(acl: AclBinding) -> str:
    """As JSON: each field by its name."""
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
