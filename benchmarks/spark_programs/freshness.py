"""From the call that sends a record until a count of its topic has it, asked again and again.

Spark SQL over the bus: by `format("bus")`, by `read_topic`, and by a view of `register`, which Delta follows; the
embedded engine over the bus; and what one does with Kafka: a query that copies the topic into a Delta table, which
Spark SQL counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import bus.spark
import bus.sql
from benchmarks.spark_programs.senders import sender
from benchmarks.spark_programs.session import Side, parser, print_result, running_session, sides_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Count = Callable[[], int]
_WARM_UPS = 5
_PAUSE_S = 0.25  # at most, so that records come at any point of a trigger
_TIMEOUT_S = 60


def main() -> None:
    options = parser()
    options.add_argument("--records", type=int, required=True)
    arguments = options.parse_args()
    topic, records = arguments.topic, arguments.records
    with running_session(arguments) as spark:
        ours, *peers = sides_of(arguments)
        with bus.sql.connect(arguments.root) as connection:
            statement = f'SELECT count(*) FROM "{topic}"'
            seconds = {"embedded": _ages(ours, topic, records, lambda: _only(connection.sql(statement).fetchall()))}
        seconds["bus"] = _ages(ours, topic, records, lambda: _format_count(spark, ours, topic))
        seconds["native"] = _ages(ours, topic, records, lambda: _native_count(spark, arguments.root, topic))
        bus.spark.register(spark, arguments.root, topics=[topic], views=[])
        seconds["live"] = _ages(ours, topic, records, _spark_count(spark, f"`{topic}`"))
        for peer in peers:
            table = f"{arguments.folder}/table"
            with _copying(spark, peer, topic, table, f"{arguments.folder}/checkpoint"):
                seconds[peer.name] = _ages(peer, topic, records, _spark_count(spark, f"delta.`{table}`"))
        print_result(seconds)


def _spark_count(spark: SparkSession, table: str) -> Count:
    return lambda: _only(spark.sql(f"SELECT count(*) FROM {table}").collect())


def _format_count(spark: SparkSession, side: Side, topic: str) -> int:
    """Spark asks a source in Python once for each load where the topic ends, so a view is made anew for each count."""
    side.read(spark, topic).createOrReplaceTempView("by_format")
    return _spark_count(spark, "by_format")()


def _native_count(spark: SparkSession, root: str, topic: str) -> int:
    records = bus.spark.read_topic(spark, root, topic)
    return _only(spark.sql("SELECT count(*) FROM {records}", records=records).collect())


def _only(rows: Sequence[tuple[int, ...]]) -> int:
    ((count,),) = rows
    return count


@contextmanager
def _copying(spark: SparkSession, side: Side, topic: str, table: str, checkpoint: str) -> Iterator[None]:
    """As soon as there is something. The table is there from the start."""
    source = side.stream(spark, topic, "earliest")
    spark.createDataFrame([], source.schema).write.format("delta").save(table)
    writer = source.writeStream.format("delta").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start(table)
    try:
        yield
    finally:
        query.stop()


def _ages(side: Side, topic: str, records: int, count: Count) -> list[float]:
    """Seconds of each record; what the topic holds already is counted first."""
    pause = random.Random(0)
    seconds = []
    known = count()
    with sender(side, topic) as send:
        for number in range(_WARM_UPS + records):
            time.sleep(pause.uniform(0, _PAUSE_S))
            started = time.perf_counter()
            send(b"%d" % number)
            known += 1
            while count() < known:
                if time.perf_counter() - started > _TIMEOUT_S:
                    raise TimeoutError(f"expected {known} records of {topic} within {_TIMEOUT_S} s, found {count()}")
            if number >= _WARM_UPS:
                seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
