"""The newest batches of all partitions, in memory, so that tail readers touch no file.

Bounded by bytes over all partitions together; the oldest batch of the broker goes first. Guards two promises: a
partition's tail is gapless and ends at its high watermark, so an offset is either wholly here or below the tail; and no
row is here that is not in the table, so a tail begins above what was deleted or compacted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from bus.model import LogBatch
from bus.ports import OFFSET_MAX

# The objects around the buffers of a batch.
_BATCH_OVERHEAD_BYTES = 1024


class Tail:
    """One partition's part of the cache: two lists side by side, searched by offset, whose first `_dropped` entries
    are gone (cut off now and then, so that dropping one is cheap)."""

    __slots__ = ("_bases", "_batches", "_dropped", "gone")

    def __init__(self) -> None:
        self._batches: list[LogBatch | None] = []
        self._bases: list[int] = []
        self._dropped = 0
        self.gone = 0  # entries of the cache's order whose batches were dropped before their turn: its oldest ones here

    @property
    def start_offset(self) -> int | None:
        return self._bases[self._dropped] if self._dropped < len(self._bases) else None

    def read(self, offset: int, max_bytes: int) -> list[LogBatch]:
        """Batches from the one that holds `offset`, at least one; empty if the tail does not hold it."""
        found: list[LogBatch] = []
        size = 0
        for batch in self._from(offset):
            if found and size + batch.size_bytes > max_bytes:
                break
            found.append(batch)
            size += batch.size_bytes
        return found

    def bytes_from(self, offset: int, enough: int) -> int:
        """Bytes from `offset` on, as far as the tail holds them; stops counting at `enough`."""
        size = 0
        for batch in self._from(offset):
            size += batch.size_bytes
            if size >= enough:
                break
        return size

    def _from(self, offset: int) -> Iterator[LogBatch]:
        position = bisect_right(self._bases, offset, lo=self._dropped) - 1
        if position < self._dropped:
            return
        for index in range(position, len(self._batches)):
            batch = self._batches[index]
            assert batch is not None, f"entry {index} of the tail was dropped, but only {self._dropped} were"
            if batch.next_offset > offset:
                yield batch

    def append(self, batch: LogBatch) -> None:
        self._batches.append(batch)
        self._bases.append(batch.base_offset)

    def drop_oldest(self) -> int:
        """Returns its bytes."""
        batch = self._batches[self._dropped]
        assert batch is not None, f"entry {self._dropped} of the tail was dropped before"
        self._batches[self._dropped] = None
        self._dropped += 1
        if self._dropped > 64 and self._dropped * 2 > len(self._bases):
            del self._bases[: self._dropped], self._batches[: self._dropped]
            self._dropped = 0
        return batch.size_bytes


class TailCache:
    """Invariant: `_order` has an entry for each batch of all tails, in the order they came, and for each batch that was
    dropped before its turn (`_gone_count` of them); the bytes of the former are at most `bytes_max`, but for the single
    newest batch."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[Tail] = deque()
        self._gone_count = 0
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def extend(self, tail: Tail, batches: Sequence[LogBatch]) -> None:
        for batch in batches:
            tail.append(batch)
            self._order.append(tail)
            self._bytes += batch.size_bytes + _BATCH_OVERHEAD_BYTES
        while self._bytes > self._bytes_max and self._order:
            self._evict()

    def cut(self, tail: Tail, below: int) -> None:
        """Forget every batch of a partition that begins below that offset: its rows may be gone from the table. Costs
        only what it drops, however much the other tails hold."""
        while (start := tail.start_offset) is not None and start < below:
            self._drop(tail)
            tail.gone += 1
            self._gone_count += 1
        self._forget_gone()

    def clear(self, tail: Tail) -> None:
        """Forget a partition: it was deleted, or its log is not where memory thought it is."""
        self.cut(tail, OFFSET_MAX)

    def _evict(self) -> None:
        tail = self._order.popleft()
        if tail.gone:
            tail.gone -= 1
            self._gone_count -= 1
        else:
            self._drop(tail)

    def _drop(self, tail: Tail) -> None:
        self._bytes -= tail.drop_oldest() + _BATCH_OVERHEAD_BYTES

    def _forget_gone(self) -> None:
        """Once half of the entries say nothing."""
        if self._gone_count * 2 <= len(self._order):
            return
        kept: deque[Tail] = deque()
        for tail in self._order:
            if tail.gone:
                tail.gone -= 1
            else:
                kept.append(tail)
        self._order, self._gone_count = kept, 0
