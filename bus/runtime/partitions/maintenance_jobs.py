"""The jobs of one partition's maintenance: what is prepared beside the writer, and then committed in its place.

Guards two promises: a job that fails leaves the log as it was, for only the writer commits; and a file that cannot be
read holds up nothing but what would have to read it: it is left alone, with those that it was to be rewritten with.
Decides nothing about when; one job runs at a time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, VersionReplaced, count_of
from bus.model import TopicPartition
from bus.partition_log.maintenance import MaintenanceRules, VersionRules
from bus.partition_log.retention import RetentionRules, decide_retention
from bus.ports import (
    Dropped,
    LogFile,
    MaintenanceStopped,
    PreparedFiles,
    SwapKind,
    TableUpkeep,
)
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    FilesSwapped,
    Maintenance,
    MaintenancePace,
    SwapResult,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")
_NOTHING = Dropped()
_ORPHANS_AT_ONCE = 100


class Writer(Protocol):
    """The partition's writer, which commits between two appends. The futures never fail."""

    def swap(self, prepared: PreparedFiles, *, is_ours: bool) -> asyncio.Future[SwapResult]: ...

    def delete_below(self, offset: int) -> asyncio.Future[DeleteRecordsResult]: ...

    def delete_orphans(self, orphans: frozenset[str]) -> asyncio.Future[int | Refused]: ...

    def stop(self, code: ErrorCode, reason: str) -> None:
        """The log is not what was committed: serve no more."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    rewritten_bytes: int = 0
    dropped: Dropped = _NOTHING


JobResult = Done | Refused


class MaintenanceJobs:
    """`housekeeping` is held while anything is done to the table that must not happen while it is read again.
    `left_alone`: paths of files that are never rewritten, because they or their neighbours could not be read."""

    def __init__(
        self,
        name: TopicPartition,
        table: TableUpkeep,
        *,
        calls: BlockingCalls,
        maintenance: Maintenance,
        writer: Writer,
    ) -> None:
        self._name = name
        self._table = table
        self._calls = calls
        self._clock = maintenance.clock
        self._writer = writer
        self._pace = MaintenancePace(maintenance.throttle)
        self._orphans: frozenset[str] | None = None
        self._orphans_found_s = 0.0
        self.housekeeping = asyncio.Lock()
        self.left_alone: set[str] = set()

    def stop(self) -> None:
        """What is being prepared is given up at its next step."""
        self._pace.stop()

    # ------------------------------------------------------------------ rewriting

    async def roll(self, run: Sequence[LogFile], rules: MaintenanceRules) -> JobResult:
        call = functools.partial(
            self._table.prepare_roll,
            run,
            compression=rules.compression,
            now_ms=self._clock.now_ms(),
            tombstone_retention_ms=rules.tombstone_retention_ms,
            pace=self._pace,
        )
        return await self._rewrite("roll", call, run)

    async def compact(self, end_offset: int, rules: MaintenanceRules) -> JobResult:
        """`end_offset` OFFSET_MAX: as a whole."""
        call = functools.partial(
            self._table.prepare_key_compaction,
            now_ms=self._clock.now_ms(),
            tombstone_retention_ms=rules.tombstone_retention_ms,
            end_offset=end_offset,
            pace=self._pace,
        )
        return await self._rewrite("compaction", call, [f for f in self._table.files if f.next_offset <= end_offset])

    async def _rewrite(
        self, job: str, prepare: Callable[[], PreparedFiles | None], files: Sequence[LogFile]
    ) -> JobResult:
        started = time.monotonic()
        try:
            prepared = await self._maintain(prepare)
        except StorageDamaged as damage:
            self.left_alone.update(file.path for file in files)
            _log.error("%s given up, %s stay as they are: %s", job, _span(files), damage, extra=self._fields())
            return self._refuse(damage)
        except (StorageFault, MaintenanceStopped) as fault:
            return self._fail(job, fault)
        if prepared is None:
            return Done()
        swapped = await self._writer.swap(prepared, is_ours=True)
        if isinstance(swapped, Refused):
            _log.warning("%s could not be committed: %s", job, swapped.message, extra=self._fields())
            return swapped
        _log.info(
            "%s: %s became %d with %d bytes in %.0f ms",
            job,
            _span(files),
            prepared.added_count,
            prepared.rewritten_bytes,
            (time.monotonic() - started) * 1000,
            extra=self._fields(),
        )
        return Done(prepared.rewritten_bytes)

    async def swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> SwapResult:
        """Files that another program prepared."""
        started = time.monotonic()
        try:
            checked = await self._maintain(functools.partial(self._table.check_swap, removes, adds, kind))
        except (StorageFault, MaintenanceStopped) as fault:
            return self._fail("swap", fault)
        if isinstance(checked, Refused):
            return checked
        swapped = await self._writer.swap(checked, is_ours=False)
        if isinstance(swapped, FilesSwapped):
            _log.info(
                "swap: %s became %d that were prepared elsewhere, in %.0f ms",
                count_of(len(removes), "file"),
                len(adds),
                (time.monotonic() - started) * 1000,
                extra=self._fields(),
            )
        return swapped

    # ------------------------------------------------------------------ letting go

    async def retain(self, rules: RetentionRules) -> JobResult:
        started = time.monotonic()
        retained = decide_retention(self._table.files, rules, now_ms=self._clock.now_ms())
        if retained is None:
            return Done()
        result = await self._writer.delete_below(retained.log_start)
        if isinstance(result, Refused):
            _log.warning("retention could not be committed: %s", result.message, extra=self._fields())
            return result
        _log.info(
            "retention by %s lets go of %s, the log starts at offset %d now, in %.0f ms",
            retained.reason,
            count_of(retained.file_count, "file"),
            result.low_watermark,
            (time.monotonic() - started) * 1000,
            extra=self._fields(),
        )
        return Done()

    async def clean(self, rules: VersionRules) -> JobResult:
        """Versions that are old enough, data files that only they had, and what a crash left behind."""
        started = time.monotonic()
        try:
            async with self.housekeeping:
                dropped = await self._calls.housekeep(functools.partial(self._drop, rules))
                await self._find_orphans()
        except VersionReplaced as replaced:
            self._writer.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(replaced))
            return self._refuse(replaced)
        except StorageFault as fault:
            return self._fail("cleaning", fault)
        orphan_count = await self._delete_orphans(rules)
        if isinstance(orphan_count, Refused):
            _log.warning("orphans stay for now: %s", orphan_count.message, extra=self._fields())
            return orphan_count
        if dropped != _NOTHING or orphan_count:
            _log.info(
                "cleaning: %s, %s with %d bytes and %s deleted in %.0f ms",
                count_of(dropped.versions, "version"),
                count_of(dropped.data_files, "data file"),
                dropped.data_bytes,
                count_of(orphan_count, "orphan"),
                (time.monotonic() - started) * 1000,
                extra=self._fields(),
            )
        return Done(dropped=Dropped(dropped.versions, dropped.data_files + orphan_count, dropped.data_bytes))

    def _drop(self, rules: VersionRules) -> Dropped:
        now_ms = self._clock.now_ms()
        committed_before_ms = now_ms - rules.retention_ms
        if self._table.is_checkpoint_needed_to_drop(committed_before_ms=committed_before_ms):
            self._table.write_checkpoint()
        return self._table.drop_old_versions(
            committed_before_ms=committed_before_ms,
            count_max=rules.count_max,
            removed_before_ms=now_ms - rules.file_delete_delay_ms,
        )

    async def _find_orphans(self) -> None:
        """Once after the opening: what comes later is a commit's under way, or found by the next opening."""
        if self._orphans is None:
            self._orphans = await self._calls.housekeep(self._table.find_orphans)
            self._orphans_found_s = asyncio.get_running_loop().time()

    async def _delete_orphans(self, rules: VersionRules) -> int | Refused:
        """Only what was an orphan a grace ago. The writer does it, a few at a time, so that no commit waits for long;
        not while `housekeeping` is held, for which the writer may wait."""
        waited_ms = (asyncio.get_running_loop().time() - self._orphans_found_s) * 1000
        if not self._orphans or waited_ms < rules.file_delete_delay_ms:
            return 0
        count, left = 0, sorted(self._orphans)
        while left:
            deleted = await self._writer.delete_orphans(frozenset(left[:_ORPHANS_AT_ONCE]))
            if isinstance(deleted, Refused):
                return deleted
            count += deleted
            del left[:_ORPHANS_AT_ONCE]
        self._orphans = frozenset()
        return count

    async def write_checkpoint(self) -> None:
        started = time.monotonic()
        try:
            async with self.housekeeping:
                await self._calls.housekeep(self._table.write_checkpoint)
        except VersionReplaced as replaced:
            self._writer.stop(ErrorCode.KAFKA_STORAGE_ERROR, str(replaced))
        except StorageFault as fault:
            _log.warning("checkpoint failed: %s", fault, extra=self._fields())
        else:
            _log.debug("checkpoint written in %.0f ms", (time.monotonic() - started) * 1000, extra=self._fields())

    # ------------------------------------------------------------------ failures

    async def _maintain(self, call: Callable[[], T]) -> T:
        def paced() -> T:
            self._pace(0)  # it may have waited for its thread until it is not wanted any more
            return call()

        return await self._calls.maintain(paced)

    def _fail(self, job: str, fault: StorageFault | MaintenanceStopped) -> Refused:
        if not isinstance(fault, MaintenanceStopped):
            _log.warning("%s failed, to be tried again: %s", job, fault, extra=self._fields())
        return self._refuse(fault)

    def _refuse(self, fault: Exception) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name}: {fault}")

    def _fields(self) -> dict[str, object]:
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._table.state.version}


def _span(files: Sequence[LogFile]) -> str:
    if not files:
        return "0 files"
    size_bytes = sum(file.size_bytes for file in files)
    return (
        f"{count_of(len(files), 'file')} of {size_bytes} bytes, offsets {files[0].base_offset} to "
        f"{files[-1].next_offset - 1},"
    )
