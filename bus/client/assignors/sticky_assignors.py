"""The sticky assignors: an assignment that lives on from one rebalance of the group to the next.

Guard what `sticky_assignment` promises. Under the eager protocol members give up everything before they join again, so
each tells in its user data what it had; under the cooperative one they go on with what they keep.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from bus.client.assignors.assignor import NO_GENERATION, Assignment, MemberSubscription, RebalanceProtocol
from bus.client.assignors.sticky_assignment import Claim, assign_sticky, strongest_claims
from bus.model import TopicPartition

logger = logging.getLogger(__name__)


class StickyAssignor:
    """Kafka's StickyAssignor."""

    name = "sticky"
    protocols = (RebalanceProtocol.EAGER,)

    def __init__(self) -> None:
        self._claim = Claim()

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return encode_claim(self._claim)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        claims = {member_id: _claim_of(member_id, member.user_data) for member_id, member in members.items()}
        return assign_sticky(partitions, members, claims)

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        self._claim = Claim(tuple(assignment), generation)


def encode_claim(claim: Claim) -> bytes:
    topics: dict[str, list[int]] = {}
    for partition in claim.partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return json.dumps({"generation": claim.generation, "partitions": topics}, separators=(",", ":")).encode()


def decode_claim(user_data: bytes) -> Claim:
    """Raises ValueError for what is no claim."""
    if not user_data:
        return Claim()
    claim: Any = json.loads(user_data)
    try:
        generation = claim.get("generation", NO_GENERATION)
        partitions = [(topic, number) for topic, numbers in claim["partitions"].items() for number in numbers]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("expected a generation and partitions by topic") from None
    numbers = [generation, *(number for _, number in partitions)]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise ValueError("expected a generation and partition numbers that are whole numbers")
    return Claim(tuple(TopicPartition(topic, number) for topic, number in partitions), generation)


def _claim_of(member_id: str, user_data: bytes) -> Claim:
    try:
        return decode_claim(user_data)
    except ValueError as error:
        logger.warning("member %s: its user data of the sticky assignor is not used: %s", member_id, error)
        return Claim()


class CooperativeStickyAssignor:
    """Kafka's CooperativeStickyAssignor. It supports both protocols, so that a group can change to it step by step.

    Guards one promise: a partition is never given to a member while another one owns it. What moves is in no assignment
    at first; its owner gives it up, which makes the group rebalance again, and then it finds its new member (KIP-429).
    """

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: Collection[str]) -> bytes:
        return b""

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> Assignment:
        claims = {member_id: Claim(member.owned, member.generation) for member_id, member in members.items()}
        holders = strongest_claims(claims)
        return {
            member_id: [partition for partition in assigned if holders.get(partition, member_id) == member_id]
            for member_id, assigned in assign_sticky(partitions, members, claims).items()
        }

    def on_assignment(self, assignment: Collection[TopicPartition], generation: int) -> None:
        pass
