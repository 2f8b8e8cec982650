"""Queries of `format("bus")` in tests: what reads, and what a topic holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bus import Producer


def read_bus(spark: SparkSession, where: Path | int, schema: str | None = None, /, **options: str | int) -> DataFrame:
    """A batch over a root, or by a broker's port; `_` in names stands for `.`."""
    reader = spark.read.format("bus").options(**place(where), **named(options))
    return (reader.schema(schema) if schema else reader).load()


def place(where: Path | int) -> dict[str, str]:
    if isinstance(where, int):
        return {"kafka.bootstrap.servers": f"127.0.0.1:{where}"}
    return {"bus.root": str(where)}


def named(options: dict[str, str | int]) -> dict[str, str]:
    return {name.replace("_", "."): str(value) for name, value in options.items()}


def values_of(frame: DataFrame) -> list[bytes]:
    """Sorted."""
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def produce(port: int, topic: str, values: Iterable[bytes | None], partition: int | None = None) -> None:
    with Producer(f"127.0.0.1:{port}") as producer:
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()
