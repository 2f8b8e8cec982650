"""Runs the programs that are processes of their own, clients of either side above all, and reads what they print."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kafka_tools import LoadLatency

_ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class SendRun:
    records_per_second: float
    records: int
    warm_up_records: int  # sent before them, not among them
    cpu_seconds: float  # of the client's process, for `records`

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds of the client for a million records."""
        return self.cpu_seconds / self.records * 1e6


def has_confluent() -> bool:
    return importlib.util.find_spec("confluent_kafka") is not None


def run_sends(peer: str, address: str, topic: str, *, seconds: float, **options: Any) -> SendRun:
    """`options` of `benchmarks.sends` with underscores for dashes. Raises `RuntimeError` with what it said."""
    printed = run_program(
        "sends", peer=peer, address=address, topic=topic, seconds=seconds, warm_up_seconds=seconds / 8, **options
    )
    return SendRun(
        printed["records_per_second"], printed["records"], printed["warm_up_records"], printed["cpu_seconds"]
    )


def run_paced(address: str, topic: str, *, rate: float, seconds: float, warm_up_seconds: float) -> LoadLatency:
    """The SDK's producer at `rate` records a second."""
    printed = run_program(
        "paced_sends", address=address, topic=topic, rate=rate, seconds=seconds, warm_up_seconds=warm_up_seconds
    )
    return LoadLatency(**printed)


def run_consumption(peer: str, address: str, topic: str, *, partitions: int, records: int) -> float:
    """Records a second as Python objects, from the first one on."""
    printed = run_program("consumes", peer=peer, address=address, topic=topic, partitions=partitions, records=records)
    return float(printed["records_per_second"])


def run_program(module: str, *arguments: str, timeout_s: float = _TIMEOUT_S, **options: object) -> dict[str, Any]:
    """`python -m benchmarks.<module>` with `arguments`, and `options` with underscores for dashes: the JSON of its last
    line. Raises `RuntimeError` with what it said."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    for name, value in options.items():
        dashed = name.replace("_", "-")
        if value is True:
            command.append(f"--{dashed}")
        elif value is False:
            command.append(f"--no-{dashed}")
        else:
            command += [f"--{dashed}", str(value)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[2:])} failed: {done.stderr.strip()[-800:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
