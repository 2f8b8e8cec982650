"""`run()` in a group: handlers fail by chance, records are as large as their topic takes, the broker is killed, members
come and go. In the end everything is handled or a dead letter, and committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.member_processes import wait_until

PARTITIONS = 3
RECORDS = 150  # of each partition
LIMIT = 200_000
SETTINGS = (
    "group.min.session.timeout.ms=500",
    "group.initial.rebalance.delay.ms=100",
    "offsets.topic.num.partitions=3",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with BrokerProcess(tmp_path / "root", *options) as process:
        with Admin(process.address) as admin, Producer(process.address) as producer:
            admin.create_topics([NewTopic("t", partitions=PARTITIONS, configs={"max.message.bytes": LIMIT})])
            for number in range(RECORDS):
                value = b"p" * LIMIT if number % 50 == 7 else b"%d" % number
                for partition in range(PARTITIONS):
                    producer.send("t", value, partition=partition)
        yield process


class Member:
    """One place in the group, with a thread that runs until it is told to stop. It ends by an error only if `run`
    does."""

    def __init__(self, address: str, handle: object, seed: int) -> None:
        self._address = address
        self._handle = handle
        self._order = ("partition", "key", "none")[seed % 3]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member-{seed}", daemon=True)
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            consumer = Consumer(
                self._address,
                group_id="g",
                auto_offset_reset="earliest",
                session_timeout_ms=3_000,
                heartbeat_interval_ms=300,
            )
            consumer.subscribe(["t"])
            consumer.run(
                self._handle,  # type: ignore[arg-type]
                stop=self._stop,
                order=self._order,
                on_error="dead_letter",
                retries=1,
                retry_backoff_ms=10,
                drain_timeout_ms=5_000,
            )
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.error is None, repr(self.error)


def committed(address: str) -> dict[int, int]:
    with Admin(address) as admin:
        return {key.partition: found.offset for key, found in admin.list_group_offsets("g").items()}


def letters(address: str) -> set[tuple[int, int]]:
    found = set()
    partitions = [TopicPartition("t.dlq", number) for number in range(PARTITIONS)]
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for record in consumer.poll(1_000):
                headers = dict(record.headers)
                found.add((int(headers["bus.dlq.partition"] or b""), int(headers["bus.dlq.offset"] or b"")))
    return found


@pytest.mark.timeout(180)
def test_everything_is_handled_or_put_aside_and_committed_whatever_fails(broker: BrokerProcess) -> None:
    chance = random.Random(7)
    lock = threading.Lock()
    handled: set[tuple[int, int]] = set()

    def handle(record: ConsumerRecord) -> None:
        if len(record.value) == LIMIT:
            raise ValueError("poison " * 100)
        with lock:
            if chance.random() < 0.3:
                raise RuntimeError("by chance")
            handled.add((record.partition, record.offset))
        threading.Event().wait(0.02)  # work

    members = [Member(broker.address, handle, seed) for seed in range(3)]
    for step in range(8):
        threading.Event().wait(chance.uniform(0.1, 0.5))  # the moment is the input of this test
        place = chance.randrange(len(members))
        members[place].end()
        members[place] = Member(broker.address, handle, step)
        if step in (2, 5):
            broker.kill()
            broker.start()
    wait_until(lambda: committed(broker.address) == dict.fromkeys(range(PARTITIONS), RECORDS), "all is committed", 90)
    for member in members:
        member.end()
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)}
    assert handled | letters(broker.address) == everything
