"""Records of one topic again, into another one: a range of offsets, a window of time, changed on the way if need be.

    python -m bus.jobs.replay --from-time 2026-11-21T09:00Z --to-time 2026-11-21T10:00Z --checkpoint /srv/r orders again
    python -m bus.jobs.replay --from-offset 0=4711 --change fixes:repair --checkpoint /srv/r2 dead-letters orders

Each record is appended once, however often the job is killed and run again with the same checkpoint, and the records of
a partition keep their order. `--change MODULE:FUNCTION` names a function from DataFrame to DataFrame; it gets the rows
of `format("bus")` with headers, a batch at a time, and returns some with the column value. If it brings rows into
another order (groupBy, join, distinct), say `--order content`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus.jobs.queries import TopicTarget, add_query_arguments, batch_to_topic, check_target, follow, stream_of
from bus.jobs.ranges import (
    Change,
    OffsetSpan,
    add_place_arguments,
    add_range_arguments,
    before_ends,
    change_named,
    find_span,
    in_offset_order,
    topic_columns,
    with_origin,
)
from bus.spark import jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def replayed(
    rows: DataFrame,
    ends: Mapping[int, int],
    change: Change | None,
    *,
    tasks: int,
    keep_partitions: bool,
    keep_timestamps: bool,
    origin: str | None,
) -> DataFrame:
    """What is appended for `rows` of the source: those below `ends`, in order, with their origin in the headers if
    `origin` names it, changed."""
    wanted = in_offset_order(before_ends(rows, ends), tasks)
    if origin is not None:
        wanted = with_origin(wanted, origin)
    return topic_columns(
        wanted if change is None else change(wanted), keep_partitions=keep_partitions, keep_timestamps=keep_timestamps
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="replay",
        description="Records of one topic again, into another one.",
        epilog="Exit code 1 if something was refused or could not be done; run it again to go on.",
    )
    parser.add_argument("source", metavar="TOPIC")
    parser.add_argument("target", metavar="TARGET")
    add_place_arguments(parser)
    parser.add_argument(
        "--target-address",
        "--target-bootstrap",
        dest="target_bootstrap",
        metavar="HOST:PORT",
        help="a broker of the target (default: --address)",
    )
    add_range_arguments(parser)
    add_query_arguments(parser, batch_records=1_000_000)
    parser.add_argument(
        "--change",
        type=change_named,
        metavar="MODULE:FUNCTION",
        help="what is made of each batch: from DataFrame to DataFrame",
    )
    parser.add_argument(
        "--order",
        choices=("rows", "content"),
        default="rows",
        help="how rows are told apart when a batch is written again: by their order, or by what is in them "
        "(default: rows)",
    )
    parser.add_argument("--keep-partitions", action="store_true", help="each record into the partition of its number")
    parser.add_argument(
        "--timestamps", choices=("keep", "now"), default="now", help="of the new records (default: now)"
    )
    parser.add_argument(
        "--origin", metavar="CLUSTER", help="say in headers where a record comes from, under this name of the cluster"
    )
    parser.add_argument(
        "--tasks",
        type=jobs.positive_number,
        default=8,
        metavar="N",
        help="tasks of a batch; the same with the same checkpoint (default: 8)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the offsets; write nothing")
    parser.add_argument("--csv", action="store_true", help="with --dry-run: CSV instead of a table")
    options = parser.parse_args(arguments)
    if options.target_bootstrap in (None, options.bootstrap):
        check_target(parser, options)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("replay", partial(_replay, options))


def _replay(options: argparse.Namespace, spark: SparkSession) -> int:
    span = find_span(options.source, options)
    if options.dry_run:
        return _show(spark, span, csv=options.csv)
    with jobs.open_admin(options, options.target_bootstrap) as admin:
        admin.describe_topics([options.target])
    broker = jobs.broker_options(options, options.target_bootstrap)
    target = TopicTarget(broker, options.target, options.timestamps == "keep", options.order)
    rows = stream_of(spark, options.source, span, options, group="replay", has_headers=True)
    query = (
        rows.writeStream.foreachBatch(batch_to_topic(_change(span, options), target))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    follow(query, ends=span.end)
    return jobs.EXIT_DONE


def _change(span: OffsetSpan, options: argparse.Namespace) -> Callable[[DataFrame], DataFrame]:
    return partial(
        replayed,
        ends={partition.partition: end for partition, end in span.end.items()},
        change=options.change,
        tasks=options.tasks,
        keep_partitions=options.keep_partitions,
        keep_timestamps=options.timestamps == "keep",
        origin=options.origin,
    )


def _show(spark: SparkSession, span: OffsetSpan, *, csv: bool) -> int:
    rows = [(one.partition, span.begin[one], span.end[one], span.end[one] - span.begin[one]) for one in span.end]
    jobs.print_rows(
        spark.createDataFrame(rows, "partition int, from_offset long, to_offset long, offsets long"), csv=csv
    )
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
