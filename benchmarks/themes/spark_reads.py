"""Spark reads stored topics: batch and AvailableNow beside Spark's Kafka source, and by read_topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bench import Bench
from benchmarks.figure import Figure
from benchmarks.spark_topics import SparkBench, spark_bench

_PAGE_CACHE = "beside Spark's Kafka source, the same query; all files in the page cache"
_SMALL_FILES = "files of 1 MB, as they were sent"


def measure_spark_batch(bench: Bench) -> list[Figure]:
    with spark_bench(bench) as on:
        small, large = _data(bench)
        return [*_batch(on, "100b", "100 B", small, 100), *_batch(on, "1kb", "1 KB", large, 1_000)]


def _batch(on: SparkBench, name: str, size: str, records: int, value_bytes: int) -> list[Figure]:
    topic = on.create_topic()
    on.fill(topic, records=records, value_bytes=value_bytes)
    rounds = on.bench.sizes.rounds
    seconds = on.run("batch_reads", topic, records=records, value_bytes=value_bytes, rounds=rounds)
    rates = {reading: [records / run for run in runs] for reading, runs in seconds.items()}

    on.roll(topic)
    again = on.run(
        "batch_reads", topic, records=records, value_bytes=value_bytes, rounds=rounds, readings="native,kafka"
    )
    rates |= {f"rolled-{reading}": [records / run for run in runs] for reading, runs in again.items()}

    def figure(reading: str, title: str, note: str = "", target: float | None = None) -> Figure:
        way, query = reading.rsplit(".", 1)
        peer = f"rolled-kafka.{query}" if way.startswith("rolled") else f"kafka.{query}"
        return _figure(f"spark-batch-{name}-{way}-{query}", title, rates, reading, peer, note, target)

    return [
        figure("bus.sum", f'Spark, {records:,} values of {size} summed, format("bus")', _PAGE_CACHE, 2.5),
        figure("root.sum", "... by bus.root, without a broker"),
        figure("native.sum", "... by read_topic, without a broker", _SMALL_FILES, 6.0),
        figure("rolled-native.sum", "... by read_topic, after the files were rolled", target=6.0),
        figure("bus.all", '... all columns of all rows, format("bus")'),
        figure("native.all", "... by read_topic, without a broker", _SMALL_FILES),
        figure("rolled-native.all", "... by read_topic, after the files were rolled"),
    ]


def measure_spark_stream(bench: Bench) -> list[Figure]:
    with spark_bench(bench) as on:
        small, large = _data(bench)
        return [
            *_available_now(on, "100b", "100 B", small, 100),
            *_available_now(on, "1kb", "1 KB", large, 1_000),
        ]


def _available_now(on: SparkBench, name: str, size: str, records: int, value_bytes: int) -> list[Figure]:
    topic = on.create_topic()
    on.fill(topic, records=records, value_bytes=value_bytes)
    seconds = on.run("available_now", topic, records=records, rounds=on.bench.sizes.rounds)
    rates = {side: [records / run for run in runs] for side, runs in seconds.items()}
    title = f"Spark, AvailableNow, {records:,} values of {size}"
    named = f"spark-stream-{name}"
    return [
        _figure(named, title, rates, "bus", "kafka", "the whole query, its start and its end too", 1.5),
        _figure(f"{named}-root", "... by bus.root, without a broker", rates, "root", "kafka", "", None),
    ]


def _data(bench: Bench) -> tuple[int, int]:
    return bench.sizes.spark_records, bench.sizes.spark_records // 10


def _figure(
    name: str,
    title: str,
    rates: Mapping[str, Sequence[float]],
    ours: str,
    peer: str,
    note: str,
    target: float | None,
) -> Figure:
    return Figure(
        name,
        title,
        "records/s",
        rates[ours],
        is_more_better=True,
        peer_runs=rates.get(peer, ()),
        note=note,
        ratio_target=target,
    )
