"""The same statement, by Spark: topics as views with the columns that the embedded engine gives them.

`key` and `value` are text, UTF-8 as it is and other bytes escaped as \\xNN; `key_bytes` and `value_bytes` are the bytes
themselves.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bus.point_in_time import Bound
from bus.sql import SqlError
from bus.sql.statement import AmbiguousName, quote_name, topics_named, views_named
from bus.system_views import VIEW_NAMES, VIEW_SCHEMA
from bus.topic_tables import TopicTables

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame


def run_statement(
    root: str, statement: str, *, at_version: Bound | None = None, at_offset: Bound | None = None
) -> pa.Table:
    """All rows of the statement. Raises `SqlError`, `StorageFault`, or what `bus.spark.session` raises."""
    from pyspark.errors import PySparkException

    from bus.spark import read_topic, register_views, session
    from bus.spark.sessions import SHORT_SESSION

    topics = TopicTables(root).topics()
    if statement.casefold().strip().rstrip("; ").split() == ["show", "tables"]:
        return pa.table({"name": pa.array(topics, pa.string())})
    try:
        named = topics_named(statement, topics)
    except AmbiguousName as error:
        raise SqlError(str(error)) from None
    # ANSI's double quotes around a name, as the embedded engine takes them, and not Spark's backticks alone.
    settings = {**SHORT_SESSION, "spark.sql.ansi.doubleQuotedIdentifiers": "true"}
    settings["spark.ui.showConsoleProgress"] = "true" if sys.stderr.isatty() else "false"
    # It would log every statement that fails, with Java's stack; whoever typed it is told in a line.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    spark = session("bus sql", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for topic in named:
            frame = read_topic(spark, root, topic, at_version=at_version, at_offset=at_offset)
            _with_text(frame).createOrReplaceTempView(quote_name(topic))
        register_views(spark, root, views_named(statement, VIEW_NAMES, VIEW_SCHEMA))
        return spark.sql(statement).toArrow()
    except PySparkException as error:
        raise SqlError(_plain(error, topics)) from None
    finally:
        spark.stop()


def _with_text(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import BinaryType

    binary = [name for name in ("key", "value") if isinstance(frame.schema[name].dataType, BinaryType)]
    columns: list[Any] = []
    for name in frame.columns:
        if name in binary:
            escaped = sql.regexp_replace(sql.hex(name), "(..)", r"\\\\x$1")
            text = sql.try_validate_utf8(sql.col(name).cast("string"))
            columns.append(sql.coalesce(text, escaped).alias(name))
        else:
            columns.append(sql.col(name))
    return frame.select(*columns, *(sql.col(name).alias(f"{name}_bytes") for name in binary))


def _plain(error: PySparkException, topics: Iterable[str]) -> str:
    """The first line of Spark's message: behind it are its query plan and its Java stack."""
    message = str(error).strip().splitlines()[0].removesuffix(";")
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        return f"{message}\nviews: {', '.join(VIEW_NAMES)}\ntopics: {', '.join(topics) or 'none yet'}"
    return message
