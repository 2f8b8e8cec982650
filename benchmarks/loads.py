"""What a client does to the bus while it is measured: produce batches, produce one at a time, fetch, wait.

Uses the public SDK with its defaults and nothing else, but for linger_ms=0 where one record is in flight: waiting for a
second one would be all that is measured. Returns raw samples; judging them is the business of others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition

BATCH_RECORDS = 10_000
SMALL_VALUE_BYTES = 100
_SMALL_VALUE = bytes(SMALL_VALUE_BYTES)


def create_topic(address: str, topic: str, partitions: int, **configs: Any) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, partitions, {key.replace("_", "."): v for key, v in configs.items()})])


def random_batch(value_bytes: int, records: int = BATCH_RECORDS) -> pa.RecordBatch:
    """Values of random bytes: nothing on the way can make them smaller."""
    data = np.random.default_rng(0).bytes(value_bytes * records)
    offsets = np.arange(0, value_bytes * (records + 1), value_bytes, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), records, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], names=["value"])


def produce_batches(
    address: str,
    topic: str,
    *,
    value_bytes: int,
    seconds: float,
    batch_records: int = BATCH_RECORDS,
    **configs: Any,
) -> float:
    """Records a second, acks=all, from the first call until everything is acknowledged; `configs` of the producer."""
    batch = random_batch(value_bytes, batch_records)
    with Producer(address, **configs) as producer:
        for _ in range(8):
            producer.send_batch(topic, batch).result(60)
        sent = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            last = producer.send_batch(topic, batch)
            sent += batch.num_rows
        producer.flush(120)
        elapsed = time.perf_counter() - started
        last.result(0)
    return sent / elapsed


def produce_records(address: str, topic: str, *, records: int) -> None:
    """Stores `records` small records, whole batches."""
    batch = random_batch(SMALL_VALUE_BYTES)
    with Producer(address) as producer:
        for _ in range(records // batch.num_rows):
            producer.send_batch(topic, batch)
        producer.flush(300)


def produce_one_by_one(
    address: str,
    topic: str,
    *,
    records: int,
    on_progress: Callable[[int], None] | None = None,
    **configs: Any,
) -> np.ndarray:
    """Seconds of each of `records` produce calls to partition 0, acks=all, one in flight; `configs` of the producer."""
    seconds = np.empty(records)
    with Producer(address, linger_ms=0, **configs) as producer:
        for number in range(records):
            seconds[number] = _produce_alone(producer, topic)
            if on_progress is not None and number % 1_000 == 0:
                on_progress(number)
    return seconds


def produce_in_turns(ways: Sequence[tuple[str, Mapping[str, Any]]], topic: str, *, records: int) -> np.ndarray:
    """As `produce_one_by_one` in several ways, each an address and configs of a producer, record by record in turns: a
    row of seconds for each way. What disturbs the machine for a while disturbs all of them."""
    seconds = np.empty((len(ways), records))
    with contextlib.ExitStack() as opened:
        producers = [opened.enter_context(Producer(address, linger_ms=0, **configs)) for address, configs in ways]
        for producer in producers:
            _produce_alone(producer, topic)
        for number in range(records):
            for row, producer in enumerate(producers):
                seconds[row, number] = _produce_alone(producer, topic)
    return seconds


def produce_for(address: str, topic: str, *, seconds: float) -> np.ndarray:
    """As `produce_one_by_one`, for so long."""
    taken = []
    with Producer(address, linger_ms=0) as producer:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            taken.append(_produce_alone(producer, topic))
    return np.array(taken)


def _produce_alone(producer: Producer, topic: str) -> float:
    """Seconds until it is acknowledged."""
    started = time.perf_counter()
    producer.send(topic, _SMALL_VALUE, partition=0).result(60)
    return time.perf_counter() - started


def deliver_one_by_one(address: str, topic: str, *, records: int) -> np.ndarray:
    """Seconds from each of `records` calls of `send` until a consumer that waits for it has the record."""
    value = bytes(SMALL_VALUE_BYTES)
    seconds = np.empty(records)
    with Producer(address, linger_ms=0) as producer, Consumer(address) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_end([partition])
        consumer.position(partition)
        consumer.poll(timeout_ms=50)
        for number in range(records):
            started = time.perf_counter()
            producer.send(topic, value, partition=0)
            while not consumer.poll(timeout_ms=10_000):
                pass
            seconds[number] = time.perf_counter() - started
    return seconds


def fetch_arrow(
    address: str, topic: str, *, partitions: int, records: int, back: int | None = None, **configs: Any
) -> float:
    """Records a second by `poll_arrow`, from the beginning, or from `back` records before the end of each partition;
    `configs` of the consumer."""
    with Consumer(address, auto_offset_reset="earliest", **configs) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        if back is not None:
            for partition, end in consumer.end_offsets(assigned).items():
                consumer.seek(partition, end - back)
        fetched = 0
        started = time.perf_counter()
        while fetched < records:
            table = consumer.poll_arrow(timeout_ms=10_000)
            if table.num_rows == 0:
                raise RuntimeError(f"expected {records} records of {topic}, found {fetched} and then none for 10 s")
            fetched += table.num_rows
        return fetched / (time.perf_counter() - started)


def count_records(address: str, topic: str) -> int:
    """By the ends of its partitions."""
    with Admin(address) as admin:
        partitions = admin.describe_topics([topic])[topic].partitions
        ends = admin.list_offsets({TopicPartition(topic, partition.partition): -1 for partition in partitions})
    return sum(listed.offset for listed in ends.values())


class ProcessorTime:
    """Processor seconds of this process, all its threads, while the block ran."""

    def __enter__(self) -> ProcessorTime:
        self._started = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._started


def first_fetch_seconds(address: str, topic: str) -> float:
    """Seconds until a new client has its first records of partition 0, from offset 0."""
    started = time.perf_counter()
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while not consumer.poll_arrow(timeout_ms=10_000).num_rows:
            pass
        return time.perf_counter() - started


class SteadyLoad:
    """A producer that keeps a pace and a consumer that follows it, on threads of their own, until the block ends."""

    def __init__(self, address: str, topic: str, *, partitions: int, records_per_second: int) -> None:
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._interval_s = BATCH_RECORDS / records_per_second
        self._done = threading.Event()
        self.produced = self.consumed = 0

    def __enter__(self) -> SteadyLoad:
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()
        return self

    def _produce(self) -> None:
        batch = random_batch(SMALL_VALUE_BYTES)
        due = time.monotonic()
        with Producer(self._address) as producer:
            while not self._done.wait(max(0.0, due - time.monotonic())):
                producer.send_batch(self._topic, batch).result(60)
                self.produced += batch.num_rows
                due += self._interval_s

    def _consume(self) -> None:
        with Consumer(self._address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(self._topic, number) for number in range(self._partitions)])
            while not self._done.is_set():
                self.consumed += consumer.poll_arrow(timeout_ms=200).num_rows

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)
