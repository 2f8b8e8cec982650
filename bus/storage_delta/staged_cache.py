"""Staged batches of open transactions in memory, so that a commit does not read back what this process has staged.

Guards three promises. A batch is here only if this process wrote its file, whole and synced, from the same columns, or
if it is in no file yet (`hold`): what is taken from here is what the file has. What is in no file stays until it is
saved or dropped. And the bytes held here are bounded, over all partitions: of the transactions that are in files, the
one that nothing was staged of for longest leaves first, as a whole, and is read from its files. Does no I/O.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.model import RecordBatch

STAGED_CACHE_BYTES = 128 << 20  # where a program has no configuration that says so
# What a batch costs beside its buffers: the objects around them.
_BATCH_OVERHEAD_BYTES = 1024


@dataclass(slots=True)
class _Held:
    """Of one transaction in one partition. `size_bytes` is that of all batches, with what they cost beside."""

    batches: dict[int, RecordBatch] = field(default_factory=dict)  # by first sequence
    unsaved: set[int] = field(default_factory=set)  # those in no file
    size_bytes: int = 0

    def put(self, first_sequence: int, batch: RecordBatch) -> None:
        replaced = self.batches.get(first_sequence)
        self.batches[first_sequence] = batch
        self.size_bytes += _cost_of(batch) - (0 if replaced is None else _cost_of(replaced))

    def remove_unsaved(self, first_sequence: int) -> None:
        self.unsaved.remove(first_sequence)
        self.size_bytes -= _cost_of(self.batches.pop(first_sequence))


class StagedCache:
    """Of all partitions. `name` is that of a transaction in one of them, and of no other: nor of one in a partition of
    the same name that is created later. Safe for threads."""

    def __init__(self, bytes_max: int = STAGED_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._unsaved: dict[str, _Held] = {}  # not all of it is in files
        self._size_bytes = 0
        self._unsaved_bytes = 0
        self._mutex = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def add(self, name: str, first_sequence: int, batch: RecordBatch) -> None:
        """The file of `batch` was just written, and is durable. It takes the place of those of its records that were in
        no file."""
        with self._mutex:
            held = self._take(name)
            sequences = range(first_sequence, first_sequence + batch.record_count)
            for first in [first for first in held.unsaved if first in sequences]:
                held.remove_unsaved(first)
            held.put(first_sequence, batch)
            self._keep(name, held)

    def hold(self, name: str, first_sequence: int, batch: RecordBatch) -> bool:
        """`batch` is in no file. False: there is no room for more of those."""
        with self._mutex:
            held = self._take(name)
            has_room = self._unsaved_bytes + held.size_bytes + _cost_of(batch) <= self._bytes_max
            if has_room:
                held.put(first_sequence, batch)
                held.unsaved.add(first_sequence)
            self._keep(name, held)
            return has_room

    def unsaved(self, name: str) -> Sequence[RecordBatch]:
        """Those of the transaction that are in no file, in order."""
        with self._mutex:
            held = self._unsaved.get(name, _Held())
            return [held.batches[first] for first in sorted(held.unsaved)]

    def forget(self, name: str) -> bool:
        """Let go of those that are in no file; whether those were all of the transaction."""
        with self._mutex:
            if name not in self._unsaved:
                return False
            held = self._take(name)
            for first_sequence in list(held.unsaved):
                held.remove_unsaved(first_sequence)
            self._keep(name, held)
            return not held.batches

    def find(self, name: str, last_sequence: int) -> Sequence[RecordBatch] | None:
        """Batches that follow each other from sequence 0 to `last_sequence` or beyond; None if any of them is not
        here."""
        found, sequence = list[RecordBatch](), 0
        with self._mutex:
            held = self._find(name)
            while sequence <= last_sequence:
                batch = held.batches.get(sequence)
                if batch is None:
                    return None
                found.append(batch)
                sequence += batch.record_count
        return found

    def drop(self, name: str) -> Sequence[RecordBatch] | None:
        """What was here and is in files, in order; None unless what was here is without a gap from sequence 0 on."""
        with self._mutex:
            held = self._take(name)
        dropped, sequence = list[RecordBatch](), 0
        while sequence in held.batches:
            dropped.append(held.batches[sequence])
            sequence += dropped[-1].record_count
        if not dropped or len(dropped) < len(held.batches):
            return None
        return [batch for first, batch in sorted(held.batches.items()) if first not in held.unsaved]

    def _find(self, name: str) -> _Held:
        return self._unsaved.get(name) or self._held.get(name) or _Held()

    def _take(self, name: str) -> _Held:
        """It is here no more."""
        held = self._unsaved.pop(name, None)
        if held is not None:
            self._unsaved_bytes -= held.size_bytes
        else:
            held = self._held.pop(name, _Held())
        self._size_bytes -= held.size_bytes
        return held

    def _keep(self, name: str, held: _Held) -> None:
        if not held.batches:
            return
        self._size_bytes += held.size_bytes
        if held.unsaved:
            self._unsaved[name] = held
            self._unsaved_bytes += held.size_bytes
        else:
            self._held[name] = held
        while self._size_bytes > self._bytes_max and self._held:
            self._size_bytes -= self._held.popitem(last=False)[1].size_bytes


def _cost_of(batch: RecordBatch) -> int:
    return batch.size_bytes + _BATCH_OVERHEAD_BYTES
