"""Alterations of quotas by one request, and the descriptions of users by their names."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from bus.broker_api.client_quotas import QuotaAdminApi
from bus.broker_api.cluster_admin import UserApi
from bus.errors import ErrorCode, Refused
from bus.security.quotas import CLIENT_ID, REQUEST_RATE, USER, AlterQuotas
from tests.support.api_bench import open_access


class Controller:
    def __init__(self) -> None:
        self.commands: list[AlterQuotas] = []

    async def alter_quotas(self, commands: list[AlterQuotas]) -> list[Any]:
        self.commands = list(commands)
        return [{} for _ in commands]


def test_an_entity_that_is_named_again_is_refused_in_its_place_and_the_others_are_altered() -> None:
    controller = Controller()
    cluster: Any = SimpleNamespace(controller=controller)
    api = QuotaAdminApi(cluster, quotas=None)  # type: ignore[arg-type]  # altering needs none
    rate = [(REQUEST_RATE, 5.0)]
    alterations = [
        ([(USER, "a")], rate),
        ([(USER, "a"), (CLIENT_ID, "c")], rate),
        ([(USER, "a")], [(REQUEST_RATE, None)]),
        ([(USER, "b")], [*rate, *rate]),
        ([(USER, "b")], rate),
    ]
    answers = asyncio.run(api.alter(open_access("AlterClientQuotas"), alterations, validate_only=False))
    codes = [answer and answer.code for answer in answers]
    assert codes == [None, None, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, None]
    assert [(one.entity.user, one.entity.client_id) for one in controller.commands] == [
        ("a", None),
        ("a", "c"),
        ("b", None),
    ]


def test_a_user_that_is_named_twice_is_refused_once() -> None:
    async def describe() -> Any:
        return SimpleNamespace(by_name={"a": {}, "b": {}})

    users: Any = SimpleNamespace(describe=describe)
    found = asyncio.run(UserApi(users).describe(open_access("DescribeUserScramCredentials"), ["a", "b", "a", "c"]))
    assert not isinstance(found, Refused)
    codes = {name: answer.code if isinstance(answer, Refused) else None for name, answer in found}
    assert codes == {"a": ErrorCode.DUPLICATE_RESOURCE, "b": None, "c": ErrorCode.RESOURCE_NOT_FOUND}
