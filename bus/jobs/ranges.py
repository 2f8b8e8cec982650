"""Where the jobs that read a topic find it, which of its records they take, and what they do with the rows: order,
origin, the columns that a topic takes, and a user's own change of them.

Guards two promises. What an argument leaves out is an edge of the log, and what it says wrong is refused before
anything is read; ends are offsets, fixed when the job starts. And rows that are read again come in the same order in
the same tasks on any machine, so a batch that Spark repeats is written once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bus.errors import show_range
from bus.model import TopicPartition
from bus.spark import jobs
from bus.spark.jobs import JobFailed, sql
from bus.spark.source.access import Bounds, LogAccess
from bus.spark.source.boundaries import resolve, select
from bus.spark.source.positions import EARLIEST_OFFSET, LATEST_OFFSET, AtOffsets, AtTime, Edge, Position
from bus.spark.source.source_options import Location, OptionError, Subscribed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Given = tuple[int | None, int]  # partition, None: all of them; offset


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """`begin[p] <= end[p]`, of all partitions of one topic."""

    begin: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    jobs.add_bootstrap_argument(parser)
    parser.add_argument("--root", help="read the storage of this bus root, without a broker")


def add_range_arguments(parser: argparse.ArgumentParser, *, has_end: bool = True) -> None:
    """`has_end`: False for a job that refuses an end by name, and so does not offer it."""
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from-offset",
        action="append",
        type=partition_offset,
        default=[],
        metavar="[PARTITION=]N",
        help="begin there, in every partition or in that one; may be given several times (default: the earliest)",
    )
    start.add_argument(
        "--from-time", type=jobs.timestamp_ms, metavar="TIME", help="begin at the first record of that time or later"
    )
    # argparse cannot write the usage of a group of which nothing is shown.
    end = parser.add_mutually_exclusive_group() if has_end else parser
    end.add_argument(
        "--to-offset",
        action="append",
        type=partition_offset,
        default=[],
        metavar="[PARTITION=]N",
        help="up to that offset, without it (default: the end of the log)" if has_end else argparse.SUPPRESS,
    )
    end.add_argument(
        "--to-time",
        type=jobs.timestamp_ms,
        metavar="TIME",
        help="up to the first record of that time or later" if has_end else argparse.SUPPRESS,
    )


def partition_offset(text: str) -> Given:
    partition, equals, offset = text.rpartition("=")
    if not offset.isdecimal() or (equals and not partition.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected [PARTITION=]OFFSET, found {text!r}")
    return (int(partition) if equals else None, int(offset))


def location_of(options: argparse.Namespace) -> Location:
    if options.root:
        return Location(root=options.root)
    return Location(address=options.bootstrap, settings={"profile": options.profile or ""})


def place_options(options: argparse.Namespace) -> dict[str, str]:
    """The same, as options of `format("bus")`."""
    return {"bus.root": options.root} if options.root else jobs.broker_options(options)


def find_span(topic: str, options: argparse.Namespace) -> OffsetSpan:
    """Asks the log. Raises `JobFailed`, or `BusError` for a topic that is not there."""
    from bus.spark.source.inputs import open_access

    access = open_access(location_of(options))
    try:
        bounds = access.bounds(select(Subscribed((topic,)), access.topics()).partitions)
        return resolve_span(bounds, access, options)
    finally:
        access.close()


def resolve_span(bounds: Mapping[TopicPartition, Bounds], access: LogAccess, options: argparse.Namespace) -> OffsetSpan:
    """Raises `JobFailed` for a partition that is not there, an end before its start, or one beyond the log's."""
    try:
        begin = resolve(_position(options.from_offset, options.from_time, Edge.EARLIEST, bounds), bounds, access)
        end = resolve(_position(options.to_offset, options.to_time, Edge.LATEST, bounds), bounds, access, edge="ending")
    except OptionError as error:
        raise jobs.JobFailed(str(error)) from None
    for partition, found in bounds.items():
        if end[partition] > found.end:
            raise jobs.JobFailed(
                f"{partition}: expected an end up to that of the log, {found.end}, found {end[partition]}"
            )
        if begin[partition] > end[partition]:
            raise jobs.JobFailed(
                f"{partition}: expected an end at or after the start, {begin[partition]}, found {end[partition]}"
            )
    return OffsetSpan(begin, end)


def _position(
    offsets: Sequence[Given], timestamp_ms: int | None, edge: Edge, partitions: Collection[TopicPartition]
) -> Position:
    if timestamp_ms is not None:
        return AtTime(timestamp_ms)
    if not offsets:
        return edge
    given = dict(offsets)
    known = {partition.partition for partition in partitions}
    unknown = [number for number in given if number is not None and number not in known]
    if unknown:
        raise jobs.JobFailed(f"expected a partition {show_range(0, len(known) - 1)}, found {unknown[0]}")
    everywhere = given.get(None, EARLIEST_OFFSET if edge is Edge.EARLIEST else LATEST_OFFSET)
    return AtOffsets({partition: given.get(partition.partition, everywhere) for partition in partitions})


Change = Callable[["DataFrame"], "DataFrame"]

_HEADERS = "array<struct<key:string,value:binary>>"
ORIGIN_HEADERS = ("origin.cluster", "origin.topic", "origin.partition", "origin.offset", "origin.timestamp")


def in_offset_order(rows: DataFrame, tasks: int) -> DataFrame:
    """`rows` of a topic in `tasks` tasks, each with whole partitions in the order of their offsets."""
    place = sql.pmod(sql.hash("topic") + sql.col("partition"), sql.lit(tasks)).cast("int")
    return rows.repartitionById(tasks, place).sortWithinPartitions("topic", "partition", "offset")


def before_ends(rows: DataFrame, ends: Mapping[int, int]) -> DataFrame:
    """Rows of one topic below the end of their partition; of partitions without one, none."""
    bound: Column = sql.lit(None).cast("long")
    for partition, end in ends.items():
        bound = sql.when(sql.col("partition") == partition, sql.lit(end)).otherwise(bound)
    return rows.where(sql.col("offset") < bound)


def with_origin(rows: DataFrame, cluster: str) -> DataFrame:
    """Each record says in its headers where it comes from: `ORIGIN_HEADERS`, as texts, instead of earlier ones."""
    texts = {
        "origin.cluster": sql.lit(cluster),
        "origin.topic": sql.col("topic"),
        "origin.partition": sql.col("partition").cast("string"),
        "origin.offset": sql.col("offset").cast("string"),
        "origin.timestamp": sql.unix_millis("timestamp").cast("string"),
    }
    origin = sql.array(
        *(sql.struct(sql.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
    )
    others = sql.filter(
        sql.coalesce("headers", sql.array().cast(_HEADERS)), lambda header: ~header["key"].isin(*ORIGIN_HEADERS)
    )
    return rows.withColumn("headers", sql.concat(others, origin).cast(_HEADERS))


def header_text(name: str) -> Column:
    """The last header of that name, as text; null if there is none."""
    found = sql.filter("headers", lambda header: header["key"] == name)
    return sql.when(sql.size(found) > 0, sql.element_at(found, -1)["value"].cast("string"))


def topic_columns(rows: DataFrame, *, keep_partitions: bool, keep_timestamps: bool) -> DataFrame:
    """The columns of `rows` that a topic is given. Raises `JobFailed` if there is no value."""
    if "value" not in rows.columns:
        raise JobFailed(f"expected rows with the column value, found {', '.join(rows.columns)}")
    wanted = ["key", "value", "headers"]
    wanted += ["partition"] if keep_partitions else []
    wanted += ["timestamp"] if keep_timestamps else []
    return rows.select(*(name for name in wanted if name in rows.columns))


def change_named(text: str) -> Change:
    """An argument's value: `module:function`, a function from DataFrame to DataFrame. Modules of the folder that the
    job is started in are found, too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"expected MODULE:FUNCTION, found {text!r}: {error}") from None
    if not callable(found):
        raise argparse.ArgumentTypeError(f"expected a function, found {text!r}, a {type(found).__name__}")

    def change(rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        changed = found(rows)
        if not isinstance(changed, DataFrame):
            raise JobFailed(f"expected {text} to return a DataFrame, found {type(changed).__name__}")
        return changed

    return change
