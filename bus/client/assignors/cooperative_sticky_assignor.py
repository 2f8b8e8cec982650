"""The cooperative sticky assignor: as the sticky one, but members go on with what they keep while the group rebalances.

Guards one promise: a partition is never given to a member while another one owns it. What moves is in nobody's
assignment at first; its owner gives it up, which makes the group rebalance again, and then it finds its new member
(KIP-429).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bus.client.assignors.assignor import Assignment, MemberSubscription, RebalanceProtocol
from bus.client.assignors.claims import Claim, strongest_claims
from bus.client.assignors.sticky_assignment import assign_sticky
from bus.model import TopicPartition


class CooperativeStickyAssignor:
    """Kafka's CooperativeStickyAssignor. It supports both protocols, so that a group can change to it step by step."""

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
