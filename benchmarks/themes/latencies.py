"""One record at a time: until its acknowledgement, and until a waiting consumer has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, SYNCED, Bench
from benchmarks.figure import Figure
from benchmarks.kafka_tools import Latency

_WARM_UP_RECORDS = 300
_UNSYNCED = "Kafka with its defaults: not on disk when it answers"
_UNSYNCED_DELIVERY = "Kafka with its defaults: not on disk when it delivers"


def measure_produce_latency(bench: Bench) -> list[Figure]:
    """acks=all, linger 0; Kafka twice, with and without a sync for each record."""
    ours: list[Latency] = []
    default: list[Latency] = []
    synced: list[Latency] = []
    count = bench.sizes.latency_records
    with bench.broker() as broker:
        for number in range(bench.sizes.rounds):
            # Kafka's program warms up too; here the topic's burst of commits would be spent by it.
            topic, warm_up = bench.new_topic(), bench.new_topic()
            for name in (topic, warm_up):
                loads.create_topic(broker.address, name, 1)
            loads.produce_one_by_one(broker.address, warm_up, records=_WARM_UP_RECORDS)
            ours.append(_latency(loads.produce_one_by_one(broker.address, topic, records=count)))
            bench.report(f"one produce in flight, round {number + 1}: {_text(ours[-1])}")
            for suffix, configs, peers in (("", [], default), ("-synced", [FLUSH_EACH], synced)):
                kafka = bench.peer()
                if kafka is not None:
                    kafka.create_topic(topic + suffix, 1, *configs)
                    peers.append(kafka.tools.produce_latency(topic + suffix, records=count, value_bytes=100))
                    bench.report(f"  Kafka{suffix}: {_text(peers[-1])}")
    title = "one produce in flight"
    return [
        Figure("latency-p50", f"{title}, p50", "ms", _p50(ours), 1.5, False, _p50(synced), SYNCED, 2.5),
        Figure("latency-p99", f"{title}, p99", "ms", _p99(ours), 4.0, False, _p99(synced), SYNCED, 1.0),
        Figure("latency-max", f"{title}, largest", "ms", _max(ours), None, False, _max(synced), SYNCED),
        Figure("latency-p50-unsynced", f"{title}, p50", "ms", _p50(ours), None, False, _p50(default), _UNSYNCED),
        Figure("latency-p99-unsynced", f"{title}, p99", "ms", _p99(ours), None, False, _p99(default), _UNSYNCED),
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
            loads.deliver_one_by_one(broker.address, warm_up, records=_WARM_UP_RECORDS)
            ours.append(_latency(loads.deliver_one_by_one(broker.address, topic, records=count)))
            bench.report(f"produce to a waiting consumer, round {number + 1}: {_text(ours[-1])}")
            kafka = bench.peer()
            if kafka is not None:
                kafka.create_topic(topic, 1)
                peers.append(kafka.tools.delivery_latency(topic, records=count, value_bytes=100))
                bench.report(f"  Kafka: {_text(peers[-1])}")
    title = "produce to a waiting consumer"
    return [
        Figure("delivery-p50", f"{title}, p50", "ms", _p50(ours), 2.5, False, _p50(peers), _UNSYNCED_DELIVERY),
        Figure("delivery-p99", f"{title}, p99", "ms", _p99(ours), None, False, _p99(peers), _UNSYNCED_DELIVERY),
    ]


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
