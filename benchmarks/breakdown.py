"""Where the time of a produce call goes: `python -m benchmarks.breakdown`.

Runs a broker in a child process with a clock at the seams of its produce path and one small produce in flight, so that
the k-th reading of each seam belongs to the k-th call; both processes read the same monotonic clock. Then such a broker
under full load, of batches and of single records, where the seams' processor time is summed up. The readings cost about
a microsecond each. Only the clocks are added: the path is the one that ships.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import loads
from benchmarks.breakdown_sends import ClientClocks, send_stages
from benchmarks.seams import now
from benchmarks.timed_broker import TimedBroker
from bus import Producer

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


def _call_stages(folder: Path, clocks: ClientClocks, calls: int) -> dict[str, float]:
    """Median milliseconds of each stage."""
    broker = TimedBroker(folder)
    try:
        loads.create_topic(broker.address, "calls", 1)
        readings: dict[str, list[float]] = {"client called": [], "client answered": []}
        value = bytes(loads.SMALL_VALUE_BYTES)
        with Producer(broker.address, linger_ms=0) as producer:
            for _ in range(calls):
                readings["client called"].append(now())
                producer.send("calls", value, partition=0).result(30)
                readings["client answered"].append(now())
        readings["client sent"] = clocks.seams.readings["client sent"]
        readings.update(broker.seams()["readings"])
    finally:
        broker.stop()
    warm = {name: np.array(times[-calls:])[calls // 5 :] for name, times in readings.items()}
    stages = {title: float(np.median(warm[end] - warm[begin])) * 1e3 for title, begin, end in _STAGES}
    stages["the whole call"] = float(np.median(warm["client answered"] - warm["client called"])) * 1e3
    return stages


def _load_stages(folder: Path, seconds: float) -> dict[str, float]:
    """Processor milliseconds of the broker for a million records of 100 bytes, by stage."""
    broker = TimedBroker(folder)
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
    parser.add_argument("--quick", action="store_true", help="few calls and short loads, to try it out")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.calls, arguments.seconds = 200, 1.0
    clocks = ClientClocks()
    with tempfile.TemporaryDirectory(prefix="bus-bench-") as folder:
        one, many, unkeyed, keyed = (Path(folder, name) for name in ("one", "many", "unkeyed", "keyed"))
        for path in (one, many, unkeyed, keyed):
            path.mkdir()
        _write("one small produce in flight", "p50, ms", _call_stages(one, clocks, arguments.calls))
        _write(
            "10,000 records of 100 bytes a batch, as fast as it goes",
            "ms of a core for a million records",
            _load_stages(many, arguments.seconds),
        )
        for path, title, keys in ((unkeyed, "without keys", 0), (keyed, "with 1,000 keys", 1_000)):
            stages = send_stages(path, clocks, keys=keys, seconds=arguments.seconds)
            _write(f"send() of 100 bytes {title}, as fast as it goes", "ns a record, of a core", stages)


def _write(title: str, unit: str, stages: dict[str, float]) -> None:
    sys.stdout.write(_table(title, unit, stages) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
