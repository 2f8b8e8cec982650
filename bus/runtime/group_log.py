"""The groups of one partition of `__consumer_offsets`: read from its log, and records appended to it.

Guards one promise: what was loaded plus what was appended is what the log holds. Every append must land exactly where
the log ended for memory; one that did not shows that somebody else wrote meanwhile, or that an append whose outcome
nobody knew was committed after all. Then the groups have to be loaded anew.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bus.consumer_groups.decisions import load_groups
from bus.consumer_groups.group import Group
from bus.consumer_groups.records import GroupRecord, decode_record, encode_record
from bus.errors import ErrorCode, Refused, StorageDamaged
from bus.model import LogBatch, RecordBatch
from bus.partition_log.appends import ACKS_ALL
from bus.ports import Clock, KeyedRow, KeyedRows
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partition import Partition

# What is read at a time while loading. Memory holds the last record of each key beside it.
_LOAD_BYTES = 4 << 20
# So many rows take longer to encode than a thread takes to be woken.
_THREAD_ROWS_MIN = 256


class GroupLog:
    def __init__(self, partition: Partition, rows: KeyedRows, *, clock: Clock, calls: BlockingCalls) -> None:
        self._partition = partition
        self._rows = rows
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
        """Its records cannot be understood: going on would lose or invent what was acknowledged."""
        self._partition.stop(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    async def load(self) -> dict[str, Group] | Refused:
        """Refused while the partition is stopped. Raises `StorageFault` if a file cannot be read for now, and
        `StorageDamaged` if what is there makes no sense."""
        last: dict[bytes, KeyedRow] = {}
        offset = 0
        while True:
            state = self._partition.state
            offset = max(offset, state.log_start)
            if offset >= state.high_watermark:
                break
            readable = self._partition.decide_fetch(offset, None)
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
        return await self._calls.compute(functools.partial(self._load_groups, last))

    def _merge(self, batches: Sequence[LogBatch], offset: int, last: dict[bytes, KeyedRow]) -> None:
        """The last record of each key counts, in the order of the log; what lies below `offset` was merged before."""
        for batch in batches:
            if batch.next_offset <= offset:
                continue
            for row in self._rows.decode(batch):
                last.pop(row.key, None)
                if row.value is not None:
                    last[row.key] = row

    def _load_groups(self, last: dict[bytes, KeyedRow]) -> dict[str, Group]:
        try:
            return load_groups(map(decode_record, last.values()))
        except (ValueError, AssertionError) as error:
            raise StorageDamaged(f"{self.name}: {error}") from error

    async def append(self, records: Sequence[GroupRecord]) -> Refused | None:
        """All of them or none, as one batch; they are committed when it returns None. After a refusal they may still
        be in the log, and only `load` tells."""
        now_ms = self._clock.now_ms()
        encode = functools.partial(self._encode, records, now_ms)
        batch = await self._calls.compute(encode) if len(records) >= _THREAD_ROWS_MIN else encode()
        result = await self._partition.append(
            batch, acks=ACKS_ALL, current_leader_epoch=None, request_id=f"{self.name}/{self._end_offset}"
        )
        if isinstance(result, Refused):
            return result
        if result.base_offset != self._end_offset:
            return Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.name}: expected the log to end at offset {self._end_offset}, found {result.base_offset}: "
                "somebody else wrote to it",
            )
        self._end_offset += len(records)
        return None

    def _encode(self, records: Sequence[GroupRecord], now_ms: int) -> RecordBatch:
        return self._rows.encode([encode_record(record) for record in records], now_ms=now_ms)
