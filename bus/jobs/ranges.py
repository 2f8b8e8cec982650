"""Where the jobs that read a topic find it, and which of its records they take.

Guards one promise: what an argument leaves out is an edge of the log, and what it says wrong is refused before anything
is read. Ends are offsets, fixed when the job starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bus.model import TopicPartition
from bus.spark import jobs
from bus.spark.source.access import Bounds, LogAccess
from bus.spark.source.options import Location, OptionError, Subscribed
from bus.spark.source.positions import EARLIEST_OFFSET, LATEST_OFFSET, AtOffsets, AtTime, Edge, Position
from bus.spark.source.starting import resolve, select

Given = tuple[int | None, int]  # partition, None: all of them; offset


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """`begin[p] <= end[p]`, of all partitions of one topic."""

    begin: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    jobs.add_bootstrap_argument(parser)
    parser.add_argument("--root", help="read the storage of this bus root, without a broker")


def add_range_arguments(parser: argparse.ArgumentParser) -> None:
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
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--to-offset",
        action="append",
        type=partition_offset,
        default=[],
        metavar="[PARTITION=]N",
        help="up to that offset, without it (default: the end of the log)",
    )
    end.add_argument(
        "--to-time", type=jobs.timestamp_ms, metavar="TIME", help="up to the first record of that time or later"
    )


def partition_offset(text: str) -> Given:
    partition, equals, offset = text.rpartition("=")
    if not offset.isdecimal() or (equals and not partition.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected [PARTITION=]OFFSET, found {text!r}")
    return (int(partition) if equals else None, int(offset))


def location_of(options: argparse.Namespace) -> Location:
    return Location(root=options.root) if options.root else Location(address=options.bootstrap)


def place_options(options: argparse.Namespace) -> dict[str, str]:
    """The same, as options of `format("bus")`."""
    return {"bus.root": options.root} if options.root else {"bus.bootstrap.servers": options.bootstrap}


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
        raise jobs.JobFailed(f"expected a partition from 0 to {len(known) - 1}, found {unknown[0]}")
    everywhere = given.get(None, EARLIEST_OFFSET if edge is Edge.EARLIEST else LATEST_OFFSET)
    return AtOffsets({partition: given.get(partition.partition, everywhere) for partition in partitions})
