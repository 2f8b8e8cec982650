"""Match the records of two topics by key and time: each order with its payment within an hour.

    python docs/examples/stream_stream_join.py ./bus-data ./paid

Both topics have JSON values with an id and a time: {"id": "o-1", "at": "2024-02-29T12:00:00Z"}. The watermarks say for
how long a record waits for its partner, and so how much state Spark keeps: an order and a payment that come more than
ten minutes later than others of their time are not waited for.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import bus.spark


def events(spark: SparkSession, root: str, topic: str) -> DataFrame:
    """The topic as a stream of id and time."""
    stream = (
        spark.readStream.format("bus")
        .option("bus.root", root)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    value = sql.from_json(sql.col("value").cast("string"), "id STRING, at TIMESTAMP").alias("event")
    return stream.select(value).select("event.*").withWatermark("at", "10 minutes")


def paid_within_an_hour(orders: DataFrame, payments: DataFrame) -> DataFrame:
    is_in_time = sql.expr("payment.at BETWEEN order.at AND order.at + INTERVAL 1 HOUR")
    is_same = sql.expr("payment.id = order.id")
    joined = orders.alias("order").join(payments.alias("payment"), is_same & is_in_time)
    return joined.selectExpr("order.id", "order.at AS ordered_at", "payment.at AS paid_at")


def run(spark: SparkSession, root: str, target: str) -> None:
    """All that is there now."""
    query = (
        paid_within_an_hour(events(spark, root, "orders"), events(spark, root, "payments"))
        .writeStream.format("delta")
        .option("checkpointLocation", f"{target}/_checkpoint")
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    run(bus.spark.session("stream-stream-join"), *sys.argv[1:3])
