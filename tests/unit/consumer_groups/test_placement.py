from __future__ import annotations

import pytest

from bus.consumer_groups.bounds import Placement, coordinator_partition, find_placement


# What String.hashCode gives: the sum of unit * 31**(length - 1 - position) over UTF-16 units, in 32 bits with a sign.
@pytest.mark.parametrize(
    ("group_id", "java_hash", "absolute"),
    [
        ("", 0, 0),
        ("a", 97, 97),
        ("ab", 97 * 31 + 98, 3105),
        ("hello", 99162322, 99162322),
        ("billing", -109829509, 109829509),
        ("polygenelubricants", -2147483648, 0),  # whose absolute value Java does not have
        ("ü", 0xFC, 0xFC),
        ("😀", 0xD83D * 31 + 0xDE00, 0xD83D * 31 + 0xDE00),
    ],
)
def test_group_is_placed_by_the_hash_of_a_java_string(group_id: str, java_hash: int, absolute: int) -> None:
    for count in (1, 7, 50):
        assert coordinator_partition(group_id, count, Placement.ABSOLUTE) == absolute % count
        assert coordinator_partition(group_id, count, Placement.MASKED) == (java_hash & 0x7FFFFFFF) % count


def test_topic_that_says_nothing_of_its_placement_keeps_the_one_of_earlier_versions() -> None:
    assert find_placement({"cleanup.policy": "compact"}) is Placement.MASKED
    assert find_placement({"group.placement": Placement.ABSOLUTE.value}) is Placement.ABSOLUTE
    assert find_placement({"group.placement": "of a newer version"}) is None
