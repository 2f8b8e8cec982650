"""The same question to two engines, over the same tables: which airlines depart latest?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import bus.sql
from bus.demo.flight_data import FLIGHTS
from bus.model import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = list[tuple[str, int, float]]  # airline, flights, mean delay in minutes

EMBEDDED_QUESTION = """
SELECT a.value->>'name' AS airline, count(*) AS flights,
       round(avg((f.value->>'dep_delay')::DOUBLE), 2) AS delay
FROM flights f JOIN airlines a ON a.key = f.key
GROUP BY 1 ORDER BY 3 DESC LIMIT 5
"""

SPARK_QUESTION = """
SELECT get_json_object(CAST(a.value AS STRING), '$.name') AS airline, count(*) AS flights,
       round(avg(CAST(get_json_object(CAST(f.value AS STRING), '$.dep_delay') AS DOUBLE)), 2) AS delay
FROM flights f JOIN airlines a ON a.key = f.key
GROUP BY 1 ORDER BY 3 DESC LIMIT 5
"""


def ask_embedded(root: Path) -> Answer:
    with bus.sql.connect(str(root)) as connection:
        return [(airline, flights, delay) for airline, flights, delay in connection.sql(EMBEDDED_QUESTION)]


def count_embedded(root: Path, versions: Mapping[str | TopicPartition, int]) -> int:
    with bus.sql.connect(str(root), at_version=versions) as connection:
        return int(connection.sql(f"SELECT count(*) FROM {FLIGHTS.topic}").fetchall()[0][0])


def start_spark(log: Path) -> SparkSession:
    """A session whose Java process writes its messages to `log`. Raises what `bus.spark.session` raises."""
    import bus.spark

    with _stderr_to(log):
        return bus.spark.session("bus-demo", conf={**bus.spark.SHORT_SESSION, "spark.log.level": "ERROR"})


def ask_spark(spark: SparkSession, root: Path) -> Answer:
    from bus.spark import read_topic

    for topic in ("flights", "airlines"):
        read_topic(spark, str(root), topic).createOrReplaceTempView(topic)
    return [(row.airline, row.flights, row.delay) for row in spark.sql(SPARK_QUESTION).collect()]


def count_spark(spark: SparkSession, root: Path, versions: Mapping[str | TopicPartition, int]) -> int:
    from bus.spark import read_topic

    return read_topic(spark, str(root), FLIGHTS.topic, at_version=versions).count()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Java inherits the file descriptor, which no setting of Spark reaches before it starts."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
