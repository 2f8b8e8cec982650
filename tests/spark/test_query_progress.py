"""A streaming query is a consumer group to everybody else: its progress is committed, its lag shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bus import Admin, Consumer, NewTopic
from bus.broker import Broker
from bus.model import TopicPartition
from bus.tables.system_views import read_view
from bus.tables.topics import TopicTables
from tests.support.spark_source import Stream, produce

P0 = TopicPartition("orders", 0)
EARLIEST = {"subscribe": "orders", "startingOffsets": "earliest"}


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("orders", 1)])
        produce(broker.port, "orders", [b"x"] * 10)
        yield admin


def groups_of(admin: Admin) -> dict[str, int]:
    """The offsets that each has committed of orders-0."""
    groups = [listing.group_id for listing in admin.list_groups()]
    offsets = {group: admin.list_group_offsets(group) for group in groups}
    return {group: found[P0].offset for group, found in offsets.items() if P0 in found}


def test_a_query_without_a_name_stays_one_group_over_restarts(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    stream = Stream(spark, broker.port, tmp_path, groupIdPrefix="nameless", **EARLIEST)
    stream.run()
    produce(broker.port, "orders", [b"x"] * 3)
    stream.run()
    nameless = {group: offset for group, offset in groups_of(admin).items() if group.startswith("nameless-")}
    assert list(nameless.values()) == [admin.list_offsets({P0: -1})[P0].offset]


def test_the_lag_of_a_named_query_shows_like_any_consumers(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    Stream(spark, broker.port, tmp_path, bus_group_id="named", **EARLIEST).run()
    end = groups_of(admin)["named"]
    produce(broker.port, "orders", [b"x"] * 4)
    lag = read_view("lag", TopicTables(admin.describe_cluster().root_url)).to_pylist()
    assert [(row["committed_offset"], row["lag"]) for row in lag if row["group_id"] == "named"] == [(end, 4)]


def test_a_query_may_begin_where_a_group_was_reset_to(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    Stream(spark, broker.port, tmp_path / "1", bus_group_id="reset", **EARLIEST).run()
    admin.alter_group_offsets("reset", {P0: 7})
    options = {"subscribe": "orders", "bus_group_id": "reset", "bus_startingGroup": "reset"}
    stream = Stream(spark, broker.port, tmp_path / "2", **options)
    stream.run()
    assert stream.rows[0].offset == 7
    assert groups_of(admin)["reset"] == stream.rows[-1].offset + 1


def test_a_query_that_wants_no_group_has_none(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    before = groups_of(admin)
    Stream(spark, broker.port, tmp_path, bus_progress="false", **EARLIEST).run()
    assert groups_of(admin) == before


def test_a_group_with_members_is_left_alone_and_the_query_goes_on(
    spark: SparkSession, broker: Broker, admin: Admin, tmp_path: Path
) -> None:
    with Consumer(f"127.0.0.1:{broker.port}", group_id="busy", enable_auto_commit=False) as consumer:
        consumer.subscribe(["orders"])
        consumer.poll(5_000)
        stream = Stream(spark, broker.port, tmp_path, bus_group_id="busy", **EARLIEST)
        stream.run()
        assert len(stream.rows) == admin.list_offsets({P0: -1})[P0].offset
        assert "busy" not in groups_of(admin)
