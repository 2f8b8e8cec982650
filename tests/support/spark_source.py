"""Queries of `format("bus")` in tests: what reads, and what a topic holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from bus import Admin, NewTopic, Producer


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


class Stream:
    """A streaming query whose rows are kept here, batch by batch, over runs with one checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        where: Path | int,
        checkpoint: Path,
        schema: str | None = None,
        /,
        **options: str | int,
    ) -> None:
        reader = spark.readStream.format("bus").options(**place(where), **named(options))
        self._frame = (reader.schema(schema) if schema else reader).load()
        self._checkpoint = checkpoint
        self.batches: list[list[Row]] = []
        self.before_batch: Callable[[], object] = lambda: None  # planned, but not read
        self.after_batch: Callable[[], object] = lambda: None

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self._frame.writeStream.option("checkpointLocation", str(self._checkpoint))
        return writer.foreachBatch(self._keep).trigger(**trigger).start()

    def run(self, **trigger: Any) -> list[list[Row]]:
        """The batches of a query that ends by itself: AvailableNow, unless another trigger is given."""
        before = len(self.batches)
        query = self.start(**(trigger or {"availableNow": True}))
        try:
            assert query.awaitTermination(250), "the query has not ended"
        finally:
            query.stop()
        return self.batches[before:]

    @contextmanager
    def running(self, **trigger: Any) -> Iterator[StreamingQuery]:
        query = self.start(**(trigger or {"processingTime": "50 milliseconds"}))
        try:
            yield query
        finally:
            query.stop()

    def _keep(self, frame: DataFrame, _batch: int) -> None:
        self.before_batch()
        self.batches.append(frame.collect())
        self.after_batch()

    @property
    def offsets(self) -> dict[int, list[int]]:
        """The offsets of each partition, in the order of their arrival."""
        found: dict[int, list[int]] = {}
        for row in self.rows:
            found.setdefault(row.partition, []).append(row.offset)
        return found

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch]


def create(admin: Admin, topic: str, *counts: int, **configs: str) -> None:
    """A topic whose partitions have that many records; record n is n."""
    admin.create_topics([NewTopic(topic, len(counts), configs=configs)])
    for partition, count in enumerate(counts):
        append(admin, topic, partition, 0, count)


def append(admin: Admin, topic: str, partition: int, begin: int, end: int) -> None:
    produce(admin.describe_cluster().brokers[0].port, topic, (b"%d" % n for n in range(begin, end)), partition)
