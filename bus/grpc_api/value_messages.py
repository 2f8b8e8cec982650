"""Values as messages and messages as values, for brokers that answer calls and for clients that make them.

Each kind of value is one `Mapper` here, and a field of it is read and written in one place: the one of the message that
has its name, unless the mapper says otherwise. Guards two promises: a value that was encoded is decoded as the same
value, and a field that the message lacks is found when this module is loaded. Calls on the hot path (records, commits
of offsets, heartbeats of members) write their messages by hand.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from bus.client_texts import one_line
from bus.descriptions import (
    ANY_NAME,
    DEFAULT_NAME,
    BrokerDescription,
    BrokerInfo,
    ClusterDescription,
    CommittedOffset,
    ConfigDescription,
    DeletedRecords,
    FencedProducer,
    GroupDescription,
    GroupListing,
    ListedOffset,
    LogDirDescription,
    MaintainedLog,
    MemberDescription,
    NoName,
    PartitionDescription,
    PartitionReassignment,
    PendingOffsets,
    ProducerState,
    QuotaEntity,
    QuotaUsage,
    ReplicaInfo,
    ScramCredentialInfo,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from bus.errors import BusError, ErrorCode, Refused, reduce_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.json_views import JsonView
from bus.model import CONSUMER_PROTOCOL_TYPE, TopicPartition
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


class Slices(Protocol):
    """The slices in which work is done that may be long, see `bus.runtime.tasks.LoopShare`."""

    async def extend(self, found: Any, items: Iterable[object], /) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """The form of a value's field that does not stand in its message as it is. `encode` gives the message's fields, by
    name; `items` makes the messages in the field `column` one after another."""

    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Any], Any]
    column: str = ""
    items: Callable[[Any], Iterable[Any]] | None = None
    is_in_message: bool = True


Form = Field | str  # a plain field is the name of the message's field in which it stands as it is


class Mapper(Generic[ValueT]):
    """The two ways between one kind of value and one kind of message. `fields`: those that are not written as they are
    in the field of the same name; `columns`: those that have another name in the message. `refused`: what the message
    has in their place if there is a refusal instead."""

    def __init__(
        self,
        value: type[ValueT],
        message: Any,
        refused: Mapping[str, Any] | None = None,
        *,
        columns: Mapping[str, str] = types.MappingProxyType({}),
        **fields: Field,
    ) -> None:
        names = [one.name for one in dataclasses.fields(value)]  # type: ignore[arg-type]  # every value is a dataclass
        given: Mapping[str, Form] = {**fields, **columns}
        assert given.keys() <= set(names), f"expected fields of {value.__name__}, found {sorted(given)}"
        forms = {name: given.get(name, name) for name in names}
        items = {name: one for name, one in forms.items() if isinstance(one, Field) and one.items is not None}
        self.value = value
        self.message = message
        self._refused = refused or {}
        self._columns = frozenset(one if isinstance(one, str) else one.column for one in forms.values())
        self._items = [(name, one.column, one.items) for name, one in items.items() if one.items is not None]
        self._encode = _compile_encode(forms)
        without_items = {name: one for name, one in forms.items() if name not in items}
        self._encode_without_items = _compile_encode(without_items) if items else self._encode
        self._decode = _compile_decode(value, message, forms)

    def encode(self, value: ValueT, **others: Any) -> Any:
        """`others`: fields that the message has besides, the partition that it is about for example."""
        return self._encode(self.message, value, others)

    async def encode_in_slices(self, add: Callable[..., Any], value: ValueT, slices: Slices, **others: Any) -> Any:
        """Encode a value with many items. `add`: of the list that gets the message."""
        message = self._encode_without_items(add, value, others)
        for name, column, items in self._items:
            await slices.extend(getattr(message, column), items(getattr(value, name)))
        return message

    def encode_answer(self, answer: ValueT | Refused, **others: Any) -> Any:
        """Encode the value, or why there is none. `others` name the item, which the value may do, too."""
        if isinstance(answer, Refused):
            others.update(self._refused, error_code=int(answer.code), error_message=answer.message)
            return self.message(**others)
        for name in self._columns & others.keys():
            del others[name]
        return self._encode(self.message, answer, others)

    def fields_of(self, value: ValueT) -> dict[str, Any]:
        """Return the fields of the message that the value has, by name."""
        found: dict[str, Any] = self._encode(dict, value, {})
        return found

    def decode(self, message: Any, **known: Any) -> ValueT:
        """`known`: fields of the value that the message does not have."""
        decoded: ValueT = self._decode(message, known)
        return decoded


# A message may have thousands of values. So each mapper is compiled, as dataclasses are, to one expression in which a
# plain field costs no call.


def _compile_encode(forms: Mapping[str, Form]) -> Callable[[Callable[..., Any], Any, Mapping[str, Any]], Any]:
    fields = {name: one for name, one in forms.items() if isinstance(one, Field) and one.is_in_message}
    written = [f"{one}=value.{name}" for name, one in forms.items() if isinstance(one, str)]
    written += [f"**encode_{name}(value.{name})" for name in fields]
    names = {f"encode_{name}": one.encode for name, one in fields.items()}
    return _compile(f"lambda message, value, others: message({', '.join(written)}, **others)", names)


def _compile_decode(value: Any, message: Any, forms: Mapping[str, Form]) -> Callable[[Any, Any], Any]:
    fields = {name: one for name, one in forms.items() if isinstance(one, Field) and one.is_in_message}
    read = [f"{name}={_read(message, one)}" for name, one in forms.items() if isinstance(one, str)]
    read += [f"{name}=decode_{name}(found)" for name in fields]
    names = {"new": value} | {f"decode_{name}": one.decode for name, one in fields.items()}
    return _compile(f"lambda found, known: new({', '.join(read)}, **known)", names)


def _compile(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """`source` has names of fields of a dataclass and of a message, and nothing that came from outside."""
    compiled: Callable[..., Any] = eval(source, names)
    return compiled


def _read(message: Any, column: str) -> str:
    field = message.DESCRIPTOR.fields_by_name[column]
    if field.is_repeated:
        return f"tuple(found.{column})"
    return f"found.{column} if found.HasField('{column}') else None" if field.has_presence else f"found.{column}"


# ---------------------------------------------------------------- fields


def not_in_message() -> Field:
    """Leave a field to those who decode, who know it otherwise."""
    return Field(lambda _: {}, lambda _: None, is_in_message=False)


def none_as(name: str, nothing: Any) -> Field:
    """Write None as a value that it never has otherwise."""

    def decode(found: Any) -> Any:
        value = getattr(found, name)
        return None if value == nothing else value

    return Field(lambda value: {name: nothing if value is None else value}, decode)


def nested(name: str, mapper: Mapper[Any]) -> Field:
    return Field(lambda value: {name: mapper.encode(value)}, lambda found: mapper.decode(getattr(found, name)))


def inlined(mapper: Mapper[Any]) -> Field:
    """Write a value's fields beside those of the value that has it."""
    return Field(mapper.fields_of, mapper.decode)


def each(name: str, mapper: Mapper[Any], order: Callable[[Any], Any] | None = None) -> Field:
    """Write a tuple of values; `order`: the key by which it is sorted."""

    def decode(found: Any) -> Any:
        values = map(mapper.decode, getattr(found, name))
        return tuple(values) if order is None else tuple(sorted(values, key=order))

    def items(values: Iterable[Any]) -> Iterable[Any]:
        return map(mapper.encode, values)

    return Field(lambda values: {name: items(values)}, decode, name, items)


def by_partition(name: str, mapper: Mapper[Any]) -> Field:
    """Write a mapping from partition to value."""

    def items(values: Mapping[TopicPartition, Any]) -> Iterable[Any]:
        return (mapper.encode(value, topic=key.topic, partition=key.partition) for key, value in values.items())

    def decode(found: Any) -> Any:
        return {TopicPartition(one.topic, one.partition): mapper.decode(one) for one in getattr(found, name)}

    return Field(lambda values: {name: items(values)}, decode, name, items)


def refusal() -> Field:
    """Write why something cannot be described, or None. Its text is escaped where it is read: it may repeat a name that
    somebody chose."""

    def encode(why: Refused | None) -> Mapping[str, Any]:
        return _NO_REFUSAL if why is None else {"error_code": int(why.code), "error_message": why.message}

    def decode(found: Any) -> Refused | None:
        return refused_with(found.error_code, one_line(found.error_message)) if found.error_code else None

    return Field(encode, decode)


_NO_REFUSAL: Mapping[str, Any] = {}


def refused_with(code: int, text: str) -> Refused:
    """Read a refusal. A code that is not known here, of a later version or of no broker, is UNKNOWN_SERVER_ERROR."""
    try:
        return Refused(ErrorCode(code), text)
    except ValueError:
        return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}: {text}")


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


class UnknownWord(BusError, ValueError):
    """A number stands for nothing that this version knows: the other side is of a later version, or sends what is
    none."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)

    __reduce__ = reduce_error


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
        """Raises `UnknownWord`."""
        if number in self._values:
            return self._values[number]
        known = ", ".join(value.name for value in self._numbers)
        unknown = self._enum.values_by_number.get(number)
        found = number if unknown is None else unknown.name
        raise UnknownWord(f"expected {self._enum.name} of {known}, found {found}")

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
    columns={"root_url": "root"},
)
REASSIGNMENT = Mapper(
    PartitionReassignment,
    pb.OngoingReassignment,
    columns={
        "replicas": "replica_ids",
        "adding_replicas": "adding_replica_ids",
        "removing_replicas": "removing_replica_ids",
    },
)

# ---------------------------------------------------------------- topics

PARTITION = Mapper(
    PartitionDescription,
    pb.PartitionMetadata,
    error=refusal(),
    columns={"replicas": "replica_ids", "isr": "isr_ids"},
)
TOPIC = Mapper(TopicDescription, pb.TopicMetadata, partitions=each("partitions", PARTITION, attrgetter("partition")))
CONFIG = Mapper(ConfigDescription, pb.ConfigEntry)
VIEW = Mapper(JsonView, pb.View)
NOTHING_LISTED = {"offset": -1, "timestamp_ms": -1, "version": -1}
LISTED_OFFSET = Mapper(ListedOffset, pb.ListOffsetsPartitionResponse, NOTHING_LISTED)
DELETED_RECORDS = Mapper(DeletedRecords, pb.DeleteRecordsPartitionResponse, {"low_watermark": -1, "version": -1})
MAINTAINED_LOG = Mapper(MaintainedLog, pb.MaintainLogResponse, {"version": -1, "log_start": -1})
REPLICA = Mapper(ReplicaInfo, pb.LogDirReplica, reclaimable_bytes=none_as("reclaimable_bytes", -1), error=refusal())
LOG_DIR = Mapper(
    LogDirDescription,
    pb.LogDir,
    total_bytes=none_as("total_bytes", -1),
    usable_bytes=none_as("usable_bytes", -1),
    replica_infos=by_partition("replicas", REPLICA),
    error=refusal(),
)

# ---------------------------------------------------------------- groups and transactions

GROUP_LISTING = Mapper(GroupListing, pb.ListedGroup)
# Whoever coordinates a transactional id is who answers.
TRANSACTION_LISTING = Mapper(TransactionListing, pb.ListedTransaction, coordinator_id=not_in_message())
PENDING_OFFSETS = Mapper(PendingOffsets, pb.PendingOffsets)
# What the bytes of a member say is known by the protocol type of its group.
MEMBER = Mapper(MemberDescription, pb.DescribedMember, topics=not_in_message(), partitions=not_in_message())
GROUP = Mapper(
    GroupDescription,
    pb.DescribedGroup,
    coordinator=nested("coordinator", BROKER_INFO),
    members=dataclasses.replace(each("members", MEMBER), decode=lambda found: _decode_members(found)),
    pending_offsets=each("pending_offsets", PENDING_OFFSETS),
)
COMMITTED_OFFSET = Mapper(CommittedOffset, pb.CommittedOffset)
TRANSACTION = Mapper(
    TransactionDescription,
    pb.DescribedTransaction,
    coordinator=nested("coordinator", BROKER_INFO),
    partitions=_SORTED_PARTITIONS,
    group_ids=Field(lambda value: {"group_ids": value}, lambda found: tuple(sorted(found.group_ids))),
)
PRODUCER = Mapper(ProducerState, pb.ActiveProducer, coordinator_partition=none_as("coordinator_partition", -1))
FENCED_PRODUCER = Mapper(FencedProducer, pb.FencedProducer, {"producer_id": -1, "producer_epoch": -1})


def _decode_members(group: pb.DescribedGroup) -> tuple[MemberDescription, ...]:
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return tuple(_decode_member(one, is_consumer=is_consumer) for one in group.members)


def _decode_member(member: pb.DescribedMember, *, is_consumer: bool) -> MemberDescription:
    subscription, assignment = pb.ConsumerSubscription(), pb.ConsumerAssignment()
    if is_consumer:
        _read_into(subscription, member.metadata)
        _read_into(assignment, member.assignment)
    partitions = sorted(decode_partitions(assignment.partitions))
    return MEMBER.decode(member, topics=tuple(subscription.topics), partitions=tuple(partitions))


def _read_into(message: Any, data: bytes) -> None:
    """Bytes that a member of another client made up are shown as nothing, not as a failure to describe the group."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        message.Clear()


# ---------------------------------------------------------------- users and access

CREDENTIAL = Mapper(ScramCredentialInfo, pb.ScramCredentialInfo)

OPERATIONS = Words(AclOperation, pb.AclOperation)
_RESOURCE_TYPES = Words(AclResourceType, pb.AclResourceType)
_PERMISSIONS = Words(AclPermission, pb.AclPermission)
# Decoding either raises `UnknownWord`.
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
