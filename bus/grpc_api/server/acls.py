"""Access control lists over gRPC: messages to values, and answers back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from bus.broker_api.authorization import Access, AclApi
from bus.broker_api.client_quotas import QuotaAdminApi
from bus.broker_api.cluster_admin import DescribedUser, UserApi
from bus.broker_api.requests import InvalidArgument
from bus.errors import Refused
from bus.grpc_api.server.conversions import Converted, with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import (
    ACL,
    ACL_FILTER,
    CREDENTIAL,
    QUOTA_USAGE,
    UnknownWord,
    decode_quota_filter,
    decode_quota_part,
    encode_quota_entity,
)
from bus.runtime.tasks import LoopShares
from bus.security.users import Alteration, DeleteScram, SetScram

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")


class AclHandler:
    def __init__(self, api: AclApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def create(self, access: Access, request: pb.CreateAclsRequest) -> pb.CreateAclsResponse:
        answer = await self._api.create(access, Converted(request.acls, _binding))
        if isinstance(answer, Refused):
            return with_error(pb.CreateAclsResponse(), answer)
        response = pb.CreateAclsResponse()
        for why in answer:
            created = response.results.add()
            if why is not None:
                with_error(created, why)
        return response

    async def describe(self, access: Access, request: pb.DescribeAclsRequest) -> pb.DescribeAclsResponse:
        answer = await self._api.describe(access, _filter(request.filter))
        if isinstance(answer, Refused):
            return with_error(pb.DescribeAclsResponse(), answer)
        response = pb.DescribeAclsResponse()
        await self._shares.begin().extend(response.acls, map(ACL.encode, answer))
        return response

    async def delete(self, access: Access, request: pb.DeleteAclsRequest) -> pb.DeleteAclsResponse:
        answer = await self._api.delete(access, Converted(request.filters, _filter))
        if isinstance(answer, Refused):
            return with_error(pb.DeleteAclsResponse(), answer)
        response, share = pb.DeleteAclsResponse(), self._shares.begin()
        for found in answer:
            await share.extend(response.results.add().acls, map(ACL.encode, found))
        return response


def _decoded(decode: Callable[[MessageT], ValueT], message: MessageT) -> ValueT:
    """Raises `InvalidArgument`."""
    try:
        return decode(message)
    except UnknownWord as error:
        raise InvalidArgument(error.message) from None


_binding = partial(_decoded, ACL.decode)
_filter = partial(_decoded, ACL_FILTER.decode)


class UserHandler:
    """Users over gRPC: messages to values, and answers back."""

    def __init__(self, api: UserApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def describe(
        self, access: Access, request: pb.DescribeUserScramCredentialsRequest
    ) -> pb.DescribeUserScramCredentialsResponse:
        response = pb.DescribeUserScramCredentialsResponse()
        found = await self._api.describe(access, list(request.users))
        if isinstance(found, Refused):
            return with_error(response, found)
        described = (_described(name, answer) for name, answer in found)
        await self._shares.begin().extend(response.users, described)
        return response

    async def alter(
        self, access: Access, request: pb.AlterUserScramCredentialsRequest
    ) -> pb.AlterUserScramCredentialsResponse:
        alterations: list[Alteration] = [DeleteScram(one.user, one.mechanism) for one in request.deletions]
        alterations += [
            SetScram(one.user, one.mechanism, one.iterations, one.salt, one.salted_password)
            for one in request.upsertions
        ]
        answers = await self._api.alter(access, alterations)
        response = pb.AlterUserScramCredentialsResponse()
        altered = (_altered(name, refusal) for name, refusal in answers.items())
        await self._shares.begin().extend(response.users, altered)
        return response


def _described(name: str, answer: DescribedUser | Refused) -> pb.UserScramCredentials:
    if isinstance(answer, Refused):
        return with_error(pb.UserScramCredentials(user=name), answer)
    return pb.UserScramCredentials(user=name, credentials=map(CREDENTIAL.encode, answer))


def _altered(name: str, refusal: Refused | None) -> pb.AlteredUser:
    altered = pb.AlteredUser(user=name)
    return altered if refusal is None else with_error(altered, refusal)


class QuotaHandler:
    """Quotas over gRPC: messages to values, and answers back."""

    def __init__(self, api: QuotaAdminApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def describe(
        self, access: Access, request: pb.DescribeClientQuotasRequest
    ) -> pb.DescribeClientQuotasResponse:
        wanted = decode_quota_filter(request.parts)
        found = await self._api.describe(access, wanted, is_strict=request.strict)
        response = pb.DescribeClientQuotasResponse()
        if isinstance(found, Refused):
            return with_error(response, found)
        entries = (
            pb.QuotasOfEntity(entity=encode_quota_entity(entity), quotas=quotas) for entity, quotas in found.items()
        )
        await self._shares.begin().extend(response.entries, entries)
        return response

    async def alter(self, access: Access, request: pb.AlterClientQuotasRequest) -> pb.AlterClientQuotasResponse:
        asked = [
            (
                list(map(decode_quota_part, one.entity)),
                [(change.name, None if change.remove else change.value) for change in one.changes],
            )
            for one in request.entries
        ]
        answers = await self._api.alter(access, asked, validate_only=request.validate_only)
        response = pb.AlterClientQuotasResponse()
        for one, refusal in zip(request.entries, answers, strict=True):
            altered = response.entries.add(entity=one.entity)
            if refusal is not None:
                with_error(altered, refusal)
        return response

    async def usage(self, access: Access, _: pb.DescribeQuotaUsageRequest) -> pb.DescribeQuotaUsageResponse:
        response = pb.DescribeQuotaUsageResponse()
        used = await self._api.usage(access)
        if isinstance(used, Refused):
            return with_error(response, used)
        await self._shares.begin().extend(response.entries, map(QUOTA_USAGE.encode, used))
        return response
