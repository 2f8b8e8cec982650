"""Join a topic with a Delta table in one SQL statement.

    python docs/examples/topic_with_delta_table.py ./bus-data ./carriers

The topic `flights` has JSON values like {"carrier": "UA", "delay": 5}, which a view shows as columns:

    bus views create delays flights --schema "carrier STRING, delay INT"

`carriers` is a Delta table with the columns carrier and name, written by anything that writes Delta.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

import bus.spark


def delay_by_name(spark: SparkSession, root: str, carriers: str) -> DataFrame:
    bus.spark.register(spark, root, topics=[], views=["delays"])
    spark.read.format("delta").load(carriers).createOrReplaceTempView("carriers")
    return spark.sql(
        """
        SELECT name, count(*) AS flights, avg(delay) AS delay
        FROM delays JOIN carriers USING (carrier)
        GROUP BY name ORDER BY name
        """
    )


if __name__ == "__main__":
    delay_by_name(bus.spark.session("topic-with-delta-table"), *sys.argv[1:3]).show()
