"""All that a bus can tell, as tables of a Spark session: topics, groups, lag, logs, and views of JSON values, with the
names that the embedded engine gives them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bus.errors import RootNotUsable
from bus.json_views import JsonView
from bus.json_views.select import SPARK, columns_of
from bus.model import INTERNAL_TOPIC_PREFIX
from bus.spark.topics import read_topic, with_text
from bus.tables.system_views import VIEW_NAMES, read_view
from bus.tables.topics import TopicTables, check_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADDRESSES = re.compile(r"[^/\\\s,]+:\d+(,[^/\\\s,]+:\d+)*")
ReadTopic = Callable[[str], "DataFrame"]


def register(
    spark: SparkSession,
    where: str,
    *,
    topics: Iterable[str] | None = None,
    views: Iterable[str] | None = None,
) -> None:
    """Make temporary views of the topics of a bus, or of those named: `spark.sql("SELECT * FROM flights")` reads what
    `bus.spark.read_topic` reads. Beside them `groups`, `group_members`, `group_offsets`, `lag`, `topics`, `partitions`,
    `versions`, `log_maintenance`, `brokers`, `replicas`, `elections`, `reassignments`, `transactions`,
    `transaction_history` and the views of JSON values that were created, or those of `views`.

    `where` is a root, or the address of a broker whose storage can be reached from here. The views of topics and of
    their JSON values show what is committed when a query runs, the others what was there at this call; call it again
    for later commits, and for topics and views that came later. A name that a topic has is that topic's; all but topics
    are also global temporary views, which a session of `bus.spark.session()` finds as `bus.lag`, any other as
    `global_temp.lag`.

    Spark takes names for one that differ in case only, unless `spark.sql.caseSensitive` is on. Of topics of such names
    none is registered, with a warning; name the one that is meant, or read it with `bus.spark.read_topic`.

    Raises `RootNotUsable`, `BusError` UNKNOWN_TOPIC_OR_PARTITION, `ValueError` for an unknown view or for `topics` that
    Spark takes for one, or `StorageFault`.
    """
    root = find_root(where)
    tables = TopicTables(root)
    known = tables.topics()
    public = [one for one in known if not one.startswith(INTERNAL_TOPIC_PREFIX)]
    chosen = _without_clashes(spark, public) if topics is None else list(topics)
    for same in () if topics is None else _taken_for_one(spark, chosen):
        raise ValueError(f"expected topics that differ in more than case for Spark, found {' and '.join(same)}")
    stored = tables.cluster().views
    named = [*VIEW_NAMES, *stored] if views is None else [name.casefold() for name in views]
    for name in named:
        if name not in VIEW_NAMES and name not in stored:
            there = ", ".join([*VIEW_NAMES, *sorted(view.name for view in stored.values())])
            raise ValueError(f"expected views of {there}, found {name!r}")

    def read(topic: str) -> DataFrame:
        return read_topic(spark, root, topic, live=True)

    for topic in chosen:
        read(topic).createOrReplaceTempView(f"`{topic}`")
    register_system_views(spark, tables, [name for name in named if name in VIEW_NAMES])
    # A view of a topic that is gone is there again when the topic is.
    present = [stored[name] for name in named if name in stored and (views is not None or stored[name].topic in known)]
    register_json_views(spark, tables, present, read)


def _taken_for_one(spark: SparkSession, topics: Iterable[str]) -> list[list[str]]:
    """Those of `topics` that have one name for Spark."""
    if spark.conf.get("spark.sql.caseSensitive", "false") == "true":
        return []
    by_folded: dict[str, list[str]] = {}
    for topic in dict.fromkeys(topics):
        by_folded.setdefault(topic.casefold(), []).append(topic)
    return [same for same in by_folded.values() if len(same) > 1]


def _without_clashes(spark: SparkSession, topics: list[str]) -> list[str]:
    """Leave out topics whose names Spark takes for one. A view that was made of one earlier is dropped, since it would
    stand for the other."""
    left_out = _taken_for_one(spark, topics)
    for same in left_out:
        spark.catalog.dropTempView(same[0])
        names = " and ".join(same)
        warnings.warn(
            f"topics {names} differ in case only, which Spark does not tell apart: none is registered; name one with "
            "topics=, read it with bus.spark.read_topic, or set spark.sql.caseSensitive=true",
            stacklevel=3,
        )
    return [topic for topic in topics if not any(topic in same for same in left_out)]


def register_system_views(spark: SparkSession, tables: TopicTables, names: Iterable[str]) -> None:
    """Those of `names`, as of now. Raises `StorageFault`."""
    for name in names:
        _register(spark, tables, name, _frame_of(spark, read_view(name, tables)))


def _frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Spark Connect takes no columns from a table without rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if table.num_rows:
        return spark.createDataFrame(table)
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=False))


def register_json_views(spark: SparkSession, tables: TopicTables, views: Iterable[JsonView], read: ReadTopic) -> None:
    """`read` gives the topics."""
    for view in views:
        frame = with_text(read(view.topic))
        for name, expression in SPARK.parse(view.fields):
            frame = frame.selectExpr("*", f"{expression} AS {name}")
        _register(spark, tables, view.name, frame.selectExpr(*columns_of(view, SPARK)))


def _register(spark: SparkSession, tables: TopicTables, name: str, frame: DataFrame) -> None:
    frame.createOrReplaceGlobalTempView(name)
    if name.casefold() not in map(str.casefold, tables.topics()):
        frame.createOrReplaceTempView(name)


def find_root(where: str) -> str:
    """`where` itself, or the root of the broker at that address. Raises `RootNotUsable`: nor is it here."""
    if _ADDRESSES.fullmatch(where) is None or Path(where).exists():
        return where
    from bus.client.admin.admin import Admin
    from bus.storage_delta.root import open_reader

    with Admin(where.split(",")) as admin:
        cluster = admin.describe_cluster()
    try:
        found = open_reader(str(check_root(cluster.root_url)))
    except RootNotUsable as error:
        raise RootNotUsable(
            f"the broker at {where} keeps its tables in {cluster.root_url}, which cannot be read from here ({error}); "
            'format("bus") reads its topics through it'
        ) from error
    if found.cluster_id != cluster.cluster_id:
        raise RootNotUsable(
            f"expected the storage of cluster {cluster.cluster_id} at {cluster.root_url}, "
            f"found that of {found.cluster_id}"
        )
    return cluster.root_url
