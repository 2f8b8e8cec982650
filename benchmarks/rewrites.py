"""Rewriting one table, a step a process, so that memory and processor time are the step's alone.

    python -m benchmarks.rewrites write --root ROOT --commits 256 --records 10000 [--keys 1000000]
    python -m benchmarks.rewrites roll --root ROOT
    python -m benchmarks.rewrites compact --root ROOT

`roll` makes one file of all, or as many as `segment.bytes` asks for; `compact` leaves the last record of each key. Both
with their commit, both as a broker's maintenance does them and at no pace. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.loads import random_batch
from bus.model import LogBatch, TimestampType, TopicPartition
from bus.partition_log.log_life import RollingRules, plan_full_roll
from bus.ports import Committed, PreparedFiles
from bus.settings.topic import TopicConfig
from bus.storage_delta.root import open_storage
from bus.storage_delta.table import DeltaPartitionTable

_NAME = TopicPartition("rewritten", 0)
_NOW_MS = 1_700_000_000_000
_DAY_MS = 86_400_000
_RECORD_VALUE_BYTES = 100


def write(table: DeltaPartitionTable, *, commits: int, records: int, value_bytes: int, keys: int) -> dict[str, float]:
    """Values of random bytes; keys of 8 bytes by chance, from so many, or none."""
    chance = np.random.default_rng(0)
    values = random_batch(value_bytes, records)
    for _ in range(commits):
        columns = values
        if keys:
            drawn = chance.integers(0, keys, records, dtype=np.int64)
            key = pa.Array.from_buffers(pa.binary(8), records, [None, pa.py_buffer(drawn)]).cast(pa.binary())
            columns = pa.RecordBatch.from_arrays([key, values.column(0)], names=["key", "value"])
        base = table.state.high_watermark
        batch = LogBatch(
            base_offset=base,
            next_offset=base + records,
            record_count=records,
            size_bytes=columns.nbytes,
            leader_epoch=0,
            timestamp_type=TimestampType.CREATE_TIME,
            timestamp_ms=_NOW_MS,
            timestamp_max_ms=_NOW_MS,
            columns=columns,
        )
        _check_committed(table.append([batch], leader_epoch=0, now_ms=_NOW_MS))
    table.cleanup.write_checkpoint()
    return {"bytes": table.state.size_bytes, "files": table.state.file_count, "records": table.state.high_watermark}


def roll(table: DeltaPartitionTable) -> dict[str, float]:
    config = TopicConfig()
    plan = plan_full_roll(table.rewrites.files, RollingRules(config.segment_bytes, config.segment_ms), compacted_to=0)

    def roll_all() -> int:
        rewritten_bytes = 0
        for run in plan:
            prepared = table.rewrites.prepare_roll(
                run, compression=config.file_compression, now_ms=_NOW_MS, tombstone_retention_ms=_DAY_MS
            )
            rewritten_bytes += _swap(table, prepared)
        return rewritten_bytes

    return _measured(roll_all, table)


def compact(table: DeltaPartitionTable) -> dict[str, float]:
    def compact_all() -> int:
        prepared = table.rewrites.prepare_key_compaction(now_ms=_NOW_MS, tombstone_retention_ms=_DAY_MS)
        return 0 if prepared is None else _swap(table, prepared)

    return _measured(compact_all, table)


def _swap(table: DeltaPartitionTable, prepared: PreparedFiles) -> int:
    _check_committed(table.rewrites.swap(prepared, leader_epoch=0, now_ms=_NOW_MS))
    return prepared.rewritten_bytes


def _measured(rewrite: Callable[[], int], table: DeltaPartitionTable) -> dict[str, float]:
    resident = _resident_bytes_peak()
    started, processor = time.perf_counter(), time.process_time()
    rewritten_bytes = rewrite()
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - processor,
        "rewritten_bytes": rewritten_bytes,
        "resident_before": resident,
        "resident_peak": _resident_bytes_peak(),
        "records": sum(file.record_count for file in table.rewrites.files),
        "files": table.state.file_count,
    }


def _resident_bytes_peak() -> int:
    """Of this process since it began: `ru_maxrss` would know of its parent's too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _check_committed(outcome: object) -> None:
    if not isinstance(outcome, Committed):
        raise RuntimeError(f"expected a commit, found {outcome}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewrites", description="Rewrite one table.")
    parser.add_argument("step", choices=["write", "roll", "compact"])
    parser.add_argument("--root", required=True)
    parser.add_argument("--commits", type=int, default=256)
    parser.add_argument("--records", type=int, default=10_000, help="of each commit")
    parser.add_argument("--value-bytes", type=int, default=_RECORD_VALUE_BYTES)
    parser.add_argument("--keys", type=int, default=0)
    arguments = parser.parse_args()
    storage = open_storage(arguments.root)
    table = storage.create_partition(_NAME, topic_id="rewritten")
    table.lead(max(0, table.state.leader_epoch), 0, fence=False)
    match arguments.step:
        case "write":
            done = write(
                table,
                commits=arguments.commits,
                records=arguments.records,
                value_bytes=arguments.value_bytes,
                keys=arguments.keys,
            )
        case "roll":
            done = roll(table)
        case _:
            done = compact(table)
    storage.close()
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
