"""Gives the rows of a task their sequences, from 0 in each partition, and cuts them into parts worth a request.

Guards one promise: the sequences of a partition count its rows in the order in which they were added, without a gap.
Memory is bounded, however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from bus.model import TopicPartition, sequence_after

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
