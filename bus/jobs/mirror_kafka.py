"""Topics of a Kafka cluster into the bus, or of the bus into Kafka, with Spark's Kafka connector.

The connector is not a part of this project: `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`, `--jars`
with its files, or spark-submit's options of these names. Every record carries in its headers where it comes from:
cluster, topic, partition, offset, time. A record that was mirrored once is not mirrored back.

To the bus each record comes once, in the order of its partition, for as long as the checkpoint is kept; without one the
job looks for the last offset of each partition that the target has, and goes on behind it. To Kafka a record may come
twice if the job is killed, since Spark's Kafka sink knows no better; the headers tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from bus import NewTopic
from bus.cli.commands import BusCommand
from bus.cli.options import gathered, parse_pairs
from bus.jobs.commands import EXIT_DONE, run_job
from bus.jobs.options import Brokers, batch_records_option, brokers_options, tasks_option, timestamps_option
from bus.jobs.queries import Pace, TopicTarget, batch_to_topic, checkpoint_option, follow, pace_options
from bus.jobs.ranges import header_text, in_offset_order, topic_columns, with_origin
from bus.spark.jars import check_jars, delta_coordinate, jars_folder
from bus.spark.jobs import JobFailed, sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EARLIEST = -2  # in the JSON of offsets


def mirrored(rows: DataFrame, *, cluster: str, prefix: str, target_cluster: str) -> DataFrame:
    """Return what is written for `rows` of Kafka's schema with headers: their origin in the headers, under `prefix` +
    topic. Those whose origin is `target_cluster` have come from there and are left out."""
    origin = header_text("origin.cluster")
    foreign = rows.where(origin.isNull() | (origin != target_cluster))
    return with_origin(foreign, cluster).withColumn("topic", sql.concat(sql.lit(prefix), sql.col("topic")))


def last_mirrored(rows: DataFrame, cluster: str) -> DataFrame:
    """The last offset of each partition of `cluster` that `rows` of a target carry: topic, partition, offset."""
    return (
        rows.where(header_text("origin.cluster") == cluster)
        .select(
            header_text("origin.topic").alias("topic"),
            header_text("origin.partition").cast("int").alias("partition"),
            header_text("origin.offset").cast("long").alias("offset"),
        )
        .groupBy("topic", "partition")
        .agg(sql.max("offset").alias("offset"))
    )


def starting_offsets(last: Mapping[tuple[str, int], int], partitions: Mapping[str, int]) -> str:
    """Kafka's JSON: behind what was mirrored last; where nothing was, the earliest. `partitions`: how many each topic
    has."""
    offsets = {
        topic: {
            str(number): last[topic, number] + 1 if (topic, number) in last else _EARLIEST for number in range(count)
        }
        for topic, count in partitions.items()
    }
    return json.dumps(offsets)


def topic_names(text: str) -> tuple[str, ...]:
    """Read the value of an option. Raises `click.BadParameter`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"expected names of topics, separated by commas, found {text!r}")
    return names


@dataclass(frozen=True, slots=True)
class Mirror:
    """Two clusters and what is carried between them."""

    kafka: str  # kafka.bootstrap.servers
    topics: tuple[str, ...]
    brokers: Brokers
    checkpoint: str
    prefix: str  # before the names of topics in the target
    kafka_name: str  # of the clusters, in headers
    bus_name: str
    kafka_options: Mapping[str, str]
    create: bool
    keeps_timestamps: bool
    tasks: int
    batch_records: int
    pace: Pace

    def connector_options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.kafka, **self.kafka_options}


@click.command(
    cls=BusCommand,
    examples="""
    bus jobs run mirror_kafka to-bus --kafka k:9092 --topics orders --continuous --checkpoint /srv/m1
    bus jobs run mirror_kafka to-kafka --kafka k:9092 --topics orders --checkpoint /srv/m2
    """,
)
@click.argument("direction", type=click.Choice(("to-bus", "to-kafka")))
@brokers_options
@pace_options
@gathered(
    "mirror",
    Mirror,
    click.option("--kafka", required=True, metavar="ADDRESSES", help="kafka.bootstrap.servers."),
    click.option("--topics", required=True, type=topic_names, metavar="A,B", help="Topics of the source."),
    click.option("--prefix", default="", help="Before the names of the topics in the target.  [default: none]"),
    click.option("--kafka-name", default="kafka", metavar="NAME", help="Name of the Kafka cluster in headers."),
    click.option("--bus-name", default="bus", metavar="NAME", help="Name of the bus in headers."),
    click.option(
        "--kafka-option",
        "kafka_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _, __, texts: parse_pairs(texts, "--kafka-option"),
        help="Of Spark's Kafka connector, as kafka.security.protocol=SSL; repeatable.",
    ),
    click.option("--create", is_flag=True, help="to-bus: create topics that are not there, with as many partitions."),
    timestamps_option("keep", "to-bus: the times of Kafka, or of writing."),
    tasks_option(8, "to-bus: tasks of a batch; the same with the same checkpoint."),
    checkpoint_option,
    batch_records_option(1_000_000),
)
@click.option("--packages", metavar="COORDINATES", help="Maven coordinates of the connector.")
@click.option("--jars", metavar="FILES", help="Files of the connector, separated by commas.")
def mirror_kafka(direction: str, mirror: Mirror, packages: str | None, jars: str | None) -> int:
    """Carry topics of a Kafka cluster into the bus, or of the bus into Kafka.

    Exit status 1 if something was refused or could not be done; run it again to go on.
    """

    def carry(spark: SparkSession) -> int:
        check_connector(spark)
        if direction == "to-kafka":
            return to_kafka(spark, mirror)
        return to_bus(spark, mirror, kafka_partitions(spark, mirror))

    return run_job("mirror-kafka", carry, connector_settings(packages, jars))


def connector_settings(packages: str | None, jars: str | None) -> dict[str, str]:
    """Spark's settings for the connector's jars, with Delta's, which they would take the place of."""
    settings: dict[str, str] = {}
    folder = jars_folder()
    has_delta = folder is not None and folder.is_dir()
    if jars is not None:
        own = [str(jar.absolute()) for jar in check_jars(folder)] if has_delta and folder is not None else []
        settings["spark.jars"] = ",".join([*own, jars])
    if packages is not None:
        settings["spark.jars.packages"] = packages if has_delta else f"{delta_coordinate()},{packages}"
    return settings


def check_connector(spark: SparkSession, source: str = "kafka") -> None:
    """Raises `JobFailed` if Spark does not have it."""
    from pyspark.errors import PySparkException

    try:
        spark.read.format(source).option("kafka.bootstrap.servers", "none:1").option("subscribe", "none").load()
    except PySparkException as error:
        if "Failed to find" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise JobFailed(
                f"expected Spark's Kafka connector, found no format {source!r}: give --packages "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}, or --jars"
            ) from None
        raise


def to_bus(spark: SparkSession, mirror: Mirror, partitions: Mapping[str, int], source: str = "kafka") -> int:
    """`partitions`: how many each topic has in Kafka; `source`: the format that gives Kafka's rows."""
    check_targets(mirror, partitions)
    last = carried_offsets(spark, mirror)
    rows = (
        spark.readStream.format(source)
        .options(**mirror.connector_options())
        .options(
            subscribe=",".join(mirror.topics),
            includeHeaders="true",
            maxOffsetsPerTrigger=str(mirror.batch_records),
            startingOffsets=starting_offsets(last, partitions),
        )
        .load()
    )
    target = TopicTarget(mirror.brokers.options(), topic=None, keeps_timestamps=mirror.keeps_timestamps)
    query = (
        rows.writeStream.foreachBatch(batch_to_topic(partial(bus_rows, mirror=mirror), target))
        .option("checkpointLocation", mirror.checkpoint)
        .trigger(**mirror.pace.trigger())
        .start()
    )
    follow(query)
    return EXIT_DONE


def bus_rows(rows: DataFrame, mirror: Mirror) -> DataFrame:
    """Each record goes into the partition that it has in Kafka."""
    found = mirrored(
        in_offset_order(rows, mirror.tasks),
        cluster=mirror.kafka_name,
        prefix=mirror.prefix,
        target_cluster=mirror.bus_name,
    )
    columns = topic_columns(found, keep_partitions=True, keep_timestamps=mirror.keeps_timestamps).columns
    return found.select("topic", *columns)


def kafka_partitions(spark: SparkSession, mirror: Mirror) -> dict[str, int]:
    """How many each topic has: Kafka's own admin client is asked, which comes with the connector."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session without its JVM"
    settings, names = jvm.java.util.Properties(), jvm.java.util.ArrayList()
    for name, value in mirror.connector_options().items():
        if name.startswith("kafka."):
            settings.put(name.removeprefix("kafka."), value)
    for name in mirror.topics:
        names.add(name)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        described = admin.describeTopics(names).allTopicNames().get()
        return {name: described.get(name).partitions().size() for name in mirror.topics}
    finally:
        admin.close()


def check_targets(mirror: Mirror, partitions: Mapping[str, int]) -> None:
    """Raises `JobFailed` for a topic of the bus that is not there, or has too few partitions."""
    with mirror.brokers.open_admin() as admin:
        known = admin.list_topics()
        missing = [name for name in mirror.topics if mirror.prefix + name not in known]
        if missing and not mirror.create:
            raise JobFailed(f"expected a topic {mirror.prefix}{missing[0]}, found none; --create makes it")
        if missing:
            admin.create_topics([NewTopic(mirror.prefix + name, partitions[name]) for name in missing])
        described = admin.describe_topics([mirror.prefix + name for name in mirror.topics])
    for name in mirror.topics:
        count = len(described[mirror.prefix + name].partitions)
        if count < partitions[name]:
            raise JobFailed(
                f"{mirror.prefix}{name}: expected {partitions[name]} partitions or more, as in Kafka, found {count}"
            )


def carried_offsets(spark: SparkSession, mirror: Mirror) -> dict[tuple[str, int], int]:
    """Ask the target how far an earlier run came. Counts for a new checkpoint alone."""
    target = spark.read.format("bus").options(
        **mirror.brokers.options(),
        subscribe=",".join(mirror.prefix + name for name in mirror.topics),
        includeHeaders="true",
    )
    return {(row.topic, row.partition): row.offset for row in last_mirrored(target.load(), mirror.kafka_name).collect()}


def to_kafka(spark: SparkSession, mirror: Mirror, target: str = "kafka") -> int:
    """`target`: the format that takes rows for Kafka."""
    rows = (
        spark.readStream.format("bus")
        .options(**mirror.brokers.options())
        .options(
            subscribe=",".join(mirror.topics),
            includeHeaders="true",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(mirror.batch_records),
            groupIdPrefix="mirror-kafka",
        )
        .load()
    )
    found = mirrored(rows, cluster=mirror.bus_name, prefix=mirror.prefix, target_cluster=mirror.kafka_name)
    query = (
        found.select("topic", "partition", "key", "value", "headers")
        .writeStream.format(target)
        .options(**mirror.connector_options(), includeHeaders="true")
        .option("checkpointLocation", mirror.checkpoint)
        .trigger(**mirror.pace.trigger())
        .start()
    )
    follow(query)
    return EXIT_DONE
