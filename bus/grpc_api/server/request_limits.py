"""How large a request may be, and of how many items, by the kind of call.

Guards one promise: what is about to be parsed, and then looked at item by item, is bounded before that work begins. A
request of records has `socket.request.max.bytes`; every other call has limits of its own, since a few megabytes of
names or partitions cost a broker more than a hundred of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from bus.broker_api.calls import CALLS, ITEMS_MAX
from bus.errors import reduce_error
from bus.grpc_api.server.records.produce_decoding import ProduceCall, TooManyItems, UnparsedCall, begin_parse
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.wire_fields import fields_of

CONTROL_BYTES_MAX = 4 * 1024 * 1024
# What an envelope has beside the request in it.
_ENVELOPE_BYTES_MAX = 4096
_ITEMS_MAX_OF: Mapping[str, int] = {
    method.input_type.name: CALLS[method.name].items_max
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# Smaller requests are parsed in less time than it takes to look for the number of their fields.
_SCANNED_BYTES_MIN = 1024 * 1024

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request that could not be read, or that is beyond a limit."""

    status: grpc.StatusCode
    message: str


class UnreadableRequest(Exception):
    """Raised where a stream of requests comes to one that is `Unreadable`."""

    def __init__(self, unreadable: Unreadable) -> None:
        super().__init__(unreadable.message)
        self.status = unreadable.status

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class RequestReader(Generic[RequestT]):
    """From bytes to a request of one class. Never raises: gRPC would answer UNKNOWN, and log a traceback."""

    name: str
    parse: Callable[[bytes], RequestT]
    bytes_max: int

    def __call__(self, raw: bytes) -> RequestT | Unreadable:
        if len(raw) > self.bytes_max:
            found = f"expected a {self.name} of at most {self.bytes_max} bytes, found {len(raw)}"
            return Unreadable(grpc.StatusCode.RESOURCE_EXHAUSTED, found)
        try:
            return self.parse(raw)
        except TooManyItems as error:
            return Unreadable(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (DecodeError, ValueError):
            found = f"expected a {self.name}, found {len(raw)} bytes that are none"
            return Unreadable(grpc.StatusCode.INVALID_ARGUMENT, found)


def control_reader(request_class: Any) -> RequestReader[Any]:
    name = request_class.DESCRIPTOR.name
    items_max = _ITEMS_MAX_OF.get(name, ITEMS_MAX)
    plan = _repeated_fields(request_class.DESCRIPTOR)

    def parse(raw: bytes) -> Any:
        if len(raw) >= _SCANNED_BYTES_MIN:
            _check_field_count(raw, name, items_max)
        request = request_class.FromString(raw)
        _count_items(request, plan, 0, name, items_max)
        return request

    return RequestReader(name, parse, CONTROL_BYTES_MAX + _ENVELOPE_BYTES_MAX * (name == "EnvelopeRequest"))


def produce_reader(bytes_max: int) -> RequestReader[ProduceCall | UnparsedCall]:
    return RequestReader(pb.ProduceRequest.DESCRIPTOR.name, begin_parse, bytes_max)


def _check_field_count(raw: bytes, name: str, items_max: int) -> None:
    """Count the fields of the outermost message, where many fields make many objects. Raises `TooManyItems`."""
    try:
        for count, _ in enumerate(fields_of(memoryview(raw))):
            if count > items_max:
                raise TooManyItems(name, items_max)
    except (IndexError, ValueError) as error:
        if isinstance(error, TooManyItems):
            raise
        # The generated code says what is wrong with it.


# Each field that has items, or has messages with such fields in it.
_Plan = Sequence[tuple[str, bool, "_Plan"]]


def _repeated_fields(message: Descriptor) -> _Plan:
    plan = []
    for field in message.fields:
        inner = () if field.message_type is None else _repeated_fields(field.message_type)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.is_repeated or inner:
            plan.append((field.name, bool(field.is_repeated), () if is_map else inner))
    return tuple(plan)


def _count_items(message: Any, plan: _Plan, count: int, name: str, items_max: int) -> int:
    """`count` and the items of `message`, at every depth. Raises `TooManyItems`."""
    for field, is_repeated, inner in plan:
        if is_repeated:
            items = getattr(message, field)
            count += len(items)
            if count > items_max:
                raise TooManyItems(name, items_max)
            if inner:
                for item in items:
                    count = _count_items(item, inner, count, name, items_max)
        elif message.HasField(field):
            count = _count_items(getattr(message, field), inner, count, name, items_max)
    return count
