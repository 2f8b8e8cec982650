"""What reading keeps in memory: footers and decoded row groups of all partitions' data files, within fixed bounds.

Guards one promise: however many partitions and readers there are, the bytes held here are bounded. Data files never
change, so nothing in here grows stale. Does no I/O.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from bus.model import LogBatch
from bus.storage_delta.files.file_sums import FileSums
from bus.storage_delta.files.proved_parquet import ProvedFooter

_DECODED_BYTES_MAX = 64 << 20
_FOOTERS_MAX = 512
_SUMS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Offsets from `base_offset` up to `next_offset` are here, if they are anywhere. `columns` are worth decoding."""

    index: int
    base_offset: int
    next_offset: int
    columns: tuple[str, ...]
    constants: dict[str, int]  # timestamp in microseconds


@dataclass(frozen=True, slots=True)
class Footer:
    proved: ProvedFooter
    row_groups: tuple[RowGroup, ...]


class ReadCache:
    """Footers and decoded row groups of all partitions, the least recently used dropped first. Safe for threads."""

    def __init__(self, *, decoded_bytes_max: int = _DECODED_BYTES_MAX, footers_max: int = _FOOTERS_MAX) -> None:
        self._decoded_bytes_max = decoded_bytes_max
        self._footers_max = footers_max
        self._decoded: OrderedDict[tuple[str, int], LogBatch] = OrderedDict()
        self._decoded_bytes = 0
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._sums: OrderedDict[str, FileSums] = OrderedDict()
        self._mutex = threading.Lock()

    def footer(self, key: str) -> Footer | None:
        with self._mutex:
            if key in self._footers:
                self._footers.move_to_end(key)
            return self._footers.get(key)

    def add_footer(self, key: str, footer: Footer) -> None:
        with self._mutex:
            self._footers[key] = footer
            if len(self._footers) > self._footers_max:
                self._footers.popitem(last=False)

    def sums(self, key: str) -> FileSums | None:
        """Of a file whose entry has none."""
        with self._mutex:
            if key in self._sums:
                self._sums.move_to_end(key)
            return self._sums.get(key)

    def add_sums(self, key: str, sums: FileSums) -> None:
        with self._mutex:
            self._sums[key] = sums
            if len(self._sums) > _SUMS_MAX:
                self._sums.popitem(last=False)

    def decoded(self, key: str, group: int) -> LogBatch | None:
        with self._mutex:
            if (key, group) in self._decoded:
                self._decoded.move_to_end((key, group))
            return self._decoded.get((key, group))

    def add_decoded(self, key: str, group: int, batch: LogBatch) -> None:
        # One batch may not push out everything else.
        if batch.size_bytes > self._decoded_bytes_max // 4:
            return
        with self._mutex:
            if (key, group) not in self._decoded:
                self._decoded[key, group] = batch
                self._decoded_bytes += batch.size_bytes
            while self._decoded_bytes > self._decoded_bytes_max:
                _, dropped = self._decoded.popitem(last=False)
                self._decoded_bytes -= dropped.size_bytes
