"""A topic as files for others: a Delta table, Parquet, CSV or JSON lines; once, or for as long as it runs.

    python -m bus.jobs.export --format delta --to /data/orders --checkpoint /srv/e1 orders
    python -m bus.jobs.export --format csv --values text --to /data/csv --checkpoint /srv/e2 --to-time 2026-11-21 orders
    python -m bus.jobs.export --format delta --values json --schema "id bigint, total double" --by-date --continuous \\
        --to /data/typed --checkpoint /srv/e3 orders

Each run with the same checkpoint adds what has come since the last one, each record once. A topic is Delta already:
export it to have it in another shape, in another place, or for longer than the topic keeps it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus.jobs.queries import add_pace_arguments, add_query_arguments, follow, stream_of, trigger_of
from bus.jobs.ranges import add_place_arguments, add_range_arguments, before_ends, find_span
from bus.spark import jobs
from bus.spark.jobs import sql

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
        rows, value = jobs.typed_values(rows, schema), sql.col("value")
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="export",
        description="A topic as files for others.",
        epilog="Exit code 1 if something was refused or could not be done; run it again to go on.",
    )
    parser.add_argument("topic")
    parser.add_argument("--to", required=True, metavar="PATH", help="the folder or Delta table to add to")
    parser.add_argument("--format", choices=FORMATS, default="delta", help="(default: delta)")
    parser.add_argument(
        "--values", choices=VALUES, help="what keys and values become (default: binary; text for csv and json)"
    )
    parser.add_argument("--schema", metavar="DDL", help='of the values with --values json, as "id bigint, name string"')
    parser.add_argument("--by-date", action="store_true", help="a folder for each day, by the records' times (UTC)")
    add_place_arguments(parser)
    add_range_arguments(parser)
    add_query_arguments(parser, batch_records=5_000_000)
    add_pace_arguments(parser)
    options = parser.parse_args(arguments)
    if options.values is None:
        options.values = "text" if options.format in _TEXT_FORMATS else "binary"
    if options.values == "binary" and options.format in _TEXT_FORMATS:
        parser.error(f"argument --values: expected text, base64 or json for {options.format}, found binary")
    if (options.values == "json") != (options.schema is not None):
        parser.error("expected --schema with --values json, and with nothing else")
    if options.continuous and (options.to_offset or options.to_time is not None):
        parser.error("expected --continuous or an end, found both")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("export", partial(_export, options))


def _export(options: argparse.Namespace, spark: SparkSession) -> int:
    span = find_span(options.topic, options)
    rows = stream_of(spark, options.topic, span, options, group="export", has_headers=True)
    ends: Mapping[int, int] = {partition.partition: end for partition, end in span.end.items()}
    wanted = rows if options.continuous else before_ends(rows, ends)
    files = exported(
        wanted,
        values=options.values,
        schema=options.schema,
        is_flat=options.format == "csv",
        by_date=options.by_date,
    )
    writer = files.writeStream.format(options.format).option("checkpointLocation", options.checkpoint)
    if options.format in _TEXT_FORMATS:
        writer = writer.options(**jobs.WHOLE_TIMES)
    if options.format == "csv":
        writer = writer.option("header", "true")
    if options.by_date:
        writer = writer.partitionBy("date")
    query = writer.trigger(**trigger_of(options)).start(options.to)
    follow(query, ends=None if options.continuous else span.end)
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
