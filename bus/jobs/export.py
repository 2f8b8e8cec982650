"""A topic as files for others: a Delta table, Parquet, CSV or JSON lines; once, or for as long as it runs.

Each run with the same checkpoint adds what has come since the last one, each record once. A topic is Delta already:
export it to have it in another shape, in another place, or for longer than the topic keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.jobs.commands import EXIT_DONE, run_job
from bus.jobs.options import batch_records_option, topic_argument
from bus.jobs.queries import Pace, checkpoint_option, follow, pace_options, stream_of
from bus.jobs.ranges import Place, Range, before_ends, find_span, place_options, range_options
from bus.spark.jobs import WHOLE_TIMES, sql, typed_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("delta", "parquet", "csv", "json")
VALUES = ("binary", "text", "base64", "json")
_TEXT_FORMATS = ("csv", "json")  # they have no bytes


def exported(rows: DataFrame, *, values: str, schema: str | None, is_flat: bool, by_date: bool) -> DataFrame:
    """`rows` of `format("bus")` with headers, as they are written.

    Columns topic, partition, offset, timestamp, key, value, headers, and with `by_date` the day of the timestamp as
    `date`. `values` says what keys and values are: binary, as they are; text, UTF-8; base64; json, keys as text and
    values as a struct of `schema`, null where they are none. With `is_flat` no column is nested: headers are JSON text,
    and a struct's fields are columns of their own, `value_` before their names.
    """
    key = _decoded(sql.col("key"), "text" if values == "json" else values)
    if values == "json":
        assert schema is not None, "no schema of the values"
        rows, value = typed_values(rows, schema), sql.col("value")
    else:
        value = _decoded(sql.col("value"), values)
    headers = sql.transform(
        "headers",
        lambda header: sql.struct(
            header["key"].alias("key"), _decoded(header["value"], _of_headers(values)).alias("value")
        ),
    )
    found = rows.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        key.alias("key"),
        value.alias("value"),
        (sql.to_json(headers) if is_flat else headers).alias("headers"),
        *([sql.to_date("timestamp").alias("date")] if by_date else []),
    )
    return _flat(found) if is_flat and values == "json" else found


def _of_headers(values: str) -> str:
    return "text" if values == "json" else values


def _decoded(column: Column, values: str) -> Column:
    match values:
        case "binary":
            return column
        case "text":
            return column.cast("string")
        case "base64":
            return sql.base64(column)
        case _:
            raise AssertionError(f"no such values: {values}")


def _flat(rows: DataFrame) -> DataFrame:
    """The fields of `value` in its place."""
    kind = rows.schema["value"].dataType
    fields = [sql.col("value").getField(name).alias(f"value_{name}") for name in kind.fieldNames()]  # type: ignore[attr-defined]  # a struct
    columns = [[sql.col(name)] if name != "value" else fields for name in rows.columns]
    return rows.select(*(column for some in columns for column in some))


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run export --to /data/orders --checkpoint /srv/e1 orders
    bus jobs run export --format csv --to /data/csv --checkpoint /srv/e2 --to-time 2026-11-21 orders
    """,
)
@topic_argument("topic")
@click.option("--to", required=True, metavar="PATH", help="The folder or Delta table to add to.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="delta", help="What is written.")
@click.option(
    "--values",
    type=click.Choice(VALUES),
    help="What keys and values become.  [default: binary; text for csv and json]",
)
@click.option("--schema", metavar="DDL", help='Of the values with --values json, as "id bigint, name string".')
@click.option("--by-date", is_flag=True, help="A folder for each day, by the records' times (UTC).")
@place_options
@range_options()
@checkpoint_option
@batch_records_option(5_000_000)
@pace_options
def export(
    topic: str,
    to: str,
    form: str,
    values: str | None,
    schema: str | None,
    by_date: bool,
    place: Place,
    given: Range,
    checkpoint: str,
    batch_records: int,
    pace: Pace,
) -> int:
    """Write a topic as files for others: what has come since the last run, each record once.

    Exit status 1 if something was refused or could not be done; run it again to go on.
    """
    kind = values or ("text" if form in _TEXT_FORMATS else "binary")
    if kind == "binary" and form in _TEXT_FORMATS:
        raise click.BadParameter(f"expected text, base64 or json for {form}, found binary", param_hint="--values")
    if (kind == "json") != (schema is not None):
        raise click.UsageError("expected --schema with --values json, and with nothing else")
    if pace.continuous and given.has_end:
        raise click.UsageError("expected --continuous or an end, found both")

    def write(spark: SparkSession) -> int:
        span = find_span(topic, place, given)
        rows = stream_of(spark, topic, span, place, group="export", batch_records=batch_records, has_headers=True)
        ends: Mapping[int, int] = {partition.partition: end for partition, end in span.end.items()}
        wanted = rows if pace.continuous else before_ends(rows, ends)
        files = exported(wanted, values=kind, schema=schema, is_flat=form == "csv", by_date=by_date)
        writer = files.writeStream.format(form).option("checkpointLocation", checkpoint)
        if form in _TEXT_FORMATS:
            writer = writer.options(**WHOLE_TIMES)
        if form == "csv":
            writer = writer.option("header", "true")
        if by_date:
            writer = writer.partitionBy("date")
        query = writer.trigger(**pace.trigger()).start(to)
        follow(query, ends=None if pace.continuous else span.end)
        return EXIT_DONE

    return run_job("export", write)
