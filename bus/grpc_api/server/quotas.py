"""Quotas over gRPC: messages to values, and answers back."""

from __future__ import annotations

from collections.abc import Iterable

from bus.broker_api.client_quotas import QuotaAdminApi
from bus.client_quotas.entities import DEFAULT, Part, QuotaEntity, names_of
from bus.errors import Refused
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.loop_shares import LoopShares


class QuotaHandler:
    def __init__(self, api: QuotaAdminApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def describe(self, request: pb.DescribeClientQuotasRequest) -> pb.DescribeClientQuotasResponse:
        wanted = [(one.part.type, None if one.any_name else _name(one.part)) for one in request.parts]
        found = self._api.describe(wanted, is_strict=request.strict)
        response = pb.DescribeClientQuotasResponse()
        if isinstance(found, Refused):
            return with_error(response, found)
        entries = (pb.QuotasOfEntity(entity=_parts(entity), quotas=quotas) for entity, quotas in found.items())
        await self._shares.begin().extend(response.entries, entries)
        return response

    async def alter(self, request: pb.AlterClientQuotasRequest) -> pb.AlterClientQuotasResponse:
        asked = [
            (
                [(part.type, _name(part)) for part in one.entity],
                [(change.name, None if change.remove else change.value) for change in one.changes],
            )
            for one in request.entries
        ]
        answers = await self._api.alter(asked, validate_only=request.validate_only)
        response = pb.AlterClientQuotasResponse()
        for one, refusal in zip(request.entries, answers, strict=True):
            altered = response.entries.add(entity=one.entity)
            if refusal is not None:
                with_error(altered, refusal)
        return response

    async def usage(self, _: pb.DescribeQuotaUsageRequest) -> pb.DescribeQuotaUsageResponse:
        response = pb.DescribeQuotaUsageResponse()
        entries = (
            pb.QuotaUsage(
                entity=_parts(one.entity),
                quota=one.name,
                limit=one.limit,
                rate=one.rate,
                throttle_time_ms=min(one.wait_ms, 2**31 - 1),
            )
            for one in self._api.usage()
        )
        await self._shares.begin().extend(response.entries, entries)
        return response


def _name(part: pb.QuotaEntityPart) -> Part:
    return part.name if part.HasField("name") else DEFAULT


def _parts(entity: QuotaEntity) -> Iterable[pb.QuotaEntityPart]:
    return [pb.QuotaEntityPart(type=kind, name=name) for kind, name in names_of(entity).items()]
