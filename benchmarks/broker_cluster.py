"""Brokers of the bus on one root, as `bus cluster up` starts them: found, signalled, restarted, watched from outside.

Nothing is patched: what is measured is what ships, with its defaults but for the settings named. Guards one promise: a
signal goes to the process that holds the lock of the broker meant, at the moment that is returned.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import psutil

from bus import Admin
from bus.cli.cluster.cluster_processes import LocalCluster, StartingBroker

_TIMEOUT_S = 600.0
_LOOK_S = 0.05


class BrokerCluster:
    """`with` stops all brokers. The ids are 0, 1, ..."""

    def __init__(self, root: Path, brokers: int, *settings: str) -> None:
        """Starts them and waits until each is ready; `settings` are `--set KEY=VALUE` each."""
        self.root = root
        self.ids = list(range(brokers))
        self._paused: list[int] = []
        self._started: list[StartingBroker] = []  # children of this process: kept, so that each is waited for
        chosen = [part for setting in settings for part in ("--set", setting)]
        try:
            self._bus("up", "--brokers", str(brokers), "--port", "0", "--timeout", str(_TIMEOUT_S), *chosen)
            self._local = LocalCluster(root)
            self.addresses = [self._local.find(broker_id).address for broker_id in self.ids]
        except BaseException:
            self._kill_all()
            raise

    def __enter__(self) -> BrokerCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self._kill_all()

    # ------------------------------------------------------------ signals

    def kill(self, broker_id: int) -> float:
        """By SIGKILL; the moment, in seconds of the monotonic clock."""
        return self._signal(broker_id, signal.SIGKILL)

    def pause(self, broker_id: int) -> float:
        """By SIGSTOP; the moment, in seconds of the monotonic clock."""
        self._paused.append(broker_id)
        return self._signal(broker_id, signal.SIGSTOP)

    def resume_paused(self) -> None:
        for broker_id in self._paused:
            self._signal(broker_id, signal.SIGCONT)
        self._paused.clear()

    def _signal(self, broker_id: int, number: signal.Signals) -> float:
        pid = self._local.find(broker_id).pid
        now_s = time.monotonic()
        os.kill(pid, number)
        return now_s

    # ------------------------------------------------------------ starts and stops

    def start_missing(self) -> None:
        """Those that do not run, with the ports and the settings that they had; waits until each is ready."""
        self._bus("up", "--timeout", str(_TIMEOUT_S))

    def stop(self, *broker_ids: int) -> None:
        """In order, one after another, or all."""
        self._bus("down", "--timeout", str(_TIMEOUT_S), *map(str, broker_ids))

    def start(self, broker_id: int) -> float:
        """One that was stopped: seconds until it is ready."""
        launch = self._local.launch_options(broker_id)
        assert launch is not None, f"broker {broker_id} was started by `bus cluster up`"
        started = time.perf_counter()
        starting = self._local.start(broker_id, launch)
        self._started.append(starting)
        starting.wait_ready(_TIMEOUT_S)
        return time.perf_counter() - started

    def restart_in_turns(self) -> None:
        """`bus cluster restart`: each one after the other, the controller last."""
        self._bus("restart", "--timeout", str(_TIMEOUT_S))

    # ------------------------------------------------------------ what it says about itself

    def controller(self) -> int:
        with Admin(self.addresses) as admin:
            return admin.describe_cluster().controller_id

    def wait_active(self) -> None:
        """Until the controller counts on every broker. Raises `TimeoutError`."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        with Admin(self.addresses) as admin:
            while (active := len(admin.describe_cluster().brokers)) < len(self.ids):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"expected {len(self.ids)} active brokers, found {active} for {_TIMEOUT_S:g} s")
                time.sleep(_LOOK_S)

    def elect_leaders(self) -> int:
        """Preferred leaders lead again; how many partitions were moved. Waits until the call is answered."""
        with Admin(self.addresses) as admin:
            return len(admin.elect_leaders())

    def cpu_seconds(self) -> list[float]:
        """Processor seconds of each broker that runs, since its start."""
        times = [psutil.Process(self._local.find(broker_id).pid).cpu_times() for broker_id in self._local.running()]
        return [float(one.user + one.system) for one in times]

    def resident_bytes(self) -> list[int]:
        return [psutil.Process(self._local.find(one).pid).memory_info().rss for one in self._local.running()]

    # ------------------------------------------------------------ processes

    def _bus(self, *arguments: str) -> None:
        """`bus cluster` in a process of its own. Raises `RuntimeError` with what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "bus", "cluster", *arguments, "--root", str(self.root)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"bus cluster {' '.join(arguments)} failed: {done.stderr.strip()[-800:]}")

    def _kill_all(self) -> None:
        cluster = LocalCluster(self.root)
        for broker_id in cluster.running():
            cluster.send(broker_id, signal.SIGKILL)
            cluster.wait_until_gone(broker_id, _TIMEOUT_S)
