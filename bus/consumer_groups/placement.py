"""Which partition of `__consumer_offsets` has a group.

Guards one promise: a group is found where it was put. Kafka's choice is abs(hash) % n, of Java's String.hashCode.
Versions before kept the hash without its sign bit, which puts every group with a negative hash elsewhere: the topic
that they created has no word of its placement, and keeps that one for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from bus.java_hash import java_abs, java_hash
from bus.model import GROUP_PLACEMENT


class Placement(Enum):
    ABSOLUTE = "java-hash-abs"  # Kafka's
    MASKED = "java-hash-masked"  # of a topic that does not say


def find_placement(kept: Mapping[str, str]) -> Placement | None:
    """That of a topic with these configs; None: one that this version does not know."""
    found = kept.get(GROUP_PLACEMENT, Placement.MASKED.value)
    return next((placement for placement in Placement if placement.value == found), None)


def coordinator_partition(group_id: str, count: int, placement: Placement) -> int:
    """Of the `count` partitions of `__consumer_offsets` the one that has this group."""
    code = java_hash(group_id)
    match placement:
        case Placement.ABSOLUTE:
            return java_abs(code) % count
        case Placement.MASKED:
            return (code & 0x7FFFFFFF) % count
