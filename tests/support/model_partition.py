"""A partition as a fetch reads it, without a writer and a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.errors import ErrorCode, Refused, StorageFault
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.tasks import Wakeable
from tests.support.stores import log_batch

ELSEWHERE = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere")
BEHIND = Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "not known here")


@dataclass(eq=False)
class ModelPartition:
    """A partition during one leadership: records with the offsets `log_start` to `end`, a batch each. A record counts
    as a byte."""

    log_start: int = 0
    end: int = 0
    version: int = 0
    is_led: bool = True
    readers: dict[Wakeable, None] = field(default_factory=dict)
    looks: int = 0
    fault: StorageFault | None = None  # of the next read of records

    def change(self, *, records: int = 0, log_start: int = 0) -> None:
        self.end += records
        self.log_start = min(self.end, max(self.log_start, log_start))
        self.version += 1
        self.wake()

    def wake(self) -> None:
        for reader in self.readers:
            reader.set()

    def decide_fetch(
        self, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
    ) -> Readable | NotYet | Refused:
        self.looks += 1
        if not self.is_led:
            return ELSEWHERE
        if seen_version is not None and seen_version > self.version:
            return NotYet(BEHIND)
        if not self.log_start <= offset <= self.end:
            return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.log_start} to {self.end}")
        return Readable(offset, self.end)

    def bytes_available(self, readable: Readable, enough: int) -> int:
        return readable.end_offset - readable.offset

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult:
        fault, self.fault = self.fault, None
        if fault is not None and readable.offset < readable.end_offset:
            raise fault
        return self.result(readable)

    def result(self, readable: Readable) -> ReadResult:
        batches = [log_batch(offset, [b"v"]) for offset in range(readable.offset, readable.end_offset)]
        return ReadResult(batches, self.end, self.log_start, self.version)

    def refuse_read(self, fault: StorageFault) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))

    def add_reader(self, event: Wakeable) -> None:
        self.readers[event] = None

    def remove_reader(self, event: Wakeable) -> None:
        self.readers.pop(event, None)
