"""What the jobs that carry records from place to place do with rows: order, origin, the columns that a topic takes, and
a user's own change of them.

Guards one promise: rows that are read again come in the same order in the same tasks, whatever the machines, so that a
batch that is written again is written once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bus.spark.jobs import JobFailed
from bus.spark.lazy_pyspark import sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Change = Callable[["DataFrame"], "DataFrame"]

_HEADERS = "array<struct<key:string,value:binary>>"
ORIGIN_HEADERS = ("origin.cluster", "origin.topic", "origin.partition", "origin.offset", "origin.timestamp")


def in_offset_order(rows: DataFrame, tasks: int) -> DataFrame:
    """`rows` of a topic in `tasks` tasks, each with whole partitions in the order of their offsets."""
    place = sql.pmod(sql.hash("topic") + sql.col("partition"), sql.lit(tasks)).cast("int")
    return rows.repartitionById(tasks, place).sortWithinPartitions("topic", "partition", "offset")


def before_ends(rows: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """Rows of one topic below the end of their partition; of partitions without one, none."""
    bound: Column = sql.lit(None).cast("long")
    for partition, end in ends.items():
        bound = sql.when(sql.col("partition") == partition, sql.lit(end)).otherwise(bound)
    return rows.where(sql.col("offset") < bound)


def with_origin(rows: DataFrame, cluster: str) -> DataFrame:
    """Each record says in its headers where it comes from: `ORIGIN_HEADERS`, as texts, instead of earlier ones."""
    texts = {
        "origin.cluster": sql.lit(cluster),
        "origin.topic": sql.col("topic"),
        "origin.partition": sql.col("partition").cast("string"),
        "origin.offset": sql.col("offset").cast("string"),
        "origin.timestamp": sql.unix_millis("timestamp").cast("string"),
    }
    origin = sql.array(
        *(sql.struct(sql.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
    )
    others = sql.filter(
        sql.coalesce("headers", sql.array().cast(_HEADERS)), lambda header: ~header["key"].isin(*ORIGIN_HEADERS)
    )
    return rows.withColumn("headers", sql.concat(others, origin).cast(_HEADERS))


def header_text(name: str) -> Column:
    """The last header of that name, as text; null if there is none."""
    found = sql.filter("headers", lambda header: header["key"] == name)
    return sql.when(sql.size(found) > 0, sql.element_at(found, -1)["value"].cast("string"))


def topic_columns(rows: DataFrame, *, keep_partitions: bool, keep_timestamps: bool) -> DataFrame:
    """The columns of `rows` that a topic is given. Raises `JobFailed` if there is no value."""
    if "value" not in rows.columns:
        raise JobFailed(f"expected rows with the column value, found {', '.join(rows.columns)}")
    wanted = ["key", "value", "headers"]
    wanted += ["partition"] if keep_partitions else []
    wanted += ["timestamp"] if keep_timestamps else []
    return rows.select(*(name for name in wanted if name in rows.columns))


def change_named(text: str) -> Change:
    """An argument's value: `module:function`, a function from DataFrame to DataFrame. Modules of the folder that the
    job is started in are found, too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}: {error}") from None
    if not callable(found):
        raise argparse.ArgumentTypeError(f"expected a function, found {text!r}, a {type(found).__name__}")

    def change(rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        changed = found(rows)
        if not isinstance(changed, DataFrame):
            raise JobFailed(f"expected {text} to return a DataFrame, found {type(changed).__name__}")
        return changed

    return change
