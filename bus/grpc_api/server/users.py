"""Users over gRPC: messages to values, and answers back."""

from __future__ import annotations

from bus.broker_api.cluster_admin import DescribedUser, UserApi
from bus.errors import Refused
from bus.grpc_api.server.conversions import with_error
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.loop_shares import LoopShares
from bus.users.users import Alteration, DeleteScram, SetScram


class UserHandler:
    def __init__(self, api: UserApi, shares: LoopShares) -> None:
        self._api = api
        self._shares = shares

    async def describe(
        self, request: pb.DescribeUserScramCredentialsRequest
    ) -> pb.DescribeUserScramCredentialsResponse:
        response = pb.DescribeUserScramCredentialsResponse()
        found = await self._api.describe(list(request.users))
        described = (_described(name, answer) for name, answer in found)
        await self._shares.begin().extend(response.users, described)
        return response

    async def alter(self, request: pb.AlterUserScramCredentialsRequest) -> pb.AlterUserScramCredentialsResponse:
        alterations: list[Alteration] = [DeleteScram(one.user, one.mechanism) for one in request.deletions]
        alterations += [
            SetScram(one.user, one.mechanism, one.iterations, one.salt, one.salted_password)
            for one in request.upsertions
        ]
        answers = await self._api.alter(alterations) if alterations else {}
        response = pb.AlterUserScramCredentialsResponse()
        altered = (_altered(name, refusal) for name, refusal in answers.items())
        await self._shares.begin().extend(response.users, altered)
        return response


def _described(name: str, answer: DescribedUser | Refused) -> pb.UserScramCredentials:
    if isinstance(answer, Refused):
        return with_error(pb.UserScramCredentials(user=name), answer)
    infos = [pb.ScramCredentialInfo(mechanism=key, iterations=value) for key, value in answer.iterations.items()]
    return pb.UserScramCredentials(user=name, credentials=infos)


def _altered(name: str, refusal: Refused | None) -> pb.AlteredUser:
    altered = pb.AlteredUser(user=name)
    return altered if refusal is None else with_error(altered, refusal)
