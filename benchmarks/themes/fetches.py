"""Fetching: from files after a restart, and the tail from memory."""

from __future__ import annotations

import statistics
import time

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.figure import Figure


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
        kafka.tools.produce(topic, records=records, value_bytes=100)
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
                peers.append(kafka.tools.consume(topic, records=records))
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
