"""The views of brokers, replicas, elections and reassignments, of a metadata log that was written by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import bus.sql
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    ReplicasAssigned,
    snapshot_of,
)
from bus.tables.topics import TopicTables
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot


def at(offset: int) -> datetime:
    """When the commit that begins with that record was made."""
    return datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc) + timedelta(milliseconds=offset)


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    """Brokers 0 and 1; the controller is 1. Broker 0 led all of `orders`, and has failed."""
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)  # offset 1
    topic_id = root.topic_ids["orders"]
    root.record(
        FeatureLevel("bus.version", 1),
        ControllerElected(1, "life-1"),
        BrokerStarted(1, "h1", 1111, "west", "life-1", 1, 0, 1),
        BrokerUnfenced(1, 1),
        BrokerFenced(0, 0),
        LeaderChanged("orders", topic_id, 0, 1, 1),  # offset 7
    )
    root.record(ReplicasAssigned("orders", topic_id, 0, 1, "1,0"), ReplicasAssigned("orders", topic_id, 1, 1, "0,1"))
    return root


def rows(root: HandWrittenRoot, query: str) -> list[tuple[object, ...]]:
    with bus.sql.connect(str(root.folder)) as connection:
        return connection.sql(query).fetchall()


def cut_off(root: HandWrittenRoot) -> int:
    """Cut the log off: it begins now with a snapshot of what it says."""
    tables = root.metadata
    state = TopicTables(str(root.folder)).cluster()
    first = tables.high_watermark
    root.record(*snapshot_of(state))
    root.metadata.commit(
        {"commitInfo": {"operation": "DELETE", "isBlindAppend": False}},
        {"txn": {"appId": "bus/log_start", "version": first, "lastUpdated": FIRST_TIMESTAMP_MS}},
    )
    return first


def test_brokers_show_what_they_are_and_since_when(root: HandWrittenRoot) -> None:
    columns = "broker_id, host, port, rack, is_controller, is_fenced, state_time, leaders, replicas"
    assert rows(root, f"SELECT {columns} FROM brokers") == [
        (0, "127.0.0.1", 9094, None, False, True, at(2), 1, 2),
        (1, "h1", 1111, "west", True, False, at(2), 1, 2),
    ]
    columns = "broker_id, broker_epoch, incarnation, registered_offset, registered_time, feature_level_max"
    assert rows(root, f"SELECT {columns} FROM bus.brokers") == [
        (0, None, None, 0, at(0), 0),
        (1, 1, "life-1", 4, at(2), 1),
    ]


def test_one_broker_without_an_election_is_the_controller(tmp_path: Path) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    assert rows(root, "SELECT broker_id, is_controller, is_fenced, leaders FROM brokers") == [(0, True, False, 0)]


def test_replicas_show_who_leads_and_who_is_out(root: HandWrittenRoot) -> None:
    columns = "partition, position, broker_id, is_preferred, is_leader, is_fenced, is_in_sync"
    assert rows(root, f"SELECT {columns} FROM replicas WHERE topic = 'orders'") == [
        (0, 0, 1, True, True, False, True),
        (0, 1, 0, False, False, True, False),
        (1, 0, 0, True, True, True, False),
        (1, 1, 1, False, False, False, True),
    ]


def test_elections_show_leaders_and_controllers_with_place_and_reason(root: HandWrittenRoot) -> None:
    query = "SELECT partition, leader_id, leader_epoch, reason, since_offset, since_time, until_offset FROM elections"
    assert rows(root, f"{query} WHERE topic = 'orders'") == [
        (0, 0, 0, "created", 1, at(1), 7),
        (0, 1, 1, "leader fenced", 7, at(2), None),
        (1, 0, 0, "created", 1, at(1), None),
    ]
    assert rows(root, f"{query} WHERE topic = '__cluster_metadata'") == [(0, 1, 0, None, 3, at(2), None)]


def test_reassignments_show_from_where_to_where(root: HandWrittenRoot) -> None:
    columns = 'topic, partition, "offset", time, replicas_before, replicas, adding_replicas, removing_replicas'
    assert rows(root, f"SELECT {columns} FROM reassignments") == [
        ("orders", 0, 8, at(8), [1], [1, 0], [0], []),
        ("orders", 1, 9, at(8), [0], [0, 1], [1], []),
    ]


def test_what_a_snapshot_has_cut_off_is_null(root: HandWrittenRoot) -> None:
    first = cut_off(root)
    root.record(ReplicasAssigned("orders", root.topic_ids["orders"], 0, 1, "0,1"))
    columns = "broker_id, is_fenced, state_time, registered_offset, registered_time"
    assert rows(root, f"SELECT {columns} FROM brokers") == [(0, True, None, None, None), (1, False, None, None, None)]
    columns = "leader_id, leader_epoch, reason, since_offset, since_time, until_offset"
    assert rows(root, f"SELECT {columns} FROM elections ORDER BY topic, partition") == [
        (1, 0, None, None, None, None),
        (1, 1, None, None, None, None),
        (0, 0, None, None, None, None),
    ]
    assert rows(root, 'SELECT "offset" > ? FROM reassignments'.replace("?", str(first))) == [(True,)]


def test_root_that_never_had_a_broker_has_no_history(tmp_path: Path) -> None:
    (tmp_path / "bus-root.json").write_text('{"format_version": 1, "cluster_id": "c"}', encoding="utf-8")
    for view in ("brokers", "replicas", "elections", "reassignments"):
        with bus.sql.connect(str(tmp_path)) as connection:
            assert connection.sql(f"SELECT * FROM {view}").fetchall() == []
