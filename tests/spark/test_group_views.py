"""The views of groups, topics and brokers by Spark, beside what the embedded engine says of the same root."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bus.sql
from bus.cluster_metadata.cluster_records import (
    AclAdded,
    BrokerStarted,
    ClientQuotaChanged,
    FeatureLevel,
    ReplicasAssigned,
)
from bus.model import AUDIT_TOPIC, TopicPartition
from bus.records.log_schema import AUDIT_VALUE_TYPE
from bus.spark import read_topic, register
from bus.tables.system_views import VIEW_NAMES
from tests.support.hand_written_groups import NO_TOPIC_ID, HandWrittenGroups, member
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot
from tests.support.hand_written_transactions import HandWrittenTransactions

ACL = (
    '{"resource_type": "Topic", "resource_name": "orders", "pattern_type": "literal", "principal": "User:alice", '
    '"host": "*", "operation": "Read", "permission": "Allow"}'
)


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)
    root.append("orders", 0, (b"k", b"v"), (b"k", b"v"))
    root.record(FeatureLevel("bus.version", 1), BrokerStarted(1, "h", 1, "rack", "life", 1, 0, 1))
    root.record(ReplicasAssigned("orders", root.topic_ids["orders"], 0, 2, "1,0"))
    root.record(FeatureLevel("bus.version", 3), AclAdded(ACL))
    root.record(ClientQuotaChanged('{"user": "alice"}', '{"producer_byte_rate": 1024.0}'))
    root.tables["orders"][0].commit(
        {"commitInfo": {"operation": "DELETE", "timestamp": 1_700_000_000_000, "leaderEpoch": 0}},
        {"txn": {"appId": "bus/log_start", "version": 1}},
    )
    return root


@pytest.fixture
def groups(root: HandWrittenRoot) -> HandWrittenGroups:
    groups = HandWrittenGroups(root)
    groups.commit("billing", "orders", 0, 2)
    groups.commit("billing", "orders", 0, 1)
    groups.commit("billing", "orders", 1, 9, topic_id=NO_TOPIC_ID)
    groups.commit("audit", "orders", 0, 2)
    groups.commit("audit", "orders", 0, None)
    groups.store("billing", 3, [member("m1", "orders", [0]), member("m2", "orders", [1], "i-2")])
    return groups


@pytest.fixture
def transactions(root: HandWrittenRoot) -> HandWrittenTransactions:
    transactions = HandWrittenTransactions(root)
    transactions.store("payments", "Ongoing", 1)
    transactions.store("payments", "CompleteCommit", 2, {("orders", 0): (2, 1)}, ["billing"])
    transactions.expire("invoices")
    return transactions


@pytest.fixture
def audit(root: HandWrittenRoot) -> None:
    root.create_topic(AUDIT_TOPIC, 1, AUDIT_VALUE_TYPE)
    told = {"time": FIRST_TIMESTAMP_MS * 1000, "kind": "CHANGE", "principal": "User:alice", "count": 1, "broker_id": 0}
    row = {name: told.get(name) for name in AUDIT_VALUE_TYPE.names}
    root.append(AUDIT_TOPIC, 0, (None, row))


@pytest.mark.parametrize("name", VIEW_NAMES)
@pytest.mark.usefixtures("audit")
def test_both_engines_show_the_same_columns_and_rows(
    spark: SparkSession,
    root: HandWrittenRoot,
    groups: HandWrittenGroups,
    transactions: HandWrittenTransactions,
    name: str,
) -> None:
    register(spark, str(root.folder), topics=[], views=[name])
    distributed = spark.sql(f"SELECT * FROM {name}").toArrow()
    with bus.sql.connect(str(root.folder)) as connection:
        embedded = connection.sql(f"SELECT * FROM {name}").arrow()
    assert distributed.schema.names == embedded.schema.names
    assert distributed.to_pylist() == embedded.to_pylist()
    assert distributed.num_rows > 0
    assert spark.table(f"bus.{name}").toArrow().to_pylist() == distributed.to_pylist()


def test_views_of_a_root_without_groups_are_empty(spark: SparkSession, root: HandWrittenRoot) -> None:
    names = ["groups", "group_members", "group_offsets", "lag"]
    register(spark, str(root.folder), topics=[], views=names)
    assert [spark.table(name).count() for name in names] == [0] * 4


def test_registering_again_shows_later_commits(
    spark: SparkSession, root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    register(spark, str(root.folder), topics=[], views=["lag"])
    before = spark.sql("SELECT lag FROM lag WHERE NOT is_stale")
    root.append("orders", 0, (b"k", b"v"))
    register(spark, str(root.folder), topics=[], views=["lag"])
    assert spark.sql("SELECT lag FROM lag WHERE NOT is_stale").collect() == [(2,)]
    assert before.collect() == [(1,)]


def test_a_topic_of_such_a_name_keeps_it(spark: SparkSession, root: HandWrittenRoot, groups: HandWrittenGroups) -> None:
    root.create_topic("lag")
    root.append("lag", 0, (b"k", b"mine"))
    register(spark, str(root.folder), topics=["lag"], views=["lag"])
    try:
        assert spark.sql("SELECT CAST(value AS STRING) FROM lag").collect() == [("mine",)]
        assert spark.sql("SELECT lag FROM bus.lag WHERE NOT is_stale").collect() == [(1,)]
    finally:
        spark.catalog.dropTempView("lag")


def test_every_commit_is_in_the_history_of_the_log_at_its_version(
    spark: SparkSession, root: HandWrittenRoot, groups: HandWrittenGroups
) -> None:
    at_version = {TopicPartition("__consumer_offsets", 0): 1}
    log = read_topic(spark, str(root.folder), "__consumer_offsets", at_version=at_version)
    assert [row[0] for row in log.select("value.committed_offset").collect()] == [2]
    table = str(root.folder / "topics" / "__consumer_offsets" / "0")
    later = spark.read.format("delta").option("versionAsOf", 2).load(table)
    assert [row[0] for row in later.orderBy("offset").select("value.committed_offset").collect()] == [2, 1]
