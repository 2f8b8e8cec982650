"""The guide to the life of a log is right about native streams: with the option that it names they see every record
once through rolling, deletions and cleaning; without it they stop at a deletion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from bus import Admin, NewTopic, Producer, TopicPartition
from tests.support.broker_thread import running_broker

GUIDE = (Path(__file__).parents[2] / "docs" / "log-life.md").read_text("utf-8")
PARTITION = TopicPartition("orders", 0)
COMMITS, PER_COMMIT = 3, 10


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with running_broker(tmp_path / "root") as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("orders", 1)])
        yield Log(f"127.0.0.1:{broker.port}", admin, tmp_path)


class Log:
    def __init__(self, address: str, admin: Admin, folder: Path) -> None:
        self.address = address
        self.admin = admin
        self.table = str(folder / "root" / "topics" / "orders" / "0")
        self.checkpoints = str(folder / "checkpoints")
        self.seen: list[int] = []

    def append(self) -> None:
        with Producer(self.address) as producer:
            for _ in range(COMMITS):
                producer.send_batch("orders", pa.table({"value": [b"v"] * PER_COMMIT}), partition=0).result(30)

    def read(self, stream: DataFrame) -> None:
        """Read what is new for the stream, from where it stopped the last time up to now."""
        query = (
            stream.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", self.checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take(self, batch: DataFrame, _: int) -> None:
        self.seen += [row.offset for row in batch.select("offset").collect()]


def guides_stream(spark: SparkSession, log: Log) -> DataFrame:
    (program,) = re.findall(r"^ *(spark\.readStream\S*.*ignoreDeletes.*)$", GUIDE, re.MULTILINE)
    stream: DataFrame = eval(program.replace("./bus-data/topics/orders/0", log.table), {"spark": spark})
    return stream


def test_stream_of_the_guide_sees_every_record_once(spark: SparkSession, log: Log) -> None:
    log.append()
    log.read(guides_stream(spark, log))
    log.append()
    list(log.admin.maintain_log("orders", "roll"))
    log.admin.delete_records({PARTITION: 35})
    log.append()
    list(log.admin.maintain_log("orders", "clean"))
    log.read(guides_stream(spark, log))
    log.admin.delete_records({PARTITION: -1})
    log.append()
    log.read(guides_stream(spark, log))
    assert sorted(log.seen) == list(range(4 * COMMITS * PER_COMMIT))


def test_stream_without_the_option_stops_at_a_deletion(spark: SparkSession, log: Log) -> None:
    stream = spark.readStream.format("delta").load(log.table)
    log.append()
    log.read(stream)
    log.admin.delete_records({PARTITION: PER_COMMIT})
    with pytest.raises(Exception, match="ignoreDeletes"):
        log.read(stream)
