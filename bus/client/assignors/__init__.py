"""How the partitions of a group's topics are spread over its members."""

from bus.client.assignors.assignor import NO_GENERATION, Assignment, Assignor, MemberSubscription, RebalanceProtocol
from bus.client.assignors.sticky_assignors import CooperativeStickyAssignor, StickyAssignor
from bus.client.assignors.strategies import RangeAssignor, RoundRobinAssignor, assignors_of, rebalance_protocol

__all__ = [
    "NO_GENERATION",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "assignors_of",
    "rebalance_protocol",
]
