"""Does the log keep its promises? `bus log verify`, spread over the executors of Spark.

    python -m bus.jobs.verify_log --root /srv/bus orders payments/3
    python -m bus.jobs.verify_log --root /srv/bus --all --csv > breaches.csv

The verifier of the storage judges each partition, whole, in one task: its log, its data files, its producers and its
transactions. So partitions are spread, and one partition is not. Prints a table of breaches and mends nothing; may run
beside a broker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bus.model import TopicPartition
from bus.spark import jobs
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verify_log",
        description="Judge the log of topics by their tables, and show every promise that is not kept.",
        epilog="Exit code 1 if there is a breach.",
    )
    parser.add_argument("partitions", nargs="*", metavar="TOPIC[/PARTITION]")
    jobs.add_root_argument(parser)
    parser.add_argument("--all", action="store_true", help="all topics of the root, the bus's own included")
    parser.add_argument("--no-rows", action="store_true", help="only the Delta logs and the sizes of the files")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    options = parser.parse_args(arguments)
    if bool(options.partitions) == options.all:
        parser.error("expected topics or --all, found " + ("both" if options.all else "neither"))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("verify-log", partial(_verify, options))


def _verify(options: argparse.Namespace, spark: SparkSession) -> int:
    tables = TopicTables(options.root)
    chosen = jobs.partitions_named(tables, tables.topics() if options.all else options.partitions)
    topics: dict[str, list[NamedPartition]] = {}
    known_topics = tables.cluster().topics
    for one in chosen:
        known = known_topics.get(one.topic)
        topics.setdefault(one.topic, []).append((one, known.topic_id if known else None))
    numbers = {topic: number for number, topic in enumerate(topics, start=1)}
    found: list[FoundBreach] = []
    for together in _portions(topics, spark.sparkContext.defaultParallelism):
        named = [one for topic in together for one in topics[topic]]
        breaches = verify_partitions(spark, str(tables.root), named, has_rows=not options.no_rows)
        for topic in together:
            own = [one for one in breaches if one.topic == topic]
            jobs.tell(f"{topic} ({numbers[topic]} of {len(topics)}): {_plural(len(own), 'breach', 'breaches')}")
            found += own
    if found:
        jobs.print_rows(spark.createDataFrame(found, BREACH_SCHEMA), csv=options.csv)
    return jobs.EXIT_FAILURE if found else jobs.EXIT_DONE


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


if __name__ == "__main__":
    sys.exit(main())
