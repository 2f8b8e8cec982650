"""Does the log keep its promises? `bus log verify`, spread over the executors of Spark.

The verifier of the storage judges each partition, whole, in one task: its log, its data files, its producers and its
transactions. So partitions are spread, and one partition is not. Prints a table of breaches and mends nothing; may run
beside a broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from bus.cli.commands import BusCommand
from bus.cli.failures import EXIT_FAILURE
from bus.cli.options import root_option
from bus.jobs.commands import EXIT_DONE, print_rows, run_job
from bus.jobs.options import csv_option, partitions_argument
from bus.model import TopicPartition
from bus.spark.jobs import partitions_named, tell
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from bus.tables.topics import TopicTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BREACH_SCHEMA = "topic string, partition int, promise string, file string, expected string, found string"


class FoundBreach(NamedTuple):
    """A row of the table, in the order of `BREACH_SCHEMA`."""

    topic: str
    partition: int
    promise: str
    file: str
    expected: str
    found: str


NamedPartition = tuple[TopicPartition, str | None]  # with the topic's id, if the cluster knows it


def verify_partitions(
    spark: SparkSession, root: str, partitions: Sequence[NamedPartition], *, has_rows: bool = True
) -> list[FoundBreach]:
    """Judge each partition in a task of its own: the breaches by topic, partition, file and promise. Executors need
    this package, and the root under the same path as the driver."""
    spread = spark.sparkContext.parallelize(partitions, len(partitions))
    found = spread.flatMap(partial(_judge, root, has_rows)).collect()
    return sorted(set(found), key=lambda one: (one.topic, one.partition, one.file, one.promise, one.expected))


def _judge(root: str, has_rows: bool, named: NamedPartition) -> Iterator[FoundBreach]:
    """Judge one partition, in a task. A wrong file is a breach. Raises `StorageFault` if the store cannot be read."""
    partition, topic_id = named
    report = verify_partition(LocalStore(root), partition, topic_id=topic_id, has_data_files=has_rows)
    for one in report.breaches:
        yield FoundBreach(partition.topic, partition.partition, one.promise, one.file, one.expected, one.found)


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run verify_log orders payments/3
    bus jobs run verify_log --all --csv > breaches.csv
    """,
)
@partitions_argument(is_required=False)
@root_option()
@click.option("--all", "is_all", is_flag=True, help="All topics of the root, the bus's own included.")
@click.option("--no-rows", is_flag=True, help="Only the Delta logs and the sizes of the files.")
@csv_option()
def verify_log(partitions: tuple[str, ...], root: str, is_all: bool, no_rows: bool, is_csv: bool) -> int:
    """Judge the log of topics by their tables, and show every promise that is not kept.

    Exit status 1 if there is a breach.
    """
    if bool(partitions) == is_all:
        raise click.UsageError("expected topics or --all, found " + ("both" if is_all else "neither"))

    def verify(spark: SparkSession) -> int:
        tables = TopicTables(root)
        chosen = partitions_named(tables, tables.topics() if is_all else partitions)
        found = list(_breaches(spark, tables, chosen, has_rows=not no_rows))
        if found:
            print_rows(spark.createDataFrame(found, BREACH_SCHEMA), is_csv=is_csv)
        return EXIT_FAILURE if found else EXIT_DONE

    return run_job("verify-log", verify)


def _breaches(
    spark: SparkSession, tables: TopicTables, chosen: Sequence[TopicPartition], *, has_rows: bool
) -> Iterator[FoundBreach]:
    """Judge topic by topic, and tell of each how many breaches it has."""
    topics: dict[str, list[NamedPartition]] = {}
    known_topics = tables.cluster().topics
    for one in chosen:
        known = known_topics.get(one.topic)
        topics.setdefault(one.topic, []).append((one, known.topic_id if known else None))
    numbers = {topic: number for number, topic in enumerate(topics, start=1)}
    for together in _portions(topics, spark.sparkContext.defaultParallelism):
        named = [one for topic in together for one in topics[topic]]
        breaches = verify_partitions(spark, str(tables.root), named, has_rows=has_rows)
        for topic in together:
            own = [one for one in breaches if one.topic == topic]
            tell(f"{topic} ({numbers[topic]} of {len(topics)}): {_plural(len(own), 'breach', 'breaches')}")
            yield from own


def _portions(topics: Mapping[str, Sequence[object]], partitions_min: int) -> Iterator[list[str]]:
    """Topics that are judged together, lest one of few partitions leave executors idle."""
    together: list[str] = []
    for topic in topics:
        together.append(topic)
        if sum(len(topics[one]) for one in together) >= partitions_min:
            yield together
            together = []
    if together:
        yield together


def _plural(count: int, one: str, many: str) -> str:
    return f"{count or 'no'} {one if count == 1 else many}"
