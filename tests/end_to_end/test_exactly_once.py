"""Processes killed under load, with retries on: nothing lost, nothing doubled, nothing out of order, by SQL."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import bus.sql
from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.seeds import kill_count

TOPIC = "ledger"
PARTITIONS = 3
KILLS = kill_count(5)
LOADER = Path(__file__).parents[2] / "docs" / "examples" / "load_lines.py"


def query(root: Path, sql: str) -> list[tuple[object, ...]]:
    with bus.sql.connect(str(root)) as connection:
        return connection.sql(sql).fetchall()


def create_topic(broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])


def records_in(broker: BrokerProcess) -> int:
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with Consumer(broker.address) as consumer:
        return sum(consumer.end_offsets(partitions).values())


@pytest.mark.timeout(240)
def test_broker_killed_under_load_costs_nothing_but_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    futures = []
    is_over = threading.Event()
    with BrokerProcess(tmp_path / "root") as broker:
        create_topic(broker)
        producer = Producer(broker.address, retry_backoff_ms=20, retry_backoff_max_ms=100, reconnect_backoff_ms=20)

        sent = threading.Condition()

        def produce() -> None:
            while not is_over.is_set():
                number = len(futures)
                futures.append(producer.send(TOPIC, b"%d" % number, key=b"key-%d" % (number % 50)))
                if number % 500 == 0:
                    with sent:
                        sent.notify_all()

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(KILLS):
            kill_at = len(futures) + chance.randrange(2_000, 60_000)
            with sent:
                assert sent.wait_for(lambda kill_at=kill_at: len(futures) >= kill_at, 60)
            broker.kill()
            broker.start()
        is_over.set()
        thread.join(60)
        producer.flush(60)
        placed = [future.result(0) for future in futures]
        producer.close()
    assert len({(metadata.partition, metadata.offset) for metadata in placed}) == len(futures)
    assert query(
        tmp_path / "root",
        f"SELECT count(*), count(DISTINCT value), count(DISTINCT (partition, producer_id, sequence)) FROM {TOPIC}",
    ) == [(len(futures),) * 3]
    in_order = f"""
        SELECT bool_and(number > before) FROM (
            SELECT value::INT AS number, lag(value::INT) OVER (PARTITION BY partition ORDER BY offset) AS before
            FROM {TOPIC}
        ) WHERE before IS NOT NULL"""
    assert query(tmp_path / "root", in_order) == [(True,)]
    rows = query(tmp_path / "root", f"SELECT partition, offset, value::INT FROM {TOPIC}")
    found = {(partition, offset): number for partition, offset, number in rows}
    assert all(found[metadata.partition, metadata.offset] == number for number, metadata in enumerate(placed))


@contextlib.contextmanager
def file_without_end(of: Path) -> Iterator[Path]:
    """Yield a file with what is in `of`, and no end of file while the block runs, so that a reader is killed before it
    is done."""
    pipe = of.with_suffix(".pipe")
    os.mkfifo(pipe)
    may_end = threading.Event()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as out:
            out.write(of.read_bytes())
            may_end.wait()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield pipe
    finally:
        may_end.set()
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # lets a writer go on that no reader has come to
        thread.join()
        pipe.unlink()


@pytest.mark.timeout(240)
def test_loader_killed_half_way_resumes_exactly_where_the_log_ends(tmp_path: Path) -> None:
    chance = random.Random(3)
    count = 60_000
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"".join(b"line %d\n" % number for number in range(count)))
    with BrokerProcess(tmp_path / "root") as broker:
        create_topic(broker)
        command = [sys.executable, str(LOADER), broker.address, TOPIC]
        for _ in range(3):
            kill_at = records_in(broker) + chance.randrange(1, count // 4)
            with file_without_end(lines) as endless:
                loader = subprocess.Popen([*command, str(endless)], stdout=subprocess.DEVNULL)
                while records_in(broker) < kill_at:
                    assert loader.poll() is None, "the loader ended before it was killed"
                loader.kill()
                loader.wait()
        done = subprocess.run([*command, str(lines)], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.endswith("lines sent\n")
    right = f"value = 'line ' || (offset * {PARTITIONS} + partition)"
    assert query(tmp_path / "root", f"SELECT count(*), bool_and({right}) FROM {TOPIC}") == [(count, True)]
    epochs = query(tmp_path / "root", f"SELECT count(DISTINCT producer_id), max(producer_epoch) FROM {TOPIC}")
    assert epochs == [(1, 3)], "one identity, a higher epoch for each start"
