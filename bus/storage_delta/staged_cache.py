"""Staged batches of open transactions in memory, so that a commit does not read back what this process has staged.

Guards two promises. A batch is here only if this process wrote its file, whole and synced, from the same columns: what
is taken from here is what the file has. And the bytes held here are bounded, over all partitions: the transaction that
nothing was staged of for longest leaves first, as a whole, and is read from its files. Does no I/O.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.model import RecordBatch

_BYTES_MAX = 64 << 20
# What a batch costs beside its buffers: the objects around them.
_BATCH_OVERHEAD_BYTES = 1024


@dataclass(slots=True)
class _Held:
    """Of one transaction in one partition. `size_bytes` is that of all batches, with what they cost beside."""

    batches: dict[int, RecordBatch] = field(default_factory=dict)  # by first sequence
    size_bytes: int = 0


class StagedCache:
    """Of all partitions. `name` is that of a transaction in one of them, and of no other: nor of one in a partition of
    the same name that is created later. Safe for threads."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._size_bytes = 0
        self._mutex = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, name: str, first_sequence: int, batch: RecordBatch) -> None:
        """The file of `batch` was just written, and is durable."""
        with self._mutex:
            held = self._held.setdefault(name, _Held())
            replaced = held.batches.get(first_sequence)
            held.batches[first_sequence] = batch
            more_bytes = _cost_of(batch) - (0 if replaced is None else _cost_of(replaced))
            held.size_bytes += more_bytes
            self._size_bytes += more_bytes
            self._held.move_to_end(name)
            while self._size_bytes > self._bytes_max:
                self._size_bytes -= self._held.popitem(last=False)[1].size_bytes

    def find(self, name: str, last_sequence: int) -> Sequence[RecordBatch] | None:
        """Batches that follow each other from sequence 0 to `last_sequence` or beyond; None if any of them is not
        here."""
        found, sequence = list[RecordBatch](), 0
        with self._mutex:
            held = self._held.get(name, _Held())
            while sequence <= last_sequence:
                batch = held.batches.get(sequence)
                if batch is None:
                    return None
                found.append(batch)
                sequence += batch.record_count
        return found

    def drop(self, name: str) -> Sequence[RecordBatch] | None:
        """What was here, in order; None unless it is without a gap from sequence 0 on."""
        with self._mutex:
            held = self._held.pop(name, _Held())
            self._size_bytes -= held.size_bytes
        dropped, sequence = list[RecordBatch](), 0
        while sequence in held.batches:
            dropped.append(held.batches[sequence])
            sequence += dropped[-1].record_count
        return dropped if dropped and len(dropped) == len(held.batches) else None


def _cost_of(batch: RecordBatch) -> int:
    return batch.size_bytes + _BATCH_OVERHEAD_BYTES
