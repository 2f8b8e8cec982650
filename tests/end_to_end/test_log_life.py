"""A broker killed at random moments in the middle of heavy maintenance, while records come in: what was acknowledged
and not let go of is there once and in its place, and every version that is kept can be read."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from bus import Admin, BusError, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.member_processes import wait_until
from tests.support.seeds import kill_count

ROUNDS = kill_count(6)
KEYS = 7
VALUE_BYTES = 5_000
LIFE = {"segment.bytes": 1 << 20, "file.delete.delay.ms": 0, "delta.log.versions.max": 40, "commit.interval.ms": 0}
TOPICS = {
    "kept": {"cleanup.policy": ""},
    "retained": {"cleanup.policy": "delete", "retention.bytes": 40_000},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "max.compaction.lag.ms": 1},
}
ACTIONS = {"kept": ["roll", "clean"], "retained": ["clean"], "compacted": ["compact", "roll", "clean"]}
JOBS = ("roll: ", "compaction: ", "retention by ", "cleaning: ")  # as the broker's log calls them
OPTIONS = ("--set", "log.retention.check.interval.ms=50", "--log-level", "INFO")


class Writer:
    """Sends numbered records to all topics and notes which were acknowledged: topic -> offset -> payload."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sent = 0
        self.acknowledged: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}

    def write_until(self, is_over: threading.Event, started: threading.Event) -> None:
        while not is_over.is_set():
            self._write_until_something_fails(started)
        started.set()

    def _write_until_something_fails(self, started: threading.Event) -> None:
        producer = Producer(self._address, retries=0, linger_ms=0, request_timeout_ms=60_000)
        try:
            while True:
                futures = []
                for topic in TOPICS:
                    payload = (b"%d" % self._sent).ljust(VALUE_BYTES)
                    key = b"k%d" % (self._sent % KEYS)
                    self._sent += 1
                    futures.append((topic, payload, producer.send(topic, payload, key=key, partition=0)))
                for topic, payload, future in futures:
                    offset = future.result(timeout=100).offset
                    assert offset not in self.acknowledged[topic], f"{topic} {offset} was acknowledged twice"
                    self.acknowledged[topic][offset] = payload
                started.set()
        except (BusError, TimeoutError):
            return
        finally:
            producer.close(timeout=0)


def maintain_until(is_over: threading.Event, address: str, topic: str) -> None:
    while not is_over.is_set():
        with contextlib.suppress(BusError), Admin(address, request_timeout_ms=5_000) as admin:
            while True:
                for action in ACTIONS[topic]:
                    list(admin.maintain_log(topic, action))


def jobs_in(log: Path) -> dict[str, int]:
    text = log.read_text()
    return {job: text.count(job) for job in JOBS}


def have_run_since(before: dict[str, int], log: Path) -> bool:
    return all(count > before[job] for job, count in jobs_in(log).items())


def in_threads(*works: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def read_everything(address: str, topic: str) -> tuple[int, list[ConsumerRecord]]:
    """And where the log starts once all was read: retention goes on meanwhile."""
    partition = TopicPartition(topic, 0)
    found: list[ConsumerRecord] = []
    with Consumer(address, auto_offset_reset="earliest", request_timeout_ms=10_000) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            found += consumer.poll(timeout_ms=1_000)
        return consumer.beginning_offsets([partition])[partition], found


def check(address: str, acknowledged: dict[str, dict[int, bytes]]) -> None:
    for topic, sent in acknowledged.items():
        start, records = read_everything(address, topic)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), f"{topic}: offsets twice or out of order"
        values = {record.offset: record.value for record in records}
        wrong = [offset for offset, value in values.items() if sent.get(offset, value) != value]
        assert not wrong, f"{topic}: other records than were acknowledged at {wrong}"
        if topic == "compacted":
            assert start == 0
            check_last_of_keys(sent, {record.key: record.offset for record in records})
        else:
            assert start == 0 or topic == "retained"
            missing = [offset for offset in sent if offset >= start and offset not in values]
            assert not missing, f"{topic}: acknowledged and not found from {start} on: {missing}"
            first = offsets[0] if offsets else start
            assert offsets == list(range(first, first + len(offsets))), f"{topic}: offsets are not dense"


def check_last_of_keys(sent: dict[int, bytes], last_offsets: dict[bytes, int]) -> None:
    """Check that each key has the last record that was acknowledged, or one after it that was sent."""
    acknowledged: dict[bytes, int] = {}
    for offset in sorted(sent):
        acknowledged[b"k%d" % (int(sent[offset].rstrip()) % KEYS)] = offset
    for key, offset in acknowledged.items():
        assert last_offsets.get(key, -1) >= offset, (
            f"{key!r}: acknowledged at {offset}, last at {last_offsets.get(key)}"
        )


def check_versions(table: Path) -> int:
    """Another library reads every version from the first checkpoint on; returns how many."""
    log = table / "_delta_log"
    versions = sorted(int(path.stem) for path in log.glob("0*.json"))
    first = 0 if versions[0] == 0 else min(int(path.name[:20]) for path in log.glob("*.checkpoint.parquet"))
    kept = [version for version in versions if version >= first]
    for version in kept:
        opened = deltalake.DeltaTable(table, version=version)
        rows = deltalake.QueryBuilder().register("t", opened).execute("select offset, value from t")
        offsets = pa.table(rows.read_all())["offset"].to_pylist()
        assert len(offsets) == len(set(offsets))
    return len(kept)


@pytest.mark.timeout(600)
def test_everything_acknowledged_survives_kill_9_in_the_middle_of_maintenance(tmp_path: Path) -> None:
    chance = random.Random(20260102)
    root = tmp_path / "root"
    broker = BrokerProcess(root, *OPTIONS)
    with broker:
        writer = Writer(broker.address)
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic(topic, 1, {**LIFE, **configs}) for topic, configs in TOPICS.items()])
        for _ in range(ROUNDS):
            started, is_over, before = threading.Event(), threading.Event(), jobs_in(broker.log_path)
            threads = in_threads(
                partial(writer.write_until, is_over, started),
                *(partial(maintain_until, is_over, broker.address, topic) for topic in TOPICS),
            )
            try:
                started.wait()
                wait_until(lambda before=before: have_run_since(before, broker.log_path), "each job has run")  # type: ignore[misc]
                threading.Event().wait(chance.uniform(0, 0.5))  # the moment of the crash is the input of this test
            finally:
                is_over.set()
                broker.kill()
                for thread in threads:
                    thread.join()
            broker.start()
            check(broker.address, writer.acknowledged)
        assert all(len(sent) > ROUNDS * 10 for sent in writer.acknowledged.values())
        assert broker.terminate() == 0

    for topic in TOPICS:
        assert check_versions(root / "topics" / topic / "0") > 1
    verified = subprocess.run(
        [sys.executable, "-m", "bus", "log", "verify", "--all", "--root", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
