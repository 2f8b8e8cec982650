"""A broker as a child process on a free loopback port, and the folder that it serves.

Guards one promise: no folder is removed but a bus root that no broker serves.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bus.storage_delta.root import open_storage

_READY = re.compile(r"ready: (\S+) serves ")
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0


class BrokerFailed(RuntimeError):
    """The broker did not start; the message has what it said."""


def make_fresh_root(root: Path) -> None:
    """An empty bus root, in place of an older one that is there. Raises `RootNotUsable` or `RootInUse`."""
    open_storage(str(root), holder="the demo, which is making the folder again").close()
    shutil.rmtree(root)
    open_storage(str(root)).close()


class BrokerProcess:
    """Runs until `stop`; a session of its own, so that Ctrl-C reaches only the one who stops it in order."""

    def __init__(self, root: Path) -> None:
        """Starts and waits until it is ready. Raises `BrokerFailed`."""
        self.log = root / "broker.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bus", "serve", "--root", str(root), "--listen", "127.0.0.1:0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.address = self._wait_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Asks it to finish and answer what is in flight; kills it if that takes too long. Safe to repeat."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def leave_running(self) -> None:
        """Let go of it: it outlives this process."""
        self._process.returncode = 0  # else the interpreter warns of a child that is still running

    def _wait_ready(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        said = b""
        with self._process.stdout as output, selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(output.fileno(), 4096)
                said += chunk
                ready = _READY.search(said.decode(errors="replace"))
                if ready is not None:
                    return ready[1]
                if not chunk:
                    break
        reason = self.log.read_text(encoding="utf-8", errors="replace").strip() or "it said nothing"
        raise BrokerFailed(f"expected the broker to be ready within {_START_TIMEOUT_S:.0f} s, found: {reason}")
