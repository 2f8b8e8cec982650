"""The newest batches of all partitions, in memory, so that tail readers touch no file.

Bounded by bytes over all partitions together; the oldest batch of the broker goes first. Guards one promise: a
partition's tail is gapless and ends at its high watermark, so an offset is either wholly here or below the tail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from bus.model import LogBatch

# What a batch costs beside its buffers: the objects around them.
_BATCH_OVERHEAD_BYTES = 1024


class Tail:
    """One partition's part of the cache: two lists side by side, searched by offset, whose first `_dropped` entries
    are gone (cut off now and then, so that dropping one is cheap)."""

    __slots__ = ("_bases", "_batches", "_dropped")

    def __init__(self) -> None:
        self._batches: list[LogBatch | None] = []
        self._bases: list[int] = []
        self._dropped = 0

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

    def drop_oldest(self) -> None:
        self._batches[self._dropped] = None
        self._dropped += 1
        if self._dropped > 64 and self._dropped * 2 > len(self._bases):
            del self._bases[: self._dropped], self._batches[: self._dropped]
            self._dropped = 0


class TailCache:
    """Invariant: the batches of all tails, in the order they came, are `_order`; their bytes are at most `bytes_max`
    but for the single newest batch."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[tuple[Tail, int]] = deque()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def extend(self, tail: Tail, batches: Sequence[LogBatch]) -> None:
        for batch in batches:
            size = batch.size_bytes + _BATCH_OVERHEAD_BYTES
            tail.append(batch)
            self._order.append((tail, size))
            self._bytes += size
        while self._bytes > self._bytes_max and self._order:
            self._evict()

    def clear(self, tail: Tail) -> None:
        """Forget a partition: it was deleted, or its log is not where memory thought it is."""
        kept: deque[tuple[Tail, int]] = deque()
        for owner, size in self._order:
            if owner is tail:
                tail.drop_oldest()
                self._bytes -= size
            else:
                kept.append((owner, size))
        self._order = kept

    def _evict(self) -> None:
        tail, size = self._order.popleft()
        tail.drop_oldest()
        self._bytes -= size
