"""The common parts of PySpark jobs and of the files that they read and write: the partitions that are meant, failures,
values by a schema, and names of PySpark that are loaded when they are first used, so that a job shows its usage where
PySpark is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bus.client_texts import text_for
from bus.errors import BusError, ErrorCode, show_range
from bus.json_views import SchemaError, parse_ddl
from bus.json_views.select import SPARK, struct_of
from bus.model import TopicPartition
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# For JSON and CSV: Spark leaves microseconds out otherwise.
WHOLE_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class JobFailed(Exception):
    """The job cannot do what it was asked; the message says what was expected and found."""


def tell(text: str) -> None:
    """Write a line for those who watch the job; it may have names that others have chosen."""
    sys.stderr.write(text_for(sys.stderr, text) + "\n")
    sys.stderr.flush()


def partitions_named(tables: TopicTables, names: Iterable[str]) -> list[TopicPartition]:
    """`TOPIC` stands for all its partitions, `TOPIC/PARTITION` for one; each is there once. Raises `BusError`
    UNKNOWN_TOPIC_OR_PARTITION."""
    found: dict[TopicPartition, None] = {}
    for name in names:
        topic, slash, number = name.partition("/")
        partitions = tables.partitions(topic)
        if slash:
            if not number.isdecimal() or int(number) >= len(partitions):
                raise BusError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"expected a partition of {topic} {show_range(0, len(partitions) - 1)}, found {number!r}",
                )
            partitions = [partitions[int(number)]]
        found.update(dict.fromkeys(partitions))
    return list(found)


def typed_values(rows: DataFrame, schema: str) -> DataFrame:
    """`rows` with their values as structs of `schema`, by the same reading of JSON as a view's; null where they are no
    JSON object. Raises `JobFailed` for a schema that a view cannot have."""
    from pyspark.sql import functions

    try:
        fields = parse_ddl(schema)
    except SchemaError as error:
        raise JobFailed(f"--schema: {error}") from None
    frame = rows.withColumn("value", functions.col("value").cast("string"))
    added = SPARK.parse(fields)
    for name, expression in added:
        frame = frame.selectExpr("*", f"{expression} AS {name}")
    return frame.withColumn("value", functions.expr(struct_of(fields, SPARK))).drop(*(name for name, _ in added))


class _Lazy:
    """A name of a module, which is imported at the first use."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(self._module), self._name), name)


if TYPE_CHECKING:
    import pyspark
    import pyspark.sql.functions

    StorageLevel = pyspark.StorageLevel
    Window = pyspark.sql.Window
    sql = pyspark.sql.functions
else:
    StorageLevel = _Lazy("pyspark", "StorageLevel")
    Window = _Lazy("pyspark.sql", "Window")
    sql = _Lazy("pyspark.sql", "functions")
