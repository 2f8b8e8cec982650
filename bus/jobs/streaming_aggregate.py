"""Counts and sums over windows of time, from one topic into another, as a stream: the seed of a pipeline of your own.

    python -m bus.jobs.streaming_aggregate --schema "shop string, total double, at timestamp" --key shop \\
        --measure total --time at --window "1 minute" --late "30 seconds" --checkpoint /srv/a1 orders orders-per-minute

Values are JSON. Of each window and key one record is written, when no record of it can come any more: the watermark,
the newest time that was seen less `--late`, has passed its end. Records that come later still are left out, as Spark
counts them (numRowsDroppedByWatermark). Key of the record: the group's; value: JSON with window_start, window_end, key,
records and, with `--measure`, its sum, min, max and mean. Each result is in the target once, also if the job, a
task or the broker is killed: what batches have read, what windows hold and what was written are one state, the
checkpoint's.

With `--output-mode update` each change of a window is written at once, and the last record holds: for a compacted
target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus.jobs.queries import (
    TopicTarget,
    add_pace_arguments,
    add_query_arguments,
    batch_to_topic,
    check_target,
    follow,
    stream_of,
    trigger_of,
)
from bus.jobs.ranges import add_place_arguments, add_range_arguments, find_span
from bus.spark import jobs
from bus.spark.jobs import sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Figures of doubles are computed in it: sums of decimals do not depend on the order in which records come, so a batch
# that runs again has the same results.
_FRACTION = "decimal(28,9)"
_WHOLE = "decimal(20,0)"


def parsed_records(rows: DataFrame, schema: str | None, *, key: str | None, time: str | None) -> DataFrame:
    """`rows` of `format("bus")` as: event_time, group_key, and the columns of `schema`.

    The time is that column of the value, or the record's own; the group is that column as text, or the record's key. A
    value that is no JSON of the schema has null columns: it belongs to the group null, and to the record's own time.
    """
    fields = rows
    names: list[str] = []
    if schema is not None:
        parsed = jobs.typed_values(rows, schema)
        names = parsed.schema["value"].dataType.fieldNames()  # type: ignore[attr-defined]  # a struct
        fields = parsed.withColumnRenamed("timestamp", "__timestamp").withColumnRenamed("key", "__key")
        fields = fields.select("__timestamp", "__key", "value.*")
    else:
        fields = rows.select(sql.col("timestamp").alias("__timestamp"), sql.col("key").alias("__key"))
    for option, name in (("--key", key), ("--time", time)):
        if name is not None and name not in names:
            raise jobs.JobFailed(f"{option}: expected a column of --schema, {', '.join(names) or 'none'}, found {name}")
    own_time = sql.col("__timestamp")
    moment = own_time if time is None else sql.coalesce(sql.col(time).cast("timestamp"), own_time)
    group = sql.col("__key" if key is None else key).cast("string")
    return fields.select(moment.alias("event_time"), group.alias("group_key"), *names)


def windowed(records: DataFrame, *, window: str, slide: str | None, late: str, measure: str | None) -> DataFrame:
    """A row for each window and group: window_start, window_end, key, records [, sum, min, max, mean].

    Whole numbers and decimals are taken as they are, and their figures are decimals, or null where those do not hold
    them. Of fractions nine decimals are taken, and none with more than 19 digits before the point.
    """
    if measure is not None and measure not in records.columns:
        raise jobs.JobFailed(f"--measure: expected a column of --schema, found {measure}")
    figures = [sql.count("*").alias("records")]
    if measure is not None:
        figures += _figures_of(records, measure)
    grouped = records.withWatermark("event_time", late).groupBy(
        sql.window("event_time", window, slide).alias("window"), sql.col("group_key").alias("key")
    )
    found = grouped.agg(*figures)
    others = [name for name in found.columns if name != "window"]
    return found.select(
        sql.col("window.start").alias("window_start"), sql.col("window.end").alias("window_end"), *others
    )


def _figures_of(records: DataFrame, measure: str) -> list[Column]:
    kind = records.schema[measure].dataType.typeName()
    if kind == "decimal":
        number, is_exact = sql.col(measure), True
    elif kind in ("byte", "short", "integer", "long"):
        number, is_exact = sql.col(measure).cast(_WHOLE), True
    else:
        number, is_exact = sql.col(measure).try_cast(_FRACTION), False
    figures = {"sum": sql.try_sum(number), "min": sql.min(number), "max": sql.max(number), "mean": sql.try_avg(number)}
    return [(figure if is_exact else figure.cast("double")).alias(name) for name, figure in figures.items()]


def as_topic_rows(results: DataFrame) -> DataFrame:
    """Key: the group's; value: all columns as JSON, times in UTC."""
    value = sql.to_json(
        sql.struct(*results.columns), {"ignoreNullFields": "false", "timeZone": "UTC", **jobs.WHOLE_TIMES}
    )
    return results.select(sql.col("key").alias("key"), value.alias("value"))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="streaming_aggregate",
        description="Counts and sums over windows of time, from one topic into another.",
        epilog="Exit code 1 if something was refused or could not be done; run it again to go on.",
    )
    parser.add_argument("source", metavar="TOPIC")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--schema", metavar="DDL", help='of the JSON values, as "shop string, total double"')
    parser.add_argument("--key", metavar="COLUMN", help="one result for each value of it (default: the record's key)")
    parser.add_argument("--time", metavar="COLUMN", help="when a record happened (default: its timestamp)")
    parser.add_argument(
        "--measure", metavar="COLUMN", help="a number: its sum, min, max and mean (default: count only)"
    )
    parser.add_argument("--window", default="1 minute", metavar="TIME", help="length of a window (default: 1 minute)")
    parser.add_argument("--slide", metavar="TIME", help="a window begins so often (default: where the last one ended)")
    parser.add_argument(
        "--late", default="10 seconds", metavar="TIME", help="how much later a record may come (default: 10 seconds)"
    )
    parser.add_argument(
        "--output-mode", choices=("append", "update"), default="append", help="final results, or all (default: append)"
    )
    add_place_arguments(parser)
    add_range_arguments(parser, has_end=False)
    add_query_arguments(parser, batch_records=1_000_000)
    add_pace_arguments(parser)
    options = parser.parse_args(arguments)
    if options.to_offset or options.to_time is not None:
        parser.error("expected no end: the stream goes up to the end of the log, or on with --continuous")
    check_target(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("streaming-aggregate", partial(_aggregate, options))


def _aggregate(options: argparse.Namespace, spark: SparkSession) -> int:
    span = find_span(options.source, options)
    with jobs.open_admin(options) as admin:
        admin.describe_topics([options.target])
    rows = stream_of(spark, options.source, span, options, group="streaming-aggregate")
    records = parsed_records(rows, options.schema, key=options.key, time=options.time)
    results = windowed(records, window=options.window, slide=options.slide, late=options.late, measure=options.measure)
    # Results of a window come in the order of the state, which another attempt may not repeat.
    target = TopicTarget(jobs.broker_options(options), options.target, keeps_timestamps=False, order="content")
    # A batch at a time, since Spark lets no Python sink have a stream of updates.
    writer = results.writeStream.foreachBatch(batch_to_topic(as_topic_rows, target))
    query = (
        writer.option("checkpointLocation", options.checkpoint)
        .outputMode(options.output_mode)
        .trigger(**trigger_of(options))
        .start()
    )
    follow(query)
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
