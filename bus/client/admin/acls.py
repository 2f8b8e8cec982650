"""The administrator's calls about access control lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bus.authorization.acls import AclBinding, AclBindingFilter
from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import error_of
from bus.client.connection.portions import CHANGES_MAX, portions
from bus.grpc_api.acl_messages import decode_acl, encode_acl, encode_acl_filter
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
            request = pb.CreateAclsRequest(acls=map(encode_acl, portion))
            answers = _checked(self._on_controller("CreateAcls", request)).results
            results += [
                (str(acl), one.error_code, one.error_message) for acl, one in zip(portion, answers, strict=True)
            ]
        raise_failures(results)

    def describe(self, wanted: AclBindingFilter) -> list[AclBinding]:
        request = pb.DescribeAclsRequest(filter=encode_acl_filter(wanted))
        return list(map(decode_acl, _checked(self._ask("DescribeAcls", request)).acls))

    def delete(self, filters: Sequence[AclBindingFilter]) -> dict[AclBindingFilter, list[AclBinding]]:
        gone: dict[AclBindingFilter, list[AclBinding]] = {}
        for portion in portions(filters, _FILTERS_MAX):
            request = pb.DeleteAclsRequest(filters=map(encode_acl_filter, portion))
            answers = _checked(self._on_controller("DeleteAcls", request)).results
            gone.update({one: list(map(decode_acl, found.acls)) for one, found in zip(portion, answers, strict=True)})
        return gone


def _checked(response: Any) -> Any:
    if response.error_code:
        raise error_of(response.error_code, response.error_message)
    return response
