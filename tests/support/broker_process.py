"""A broker in a process of its own, that a test may kill."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support.earlier_version import environment_of_version
from tests.support.forked_programs import ForkedProgram, start_program

READY_TIMEOUT_S = 100
_PORTS_PER_PROCESS = 2_000
_MAIN = "import runpy, sys; sys.argv[0] = 'bus'; runpy.run_module('bus', run_name='__main__')"


def _candidate_ports() -> itertools.cycle[int]:
    """Below the ports that the system gives to outgoing connections; a range for each process of pytest-xdist."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
    ports = range(20_000 + process * _PORTS_PER_PROCESS, 20_000 + (process + 1) * _PORTS_PER_PROCESS)
    start = random.SystemRandom().randrange(_PORTS_PER_PROCESS)
    return itertools.cycle([*ports[start:], *ports[:start]])


_candidates = _candidate_ports()


def free_port() -> int:
    """A loopback port on which nothing listens, and that no other test nor outgoing connection will take."""
    for port in itertools.islice(_candidates, _PORTS_PER_PROCESS):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"expected a free port among {_PORTS_PER_PROCESS}, found none")


class BrokerProcess:
    """`bus serve` on a free loopback port. Restarted on the same port, as a broker in production would be."""

    def __init__(self, root: Path, *options: str, name: str = "") -> None:
        """`name`: of its log file, where several serve one root."""
        self.root = root
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log_path = root.with_name(f"{name or root.name}.log")
        self._options = list(options)
        self._listen = ["--listen", self.address]
        self._process: ForkedProgram | subprocess.Popen[bytes] | None = None
        self._code: Path | None = None
        self._prelude = ""
        self.ready_after_s = 0.0

    def run_version(self, code: Path | None, *, prelude: str = "") -> None:
        """Make it the package in this folder from its next start on, `None`: the one of the tests. `prelude`: lines of
        Python that come before its program, to have it make a mistake."""
        self._code = code
        self._prelude = prelude

    def configure(self, settings: Path) -> None:
        """It listens where the file says, and not by itself."""
        self._listen = ["--config", str(settings)]

    def advertise(self, address: str) -> None:
        """Clients and other brokers come by this address."""
        self._options += ["--advertise", address]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, stderr: int | None = None) -> None:
        """Returns when the broker has said that it is ready; one that does not say so is killed. `stderr`: a descriptor
        in place of the log file."""
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = self._launch(log.fileno() if stderr is None else stderr)
        assert self._process.stdout is not None
        try:
            ready, _, _ = select.select([self._process.stdout], [], [], READY_TIMEOUT_S)
            line = self._process.stdout.readline() if ready else b""
            assert line.startswith(b"ready: "), f"the broker is not ready: {line!r}\n{self.log_path.read_text()}"
        except BaseException:
            self.kill()
            raise
        self.ready_after_s = time.monotonic() - started

    def _launch(self, stderr: int) -> ForkedProgram | subprocess.Popen[bytes]:
        arguments = ["serve", "--root", str(self.root), *self._listen, *self._options]
        if self._code is None and not self._prelude:
            return start_program(["bus", *arguments], stdout=subprocess.PIPE, stderr=stderr)
        program = ["-c", f"{self._prelude}\n{_MAIN}"] if self._prelude else ["-m", "bus"]
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**(environment_of_version(self._code) if self._code else os.environ), "PYTHONUNBUFFERED": "1"},
            cwd=self._code,
        )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to stop, in order; the exit code."""
        return self._end(signal.SIGTERM)

    def hang_up(self) -> int:
        """End it as a terminal does that is closed: twice, once by the shell and once by the kernel; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)
        return self._end(signal.SIGHUP)

    def wait(self) -> int:
        """Wait until it ends by itself; return the exit code."""
        return self._end(None)

    def _end(self, number: signal.Signals | None) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if number is not None:
            process.send_signal(number)
        assert process.stdout is not None
        try:
            return process.wait(timeout=100)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
