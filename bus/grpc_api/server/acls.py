"""Access control lists over gRPC: messages to values, and answers back."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from bus.authorization.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternMatch,
    PatternType,
)
from bus.broker_api.acls import AclApi
from bus.broker_api.requests import InvalidArgument
from bus.errors import Refused
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.loop_shares import LoopShares

EnumT = TypeVar("EnumT", bound=Enum)


class AclHandler:
    def __init__(self, api: AclApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def create(self, request: pb.CreateAclsRequest) -> pb.CreateAclsResponse:
        answer = await self._api.create(list(map(_binding, request.acls)))
        if isinstance(answer, Refused):
            return with_error(pb.CreateAclsResponse(), answer)
        response = pb.CreateAclsResponse()
        for why in answer:
            created = response.results.add()
            if why is not None:
                with_error(created, why)
        return response

    async def describe(self, request: pb.DescribeAclsRequest) -> pb.DescribeAclsResponse:
        answer = await self._api.describe(_filter(request.filter))
        if isinstance(answer, Refused):
            return with_error(pb.DescribeAclsResponse(), answer)
        response = pb.DescribeAclsResponse()
        await self._shares.begin().extend(response.acls, map(encode_acl, answer))
        return response

    async def delete(self, request: pb.DeleteAclsRequest) -> pb.DeleteAclsResponse:
        answer = await self._api.delete(list(map(_filter, request.filters)))
        if isinstance(answer, Refused):
            return with_error(pb.DeleteAclsResponse(), answer)
        response, share = pb.DeleteAclsResponse(), self._shares.begin()
        for found in answer:
            await share.extend(response.results.add().acls, map(encode_acl, found))
        return response


def encode_acl(acl: AclBinding) -> pb.AclBinding:
    return pb.AclBinding(
        resource_type=pb.AclResourceType.Value(f"ACL_RESOURCE_TYPE_{acl.resource_type.name}"),
        resource_name=acl.resource_name,
        pattern_type=pb.AclPatternType.Value(f"ACL_PATTERN_TYPE_{acl.pattern_type.name}"),
        principal=acl.principal,
        host=acl.host,
        operation=pb.AclOperation.Value(f"ACL_OPERATION_{acl.operation.name}"),
        permission=pb.AclPermission.Value(f"ACL_PERMISSION_{acl.permission.name}"),
    )


def _binding(message: pb.AclBinding) -> AclBinding:
    """Raises `InvalidArgument`."""
    return AclBinding(
        _one_of(AclResourceType, pb.AclResourceType, message.resource_type),
        message.resource_name,
        _one_of(PatternType, pb.AclPatternType, message.pattern_type),
        message.principal,
        message.host,
        _one_of(AclOperation, pb.AclOperation, message.operation),
        _one_of(AclPermission, pb.AclPermission, message.permission),
    )


def _filter(message: pb.AclBindingFilter) -> AclBindingFilter:
    """Raises `InvalidArgument`."""
    return AclBindingFilter(
        _one_of(AclResourceType, pb.AclResourceType, message.resource_type) if message.resource_type else None,
        message.resource_name if message.HasField("resource_name") else None,
        _one_of(PatternMatch, pb.AclPatternType, message.pattern_type),
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        _one_of(AclOperation, pb.AclOperation, message.operation) if message.operation else None,
        _one_of(AclPermission, pb.AclPermission, message.permission) if message.permission else None,
    )


def _one_of(values: type[EnumT], messages: Any, number: int) -> EnumT:
    """The value of the same name; the names in the contract have that of their type before them."""
    found = messages.DESCRIPTOR.values_by_number.get(number)
    name = "" if found is None else found.name
    for value in values:
        if name == f"{_prefix(messages)}{value.name}":
            return value
    known = ", ".join(value.name for value in values)
    raise InvalidArgument(f"expected {messages.DESCRIPTOR.name} of {known}, found {name or number}")


def _prefix(messages: Any) -> str:
    """`ACL_OPERATION_` of the values of AclOperation."""
    return str(messages.DESCRIPTOR.values_by_number[0].name.removesuffix("ANY"))
