"""Programs in processes of their own that begin as forks of one that has imported the bus already: to import it takes
a second of processor time, and tests kill and start hundreds of brokers and members.

A program is what `python -m` would run, with its own arguments, environment, folder and streams. Its process is a child
of the test's, which is made to adopt it: so it is killed and waited for like any other. What starts a thread must not
be imported here, for a fork has only the thread that forks.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_IMPORTED = (
    "bus.cli.main",
    "bus.cli.cluster.serve",
    "bus.broker",
    "bus.client.producer.producer",
    "bus.client.consumer.consumer",
)
_REQUEST_BYTES_MAX = 1 << 17
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


class ForkedProgram:
    """A process, with as much of `subprocess.Popen` as tests use."""

    def __init__(self, pid: int, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._descriptor], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._descriptor)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_lock = threading.Lock()


def start_program(
    arguments: Sequence[str],
    *,
    stdout: int,
    stderr: int,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ForkedProgram | subprocess.Popen[bytes]:
    """Start what `python -m` would run with these arguments. `stdout`: a descriptor, or PIPE. It is no fork where the
    system cannot have the test's process adopt one."""
    if not hasattr(os, "pidfd_open"):
        command = [sys.executable, "-m", *arguments]
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment, cwd=folder)
    reader, writer = os.pipe() if stdout == subprocess.PIPE else (-1, os.dup(stdout))
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "folder": str(folder or Path.cwd()),
    }
    try:
        with _lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(_nursery(), [json.dumps(request).encode()], [writer, stderr])
                pid = int(_nursery().recv(64))
            finally:
                _adopt_orphans(False)
    finally:
        os.close(writer)
    return ForkedProgram(pid, os.fdopen(reader, "rb") if reader >= 0 else None)


def _adopt_orphans(is_so: bool) -> None:
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, int(is_so), 0, 0, 0)


@functools.cache
def _nursery() -> socket.socket:
    """Start the process that forks. It ends with this one, whose end of the socket is closed then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.forked_programs", str(theirs.fileno())]
        started = subprocess.Popen(command, cwd=Path(__file__).parents[2], pass_fds=[theirs.fileno()])
    started.returncode = 0  # nobody waits for it
    return ours


# ---------------------------------------------------------------- the process that forks


def _fork_each(control: socket.socket) -> dict[str, Any]:
    """Return in each program what it is to be; the test's process adopts it when its parent is gone."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 2)
        if not data:
            sys.exit()
        reader, writer = os.pipe()
        parent = os.fork()
        if parent == 0:
            program = os.fork()
            if program == 0:
                for descriptor in (control.detach(), reader, writer):
                    os.close(descriptor)
                for number, descriptor in enumerate(descriptors, start=1):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                found: dict[str, Any] = json.loads(data)
                return found
            os.write(writer, b"%d" % program)
            os._exit(0)
        os.waitpid(parent, 0)
        control.send(os.read(reader, 64))  # only now is the program the other process's child
        for descriptor in (reader, writer, *descriptors):
            os.close(descriptor)


def _become(what: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(what["environment"])
    os.chdir(what["folder"])
    sys.argv[:] = what["arguments"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    _become(_fork_each(socket.socket(fileno=int(sys.argv[1]))))
