"""Partitions that `bus topics describe` shows when it is asked for those in trouble."""

from __future__ import annotations

import pytest

from bus.cli.topics.topic_commands import with_partitions_in_trouble
from bus.descriptions import PartitionDescription, TopicDescription
from bus.errors import ErrorCode, Refused

WHOLE = PartitionDescription(0, 1, 0, None, (1, 2), (1, 2))
LACKING = PartitionDescription(1, 1, 0, None, (1, 2), (1,))
OFFLINE = PartitionDescription(
    2, 3, 0, Refused(ErrorCode.LEADER_NOT_AVAILABLE, "gone"), (1, 2), (1, 2), is_offline=True
)
TOPICS = [
    TopicDescription("t", "id-1", False, (WHOLE, LACKING, OFFLINE)),
    TopicDescription("u", "id-2", False, (WHOLE,)),
]


@pytest.mark.parametrize(
    ("under_replicated", "unavailable", "isr_min", "expected"),
    [
        (True, False, {}, (LACKING,)),
        (False, True, {}, (OFFLINE,)),
        (True, True, {}, (LACKING, OFFLINE)),
        (False, False, {"t": 2, "u": 1}, (LACKING,)),
        (False, True, {"t": 2, "u": 2}, (LACKING, OFFLINE)),
        (False, False, {"t": 3, "u": 2}, (WHOLE, LACKING, OFFLINE)),
    ],
)
def test_topics_keep_the_partitions_in_trouble_and_those_without_any_go(
    under_replicated: bool, unavailable: bool, isr_min: dict[str, int], expected: tuple[PartitionDescription, ...]
) -> None:
    found = with_partitions_in_trouble(
        TOPICS, under_replicated=under_replicated, unavailable=unavailable, isr_min=isr_min
    )
    assert [(topic.name, topic.partitions) for topic in found] == [("t", expected)]
