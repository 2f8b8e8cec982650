"""What goes through all partitions of a topic while something happens to its brokers, and what it tells afterwards.

A producer (`partition_load`) and a consumer group (`group_readers`) run as processes; `Traffic` starts them, asks for a
round at the moment that matters, and at the end gives the `Account`: each record with the times it was sent,
acknowledged and read. Guards one promise: the counts are complete, by number and by offset, and not by sums.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import psutil

_ROOT = Path(__file__).parent.parent
_END_TIMEOUT_S = 300.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Account:
    """Arrays by the number of the record; seconds of the monotonic clock, NaN for never."""

    partition: np.ndarray
    sent_s: np.ndarray
    answered_s: np.ndarray
    failures: int  # errors that the application was given
    first_failures: list[str]
    lost: int  # acknowledged and not read
    doubled: int  # in the log at two places
    read_twice: int  # delivered to the group again, from the same place in the log

    @property
    def sent(self) -> int:
        return len(self.sent_s)

    @property
    def acknowledged(self) -> int:
        return int(np.isfinite(self.answered_s).sum())

    def latencies_s(self, begin_s: float, end_s: float) -> np.ndarray:
        """Of the acknowledged records that were sent in between."""
        chosen = (self.sent_s >= begin_s) & (self.sent_s < end_s) & np.isfinite(self.answered_s)
        return np.asarray(self.answered_s[chosen] - self.sent_s[chosen])

    def restored_s(self, since_s: float, partitions: int) -> np.ndarray:
        """For each partition, the seconds from then until a record was acknowledged that was sent later than that."""
        restored = np.full(partitions, np.inf)
        chosen = (self.sent_s > since_s) & np.isfinite(self.answered_s)
        np.minimum.at(restored, self.partition[chosen], self.answered_s[chosen] - since_s)
        return restored


class Traffic:
    """`with` starts it and waits until every partition has acknowledged a record; `finish` ends it."""

    def __init__(
        self, folder: Path, peer: str, addresses: list[str], topic: str, *, partitions: int, rate: float, members: int
    ) -> None:
        """`peer`: whose client, `bus` or `confluent`; `rate`: records a second of all partitions together."""
        self._folder = folder
        self._partitions = partitions
        self._progress = np.memmap(folder / f"{topic}.progress", np.float64, "w+", shape=(partitions,))
        shared = ["--peer", peer, "--address", ",".join(addresses), "--topic", topic]
        self._readings = folder / f"{topic}.readings.npz"
        self._ledger = folder / f"{topic}.ledger.npz"
        self._readers = _Program(
            folder, "group_readers", *shared, "--members", str(members), "--readings", str(self._readings)
        )
        self._load = _Program(
            folder,
            "partition_load",
            *(*shared, "--partitions", str(partitions), "--rate", str(rate)),
            *("--progress", str(folder / f"{topic}.progress"), "--ledger", str(self._ledger)),
        )

    def __enter__(self) -> Traffic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._load.kill()
        self._readers.kill()

    def ask_for_round(self) -> None:
        """A record to each partition, now."""
        self._load.check()
        self._load.process.send_signal(signal.SIGUSR1)

    def wait_served(self, since_s: float, timeout_s: float) -> float:
        """Until every partition has acknowledged a record that was sent after `since_s`: seconds from then, to some
        milliseconds; the account has them exactly. Raises `TimeoutError`, with partitions that have not."""
        deadline_s = time.monotonic() + timeout_s
        while (waiting := np.flatnonzero(self._progress <= since_s)).size:
            self._load.check()
            self._readers.check()
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"{waiting.size} of {self._partitions} partitions have acknowledged nothing for {timeout_s:g} s, "
                    f"among them {waiting[:10].tolist()}"
                )
            time.sleep(_LOOK_S)
        return time.monotonic() - since_s

    def wait_round(self, timeout_s: float) -> float:
        """A round without any event: seconds until every partition has acknowledged its record."""
        since_s = time.monotonic()
        self.ask_for_round()
        return self.wait_served(since_s, timeout_s)

    def cpu_seconds(self) -> float:
        """Of both client processes."""
        times = [psutil.Process(program.process.pid).cpu_times() for program in (self._load, self._readers)]
        return float(sum(one.user + one.system for one in times))

    def finish(self) -> Account:
        """Ends the load, waits until all is read, and compares. Raises `RuntimeError` if a program failed."""
        printed = json.loads(self._load.end("").splitlines()[-1])
        sent = np.load(self._ledger)
        acknowledged = np.isfinite(sent["answered_s"])
        self._readers.end(f"{int(acknowledged.sum())}\n")
        read = np.load(self._readings)
        places = np.stack([read["partition"], read["offset"], read["number"]])
        different = np.unique(places, axis=1)
        numbers = np.unique(different[2].astype(np.int64))
        return Account(
            partition=sent["partition"],
            sent_s=sent["sent_s"],
            answered_s=sent["answered_s"],
            failures=printed["failures"],
            first_failures=printed["first_failures"],
            lost=int(np.setdiff1d(np.flatnonzero(acknowledged), numbers).size),
            doubled=int(different.shape[1] - numbers.size),
            read_twice=int(places.shape[1] - different.shape[1]),
        )


class _Program:
    """`python -m benchmarks.<module>`; what it logs goes to a file."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self._module = module
        self._log = folder / f"{module}.log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.{module}", *arguments],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def check(self) -> None:
        """Raises `RuntimeError`: it has ended, and what it said."""
        if self.process.poll() is not None:
            said = self._log.read_text()[-800:]
            raise RuntimeError(f"{self._module} ended with status {self.process.returncode}: {said}")

    def end(self, said: str) -> str:
        """Says the last words to it, and gives what it printed. Raises `RuntimeError` if it failed."""
        printed, _ = self.process.communicate(said, timeout=_END_TIMEOUT_S)
        if self.process.returncode != 0:
            self.check()
        return printed

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
