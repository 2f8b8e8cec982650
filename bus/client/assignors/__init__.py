"""How the partitions of a group's topics are spread over its members."""

from bus.client.assignors.assignor import NO_GENERATION, Assignment, Assignor, MemberSubscription, RebalanceProtocol

__all__ = ["NO_GENERATION", "Assignment", "Assignor", "MemberSubscription", "RebalanceProtocol"]
