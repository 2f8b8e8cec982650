"""The guide of the consumer and its examples run as they stand there, and keep their promises."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from bus import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.guides import DEFAULT_ADDRESS, DOCS, programs_of

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running_broker(tmp_path / "root", config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("orders", partitions=2)])
            for number in range(20):
                producer.send("orders", b"%d" % (number % 4), partition=number % 2)
        yield address


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Crash(Exception):
    pass


class Handler:
    """Crashes at one record, the first time."""

    def __init__(self, crash_at: int) -> None:
        self.crash_at = crash_at
        self.seen: list[tuple[int, int]] = []

    def __call__(self, record: ConsumerRecord) -> None:
        if len(self.seen) == self.crash_at:
            self.crash_at = -1
            raise Crash
        self.seen.append((record.partition, record.offset))


def test_a_first_join_that_takes_longer_than_a_poll_ends_no_example(tmp_path: Path) -> None:
    slow = replace(CONFIG, group_initial_rebalance_delay_ms=1_200)
    with running_broker(tmp_path / "root", config=slow) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Producer(address) as producer:
            producer.send("orders", b"tea").result(50)
        handler = Handler(crash_at=-1)
        assert example("at_least_once").consume(address, "orders", handler) == 1
        assert handler.seen == [(0, 0)]


def test_no_program_of_the_guides_takes_an_empty_poll_for_the_end() -> None:
    pages = [
        *DOCS.glob("*.md"),
        *DOCS.glob("examples/*.py"),
        *DOCS.glob("notebooks/*.ipynb"),
        DOCS.parent / "README.md",
    ]
    assert [page.name for page in pages if re.search(r"while \w+ := \S*poll\(", page.read_text("utf-8"))] == []


ALL = [(partition, offset) for partition in range(2) for offset in range(10)]


def test_at_most_once_loses_what_was_in_hand_and_does_nothing_twice(address: str) -> None:
    handler = Handler(crash_at=3)
    consume = example("at_most_once").consume
    with pytest.raises(Crash):
        consume(address, "orders", handler)
    consume(address, "orders", handler)
    assert len(set(handler.seen)) == len(handler.seen) < 20


def test_at_least_once_does_everything_again_that_may_not_be_done(address: str) -> None:
    handler = Handler(crash_at=3)
    consume = example("at_least_once").consume
    with pytest.raises(Crash):
        consume(address, "orders", handler)
    consume(address, "orders", handler)
    assert sorted(set(handler.seen)) == ALL
    assert len(handler.seen) == 23
    assert consume(address, "orders", handler) == 0


def test_offset_stored_with_the_result_counts_every_record_once(address: str, tmp_path: Path) -> None:
    module, path = example("exactly_once_by_stored_offset"), str(tmp_path / "counts.db")
    store, calls = module.store, []

    def disturbed_store(database: sqlite3.Connection, partition: TopicPartition, records: list[ConsumerRecord]) -> int:
        calls.append(partition)
        if len(calls) == 1:
            assert store(database, partition, records[:3]) == 3, "another member that has the partition, too"
        if len(calls) == 2:
            raise Crash
        return int(store(database, partition, records))

    vars(module)["store"] = disturbed_store
    with pytest.raises(Crash):
        module.count(address, "orders", path)
    module.count(address, "orders", path)
    assert module.count(address, "orders", path) == 0
    with Consumer(address) as consumer:
        ends = consumer.end_offsets([TopicPartition("orders", 0), TopicPartition("orders", 1)])
    database = sqlite3.connect(path)
    assert dict(database.execute("select word, count from counts")) == {"0": 5, "1": 5, "2": 5, "3": 5}
    assert sum(ends.values()) == 20
    database.close()


def test_programs_of_the_consumers_guide_run(address: str) -> None:
    for program in programs_of("consumer.md"):
        command = [sys.executable, "-c", program.replace(DEFAULT_ADDRESS, address)]
        done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout == "20 records\n"


def test_outside_key_is_worked_on_once_within_its_time_over_a_crash(tmp_path: Path) -> None:
    module, path = example("deduplicate_by_key"), str(tmp_path / "seen.db")
    worked: list[tuple[bytes | None, int]] = []
    crashes = iter([True])

    def work(database: sqlite3.Connection, record: ConsumerRecord) -> None:
        if record.key == b"b" and next(crashes, False):
            raise Crash
        worked.append((record.key, record.timestamp_ms))

    sent = [(b"a", 1_000), (b"a", 1_500), (b"b", 1_600), (b"a", 1_999), (b"a", 2_000), (b"b", 2_000)]
    with running_broker(tmp_path / "root", config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("payments", partitions=1, configs={"retention.ms": -1})])
            for key, timestamp_ms in sent:
                producer.send("payments", b"1", key=key, timestamp_ms=timestamp_ms)
        with pytest.raises(Crash):
            module.process(address, "payments", path, work, window_ms=1_000)
        assert module.process(address, "payments", path, work, window_ms=1_000) == 2
        assert module.process(address, "payments", path, work, window_ms=1_000) == 0
    assert worked == [(b"a", 1_000), (b"b", 1_600), (b"a", 2_000)]
