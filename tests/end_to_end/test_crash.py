"""A broker killed at random moments: what was acknowledged is there once, in order, and the log verifies."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bus import Admin, BusError, Consumer, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.seeds import kill_count

TOPIC = "ledger"
PARTITIONS = 3
ROUNDS = kill_count(10)


class Writer:
    """Sends numbered records, each once, and notes what was acknowledged: (partition, offset) -> payload."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sent = 0
        self.acknowledged: dict[tuple[int, int], tuple[bytes, int]] = {}

    def write_until_the_broker_dies(self, started: threading.Event) -> None:
        producer = Producer(self._address, acks="all", retries=0, linger_ms=0, request_timeout_ms=60_000)
        try:
            while True:
                futures = []
                for _ in range(20):
                    payload = b"%d" % self._sent
                    self._sent += 1
                    futures.append((payload, producer.send(TOPIC, payload, partition=self._sent % PARTITIONS)))
                for payload, future in futures:
                    metadata = future.result(timeout=100)
                    place = (metadata.partition, metadata.offset)
                    assert place not in self.acknowledged, f"{place} was acknowledged twice"
                    self.acknowledged[place] = (payload, metadata.version)
                started.set()
        except (BusError, TimeoutError):
            return
        finally:
            started.set()
            producer.close(timeout=0)


def read_everything(address: str) -> dict[tuple[int, int], bytes]:
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    found: dict[tuple[int, int], bytes] = {}
    with Consumer(address, auto_offset_reset="earliest", request_timeout_ms=10_000) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for record in consumer.poll(timeout_ms=1_000):
                place = (record.partition, record.offset)
                assert place not in found, f"{place} was read twice"
                found[place] = record.value
    for partition in partitions:
        offsets = [offset for number, offset in found if number == partition.partition]
        assert offsets == list(range(ends[partition])), f"the offsets of {partition} are not dense or out of order"
    return found


@pytest.mark.timeout(600)
def test_everything_acknowledged_survives_kill_9_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(20260101)
    root = tmp_path / "root"
    broker = BrokerProcess(root)
    with broker:
        writer = Writer(broker.address)
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, configs={"commit.interval.ms": 0})])
        for _ in range(ROUNDS):
            started = threading.Event()
            thread = threading.Thread(target=writer.write_until_the_broker_dies, args=(started,))
            thread.start()
            started.wait()
            threading.Event().wait(chance.uniform(0, 0.15))  # the moment of the crash is the input of this test
            broker.kill()
            thread.join()
            broker.start()
            found = read_everything(broker.address)
            for place, (payload, _) in writer.acknowledged.items():
                assert found.get(place) == payload, f"acknowledged {payload!r} at {place}, found {found.get(place)!r}"
            assert len(set(found.values())) == len(found), "a record is in the log twice"
        assert len(writer.acknowledged) >= ROUNDS * 20
        assert broker.terminate() == 0

    for number in range(PARTITIONS):
        check_versions(root / "topics" / TOPIC / str(number), number, writer)
    verified = subprocess.run(
        [sys.executable, "-m", "bus", "log", "verify", TOPIC, "--root", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def check_versions(table: Path, number: int, writer: Writer) -> None:
    """An acknowledgement names the version at which another Delta reader finds the row."""
    acknowledged = [
        (offset, version) for (partition, offset), (_, version) in writer.acknowledged.items() if partition == number
    ]
    for offset, version in random.Random(number).sample(acknowledged, 5):
        rows = DeltaTable(table, version=version).to_pyarrow_table(
            columns=["offset"], filters=[("offset", "=", offset)]
        )
        assert rows.num_rows == 1
