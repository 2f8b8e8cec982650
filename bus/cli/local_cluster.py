"""The brokers of a cluster as processes of this machine: found, started, stopped, sent signals.

A broker holds a lock of its own in the root, `cluster/broker-N.lock`, for as long as its process lives. Guards one
promise: a signal goes to no process but one that is named in such a lock and has its file open. Beside the lock are
the broker's log and the options that it was started with.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bus.cli.failures import Failure
from bus.model import PLAINTEXT, RunningBroker

HOST = "127.0.0.1"
_POLL_S = 0.05
_LOG_LINES_SHOWN = 15
_OF_A_BROKER = re.compile(r"broker-([0-9]+)\.(?:lock|json)")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a broker is started, and started again."""

    port: int
    rack: str | None
    options: tuple[str, ...]  # of `bus serve`, beside those that follow from the rest
    protocol: str = PLAINTEXT  # of its one listener

    @property
    def listen_options(self) -> tuple[str, str]:
        address = f"{HOST}:{self.port}"
        return (
            ("--listen", address) if self.protocol == PLAINTEXT else ("--set", f"listeners={self.protocol}://{address}")
        )


class LocalCluster:
    """Brokers on one root. `root` is a bus root already."""

    def __init__(self, root: Path) -> None:
        from bus.storage_delta.stores.local import LocalStore

        self.root = root
        self._folder = root / "cluster"
        self._store = LocalStore(str(root))

    def known(self) -> list[int]:
        """The ids of all brokers that have run on this root, or were to."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return sorted({int(found[1]) for name in names if (found := _OF_A_BROKER.fullmatch(name))})

    def running(self) -> list[int]:
        """On this machine or, if the root is shared, on another one."""
        return [broker_id for broker_id in self.known() if self._holder(broker_id) is not None]

    def find(self, broker_id: int) -> RunningBroker:
        """Raises `Failure`: it is not known, does not run, or runs where it cannot be reached by a signal."""
        holder = self._holder(broker_id)
        if holder is None:
            known = self.known()
            if broker_id in known:
                raise Failure(f"broker {broker_id} does not run; start it with: bus cluster up")
            there = ", ".join(map(str, known)) or "none"
            raise Failure(f"expected a broker of {self.root}, {there}, found {broker_id}")
        found = RunningBroker.parse(holder)
        if found is None or found.broker_id != broker_id:
            raise Failure(f"expected the lock of broker {broker_id} to name its process, found {holder!r}")
        if not _has_open(found.pid, self._lock_path(broker_id)):
            raise Failure(
                f"broker {broker_id} runs, but not on this machine or in another container: its lock says {holder!r}, "
                f"and no process {found.pid} here has that file open"
            )
        return found

    def send(self, broker_id: int, *numbers: signal.Signals) -> RunningBroker:
        """Raises `Failure` as `find` does."""
        broker = self.find(broker_id)
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(broker.pid, number)
        return broker

    def is_paused(self, broker_id: int) -> bool:
        """By a signal; False where the system does not tell. Raises `Failure` as `find` does."""
        try:
            state = Path(f"/proc/{self.find(broker_id).pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state == "T"

    def wait_until_gone(self, broker_id: int, timeout_s: float) -> None:
        """Raises `Failure` if the broker runs on."""
        wait_until(
            lambda: self._holder(broker_id) is None,
            timeout_s,
            f"broker {broker_id} has not stopped within {timeout_s:g} s; see {self.log_path(broker_id)}",
        )

    def stop(self, broker_id: int, timeout_s: float) -> RunningBroker:
        """In order; one that is paused goes on, so that it can."""
        broker = self.send(broker_id, signal.SIGTERM, signal.SIGCONT)
        self.wait_until_gone(broker_id, timeout_s)
        return broker

    def addresses(self) -> list[str]:
        holders = (self._holder(broker_id) for broker_id in self.known())
        found = (RunningBroker.parse(holder) for holder in holders if holder is not None)
        return [broker.address for broker in found if broker is not None]

    # ------------------------------------------------------------ starting

    def log_path(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}.log"

    def launch_options(self, broker_id: int) -> LaunchOptions | None:
        """Of its last start by this program; None if there was none."""
        try:
            saved = json.loads(self._options_path(broker_id).read_text("utf-8"))
            protocol = str(saved.get("protocol", PLAINTEXT))  # there is none of an earlier version
            return LaunchOptions(int(saved["port"]), saved["rack"], tuple(map(str, saved["options"])), protocol)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(f"expected options in {self._options_path(broker_id)}, found: {error}") from error

    def forget_launch_options(self, broker_id: int) -> None:
        """The broker is gone for good, and is not to be started again with the others."""
        self._options_path(broker_id).unlink(missing_ok=True)

    def start(self, broker_id: int, launch: LaunchOptions) -> StartingBroker:
        self._folder.mkdir(0o750, exist_ok=True)
        options_path = self._options_path(broker_id)
        options_path.touch(0o600)  # a setting may be a secret
        options_path.write_text(json.dumps(asdict(launch)) + "\n", "utf-8")
        rack = [] if launch.rack is None else ["--rack", launch.rack]
        path = self.log_path(broker_id)
        with path.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bus", "serve", "--root", str(self.root), "--broker-id", str(broker_id)),
                    *(*launch.listen_options, *rack, *launch.options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at this terminal is not for the broker
            )
        return StartingBroker(broker_id, process, path, begin)

    # ------------------------------------------------------------ files

    def _lock_key(self, broker_id: int) -> str:
        return f"cluster/broker-{broker_id}.lock"

    def _lock_path(self, broker_id: int) -> Path:
        return self.root / self._lock_key(broker_id)

    def _options_path(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}.json"

    def _holder(self, broker_id: int) -> str | None:
        """What the process that runs as this broker says about itself."""
        return self._store.lock_holder(self._lock_key(broker_id))


class StartingBroker:
    """A process that was started just now. `begin`: where its part of the log begins."""

    def __init__(self, broker_id: int, process: subprocess.Popen[bytes], log_path: Path, begin: int) -> None:
        self.broker_id = broker_id
        self._process = process
        self._log_path = log_path
        self._begin = begin

    def wait_ready(self, timeout_s: float) -> None:
        """Raises `Failure`, with the end of its log if it has ended."""
        wait_until(
            self._is_ready,
            timeout_s,
            f"broker {self.broker_id} is not ready after {timeout_s:g} s and still starting; see {self._log_path}",
        )

    def _is_ready(self) -> bool:
        status = self._process.poll()
        lines = self._lines()
        if any(line.startswith("ready: ") for line in lines):
            return True
        if status is not None:
            end = "".join(f"\n  {line}" for line in lines[-_LOG_LINES_SHOWN:])
            raise Failure(
                f"broker {self.broker_id} ended with status {status} before it was ready; "
                f"the end of {self._log_path}:{end}"
            )
        return False

    def _lines(self) -> list[str]:
        with self._log_path.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode("utf-8", "replace").splitlines()


def wait_until(is_done: Callable[[], bool], timeout_s: float, failure: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            raise Failure(failure)
        time.sleep(_POLL_S)


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process has this file open; True where the system does not tell."""
    if not os.path.isdir("/proc/self/fd"):
        return True
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        raise Failure(f"process {pid} belongs to another user") from None
    except OSError:
        return False
    wanted = path.stat()
    for name in names:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False
