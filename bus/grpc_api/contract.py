"""The contract of this release, and what another one knows of it.

Guards one promise: a call or a field that a broker lacks is refused by name in the client, where protobuf would leave
it out in silence. Both sides name their contract by its digest; the descriptor itself is exchanged only where the
digests differ, so there is no list of versions and fields to keep.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from bus.grpc_api.v1 import bus_pb2 as pb

# Grows by one with the first change of bus.proto after a release: tests/golden/contracts has each version.
CONTRACT_VERSION = 1
CONTRACT_DIGEST = hashlib.sha256(pb.DESCRIPTOR.serialized_pb).digest()
CALLS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Bus"].methods)
_PREFIX = f"{pb.DESCRIPTOR.package}."


@functools.cache
def software_version() -> str:
    """The release of this process's delta-bus; empty where it runs without having been installed."""
    try:
        return importlib.metadata.version("delta-bus")
    except importlib.metadata.PackageNotFoundError:
        return ""


class KnownFields:
    """The fields of each message that a contract has. Raises `ValueError` for bytes that are no FileDescriptorProto."""

    def __init__(self, contract: bytes) -> None:
        try:
            file = FileDescriptorProto.FromString(contract)
        except DecodeError as error:
            raise ValueError(f"expected a FileDescriptorProto, found {len(contract)} other bytes: {error}") from None
        self._numbers: dict[str, frozenset[int]] = {}
        self._add(_PREFIX, file.message_type)

    def _add(self, prefix: str, messages: Any) -> None:
        one: DescriptorProto
        for one in messages:
            name = prefix + one.name
            self._numbers[name] = frozenset(field.number for field in one.field)
            self._add(f"{name}.", one.nested_type)

    def find_unknown(self, message: Message) -> str | None:
        """The first field that is set in the message, at any depth, and that the contract lacks: `Message.field`."""
        known = self._numbers.get(message.DESCRIPTOR.full_name, frozenset())
        for field, value in message.ListFields():
            if field.number not in known:
                return f"{message.DESCRIPTOR.full_name.removeprefix(_PREFIX)}.{field.name}"
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in _messages_of(field, value):
                    found = self.find_unknown(inner)
                    if found is not None:
                        return found
        return None


def _messages_of(field: Any, value: Any) -> Any:
    if field.message_type.GetOptions().map_entry:
        is_message = field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_MESSAGE
        values: Mapping[Any, Any] = value
        return values.values() if is_message else ()
    return value if field.is_repeated else (value,)
