"""Which partition of `__consumer_offsets` has a group.

Guards one promise: a group is found where it was put. Kafka's choice is abs(hash) % n, of Java's String.hashCode.
Versions before kept the hash without its sign bit, which puts every group with a negative hash elsewhere: the topic
that they created has no word of its placement, and keeps that one for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

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
    code = _java_hash(group_id)
    match placement:
        case Placement.ABSOLUTE:  # as in Java, the smallest number has no absolute value, and counts as 0
            positive = 0 if code == 0x80000000 else min(code, 0x100000000 - code)
        case Placement.MASKED:
            positive = code & 0x7FFFFFFF
    return positive % count


def _java_hash(text: str) -> int:
    """String.hashCode in 32 bits, taken without sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code
