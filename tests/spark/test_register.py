"""The frames that `register` and `read_topic` find by a broker's address, by a time, and in order."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bus import Admin, NewTopic, Producer
from bus.errors import RootNotUsable, StorageFault
from bus.spark import read_topic, register
from bus.spark.views import find_root
from bus.tables.system_views import read_view
from bus.tables.topics import TopicTables
from tests.support.broker_thread import running_broker
from tests.support.hand_written_root import HandWrittenRoot


def test_a_bus_is_registered_by_the_address_of_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("flights", 2)])
            admin.create_view("delays", "flights", "delay INT", columns=["partition"])
            for partition in (1, 0):
                producer.send("flights", b'{"delay":%d}' % partition, partition=partition).result(30)
            between = datetime.now(timezone.utc)
            producer.send("flights", b'{"delay":7}', partition=0).result(30)
        register(spark, address, topics=["flights"], views=["delays", "lag"])
        root = find_root(address)
    assert spark.sql("SELECT delay FROM delays ORDER BY delay").collect() == [(0,), (1,), (7,)]
    assert spark.table("lag").count() == 0
    places = [
        tuple(row) for row in read_topic(spark, root, "flights", ordered=True).select("partition", "offset").collect()
    ]
    assert places == [(0, 0), (0, 1), (1, 0)]
    assert read_topic(spark, root, "flights", at_time=between).count() == 2
    assert read_topic(spark, root, "flights", at_time=between + timedelta(days=1)).count() == 3
    with pytest.raises(StorageFault, match="flights-0: expected a version that was committed by"):
        read_topic(spark, root, "flights", at_time=between - timedelta(days=1))
    expected = "expected at_version, at_time, at_transaction or live, found at_version and at_time"
    with pytest.raises(ValueError, match=expected):
        read_topic(spark, root, "flights", at_time=between, at_version=0)


def test_a_view_that_is_not_there_is_refused_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "root"):
        pass
    with pytest.raises(ValueError, match=r"expected views of groups, .*audit, .*, found 'nothing'"):
        register(spark, str(tmp_path / "root"), views=["nothing"])


def test_a_broker_whose_storage_is_not_here_is_told_with_what_can_be_done(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker:
        shutil.move(tmp_path / "root" / "bus-root.json", tmp_path / "bus-root.json")
        with pytest.raises(RootNotUsable, match=r"keeps its tables in .*cannot be read from here.*format\(\"bus\"\)"):
            find_root(f"127.0.0.1:{broker.port}")
        shutil.move(tmp_path / "bus-root.json", tmp_path / "root" / "bus-root.json")


def test_the_storage_of_another_cluster_is_not_taken_for_the_brokers(tmp_path: Path) -> None:
    with running_broker(tmp_path / "other"):
        pass
    with running_broker(tmp_path / "root") as broker:
        shutil.copy(tmp_path / "root" / "bus-root.json", tmp_path / "kept.json")
        shutil.copy(tmp_path / "other" / "bus-root.json", tmp_path / "root" / "bus-root.json")
        with pytest.raises(RootNotUsable, match=r"expected the storage of cluster .*, found that of"):
            find_root(f"127.0.0.1:{broker.port}")
        shutil.copy(tmp_path / "kept.json", tmp_path / "root" / "bus-root.json")


@pytest.mark.parametrize("where", ["./bus-data", "bus-data", "file:///data", "/data:9", "C"])
def test_what_is_no_address_is_a_root(where: str) -> None:
    assert find_root(where) == where


@pytest.mark.parametrize("is_case_sensitive", [False, True])
def test_topics_that_differ_in_case_only_never_stand_for_one_another(
    spark: SparkSession, tmp_path: Path, is_case_sensitive: bool
) -> None:
    root = HandWrittenRoot(tmp_path / "root")
    for topic in ("Bills", "bills", "other"):
        root.create_topic(topic)
        root.append(topic, 0, (None, topic.encode()))

    def values(table: str) -> list[str]:
        return [row[0] for row in spark.sql(f"SELECT CAST(value AS STRING) FROM {table}").collect()]

    register(spark, str(root.folder), topics=["Bills"], views=[])
    assert values("Bills") == ["Bills"]
    spark.conf.set("spark.sql.caseSensitive", str(is_case_sensitive).lower())
    try:
        if is_case_sensitive:
            register(spark, str(root.folder), views=[])
            assert [values(name) for name in ("Bills", "bills")] == [["Bills"], ["bills"]]
        else:
            with pytest.raises(ValueError, match="more than case for Spark, found Bills and bills"):
                register(spark, str(root.folder), topics=["Bills", "bills"], views=[])
            with pytest.warns(UserWarning, match="topics Bills and bills differ in case only"):
                register(spark, str(root.folder), views=[])
            for name in ("Bills", "bills"):
                assert not spark.catalog.tableExists(name)
        assert values("other") == ["other"]
    finally:
        for name in ("Bills", "bills", "other"):
            spark.catalog.dropTempView(name)
        spark.conf.set("spark.sql.caseSensitive", "false")


def test_a_view_without_rows_is_made_where_spark_takes_no_columns_from_it_as_under_connect(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = spark.createDataFrame

    def make_as_connect_does(data: Any, schema: Any = None) -> DataFrame:
        assert schema is not None or len(data), "CANNOT_INFER_EMPTY_SCHEMA"
        return make(data, schema)

    monkeypatch.setattr(spark, "createDataFrame", make_as_connect_does)
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("flights")
    register(spark, str(root.folder), topics=[], views=["quotas", "groups", "lag", "audit", "topics"])
    assert spark.table("bus.topics").count() > 0
    for name in ("quotas", "groups", "lag", "audit"):
        found = spark.table(f"bus.{name}")
        assert (found.count(), found.columns) == (0, read_view(name, TopicTables(str(root.folder))).schema.names)
