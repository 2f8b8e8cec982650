"""Enrich the records of a topic with a Delta table while they come, and write them to another Delta table.

    python docs/examples/stream_static_join.py ./bus-data ./carriers ./enriched

Each batch sees the table as it is when the batch begins, so a carrier that is added later is there for later flights.
Flights of an unknown carrier stay, without a name. Stopped and started again, it goes on where it was: the offsets
are in the checkpoint.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import bus.spark

SCHEMA = "carrier STRING, delay INT"


def flights(spark: SparkSession, root: str) -> DataFrame:
    """The topic as a stream of typed columns."""
    stream = (
        spark.readStream.format("bus")
        .option("bus.root", root)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    value = sql.from_json(sql.col("value").cast("string"), SCHEMA).alias("flight")
    return stream.select("partition", "offset", value).select("partition", "offset", "flight.*")


def with_names(flights: DataFrame, carriers: DataFrame) -> DataFrame:
    return flights.join(sql.broadcast(carriers), "carrier", "left")


def run(spark: SparkSession, root: str, carriers: str, target: str) -> None:
    """All that is there now."""
    names = spark.read.format("delta").load(carriers)
    query = (
        with_names(flights(spark, root), names)
        .writeStream.format("delta")
        .option("checkpointLocation", f"{target}/_checkpoint")
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    run(bus.spark.session("stream-static-join"), *sys.argv[1:4])
