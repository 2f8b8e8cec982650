"""The stamps of what a task writes: which producer it is, under which epoch, and the sequences of its rows.

Guards two promises. A task that runs again, in the same attempt of a batch or in a later one, is the same producer with
the same epoch, and no other task ever is. The producer's name is made of the query and the number of the task, the
epoch is the number of the batch; epochs are 15 bits wide, so every 32,000 batches another name begins. And the
sequences of a partition count its rows from 0 in the order in which they were added, without a gap. Rows are cut into
parts worth a request; memory is bounded, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from bus.model import TopicPartition, sequence_after
from bus.spark.sink.options import Application

EPOCHS_PER_NAME = 32_000


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """`batch`: of a streaming query its number, of a batch write its version."""

    producer_name: str
    producer_epoch: int
    batch: int
    task: int

    @property
    def first_turn(self) -> int:
        """Where rows with neither key nor partition begin: tasks and batches take turns."""
        return self.task + self.batch


def task_identity(writer: Application, task: int) -> TaskIdentity:
    generation, epoch = divmod(writer.version, EPOCHS_PER_NAME)
    return TaskIdentity(f"spark.{writer.name}.{task}.{generation}", epoch, writer.version, task)


Send = Callable[[TopicPartition, int, pa.RecordBatch], None]  # partition, sequence of the first record, records


class Numbering:
    def __init__(self, send: Send, *, part_bytes: int, buffered_bytes_max: int) -> None:
        self._send = send
        self._part_bytes = part_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._buffered: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._total_bytes = 0
        self._next: dict[TopicPartition, int] = {}
        self.record_count = 0

    def add(self, partition: TopicPartition, records: pa.RecordBatch) -> None:
        self._buffered.setdefault(partition, []).append(records)
        self._bytes[partition] = self._bytes.get(partition, 0) + records.nbytes
        self._total_bytes += records.nbytes
        if self._bytes[partition] >= self._part_bytes:
            self._emit(partition)
        while self._total_bytes > self._buffered_bytes_max:
            self._emit(max(self._bytes, key=self._bytes.__getitem__))

    def flush(self) -> None:
        for partition in list(self._buffered):
            self._emit(partition)

    def _emit(self, partition: TopicPartition) -> None:
        batches = self._buffered.pop(partition)
        self._total_bytes -= self._bytes.pop(partition)
        for records in _pieces(pa.concat_batches(batches), self._part_bytes):
            sequence = self._next.get(partition, 0)
            self._next[partition] = sequence_after(sequence, records.num_rows)
            self.record_count += records.num_rows
            self._send(partition, sequence, records)


def _pieces(records: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Halves of halves, until each is small enough, or a single record."""
    if records.nbytes <= bytes_max or records.num_rows == 1:
        yield records
        return
    half = records.num_rows // 2
    yield from _pieces(records.slice(0, half), bytes_max)
    yield from _pieces(records.slice(half), bytes_max)
