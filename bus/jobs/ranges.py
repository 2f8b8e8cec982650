"""The place where a job reads a topic, the records of it that the job takes, and what it does with the rows: order,
origin, the columns that a topic takes, and a user's own change of them.

Guards two promises. What an argument leaves out is an edge of the log, and what it says wrong is refused before
anything is read; ends are offsets, fixed when the job starts. And rows that are read again come in the same order in
the same tasks on any machine, so a batch that Spark repeats is written once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bus.cli.options import Decorator, gathered
from bus.cli.partition_arguments import TimestampType
from bus.errors import show_range
from bus.jobs.options import Brokers, brokers_options
from bus.model import TopicPartition
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


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a topic is read: from the brokers, or from the storage of `root` without one."""

    brokers: Brokers
    root: str | None

    def location(self) -> Location:
        if self.root:
            return Location(root=self.root)
        return Location(address=self.brokers.address, settings={"profile": self.brokers.profile or ""})

    def options(self) -> dict[str, str]:
        """Return the same, as options of `format("bus")`."""
        return {"bus.root": self.root} if self.root else self.brokers.options()


def place_options(command: Any) -> Any:
    root = click.option("--root", metavar="FOLDER", help="Read the storage of this root, without a broker.")
    return brokers_options(gathered("place", Place, root)(command))


@dataclass(frozen=True, slots=True)
class Range:
    """The edges where reading begins and ends. Raises `click.UsageError` if an edge is said twice."""

    from_offset: Sequence[Given] = ()
    from_time: int | None = None  # in ms
    to_offset: Sequence[Given] = ()
    to_time: int | None = None

    def __post_init__(self) -> None:
        for edge, offsets, timestamp_ms in (
            ("from", self.from_offset, self.from_time),
            ("to", self.to_offset, self.to_time),
        ):
            if offsets and timestamp_ms is not None:
                raise click.UsageError(f"expected --{edge}-offset or --{edge}-time, found both")

    @property
    def has_end(self) -> bool:
        return bool(self.to_offset) or self.to_time is not None


def range_options(*, has_end: bool = True) -> Decorator:
    """`has_end`: False for a job that refuses an end by name, and so does not offer it."""

    def offset(name: str, text: str, **settings: Any) -> Any:
        return click.option(name, multiple=True, type=partition_offset, metavar="[PARTITION=]N", help=text, **settings)

    def time(name: str, text: str, **settings: Any) -> Any:
        return click.option(name, type=TimestampType(), metavar="TIME", help=text, **settings)

    return gathered(
        "given",
        Range,
        offset("--from-offset", "Begin there, in every partition or in that one; repeatable.  [default: the earliest]"),
        time("--from-time", "Begin at the first record of that time or later."),
        offset("--to-offset", "Up to that offset, without it.  [default: the end of the log]", hidden=not has_end),
        time("--to-time", "Up to the first record of that time or later.", hidden=not has_end),
    )


def partition_offset(text: str) -> Given:
    """Read the value of an option. Raises `click.BadParameter`."""
    partition, equals, offset = text.rpartition("=")
    if not offset.isdecimal() or (equals and not partition.isdecimal()):
        raise click.BadParameter(f"expected [PARTITION=]OFFSET, found {text!r}")
    return (int(partition) if equals else None, int(offset))


def find_span(topic: str, place: Place, given: Range) -> OffsetSpan:
    """Ask the log. Raises `JobFailed`, or `BusError` for a topic that is not there."""
    from bus.spark.source.inputs import open_access

    access = open_access(place.location())
    try:
        bounds = access.bounds(select(Subscribed((topic,)), access.topics()).partitions)
        return resolve_span(bounds, access, given)
    finally:
        access.close()


def resolve_span(bounds: Mapping[TopicPartition, Bounds], access: LogAccess, given: Range) -> OffsetSpan:
    """Raises `JobFailed` for a partition that is not there, an end before its start, or one beyond the log's."""
    try:
        begin = resolve(_position(given.from_offset, given.from_time, Edge.EARLIEST, bounds), bounds, access)
        end = resolve(_position(given.to_offset, given.to_time, Edge.LATEST, bounds), bounds, access, edge="ending")
    except OptionError as error:
        raise JobFailed(str(error)) from None
    for partition, found in bounds.items():
        if end[partition] > found.end:
            raise JobFailed(f"{partition}: expected an end up to that of the log, {found.end}, found {end[partition]}")
        if begin[partition] > end[partition]:
            raise JobFailed(
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
        raise JobFailed(f"expected a partition {show_range(0, len(known) - 1)}, found {unknown[0]}")
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
    """Load the function that `--change` names as `module:function`, from DataFrame to DataFrame. Modules of the folder
    that the job is started in are found, too. Raises `click.BadParameter`."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise _no_function(f"expected MODULE:FUNCTION, found {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise _no_function(f"expected MODULE:FUNCTION, found {text!r}: {error}") from None
    if not callable(found):
        raise _no_function(f"expected a function, found {text!r}, a {type(found).__name__}")

    def change(rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        changed = found(rows)
        if not isinstance(changed, DataFrame):
            raise JobFailed(f"expected {text} to return a DataFrame, found {type(changed).__name__}")
        return changed

    return change


def _no_function(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--change")
