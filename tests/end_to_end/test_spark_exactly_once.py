"""A streaming query from topic to topic, killed at random: every record arrives once, and those of a key in order.

Killed with -9 in the middle of batches: the Python workers that run tasks, the broker, and the driver with all that
belongs to it. BUS_KILLS says how often; one in eight is the driver, since that takes seconds. With transactions, which
the driver writes, it is half as often, and one in four.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import psutil
import pytest

import bus.sql
from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.seeds import kill_count

KILLS = kill_count(8)
DRIVER_EVERY = 8
BACKLOG = 8_000  # so much the query always has to do: each kill hits it in the middle of a batch
RECOVERY_S = 120  # for the slowest machine; seconds are usual
KEYS = 40


class Copier:
    """The query in its process, and what may be killed of it."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: psutil.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.spark_copier", *self._arguments]
        with self._log.open("ab") as log:
            self._process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert b"running" in self._process.stdout.readline(), self._log.read_text()[-3_000:]

    def kill(self) -> None:
        """The driver and all below it, at one moment as far as that can be."""
        process, self._process = self._process, None
        if process is None:
            return
        family = [process, *process.children(recursive=True)]
        for one in family:
            _kill(one)
        psutil.wait_procs(family, timeout=30)
        process.stdout.close()
        process.wait()

    def kill_workers(self) -> int:
        """The Python processes that run tasks, at this moment; how many there were."""
        assert self._process is not None
        workers = [child for child in self._process.children(recursive=True) if _is_worker(child)]
        for worker in workers:
            _kill(worker)
        return len(workers)

    def log_text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def __enter__(self) -> Copier:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _is_worker(process: psutil.Process) -> bool:
    """A fork of the process that Spark forks workers from."""
    try:
        parent = process.parent()
        return parent is not None and all("pyspark.daemon" in " ".join(one.cmdline()) for one in (process, parent))
    except psutil.NoSuchProcess:
        return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


class Load:
    """Records without end, as far as is allowed: the values of a key count up."""

    def __init__(self, address: str) -> None:
        self.count = 0
        self.allowed = BACKLOG
        self._producer = Producer(address, retry_backoff_ms=20, retry_backoff_max_ms=100, reconnect_backoff_ms=20)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._is_over.is_set():
            while self.count < self.allowed:
                self._producer.send("in", b"%d" % self.count, key=b"key-%d" % (self.count % KEYS))
                self.count += 1
            self._is_over.wait(0.02)

    def finish(self) -> int:
        self._is_over.set()
        self._thread.join(60)
        self._producer.flush(60)
        self._producer.close()
        return self.count


def arrived(address: str) -> int:
    with Consumer(address) as consumer:
        return sum(consumer.end_offsets([TopicPartition("out", number) for number in range(3)]).values())


def wait_arrived(address: str, at_least: int, copier: Copier) -> int:
    deadline = time.monotonic() + RECOVERY_S
    while (found := arrived(address)) < at_least:
        assert time.monotonic() < deadline, f"expected {at_least}, found {found}\n{copier.log_text()[-3_000:]}"
        threading.Event().wait(0.02)
    return found


@pytest.mark.spark
@pytest.mark.timeout(120 + 90 * KILLS)
@pytest.mark.parametrize(
    ("transactional", "kills", "driver_every"),
    [("false", KILLS, DRIVER_EVERY), ("true", KILLS // 2, DRIVER_EVERY // 2)],
)
def test_query_killed_at_random_copies_every_record_once_and_in_order(
    tmp_path: Path, transactional: str, kills: int, driver_every: int
) -> None:
    chance = random.Random(20)
    victims = ["driver" if number % driver_every == driver_every // 2 else "" for number in range(kills)]
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic("in", partitions=4), NewTopic("out", partitions=3)])
        arguments = (broker.address, "in", "out", str(tmp_path / "checkpoint"), transactional)
        with Copier(*arguments, log=tmp_path / "copier.log") as copier:
            load = Load(broker.address)
            done = workers = 0
            for victim in victims:
                done = wait_arrived(broker.address, done + chance.randrange(1, 400), copier)
                load.allowed = done + BACKLOG
                match victim or chance.choice(["workers", "workers", "broker"]):
                    case "driver":
                        copier.kill()
                        copier.start()
                    case "broker":
                        broker.kill()
                        broker.start()
                    case _:
                        workers += copier.kill_workers()
            assert workers, "no task was killed"
            count = load.finish()
            wait_arrived(broker.address, count, copier)
        check_copied(tmp_path / "root", count)


def check_copied(root: Path, count: int) -> None:
    with bus.sql.connect(str(root)) as connection:

        def ask(sql: str) -> list[tuple[object, ...]]:
            return connection.sql(sql).fetchall()

        assert ask("SELECT count(*), count(DISTINCT value) FROM out") == [(count, count)]
        by_key = "SELECT key, count(*), min(value::INT), max(value::INT) FROM {} GROUP BY key ORDER BY key"
        assert ask(by_key.format("out")) == ask(by_key.format('"in"'))
        in_order = """
            SELECT bool_and(number > before) FROM (
                SELECT value::INT AS number, lag(value::INT) OVER (PARTITION BY key ORDER BY offset) AS before
                FROM out) WHERE before IS NOT NULL"""
        assert ask(in_order) == [(True,)]
