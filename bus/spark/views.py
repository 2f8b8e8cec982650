"""The views of groups and topics in a Spark session, with the names and columns that the embedded engine gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bus.system_views import VIEW_NAMES, read_view
from bus.topic_tables import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_views(spark: SparkSession, root: str, names: Iterable[str] = VIEW_NAMES) -> None:
    """Make `groups`, `group_members`, `group_offsets`, `lag`, `topics` and `partitions` of a bus root, or those of
    `names`, temporary views: `spark.sql("SELECT * FROM lag")`. They show what was there at this call; call it again to
    see later commits. A name that a topic of the root has is left to that topic.

    All of them are global temporary views too, which a session of `bus.spark.session()` finds as `bus.lag`, any other
    as `global_temp.lag`. Raises `RootNotUsable`, or `StorageFault`.
    """
    tables = TopicTables(root)
    topics = {topic.casefold() for topic in tables.topics()}
    for name in names:
        frame = spark.createDataFrame(read_view(name, tables))
        frame.createOrReplaceGlobalTempView(name)
        if name not in topics:
            frame.createOrReplaceTempView(name)
