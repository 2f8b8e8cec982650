"""Which partition a record or a batch goes to, and how a batch with keys is split.

Guards one promise: equal keys of one topic go to one partition, in their order, as long as the number of partitions
stays. Works on whole columns; the records of one partition keep the order that they had in the batch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from bus.client.murmur2 import partition_of_key, partitions_of_keys
from bus.errors import BusError, ErrorCode

# Kafka's batch.size: so many bytes of records without a key stay in one partition before the next one's turn.
STICKY_BYTES = 16_384


class StickyChoice:
    """The partition of what has no key: one topic's partitions in turn."""

    def __init__(self) -> None:
        self._turn = itertools.count()
        self._current = next(self._turn)
        self._bytes = 0

    def of_record(self, size_bytes: int, partition_count: int) -> int:
        chosen = self._current % partition_count
        self._bytes += size_bytes
        if self._bytes >= STICKY_BYTES:
            self._current, self._bytes = next(self._turn), 0
        return chosen

    def of_batch(self, partition_count: int) -> int:
        """The whole batch goes to one partition, the next one to the next."""
        chosen = self._current % partition_count
        self._current, self._bytes = next(self._turn), 0
        return chosen


class Partitioner:
    def __init__(self) -> None:
        self._sticky: defaultdict[str, StickyChoice] = defaultdict(StickyChoice)

    def of_record(self, topic: str, key: bytes | None, size_bytes: int, partition_count: int) -> int:
        if key is not None:
            return partition_of_key(key, partition_count)
        return self._sticky[topic].of_record(size_bytes, partition_count)

    def split(self, topic: str, batch: pa.RecordBatch, partition_count: int) -> list[tuple[int, pa.RecordBatch]]:
        """`batch` by partition. Rows whose key is null go together to one partition.

        Raises `BusError` INVALID_RECORD if the keys are no bytes.
        """
        keys = batch.column("key") if "key" in batch.schema.names else None
        if keys is None or keys.null_count == len(keys):
            return [(self._sticky[topic].of_batch(partition_count), batch)]
        if partition_count == 1:
            return [(0, batch)]
        keys = _as_bytes(keys)
        partitions = partitions_of_keys(keys, partition_count)
        if keys.null_count:
            partitions[keys.is_null().to_numpy(zero_copy_only=False)] = self._sticky[topic].of_batch(partition_count)
        return split_by_partition(batch, partitions, partition_count)


def _as_bytes(keys: pa.Array) -> pa.Array:
    if pa.types.is_binary(keys.type):
        return keys
    try:
        return keys.cast(pa.binary())
    except (pa.ArrowException, ValueError):
        found = keys.type
    raise BusError(ErrorCode.INVALID_RECORD, f"expected the column key as binary or text, found {found}")


def split_by_partition(
    batch: pa.RecordBatch, partitions: Any, partition_count: int
) -> list[tuple[int, pa.RecordBatch]]:
    """One stable sort and one copy; the parts are slices of it. A part for each partition that has a row."""
    counts = np.bincount(partitions, minlength=partition_count)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch)]
    # 16-bit numbers are sorted by radix, in linear time.
    narrow = partitions.astype(np.uint16) if partition_count <= 1 << 16 else partitions
    in_order = batch.take(pa.array(np.argsort(narrow, kind="stable")))
    starts = np.cumsum(counts) - counts
    return [(int(p), in_order.slice(int(starts[p]), int(counts[p]))) for p in present]
