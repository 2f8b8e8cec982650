"""The figures: what each one measures, its target, and how it is measured beside the peer.

Guards the fairness of the comparison: every figure is taken several times, ours and Kafka's in turn within the same
minutes, with the same sizes and acks=all, and what is compared is the median. Each function measures one theme on a
root of its own and returns its figures.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import loads
from benchmarks.broker_process import BrokerProcess, MemoryWatch
from benchmarks.kafka import Kafka, Latency

_MIB = 1024 * 1024
_FLUSH_EACH = "log.flush.interval.messages=1"


@dataclass(frozen=True, slots=True)
class Figure:
    """`runs` and `peer_runs` pair up, one of each taken in turn; `target` None: for information."""

    name: str
    title: str
    unit: str
    runs: Sequence[float]
    target: float | None = None
    is_more_better: bool = False
    peer_runs: Sequence[float] = ()
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.runs)

    @property
    def peer_value(self) -> float | None:
        return statistics.median(self.peer_runs) if self.peer_runs else None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's: the median over the pairs."""
        if not self.peer_runs:
            return None
        return statistics.median(ours / peer for ours, peer in zip(self.runs, self.peer_runs, strict=True))

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.is_more_better else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    produce_seconds: float = 10.0
    peer_small_records: int = 6_000_000
    peer_large_records: int = 800_000
    latency_records: int = 1_000
    commits: int = 100_000
    stored_records: int = 10_000_000
    partitions: int = 1_000
    idle_seconds: float = 15.0
    soak_minutes: int = 10


QUICK = Sizes(
    rounds=1,
    produce_seconds=3.0,
    peer_small_records=1_000_000,
    peer_large_records=100_000,
    latency_records=300,
    commits=3_000,
    stored_records=1_000_000,
    partitions=100,
    idle_seconds=3.0,
    soak_minutes=1,
)


@dataclass(slots=True)
class Bench:
    """Where things run: the sizes, a folder for all data, the peers if there are any, and who is told of progress."""

    sizes: Sizes
    folder: Path
    report: Callable[[str], None]
    peers: dict[str, Kafka] = field(default_factory=dict)
    has_peer: bool = True
    topics: int = 0

    def peer(self, extra: str = "") -> Kafka | None:
        """The Kafka with these lines in its properties, started when first asked for."""
        if not self.has_peer:
            return None
        if extra not in self.peers:
            self.report(f"starting Kafka {extra}".strip())
            self.peers[extra] = Kafka(self.folder / f"kafka-{len(self.peers)}", extra=extra)
        return self.peers[extra]

    def stop_peer(self, extra: str = "") -> None:
        kafka = self.peers.pop(extra, None)
        if kafka is not None:
            kafka.stop()

    def new_topic(self) -> str:
        self.topics += 1
        return f"bench-{self.topics}"

    def broker(self, *settings: str) -> BrokerProcess:
        """On a root of its own, which stays until the whole run is over: for minutes after many files were deleted,
        ext4 passes over their inodes one by one whenever a file is created, and that would be measured too."""
        return BrokerProcess(Path(tempfile.mkdtemp(prefix="root-", dir=self.folder)), *settings)


# ---------------------------------------------------------------- throughput of producing, and memory under it


def measure_throughput(bench: Bench) -> list[Figure]:
    small: list[float] = []
    large: list[float] = []
    peer_small: list[float] = []
    peer_large: list[float] = []
    memories = []
    sizes = bench.sizes
    for number in range(sizes.rounds):
        for value_bytes, ours, peers, peer_records in (
            (100, small, peer_small, sizes.peer_small_records),
            (1_024, large, peer_large, sizes.peer_large_records),
        ):
            with bench.broker() as broker:
                topic = bench.new_topic()
                loads.create_topic(broker.address, topic, 4)
                with MemoryWatch(broker) as watch:
                    ours.append(
                        loads.produce_batches(
                            broker.address, topic, value_bytes=value_bytes, seconds=sizes.produce_seconds
                        )
                    )
            if value_bytes == 100:
                memories.append(watch.memory)
            bench.report(f"produce {value_bytes} B, round {number + 1}: {ours[-1]:,.0f} records/s")
            kafka = bench.peer()
            if kafka is not None:
                kafka.create_topic(topic, 4)
                peers.append(kafka.produce(topic, records=peer_records, value_bytes=value_bytes))
                bench.report(f"  Kafka: {peers[-1]:,.0f} records/s")
    in_mb = 1_024 / 1e6
    return [
        Figure(
            "produce-100b",
            "produce, 100-byte values",
            "records/s",
            small,
            2_000_000,
            True,
            peer_small,
            "10,000 a batch",
        ),
        Figure(
            "produce-100b-mb", "the same in bytes", "MB/s", _scaled(small, 1e-4), None, True, _scaled(peer_small, 1e-4)
        ),
        Figure(
            "produce-1kb", "produce, 1 KB values", "MB/s", _scaled(large, in_mb), 200, True, _scaled(peer_large, in_mb)
        ),
        Figure("memory-start", "broker memory before the load", "MiB", [m.start / _MIB for m in memories]),
        Figure("memory-peak", "broker memory, peak under the load", "MiB", [m.peak / _MIB for m in memories], 1_024),
        Figure("memory-end", "broker memory after the load", "MiB", [m.end / _MIB for m in memories]),
    ]


# ---------------------------------------------------------------- latency of producing


def measure_produce_latency(bench: Bench) -> list[Figure]:
    ours: list[Latency] = []
    default: list[Latency] = []
    synced: list[Latency] = []
    count = bench.sizes.latency_records
    with bench.broker() as broker:
        for number in range(bench.sizes.rounds):
            topic = bench.new_topic()
            loads.create_topic(broker.address, topic, 1)
            # Kafka's program warms up too; here the topic's burst would be spent by it.
            warm_up = bench.new_topic()
            loads.create_topic(broker.address, warm_up, 1)
            loads.produce_one_by_one(broker.address, warm_up, records=300, on_progress=_nothing)
            ours.append(_latency(loads.produce_one_by_one(broker.address, topic, records=count, on_progress=_nothing)))
            bench.report(f"one produce in flight, round {number + 1}: {_text(ours[-1])}")
            for extra, peers in (("", default), (_FLUSH_EACH, synced)):
                kafka = bench.peer(extra)
                if kafka is not None:
                    kafka.create_topic(topic, 1)
                    peers.append(kafka.produce_latency(topic, records=count, value_bytes=100))
                    bench.report(f"  Kafka {extra}: {_text(peers[-1])}")
    bench.stop_peer(_FLUSH_EACH)
    title, note = "one produce in flight", "Kafka syncing each record, as the bus does"
    unsynced = "Kafka with its defaults: not on disk when it answers"
    return [
        Figure("latency-p50", f"{title}, p50", "ms", _p50(ours), 1.5, False, _p50(synced), note),
        Figure("latency-p99", f"{title}, p99", "ms", _p99(ours), 4.0, False, _p99(synced), note),
        Figure("latency-max", f"{title}, largest", "ms", _max(ours), None, False, _max(synced), note),
        Figure("latency-p50-unsynced", f"{title}, p50", "ms", _p50(ours), None, False, _p50(default), unsynced),
        Figure("latency-p99-unsynced", f"{title}, p99", "ms", _p99(ours), None, False, _p99(default), unsynced),
    ]


def measure_many_commits(bench: Bench) -> list[Figure]:
    """The life of one partition, and then a restart on it."""
    count = bench.sizes.commits
    topic = bench.new_topic()
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, 1, commit_interval_ms=0)
        loads.produce_one_by_one(broker.address, topic, records=200, on_progress=_nothing)

        def tell(done: int) -> None:
            if done % 10_000 == 0:
                bench.report(f"commits on one partition: {done:,} of {count:,}")

        seconds = loads.produce_one_by_one(broker.address, topic, records=count, on_progress=tell) * 1_000
        memory = broker.resident_bytes()
        answered, ready = [], []
        for _ in range(bench.sizes.rounds):
            broker.stop()
            started = time.perf_counter()
            ready.append(broker.start())
            loads.first_fetch_seconds(broker.address, topic)
            answered.append(time.perf_counter() - started)
    first, last = float(np.percentile(seconds[:100], 50)), float(np.percentile(seconds[-100:], 50))
    tenth = max(100, count // 10)
    first_tenth, last_tenth = (float(np.percentile(part, 50)) for part in (seconds[:tenth], seconds[-tenth:]))
    name = f"{count:,} commits on one partition"
    bench.report(f"{name}: first hundred p50 {first:.2f} ms, last hundred {last:.2f} ms; restart {answered}")
    return [
        Figure("commits-p50", f"{name}, p50", "ms", [float(np.percentile(seconds, 50))], 1.5),
        Figure("commits-p99", f"{name}, p99", "ms", [float(np.percentile(seconds, 99))], 4.0),
        Figure("commits-first", "p50 of the first hundred", "ms", [first]),
        Figure("commits-last", "p50 of the last hundred", "ms", [last]),
        Figure("commits-flat", "last hundred over first hundred", "x", [last / first], 1.3),
        Figure("commits-flat-tenths", "last tenth over first tenth", "x", [last_tenth / first_tenth], None),
        Figure("commits-memory", "broker memory after them", "MiB", [memory / _MIB]),
        Figure("restart-ready", "restart on that partition until ready", "s", ready, note="a file for each commit"),
        Figure("restart-first-fetch", "... until the first fetch is answered", "s", answered, 1.0),
    ]


# ---------------------------------------------------------------- fetching


def measure_fetch(bench: Bench) -> list[Figure]:
    records, partitions = bench.sizes.stored_records, 4
    files: list[float] = []
    tail: list[float] = []
    answered: list[float] = []
    peers: list[float] = []
    topic = bench.new_topic()
    kafka = bench.peer()
    if kafka is not None:
        kafka.create_topic(topic, partitions)
        kafka.produce(topic, records=records, value_bytes=100)
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, partitions)
        loads.produce_records(broker.address, topic, records=records)
        back = min(150_000, records // partitions // 2)
        for number in range(bench.sizes.rounds):
            tail.append(
                statistics.median(
                    loads.fetch_arrow(
                        broker.address, topic, partitions=partitions, records=back * partitions, back=back
                    )
                    for _ in range(5)
                )
            )
            bench.report(f"fetch of the tail from memory, round {number + 1}: {tail[-1]:,.0f} records/s")
        for number in range(bench.sizes.rounds):
            broker.stop()
            started = time.perf_counter()
            broker.start()
            loads.first_fetch_seconds(broker.address, topic)
            answered.append(time.perf_counter() - started)
            files.append(loads.fetch_arrow(broker.address, topic, partitions=partitions, records=records))
            bench.report(f"fetch from files, round {number + 1}: {files[-1]:,.0f} records/s")
            if kafka is not None:
                peers.append(kafka.consume(topic, records=records))
                bench.report(f"  Kafka: {peers[-1]:,.0f} records/s")
    return [
        Figure(
            "fetch-files",
            f"fetch of {records:,} stored records as Arrow",
            "records/s",
            files,
            3_000_000,
            True,
            peers,
            "after a restart of the broker, files in the page cache",
        ),
        Figure(
            "restart-large-files",
            f"restart with {records:,} records until the first fetch is answered",
            "s",
            answered,
            1.0,
            note="4 partitions, files of about a megabyte",
        ),
        Figure("fetch-tail", "fetch of the tail from memory", "records/s", tail, None, True),
    ]


def measure_delivery(bench: Bench) -> list[Figure]:
    ours: list[Latency] = []
    peers: list[Latency] = []
    count = bench.sizes.latency_records
    with bench.broker() as broker:
        for number in range(bench.sizes.rounds):
            topic, warm_up = bench.new_topic(), bench.new_topic()
            for name in (topic, warm_up):
                loads.create_topic(broker.address, name, 1)
            loads.deliver_one_by_one(broker.address, warm_up, records=300)
            ours.append(_latency(loads.deliver_one_by_one(broker.address, topic, records=count)))
            bench.report(f"produce to a waiting consumer, round {number + 1}: {_text(ours[-1])}")
            kafka = bench.peer()
            if kafka is not None:
                kafka.create_topic(topic, 1)
                peers.append(kafka.delivery_latency(topic, records=count, value_bytes=100))
                bench.report(f"  Kafka: {_text(peers[-1])}")
    title, note = "produce to a waiting consumer", "Kafka with its defaults: not on disk when it delivers"
    return [
        Figure("delivery-p50", f"{title}, p50", "ms", _p50(ours), 2.5, False, _p50(peers), note),
        Figure("delivery-p99", f"{title}, p99", "ms", _p99(ours), None, False, _p99(peers), note),
    ]


# ---------------------------------------------------------------- many partitions, long runs


def measure_many_partitions(bench: Bench) -> list[Figure]:
    count, per_topic = bench.sizes.partitions, 50
    with bench.broker() as broker:
        time.sleep(1)
        empty = broker.resident_bytes()
        started = time.perf_counter()
        for number in range(count // per_topic):
            loads.create_topic(broker.address, f"many-{number}", per_topic)
        created = time.perf_counter() - started
        starts = []
        for _ in range(bench.sizes.rounds):
            starts.append(broker.restart())
        time.sleep(1)
        resident = broker.resident_bytes()
        before = broker.cpu_seconds()
        time.sleep(bench.sizes.idle_seconds)
        cpu = (broker.cpu_seconds() - before) / bench.sizes.idle_seconds
    bench.report(f"{count:,} partitions: created in {created:.1f} s, started in {statistics.median(starts):.2f} s")
    return [
        Figure("partitions-create", f"creating {count:,} partitions", "s", [created]),
        Figure("partitions-start", f"start-up with {count:,} partitions", "s", starts, 10.0),
        Figure("partitions-memory", "memory of an idle partition", "KiB", [(resident - empty) / count / 1024]),
        Figure("partitions-cpu", f"CPU of {count:,} idle partitions", "% of a core", [cpu * 100]),
    ]


def measure_soak(bench: Bench) -> list[Figure]:
    """A steady 200,000 records/s in and out for minutes: does the broker grow?"""
    per_minute: list[float] = []
    with bench.broker() as broker:
        topic = bench.new_topic()
        loads.create_topic(broker.address, topic, 4)
        with loads.SteadyLoad(broker.address, topic, partitions=4, records_per_second=200_000) as load:
            for minute in range(bench.sizes.soak_minutes):
                time.sleep(60)
                per_minute.append(broker.resident_bytes() / _MIB)
                bench.report(
                    f"minute {minute + 1}: {per_minute[-1]:.0f} MiB, {load.produced:,} in, {load.consumed:,} out"
                )
    # The cache fills in the first minutes; growth is what comes after them.
    settled = per_minute[min(2, len(per_minute) - 1)]
    growth = (per_minute[-1] - settled) / settled * 100
    return [
        Figure("soak-memory", "broker memory, minute by minute", "MiB", per_minute, 1_024, note="200,000 records/s"),
        Figure("soak-growth", "growth from the third minute to the last", "%", [growth], 5.0),
    ]


THEMES: dict[str, Callable[[Bench], list[Figure]]] = {
    "throughput": measure_throughput,
    "latency": measure_produce_latency,
    "delivery": measure_delivery,
    "fetch": measure_fetch,
    "partitions": measure_many_partitions,
    "commits": measure_many_commits,
}


def _scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def _latency(seconds: np.ndarray) -> Latency:
    return Latency(*(float(value) * 1_000 for value in (*np.percentile(seconds, [50, 99]), seconds.max())))


def _text(latency: Latency) -> str:
    return f"p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms, largest {latency.maximum:.1f} ms"


def _p50(latencies: Sequence[Latency]) -> list[float]:
    return [latency.p50 for latency in latencies]


def _p99(latencies: Sequence[Latency]) -> list[float]:
    return [latency.p99 for latency in latencies]


def _max(latencies: Sequence[Latency]) -> list[float]:
    return [latency.maximum for latency in latencies]


def _nothing(_: int) -> None: ...
