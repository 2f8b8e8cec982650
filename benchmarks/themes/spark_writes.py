"""Spark writes a topic: beside Spark's Kafka sink, exactly once against at least once."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.figure import Figure
from benchmarks.spark_topics import SparkBench, spark_bench

_NOTE = "rows in memory; the bus: each row once, on disk; Kafka: at least once, in the page cache"
_KEYS = 1_000


def measure_spark_sink(bench: Bench) -> list[Figure]:
    small = bench.sizes.spark_records
    with spark_bench(bench) as on:
        return [
            _written(on, "spark-sink-100b", f"Spark writes {small:,} values of 100 B", small, 100, target=2.0),
            _written(on, "spark-sink-keyed", f"... with {_KEYS:,} different keys", small, 100, keys=_KEYS),
            _written(on, "spark-sink-1kb", f"... {small // 10:,} values of 1 KB", small // 10, 1_000, target=2.0),
        ]


def _written(
    on: SparkBench,
    name: str,
    title: str,
    records: int,
    value_bytes: int,
    *,
    keys: int | None = None,
    target: float | None = None,
) -> Figure:
    options = {} if keys is None else {"keys": keys}
    seconds = on.run(
        "batch_writes",
        on.create_topic(),
        records=records,
        value_bytes=value_bytes,
        rounds=on.bench.sizes.rounds,
        **options,
    )
    rates = {side: [records / run for run in runs] for side, runs in seconds.items()}
    return Figure(
        name,
        title,
        "records/s",
        rates["bus"],
        is_more_better=True,
        peer_runs=rates.get("kafka", ()),
        note=_NOTE,
        ratio_target=target,
    )
