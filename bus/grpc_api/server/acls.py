"""Access control lists over gRPC: messages to values, and answers back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from bus.broker_api.authorization import AclApi
from bus.broker_api.requests import InvalidArgument
from bus.errors import Refused
from bus.grpc_api.acl_messages import decode_acl, decode_acl_filter, encode_acl
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.loop_shares import LoopShares

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")


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


def _decoded(decode: Callable[[MessageT], ValueT], message: MessageT) -> ValueT:
    """Raises `InvalidArgument`."""
    try:
        return decode(message)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


_binding = partial(_decoded, decode_acl)
_filter = partial(_decoded, decode_acl_filter)
