"""What each partition of some topics holds: records, offsets, times, and offsets that are missing.

    python -m jobs.offset_report --root /srv/bus orders payments
    python -m jobs.offset_report --root /srv/bus --csv orders

Reads the tables with Spark and needs no broker. Writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

import bus.spark
from bus.errors import BusError, StorageFault

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def offset_report(records: DataFrame) -> DataFrame:
    """A row for each (topic, partition) that has a record, in their order.

    `records` has the columns topic, partition, offset, timestamp. The columns here: topic, partition, records,
    first_offset, last_offset, missing (offsets between those two without a record: 0 unless the topic is compacted),
    first_timestamp, last_timestamp.
    """
    span = sql.max("offset") - sql.min("offset") + 1
    return (
        records.groupBy("topic", "partition")
        .agg(
            sql.count("*").alias("records"),
            sql.min("offset").alias("first_offset"),
            sql.max("offset").alias("last_offset"),
            (span - sql.count("*")).alias("missing"),
            sql.min("timestamp").alias("first_timestamp"),
            sql.max("timestamp").alias("last_timestamp"),
        )
        .orderBy("topic", "partition")
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What each partition of some topics holds.")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--root", default="./bus-data", help="the bus root (default: ./bus-data)")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 for a topic or a root that is not there."""
    options = parse_arguments(arguments)
    spark = bus.spark.session("offset-report")
    try:
        topics = [bus.spark.read_topic(spark, options.root, topic) for topic in options.topics]
        report = offset_report(reduce(lambda left, right: left.unionAll(right), topics))
        if options.csv:
            print(",".join(report.columns))
            for row in report.collect():
                print(",".join(str(value) for value in row))
        else:
            report.show(n=10_000, truncate=False)
    except (BusError, StorageFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
