"""One Spark session for both sides, and the sides: told apart by a format and an address, and by nothing else.

Guards the fairness of the comparison: the same session with the settings that the bus ships, the same query, in turns,
after each side has run once, so that Java has compiled what it will run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bus.spark
from benchmarks.spark_jars import connector_jars
from bus.spark.jars import check_jars, jars_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Two gigabytes hold what a sink is to write, and Spark's 1 g would be a limit of its own.
_SETTINGS = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}


@dataclass(frozen=True, slots=True)
class Side:
    """A log as Spark's connectors see it."""

    name: str
    format: str
    where: Mapping[str, str]

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        return spark.read.format(self.format).options(**self.where).option("subscribe", topic).load()

    def stream(self, spark: SparkSession, topic: str, starting: str) -> DataFrame:
        reader = spark.readStream.format(self.format).options(**self.where).option("subscribe", topic)
        return reader.option("startingOffsets", starting).load()

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format(self.format).options(**self.where).option("topic", topic).mode("append").save()


def bus_side(address: str) -> Side:
    return Side("bus", "bus", {"kafka.bootstrap.servers": address})


def root_side(root: str) -> Side:
    """Without a broker."""
    return Side("root", "bus", {"bus.root": root})


def sides_of(arguments: argparse.Namespace) -> list[Side]:
    """The bus, and Kafka if there is one."""
    sides = [bus_side(arguments.bus)]
    if arguments.kafka is not None:
        sides.append(Side("kafka", "kafka", {"kafka.bootstrap.servers": arguments.kafka}))
    return sides


def parser() -> argparse.ArgumentParser:
    """What every program is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bus", required=True, help="a broker's address")
    parser.add_argument("--root", required=True, help="its storage")
    parser.add_argument("--kafka", help="a broker's address; without it there is no peer")
    parser.add_argument("--topic", required=True, help="of both sides")
    parser.add_argument("--folder", required=True, help="of checkpoints and tables, empty")
    return parser


@contextmanager
def running_session(arguments: argparse.Namespace) -> Iterator[SparkSession]:
    folder = jars_folder()
    if folder is None:
        raise FileNotFoundError("expected Delta's jars in a checkout, found no checkout: run `make setup` in one")
    jars = [*check_jars(folder), *(connector_jars() if arguments.kafka is not None else [])]
    conf = {
        **_SETTINGS,
        "spark.jars": ",".join(str(jar.absolute()) for jar in jars),
        "spark.sql.warehouse.dir": f"{arguments.folder}/warehouse",
    }
    spark = bus.spark.session("bus-benchmark", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def rounds_of(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work, in turns, after one run each that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if number > 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def print_result(result: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
