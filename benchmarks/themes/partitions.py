"""What many partitions cost while nothing happens, and whether the broker grows under a steady load."""

from __future__ import annotations

import statistics
import time

from benchmarks import loads
from benchmarks.bench import MIB, Bench
from benchmarks.figure import Figure


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
                per_minute.append(broker.resident_bytes() / MIB)
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
