"""How large a request may be, or an answer of another broker, and of how many items, by the kind of call.

Guards one promise: what is about to be parsed, and then looked at item by item, is bounded before that work begins. A
request of records has `socket.request.max.bytes`; every other call has limits of its own, since a few megabytes of
names or partitions cost a broker more than a hundred of records. Who answers at another broker's address may be
somebody else, so answers have limits as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_SERVICES = tuple(pb.DESCRIPTOR.services_by_name.values())
_ITEMS_MAX_OF: Mapping[str, int] = {
    method.input_type.name: CALLS[method.name].items_max for service in _SERVICES for method in service.methods
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
    """From bytes to a request, or an answer, of one class. Never raises: gRPC would answer UNKNOWN, and log a
    traceback, or take it for no answer yet."""

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


@functools.cache  # a call that is sent on is looked up each time
def control_reader(request_class: Any) -> RequestReader[Any]:
    name = request_class.DESCRIPTOR.name
    bytes_max = CONTROL_BYTES_MAX + _ENVELOPE_BYTES_MAX * (name == "EnvelopeRequest")
    return _reader(request_class, bytes_max, _ITEMS_MAX_OF.get(name, ITEMS_MAX))


@functools.cache
def answer_reader(method: str) -> RequestReader[Any]:
    """The reader of what another broker answers to that call. It may have come in an envelope, which bounds its size
    then."""
    call = CALLS[method]
    (descriptor,) = (service.methods_by_name[method] for service in _SERVICES if method in service.methods_by_name)
    bytes_max = max(call.answer_bytes_max, CALLS["Envelope"].answer_bytes_max if call.is_forwarded else 0)
    return _reader(descriptor.output_type._concrete_class, bytes_max, call.answer_items_max)


def _reader(message_class: Any, bytes_max: int, items_max: int) -> RequestReader[Any]:
    name, plan = message_class.DESCRIPTOR.name, _repeated_fields(message_class.DESCRIPTOR)
    form = _form_of(message_class.DESCRIPTOR)

    def parse(raw: bytes) -> Any:
        if len(raw) >= _SCANNED_BYTES_MIN:
            _check_objects(raw, form, name, items_max)
        message = message_class.FromString(raw)
        _count_items((message,), plan, 0, name, items_max)
        return message

    return RequestReader(name, parse, bytes_max)


def produce_reader(bytes_max: int) -> RequestReader[ProduceCall | UnparsedCall]:
    return RequestReader(pb.ProduceRequest.DESCRIPTOR.name, begin_parse, bytes_max)


@dataclass(frozen=True, slots=True)
class _Form:
    """The fields that a message may have. `objects`: by its number, whether the items of a field are objects (messages,
    texts, bytes), and the form of a message with such fields in it. A sound one has at most `others_max` other fields.
    """

    objects: Mapping[int, tuple[bool, _Form | None]]
    others_max: int


# Fields of a later version that one message may have, and none of them an item.
_LATER_FIELDS_MAX = 4


def _form_of(message: Descriptor) -> _Form:
    objects: dict[int, tuple[bool, _Form | None]] = {}
    for field in message.fields:
        inner = None if field.message_type is None else _form_of(field.message_type)
        is_object = bool(field.is_repeated) and not field.is_packed
        if is_object or (inner is not None and inner.objects):
            objects[field.number] = is_object, inner if inner is not None and inner.objects else None
    return _Form(objects, len(message.fields) + _LATER_FIELDS_MAX)


def _check_objects(raw: bytes, form: _Form, name: str, items_max: int) -> None:
    """Count what would become an object, at every depth, before it does. Raises `TooManyItems`."""
    try:
        _count_objects(memoryview(raw), form, 0, name, items_max)
    except (IndexError, ValueError) as error:
        if isinstance(error, TooManyItems):
            raise
        # The generated code says what is wrong with it.


def _count_objects(message: memoryview, form: _Form, count: int, name: str, items_max: int) -> int:
    """Return `count` and the objects of `message`. What comes more often than it may counts too: else it would be
    looked at for longer than it takes to parse. Raises `TooManyItems`, and as `fields_of`."""
    others = 0
    for tag, _, value in fields_of(message):
        is_object, inner = form.objects.get(tag >> 3, (False, None))
        others += not is_object
        count += is_object or others > form.others_max
        if count > items_max:
            raise TooManyItems(name, items_max)
        if inner is not None:
            count = _count_objects(value, inner, count, name, items_max)
    return count


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


def _count_items(messages: Iterable[Any], plan: _Plan, count: int, name: str, items_max: int) -> int:
    """`count` and the items of `messages`, at every depth. Raises `TooManyItems`."""
    for message in messages:
        for field, is_repeated, inner in plan:
            if is_repeated:
                if items := getattr(message, field):
                    count += len(items)
                    if count > items_max:
                        raise TooManyItems(name, items_max)
                    if inner:
                        count = _count_items(items, inner, count, name, items_max)
            elif message.HasField(field):
                count = _count_items((getattr(message, field),), inner, count, name, items_max)
    return count
