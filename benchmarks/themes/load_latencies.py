"""The picture of latency against load: single records at a pace, from a hundredth of what each side can do up to it.

Each side's pace is a part of its own maximum, measured in the same round with the same program.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks import loads
from benchmarks.bench import FLUSH_EACH, Bench
from benchmarks.figure import Curve, Point
from benchmarks.kafka import Kafka
from benchmarks.kafka_tools import LoadLatency
from benchmarks.send_process import run_paced, run_sends

PICTURE = "load"
_VALUE_BYTES = 100
_PARTITIONS = 4
_BUS = "the bus (on disk)"
_KAFKA = "Kafka (page cache)"
_KAFKA_SYNCED = "Kafka, flush.messages=1 (on disk)"


@dataclass(slots=True)
class _Loads:
    """By percentage of the maximum, a run a round."""

    maxima: list[float] = field(default_factory=list)
    runs: dict[int, list[LoadLatency]] = field(default_factory=lambda: defaultdict(list))


def measure_load_latencies(bench: Bench) -> list[Curve]:
    measured: dict[str, _Loads] = {}
    for number in range(bench.sizes.rounds):
        with bench.broker() as broker:
            _measure_bus(bench, broker.address, measured.setdefault(_BUS, _Loads()))
        bench.report(f"latency against load, round {number + 1}: {_text(measured[_BUS])}")
        kafka = bench.peer()
        if kafka is not None:
            for label, configs in ((_KAFKA, []), (_KAFKA_SYNCED, [FLUSH_EACH])):
                _measure_kafka(bench, kafka, configs, measured.setdefault(label, _Loads()))
                bench.report(f"  {label}: {_text(measured[label])}")
    return [Curve(PICTURE, label, _points(taken)) for label, taken in measured.items()]


def _measure_bus(bench: Bench, address: str, taken: _Loads) -> None:
    sizes = bench.sizes
    topic = bench.new_topic()
    loads.create_topic(address, topic, _PARTITIONS)
    taken.maxima.append(run_sends("bus", address, topic, seconds=sizes.load_seconds).records_per_second)
    for percent in sizes.load_percents:
        topic = bench.new_topic()
        loads.create_topic(address, topic, _PARTITIONS)
        rate = taken.maxima[-1] * percent / 100
        warm_up = sizes.load_seconds / 4
        taken.runs[percent].append(
            run_paced(address, topic, rate=rate, seconds=sizes.load_seconds, warm_up_seconds=warm_up)
        )


def _measure_kafka(bench: Bench, kafka: Kafka, configs: list[str], taken: _Loads) -> None:
    sizes = bench.sizes

    def load(rate: float) -> LoadLatency:
        topic = bench.new_topic()
        kafka.create_topic(topic, _PARTITIONS, *configs)
        # Java's compiler wants some seconds of the same load, however short the run is.
        warm_up = max(2.0, sizes.load_seconds / 2)
        return kafka.tools.load(
            topic, rate=rate, seconds=sizes.load_seconds, warm_up_seconds=warm_up, value_bytes=_VALUE_BYTES
        )

    taken.maxima.append(load(0).records_per_second)
    for percent in sizes.load_percents:
        taken.runs[percent].append(load(taken.maxima[-1] * percent / 100))


def _points(taken: _Loads) -> list[Point]:
    """At the records a second that were really sent: near the maximum fewer than were asked for."""
    points = []
    for runs in taken.runs.values():
        middle = sorted(run.records_per_second for run in runs)[len(runs) // 2]
        points.append(
            Point(
                middle,
                {
                    "p50": [run.p50 for run in runs],
                    "p99": [run.p99 for run in runs],
                    "p99.9": [run.p999 for run in runs],
                },
            )
        )
    return points


def _text(taken: _Loads) -> str:
    percents = ", ".join(
        f"{percent} %: {runs[-1].p50:.1f}/{runs[-1].p99:.1f}/{runs[-1].p999:.1f} ms"
        for percent, runs in taken.runs.items()
    )
    return f"maximum {taken.maxima[-1]:,.0f} records/s; {percents}"
