"""The life of one partition at 100 commits a second, its clock moved by hand: `python -m benchmarks.simulated_day`.

The real partition on a real folder, every file synced, without a network: rolling, checkpoints, cleaning and the
dropping of versions as a broker does them. Commits follow each other as fast as they go, each 10 ms later by the clock,
so where the machine makes more than a hundred a second, maintenance has less time than it would have in a day. What a
day has 43 times of (8.64 million commits to 200,000) is the number of commits alone: all that is kept by number or by
age, versions, checkpoints, removed files, is kept for a part of the run that is short enough to have gone round several
times. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.loads import SMALL_VALUE_BYTES, random_batch
from bus.model import RecordBatch, TopicPartition
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import IoThrottle, Maintenance, MaintenanceClock
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_queue import Appended
from bus.runtime.partitions.partition_settings import settings_of
from bus.runtime.partitions.tail_cache import TailCache
from bus.runtime.tasks import TaskScope
from bus.settings.broker import BrokerConfig
from bus.settings.topic import TopicConfig
from bus.storage_delta.root import open_reader, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import Data
from bus.storage_delta.table import DeltaPartitionTable

PARTS = 24  # of the run, as a day has hours
_COMMIT_MS = 10
_FULL_COMMITS = 200_000
_VERSIONS_MAX = 50_000
_DELETE_DELAY_MS = 60_000
_LOOK_MS = 300_000  # log.retention.check.interval.ms
_WARM_UP = 200
_SAMPLE_COMMITS = 20
_NAME = TopicPartition("day", 0)


class CountingStore(LocalStore):
    """`appended_bytes` of data files that commits wrote, `rewritten_bytes` of those that maintenance wrote, and
    `replaced_bytes` of what is put in a name's place: checkpoints, but for a few bytes."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.appended_bytes = self.rewritten_bytes = self.replaced_bytes = 0

    def write_unique(self, key: str, data: Data) -> None:
        super().write_parts(key, (data,))
        self.appended_bytes += memoryview(data).nbytes

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        def counted() -> Iterable[Data]:
            for part in parts:
                self.rewritten_bytes += memoryview(part).nbytes
                yield part

        super().write_parts(key, counted())

    def put(self, key: str, data: Data) -> None:
        super().put(key, data)
        self.replaced_bytes += memoryview(data).nbytes


class SimulatedClock:
    def __init__(self) -> None:
        self._now_ms = 1_700_000_000_000

    def advance(self, by_ms: int) -> None:
        self._now_ms += by_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms


@dataclass(slots=True)
class Part:
    """One of the parts of the run, at its end but for what says otherwise."""

    p50_ms: float
    p99_ms: float
    live_files_max: int
    log_files: int
    data_files: int
    resident_bytes: int
    open_s: float


@dataclass(slots=True)
class Day:
    commits: int
    seconds: float = 0.0
    appended_bytes: int = 0
    rewritten_bytes: int = 0
    replaced_bytes: int = 0
    live_files: int = 0
    rolled_bytes_per_record: float = 0.0
    parts: list[Part] = field(default_factory=list)


class SimulatedDay:
    def __init__(self, root: Path, commits: int) -> None:
        self._root, self._commits = root, commits
        scale = min(1.0, commits / _FULL_COMMITS)
        config = TopicConfig(
            commit_interval_ms=0,
            delta_log_versions_max=max(100, round(_VERSIONS_MAX * scale)),
            file_delete_delay_ms=max(1, round(_DELETE_DELAY_MS * scale)),
        )
        self._look_commits = max(1, round(_LOOK_MS * scale)) // _COMMIT_MS
        self._settings = settings_of(_NAME.topic, config, BrokerConfig())
        self._clock = SimulatedClock()
        self._store = CountingStore(str(root))
        columns = random_batch(SMALL_VALUE_BYTES, 1)
        self._columns, self._size_bytes = columns, columns.nbytes
        self._process = psutil.Process()
        self._day = Day(commits)

    async def run(self) -> Day:
        storage = open_storage_on(self._store, exclusive=False)
        table = storage.create_partition(_NAME, topic_id="simulated")
        table.lead(max(0, table.state.leader_epoch), self._clock.now_ms(), fence=False)
        calls, tasks = BlockingCalls(1, clock=self._clock), TaskScope("day")
        partition = Partition(
            _NAME,
            table,
            leader_epoch=0,
            settings=self._settings,
            queue_bytes_max=1 << 25,
            clock=self._clock,
            calls=calls,
            cache=TailCache(64 << 20),
            tasks=tasks,
            maintenance=Maintenance(
                MaintenanceClock(self._clock), IoThrottle(sys.float_info.max, self._clock), backoff_s=15.0
            ),
        )
        try:
            for _ in range(_WARM_UP):
                await self._commit(partition)
            started = time.perf_counter()
            for part in range(PARTS):
                count = self._commits * (part + 1) // PARTS - self._commits * part // PARTS
                self._day.parts.append(await self._live(partition, table, count))
            self._day.seconds = time.perf_counter() - started
            await partition.end_maintenance()
            await tasks.join()
        finally:
            calls.close()
        self._sum_up(table)
        return self._day

    async def _live(self, partition: Partition, table: DeltaPartitionTable, count: int) -> Part:
        seconds = np.empty(count)
        live_files_max = 0
        for number in range(count):
            seconds[number] = await self._commit(partition)
            if number % _SAMPLE_COMMITS == 0:
                live_files_max = max(live_files_max, table.state.file_count)
            if table.state.version % self._look_commits == 0:
                partition.look_after()
        folder = self._root / "topics" / _NAME.topic / str(_NAME.partition)
        p50, p99 = (float(value) * 1_000 for value in np.percentile(seconds, [50, 99]))
        return Part(
            p50_ms=p50,
            p99_ms=p99,
            live_files_max=live_files_max,
            log_files=len(os.listdir(folder / "_delta_log")),
            data_files=len(os.listdir(folder)) - 1,
            resident_bytes=self._process.memory_info().rss,
            open_s=self._open(),
        )

    async def _commit(self, partition: Partition) -> float:
        self._clock.advance(_COMMIT_MS)
        now_ms = self._clock.now_ms()
        batch = RecordBatch(1, self._size_bytes, SMALL_VALUE_BYTES, now_ms, now_ms, False, self._columns)
        started = time.perf_counter()
        result = await partition.append(batch, acks=-1, current_leader_epoch=None, request_id="")
        elapsed = time.perf_counter() - started
        if not isinstance(result, Appended):
            raise RuntimeError(f"expected a commit, found {result}")
        return elapsed

    def _open(self) -> float:
        """As a reader does, which changes nothing beside the writer."""
        started = time.perf_counter()
        open_reader(str(self._root)).open_partition(_NAME)
        return time.perf_counter() - started

    def _sum_up(self, table: DeltaPartitionTable) -> None:
        day = self._day
        day.appended_bytes, day.rewritten_bytes = self._store.appended_bytes, self._store.rewritten_bytes
        day.replaced_bytes, day.live_files = self._store.replaced_bytes, table.state.file_count
        rolled = [file for file in table.rewrites.files if file.level]
        records = sum(file.record_count for file in rolled)
        day.rolled_bytes_per_record = sum(file.size_bytes for file in rolled) / records if records else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated_day", description="A partition's day.")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--commits", type=int, default=_FULL_COMMITS)
    arguments = parser.parse_args()
    day: dict[str, Any] = asdict(asyncio.run(SimulatedDay(arguments.root, arguments.commits).run()))
    sys.stdout.write(json.dumps(day) + "\n")


if __name__ == "__main__":
    main()
