"""The same data on both sides for Spark: as many records, as large, in as many partitions.

Guards one promise: what is stored is as large as what was sent. Every value is random and a different one, since the
bus compresses its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.kafka import Kafka
from benchmarks.kafka_jars import PeerMissing
from benchmarks.send_process import run_program
from benchmarks.spark_jars import resolve_connector
from bus import Admin, Producer

PARTITIONS = 4
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class SparkBench:
    """A broker of each side, and where Spark leaves what it writes."""

    bench: Bench
    broker: BrokerProcess
    kafka: Kafka | None
    folder: Path

    def create_topic(self, partitions: int = PARTITIONS) -> str:
        """An empty one on both sides."""
        topic = self.bench.new_topic()
        loads.create_topic(self.broker.address, topic, partitions)
        if self.kafka is not None:
            self.kafka.create_topic(topic, partitions)
        return topic

    def fill(self, topic: str, *, records: int, value_bytes: int) -> None:
        produce_random(self.broker.address, topic, records=records, value_bytes=value_bytes)
        if self.kafka is not None:
            self.kafka.tools.produce(topic, records=records, value_bytes=value_bytes)

    def roll(self, topic: str) -> None:
        """Few large files of many small ones, as time would."""
        with Admin(self.broker.address) as admin:
            for _ in admin.maintain_log(topic, "roll"):
                pass

    def run(self, program: str, topic: str, **options: Any) -> dict[str, Any]:
        """A program of `spark_programs` on both sides."""
        folder = tempfile.mkdtemp(prefix=f"{program}-", dir=self.folder)
        told: dict[str, Any] = {"bus": self.broker.address, "root": self.broker.root, "topic": topic, "folder": folder}
        if self.kafka is not None:
            told["kafka"] = self.kafka.address
        return run_program(f"spark_programs.{program}", **told, **options)


@contextmanager
def spark_bench(bench: Bench) -> Iterator[SparkBench]:
    kafka = bench.peer()
    if kafka is not None:
        try:
            resolve_connector()
        except PeerMissing as missing:
            bench.report(f"without Kafka beside it: {missing}")
            kafka = None
    with bench.broker() as broker:
        yield SparkBench(bench, broker, kafka, bench.folder)


def produce_random(address: str, topic: str, *, records: int, value_bytes: int) -> None:
    random = np.random.default_rng(0)
    with Producer(address) as producer:
        left = records
        while left > 0:
            count = min(left, _BATCH_BYTES // value_bytes)
            producer.send_batch(topic, _random_batch(random, count, value_bytes))
            left -= count
        producer.flush(300)


def _random_batch(random: np.random.Generator, records: int, value_bytes: int) -> pa.RecordBatch:
    ends = np.arange(0, value_bytes * (records + 1), value_bytes, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(random.bytes(value_bytes * records))]
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), records, buffers)], names=["value"])
