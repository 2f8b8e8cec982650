"""The lines of the broker's log about changes of the metadata."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerUnfenced,
    ControllerElected,
    FeatureLevel,
    LeaderEpochsRaised,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    ViewCreated,
    ViewDeleted,
)

ACL = (
    '{"resource_type": "Topic", "resource_name": "ord", "pattern_type": "prefixed", "principal": "User:alice", '
    '"host": "10.0.0.1", "operation": "Read", "permission": "Deny"}'
)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (TopicCreated("orders", "id-1", 1, 0), "topic orders was created: 1 partition, id id-1"),
        (TopicCreated("orders", "id-1", 4, 0), "topic orders was created: 4 partitions, id id-1"),
        (PartitionsAdded("orders", "id-1", 6, 0), "topic orders has 6 partitions now"),
        (TopicConfigChanged("orders", "id-1", "retention.ms", "5"), "topic orders: retention.ms=5"),
        (
            TopicConfigChanged("orders", "id-1", "retention.ms", None),
            "topic orders: retention.ms has its default again",
        ),
        (TopicDeleted("orders", "id-1"), "topic orders was deleted, id id-1"),
        (ViewCreated("v", "orders", "a INT", ""), "view v of topic orders was created"),
        (ViewDeleted("v"), "view v was deleted"),
        (BrokerFenced(1, 7), "broker 1 is fenced, at broker epoch 7"),
        (BrokerUnfenced(1, 7), "broker 1 is unfenced, at broker epoch 7"),
        (ControllerElected(1, "life"), "broker 1 is the controller"),
        (AclAdded(ACL), "ACL was added: Deny User:alice Read on Topic ord (prefixed) from 10.0.0.1"),
        (AclRemoved(ACL), "ACL was removed: Deny User:alice Read on Topic ord (prefixed) from 10.0.0.1"),
        (FeatureLevel("bus.version", 1), "bus.version is 1"),
        (LeaderEpochsRaised(0), None),
    ],
)
def test_what_a_person_would_look_for_has_a_line(record: ClusterRecord, line: str | None) -> None:
    assert record.describe() == line
