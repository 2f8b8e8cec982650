"""Every value that brokers and clients exchange through a mapper comes out of its message as it went in."""

from __future__ import annotations

import asyncio
import collections.abc
import dataclasses
import enum
import types
import typing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.cluster_metadata.broker_decisions import RegisterBroker
from bus.descriptions import (
    DEFAULT_NAME,
    BrokerDescription,
    GroupDescription,
    LogDirDescription,
    MemberDescription,
    PartitionDescription,
    ProducerState,
    QuotaEntity,
    QuotaUsage,
    ReplicaInfo,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from bus.errors import ErrorCode, Refused
from bus.grpc_api import value_messages
from bus.grpc_api.server import peer_messages
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import Mapper, decode_partitions, encode_partitions
from bus.model import TopicPartition
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer
from bus.runtime.replicas.followed_tables import CommittedVersion, FollowerReport, VersionsAnswer
from bus.runtime.tasks import LoopShares

MAPPERS = {
    name: one
    for module in (value_messages, peer_messages)
    for name, one in vars(module).items()
    if isinstance(one, Mapper)
}
# What a message may have besides: what it is about, or why there is no value.
OF_THE_ITEM = {
    "error_code",
    "error_message",
    "topic",
    "partition",
    "transactional_id",
    "path",
    "cluster_id",
    "authorized_operations",
}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)  # it is escaped where it is read
INTEGERS = st.integers(-(2**31), 2**31 - 1)
COUNTS = st.integers(0, 2**63 - 1)
PARTITIONS = st.builds(TopicPartition, TEXTS, INTEGERS)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """All values of a field of this type, as far as both sides accept them."""
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Union | types.UnionType:
            return st.one_of(*map(values_of, arguments))
        case collections.abc.Sequence:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        case origin if origin is tuple and arguments[-1] is ...:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values_of, arguments))
    if hint in (bool, type(None)) or issubclass(hint, enum.Enum):
        return st.from_type(hint)
    if dataclasses.is_dataclass(hint):
        return described(hint)
    return {
        str: TEXTS,
        int: INTEGERS,
        bytes: st.binary(max_size=8),
        float: st.floats(allow_nan=False),
        TopicPartition: PARTITIONS,
    }[hint]


LAGGING = st.dictionaries(PARTITIONS, st.lists(INTEGERS, max_size=3).map(tuple), max_size=3)
# Ordered by topic, whose id is its own.
VERSIONS = st.dictionaries(PARTITIONS, INTEGERS, max_size=5).map(
    lambda found: [CommittedVersion(name, f"id of {name.topic}", found[name]) for name in sorted(found)]
)
ENTITY_NAMES = st.none() | TEXTS | st.just("<default>") | st.just(DEFAULT_NAME)
# What a field never has, so that None or an order can be told from it.
RESTRICTED: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    BrokerDescription: {"rack": st.none() | TEXTS.filter(bool)},
    ReplicaInfo: {"reclaimable_bytes": st.none() | COUNTS},
    LogDirDescription: {
        "total_bytes": st.none() | COUNTS,
        "usable_bytes": st.none() | COUNTS,
        "replica_infos": st.dictionaries(PARTITIONS, st.deferred(lambda: described(ReplicaInfo)), max_size=3),
    },
    Refused: {"code": st.sampled_from([one for one in ErrorCode if one is not ErrorCode.NONE]), "message": PRINTABLE},
    TopicDescription: {
        "partitions": st.lists(st.deferred(lambda: described(PartitionDescription)), max_size=3).map(
            lambda found: tuple(sorted(found, key=lambda one: one.partition))
        )
    },
    ProducerState: {"coordinator_partition": st.none() | st.integers(0, 2**31 - 1)},
    QuotaEntity: {"user": ENTITY_NAMES, "client_id": ENTITY_NAMES},
    RegisterBroker: {"rack": st.none() | TEXTS.filter(bool)},
    BrokerHeartbeat: {"lagging": LAGGING},
    HeartbeatAnswer: {"lagging": LAGGING},
    FollowerReport: {"applied": VERSIONS},
    VersionsAnswer: {"versions": VERSIONS},
    # Their topics and partitions are in bytes of their own.
    GroupDescription: {
        "members": st.deferred(
            lambda: st.lists(described(MemberDescription).map(lambda one: replace(one, topics=(), partitions=())))
        ).map(tuple),
        "protocol_type": st.just("connect"),
    },
    TransactionDescription: {
        "partitions": st.sets(PARTITIONS, max_size=5).map(lambda found: tuple(sorted(found))),
        "group_ids": st.lists(TEXTS, max_size=3).map(lambda found: tuple(sorted(found))),
    },
}


def described(kind: Any) -> st.SearchStrategy[Any]:
    restricted = RESTRICTED.get(kind, {})
    hints = typing.get_type_hints(kind).items()
    return st.builds(
        kind, **{name: restricted[name] if name in restricted else values_of(hint) for name, hint in hints}
    )


def known_of(value: object) -> dict[str, Any]:
    """Return the fields that the message does not have."""
    match value:
        case TransactionListing():
            return {"coordinator_id": value.coordinator_id}
        case QuotaUsage():
            return {"broker_id": value.broker_id}
        case MemberDescription():
            return {"topics": value.topics, "partitions": value.partitions}
        case _:
            return {}


@pytest.mark.parametrize("name", MAPPERS)
@given(data=st.data())
def test_value_is_decoded_as_it_was_encoded(name: str, data: st.DataObject) -> None:
    mapper = MAPPERS[name]
    value = data.draw(described(mapper.value))
    sent = mapper.message.FromString(mapper.encode(value).SerializeToString())
    assert mapper.decode(sent, **known_of(value)) == value


@pytest.mark.parametrize("name", MAPPERS)
@given(data=st.data())
def test_every_field_of_a_message_comes_from_the_value(name: str, data: st.DataObject) -> None:
    """Those that name the item, or say why there is no value, are the handler's to write."""
    mapper = MAPPERS[name]
    value = data.draw(described(mapper.value))
    written = mapper.fields_of(value).keys()
    assert set(mapper.message.DESCRIPTOR.fields_by_name) - OF_THE_ITEM <= written


def test_member_of_a_consumer_group_is_described_by_what_its_bytes_say_and_other_bytes_say_nothing() -> None:
    subscription = pb.ConsumerSubscription(topics=["t"]).SerializeToString()
    given = pb.ConsumerAssignment(partitions=[pb.TopicPartitions(topic="t", partitions=[1, 0])]).SerializeToString()
    members = [pb.DescribedMember(metadata=subscription, assignment=given), pb.DescribedMember(metadata=b"\xff")]

    def said(protocol_type: str) -> list[Any]:
        group = value_messages.GROUP.decode(pb.DescribedGroup(protocol_type=protocol_type, members=members))
        return [(one.topics, one.partitions) for one in group.members]

    assert said("consumer") == [(("t",), (TopicPartition("t", 0), TopicPartition("t", 1))), ((), ())]
    assert said("connect") == [((), ())] * 2


def test_value_with_items_is_encoded_in_slices_as_in_one_go() -> None:
    partitions = tuple(PartitionDescription(number, 1, number, None, (1, 2), (1,)) for number in range(3))
    topic, response = TopicDescription("t", "id", False, partitions), pb.MetadataResponse()
    share = LoopShares().begin()
    asyncio.run(value_messages.TOPIC.encode_in_slices(response.topics.add, topic, share))
    assert list(response.topics) == [value_messages.TOPIC.encode(topic)]


def test_text_of_a_refusal_is_escaped_where_it_is_read_and_a_code_of_a_later_version_is_kept_in_it() -> None:
    message = pb.PartitionMetadata(error_code=3, error_message="t\x1b[2J is gone")
    assert value_messages.PARTITION.decode(message).error == Refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, r"t\x1b[2J is gone"
    )
    message = pb.PartitionMetadata(error_code=30_000, error_message="new")
    assert value_messages.PARTITION.decode(message).error == Refused(
        ErrorCode.UNKNOWN_SERVER_ERROR, "error code 30000: new"
    )


def test_refusal_stands_in_the_place_of_the_value() -> None:
    refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-3 has moved")
    assert value_messages.LISTED_OFFSET.encode_answer(
        refused, topic="t", partition=3
    ) == pb.ListOffsetsPartitionResponse(
        topic="t", partition=3, error_code=6, error_message="t-3 has moved", offset=-1, timestamp_ms=-1, version=-1
    )


def test_field_that_a_message_lacks_is_found_when_the_mapper_is_made() -> None:
    with pytest.raises(KeyError, match="broker_id"):
        Mapper(BrokerDescription, value_messages.VIEW.message)


@given(st.sets(PARTITIONS, max_size=8))
def test_partitions_are_decoded_in_order(partitions: set[TopicPartition]) -> None:
    assert decode_partitions(encode_partitions(partitions)) == tuple(sorted(partitions))
