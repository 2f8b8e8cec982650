"""Proofs of leadership, where a test has no cluster."""

from __future__ import annotations

from bus.errors import ErrorCode, Refused

UNPROVED = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker cannot tell whether it still leads its partitions")


async def proved() -> Refused | None:
    return None


async def unproved() -> Refused | None:
    return UNPROVED
