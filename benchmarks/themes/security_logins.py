"""What a storm of logins costs those who are logged in: one produce in flight at rest, beside many new connections, and
beside as many that log in.

The new clients run on the broker's machine, so they slow a produce down even if the broker does nothing for them.
Therefore connections with a login are compared with connections without one, and all of these clients run at a lower
priority (nice).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import loads
from benchmarks.bench import Bench
from benchmarks.broker_process import PLAINTEXT, BrokerProcess
from benchmarks.figure import Figure
from benchmarks.key_files import KeyFiles, write_key_files
from benchmarks.send_process import run_program

_USER = "alice"
_PROCESSES = 2
_NICE = 10
_SASL_PLAINTEXT, _SASL_SSL = "SASL_PLAINTEXT", "SASL_SSL"
_TARGET = 1.5


@dataclass(frozen=True, slots=True)
class _Run:
    """Of the produce; milliseconds."""

    p50: float
    p99: float
    records: int
    broker_cpu_seconds: float
    connect_p50: float = 0.0  # of the new connections
    connect_p99: float = 0.0


@dataclass(slots=True)
class _Storm:
    """`protocol` None: none. A run a round."""

    name: str
    title: str
    protocol: str | None = None
    runs: list[_Run] = field(default_factory=list)

    def text(self) -> str:
        run = self.runs[-1]
        return f"{self.title}: p50 {run.p50:.2f} ms, p99 {run.p99:.1f} ms, connecting p50 {run.connect_p50:.1f} ms"


@dataclass(frozen=True, slots=True)
class _Clients:
    """What new connections need to know."""

    keys: KeyFiles
    password: Path


def measure_logins(bench: Bench) -> list[Figure]:
    rest = _Storm("rest", "at rest")
    count = bench.sizes.logins
    storms = [
        rest,
        _Storm("connections", f"{count:,} new connections", PLAINTEXT),
        _Storm("scram", f"{count:,} new connections with a login", _SASL_PLAINTEXT),
        _Storm("scram-tls", f"{count:,} new connections with a login by TLS", _SASL_SSL),
    ]
    folder, root = Path(tempfile.mkdtemp(prefix="keys-", dir=bench.folder)), bench.new_root()
    clients = _Clients(write_key_files(folder), folder / "password")
    _create_user(root, clients.password)
    protocols = (PLAINTEXT, _SASL_PLAINTEXT, _SASL_SSL)
    mechanism = "sasl.enabled.mechanisms=SCRAM-SHA-256"
    with BrokerProcess(root, *clients.keys.bus_settings, mechanism, protocols=protocols) as broker:
        for number in range(bench.sizes.login_rounds):
            for storm in storms if number % 2 == 0 else reversed(storms):
                storm.runs.append(_measure(bench, broker, storm.protocol, clients))
            bench.report(f"round {number + 1}: {'; '.join(storm.text() for storm in storms)}")
    return _figures(bench, rest, storms[1:])


def _create_user(root: Path, password: Path) -> None:
    command = [sys.executable, "-m", "bus", "users", "create", _USER, "--root", str(root)]
    created = subprocess.run(command, check=True, capture_output=True, text=True)
    password.touch(mode=0o600)
    password.write_text(created.stdout)


def _measure(bench: Bench, broker: BrokerProcess, protocol: str | None, clients: _Clients) -> _Run:
    topic, seconds = bench.new_topic(), bench.sizes.login_seconds
    loads.create_topic(broker.address, topic, 1)
    with ThreadPoolExecutor(_PROCESSES) as pool:
        before = broker.cpu_seconds()
        begun = []
        if protocol is not None:
            options = _options(bench, broker.addresses[protocol], topic, protocol, clients)
            begun = [pool.submit(run_program, "login_storm", **options) for _ in range(_PROCESSES)]
        taken = loads.produce_for(broker.address, topic, seconds=seconds)
        used = broker.cpu_seconds() - before
        told = [one.result() for one in begun]
    p50, p99 = (float(value) * 1_000 for value in np.percentile(taken, [50, 99]))
    of_connections = (float(np.mean([one[key] for one in told])) if told else 0.0 for key in ("p50_ms", "p99_ms"))
    return _Run(p50, p99, len(taken), used, *of_connections)


def _options(bench: Bench, address: str, topic: str, protocol: str, clients: _Clients) -> dict[str, Any]:
    """Of one of the processes."""
    sizes = bench.sizes
    options: dict[str, Any] = {
        "address": address,
        "topic": topic,
        "connections": sizes.logins // _PROCESSES,
        "seconds": sizes.login_seconds,
        "nice": _NICE,
    }
    if protocol != PLAINTEXT:
        options |= {"user": _USER, "password_file": clients.password}
    if protocol == _SASL_SSL:
        options["authority"] = clients.keys.authority
    return options


# ------------------------------------------------------------------ figures


def _figures(bench: Bench, rest: _Storm, storms: list[_Storm]) -> list[Figure]:
    note = f"over {bench.sizes.login_seconds:.0f} s, by {_PROCESSES} processes that give way to others"
    title = "one produce in flight"
    calm = [run.p99 for run in rest.runs]
    figures = [
        Figure("logins-rest-p50", f"{title}, at rest, p50", "ms", [run.p50 for run in rest.runs]),
        Figure("logins-rest-p99", "... p99", "ms", calm),
    ]
    for storm in storms:
        p99s = [run.p99 for run in storm.runs]
        over = [stormy / quiet for stormy, quiet in zip(p99s, calm, strict=True)]
        name = f"logins-{storm.name}"
        figures += [
            Figure(
                f"{name}-p50", f"{title}, beside {storm.title}, p50", "ms", [run.p50 for run in storm.runs], note=note
            ),
            Figure(f"{name}-p99", "... p99", "ms", p99s),
            Figure(f"{name}-over", "... p99 over that at rest", "x", over, _TARGET, note="in turns"),
            Figure(f"{name}-cpu", "... processor of the broker for each connection", "ms", _cpu(bench, storm, rest)),
            Figure(f"{name}-connect", "... until it is answered, p50", "ms", [run.connect_p50 for run in storm.runs]),
            Figure(f"{name}-connect-p99", "... p99", "ms", [run.connect_p99 for run in storm.runs]),
        ]
    return figures


def _cpu(bench: Bench, storm: _Storm, rest: _Storm) -> list[float]:
    """What the broker used more than for so many records at rest."""
    return [
        (stormy.broker_cpu_seconds - stormy.records * quiet.broker_cpu_seconds / quiet.records)
        / bench.sizes.logins
        * 1_000
        for stormy, quiet in zip(storm.runs, rest.runs, strict=True)
    ]
