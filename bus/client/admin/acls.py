"""The administrator's calls about access control lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bus.authorization.acls import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import error_of
from bus.client.connection.portions import CHANGES_MAX, portions
from bus.grpc_api.v1 import bus_pb2 as pb

_FILTERS_MAX = 100  # of one request


class AclAdmin:
    """`on_controller` and `ask` call a broker, once or until it answers; both raise `BusError`."""

    def __init__(self, on_controller: Callable[[str, Any], Any], ask: Callable[[str, Any], Any]) -> None:
        self._on_controller = on_controller
        self._ask = ask

    def create(self, acls: Sequence[AclBinding]) -> None:
        results: list[tuple[str, int, str]] = []
        for portion in portions(acls, CHANGES_MAX):
            request = pb.CreateAclsRequest(acls=map(_encode, portion))
            answers = _checked(self._on_controller("CreateAcls", request)).results
            results += [
                (str(acl), one.error_code, one.error_message) for acl, one in zip(portion, answers, strict=True)
            ]
        raise_failures(results)

    def describe(self, wanted: AclBindingFilter) -> list[AclBinding]:
        request = pb.DescribeAclsRequest(filter=_encode_filter(wanted))
        return list(map(_decode, _checked(self._ask("DescribeAcls", request)).acls))

    def delete(self, filters: Sequence[AclBindingFilter]) -> dict[AclBindingFilter, list[AclBinding]]:
        gone: dict[AclBindingFilter, list[AclBinding]] = {}
        for portion in portions(filters, _FILTERS_MAX):
            request = pb.DeleteAclsRequest(filters=map(_encode_filter, portion))
            answers = _checked(self._on_controller("DeleteAcls", request)).results
            gone.update({one: list(map(_decode, found.acls)) for one, found in zip(portion, answers, strict=True)})
        return gone


def _checked(response: Any) -> Any:
    if response.error_code:
        raise error_of(response.error_code, response.error_message)
    return response


def _encode(acl: AclBinding) -> pb.AclBinding:
    return pb.AclBinding(
        resource_type=pb.AclResourceType.Value(f"ACL_RESOURCE_TYPE_{acl.resource_type.name}"),
        resource_name=acl.resource_name,
        pattern_type=pb.AclPatternType.Value(f"ACL_PATTERN_TYPE_{acl.pattern_type.name}"),
        principal=acl.principal,
        host=acl.host,
        operation=pb.AclOperation.Value(f"ACL_OPERATION_{acl.operation.name}"),
        permission=pb.AclPermission.Value(f"ACL_PERMISSION_{acl.permission.name}"),
    )


def _encode_filter(wanted: AclBindingFilter) -> pb.AclBindingFilter:
    def name(value: Any) -> str:
        return "ANY" if value is None else str(value.name)

    return pb.AclBindingFilter(
        resource_type=pb.AclResourceType.Value(f"ACL_RESOURCE_TYPE_{name(wanted.resource_type)}"),
        resource_name=wanted.resource_name,
        pattern_type=pb.AclPatternType.Value(f"ACL_PATTERN_TYPE_{wanted.pattern_type.name}"),
        principal=wanted.principal,
        host=wanted.host,
        operation=pb.AclOperation.Value(f"ACL_OPERATION_{name(wanted.operation)}"),
        permission=pb.AclPermission.Value(f"ACL_PERMISSION_{name(wanted.permission)}"),
    )


def _decode(message: pb.AclBinding) -> AclBinding:
    return AclBinding(
        AclResourceType[pb.AclResourceType.Name(message.resource_type).removeprefix("ACL_RESOURCE_TYPE_")],
        message.resource_name,
        PatternType[pb.AclPatternType.Name(message.pattern_type).removeprefix("ACL_PATTERN_TYPE_")],
        message.principal,
        message.host,
        AclOperation[pb.AclOperation.Name(message.operation).removeprefix("ACL_OPERATION_")],
        AclPermission[pb.AclPermission.Name(message.permission).removeprefix("ACL_PERMISSION_")],
    )
