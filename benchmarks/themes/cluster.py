"""What three brokers on one root do beside one, on the same machine: latency, throughput, processor time; and what many
partitions cost them at their start and while nothing happens.

On one machine three brokers have no more cores than one has. So throughput is judged by the processor time of the
brokers: records for each second of a core, all of them together, beside one broker of the bus and three of Kafka.

How late a follower sees a version of its leader is what a produce waits longer for if `min.insync.replicas` wants both
followers to have it before the answer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import loads
from benchmarks.bench import MIB, PAGE_CACHE, Bench
from benchmarks.broker_cluster import BrokerCluster
from benchmarks.figure import Figure, scaled
from benchmarks.kafka_cluster import KafkaCluster
from benchmarks.send_process import has_confluent
from bus import Admin, TopicPartition

_BROKERS = 3
_PARTITIONS = 6
_VALUE_BYTES = 100
_PARTITIONS_PER_TOPIC = 500
_SETTLE_S = 30.0  # after the last start, followers and leaders work off what they have missed for some 20 s


@dataclass(slots=True)
class _Runs:
    """Of one kind of cluster, a run a round."""

    records_per_second: list[float] = field(default_factory=list)
    records_per_core: list[float] = field(default_factory=list)  # for each second of a core of all brokers
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    latency_cpu_ms: list[float] = field(default_factory=list)  # of all brokers, for each record alone in flight
    in_sync_p50_ms: list[float] = field(default_factory=list)  # answered when every broker has the version

    def add_throughput(self, records: float, seconds: float, cpu_seconds: float) -> None:
        self.records_per_second.append(records / seconds)
        self.records_per_core.append(records / cpu_seconds)

    def add_latencies(self, seconds: np.ndarray, cpu_seconds: float) -> None:
        p50, p99 = np.percentile(seconds, [50, 99])
        self.p50_ms.append(float(p50) * 1_000)
        self.p99_ms.append(float(p99) * 1_000)
        self.latency_cpu_ms.append(cpu_seconds / len(seconds) * 1_000)


def measure_cluster(bench: Bench) -> list[Figure]:
    one, three, kafka = _Runs(), _Runs(), _Runs()
    for number in range(bench.sizes.rounds):
        for brokers, runs in ((1, one), (_BROKERS, three)):
            with BrokerCluster(_new_folder(bench) / "root", brokers) as cluster:
                _measure_bus(bench, cluster, runs)
            bench.report(f"round {number + 1}, {brokers} of the bus: {_text(runs)}")
        if bench.has_peer and has_confluent():
            with KafkaCluster(_new_folder(bench), _BROKERS) as peers:
                _measure_kafka(bench, peers, kafka)
            bench.report(f"round {number + 1}, {_BROKERS} of Kafka: {_text(kafka)}")
    return [*_figures(one, three, kafka), *_measure_many_partitions(bench)]


def _new_folder(bench: Bench) -> Path:
    return Path(tempfile.mkdtemp(prefix="cluster-", dir=bench.folder))


def _measure_bus(bench: Bench, cluster: BrokerCluster, runs: _Runs) -> None:
    address, topic, seconds = ",".join(cluster.addresses), bench.new_topic(), bench.sizes.produce_seconds
    loads.create_topic(address, topic, _PARTITIONS)
    loads.produce_batches(address, topic, value_bytes=_VALUE_BYTES, seconds=seconds / 4)
    before, stored = sum(cluster.cpu_seconds()), loads.count_records(address, topic)
    rate = loads.produce_batches(address, topic, value_bytes=_VALUE_BYTES, seconds=seconds)
    records = loads.count_records(address, topic) - stored
    runs.add_throughput(records, records / rate, sum(cluster.cpu_seconds()) - before)
    loads.produce_one_by_one(address, topic, records=bench.sizes.latency_records // 4)
    before = sum(cluster.cpu_seconds())
    taken = loads.produce_one_by_one(address, topic, records=bench.sizes.latency_records)
    runs.add_latencies(taken, sum(cluster.cpu_seconds()) - before)
    if len(cluster.ids) > 1:
        in_sync = bench.new_topic()
        loads.create_topic(address, in_sync, _PARTITIONS, min_insync_replicas=len(cluster.ids))
        taken = loads.produce_one_by_one(address, in_sync, records=bench.sizes.latency_records)
        runs.in_sync_p50_ms.append(float(np.median(taken)) * 1_000)


def _measure_kafka(bench: Bench, cluster: KafkaCluster, runs: _Runs) -> None:
    topic, records = bench.new_topic(), bench.sizes.peer_small_records // 2
    cluster.create_topic(topic, _PARTITIONS)
    cluster.tools.produce(topic, records=bench.sizes.peer_warm_up_records // 2, value_bytes=_VALUE_BYTES)
    before = sum(cluster.cpu_seconds())
    rate = cluster.tools.produce(topic, records=records, value_bytes=_VALUE_BYTES)
    runs.add_throughput(records, records / rate, sum(cluster.cpu_seconds()) - before)
    latency = cluster.tools.produce_latency(topic, records=bench.sizes.latency_records, value_bytes=_VALUE_BYTES)
    runs.p50_ms.append(latency.p50)
    runs.p99_ms.append(latency.p99)


def _text(runs: _Runs) -> str:
    return (
        f"{runs.records_per_second[-1]:,.0f} records/s, {runs.records_per_core[-1]:,.0f} for a second of a core; "
        f"p50 {runs.p50_ms[-1]:.1f} ms, p99 {runs.p99_ms[-1]:.1f} ms"
    )


def _figures(one: _Runs, three: _Runs, kafka: _Runs) -> list[Figure]:
    name = f"{_BROKERS} brokers, {_VALUE_BYTES} B values, {_PARTITIONS} partitions"
    return [
        Figure(
            *("cluster-throughput", f"{name}: send_batch", "records/s", three.records_per_second),
            is_more_better=True,
            peer_runs=kafka.records_per_second,
            note=f"Kafka: {_BROKERS} brokers, replication factor {_BROKERS}; {PAGE_CACHE}",
        ),
        Figure(
            *("cluster-per-core", "... for each second of a core of the brokers", "records", three.records_per_core),
            is_more_better=True,
            peer_runs=kafka.records_per_core,
        ),
        Figure("cluster-throughput-one", "... one broker", "records/s", one.records_per_second, is_more_better=True),
        Figure("cluster-per-core-one", "... one broker, for each second of a core", "records", one.records_per_core),
        _over("cluster-per-core-ratio", "... three brokers over one, for each second of a core", three, one, _per_core),
        Figure("cluster-p50", f"{name}: one produce in flight, p50", "ms", three.p50_ms, peer_runs=kafka.p50_ms),
        Figure("cluster-p99", "... p99", "ms", three.p99_ms, peer_runs=kafka.p99_ms),
        _over("cluster-p50-ratio", "... three brokers over one, p50", three, one, lambda runs: runs.p50_ms),
        Figure(
            "cluster-p50-in-sync", "... p50, answered when both followers have the version", "ms", three.in_sync_p50_ms
        ),
        Figure("cluster-lag", "... p50 of that above p50 without: how late followers are", "ms", _lags(three)),
        Figure("cluster-cpu", "... processor time of the brokers for each", "ms", three.latency_cpu_ms),
        Figure("cluster-cpu-one", "... of one broker", "ms", one.latency_cpu_ms),
    ]


def _lags(three: _Runs) -> list[float]:
    return [in_sync - alone for in_sync, alone in zip(three.in_sync_p50_ms, three.p50_ms, strict=True)]


def _per_core(runs: _Runs) -> list[float]:
    return runs.records_per_core


def _over(name: str, title: str, three: _Runs, one: _Runs, of: Callable[[_Runs], list[float]]) -> Figure:
    """Round by round."""
    return Figure(name, title, "x", [many / alone for many, alone in zip(of(three), of(one), strict=True)])


# ------------------------------------------------------------------ many partitions


def _measure_many_partitions(bench: Bench) -> list[Figure]:
    """Every broker stops and starts while the others serve: what it follows and leads again is most of its start."""
    count = bench.sizes.cluster_partitions
    with BrokerCluster(_new_folder(bench) / "root", _BROKERS) as cluster:
        address = ",".join(cluster.addresses)
        empty = cluster.resident_bytes()
        started = time.perf_counter()
        topics = _create(bench, address, count)
        created = time.perf_counter() - started
        ready, served = [], []
        for broker_id in cluster.ids:
            cluster.stop(broker_id)
            started = time.perf_counter()
            ready.append(cluster.start(broker_id))
            cluster.elect_leaders()
            _ask_all(address, topics)
            served.append(time.perf_counter() - started)
            bench.report(f"broker {broker_id}: ready after {ready[-1]:.1f} s, serves after {served[-1]:.1f} s")
        time.sleep(_SETTLE_S)
        before = cluster.cpu_seconds()
        time.sleep(bench.sizes.idle_seconds)
        shares = [
            (now - then) / bench.sizes.idle_seconds for now, then in zip(cluster.cpu_seconds(), before, strict=True)
        ]
        grown = [(now - then) / MIB for now, then in zip(cluster.resident_bytes(), empty, strict=True)]
    name = f"{count:,} partitions on {_BROKERS} brokers"
    note = f"one run for each of {_BROKERS} brokers"
    return [
        Figure("cluster-create", f"{name}: creating them", "s", [created]),
        Figure("cluster-ready", "... start of one of them until ready", "s", ready, note=note),
        Figure("cluster-served", "... until every partition is served, as before", "s", served, note=note),
        Figure("cluster-idle", "... processor of a broker while nothing happens", "% of a core", scaled(shares, 100)),
        Figure("cluster-memory", "... memory of a broker for them", "MiB", grown),
    ]


def _create(bench: Bench, address: str, count: int) -> dict[str, int]:
    """The topics, and how many partitions each has."""
    topics: dict[str, int] = {}
    while (left := count - sum(topics.values())) > 0:
        topic = bench.new_topic()
        topics[topic] = min(left, _PARTITIONS_PER_TOPIC)
        loads.create_topic(address, topic, topics[topic])
    return topics


def _ask_all(address: str, topics: dict[str, int]) -> None:
    """Where each partition ends, which only a leader that has it open can tell."""
    with Admin(address) as admin:
        for topic, partitions in topics.items():
            admin.list_offsets({TopicPartition(topic, number): -1 for number in range(partitions)})
