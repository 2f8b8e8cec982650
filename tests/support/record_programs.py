"""Programs beside a cluster that a test breaks: producers, members of a group, a reader of the tables; and what has to
be there when they have ended."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bus import Admin, BusError, Consumer, Producer, TopicPartition
from bus.client.producer.batch import RecordFuture
from bus.errors import ErrorCode
from tests.support.chaos_programs import SETTLE_S, Program

ORDERS = [TopicPartition("orders", number) for number in range(4)]
LEDGER = [TopicPartition("ledger", number) for number in range(2)]
KEYS = 12

_LOST_MEMBERSHIP = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)


class IdempotentProducer(Program):
    """Record n has the key n % KEYS, which decides about its partition."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self.producer = Producer(addresses, linger_ms=50, delivery_timeout_ms=600_000)
        self.futures: list[RecordFuture] = []

    def step(self) -> None:
        for _ in range(5):
            number, key = len(self.futures), len(self.futures) % KEYS
            partition = key % len(ORDERS)
            future = self.producer.send("orders", b"%d" % number, key=b"k%d" % key, partition=partition)
            self.futures.append(future)
        time.sleep(0.02)


class NamedProducer(Program):
    """Instance after instance of one loader, each from where the log ends: record n of a partition has the value n."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self._addresses = addresses
        self.last_values: dict[TopicPartition, int] = {}  # of the last instance

    def step(self) -> None:
        """The life of one instance, which ends without a word."""
        producer = Producer(self._addresses, name="loader", delivery_timeout_ms=600_000, max_block_ms=600_000)
        try:
            there = {one: producer.last_sequence(one.topic, one.partition) for one in LEDGER}
            self.last_values = {one: -1 if last is None else last for one, last in there.items()}
            for _ in range(30):
                for one in LEDGER:
                    self.last_values[one] += 1
                    producer.send(one.topic, b"%d" % self.last_values[one], partition=one.partition)
                time.sleep(0.1)
                if self._is_over.is_set():
                    producer.flush(SETTLE_S)
                    break
        finally:
            producer.close(timeout=0)


class Member(Program):
    """Reads both topics for a group and commits what it has read."""

    def __init__(self, addresses: list[str], progress: Progress) -> None:
        super().__init__()
        self.progress = progress
        self.consumer = Consumer(
            addresses,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            partition_assignment_strategy="cooperative-sticky",
        )
        self.consumer.subscribe(["orders", "ledger"])
        self._is_committed = True

    def step(self) -> None:
        for record in (record for _ in range(3) for record in self.consumer.poll(100)):
            self.progress.note(TopicPartition(record.topic, record.partition), record.offset)
            self._is_committed = False
        try:
            if not self._is_committed:
                self.consumer.commit(timeout_ms=int(SETTLE_S * 1000))
                self._is_committed = True
        except BusError as error:
            if error.code not in _LOST_MEMBERSHIP:
                raise

    def __str__(self) -> str:
        positions = {
            str(key): (one.position, one.leader_epoch, one.failures)
            for key, one in self.consumer._fetcher.assigned.items()
        }
        return f"a member has position, leader epoch and failures {positions}"


class Progress:
    """The records that the members of the group have read together: none is skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.next_offsets: dict[TopicPartition, int] = defaultdict(int)

    def note(self, partition: TopicPartition, offset: int) -> None:
        with self._lock:
            expected = self.next_offsets[partition]
            assert offset <= expected, f"{partition}: offset {offset} was read, though {expected} was not read before"
            self.next_offsets[partition] = max(expected, offset + 1)


class DeltaReader(Program):
    """Reads every table with delta-rs, again and again: an offset is there once, and the end never goes back. Of the
    topics of the programs, from which nothing is deleted, every offset is there."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._ends: dict[Path, int] = {}
        self.rounds = 0

    def step(self) -> None:
        for log in sorted(self._root.rglob("_delta_log")):
            table = DeltaTable(str(log.parent)).to_pyarrow_table(columns=["offset"])
            offsets = sorted(table.column("offset").to_pylist())
            assert len(offsets) == len(set(offsets)), f"{log.parent}: an offset is there twice"
            end = max(offsets, default=-1) + 1
            assert end >= self._ends.get(log.parent, 0), f"{log.parent}: the end went back to {end}"
            if not log.relative_to(self._root).as_posix().startswith(("topics/__", "__")):
                assert len(offsets) == end, f"{log.parent}: offsets are missing"
            self._ends[log.parent] = end
        self.rounds += 1
        time.sleep(0.5)


def wait_until(what: Callable[[], object], expected: object, programs: list[Program]) -> None:
    deadline_s = time.monotonic() + SETTLE_S
    while (found := what()) != expected:
        for program in programs:
            program.check()
        if time.monotonic() > deadline_s:
            states = "\n".join(str(program) for program in programs if isinstance(program, Member))
            assert found == expected, f"not within {SETTLE_S:g} s after the last fault\n{states}"
        time.sleep(0.1)


def read_all(addresses: list[str], partitions: list[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """The records of each, from the beginning to the end."""
    with Consumer(addresses, auto_offset_reset="earliest", default_api_timeout_ms=60_000) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[Any]] = {one: [] for one in partitions}
        deadline_s = time.monotonic() + SETTLE_S
        while any(len(found[one]) < ends[one] for one in partitions):
            assert time.monotonic() < deadline_s
            for record in consumer.poll(500):
                found[TopicPartition(record.topic, record.partition)].append(record)
        return found


def check_orders(records: dict[TopicPartition, list[Any]], futures: list[RecordFuture]) -> None:
    """Each acknowledged record is there once, where its future says, and the records of a key are in order."""
    by_place = {(one, record.offset): record for one, some in records.items() for record in some}
    for number, future in enumerate(futures):
        metadata = future.result(0)
        place = TopicPartition("orders", metadata.partition)
        if metadata.offset >= 0:
            assert by_place[place, metadata.offset].value == b"%d" % number
    numbers = [int(record.value) for some in records.values() for record in some]
    assert sorted(numbers) == list(range(len(futures)))
    for one, some in records.items():
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for record in some:
            by_key[record.key].append(int(record.value))
        for key, values in by_key.items():
            assert values == sorted(values), f"{one}: the records of {key!r} are out of order"


def check_ledger(records: dict[TopicPartition, list[Any]], last_values: dict[TopicPartition, int]) -> None:
    for one, some in records.items():
        assert [int(record.value) for record in some] == list(range(last_values[one] + 1))


def committed_by_group(addresses: list[str]) -> dict[TopicPartition, int]:
    with Admin(addresses) as admin:
        return {one: found.offset for one, found in admin.list_group_offsets("g").items()}
