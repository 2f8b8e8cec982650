"""Where the time of a produce call goes: `python -m benchmarks.breakdown`.

Runs a broker in a child process with a clock at the seams of its produce path and one small produce in flight, so that
the k-th reading of each seam belongs to the k-th call; both processes read the same monotonic clock. Then the same
broker under full load, where the seams' processor time is summed up. The readings cost about a microsecond each. Only
the clocks are added: the path is the one that ships.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import loads
from benchmarks.broker_process import BrokerProcess
from bus import Producer

_now = time.perf_counter

# Stages between two readings, in the order of a call. Readings of the client have the prefix "client".
_STAGES = (
    ("client: encode, hand over to gRPC", "client called", "client sent"),
    ("socket and gRPC, client to broker", "client sent", "submit begins"),
    ("decode and check", "submit begins", "decoded"),
    ("queue, wake the writer", "decoded", "commit begins"),
    ("give offsets, cross into a thread", "commit begins", "append begins"),
    ("encode Parquet and statistics", "append begins", "encoded"),
    ("data file: write, sync", "encoded", "data file synced"),
    ("version file: write, sync, link, sync", "data file synced", "version synced"),
    ("advance the view, cross back", "version synced", "commit ends"),
    ("answer: encode, hand over to gRPC", "commit ends", "answer written"),
    ("socket and gRPC, broker to client", "answer written", "client answered"),
)


class Seams:
    """Readings by name, and processor seconds by name."""

    def __init__(self) -> None:
        self.readings: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def around(self, owner: Any, name: str, *, begins: str | None = None, ends: str | None = None) -> None:
        """Read the clock before and after each call of `owner.name`."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            cpu, started = time.thread_time(), _now()
            if begins is not None:
                self.readings[begins].append(started)
            try:
                return original(*arguments, **named)
            finally:
                ended = _now()
                self.wall[name] += ended - started
                self.cpu[name] += time.thread_time() - cpu
                if ends is not None:
                    self.readings[ends].append(ended)

        setattr(owner, name, timed)


class _TimedContext:
    """A call's context that reads the clock when an answer is handed over."""

    def __init__(self, context: Any, seams: Seams) -> None:
        self._context = context
        self._seams = seams

    async def write(self, answer: Any) -> None:
        await self._context.write(answer)
        self._seams.readings["answer written"].append(_now())


def _serve(arguments: list[str], output: Path) -> None:
    """The child: `bus serve` with clocks."""
    from bus.cli.main import cli
    from bus.grpc_api.server import produce
    from bus.runtime import partition
    from bus.storage_delta import local_store, table

    seams = Seams()
    stream = produce.ProduceHandler.stream

    async def timed_stream(self: Any, requests: Any, context: Any) -> None:
        await stream(self, requests, _TimedContext(context, seams))  # type: ignore[arg-type]

    produce.ProduceHandler.stream = timed_stream  # type: ignore[method-assign]
    seams.around(produce.ProduceHandler, "_submit", begins="submit begins")
    seams.around(produce, "decode_produce", ends="decoded")
    seams.around(partition.Partition, "_append_to_table", begins="commit begins")
    seams.around(partition.Partition, "_succeed", begins="commit ends")
    seams.around(table.DeltaPartitionTable, "append", begins="append begins")
    seams.around(table, "encode_data_file", ends="encoded")
    seams.around(local_store.LocalStore, "write_unique", ends="data file synced")
    seams.around(table, "commit_version", ends="version synced")
    seams.around(local_store.LocalStore, "_write_synced")
    seams.around(local_store.LocalStore, "_sync_folder")
    started = time.process_time()
    try:
        cli(arguments, standalone_mode=False)
    finally:
        seams.cpu["process"] = time.process_time() - started
        output.write_text(json.dumps({"readings": seams.readings, "wall": seams.wall, "cpu": seams.cpu}))


class _TimedBroker(BrokerProcess):
    def __init__(self, folder: Path) -> None:
        self._output = folder / "seams.json"
        self._command = [sys.executable, "-m", "benchmarks.breakdown", "--serve", str(self._output)]
        self._command += ["serve", "--root", str(folder / "root"), "--listen", "127.0.0.1:0", "--log-level", "WARNING"]
        self.start()

    def seams(self) -> dict[str, Any]:
        """Stops the broker."""
        self.stop()
        return dict(json.loads(self._output.read_text()))


def _call_stages(folder: Path, calls: int) -> dict[str, float]:
    """Median milliseconds of each stage."""
    broker = _TimedBroker(folder)
    try:
        loads.create_topic(broker.address, "calls", 1)
        readings: dict[str, list[float]] = {"client called": [], "client sent": [], "client answered": []}
        value = bytes(loads.SMALL_VALUE_BYTES)
        with Producer(broker.address) as producer:
            for _ in range(calls):
                readings["client called"].append(_now())
                future = producer.send("calls", value, partition=0)
                readings["client sent"].append(_now())
                future.result(30)
                readings["client answered"].append(_now())
        readings.update(broker.seams()["readings"])
    finally:
        broker.stop()
    warm = {name: np.array(times[-calls:])[calls // 5 :] for name, times in readings.items()}
    stages = {title: float(np.median(warm[end] - warm[begin])) * 1e3 for title, begin, end in _STAGES}
    stages["the whole call"] = float(np.median(warm["client answered"] - warm["client called"])) * 1e3
    return stages


def _load_stages(folder: Path, seconds: float) -> dict[str, float]:
    """Processor milliseconds of the broker for a million records of 100 bytes, by stage."""
    broker = _TimedBroker(folder)
    try:
        loads.create_topic(broker.address, "load", 4)
        rate = loads.produce_batches(broker.address, "load", value_bytes=100, seconds=seconds)
        seams = broker.seams()
    finally:
        broker.stop()
    cpu = seams["cpu"]
    millions = len(seams["readings"]["decoded"]) * loads.BATCH_RECORDS / 1e6
    of = {
        "decode and check": cpu["decode_produce"],
        "encode Parquet and statistics": cpu["encode_data_file"],
        "write and sync": cpu["write_unique"] + cpu["commit_version"],
        "the rest: gRPC, event loop, interpreter": cpu["process"]
        - cpu["decode_produce"]
        - cpu["encode_data_file"]
        - cpu["write_unique"]
        - cpu["commit_version"],
    }
    stages = {title: seconds / millions * 1e3 for title, seconds in of.items()}
    stages["all of the broker"] = cpu["process"] / millions * 1e3
    stages["elapsed"] = 1e9 / rate
    return stages


def _table(title: str, unit: str, stages: dict[str, float]) -> str:
    rows = "".join(f"| {stage} | {value:.2f} |\n" for stage, value in stages.items())
    return f"| {title} | {unit} |\n| --- | ---: |\n{rows}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breakdown", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_500)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.serve is not None:
        _serve(rest, arguments.serve)
        return
    with tempfile.TemporaryDirectory(prefix="bus-bench-") as folder:
        one, many = Path(folder, "one"), Path(folder, "many")
        one.mkdir()
        many.mkdir()
        sys.stdout.write(_table("one small produce in flight", "p50, ms", _call_stages(one, arguments.calls)))
        title = "10,000 records of 100 bytes a batch, as fast as it goes"
        sys.stdout.write(
            "\n" + _table(title, "ms of a core for a million records", _load_stages(many, arguments.seconds))
        )


if __name__ == "__main__":
    main()
