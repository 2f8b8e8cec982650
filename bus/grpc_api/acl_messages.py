"""Access control lists as messages, for those who answer calls and those who make them.

Guards one promise: a value of an enum goes by its name, so that each one of the contract means the same on both sides.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.security.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternMatch,
    PatternType,
)

EnumT = TypeVar("EnumT", bound=Enum)
_ANY = 0  # in filters: all values


class _Words(Generic[EnumT]):
    """Values by the number that has the same name in the contract; there its type's name stands before it."""

    def __init__(self, values: type[EnumT], numbers: Any) -> None:
        self._enum = numbers.DESCRIPTOR
        prefix = self._enum.values_by_number[_ANY].name.removesuffix("ANY")
        self._values = {numbers.Value(f"{prefix}{value.name}"): value for value in values}
        self._numbers = {value: number for number, value in self._values.items()}

    def number(self, value: EnumT | None) -> Any:
        return _ANY if value is None else self._numbers[value]

    def value(self, number: int) -> EnumT:
        """Raises `ValueError`."""
        if number in self._values:
            return self._values[number]
        known = ", ".join(value.name for value in self._numbers)
        unknown = self._enum.values_by_number.get(number)
        found = number if unknown is None else unknown.name
        raise ValueError(f"expected {self._enum.name} of {known}, found {found}")

    def value_if_any(self, number: int) -> EnumT | None:
        """None: all of them. Raises `ValueError`."""
        return None if number == _ANY else self.value(number)


_RESOURCE_TYPES = _Words(AclResourceType, pb.AclResourceType)
_PATTERN_TYPES = _Words(PatternType, pb.AclPatternType)
_PATTERN_MATCHES = _Words(PatternMatch, pb.AclPatternType)
_OPERATIONS = _Words(AclOperation, pb.AclOperation)
_PERMISSIONS = _Words(AclPermission, pb.AclPermission)


def encode_operation(operation: AclOperation) -> Any:
    return _OPERATIONS.number(operation)


def encode_acl(acl: AclBinding) -> pb.AclBinding:
    return pb.AclBinding(
        resource_type=_RESOURCE_TYPES.number(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=_PATTERN_TYPES.number(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=_OPERATIONS.number(acl.operation),
        permission=_PERMISSIONS.number(acl.permission),
    )


def decode_acl(message: pb.AclBinding) -> AclBinding:
    """Raises `ValueError`."""
    return AclBinding(
        _RESOURCE_TYPES.value(message.resource_type),
        message.resource_name,
        _PATTERN_TYPES.value(message.pattern_type),
        message.principal,
        message.host,
        _OPERATIONS.value(message.operation),
        _PERMISSIONS.value(message.permission),
    )


def encode_acl_filter(wanted: AclBindingFilter) -> pb.AclBindingFilter:
    return pb.AclBindingFilter(
        resource_type=_RESOURCE_TYPES.number(wanted.resource_type),
        resource_name=wanted.resource_name,
        pattern_type=_PATTERN_MATCHES.number(wanted.pattern_type),
        principal=wanted.principal,
        host=wanted.host,
        operation=_OPERATIONS.number(wanted.operation),
        permission=_PERMISSIONS.number(wanted.permission),
    )


def decode_acl_filter(message: pb.AclBindingFilter) -> AclBindingFilter:
    """Raises `ValueError`."""
    return AclBindingFilter(
        _RESOURCE_TYPES.value_if_any(message.resource_type),
        message.resource_name if message.HasField("resource_name") else None,
        _PATTERN_MATCHES.value(message.pattern_type),
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        _OPERATIONS.value_if_any(message.operation),
        _PERMISSIONS.value_if_any(message.permission),
    )
