"""A request is bounded before it is parsed and before its items are looked at, whatever the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from bus.broker_api.calls import CALLS
from bus.grpc_api.server import request_limits
from bus.grpc_api.server.records.produce_decoding import (
    PLAIN_ITEMS_MAX,
    ProduceCall,
    TooManyItems,
    UnparsedCall,
    begin_parse,
    parse_call,
)
from bus.grpc_api.server.request_limits import (
    CONTROL_BYTES_MAX,
    ITEMS_MAX,
    Unreadable,
    answer_reader,
    control_reader,
    produce_reader,
)
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import fields_of

REQUESTS = [method.input_type._concrete_class for method in pb.DESCRIPTOR.services_by_name["Bus"].methods]


def test_calls_with_the_same_request_have_the_same_limit() -> None:
    limits: dict[str, set[int]] = {}
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            limits.setdefault(method.input_type.name, set()).add(CALLS[method.name].items_max)
    assert all(len(found) == 1 for found in limits.values()), limits


@pytest.mark.parametrize("request_class", sorted(set(REQUESTS), key=str))
def test_bytes_that_are_no_message_are_named_and_never_raised(request_class: Any) -> None:
    read = control_reader(request_class) if request_class is not pb.ProduceRequest else produce_reader(1000)
    found = read(b"\xff\xff\xff no message")
    assert isinstance(found, Unreadable)
    assert found.status is grpc.StatusCode.INVALID_ARGUMENT
    assert found.message == f"expected a {request_class.DESCRIPTOR.name}, found 14 bytes that are none"


def test_request_beyond_its_size_is_not_parsed() -> None:
    found = control_reader(pb.MetadataRequest)(bytes(CONTROL_BYTES_MAX + 1))
    assert isinstance(found, Unreadable)
    assert found.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(CONTROL_BYTES_MAX) in found.message


@pytest.mark.parametrize(
    "request_",
    [
        pb.FetchRequest(partitions=[pb.FetchPartition()] * (ITEMS_MAX + 1)),
        pb.MetadataRequest(topics=[""] * (ITEMS_MAX + 1)),
        pb.MetadataRequest(topics=["t" * 99] * (ITEMS_MAX + 1)),
        pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(topics=[pb.TopicPartitions(partitions=[0] * ITEMS_MAX)])]),
        pb.GroupSessionRequest(
            offset_commit=pb.OffsetCommitRequest(partitions=[pb.OffsetCommitPartition()] * (ITEMS_MAX + 1))
        ),
        pb.CreateTopicsRequest(topics=[pb.NewTopic(configs={str(number): "" for number in range(5_000)})]),
        pb.DescribeConfigsRequest(resources=[pb.ConfigResource()] * 1_001),
    ],
    ids=lambda request: type(request).__name__,
)
def test_too_many_items_at_whatever_depth_are_refused_by_name(request_: Any) -> None:
    found = control_reader(type(request_))(request_.SerializeToString())
    assert isinstance(found, Unreadable)
    assert found.status is grpc.StatusCode.INVALID_ARGUMENT
    assert "items, found more" in found.message


class ParsedNoMore:
    """Stands for the generated code: what has too many items does not come to it."""

    DESCRIPTOR: Any = None

    @classmethod
    def FromString(cls, raw: bytes) -> None:
        pytest.fail(f"{len(raw)} bytes were parsed")


MANY = [""] * 1_000_000


@pytest.mark.parametrize(
    "message",
    [
        pb.CommittedVersionsResponse(topics=[pb.CommittedVersionsOfTopic()] * 1_000_000),
        pb.FindNeededResponse(traces=pb.Traces(transactional_ids=MANY)),
        pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(group_id="g" * 99)] * ITEMS_MAX + [pb.OffsetFetchGroup()]),
        pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(topics=[pb.TopicPartitions()] * 1_000_000)]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_would_become_too_many_objects_is_not_parsed(message: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(ParsedNoMore):
        DESCRIPTOR = message.DESCRIPTOR

    found = control_reader(Parsed)(message.SerializeToString())
    assert isinstance(found, Unreadable)
    assert "items, found more" in found.message


@pytest.mark.parametrize(
    ("request_class", "field", "before"),
    [
        (pb.JoinGroupRequest, b"\x18\x01", b""),  # session_timeout_ms
        (pb.OffsetFetchRequest, b"\x78\x01", b""),  # of a later version
        (
            pb.OffsetFetchRequest,
            b"\x10\x01",
            b"\x0a\x80\x89\x7a",
        ),  # all_partitions of one group, two million bytes long
    ],
)
def test_field_that_comes_again_and_again_is_not_looked_at_for_longer_than_items_are(
    request_class: Any, field: bytes, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def counted(message: memoryview) -> Iterator[Any]:
        nonlocal seen
        for found in fields_of(message):
            seen += 1
            yield found

    monkeypatch.setattr(request_limits, "fields_of", counted)
    found = control_reader(request_class)(before + field * 1_000_000)
    assert isinstance(found, Unreadable)
    assert "items, found more" in found.message
    assert seen <= ITEMS_MAX + 100


def test_fields_of_a_later_version_are_no_items() -> None:
    group = pb.OffsetFetchGroup(group_id="g" * 99).SerializeToString() + b"\x78\x01\x80\x02\x01"
    raw = b"".join([b"\x0a", bytes((len(group),)), group]) * ITEMS_MAX
    found = control_reader(pb.OffsetFetchRequest)(raw)
    assert len(found.groups) == ITEMS_MAX


@pytest.mark.parametrize("method", [method.name for method in pb.DESCRIPTOR.services_by_name["Cluster"].methods])
def test_answer_of_another_broker_is_bounded_and_what_is_none_is_named(method: str) -> None:
    read = answer_reader(method)
    found = [read(bytes(read.bytes_max + 1)), read(b"\xff\xff\xff no message")]
    assert all(isinstance(each, Unreadable) for each in found)
    assert f"at most {read.bytes_max} bytes" in found[0].message
    assert read.name in found[1].message
    assert read.bytes_max <= CONTROL_BYTES_MAX or method == "Envelope"


def test_answer_that_says_little_is_small() -> None:
    """So is each that comes before the other side is known to be a broker of the cluster."""
    small = {name for name, call in CALLS.items() if call.answer_bytes_max == 64 * 1024}
    assert small >= {"IdentifyBroker", "SaslAuthenticate", "RegisterBroker", "RaiseLeaderEpoch", "AppendAudit"}


def test_sound_request_is_what_the_generated_code_makes_of_it() -> None:
    request = pb.OffsetFetchRequest(
        groups=[pb.OffsetFetchGroup(group_id="g", topics=[pb.TopicPartitions(topic="t", partitions=[0, 1])])]
    )
    assert control_reader(pb.OffsetFetchRequest)(request.SerializeToString()) == request


def produce_bytes(**data: Any) -> bytes:
    return pb.ProduceRequest(partitions=[pb.PartitionProduceData(**data)]).SerializeToString()


def test_large_payload_is_parsed_at_once_and_many_small_things_are_left_to_a_thread() -> None:
    assert isinstance(begin_parse(produce_bytes(arrow=bytes(10_000_000))), ProduceCall)
    plain = produce_bytes(records=pb.RecordList(records=[pb.Record(value=b"v" * 20)] * 2000))
    partitions = pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="topic" * 4)] * 2000).SerializeToString()
    for raw in (plain, partitions):
        found = begin_parse(raw)
        assert isinstance(found, UnparsedCall)
        assert parse_call(found.raw).message == pb.ProduceRequest.FromString(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x22\x00" * (ITEMS_MAX + 1),
        produce_bytes(records=pb.RecordList.FromString(b"\x0a\x00" * (PLAIN_ITEMS_MAX + 1))),
        produce_bytes(
            records=pb.RecordList(
                records=[pb.Record.FromString(b"\x1a\x00" * 40_000)] * (PLAIN_ITEMS_MAX // 40_000 + 1)
            )
        ),
    ],
    ids=["partitions", "records", "headers"],
)
def test_produce_request_of_too_many_items_is_refused_before_it_is_parsed(raw: bytes) -> None:
    with pytest.raises(TooManyItems, match=r"expected a ProduceRequest of at most [0-9]+ items, found more"):
        parse_call(raw)
