"""`bus perf`: how fast this machine, this broker and this network are, in the figures and the form of Kafka's tools.

Guards one promise: a figure covers all of what was asked for. A produced record counts when its acknowledgement came
(with acks=all, when it is committed and synced), a consumed one when it is in the client's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import click

from bus.cli.commands import BusGroup
from bus.cli.options import (
    COMPRESSIONS,
    address_option,
    parse_properties,
    property_option,
    topic_argument,
)
from bus.cli.output import echo
from bus.cli.partition_arguments import Place, Position, PositionType
from bus.cli.records.consume import seek
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from bus.client.consumer.consumer import Consumer
    from bus.client.producer.producer import Producer

_MIB = 1 << 20
_REPORT_INTERVAL_S = 5.0
_WARM_UP_CALLS = 20
CONSUME_HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


@click.group(cls=BusGroup)
def perf() -> None:
    """Measure produce, consume and latency; the figures have the form of Kafka's own tools."""


def _ensure_topic(address: str, topic: str, partitions: int | None) -> None:
    """Create a topic that is not there, if `partitions` are given."""
    if partitions is None:
        return
    from bus.client.admin.admin import Admin
    from bus.client.values import NewTopic

    with Admin(address) as admin:
        try:
            admin.create_topics([NewTopic(topic, partitions)])
        except BusError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


# ------------------------------------------------------------------ produce


@perf.command(
    examples="""
    bus perf produce perf --partitions 4
    bus perf produce perf --records 5000000 --record-size 100 --batch-size 10000
    bus perf produce perf --records 10000 --batch-size 1 --throughput 500
    """
)
@topic_argument()
@click.option("--records", "-n", type=click.IntRange(min=1), default=1_000_000, help="How many to send.")
@click.option("--record-size", "-s", type=click.IntRange(min=0), default=100, help="Bytes of each value.")
@click.option("--batch-size", "-b", type=click.IntRange(min=1), default=10_000, help="Records sent together.")
@click.option("--throughput", type=float, default=-1, help="At most so many records a second; -1: no limit.")
@click.option("--partitions", type=click.IntRange(min=1), help="Create the topic with so many if it is not there.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", help="all: committed to the Delta table.")
@click.option("--compression", type=click.Choice(COMPRESSIONS), default="none", help="On the wire.")
@property_option()
@address_option(has_properties=True)
def produce(
    topic: str,
    records: int,
    record_size: int,
    batch_size: int,
    throughput: float,
    partitions: int | None,
    acks: str,
    compression: str,
    properties: tuple[str, ...],
    address: str,
) -> None:
    """Send random records to TOPIC and print throughput and the latency of acknowledgements.

    A line every 5 seconds, then one for the whole run. MB are 1,048,576 bytes of values.
    """
    from bus.client.producer.producer import Producer

    _ensure_topic(address, topic, partitions)
    settings = {
        "acks": acks,
        "compression_type": compression,
        "max_request_size": max(_MIB, 2 * batch_size * (record_size + 16)),
        "buffer_memory": max(32 * _MIB, 16 * batch_size * (record_size + 16)),
        **parse_properties(properties),
    }
    with Producer(address, **settings) as producer:
        producer.partitions_for(topic)
        figures = ProduceFigures(record_size, started=time.perf_counter())
        _send_all(producer, topic, records, record_size, batch_size, throughput, figures)
        producer.flush()
        ended = time.perf_counter()
    figures.raise_failure()  # only a closed producer has run all callbacks
    echo(figures.summary(ended))


def _send_all(
    producer: Producer,
    topic: str,
    records: int,
    record_size: int,
    batch_size: int,
    throughput: float,
    figures: ProduceFigures,
) -> None:
    payload = _random_values(min(batch_size, records), record_size)
    single = payload.column("value")[0].as_py()
    begun = report_at = time.perf_counter()
    sent = 0
    while sent < records:
        count = min(batch_size, records - sent)
        if throughput > 0:
            time.sleep(max(0.0, begun + sent / throughput - time.perf_counter()))
        started = time.perf_counter()
        if batch_size == 1:
            producer.send(topic, single).add_done_callback(figures.callback(1, started))
        else:
            producer.send_batch(topic, payload.slice(0, count)).add_done_callback(figures.callback(count, started))
        sent += count
        figures.raise_failure()
        if started - report_at >= _REPORT_INTERVAL_S:
            report_at = started
            echo(figures.window(started))


def _random_values(count: int, size: int) -> pa.RecordBatch:
    """Bytes that no codec can shrink by much, as letters, the same in every run."""
    import numpy as np
    import pyarrow as pa

    letters = np.random.default_rng(0).integers(65, 91, count * size, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * size
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    return pa.RecordBatch.from_arrays([values], names=["value"])


# ------------------------------------------------------------------ consume


@perf.command(
    examples="""
    bus perf consume perf
    bus perf consume perf --records 1000000 --timeout 5000
    """
)
@topic_argument()
@click.option("--records", "-n", type=click.IntRange(min=1), help="How many to read.  [default: all that are there]")
@click.option(
    "--from",
    "position",
    type=PositionType(),
    default="beginning",
    metavar="WHERE",
    help="Where to begin, as of bus consume.",
)
@click.option(
    "--timeout", type=click.IntRange(min=1), default=10_000, help="Milliseconds to wait for the next record, at most."
)
@click.option("--hide-header", is_flag=True, help="Print the figures only.")
@address_option()
def consume(topic: str, records: int | None, position: Position, timeout: int, hide_header: bool, address: str) -> None:
    """Read TOPIC as Arrow tables and print the throughput as CSV. MB are 1,048,576 bytes of keys and values."""
    from bus.client.consumer.consumer import Consumer

    with Consumer(address, auto_offset_reset="earliest", max_partition_fetch_bytes=4 * _MIB) as consumer:
        partitions = sorted(consumer.partitions_for(topic))
        consumer.assign(partitions)
        seek(consumer, partitions, position)
        if records is None:
            ends = consumer.end_offsets(partitions)
            records = sum(max(0, ends[one] - consumer.position(one)) for one in partitions)
        started = time.time()
        count, size = _drain(consumer, records, timeout)
        line = consume_line(started, time.time(), count, size)
    if not hide_header:
        echo(CONSUME_HEADER)
    echo(line)
    if count < records:
        echo(f"note: {count_of(count, 'record')} of {records:,} came within {timeout} ms of each other", err=True)


def _drain(consumer: Consumer, records: int, timeout_ms: int) -> tuple[int, int]:
    """Records read, and the bytes of their keys and values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = size = 0
    while count < records:
        table = consumer.poll_arrow(timeout_ms)
        if table.num_rows == 0:
            break
        count += table.num_rows
        for name in ("key", "value"):
            column = table.column(name)
            is_binary = pa.types.is_binary(column.type)
            size += (pc.sum(pc.binary_length(column)).as_py() or 0) if is_binary else column.nbytes
    return count, size


def consume_line(started: float, ended: float, count: int, size_bytes: int) -> str:
    """The figures of `CONSUME_HEADER`; there is no rebalance without a group, so all of the time is fetching."""
    seconds = max(ended - started, 1e-3)
    megabytes = size_bytes / _MIB
    times = ", ".join(
        f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}:{int(at * 1000) % 1000:03d}" for at in (started, ended)
    )
    rates = f"{megabytes / seconds:.4f}, {count}, {count / seconds:.4f}"
    fetch = f"{round(seconds * 1000)}, {megabytes / seconds:.4f}, {count / seconds:.4f}"
    return f"{times}, {megabytes:.4f}, {rates}, 0, {fetch}"


def _time(at: float) -> str:
    """Local time with milliseconds after a colon, as Kafka's tool has it."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}:{int(at * 1000) % 1000:03d}"


# ------------------------------------------------------------------ latency


@perf.command(
    examples="""
    bus perf latency perf --partitions 1
    bus perf latency perf --records 1000 --end-to-end
    """
)
@topic_argument()
@click.option("--records", "-n", type=click.IntRange(min=1), default=1_000, help="How many round trips, one at a time.")
@click.option("--record-size", "-s", type=click.IntRange(min=0), default=100, help="Bytes of each value.")
@click.option("--partitions", type=click.IntRange(min=1), help="Create the topic with so many if it is not there.")
@click.option("--acks", type=click.Choice(["all", "1"]), default="all", help="all: committed to the Delta table.")
@click.option("--end-to-end", is_flag=True, help="From send to a consumer that waits, instead of to the answer.")
@address_option()
def latency(
    topic: str,
    records: int,
    record_size: int,
    partitions: int | None,
    acks: Literal["all", "1"],
    end_to_end: bool,
    address: str,
) -> None:
    """Send records one at a time and print how long each took, to its acknowledgement or to a waiting consumer."""
    from bus.client.consumer.consumer import Consumer
    from bus.client.producer.producer import Producer

    _ensure_topic(address, topic, partitions)
    value = _random_values(1, record_size).column("value")[0].as_py()
    latencies = Latencies()
    with (
        Producer(address, acks=acks, linger_ms=0) as producer,
        Consumer(address, fetch_max_wait_ms=5_000) as consumer,
    ):
        if end_to_end:
            _await_at_end(consumer, topic)
        for number in range(_WARM_UP_CALLS + records):
            started = time.perf_counter()
            future = producer.send(topic, value, partition=0)
            if end_to_end:
                _await_one(consumer, topic)
            else:
                future.result()
            seconds = time.perf_counter() - started
            future.result()
            if number >= _WARM_UP_CALLS:
                latencies.add(seconds * 1000, 1)
    echo(f"Avg latency: {latencies.average:.4f} ms")
    shown = (50, 95, 99, 99.9)
    percentiles = ", ".join(f"{share:g}th = {latencies.percentile(share):.3f}" for share in shown)
    echo(f"Percentiles: {percentiles} ms, max = {latencies.maximum:.3f} ms")


def _await_at_end(consumer: Consumer, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    seek(consumer, [partition], Position(Place.END))
    consumer.poll(100)


def _await_one(consumer: Consumer, topic: str) -> None:
    if not consumer.poll(30_000, 1):
        raise BusError(ErrorCode.REQUEST_TIMED_OUT, f"{topic}-0: the record did not come to the consumer within 30 s")


@dataclass(slots=True)
class Latencies:
    """Samples in milliseconds, each with the number of records that had it."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def add(self, milliseconds: float, count: int) -> None:
        self.samples.append((milliseconds, count))

    @property
    def count(self) -> int:
        return sum(count for _, count in self.samples)

    @property
    def average(self) -> float:
        total = self.count
        return sum(value * count for value, count in self.samples) / total if total else 0.0

    @property
    def maximum(self) -> float:
        return max((value for value, _ in self.samples), default=0.0)

    def percentile(self, share: float) -> float:
        """The smallest latency that `share` percent of the records did not exceed."""
        wanted = self.count * share / 100
        reached = 0
        for value, count in sorted(self.samples):
            reached += count
            if reached >= wanted:
                return value
        return 0.0


class ProduceFigures:
    """The figures that `kafka-producer-perf-test` prints: windows while it runs, and the whole at the end.

    Acknowledgements come on the producer's thread; appending to a list is all that is done there.
    """

    def __init__(self, record_size: int, *, started: float) -> None:
        self._record_size = record_size
        self._started = self._window_started = started
        self._all = Latencies()
        self._reported = 0  # samples that a window has shown
        self._failure: BaseException | None = None

    def callback(self, count: int, started: float) -> Callable[[Any], None]:
        def acknowledged(future: Any) -> None:
            error = future.exception(0)
            if error is not None:
                self._failure = self._failure or error
            else:
                self._all.add((time.perf_counter() - started) * 1000, count)

        return acknowledged

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def window(self, now: float) -> str:
        """Return what was acknowledged since the last window."""
        until = len(self._all.samples)
        recent = Latencies(self._all.samples[self._reported : until])
        self._reported = until
        line = f"{self._rate(recent, now - self._window_started)}, {recent.average:.1f} ms avg latency, "
        self._window_started = now
        return f"{line}{recent.maximum:.1f} ms max latency."

    def summary(self, now: float) -> str:
        whole = self._all
        percentiles = ", ".join(f"{whole.percentile(share):.0f} ms {share:g}th" for share in (50, 95, 99, 99.9))
        return (
            f"{self._rate(whole, now - self._started)}, {whole.average:.2f} ms avg latency, "
            f"{whole.maximum:.2f} ms max latency, {percentiles}."
        )

    def _rate(self, latencies: Latencies, seconds: float) -> str:
        per_second = latencies.count / max(seconds, 1e-9)
        return (
            f"{latencies.count} records sent, {per_second:.1f} records/sec "
            f"({per_second * self._record_size / _MIB:.2f} MB/sec)"
        )
