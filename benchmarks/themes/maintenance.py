"""Rolling, key compaction and verification: how fast, in how much memory, and what a producer feels of it.

With and without rolling means two brokers in turns, of which one gives maintenance a byte a second. Whether the other
one has rolled is looked up in its tables.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import loads
from benchmarks.bench import MIB, Bench
from benchmarks.broker_process import BrokerProcess
from benchmarks.figure import Figure
from benchmarks.send_process import run_program
from bus import TopicPartition
from bus.storage_delta.root import open_reader

_COMMIT_RECORDS = 10_000
_LOAD_RECORDS_PER_SECOND = 50_000
_LOAD_SEGMENT_BYTES = 4 * MIB  # so that whole files are rolled while it is measured
_PARTITIONS = 4
_NO_ROLLING = "log.cleaner.io.max.bytes.per.second=1"
_TIMEOUT_S = 3_600.0


def measure_maintenance(bench: Bench) -> list[Figure]:
    return [
        *_measure_rolling(bench, value_bytes=100),
        *_measure_rolling(bench, value_bytes=1_000),
        *_measure_latency(bench),
        *_measure_compaction(bench),
        *_measure_verification(bench),
    ]


# ---------------------------------------------------------------- rolling


def _measure_rolling(bench: Bench, *, value_bytes: int) -> list[Figure]:
    elapsed, processor = [], []
    records = _COMMIT_RECORDS * 100 // value_bytes
    for _ in range(bench.sizes.rounds):
        with _folder(bench) as root:
            _rewrite("write", root, commits=bench.sizes.rewritten_commits, records=records, value_bytes=value_bytes)
            done = _rewrite("roll", root)
        megabytes = done["rewritten_bytes"] / 1e6
        elapsed.append(megabytes / done["seconds"])
        processor.append(megabytes / done["cpu_seconds"])
    title = f"rolling records of {value_bytes:,} bytes, files of a megabyte"
    bench.report(f"{title}: {elapsed[-1]:.0f} MB/s, {processor[-1]:.0f} MB for a second of a core")
    return [
        Figure(f"roll-{value_bytes}", title, "MB/s", elapsed, is_more_better=True, note="read, written and synced"),
        Figure(f"roll-{value_bytes}-core", "... for each second of a core", "MB", processor, 300, is_more_better=True),
    ]


# ---------------------------------------------------------------- produce beside rolling


def _measure_latency(bench: Bench) -> list[Figure]:
    p50s: dict[bool, list[float]] = {True: [], False: []}
    p99s: dict[bool, list[float]] = {True: [], False: []}
    for number in range(bench.sizes.rounds):
        # Whoever comes first in a round comes last in the next: a drift of the machine hits both.
        for is_rolling in (True, False) if number % 2 == 0 else (False, True):
            p50, p99 = _latency_beside_load(bench, is_rolling)
            p50s[is_rolling].append(p50)
            p99s[is_rolling].append(p99)
        bench.report(f"one produce in flight, p99: rolling {p99s[True][-1]:.1f} ms, not {p99s[False][-1]:.1f} ms")
    over = [rolling / calm for rolling, calm in zip(p99s[True], p99s[False], strict=True)]
    note = f"{_LOAD_RECORDS_PER_SECOND:,} records/s to the same topic meanwhile, segment.bytes {_LOAD_SEGMENT_BYTES:,}"
    return [
        Figure("rolling-p50", "one produce in flight beside rolling, p50", "ms", p50s[True], note=note),
        Figure("rolling-p99", "... p99", "ms", p99s[True]),
        Figure("rolling-none-p50", "... without rolling, p50", "ms", p50s[False]),
        Figure("rolling-none-p99", "... without rolling, p99", "ms", p99s[False]),
        Figure("rolling-over", "... p99 with rolling over without", "x", over, 1.5, note="in turns"),
    ]


def _latency_beside_load(bench: Bench, is_rolling: bool) -> tuple[float, float]:
    """p50 and p99 in ms."""
    with bench.broker(*([] if is_rolling else [_NO_ROLLING])) as broker:
        topic = bench.new_topic()
        configs = {"segment_bytes": _LOAD_SEGMENT_BYTES, "commit_interval_ms": 0}
        loads.create_topic(broker.address, topic, _PARTITIONS, **configs)
        loads.produce_one_by_one(broker.address, topic, records=200)
        with loads.SteadyLoad(
            broker.address, topic, partitions=_PARTITIONS, records_per_second=_LOAD_RECORDS_PER_SECOND
        ):
            samples = _produce_for(broker.address, topic, bench.sizes.rolling_seconds)
        rolled = _rolled_files(broker, topic)
    if (rolled > 0) != is_rolling:
        raise RuntimeError(f"expected {'rolled files' if is_rolling else 'none that was rolled'}, found {rolled}")
    p50, p99 = np.percentile(samples, [50, 99])
    return float(p50) * 1_000, float(p99) * 1_000


def _produce_for(address: str, topic: str, seconds: float) -> np.ndarray:
    samples: list[np.ndarray] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        samples.append(loads.produce_one_by_one(address, topic, records=100))
    return np.concatenate(samples)


def _rolled_files(broker: BrokerProcess, topic: str) -> int:
    reader = open_reader(str(broker.root))
    tables = [reader.open_partition(TopicPartition(topic, number)) for number in range(_PARTITIONS)]
    return sum(file.level > 0 for table in tables for file in table.view.live_files)


# ---------------------------------------------------------------- key compaction


def _measure_compaction(bench: Bench) -> list[Figure]:
    records, keys = bench.sizes.compacted_records, bench.sizes.compacted_keys
    seconds, cpu, memory = [], [], []
    for _ in range(bench.sizes.rounds):
        with _folder(bench) as root:
            _rewrite("write", root, commits=records // _COMMIT_RECORDS, records=_COMMIT_RECORDS, keys=keys)
            done = _rewrite("compact", root)
        if not 0 < done["records"] <= keys + 1:
            raise RuntimeError(f"expected a record of each of {keys} keys at most, found {done['records']}")
        seconds.append(done["seconds"])
        cpu.append(done["cpu_seconds"])
        memory.append(done["resident_peak"] / MIB)
    title = f"key compaction of {records:,} records with {keys:,} keys"
    bench.report(f"{title}: {seconds[-1]:.1f} s, {memory[-1]:.0f} MiB")
    return [
        Figure("compact-seconds", title, "s", seconds, 60.0, note="100-byte values"),
        Figure("compact-cpu", "... processor time", "s of a core", cpu),
        Figure("compact-memory", "... memory of its process, peak", "MiB", memory, 500e6 / MIB),
    ]


# ---------------------------------------------------------------- verification


def _measure_verification(bench: Bench) -> list[Figure]:
    records, topic = bench.sizes.stored_records, bench.new_topic()
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, _PARTITIONS)
        loads.produce_records(broker.address, topic, records=records)
    command = [sys.executable, "-m", "bus", "log", "verify", topic, "--root", str(broker.root)]
    seconds = []
    for _ in range(bench.sizes.rounds):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
        seconds.append(time.perf_counter() - started)
    bench.report(f"bus log verify of {records:,} records: {seconds[-1]:.1f} s")
    return [Figure("verify-seconds", f"bus log verify of {records:,} records", "s", seconds, 10.0, note="100 bytes")]


def _rewrite(step: str, root: Path, **options: object) -> dict[str, Any]:
    return run_program("rewrites", step, timeout_s=_TIMEOUT_S, root=root, **options)


@contextlib.contextmanager
def _folder(bench: Bench) -> Iterator[Path]:
    """A root of its own, whose space is given back at once: each is gigabytes."""
    yield (root := Path(tempfile.mkdtemp(prefix="root-", dir=bench.folder)))
    bench.cut(root)
