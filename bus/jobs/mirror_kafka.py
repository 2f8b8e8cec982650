"""Topics of a Kafka cluster into the bus, or of the bus into Kafka, with Spark's Kafka connector.

    python -m bus.jobs.mirror_kafka to-bus --kafka k:9092 --topics orders,payments --continuous --checkpoint /srv/m1
    python -m bus.jobs.mirror_kafka to-kafka --kafka k:9092 --topics orders --checkpoint /srv/m2

The connector is not a part of this project: `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`, `--jars`
with its files, or spark-submit's options of these names. Every record carries in its headers where it comes from:
cluster, topic, partition, offset, time. A record that was mirrored once is not mirrored back.

To the bus each record comes once, in the order of its partition, for as long as the checkpoint is kept; without one the
job looks for the last offset of each partition that the target has, and goes on behind it. To Kafka a record may come
twice if the job is killed, since Spark's Kafka sink knows no better; the headers tell.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bus import NewTopic
from bus.jobs.queries import (
    TopicTarget,
    add_pace_arguments,
    add_query_arguments,
    batch_to_topic,
    follow,
    trigger_of,
)
from bus.jobs.ranges import header_text, in_offset_order, topic_columns, with_origin
from bus.spark import jobs
from bus.spark.jars import check_jars, delta_coordinate, jars_folder
from bus.spark.jobs import sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EARLIEST = -2  # in the JSON of offsets


def mirrored(rows: DataFrame, *, cluster: str, prefix: str, target_cluster: str) -> DataFrame:
    """What is written for `rows` of Kafka's schema with headers: their origin in the headers, under `prefix` + topic.
    Those whose origin is `target_cluster` have come from there and are left out."""
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mirror_kafka",
        description="Topics of a Kafka cluster into the bus, or of the bus into Kafka.",
        epilog="Exit code 1 if something was refused or could not be done; run it again to go on.",
    )
    parser.add_argument("direction", choices=("to-bus", "to-kafka"))
    parser.add_argument("--kafka", required=True, metavar="ADDRESSES", help="kafka.bootstrap.servers")
    parser.add_argument("--topics", required=True, type=topic_names, metavar="A,B", help="topics of the source")
    parser.add_argument("--prefix", default="", help="before the names of the topics in the target (default: none)")
    jobs.add_bootstrap_argument(parser)
    parser.add_argument(
        "--kafka-name", default="kafka", metavar="NAME", help="name of the Kafka cluster in headers (default: kafka)"
    )
    parser.add_argument("--bus-name", default="bus", metavar="NAME", help="name of the bus in headers (default: bus)")
    parser.add_argument(
        "--kafka-option",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="of Spark's Kafka connector, as kafka.security.protocol=SSL; may be given several times",
    )
    parser.add_argument(
        "--create", action="store_true", help="to-bus: create topics that are not there, with as many partitions"
    )
    parser.add_argument(
        "--timestamps",
        choices=("keep", "now"),
        default="keep",
        help="to-bus: the times of Kafka, or of writing (default: keep)",
    )
    parser.add_argument("--packages", metavar="COORDINATES", help="Maven coordinates of the connector")
    parser.add_argument("--jars", metavar="FILES", help="files of the connector, separated by commas")
    parser.add_argument(
        "--tasks",
        type=jobs.positive_number,
        default=8,
        metavar="N",
        help="to-bus: tasks of a batch; the same with the same checkpoint (default: 8)",
    )
    add_query_arguments(parser, batch_records=1_000_000)
    add_pace_arguments(parser)
    return parser.parse_args(arguments)


def topic_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"expected names of topics, separated by commas, found {text!r}")
    return names


def named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parse_arguments(arguments)
    return jobs.run_job("mirror-kafka", partial(_mirror, options), connector_settings(options.packages, options.jars))


def _mirror(options: argparse.Namespace, spark: SparkSession) -> int:
    check_connector(spark)
    if options.direction == "to-kafka":
        return to_kafka(spark, options)
    return to_bus(spark, options, kafka_partitions(spark, options))


def check_connector(spark: SparkSession, source: str = "kafka") -> None:
    """Raises `JobFailed` if Spark does not have it."""
    from pyspark.errors import PySparkException

    try:
        spark.read.format(source).option("kafka.bootstrap.servers", "none:1").option("subscribe", "none").load()
    except PySparkException as error:
        if "Failed to find" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise jobs.JobFailed(
                f"expected Spark's Kafka connector, found no format {source!r}: give --packages "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}, or --jars"
            ) from None
        raise


def to_bus(
    spark: SparkSession, options: argparse.Namespace, partitions: Mapping[str, int], source: str = "kafka"
) -> int:
    """`partitions`: how many each topic has in Kafka; `source`: the format that gives Kafka's rows."""
    check_targets(options, partitions)
    last = carried_offsets(spark, options)
    rows = (
        spark.readStream.format(source)
        .options(**kafka_options(options))
        .options(
            subscribe=",".join(options.topics),
            includeHeaders="true",
            maxOffsetsPerTrigger=str(options.batch_records),
            startingOffsets=starting_offsets(last, partitions),
        )
        .load()
    )
    keeps = options.timestamps == "keep"
    target = TopicTarget(jobs.broker_options(options), topic=None, keeps_timestamps=keeps)
    query = (
        rows.writeStream.foreachBatch(batch_to_topic(partial(bus_rows, options=options), target))
        .option("checkpointLocation", options.checkpoint)
        .trigger(**trigger_of(options))
        .start()
    )
    follow(query)
    return jobs.EXIT_DONE


def bus_rows(rows: DataFrame, options: argparse.Namespace) -> DataFrame:
    """Each record goes into the partition that it has in Kafka."""
    found = mirrored(
        in_offset_order(rows, options.tasks),
        cluster=options.kafka_name,
        prefix=options.prefix,
        target_cluster=options.bus_name,
    )
    columns = topic_columns(found, keep_partitions=True, keep_timestamps=options.timestamps == "keep").columns
    return found.select("topic", *columns)


def kafka_options(options: argparse.Namespace) -> dict[str, str]:
    return {"kafka.bootstrap.servers": options.kafka, **dict(options.kafka_option)}


def kafka_partitions(spark: SparkSession, options: argparse.Namespace) -> dict[str, int]:
    """How many each topic has: Kafka's own admin client is asked, which comes with the connector."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session without its JVM"
    settings, names = jvm.java.util.Properties(), jvm.java.util.ArrayList()
    for name, value in kafka_options(options).items():
        if name.startswith("kafka."):
            settings.put(name.removeprefix("kafka."), value)
    for name in options.topics:
        names.add(name)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        described = admin.describeTopics(names).allTopicNames().get()
        return {name: described.get(name).partitions().size() for name in options.topics}
    finally:
        admin.close()


def check_targets(options: argparse.Namespace, partitions: Mapping[str, int]) -> None:
    """Raises `JobFailed` for a topic of the bus that is not there, or has too few partitions."""
    with jobs.open_admin(options) as admin:
        known = admin.list_topics()
        missing = [name for name in options.topics if options.prefix + name not in known]
        if missing and not options.create:
            raise jobs.JobFailed(f"expected a topic {options.prefix}{missing[0]}, found none; --create makes it")
        if missing:
            admin.create_topics([NewTopic(options.prefix + name, partitions[name]) for name in missing])
        described = admin.describe_topics([options.prefix + name for name in options.topics])
    for name in options.topics:
        count = len(described[options.prefix + name].partitions)
        if count < partitions[name]:
            raise jobs.JobFailed(
                f"{options.prefix}{name}: expected {partitions[name]} partitions or more, as in Kafka, found {count}"
            )


def carried_offsets(spark: SparkSession, options: argparse.Namespace) -> dict[tuple[str, int], int]:
    """What the target says of how far an earlier run came. Counts for a new checkpoint alone."""
    target = spark.read.format("bus").options(
        **jobs.broker_options(options),
        subscribe=",".join(options.prefix + name for name in options.topics),
        includeHeaders="true",
    )
    return {
        (row.topic, row.partition): row.offset for row in last_mirrored(target.load(), options.kafka_name).collect()
    }


def to_kafka(spark: SparkSession, options: argparse.Namespace, target: str = "kafka") -> int:
    """`target`: the format that takes rows for Kafka."""
    rows = (
        spark.readStream.format("bus")
        .options(**jobs.broker_options(options))
        .options(
            subscribe=",".join(options.topics),
            includeHeaders="true",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(options.batch_records),
            groupIdPrefix="mirror-kafka",
        )
        .load()
    )
    found = mirrored(rows, cluster=options.bus_name, prefix=options.prefix, target_cluster=options.kafka_name)
    query = (
        found.select("topic", "partition", "key", "value", "headers")
        .writeStream.format(target)
        .options(**kafka_options(options), includeHeaders="true")
        .option("checkpointLocation", options.checkpoint)
        .trigger(**trigger_of(options))
        .start()
    )
    follow(query)
    return jobs.EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
