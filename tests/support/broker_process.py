"""A broker in a process of its own, that a test may kill."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

READY_TIMEOUT_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerProcess:
    """`bus serve` on a free loopback port. Restarted on the same port, as a broker in production would be."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log_path = root.with_name(f"{root.name}.log")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_after_s = 0.0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when the broker has said that it is ready."""
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "bus",
                    "serve",
                    "--root",
                    str(self.root),
                    "--listen",
                    self.address,
                    *self._options,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        assert self.address.encode() in line, f"the broker is not ready: {line!r}\n{self.log_path.read_text()}"
        self.ready_after_s = time.monotonic() - started

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to stop, in order; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(timeout=60)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
