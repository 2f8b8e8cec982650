"""The contract: what an earlier or a later one lacks is found by name, and nothing that clients know ever goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from bus.grpc_api.contract import CALLS, CONTRACT_VERSION, KnownFields
from bus.grpc_api.v1 import bus_pb2 as pb

CONTRACTS = Path(__file__).parents[2] / "golden" / "contracts"


def frozen(version: int) -> FileDescriptorProto:
    return FileDescriptorProto.FromString((CONTRACTS / f"{version}.binpb").read_bytes())


def own() -> FileDescriptorProto:
    return FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)


def test_the_contract_of_this_version_is_kept() -> None:
    kept = (CONTRACTS / f"{CONTRACT_VERSION}.binpb").read_bytes()
    assert kept == pb.DESCRIPTOR.serialized_pb, (
        "bus.proto has changed: raise CONTRACT_VERSION if that version was released, and run tools/freeze_contract.py"
    )


@pytest.mark.parametrize("version", range(1, CONTRACT_VERSION + 1))
def test_nothing_of_an_earlier_contract_has_gone_or_changed(version: int) -> None:
    """Field numbers are never reused, and a call never takes or answers another message."""
    earlier, now = frozen(version), own()
    fields = dict(fields_of(now))
    assert {name: fields.get(name) for name, _ in fields_of(earlier)} == dict(fields_of(earlier))
    methods = dict(methods_of(now))
    assert {name: methods.get(name) for name, _ in methods_of(earlier)} == dict(methods_of(earlier))


def fields_of(file: Any) -> Iterator[tuple[tuple[str, int], tuple[Any, ...]]]:
    def of(prefix: str, messages: Any) -> Iterator[tuple[tuple[str, int], tuple[Any, ...]]]:
        for message in messages:
            for field in message.field:
                yield (prefix + message.name, field.number), (field.name, field.type, field.label, field.type_name)
            yield from of(f"{prefix}{message.name}.", message.nested_type)

    return of("", file.message_type)


def methods_of(file: Any) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    for service in file.service:
        for one in service.method:
            yield (
                (service.name, one.name),
                (one.input_type, one.output_type, one.client_streaming, one.server_streaming),
            )


def without_field(message: str, field: str) -> bytes:
    """The contract as if this field of it had not been added yet."""
    file = own()
    [found] = [one for one in file.message_type if one.name == message]
    [number] = [position for position, one in enumerate(found.field) if one.name == field]
    del found.field[number]
    return file.SerializeToString()


def test_a_field_that_a_contract_lacks_is_found_where_it_is_set_at_any_depth() -> None:
    known = KnownFields(without_field("NewTopic", "configs"))
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="a"), pb.NewTopic(name="b")])
    assert known.find_unknown(request) is None
    request.topics[1].configs["retention.ms"] = "1"
    assert known.find_unknown(request) == "NewTopic.configs"
    assert KnownFields(pb.DESCRIPTOR.serialized_pb).find_unknown(request) is None


def test_a_message_that_a_contract_lacks_is_found() -> None:
    file = own()
    [position] = [number for number, one in enumerate(file.message_type) if one.name == "ApiVersionsRequest"]
    del file.message_type[position]
    request = pb.ApiVersionsRequest(client_software_name="test")
    assert KnownFields(file.SerializeToString()).find_unknown(request) == "ApiVersionsRequest.client_software_name"


def test_what_is_no_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a FileDescriptorProto, found 3 other bytes"):
        KnownFields(b"\xff\xff\xff")


def test_calls_are_those_of_clients() -> None:
    assert "Produce" in CALLS
    assert "BrokerHeartbeat" not in CALLS
