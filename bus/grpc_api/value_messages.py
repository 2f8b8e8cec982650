"""Values as messages and messages as values, for brokers that answer calls and for clients that make them.

Each kind of value is one `Mapper` here, and a field of it is read and written in one place: the one of the message that
has its name, unless the mapper says otherwise. Guards two promises: a value that was encoded is decoded as the same
value, and a field that the message lacks is found when this module is loaded. Calls on the hot path (records, offsets,
heartbeats, metadata) write their messages by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from bus.descriptions import (
    ANY_NAME,
    DEFAULT_NAME,
    BrokerDescription,
    BrokerInfo,
    ClusterDescription,
    ConfigDescription,
    DeletedRecords,
    FencedProducer,
    GroupListing,
    ListedOffset,
    MaintainedLog,
    NoName,
    PartitionReassignment,
    PendingOffsets,
    ProducerState,
    QuotaEntity,
    QuotaUsage,
    ScramCredentialInfo,
    TransactionDescription,
    TransactionListing,
)
from bus.errors import Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.model import TopicPartition
from bus.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternMatch,
    PatternType,
)
from bus.security.quotas import CLIENT_ID, USER, entity_of, names_of

ValueT = TypeVar("ValueT")
EnumT = TypeVar("EnumT", bound=Enum)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """How a field of a value stands in its message. `encode` gives the message's fields, by name."""

    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Any], Any]


class Mapper(Generic[ValueT]):
    """The two ways between one kind of value and one kind of message. `fields`: those that are not written as they are
    in the field of the same name. `refused`: what the message has in their place if there is a refusal instead."""

    def __init__(
        self, value: type[ValueT], message: Any, refused: Mapping[str, Any] | None = None, **fields: Field
    ) -> None:
        names = [one.name for one in dataclasses.fields(value)]  # type: ignore[arg-type]  # every value is a dataclass
        assert fields.keys() <= set(names), f"expected fields of {value.__name__}, found {sorted(fields)}"
        self.value = value
        self.message = message
        self._refused = refused or {}
        self.fields = [(name, fields.get(name) or plain(message, name)) for name in names]

    def encode(self, value: ValueT, **others: Any) -> Any:
        """`others`: fields that the message has besides, the partition that it is about for example."""
        for name, field in self.fields:
            others.update(field.encode(getattr(value, name)))
        return self.message(**others)

    def encode_answer(self, answer: ValueT | Refused, **others: Any) -> Any:
        """Encode the value, or why there is none."""
        if isinstance(answer, Refused):
            others.update(self._refused, error_code=int(answer.code), error_message=answer.message)
            return self.message(**others)
        return self.encode(answer, **others)

    def decode(self, message: Any, **known: Any) -> ValueT:
        """`known`: fields of the value that the message does not have."""
        return self.value(**known, **{name: field.decode(message) for name, field in self.fields if name not in known})


# ---------------------------------------------------------------- fields


def plain(message: Any, name: str) -> Field:
    """Write a field as it is. None is left out where the message tells whether it is there."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return Field(lambda value: {name: value}, lambda found: tuple(getattr(found, name)))
    if field.has_presence:
        return Field(lambda value: {name: value}, lambda found: getattr(found, name) if found.HasField(name) else None)
    return Field(lambda value: {name: value}, lambda found: getattr(found, name))


def not_in_message() -> Field:
    """Leave a field to those who decode, who know it otherwise."""
    return Field(lambda _: {}, lambda _: None)


def none_as(name: str, nothing: Any) -> Field:
    """Write None as a value that it never has otherwise."""

    def decode(found: Any) -> Any:
        value = getattr(found, name)
        return None if value == nothing else value

    return Field(lambda value: {name: nothing if value is None else value}, decode)


def nested(name: str, mapper: Mapper[Any]) -> Field:
    return Field(lambda value: {name: mapper.encode(value)}, lambda found: mapper.decode(getattr(found, name)))


def each(name: str, mapper: Mapper[Any]) -> Field:
    """Write a tuple of values."""
    return Field(
        lambda values: {name: map(mapper.encode, values)},
        lambda found: tuple(map(mapper.decode, getattr(found, name))),
    )


def split(*names: str) -> Field:
    """Write a tuple in several fields, in their order."""
    return Field(
        lambda values: dict(zip(names, values, strict=True)),
        lambda found: tuple(getattr(found, name) for name in names),
    )


def encode_partitions(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    """Write partitions by topic, in the order of their names and numbers, as most messages name them."""
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return [pb.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]


def decode_partitions(topics: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
    """Read them in the order in which they came."""
    return tuple(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)


_SORTED_PARTITIONS = Field(
    lambda value: {"topics": encode_partitions(value)}, lambda found: tuple(sorted(decode_partitions(found.topics)))
)


class Words(Generic[EnumT]):
    """Values of an enum by the numbers that have the same names in the contract, so that each means the same on both
    sides. There, the name of the type stands before each name, and 0 stands for all values in a filter."""

    def __init__(self, values: type[EnumT], numbers: Any) -> None:
        self._enum = numbers.DESCRIPTOR
        prefix = self._enum.values_by_number[0].name.removesuffix("ANY")
        self._values = {numbers.Value(f"{prefix}{value.name}"): value for value in values}
        self._numbers = {value: number for number, value in self._values.items()}

    def number(self, value: EnumT) -> Any:
        return self._numbers[value]

    def value(self, number: int) -> EnumT:
        """Raises `ValueError`."""
        if number in self._values:
            return self._values[number]
        known = ", ".join(value.name for value in self._numbers)
        unknown = self._enum.values_by_number.get(number)
        found = number if unknown is None else unknown.name
        raise ValueError(f"expected {self._enum.name} of {known}, found {found}")

    def field(self, name: str) -> Field:
        return Field(
            lambda value: {name: self._numbers[value]},
            lambda found: self.value(getattr(found, name)),
        )

    def field_of_filter(self, name: str) -> Field:
        """Write None, all values, as 0."""

        def decode(found: Any) -> EnumT | None:
            number = getattr(found, name)
            return self.value(number) if number else None

        return Field(lambda value: {name: 0 if value is None else self._numbers[value]}, decode)


# ---------------------------------------------------------------- the cluster

BROKER_INFO = Mapper(BrokerInfo, pb.Broker)
BROKER = Mapper(
    BrokerDescription,
    pb.ClusterBroker,
    rack=none_as("rack", ""),
    feature_levels=split("min_feature_level", "max_feature_level"),
)
CLUSTER = Mapper(
    ClusterDescription,
    pb.DescribeClusterResponse,
    brokers=each("brokers", BROKER),
    root_url=plain(pb.DescribeClusterResponse, "root"),
)
REASSIGNMENT = Mapper(
    PartitionReassignment,
    pb.OngoingReassignment,
    replicas=plain(pb.OngoingReassignment, "replica_ids"),
    adding_replicas=plain(pb.OngoingReassignment, "adding_replica_ids"),
    removing_replicas=plain(pb.OngoingReassignment, "removing_replica_ids"),
)

# ---------------------------------------------------------------- topics

CONFIG = Mapper(ConfigDescription, pb.ConfigEntry)
VIEW = Mapper(JsonView, pb.View)
NOTHING_LISTED = {"offset": -1, "timestamp_ms": -1, "version": -1}
LISTED_OFFSET = Mapper(ListedOffset, pb.ListOffsetsPartitionResponse, NOTHING_LISTED)
DELETED_RECORDS = Mapper(DeletedRecords, pb.DeleteRecordsPartitionResponse, {"low_watermark": -1, "version": -1})
MAINTAINED_LOG = Mapper(MaintainedLog, pb.MaintainLogResponse, {"version": -1, "log_start": -1})

# ---------------------------------------------------------------- groups and transactions

GROUP_LISTING = Mapper(GroupListing, pb.ListedGroup)
# Whoever coordinates a transactional id is who answers.
TRANSACTION_LISTING = Mapper(TransactionListing, pb.ListedTransaction, coordinator_id=not_in_message())
PENDING_OFFSETS = Mapper(PendingOffsets, pb.PendingOffsets)
TRANSACTION = Mapper(
    TransactionDescription,
    pb.DescribedTransaction,
    coordinator=nested("coordinator", BROKER_INFO),
    partitions=_SORTED_PARTITIONS,
    group_ids=Field(lambda value: {"group_ids": value}, lambda found: tuple(sorted(found.group_ids))),
)
PRODUCER = Mapper(ProducerState, pb.ActiveProducer, coordinator_partition=none_as("coordinator_partition", -1))
FENCED_PRODUCER = Mapper(FencedProducer, pb.FencedProducer, {"producer_id": -1, "producer_epoch": -1})

# ---------------------------------------------------------------- users and access

CREDENTIAL = Mapper(ScramCredentialInfo, pb.ScramCredentialInfo)

OPERATIONS = Words(AclOperation, pb.AclOperation)
_RESOURCE_TYPES = Words(AclResourceType, pb.AclResourceType)
_PERMISSIONS = Words(AclPermission, pb.AclPermission)
# Decoding either raises `ValueError`.
ACL = Mapper(
    AclBinding,
    pb.AclBinding,
    resource_type=_RESOURCE_TYPES.field("resource_type"),
    pattern_type=Words(PatternType, pb.AclPatternType).field("pattern_type"),
    operation=OPERATIONS.field("operation"),
    permission=_PERMISSIONS.field("permission"),
)
ACL_FILTER = Mapper(
    AclBindingFilter,
    pb.AclBindingFilter,
    resource_type=_RESOURCE_TYPES.field_of_filter("resource_type"),
    pattern_type=Words(PatternMatch, pb.AclPatternType).field("pattern_type"),
    operation=OPERATIONS.field_of_filter("operation"),
    permission=_PERMISSIONS.field_of_filter("permission"),
)


# ---------------------------------------------------------------- quotas


def encode_quota_entity(entity: QuotaEntity) -> list[pb.QuotaEntityPart]:
    return [pb.QuotaEntityPart(type=kind, name=name) for kind, name in names_of(entity).items()]


def decode_quota_entity(parts: Iterable[pb.QuotaEntityPart]) -> QuotaEntity:
    """Read an entity that a broker describes."""
    return entity_of({part.type: part.name if part.HasField("name") else None for part in parts})


def decode_quota_part(part: pb.QuotaEntityPart) -> tuple[str, str | NoName]:
    """Read a part of an entity that somebody requests: its type, which may be any text, and its name."""
    return part.type, part.name if part.HasField("name") else DEFAULT_NAME


def encode_quota_filter(entity: QuotaEntity) -> list[pb.QuotaFilterPart]:
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return [
        pb.QuotaFilterPart(
            part=pb.QuotaEntityPart(type=kind, name=name if isinstance(name, str) else None), any_name=name is ANY_NAME
        )
        for kind, name in named
        if name is not None
    ]


def decode_quota_filter(parts: Iterable[pb.QuotaFilterPart]) -> list[tuple[str, str | NoName]]:
    return [(one.part.type, ANY_NAME) if one.any_name else decode_quota_part(one.part) for one in parts]


# Whoever has measured the use is who answers.
QUOTA_USAGE = Mapper(
    QuotaUsage,
    pb.QuotaUsage,
    broker_id=not_in_message(),
    entity=Field(lambda value: {"entity": encode_quota_entity(value)}, lambda found: decode_quota_entity(found.entity)),
)
