"""Proofs of leadership, and rights, where a test has no cluster."""

from __future__ import annotations

from collections.abc import Sequence

from bus.errors import ErrorCode, Refused
from tests.support.api_bench import ALICE

UNPROVED = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker cannot tell whether it still leads its partitions")
DENIED = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "may not use it")


class DeniedTopics:
    """Access to all topics but these."""

    allows_all = False
    caller = ALICE

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    async def refusals(self, need: object, names: Sequence[str]) -> dict[str, Refused]:
        return {name: DENIED for name in names if name in self._topics}


async def proved(*, by_new_look: bool = False) -> Refused | None:
    return None


async def unproved(*, by_new_look: bool = False) -> Refused | None:
    return UNPROVED
