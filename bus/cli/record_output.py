"""Where `bus consume` writes records to, and which of them are written when a signal ends it.

Guards two promises. Of a batch that was not written to its end, because the command was stopped, the reader went away
or the disk is full, it is known to the record how much is written. And a record that is begun when the command is
stopped is written to its end, if the reader takes it soon.
"""

from __future__ import annotations

import io
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TextIO

from bus.cli.record_format import Writer
from bus.cli.standard_streams import Descriptor
from bus.signals import Interrupts

if TYPE_CHECKING:
    from bus.client.values import ConsumerRecord

_LAST_RECORD_MS = 1_000


class WrittenBatch:
    """`records`, of which the first `count` are written."""

    def __init__(self, records: Sequence[ConsumerRecord], write: Writer) -> None:
        self.records = records
        lines = list(map(write, records))
        self._ends = list(accumulate(map(len, lines)))
        self._data = memoryview(b"".join(lines))
        self._taken = 0

    @property
    def count(self) -> int:
        return bisect_right(self._ends, self._taken)

    @property
    def rest(self) -> memoryview:
        return self._data[self._taken :]

    @property
    def rest_of_record(self) -> memoryview:
        """Of the record that is begun; nothing if there is none."""
        begin = self._ends[self.count - 1] if self.count else 0
        end = begin if self._taken == begin else self._ends[self.count]
        return self._data[self._taken : end]

    def take(self, count: int) -> None:
        self._taken += count


class RecordOutput:
    """A stream, standard output mostly, for records as `write` makes them bytes."""

    def __init__(self, stream: TextIO, write: Writer, interrupts: Interrupts) -> None:
        self._stream = stream
        self._interrupts = interrupts
        self._write = write
        self.batch = WrittenBatch((), write)  # the last one that was begun and is not forgotten
        try:
            self._descriptor: Descriptor | None = Descriptor(stream.fileno())
        except io.UnsupportedOperation:  # a stream in memory
            self._descriptor = None

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """All of them. Raises `OSError`, `KeyboardInterrupt`; `batch` tells then how many are written."""
        self.batch = batch = WrittenBatch(records, self._write)
        if self._descriptor is None:
            batch.take(self._stream.buffer.write(batch.rest))
            self._stream.buffer.flush()
            return
        try:
            while batch.rest:
                self._descriptor.wait()
                self._write_some(self._descriptor, batch, batch.rest)
        except KeyboardInterrupt:
            self._end_record(self._descriptor, batch)
            raise

    def forget(self) -> None:
        self.batch = WrittenBatch((), self._write)

    def _end_record(self, descriptor: Descriptor, batch: WrittenBatch) -> None:
        deadline = time.monotonic() + _LAST_RECORD_MS / 1000
        while batch.rest_of_record:
            if not descriptor.wait(max(0, round((deadline - time.monotonic()) * 1000))):
                return
            self._write_some(descriptor, batch, batch.rest_of_record)

    def _write_some(self, descriptor: Descriptor, batch: WrittenBatch, data: memoryview) -> None:
        with self._interrupts.held():
            batch.take(descriptor.write_some(data))
