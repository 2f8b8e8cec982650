"""Stores that fail on demand, and batches to put into them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from bus.model import LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, Leadable
from bus.records.log_schema import TIMESTAMP_TYPE
from bus.storage_delta.partition_reader import PartitionReader
from bus.storage_delta.root import DeltaStorage, open_reader, open_storage_on
from bus.storage_delta.stores.local import FileSystem
from bus.storage_delta.stores.store import Data, ObjectStore
from tests.support.memory_store import MemoryStore

NOW_MS = 1_700_000_000_000


class FailingFileSystem(FileSystem):
    """`fail("fsync", 2, errno.EIO)`: the second fsync from now on fails. A failing write writes half first; a link that
    fails `after_doing_it` was made."""

    def __init__(self) -> None:
        self._planned: dict[str, list[tuple[int, int]]] = {}
        self._is_link_made = False
        self.calls: list[str] = []
        self.write = self._write  # type: ignore[method-assign]
        self.fsync = self._fsync  # type: ignore[method-assign]
        self.link = self._link  # type: ignore[method-assign]

    def fail(self, call: str, nth: int, number: int = errno.EIO, *, after_doing_it: bool = False) -> None:
        self._is_link_made = after_doing_it
        self._planned.setdefault(call, []).append((nth, number))

    def _is_due(self, call: str) -> int:
        self.calls.append(call)
        left = [(nth - 1, number) for nth, number in self._planned.get(call, [])]
        self._planned[call] = [plan for plan in left if plan[0] > 0]
        return next((number for nth, number in left if nth == 0), 0)

    def _write(self, fd: int, data: Data) -> int:
        if number := self._is_due("write"):
            os.write(fd, data[: len(data) // 2])
            raise OSError(number, os.strerror(number))
        return os.write(fd, data)

    def _fsync(self, fd: int) -> None:
        if number := self._is_due("fsync"):
            raise OSError(number, os.strerror(number))
        os.fsync(fd)

    def _link(self, source: str, target: str) -> None:
        if number := self._is_due("link"):
            if self._is_link_made:
                os.link(source, target)
            raise OSError(number, os.strerror(number))
        os.link(source, target)


class ScriptedStore:
    """Another store whose next call of an operation goes wrong as told; it counts all calls."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._faults: dict[str, list[tuple[Exception, bool]]] = {}
        self._befores: dict[str, list[Callable[[], object]]] = {}
        self.calls: list[str] = []

    def fail_next(self, operation: str, fault: Exception, *, after_doing_it: bool = False) -> None:
        self._faults.setdefault(operation, []).append((fault, after_doing_it))

    def before_next(self, operation: str, do: Callable[[], object]) -> None:
        self._befores.setdefault(operation, []).append(do)

    def __getattr__(self, operation: str) -> Any:
        found = getattr(self._store, operation)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(operation)
            if self._befores.get(operation):
                self._befores[operation].pop(0)()
            if not self._faults.get(operation):
                return found(*args, **kwargs)
            fault, after_doing_it = self._faults[operation].pop(0)
            if after_doing_it:
                found(*args, **kwargs)
            raise fault

        return call


def log_batch(
    base_offset: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    timestamp_ms: int = NOW_MS,
    leader_epoch: int = 0,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer: tuple[int, int, int] | None = None,
) -> LogBatch:
    """Records that follow each other without a gap. `producer`: id, epoch and first sequence."""
    arrays = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        arrays["key"] = pa.array(keys, pa.binary())
    if timestamps_us is not None:
        arrays["timestamp"] = pa.array(timestamps_us, pa.int64()).cast(TIMESTAMP_TYPE)
    if producer is not None:
        count = len(values)
        arrays["producer_id"] = pa.array([producer[0]] * count, pa.int64())
        arrays["producer_epoch"] = pa.array([producer[1]] * count, pa.int16())
        arrays["sequence"] = pa.array(range(producer[2], producer[2] + count), pa.int32())
    columns = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + len(values),
        record_count=len(values),
        size_bytes=columns.nbytes,
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
        timestamp_ms=None if timestamps_us is not None else timestamp_ms,
        timestamp_max_ms=max(timestamps_us) // 1000 if timestamps_us is not None else timestamp_ms,
        columns=columns,
    )


L = TypeVar("L", bound=Leadable)


def led(log: L, leader_epoch: int | None = None) -> L:
    """The log that was just opened, as its leader has it who knows that there is no other; without an epoch, under the
    last one."""
    epoch = max(0, log.state.leader_epoch) if leader_epoch is None else leader_epoch
    outcome = log.lead(epoch, NOW_MS, fence=False)
    assert isinstance(outcome, Committed), outcome
    return log


def memory_storage() -> DeltaStorage:
    """Open a root of its own in memory."""
    return open_storage_on(MemoryStore())


def open_partition_readonly(root: str, topic: str, partition: int) -> PartitionReader:
    """Open the partition as `RootReader.open_partition` does."""
    return open_reader(root).open_partition(TopicPartition(topic, partition))
