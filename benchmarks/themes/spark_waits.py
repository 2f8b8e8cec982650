"""How long Spark lets one wait: until foreachBatch has a record, until a count sees it, and a trigger over many
partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.bench import Bench
from benchmarks.figure import Figure
from benchmarks.spark_topics import SparkBench, spark_bench


def measure_spark_latency(bench: Bench) -> list[Figure]:
    with spark_bench(bench) as on:
        seconds = on.run("latency", on.create_topic(1), records=bench.sizes.spark_latencies)
    return [
        _percentile(
            f"spark-latency-p{percent}",
            f"Spark, until foreachBatch has a record, p{percent}",
            seconds,
            "bus",
            percent,
            "one record under way; Kafka: Spark's Kafka source",
            target,
        )
        for percent, target in ((50, 0.45), (99, None))
    ]


def measure_spark_freshness(bench: Bench) -> list[Figure]:
    with spark_bench(bench) as on:
        seconds = on.run("freshness", on.create_topic(1), records=bench.sizes.spark_freshness)
    ways = (
        ("native", "native", "a Spark SQL count by read_topic", 0.1),
        ("bus", "spark", "a Spark SQL count by format(bus)", 0.1),
        ("live", "live", "a Spark SQL count of a registered view", None),
        ("embedded", "embedded", "the embedded engine", 0.01),
    )
    note = "one record under way; beside Kafka, a Spark query that copies to Delta, and a Spark SQL count of that"
    return [
        _percentile(
            f"spark-freshness-{name}-p{percent}",
            f"produce until {seen} sees it, p{percent}",
            seconds,
            way,
            percent,
            note,
            target if percent == 50 else None,
        )
        for way, name, seen, target in ways
        for percent in (50, 99)
    ]


def measure_spark_partitions(bench: Bench) -> list[Figure]:
    partitions = bench.sizes.partitions
    with spark_bench(bench) as on:
        return _planning(on, partitions)


def _planning(on: SparkBench, partitions: int) -> list[Figure]:
    seconds = on.run("many_partitions", on.create_topic(partitions), triggers=on.bench.sizes.spark_triggers)
    planning = f"Spark, planning a trigger over {partitions:,} partitions"
    note = "latestOffset, getBatch and queryPlanning of the query's progress; a record a trigger"
    return [
        _median("spark-planning", planning, seconds, "planning", note, 1.0),
        _median("spark-trigger", "... the whole trigger", seconds, "trigger", "", None),
    ]


def _median(
    name: str, title: str, seconds: Mapping[str, Sequence[float]], step: str, note: str, target: float | None
) -> Figure:
    """All triggers are shown; they do not pair up with those of the peer, so its median stands for it."""
    peer = seconds.get(f"kafka.{step}", ())
    return Figure(
        name,
        title,
        "s",
        [float(np.median(seconds[f"bus.{step}"]))],
        target,
        peer_runs=[float(np.median(peer))] if peer else (),
        note=note,
    )


def _percentile(
    name: str,
    title: str,
    seconds: Mapping[str, Sequence[float]],
    way: str,
    percent: int,
    note: str,
    target: float | None,
) -> Figure:
    """One run a figure: records of both sides do not pair up."""
    peer = seconds.get("kafka", ())
    return Figure(
        name,
        title,
        "ms",
        [_percentile_ms(seconds[way], percent)],
        peer_runs=[_percentile_ms(peer, percent)] if peer else (),
        note=f"{note}; {len(seconds[way])} records",
        ratio_target=target,
    )


def _percentile_ms(seconds: Sequence[float], percent: int) -> float:
    return float(np.percentile(seconds, percent)) * 1_000
