"""A consumer in memory for tests of the processing loop, and records for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from bus.client.consumer.records import POLL_SCHEMA, PollTables
from bus.client.values import ConsumerRecord
from bus.model import TimestampType, TopicPartition
from bus.processing.run import OnPartitions

PATIENCE_S = 50  # however busy the machine is, nearly as long as a test may take


def partition(number: int = 0, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def record(offset: int, number: int = 0, key: Any = None, value: Any = b"v") -> ConsumerRecord:
    return ConsumerRecord("orders", number, offset, 1_000 + offset, TimestampType.CREATE_TIME, key, value, [], 3)


def place_of(each: ConsumerRecord) -> TopicPartition:
    return TopicPartition(each.topic, each.partition)


def row_of(each: ConsumerRecord) -> pa.RecordBatch:
    row = {
        "offset": each.offset,
        "timestamp": each.timestamp_ms * 1_000,
        "timestamp_type": int(each.timestamp_type),
        "key": each.key,
        "value": each.value,
        "headers": None,
        "leader_epoch": each.leader_epoch,
    }
    schema = pa.schema([field for field in POLL_SCHEMA if field.name not in ("topic", "partition")])
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names}], schema=schema)


class FakeConsumer:
    """Each poll does the next thing of the script: gives records, raises, or calls a function, a rebalance perhaps;
    after the last one it waits for `wakeup`. It is the member of its group too."""

    def __init__(self, script: Iterable[Any] = (), assigned: Iterable[TopicPartition] = (partition(0), partition(1))):
        self.script = list(script)
        self.assigned = set(assigned)
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_errors: list[Exception] = []
        self.paused: set[TopicPartition] = set()
        self.pauses: list[tuple[str, list[TopicPartition]]] = []
        self.seeks: list[tuple[TopicPartition, int]] = []
        self.positions: dict[TopicPartition, int] = {}
        self.is_closed = False
        self.thread = threading.current_thread()
        self.idle = threading.Event()  # the script is over
        self._awoken = threading.Event()

    def start_processing(self, on_assigned: OnPartitions, on_revoked: OnPartitions, on_lost: OnPartitions) -> None:
        self.on_assigned, self.on_revoked, self.on_lost = on_assigned, on_revoked, on_lost

    def poll(self, timeout_ms: int = 500) -> list[ConsumerRecord]:
        assert threading.current_thread() is self.thread, "a consumer is for one thread"
        if not self.script:
            self.idle.set()
            self._awoken.wait(timeout_ms / 1000)
            self._awoken.clear()
            return []
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step = step()
        return list(step or ())

    def poll_arrow(self, timeout_ms: int = 500, max_records: int | None = None) -> pa.Table:
        return PollTables().table_of([(place_of(each), row_of(each)) for each in self.poll(timeout_ms)])

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        assert threading.current_thread() is self.thread, "a consumer is for one thread"
        return self.positions[partition]

    def lag(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        raise NotImplementedError

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        raise NotImplementedError

    def metrics(self) -> Mapping[str, float]:
        return {}

    def wait_for_wakeup(self) -> None:
        """A step: a poll that nothing ends but a wake-up."""
        assert self._awoken.wait(PATIENCE_S), "nobody woke the poll"

    def revoke(self, *partitions: TopicPartition) -> None:
        self.on_revoked(list(partitions))
        self.assigned -= set(partitions)

    def lose(self, *partitions: TopicPartition) -> None:
        self.on_lost(list(partitions))
        self.assigned -= set(partitions)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert threading.current_thread() is self.thread, "a consumer is for one thread"
        assert set(offsets) <= self.assigned, f"{offsets} is committed, {self.assigned} is assigned"
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        self.commits.append(dict(offsets))

    @property
    def committed(self) -> dict[TopicPartition, int]:
        return {partition: offset for commit in self.commits for partition, offset in commit.items()}

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.pauses.append(("pause", list(partitions)))
        self.paused |= set(self.pauses[-1][1])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.pauses.append(("resume", list(partitions)))
        self.paused -= set(self.pauses[-1][1])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.assigned, f"seek in {partition}, {self.assigned} is assigned"
        self.seeks.append((partition, offset))

    def wakeup(self) -> None:
        self._awoken.set()

    def close(self) -> None:
        self.is_closed = True
