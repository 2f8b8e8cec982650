"""The jobs of one log's maintenance: what is prepared beside its writer, and then committed by the writer.

Guards two promises: a job that fails leaves the log as it was, for only the writer commits; and a file that cannot be
read stops only the jobs that have to read it: it is left alone, with the files of the same job.
Decides nothing about when; one job runs at a time.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bus.descriptions import DeletedRecords
from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault, count_of
from bus.model import TopicPartition
from bus.partition_log.log_life import (
    MaintenanceRules,
    RetentionRules,
    VersionRules,
    decide_delete_records,
    decide_retention,
)
from bus.ports import (
    CommitOutcome,
    Committed,
    Conflicted,
    Dropped,
    LogFile,
    MaintenanceStopped,
    PartitionTable,
    PreparedFiles,
    SwapKind,
)
from bus.runtime.blocking import BlockingCalls
from bus.runtime.partitions.leader_log import CONFLICTS_MAX, Change, ChangeOutcome
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
    """The only object that commits to the log, as maintenance sees it. To be called on the event loop."""

    @property
    def stopped(self) -> Refused | None:
        """The reason why nothing can be committed any longer."""
        ...

    async def commit_between_appends(self, change: Change) -> ChangeOutcome:
        """Memory has followed the commit when it is answered."""
        ...

    async def housekeep(self, call: Callable[[], T]) -> T:
        """A call that commits nothing and looks through the table's files or versions. Raises `StorageFault`."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    rewritten_bytes: int = 0
    dropped: Dropped = _NOTHING


JobResult = Done | Refused


class MaintenanceJobs:
    """`left_alone`: paths of files that are never rewritten, because they or their neighbours could not be read."""

    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        *,
        calls: BlockingCalls,
        maintenance: Maintenance,
        writer: Writer,
    ) -> None:
        self._name = name
        self._table = table
        self._calls = calls
        self._maintenance = maintenance
        self._clock = maintenance.clock
        self._writer = writer
        self._pace = MaintenancePace(maintenance.throttle)
        self._orphans: frozenset[str] | None = None
        self._orphans_found_ms = 0.0
        self.left_alone: set[str] = set()

    def stop(self) -> None:
        """Stop: files that are being prepared are given up at the next step."""
        self._pace.stop()

    # ------------------------------------------------------------------ rewriting

    async def roll(self, run: Sequence[LogFile], rules: MaintenanceRules) -> JobResult:
        call = functools.partial(
            self._table.rewrites.prepare_roll,
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
            self._table.rewrites.prepare_key_compaction,
            now_ms=self._clock.now_ms(),
            tombstone_retention_ms=rules.tombstone_retention_ms,
            end_offset=end_offset,
            pace=self._pace,
        )
        return await self._rewrite(
            "compaction", call, [f for f in self._table.rewrites.files if f.next_offset <= end_offset]
        )

    async def _rewrite(
        self, job: str, prepare: Callable[[], PreparedFiles | None], files: Sequence[LogFile]
    ) -> JobResult:
        started = time.perf_counter()
        try:
            prepared = await self._maintain(prepare)
        except StorageDamaged as damage:
            self.left_alone.update(file.path for file in files)
            _log.error("%s given up, %s stay as they are: %s", job, _span(files), damage, extra=self._fields())
            return self._refuse(str(damage))
        except (StorageFault, MaintenanceStopped) as fault:
            return self._fail(job, fault)
        if prepared is None:
            return Done()
        swapped = await self.commit_swap(prepared, is_ours=True)
        if isinstance(swapped, Refused):
            _log.warning("%s could not be committed: %s", job, swapped.message, extra=self._fields())
            return swapped
        _log.info(
            "%s: %s became %d with %d bytes in %.0f ms",
            job,
            _span(files),
            prepared.added_count,
            prepared.rewritten_bytes,
            (time.perf_counter() - started) * 1000,
            extra=self._fields(),
        )
        return Done(prepared.rewritten_bytes)

    async def swap(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> SwapResult:
        """Files that another program prepared."""
        started = time.perf_counter()
        try:
            checked = await self._maintain(functools.partial(self._table.rewrites.check_swap, removes, adds, kind))
        except (StorageFault, MaintenanceStopped) as fault:
            return self._fail("swap", fault)
        if isinstance(checked, Refused):
            return checked
        swapped = await self.commit_swap(checked, is_ours=False)
        if isinstance(swapped, FilesSwapped):
            _log.info(
                "swap: %s became %d that were prepared elsewhere, in %.0f ms",
                count_of(len(removes), "file"),
                len(adds),
                (time.perf_counter() - started) * 1000,
                extra=self._fields(),
            )
        return swapped

    async def commit_swap(self, prepared: PreparedFiles, *, is_ours: bool) -> SwapResult:
        """`is_ours`: the new files may be deleted if the swap is refused."""

        def swap(*, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Refused:
            if not is_ours and not {file.path for file in self._table.rewrites.files}.issuperset(prepared.removes):
                # The table would delete the new files.
                message = f"{self._name}: expected live files to replace, found some gone"
                return Refused(ErrorCode.INVALID_REQUEST, message)
            return functools.partial(self._table.rewrites.swap, prepared, leader_epoch=leader_epoch, now_ms=now_ms)

        outcome = await self._writer.commit_between_appends(swap)
        match outcome:
            case Committed(version):
                return FilesSwapped(version)
            case Conflicted():
                return self._refuse(_other_writer(outcome))
            case Refused():
                return outcome

    # ------------------------------------------------------------------ other engines

    async def set_managed(self, wanted: bool) -> JobResult:
        """Keep other Delta engines from writing to the table, or let them. A table that is as wanted gets no
        version."""

        def change(*, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Committed:
            log = self._table.state
            if self._table.is_managed == wanted:
                return Committed(log.version, log.high_watermark)
            return functools.partial(self._table.set_managed, wanted, leader_epoch=leader_epoch, now_ms=now_ms)

        before = self._table.is_managed
        outcome = await self._commit_in_spite_of_others(change)
        if isinstance(outcome, Refused):
            return outcome
        if before != wanted:
            who = "the bus alone" if wanted else "other Delta engines, too,"
            _log.info("upgrade: from now on %s may write to the table", who, extra=self._fields())
        return Done()

    async def _commit_in_spite_of_others(self, change: Change) -> Committed | Refused:
        """Repeat the change after each foreign commit, as often as a leader does."""
        for _ in range(CONFLICTS_MAX):
            outcome = await self._writer.commit_between_appends(change)
            if not isinstance(outcome, Conflicted):
                return outcome
        return self._refuse(f"lost {CONFLICTS_MAX} races for a version")

    # ------------------------------------------------------------------ letting go

    async def delete_records(self, offset: int, *, may_delete: bool) -> DeleteRecordsResult:
        """Repeated after a foreign commit: the wanted log start stays the same."""
        log_start = -1

        def delete(*, leader_epoch: int, now_ms: int) -> Callable[[], CommitOutcome] | Committed | Refused:
            nonlocal log_start
            log = self._table.state
            decided = decide_delete_records(log, offset, may_delete=may_delete)
            if isinstance(decided, Refused):
                return Refused(decided.code, f"{self._name}: {decided.message}")
            log_start = decided
            if log_start == log.log_start:
                return Committed(log.version, log.high_watermark)
            return functools.partial(
                self._table.cleanup.advance_log_start, log_start, leader_epoch=leader_epoch, now_ms=now_ms
            )

        outcome = await self._commit_in_spite_of_others(delete)
        return outcome if isinstance(outcome, Refused) else DeletedRecords(log_start, outcome.version)

    async def retain(self, rules: RetentionRules) -> JobResult:
        started = time.perf_counter()
        retained = decide_retention(self._table.rewrites.files, rules, now_ms=self._clock.now_ms())
        if retained is None:
            return Done()
        result = await self.delete_records(retained.log_start, may_delete=True)
        if isinstance(result, Refused):
            _log.warning("retention could not be committed: %s", result.message, extra=self._fields())
            return result
        _log.info(
            "retention by %s lets go of %s, the log starts at offset %d now, in %.0f ms",
            retained.reason,
            count_of(retained.file_count, "file"),
            result.low_watermark,
            (time.perf_counter() - started) * 1000,
            extra=self._fields(),
        )
        return Done()

    async def clean(self, rules: VersionRules) -> JobResult:
        """Delete versions that are old enough, data files that only they had, and leftovers of crashes."""
        started = time.perf_counter()
        find_orphans = self._orphans is None
        try:
            dropped, found = await self._writer.housekeep(
                functools.partial(self._drop, rules, self._clock.now_ms(), find_orphans=find_orphans)
            )
        except StorageFault as fault:
            return self._fail("cleaning", fault)
        if find_orphans:
            self._orphans, self._orphans_found_ms = found, self._clock.monotonic_ms()
        orphan_count = await self._delete_old_orphans(rules)
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
                (time.perf_counter() - started) * 1000,
                extra=self._fields(),
            )
        return Done(dropped=Dropped(dropped.versions, dropped.data_files + orphan_count, dropped.data_bytes))

    def _drop(self, rules: VersionRules, now_ms: int, *, find_orphans: bool) -> tuple[Dropped, frozenset[str]]:
        """Orphans are looked for once after the opening: what comes later is a commit's under way, or found by the next
        opening."""
        committed_before_ms = now_ms - rules.retention_ms
        if self._table.cleanup.is_checkpoint_needed_to_drop(committed_before_ms=committed_before_ms):
            self._table.cleanup.write_checkpoint()
        dropped = self._table.cleanup.drop_old_versions(
            committed_before_ms=committed_before_ms,
            count_max=rules.count_max,
            removed_before_ms=now_ms - max(rules.file_delete_delay_ms, self._maintenance.version_age_min_ms),
        )
        return dropped, self._table.cleanup.find_orphans() if find_orphans else frozenset()

    async def _delete_old_orphans(self, rules: VersionRules) -> int | Refused:
        """Delete files that were orphans a grace period ago. A few at a time, so that no commit waits for long."""
        waited_ms = self._clock.monotonic_ms() - self._orphans_found_ms
        if not self._orphans or waited_ms < rules.file_delete_delay_ms:
            return 0
        count, left = 0, sorted(self._orphans)
        while left:
            deleted = await self.delete_orphans(frozenset(left[:_ORPHANS_AT_ONCE]))
            if isinstance(deleted, Refused):
                return deleted
            count += deleted
            del left[:_ORPHANS_AT_ONCE]
        self._orphans = frozenset()
        return count

    async def delete_orphans(self, orphans: frozenset[str]) -> int | Refused:
        """Data files that no version named when it was looked for them, if that can be proved: the table may commit a
        version that keeps other leaders out."""
        count = 0

        def delete() -> CommitOutcome:
            nonlocal count
            count = self._table.cleanup.delete_orphans(orphans)
            log = self._table.state
            return Committed(log.version, log.high_watermark)

        outcome = await self._writer.commit_between_appends(lambda *, leader_epoch, now_ms: delete)
        match outcome:
            case Committed():
                return count
            case Conflicted():
                return self._refuse(f"{_other_writer(outcome)}; no orphan was deleted")
            case Refused():
                return outcome

    async def write_checkpoint(self) -> None:
        started = time.perf_counter()
        try:
            await self._writer.housekeep(self._table.cleanup.write_checkpoint)
        except StorageFault as fault:
            self._fail("checkpoint", fault)
        else:
            _log.debug("checkpoint written in %.0f ms", (time.perf_counter() - started) * 1000, extra=self._fields())

    # ------------------------------------------------------------------ failures

    async def _maintain(self, call: Callable[[], T]) -> T:
        def paced() -> T:
            self._pace(0)  # it may have waited for its thread until it is not wanted any more
            return call()

        return await self._calls.maintain(paced)

    def _fail(self, job: str, fault: StorageFault | MaintenanceStopped) -> Refused:
        if not isinstance(fault, MaintenanceStopped) and self._writer.stopped is None:
            _log.warning("%s failed, to be tried again: %s", job, fault, extra=self._fields())
        return self._refuse(str(fault))

    def _refuse(self, reason: str) -> Refused:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name}: {reason}")

    def _fields(self) -> dict[str, object]:
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._table.state.version}


def _other_writer(conflict: Conflicted) -> str:
    return f"version {conflict.version} was committed by another writer ({conflict.operation})"


def _span(files: Sequence[LogFile]) -> str:
    if not files:
        return "0 files"
    size_bytes = sum(file.size_bytes for file in files)
    return (
        f"{count_of(len(files), 'file')} of {size_bytes} bytes, offsets {files[0].base_offset} to "
        f"{files[-1].next_offset - 1},"
    )
