"""Rows of the metadata log: written once, read for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    RECORD_TYPES,
    AclAdded,
    AclRemoved,
    BrokerFenced,
    BrokerListeners,
    BrokerRegistered,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientQuotaChanged,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    LeaderEpochsRaised,
    LeadersChanged,
    PartitionsAdded,
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerIdsRetired,
    ProducerNamed,
    ProducerUsed,
    ReplicasAssigned,
    SnapshotBegan,
    SnapshotEnded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    TopicFilesDeleted,
    ViewCreated,
    ViewDeleted,
    decode_record,
    encode_acl,
    encode_record,
    parse_acl,
)
from bus.cluster_metadata.topic_records import assign_replicas, parse_replicas
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE
from bus.security.acls import AclBinding, AclOperation, AclPermission, AclResourceType, PatternType

ACL = (
    '{"resource_type": "Topic", "resource_name": "orders", "pattern_type": "literal", "principal": "User:alice", '
    '"host": "*", "operation": "Read", "permission": "Allow"}'
)

# Written out, not computed: these rows lie in logs, so a change here breaks every root there is.
ROWS: list[tuple[ClusterRecord, dict[str, Any]]] = [
    (BrokerRegistered(3, "host", 9094), {"type": "BrokerRegistered", "broker_id": 3, "host": "host", "port": 9094}),
    (BrokerUnregistered(3), {"type": "BrokerUnregistered", "broker_id": 3}),
    (
        TopicCreated("orders", "id", 4, 3),
        {"type": "TopicCreated", "topic": "orders", "topic_id": "id", "partitions": 4, "broker_id": 3},
    ),
    (
        PartitionsAdded("orders", "id", 8, 3),
        {"type": "PartitionsAdded", "topic": "orders", "topic_id": "id", "partitions": 8, "broker_id": 3},
    ),
    (
        LeaderChanged("orders", "id", 1, 3, 2),
        {
            "type": "LeaderChanged",
            "topic": "orders",
            "topic_id": "id",
            "partition": 1,
            "broker_id": 3,
            "leader_epoch": 2,
        },
    ),
    (
        TopicConfigChanged("orders", "id", "retention.ms", "1"),
        {
            "type": "TopicConfigChanged",
            "topic": "orders",
            "topic_id": "id",
            "config_name": "retention.ms",
            "config_value": "1",
        },
    ),
    (
        TopicConfigChanged("orders", "id", "retention.ms", None),
        {
            "type": "TopicConfigChanged",
            "topic": "orders",
            "topic_id": "id",
            "config_name": "retention.ms",
            "config_value": None,
        },
    ),
    (TopicDeleted("orders", "id"), {"type": "TopicDeleted", "topic": "orders", "topic_id": "id"}),
    (TopicFilesDeleted("id"), {"type": "TopicFilesDeleted", "topic_id": "id"}),
    (
        ProducerIdsAllocated(3, 2**40),
        {"type": "ProducerIdsAllocated", "broker_id": 3, "next_producer_id": 2**40},
    ),
    (
        ProducerNamed("billing", 2**40, 2**15 - 1, -1),
        {
            "type": "ProducerNamed",
            "producer_name": "billing",
            "producer_id": 2**40,
            "producer_epoch": 32767,
            "last_producer_epoch": -1,
        },
    ),
    (
        ViewCreated("delays", "flights", "delay INT", "offset,key"),
        {
            "type": "ViewCreated",
            "view_name": "delays",
            "topic": "flights",
            "view_schema": "delay INT",
            "view_columns": "offset,key",
        },
    ),
    (
        LeadersChanged("orders", "id", 1, 5, 3, 2),
        {
            "type": "LeadersChanged",
            "topic": "orders",
            "topic_id": "id",
            "partition": 1,
            "partitions": 5,
            "broker_id": 3,
            "leader_epoch": 2,
        },
    ),
    (LeaderEpochsRaised(3), {"type": "LeaderEpochsRaised", "broker_id": 3}),
    (ProducerUsed("billing", 2**41), {"type": "ProducerUsed", "producer_name": "billing", "used_ms": 2**41}),
    (
        ProducerExpired("billing", 2**40),
        {"type": "ProducerExpired", "producer_name": "billing", "producer_id": 2**40},
    ),
    (
        ProducerIdsRetired(5, 2**40),
        {"type": "ProducerIdsRetired", "producer_id": 5, "next_producer_id": 2**40},
    ),
    (SnapshotBegan(2**33), {"type": "SnapshotBegan", "record_count": 2**33}),
    (SnapshotEnded(2**33), {"type": "SnapshotEnded", "record_count": 2**33}),
    (ViewDeleted("delays"), {"type": "ViewDeleted", "view_name": "delays"}),
    (
        BrokerStarted(3, "host", 9094, "rack-a", "c0ffee", 2**40, 1, 2),
        {
            "type": "BrokerStarted",
            "broker_id": 3,
            "host": "host",
            "port": 9094,
            "rack": "rack-a",
            "incarnation": "c0ffee",
            "broker_epoch": 2**40,
            "level_min": 1,
            "level_max": 2,
        },
    ),
    (
        BrokerStarted(3, "host", 9094, None, "c0ffee", 1, 1, 2),
        {
            "type": "BrokerStarted",
            "broker_id": 3,
            "host": "host",
            "port": 9094,
            "rack": None,
            "incarnation": "c0ffee",
            "broker_epoch": 1,
            "level_min": 1,
            "level_max": 2,
        },
    ),
    (
        BrokerListeners(3, 7, "A:PLAINTEXT://h:1"),
        {"type": "BrokerListeners", "broker_id": 3, "broker_epoch": 7, "config_value": "A:PLAINTEXT://h:1"},
    ),
    (AclAdded(ACL), {"type": "AclAdded", "config_value": ACL}),
    (AclRemoved(ACL), {"type": "AclRemoved", "config_value": ACL}),
    (BrokerFenced(3, 7), {"type": "BrokerFenced", "broker_id": 3, "broker_epoch": 7}),
    (BrokerUnfenced(3, 7), {"type": "BrokerUnfenced", "broker_id": 3, "broker_epoch": 7}),
    (
        ControllerElected(3, "c0ffee"),
        {"type": "ControllerElected", "broker_id": 3, "incarnation": "c0ffee"},
    ),
    (
        ReplicasAssigned("orders", "id", 1, 2, "3,1;1,3"),
        {
            "type": "ReplicasAssigned",
            "topic": "orders",
            "topic_id": "id",
            "partition": 1,
            "partitions": 2,
            "replicas": "3,1;1,3",
        },
    ),
    (
        ClientQuotaChanged('{"user": "alice"}', '{"request_rate": 5.0}'),
        {"type": "ClientQuotaChanged", "config_name": '{"user": "alice"}', "config_value": '{"request_rate": 5.0}'},
    ),
    (
        ClientQuotaChanged('{"user": "alice"}', None),
        {"type": "ClientQuotaChanged", "config_name": '{"user": "alice"}', "config_value": None},
    ),
    (FeatureLevel("bus.version", 1), {"type": "FeatureLevel", "feature": "bus.version", "level": 1}),
]


def test_every_record_type_has_its_row_here() -> None:
    assert {type(record) for record, _ in ROWS} == set(RECORD_TYPES)


def test_replicas_are_one_list_for_all_partitions_or_one_for_each() -> None:
    assert assign_replicas("t", "id", 2, [(3, 1), (3, 1)]) == ReplicasAssigned("t", "id", 2, 2, "3,1")
    assert assign_replicas("t", "id", 0, [(3, 1), (1,)]) == ReplicasAssigned("t", "id", 0, 2, "3,1;1")
    assert parse_replicas("3,1;1") == [(3, 1), (1,)]


def test_text_of_a_binding_never_changes() -> None:
    acl = AclBinding(
        AclResourceType.TOPIC,
        "orders",
        PatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermission.ALLOW,
    )
    assert encode_acl(acl) == ACL
    assert parse_acl(ACL) == acl


@pytest.mark.parametrize("principal", ['User:CN=\u00e4, O="x"', "User:\\", "User:*"])
def test_binding_with_any_principal_is_read_back(principal: str) -> None:
    acl = replace(parse_acl(ACL), principal=principal)
    assert parse_acl(encode_acl(acl)) == acl


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a binding as JSON with the fields resource_type, resource_name, pattern_type, principal"),
        ("[]", "expected a binding as JSON with the fields"),
        ("{}", "expected a binding as JSON with the fields"),
        (ACL.replace('"*"', "7"), "expected a binding as JSON with the fields"),
        (ACL.replace("Topic", "Queue"), "'Queue' is not a valid AclResourceType"),
        (ACL.replace("Read", "Peek"), "'Peek' is not a valid AclOperation"),
        (ACL.replace("Read", "ClusterAction"), "expected an operation on a resource of type Topic"),
        (ACL.replace("User:alice", "alice"), "expected a principal User:<name>, found 'alice'"),
    ],
)
def test_text_that_is_no_binding_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_acl(text)


@pytest.mark.parametrize("text", ["", "1,", "1;", "1,-2", "1, 2", "\u0661", "a"])
def test_replicas_that_are_no_lists_of_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected broker ids with commas between them"):
        parse_replicas(text)


@pytest.mark.parametrize(("record", "row"), ROWS)
def test_row_of_a_record_never_changes(record: ClusterRecord, row: dict[str, Any]) -> None:
    assert encode_record(record) == row
    assert decode_record(row) == record


def test_rows_survive_the_columns_of_the_log() -> None:
    stored = pa.array([encode_record(record) for record, _ in ROWS], CLUSTER_METADATA_VALUE_TYPE)
    assert [decode_record(row) for row in stored.to_pylist()] == [record for record, _ in ROWS]


def test_rows_have_no_field_that_the_log_would_drop() -> None:
    for record, _ in ROWS:
        assert encode_record(record).keys() <= set(CLUSTER_METADATA_VALUE_TYPE.names)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"type": "TopicMoved"}, r"expected a record of type .*TopicCreated.*, found 'TopicMoved': .* newer version\?"),
        ({}, "found None: written by a newer version"),
        ({"type": 7}, "found 7: written by a newer version"),
        ({"type": "BrokerUnregistered"}, r"BrokerUnregistered: expected an integer .* field broker_id, found None"),
        ({"type": "BrokerUnregistered", "broker_id": "3"}, "field broker_id, found '3'"),
        ({"type": "BrokerUnregistered", "broker_id": True}, "field broker_id, found True"),
        ({"type": "BrokerUnregistered", "broker_id": -1}, "from 0 to 2147483647 in the field broker_id, found -1"),
        (
            {"type": "ProducerNamed", "producer_name": "n", "producer_id": 1, "producer_epoch": 2**15},
            "from 0 to 32767 in the field producer_epoch, found 32768",
        ),
        (
            {
                "type": "ProducerNamed",
                "producer_name": "n",
                "producer_id": 1,
                "producer_epoch": 1,
                "last_producer_epoch": -2,
            },
            "from -1 to 32767 in the field last_producer_epoch, found -2",
        ),
        ({"type": "TopicFilesDeleted", "topic_id": None}, "expected a string in the field topic_id, found None"),
        (
            {"type": "TopicConfigChanged", "topic": "t", "topic_id": "id", "config_name": None, "config_value": None},
            "expected a string in the field config_name, found None",
        ),
        (
            {"type": "BrokerListeners", "broker_id": 1, "broker_epoch": 1},
            "string in the field config_value, found None",
        ),
        ({"type": "AclAdded"}, "AclAdded: expected a string in the field config_value, found None"),
        ({"type": "AclRemoved"}, "AclRemoved: expected a string in the field config_value, found None"),
    ],
)
def test_row_that_cannot_be_read_is_refused_with_what_was_found(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_record(row)


def test_field_that_a_newer_version_added_is_ignored() -> None:
    assert decode_record({"type": "BrokerUnregistered", "broker_id": 3, "reason": "moved"}) == BrokerUnregistered(3)
