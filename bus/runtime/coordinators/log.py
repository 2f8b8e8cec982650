"""The log of a coordinator: its states are read from one partition of an internal topic, and records appended to it.

Guards two promises. What was loaded plus what was appended is what the log holds: every append must land exactly where
the log ended for memory; one that did not shows that another writer wrote meanwhile, or that an append of unknown
outcome was committed after all, and then the states have to be loaded again. And what is appended can be loaded: every
record is decoded again before, and its size is judged; what fails is named and not appended.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from bus.errors import ErrorCode, Refused, count_of
from bus.machine import Loaded, RecordCodec, RecordT, StateT
from bus.model import LogBatch, RecordBatch
from bus.partition_log.appends import ACKS_ALL
from bus.partition_log.reads import NotYet
from bus.ports import Clock, KeyedRow, KeyedRows
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.partition import Partition

# The bytes that loading reads at a time; memory also holds the last record of each key.
_LOAD_BYTES = 4 << 20
# From this many rows or bytes on, encoding and decoding take longer than waking a thread.
_THREAD_ROWS_MIN = 64
_THREAD_BYTES_MIN = 64 << 10
# Faults of one load that are logged one by one.
_LOGGED_FAULTS_MAX = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedRecords:
    """Records on their way into the log. `faults` says of some, by position, why they cannot go in; then the others
    have to be prepared without them."""

    batch: RecordBatch | None  # None: with faults, or of no records
    faults: Mapping[int, Refused]


class CoordinatorLog(Generic[StateT, RecordT]):
    def __init__(
        self,
        partition: Partition,
        rows: KeyedRows,
        codec: RecordCodec[StateT, RecordT],
        *,
        clock: Clock,
        calls: BlockingCalls,
    ) -> None:
        self._partition = partition
        self._rows = rows
        self._codec = codec
        self._clock = clock
        self._calls = calls
        self._end_offset = partition.state.high_watermark

    @property
    def name(self) -> str:
        return str(self._partition.name)

    @property
    def is_empty(self) -> bool:
        """There is nothing to load."""
        return self._partition.state.log_start == self._partition.state.high_watermark

    @property
    def stopped(self) -> Refused | None:
        return self._partition.stopped

    def stop(self, reason: str) -> None:
        """Stop the log: its records cannot be understood, and continuing would lose or invent acknowledged ones."""
        self._partition.stop(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    async def load(self) -> Loaded[StateT] | Refused:
        """Refused while the partition is stopped. Raises `StorageFault` if a file cannot be read for now, and
        `StorageDamaged` if the table makes no sense. Records that make none are logged and cost themselves."""
        refused = await self._partition.catch_up()
        if refused is not None:
            return refused
        last: dict[bytes, KeyedRow] = {}
        offset = 0
        while True:
            state = self._partition.state
            offset = max(offset, state.log_start)
            if offset >= state.high_watermark:
                break
            readable = self._partition.decide_fetch(offset, None)
            assert not isinstance(readable, NotYet), f"{self._partition.name}: no version was named"
            if isinstance(readable, Refused):
                return readable
            read = await self._partition.read(readable, _LOAD_BYTES)
            if isinstance(read, Refused):
                return read
            batches = read.batches
            if not batches:
                offset = readable.end_offset  # nothing is left there since compaction
                continue
            await self._calls.compute(functools.partial(self._merge, batches, offset, last))
            offset = batches[-1].next_offset
        self._end_offset = offset
        loaded = await self._calls.compute(
            functools.partial(self._codec.load, last.values(), now_ms=self._clock.now_ms())
        )
        self._log_faults(loaded.faults)
        return loaded

    def _merge(self, batches: Sequence[LogBatch], offset: int, last: dict[bytes, KeyedRow]) -> None:
        """The last record of each key counts, in the order of the log; what lies below `offset` was merged before."""
        for batch in batches:
            if batch.next_offset <= offset:
                continue
            for row in self._rows.decode(batch):
                last.pop(row.key, None)
                if row.value is not None:
                    last[row.key] = row

    def _log_faults(self, faults: Sequence[str]) -> None:
        for fault in faults[:_LOGGED_FAULTS_MAX]:
            _log.error("%s: %s", self.name, fault)
        if len(faults) > _LOGGED_FAULTS_MAX:
            _log.error("%s: %s cannot be read", self.name, count_of(len(faults) - _LOGGED_FAULTS_MAX, "more record"))

    def log_lines(self, records: Sequence[RecordT]) -> None:
        """Write the broker's own log lines about committed records."""
        for record in records:
            line = self._codec.log_line(record)
            if line is not None:
                _log.info("%s", line)

    # ------------------------------------------------------------------ appending

    def approximate_bytes(self, records: Sequence[RecordT]) -> int:
        return sum(map(self._codec.approximate_bytes, records))

    async def prepare(self, records: Sequence[RecordT]) -> PreparedRecords:
        """Encode what `append` takes, and decode it again as a load would."""
        if not records:
            return PreparedRecords(None, {})
        prepare = functools.partial(self._prepare, records, self._clock.now_ms())
        is_small = len(records) < _THREAD_ROWS_MIN and self.approximate_bytes(records) < _THREAD_BYTES_MIN
        return prepare() if is_small else await self._calls.compute(prepare)

    def _prepare(self, records: Sequence[RecordT], now_ms: int) -> PreparedRecords:
        rows = list(map(self._codec.encode, records))
        try:
            batch = self._rows.encode(rows, now_ms=now_ms)
            is_readable = list(map(self._codec.decode, self._rows.decode_again(batch))) == list(records)
        except ValueError:
            is_readable = False
        limit = self._partition.record_bytes_max
        if is_readable and batch.record_bytes_max > limit:
            batch = replace(batch, record_bytes_max=max(row.size_bytes for row in rows))
        if is_readable and batch.record_bytes_max <= limit:
            return PreparedRecords(batch, {})
        faults: dict[int, Refused] = {}
        for position, (record, row) in enumerate(zip(records, rows, strict=True)):
            fault = self._check_size(record, row) or (
                None if is_readable else self._check_readable(record, row, now_ms)
            )
            if fault is not None:
                faults[position] = fault
        assert faults, f"{self.name}: {len(records)} records cannot be read back, but each of them can"
        return PreparedRecords(None, faults)

    def _check_size(self, record: RecordT, row: KeyedRow) -> Refused | None:
        limit, size = self._partition.record_bytes_max, row.size_bytes
        if size <= limit:
            return None
        found = f"expected a record of at most {limit} bytes in {self.name}, found one of {size}"
        return self._codec.fault(record, found, is_too_large=True)

    def _check_readable(self, record: RecordT, row: KeyedRow, now_ms: int) -> Refused | None:
        try:
            (again,) = self._rows.decode_again(self._rows.encode([row], now_ms=now_ms))
            reason = "" if self._codec.decode(again) == record else "it would be read as another one"
        except ValueError as error:
            reason = str(error)
        if not reason:
            return None
        return self._codec.fault(record, f"the record could not be read again: {reason}", is_too_large=False)

    async def append(self, batch: RecordBatch) -> Refused | None:
        """All records of the batch or none; they are committed when it returns None. After a refusal they may still
        be in the log, and only `load` tells."""
        result = await self._partition.append(
            batch, acks=ACKS_ALL, current_leader_epoch=None, request_id=f"{self.name}/{self._end_offset}"
        )
        if isinstance(result, Refused):
            return result
        if result.base_offset != self._end_offset:
            return Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.name}: expected the log to end at offset {self._end_offset}, found {result.base_offset}: "
                "another writer wrote to it",
            )
        self._end_offset += batch.record_count
        return None
