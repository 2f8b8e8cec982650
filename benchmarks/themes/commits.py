"""The life of one partition of very many commits, and a restart on it."""

from __future__ import annotations

import time

import numpy as np

from benchmarks import loads
from benchmarks.bench import MIB, Bench
from benchmarks.figure import Figure


def measure_many_commits(bench: Bench) -> list[Figure]:
    count = bench.sizes.commits
    topic = bench.new_topic()
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, 1, commit_interval_ms=0)
        loads.produce_one_by_one(broker.address, topic, records=200)

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
        Figure("commits-memory", "broker memory after them", "MiB", [memory / MIB]),
        Figure("restart-ready", "restart on that partition until ready", "s", ready, note="a file for each commit"),
        Figure("restart-first-fetch", "... until the first fetch is answered", "s", answered, 1.0),
    ]
