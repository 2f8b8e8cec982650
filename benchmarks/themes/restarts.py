"""A restart on many partitions that all have a past.

Guards the fairness of a shortcut: one partition is really written, commit by commit, and its folder stands for all
others, file by file as hard links. The broker opens each of them as any other, and none of their files is shared in
what it knows; but the page cache holds one copy, so what a cold disk would cost is not in the figure.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from benchmarks import loads
from benchmarks.bench import MIB, Bench
from benchmarks.figure import Figure
from bus import Admin, TopicPartition
from bus.storage_delta.root import open_reader


def measure_restarts(bench: Bench) -> list[Figure]:
    partitions, versions, topic = bench.sizes.partitions, bench.sizes.kept_versions, bench.new_topic()
    with bench.broker() as broker:
        loads.create_topic(broker.address, topic, partitions, commit_interval_ms=0)
        loads.produce_one_by_one(broker.address, topic, records=versions)
        broker.stop()
        folder = broker.root / "topics" / topic
        _check_versions(folder / "0", versions)
        started = time.perf_counter()
        for number in range(1, partitions):
            _link(folder / "0", folder / str(number))
        bench.report(
            f"{partitions:,} partitions of {versions:,} versions, linked in {time.perf_counter() - started:.0f} s"
        )
        live_files = open_reader(str(broker.root)).open_partition(TopicPartition(topic, 0)).state.file_count
        ready, served, cpu = [], [], []
        for _ in range(bench.sizes.rounds):
            broker.stop()
            started = time.perf_counter()
            ready.append(broker.start())
            _ask_all(broker.address, topic, partitions, versions)
            served.append(time.perf_counter() - started)
            cpu.append(broker.cpu_seconds())
        memory = broker.resident_bytes_soon() / MIB
    bench.report(f"  ready {ready}, all served {served}")
    name = f"restart with {partitions:,} partitions of {versions:,} versions"
    note = f"{live_files} live files each; one partition written, the others its hard links"
    return [
        Figure("restarts-served", f"{name} until all are served", "s", served, 15.0, note=note),
        Figure("restarts-ready", "... until ready", "s", ready),
        Figure("restarts-cpu", "... processor time", "s of a core", cpu),
        Figure("restarts-memory", "... memory of the broker then", "MiB", [memory]),
    ]


def _check_versions(table: Path, versions: int) -> None:
    found = sum(name.endswith(".json") for name in os.listdir(table / "_delta_log"))
    if found < versions:
        raise RuntimeError(f"expected {versions} versions, found {found}")


def _link(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target, copy_function=os.link)


def _ask_all(address: str, topic: str, partitions: int, end: int) -> None:
    """Where each of them ends, which only an open partition can tell."""
    with Admin(address) as admin:
        ends = admin.list_offsets({TopicPartition(topic, number): -1 for number in range(partitions)})
    if any(listed.offset != end for listed in ends.values()):
        raise RuntimeError(
            f"expected {end} records in each partition, found {sorted({e.offset for e in ends.values()})}"
        )
