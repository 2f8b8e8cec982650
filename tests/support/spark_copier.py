"""A streaming query from topic to topic, as a program of its own that a test may kill at any moment.

Arguments: address, topic to read, topic to write, folder of the checkpoint, bus.transactional. It starts its query
again when that ends with an error, as an operator would, and says "running" when the first one has started.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import bus.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def start(
    spark: SparkSession, address: str, source: str, target: str, checkpoint: str, transactional: str
) -> StreamingQuery:
    rows = (
        spark.readStream.format("bus")
        .options(**{"bus.bootstrap.servers": address, "subscribe": source, "startingOffsets": "earliest"})
        .options(**{"maxOffsetsPerTrigger": "3000", "minPartitions": "2", "bus.splitPartitions": "false"})
        .load()
    )
    return (
        rows.selectExpr("key", "value")
        .writeStream.format("bus")
        .options(**{"bus.bootstrap.servers": address, "topic": target, "kafka.max.request.size": "4096"})
        .option("bus.transactional", transactional)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def main() -> None:
    from pyspark.errors import StreamingQueryException

    spark = bus.spark.session(
        "copier",
        master="local[2,4]",  # a task may fail four times
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.log.level": "FATAL",
            "spark.ui.enabled": "false",
        },
    )
    while True:
        query = start(spark, *sys.argv[1:6])
        print("running", flush=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            print(f"ended: {str(error)[:2000]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
