"""The views of groups and topics, read from tables that were written by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import bus.sql
from bus.cluster_metadata.cluster_records import TopicConfigChanged, TopicDeleted
from bus.sql import SqlError
from bus.tables.system_views import VIEW_NAMES
from tests.support.hand_written_groups import NO_TOPIC_ID, HandWrittenGroups, member
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)
    for _ in range(2):
        root.append("orders", 0, (b"k", b"v"), (b"k", b"v"))
    root.append("orders", 1, (b"k", b"v"))
    return root


@pytest.fixture
def groups(root: HandWrittenRoot) -> HandWrittenGroups:
    return HandWrittenGroups(root)


def rows(root: HandWrittenRoot, query: str) -> list[tuple[object, ...]]:
    with bus.sql.connect(str(root.folder)) as connection:
        return connection.sql(query).fetchall()


@pytest.mark.parametrize("name", ["groups", "group_members", "group_offsets", "lag"])
def test_views_of_a_root_without_groups_are_empty(root: HandWrittenRoot, name: str) -> None:
    assert rows(root, f"SELECT * FROM {name}") == []
    assert rows(root, f"SELECT * FROM bus.{name}") == []


def test_views_of_a_root_whose_groups_never_wrote_are_empty(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    assert rows(root, "SELECT (SELECT count(*) FROM groups), (SELECT count(*) FROM lag)") == [(0, 0)]


def test_of_each_key_the_last_row_counts(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    for offset in (1, 3, 2):
        groups.commit("billing", "orders", 0, offset)
    groups.commit("billing", "orders", 1, 1)
    groups.commit("audit", "orders", 0, 4, log=1)
    assert rows(root, "SELECT group_id, topic, partition, committed_offset, metadata FROM group_offsets") == [
        ("audit", "orders", 0, 4, "at 4"),
        ("billing", "orders", 0, 2, "at 2"),
        ("billing", "orders", 1, 1, "at 1"),
    ]


def test_a_null_value_deletes_and_a_later_row_brings_back(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    groups.commit("billing", "orders", 0, 1)
    groups.commit("billing", "orders", 1, 1)
    groups.commit("billing", "orders", 0, None)
    groups.commit("billing", "orders", 1, None)
    groups.commit("billing", "orders", 1, 0)
    groups.store("billing", 1, [])
    groups.store("billing", 1, None)
    assert rows(root, "SELECT partition, committed_offset FROM group_offsets") == [(1, 0)]
    assert rows(root, "SELECT group_id, generation FROM groups") == [("billing", 0)]


def test_times_are_timestamps_in_utc(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    groups.commit("billing", "orders", 0, 3)
    groups.store("billing", 1, [])
    start = datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc)
    assert rows(root, "SELECT commit_time, expire_time FROM group_offsets") == [
        (start + timedelta(milliseconds=3), None)
    ]
    assert rows(root, "SELECT state_time FROM groups") == [(start,)]


def test_groups_show_their_last_generation_and_where_they_are_kept(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.store("billing", 1, [member("m1", "orders", [0, 1])], log=1)
    groups.store("billing", 2, [member("m1", "orders", [0]), member("m2", "orders", [1], "i-2")], log=1)
    groups.store("idle", 7, [])
    groups.commit("simple", "orders", 0, 1)
    columns = "group_id, state, protocol_type, protocol, generation, leader_id, member_count, coordinator_partition"
    assert rows(root, f"SELECT {columns} FROM groups") == [
        ("billing", "Stable", "consumer", "range", 2, "m1", 2, 1),
        ("idle", "Empty", "consumer", None, 7, None, 0, 0),
        ("simple", "Empty", "", None, 0, None, 0, 0),
    ]
    assert rows(root, "SELECT member_id, group_instance_id, client_id, client_host FROM group_members") == [
        ("m1", None, "client", "/127.0.0.1"),
        ("m2", "i-2", "client", "/127.0.0.1"),
    ]
    assert rows(root, "SELECT generation, topics, partitions FROM group_members WHERE member_id = 'm2'") == [
        (2, ["orders"], [{"topic": "orders", "partition": 1}])
    ]


def test_lag_is_what_lies_between_the_offset_and_the_high_watermark(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.commit("billing", "orders", 0, 1)
    groups.commit("billing", "orders", 1, 1)
    groups.store("billing", 1, [member("m1", "orders", [0])])
    columns = "partition, committed_offset, log_start_offset, log_end_offset, lag, consumer_id, client_id, host"
    assert rows(root, f"SELECT {columns} FROM lag") == [
        (0, 1, 0, 4, 3, "m1", "client", "/127.0.0.1"),
        (1, 1, 0, 1, 0, None, None, None),
    ]


def test_a_partition_that_is_owned_but_not_committed_has_no_lag(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.store("billing", 1, [member("m1", "orders", [0])])
    assert rows(root, "SELECT topic, partition, committed_offset, log_end_offset, lag, consumer_id FROM lag") == [
        ("orders", 0, None, 4, None, "m1")
    ]


def test_an_offset_of_an_earlier_topic_of_that_name_is_stale_and_has_no_lag(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.commit("billing", "orders", 0, 4_000, topic_id=NO_TOPIC_ID)
    groups.commit("billing", "orders", 1, 1)
    assert rows(root, "SELECT partition, is_stale FROM group_offsets") == [(0, True), (1, False)]
    assert rows(root, "SELECT partition, is_stale, lag FROM lag") == [(0, True, None), (1, False, 0)]


def test_an_offset_of_a_topic_that_is_gone_is_stale(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    groups.commit("billing", "orders", 0, 1)
    root.record(TopicDeleted("orders", groups.topic_id("orders")))
    assert rows(root, "SELECT is_stale, lag, log_end_offset FROM lag") == [(True, None, None)]


def test_topics_have_their_ids_and_configs(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    topic_id = groups.topic_id("orders")
    root.record(TopicConfigChanged("orders", topic_id, "retention.ms", "5"))
    query = "SELECT topic, topic_id, partitions, configs->>'retention.ms' FROM topics WHERE NOT is_internal"
    assert rows(root, query) == [("orders", topic_id, 2, "5")]
    assert rows(root, "SELECT topic, partitions FROM topics WHERE is_internal") == [
        ("__cluster_metadata", 1),
        ("__consumer_offsets", 2),
    ]


def test_partitions_show_how_far_and_how_large_each_log_is(root: HandWrittenRoot) -> None:
    columns = "partition, leader_id, leader_epoch, version, log_start_offset, log_end_offset, files"
    assert rows(root, f"SELECT {columns} FROM partitions WHERE topic = 'orders'") == [
        (0, 0, 0, 2, 0, 4, 2),
        (1, 0, 0, 1, 0, 1, 1),
    ]
    sizes = [
        sum(file.stat().st_size for file in (root.folder / "topics" / "orders" / number).glob("*.parquet"))
        for number in "01"
    ]
    assert rows(root, "SELECT bytes FROM partitions WHERE topic = 'orders'") == [(size,) for size in sizes]
    assert rows(root, "SELECT count(*) FROM partitions WHERE error IS NOT NULL") == [(0,)]


def test_a_damaged_table_is_told_in_its_row_and_hides_no_other(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.commit("billing", "orders", 0, 1)
    groups.commit("billing", "orders", 1, 0)
    next((root.folder / "topics" / "orders" / "0").glob("*.parquet")).unlink()
    found = rows(root, "SELECT partition, log_end_offset, error FROM partitions WHERE topic = 'orders'")
    assert (found[0][1], found[1]) == (None, (1, 1, None))
    assert "parquet" in str(found[0][2])
    assert rows(root, "SELECT partition, lag FROM lag") == [(0, None), (1, 1)]


def test_each_statement_sees_the_last_commit_and_an_earlier_one_keeps_its_own(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.commit("billing", "orders", 0, 1)
    with bus.sql.connect(str(root.folder)) as connection:
        before = connection.sql("SELECT lag FROM lag")
        root.append("orders", 0, (b"k", b"v"))
        assert connection.sql("SELECT lag FROM lag").fetchall() == [(4,)]
        groups.commit("billing", "orders", 0, 5)
        assert connection.sql("SELECT lag FROM lag").fetchall() == [(0,)]
        assert before.fetchall() == [(3,)]


def test_a_topic_of_such_a_name_comes_first_and_the_view_stays_in_its_schema(
    root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    groups.commit("billing", "orders", 0, 1)
    with bus.sql.connect(str(root.folder)) as connection:
        assert connection.sql("SELECT lag FROM lag").fetchall() == [(3,)]
        root.create_topic("lag")
        root.append("lag", 0, (b"k", b"mine"))
        assert connection.sql("SELECT value FROM lag").fetchall() == [("mine",)]
        assert connection.sql("SELECT a.lag, b.value FROM bus.lag a, lag b").fetchall() == [(3, "mine")]
        root.record(TopicDeleted("lag", groups.topic_id("lag")))
        assert connection.sql("SELECT lag FROM lag").fetchall() == [(3,)]


def test_views_join_topics(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    groups.commit("billing", "orders", 0, 3)
    query = """SELECT o.offset FROM orders o JOIN group_offsets g ON o.partition = g.partition
               WHERE o.offset >= g.committed_offset"""
    assert rows(root, query) == [(3,)]


def test_the_log_itself_is_the_history_of_every_commit(root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    for offset in (1, 3, 2):
        groups.commit("billing", "orders", 0, offset)
    query = """SELECT value.committed_offset FROM "__consumer_offsets"
               WHERE value.type = 'OffsetCommitted' AND value.group_id = 'billing' ORDER BY partition, offset"""
    assert rows(root, query) == [(1,), (3,), (2,)]


def test_an_unknown_table_lists_the_views(root: HandWrittenRoot) -> None:
    with pytest.raises(SqlError, match=f"views: {', '.join(VIEW_NAMES)}\n"):
        rows(root, "SELECT * FROM lags")


def test_window_functions_and_columns_of_such_names_are_none_of_the_views(root: HandWrittenRoot) -> None:
    """Else the statement would need every table of the root to be whole."""
    next((root.folder / "topics" / "orders" / "1").glob("*.parquet")).unlink()
    query = "SELECT lag(offset) OVER (ORDER BY offset) AS lag FROM __cluster_metadata ORDER BY offset LIMIT 2"
    assert rows(root, query) == [(None,), (0,)]
