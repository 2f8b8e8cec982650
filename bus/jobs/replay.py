"""Records of one topic again, into another one: a range of offsets, a window of time, changed on the way if need be.

Each record is appended once, however often the job is killed and run again with the same checkpoint, and the records of
a partition keep their order. `--change MODULE:FUNCTION` names a function from DataFrame to DataFrame; it gets the rows
of `format("bus")` with headers, a batch at a time, and returns some with the column value. If it brings rows into
another order (groupBy, join, distinct), say `--order content`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from bus.cli.commands import BusCommand
from bus.jobs.commands import EXIT_DONE, print_rows, run_job
from bus.jobs.options import batch_records_option, csv_option, tasks_option, timestamps_option, topic_argument
from bus.jobs.queries import TopicTarget, batch_to_topic, check_target, checkpoint_option, follow, stream_of
from bus.jobs.ranges import (
    Change,
    OffsetSpan,
    Place,
    Range,
    before_ends,
    change_named,
    find_span,
    in_offset_order,
    place_options,
    range_options,
    topic_columns,
    with_origin,
)

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
    """Return what is appended for `rows` of the source: those below `ends`, in order, with their origin in the headers
    if `origin` names it, changed."""
    wanted = in_offset_order(before_ends(rows, ends), tasks)
    if origin is not None:
        wanted = with_origin(wanted, origin)
    return topic_columns(
        wanted if change is None else change(wanted), keep_partitions=keep_partitions, keep_timestamps=keep_timestamps
    )


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run replay --from-time 2026-11-21T09:00Z --to-time 2026-11-21T10:00Z \\
        --checkpoint /srv/r1 orders again
    bus jobs run replay --from-offset 0=4711 --change fixes:repair --checkpoint /srv/r2 \\
        dead-letters orders
    """,
)
@topic_argument("source")
@topic_argument("target", "TARGET")
@place_options
@click.option(
    "--target-address",
    "--target-bootstrap",
    "target_address",
    metavar="HOST:PORT",
    help="A broker of the target.  [default: --address]",
)
@range_options()
@checkpoint_option
@batch_records_option(1_000_000)
@click.option("--change", metavar="MODULE:FUNCTION", help="What is made of each batch: from DataFrame to DataFrame.")
@click.option(
    "--order",
    type=click.Choice(("rows", "content")),
    default="rows",
    help="How rows are told apart when a batch is written again: by their order, or by what is in them.",
)
@click.option("--keep-partitions", is_flag=True, help="Each record into the partition of its number.")
@timestamps_option("now", "Those of the new records.")
@click.option(
    "--origin", metavar="CLUSTER", help="Say in headers where a record comes from, under this name of the cluster."
)
@tasks_option(8, "Tasks of a batch; the same with the same checkpoint.")
@click.option("--dry-run", is_flag=True, help="Show the offsets; write nothing.")
@csv_option("With --dry-run: CSV instead of a table.")
def replay(
    source: str,
    target: str,
    place: Place,
    target_address: str | None,
    given: Range,
    checkpoint: str,
    batch_records: int,
    change: str | None,
    order: str,
    keep_partitions: bool,
    keeps_timestamps: bool,
    origin: str | None,
    tasks: int,
    dry_run: bool,
    is_csv: bool,
) -> int:
    """Append records of one topic to another one, each once: a range of offsets, a window of time, changed on the way.

    Exit status 1 if something was refused or could not be done; run it again to go on.
    """
    if target_address in (None, place.brokers.address):
        check_target(source, target)
    function = None if change is None else change_named(change)
    brokers = place.brokers.at(target_address)

    def append(spark: SparkSession) -> int:
        span = find_span(source, place, given)
        if dry_run:
            return _show(spark, span, is_csv=is_csv)
        with brokers.open_admin() as admin:
            admin.describe_topics([target])
        rows = stream_of(spark, source, span, place, group="replay", batch_records=batch_records, has_headers=True)
        made = partial(
            replayed,
            ends={partition.partition: end for partition, end in span.end.items()},
            change=function,
            tasks=tasks,
            keep_partitions=keep_partitions,
            keep_timestamps=keeps_timestamps,
            origin=origin,
        )
        query = (
            rows.writeStream.foreachBatch(
                batch_to_topic(made, TopicTarget(brokers.options(), target, keeps_timestamps, order))
            )
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        follow(query, ends=span.end)
        return EXIT_DONE

    return run_job("replay", append)


def _show(spark: SparkSession, span: OffsetSpan, *, is_csv: bool) -> int:
    rows = [(one.partition, span.begin[one], span.end[one], span.end[one] - span.begin[one]) for one in span.end]
    schema = "partition int, from_offset long, to_offset long, offsets long"
    print_rows(spark.createDataFrame(rows, schema), is_csv=is_csv)
    return EXIT_DONE
