"""Well-formed requests with hostile fields, for every call of the contract, made from its descriptors alone.

A plausible request of a call is changed in one field, or in several at random. A call or a field that is added to the
contract is covered by itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from bus.grpc_api.v1 import bus_pb2 as pb

CALLS: Sequence[MethodDescriptor] = list(pb.DESCRIPTOR.services_by_name["Bus"].methods)

_NUMBERS_32 = (-(2**31), -2, -1, 0, 1, 7, 2**31 - 1)
_NUMBERS_64 = (-(2**63), -2, -1, 0, 2**31, 2**53 + 1, 2**63 // 1000 + 1, 2**63 - 1)
_TEXTS = (
    "", " ", "\0", "a\nb", "\x1b[31m", "..", "../../etc", "a/b", "%s%n", "'; DROP TABLE t; --", "é\u202e", "[",
    "(a+)+$",
    "__consumer_offsets", "__cluster_metadata", "-1", "NaN", "1e999", "x" * 300, "x" * 100_000,
)  # fmt: skip
_BYTES = (b"", b"\0", b"\xff" * 16, b"ARROW1", b"\x00\x00\x00\x01" * 8, bytes(100_000))
_FRACTIONS = (0.0, -0.0, -1.0, 0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan)
_FLAGS = (False, True)
_ENUM_NUMBERS = (-1, 0, 1, 2, 3, 9_999)

_VALUES: dict[int, Sequence[object]] = {
    FieldDescriptor.TYPE_INT32: _NUMBERS_32,
    FieldDescriptor.TYPE_INT64: _NUMBERS_64,
    FieldDescriptor.TYPE_DOUBLE: _FRACTIONS,
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_BOOL: _FLAGS,
    FieldDescriptor.TYPE_ENUM: _ENUM_NUMBERS,
}

Change = Callable[[Any], None]
Plausible = Callable[[FieldDescriptor], object | None]
"""What a field usually has; None leaves it out."""


def plausible_request(call: MethodDescriptor, plausible: Plausible) -> Any:
    message = GetMessageClass(call.input_type)()
    _fill(message, plausible)
    return message


def single_changes(call: MethodDescriptor) -> Iterator[tuple[str, Change]]:
    """Each field of the request with each hostile value, absent, and its items doubled."""
    yield from _changes_of(call.input_type, (), call.name)


def random_request(call: MethodDescriptor, plausible: Plausible, chance: random.Random) -> Any:
    """Return a request with up to four fields changed at once."""
    message = plausible_request(call, plausible)
    changes = [change for _, change in single_changes(call)]
    for change in chance.sample(changes, k=min(len(changes), chance.randint(1, 4))):
        change(message)
    return message


def _fill(message: Any, plausible: Plausible) -> None:
    for field in message.DESCRIPTOR.fields:
        if _is_map(field):
            continue
        if field.message_type is not None:
            if plausible(field) is None and field.containing_oneof is not None:
                continue
            inner = getattr(message, field.name)
            _fill(inner.add() if field.is_repeated else inner, plausible)
            if not field.is_repeated:
                inner.SetInParent()
            continue
        value = plausible(field)
        if value is None:
            continue
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _changes_of(message: Descriptor, path: tuple[FieldDescriptor, ...], name: str) -> Iterator[tuple[str, Change]]:
    for field in message.fields:
        where = f"{name}.{field.name}"
        yield f"{where} absent", _at(path, lambda found, field=field: found.ClearField(field.name))
        if field.is_repeated and not _is_map(field):
            yield f"{where} doubled", _at(path, lambda found, field=field: _double(getattr(found, field.name)))
        if _is_map(field):
            for text in _TEXTS:
                yield (
                    f"{where}[{text[:20]!r}]",
                    _at(path, lambda found, field=field, text=text: _map(found, field, text)),
                )
        elif field.message_type is not None:
            yield from _changes_of(field.message_type, (*path, field), where)
        else:
            for value in _VALUES[field.type]:
                yield (
                    f"{where}={str(value)[:20]!r}",
                    _at(path, lambda found, field=field, value=value: _put(found, field, value)),
                )


def _at(path: tuple[FieldDescriptor, ...], change: Change) -> Change:
    def at(message: Any) -> None:
        for field in path:
            inner = getattr(message, field.name)
            if field.is_repeated and not inner:
                inner.add()
            message = inner[0] if field.is_repeated else inner
        change(message)

    return at


def _double(items: Any) -> None:
    items.extend(list(items))


def _map(message: Any, field: FieldDescriptor, text: str) -> None:
    getattr(message, field.name)[text] = text


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        del getattr(message, field.name)[:]
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)
