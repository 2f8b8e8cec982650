"""`bus serve` as a child process, as a user runs it: started, watched from outside, restarted, stopped by its pid.

Nothing is patched or imported into the broker: what is measured is what ships.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

PLAINTEXT = "PLAINTEXT"
_SAMPLE_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes."""

    start: int
    peak: int
    end: int


class BrokerProcess:
    """One broker on one root. `with` stops it."""

    def __init__(self, root: Path, *settings: str, protocols: Sequence[str] = (PLAINTEXT,)) -> None:
        """Starts it and waits for the line that says clients may come; `settings` are `--set KEY=VALUE` each. It has a
        listener of each of the `protocols`."""
        self.root = root
        listeners = ",".join(f"{protocol}://127.0.0.1:0" for protocol in protocols)
        self._command = [sys.executable, "-m", "bus", "serve", "--root", str(root), "--set", f"listeners={listeners}"]
        self._command += ["--log-level", "WARNING"]
        for setting in settings:
            self._command += ["--set", setting]
        self.start()

    def start(self) -> float:
        """Seconds from the start of the process until it is ready."""
        started = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready: "):
            raise RuntimeError(f"expected the broker's ready line, found {line!r}; exit {self._process.wait()}")
        self.addresses = _addresses_of(line)
        self.address = next(iter(self.addresses.values()))
        self._ps = psutil.Process(self._process.pid)
        return time.perf_counter() - started

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def restart(self) -> float:
        self.stop()
        return self.start()

    def resident_bytes(self) -> int:
        return int(self._ps.memory_info().rss)

    def resident_bytes_soon(self) -> int:
        """Half a second from now: what was just freed may still be there."""
        time.sleep(0.5)
        return self.resident_bytes()

    def cpu_seconds(self) -> float:
        times = self._ps.cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _addresses_of(ready: str) -> dict[str, str]:
    """By the protocol of the listener, in their order."""
    shown = ready.removeprefix("ready: ").partition(" serves ")[0].split(", ")
    listeners = (one.rpartition("://") for one in shown)
    return {name or PLAINTEXT: address for name, _, address in listeners}


class MemoryWatch:
    """Samples a broker's memory while the block runs; `memory` afterwards."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._done = threading.Event()

    def __enter__(self) -> MemoryWatch:
        self._start = self._peak = self._broker.resident_bytes()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_INTERVAL_S):
            self._peak = max(self._peak, self._broker.resident_bytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.memory = Memory(self._start, self._peak, self._broker.resident_bytes())
