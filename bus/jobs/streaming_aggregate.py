"""Counts and sums over windows of time, from one topic into another, as a stream: the seed of a pipeline of your own.

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

from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.jobs.commands import EXIT_DONE, run_job
from bus.jobs.options import batch_records_option, topic_argument
from bus.jobs.queries import (
    Pace,
    TopicTarget,
    batch_to_topic,
    check_target,
    checkpoint_option,
    follow,
    pace_options,
    stream_of,
)
from bus.jobs.ranges import Place, Range, find_span, place_options, range_options
from bus.spark.jobs import WHOLE_TIMES, JobFailed, sql, typed_values

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
        parsed = typed_values(rows, schema)
        names = parsed.schema["value"].dataType.fieldNames()  # type: ignore[attr-defined]  # a struct
        fields = parsed.withColumnRenamed("timestamp", "__timestamp").withColumnRenamed("key", "__key")
        fields = fields.select("__timestamp", "__key", "value.*")
    else:
        fields = rows.select(sql.col("timestamp").alias("__timestamp"), sql.col("key").alias("__key"))
    for option, name in (("--key", key), ("--time", time)):
        if name is not None and name not in names:
            raise JobFailed(f"{option}: expected a column of --schema, {', '.join(names) or 'none'}, found {name}")
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
        raise JobFailed(f"--measure: expected a column of --schema, found {measure}")
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
    value = sql.to_json(sql.struct(*results.columns), {"ignoreNullFields": "false", "timeZone": "UTC", **WHOLE_TIMES})
    return results.select(sql.col("key").alias("key"), value.alias("value"))


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run streaming_aggregate --schema "shop string, total double, at timestamp" --key shop \\
        --measure total --time at --window "1 minute" --checkpoint /srv/a1 orders orders-per-minute
    """,
)
@topic_argument("source")
@topic_argument("target", "TARGET")
@click.option("--schema", metavar="DDL", help='Of the JSON values, as "shop string, total double".')
@click.option("--key", metavar="COLUMN", help="One result for each value of it.  [default: the record's key]")
@click.option("--time", metavar="COLUMN", help="When a record happened.  [default: its timestamp]")
@click.option("--measure", metavar="COLUMN", help="A number: its sum, min, max and mean.  [default: count only]")
@click.option("--window", default="1 minute", metavar="TIME", help="Length of a window.")
@click.option("--slide", metavar="TIME", help="A window begins so often.  [default: where the last one ended]")
@click.option("--late", default="10 seconds", metavar="TIME", help="How much later a record may come.")
@click.option("--output-mode", type=click.Choice(("append", "update")), default="append", help="Final results, or all.")
@place_options
@range_options(has_end=False)
@checkpoint_option
@batch_records_option(1_000_000)
@pace_options
def streaming_aggregate(
    source: str,
    target: str,
    schema: str | None,
    key: str | None,
    time: str | None,
    measure: str | None,
    window: str,
    slide: str | None,
    late: str,
    output_mode: str,
    place: Place,
    given: Range,
    checkpoint: str,
    batch_records: int,
    pace: Pace,
) -> int:
    """Count and sum over windows of time, from one topic into another.

    Exit status 1 if something was refused or could not be done; run it again to go on.
    """
    if given.has_end:
        raise click.UsageError("expected no end: the stream goes up to the end of the log, or on with --continuous")
    check_target(source, target)

    def aggregate(spark: SparkSession) -> int:
        span = find_span(source, place, given)
        with place.brokers.open_admin() as admin:
            admin.describe_topics([target])
        rows = stream_of(spark, source, span, place, group="streaming-aggregate", batch_records=batch_records)
        records = parsed_records(rows, schema, key=key, time=time)
        results = windowed(records, window=window, slide=slide, late=late, measure=measure)
        # Results of a window come in the order of the state, which another attempt may not repeat.
        written = TopicTarget(place.brokers.options(), target, keeps_timestamps=False, order="content")
        # A batch at a time, since Spark lets no Python sink have a stream of updates.
        writer = results.writeStream.foreachBatch(batch_to_topic(as_topic_rows, written))
        query = (
            writer.option("checkpointLocation", checkpoint).outputMode(output_mode).trigger(**pace.trigger()).start()
        )
        follow(query)
        return EXIT_DONE

    return run_job("streaming-aggregate", aggregate)
