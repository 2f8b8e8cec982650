"""When a partition's maintenance is done: one job that commits at a time, beside the writer.

Theory of operation. A task lives while a job is due: first what an operator asked for, then retention by age, then what
commits have made due. A commit only compares two numbers; the files are looked at when enough new ones have come, and
when the broker's ticker calls, which also reaches partitions without producers. The rules are read for each decision,
so altered configs count from the next one on. A job that fails is due again after a pause: the log is whole without it.
Two things run beside the jobs, since neither commits: checkpoints, so that no long job delays them, and cleaning, so
that it delays no roll, however many files it deletes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bus.descriptions import MaintainedLog
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.partition_log.log_life import (
    Backlog,
    MaintenanceRules,
    decide_internal_compaction,
    decide_key_compaction,
    decide_roll,
    plan_full_roll,
)
from bus.ports import OFFSET_MAX, LogFile, PartitionTable, SwapKind
from bus.runtime.blocking import BlockingCalls
from bus.runtime.logs import request_id
from bus.runtime.partitions.maintenance import (
    DeleteRecordsResult,
    MaintainResult,
    Maintenance,
    MaintenanceAction,
    SwapResult,
)
from bus.runtime.partitions.maintenance_jobs import Done, JobResult, MaintenanceJobs, Writer
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

# The files are looked at after this many new ones, or after new bytes of this share of a full segment.
_LOOK_FILES = 20
_LOOK_SEGMENTS = 4
# A checkpoint also starts a cleanup after this share of the largest number of kept versions.
_CLEAN_SHARE = 10
_CLEAN_VERSIONS_MIN = 100
# A clean shutdown writes a checkpoint if an opening would have to replay more versions than this.
_TAIL_VERSIONS_MAX = 200
REQUESTS_MAX = 100


@dataclass(frozen=True, slots=True)
class _MaintainRequest:
    action: MaintenanceAction
    answer: asyncio.Future[MaintainResult]


@dataclass(frozen=True, slots=True)
class _SwapRequest:
    removes: Sequence[str]
    adds: Sequence[str]
    kind: SwapKind
    answer: asyncio.Future[SwapResult]


class PartitionMaintenance:
    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        *,
        rules: MaintenanceRules,
        calls: BlockingCalls,
        tasks: TaskScope,
        maintenance: Maintenance,
        writer: Writer,
    ) -> None:
        self._name = name
        self._table = table
        self._rules = rules
        self._tasks = tasks
        self._maintenance = maintenance
        self.jobs = MaintenanceJobs(name, table, calls=calls, maintenance=maintenance, writer=writer)
        self._requests: deque[_MaintainRequest | _SwapRequest] = deque()
        self._running: asyncio.Task[None] | None = None
        self._checkpoint: asyncio.Task[None] | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._stopped = writer.stopped
        self._is_age_due = False  # retention
        self._is_clean_due = False
        self._is_look_due = False  # compaction and rolling
        self._look_files = self._look_bytes = 0  # look at the files when this many are live
        self._cleaned_version = self._changed_version = -1
        self._cleaned_ms = self._changed_ms = 0
        self._checkpoint_version = table.state.version

    def configure(self, rules: MaintenanceRules) -> None:
        """Use new rules; maintenance that is under way ends by the old ones."""
        self._rules = rules
        self._cleaned_version = -1
        self._look_files = self._look_bytes = 0

    # ------------------------------------------------------------------ what makes it look

    def look_after_commit(self) -> None:
        """To be called by the writer after each commit; returns at once."""
        if self._stopped is not None:
            return
        if self._table.cleanup.is_checkpoint_due and self._checkpoint is None:
            self._checkpoint = self._tasks.start(self._write_checkpoint(), f"{self._name}/checkpoint")
        if self._is_commit_worth_a_look():
            self._is_look_due = True
            self._wake()

    def look(self) -> None:
        """To be called now and then, whether there were commits or not; returns at once."""
        self._is_age_due = self._is_clean_due = self._is_look_due = True
        self._wake()

    def _is_commit_worth_a_look(self) -> bool:
        state, rules = self._table.state, self._rules
        if rules.is_internal:
            return self._is_internal_compaction_due()
        if rules.rolling is None and rules.compaction is None:
            return False
        segment_bytes = rules.rolling.segment_bytes if rules.rolling is not None else OFFSET_MAX
        self._look_files = min(self._look_files, state.file_count + _LOOK_FILES)
        self._look_bytes = min(self._look_bytes, state.size_bytes + segment_bytes // _LOOK_SEGMENTS)
        return state.file_count >= self._look_files or state.size_bytes >= self._look_bytes

    def _is_internal_compaction_due(self) -> bool:
        if self.jobs.left_alone:
            return False
        unseen = self._table.rewrites.find_backlog()
        unseen_bytes = sum(file.size_bytes for file in unseen)
        return decide_internal_compaction(
            Backlog(len(unseen), unseen_bytes, self._table.state.size_bytes - unseen_bytes)
        )

    def _wake(self) -> None:
        if self._running is None and self._stopped is None:
            self._running = self._tasks.start(self._run(), f"{self._name}/maintenance")

    # ------------------------------------------------------------------ by hand

    def delete_records(self, offset: int) -> asyncio.Future[DeleteRecordsResult]:
        """Beside the job that runs."""
        deletion = self.jobs.delete_records(offset, may_delete=self._rules.may_delete_records)
        return self._tasks.start(deletion, f"{self._name}/delete")

    def maintain(self, action: MaintenanceAction) -> asyncio.Future[MaintainResult]:
        """Behind the job that runs. POLICY_VIOLATION if COMPACT is asked of a log that is not compacted."""
        request = _MaintainRequest(action, asyncio.get_running_loop().create_future())
        is_against_policy = action is MaintenanceAction.COMPACT and not self._rules.is_compacted
        refusal = self._refuse_policy() if is_against_policy else self._put(request)
        if refusal is not None:
            request.answer.set_result(refusal)
        return request.answer

    def swap_files(self, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> asyncio.Future[SwapResult]:
        """Behind the job that runs, so that no other swap comes between the check and the commit."""
        request = _SwapRequest(removes, adds, kind, asyncio.get_running_loop().create_future())
        is_against_policy = kind is SwapKind.LAST_OF_KEYS and not self._rules.is_compacted
        refusal = self._refuse_policy() if is_against_policy else self._put(request)
        if refusal is not None:
            request.answer.set_result(refusal)
        return request.answer

    def _refuse_policy(self) -> Refused:
        return Refused(ErrorCode.POLICY_VIOLATION, f"{self._name}: expected a topic whose cleanup.policy has compact")

    def _put(self, request: _MaintainRequest | _SwapRequest) -> Refused | None:
        if self._stopped is not None:
            return self._stopped
        if len(self._requests) >= REQUESTS_MAX:
            return Refused(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._name}: expected at most {REQUESTS_MAX} requests for maintenance that wait; retry later",
            )
        self._requests.append(request)
        self._wake()
        return None

    async def _serve(self, request: _MaintainRequest | _SwapRequest) -> None:
        result: MaintainedLog | SwapResult
        result = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self._name}: maintenance was interrupted")
        try:
            match request:
                case _SwapRequest(removes, adds, kind):
                    result = await self.jobs.swap(removes, adds, kind)
                case _MaintainRequest(action):
                    result = await self._maintain(action)
        finally:
            if not request.answer.done():
                request.answer.set_result(result)  # type: ignore[arg-type]  # each request has its kind of result

    async def _maintain(self, action: MaintenanceAction) -> MaintainResult:
        before = self._table.state
        done: JobResult
        match action:
            case MaintenanceAction.ROLL:
                done = await self._roll_all()
            case MaintenanceAction.COMPACT:
                done = await self._compact_now()
            case MaintenanceAction.CLEAN:
                done = await self._clean_now()
            case MaintenanceAction.UPGRADE:
                done = await self.jobs.set_managed(self._rules.is_managed)
        if isinstance(done, Refused):
            return done
        after = self._table.state
        return MaintainedLog(
            partition=self._name.partition,
            version=after.version,
            files_before=before.file_count,
            files_after=after.file_count,
            bytes_before=before.size_bytes,
            bytes_after=after.size_bytes,
            rewritten_bytes=done.rewritten_bytes,
            log_start=after.log_start,
            dropped_versions=done.dropped.versions,
            deleted_files=done.dropped.data_files,
            deleted_bytes=done.dropped.data_bytes,
            is_managed=self._table.is_managed,
        )

    async def _roll_all(self) -> JobResult:
        rules, rewritten_bytes = self._rules, 0
        if rules.rolling is None:
            return Done()
        plan = plan_full_roll(
            self._table.rewrites.files,
            rules.rolling,
            compacted_to=self._table.rewrites.compacted_to,
            log_start=self._table.state.log_start,
            left_alone=self.jobs.left_alone,
        )
        for run in plan:
            done = await self.jobs.roll(run, self._rules)
            if isinstance(done, Refused):
                return done
            rewritten_bytes += done.rewritten_bytes
        return Done(rewritten_bytes)

    async def _compact_now(self) -> JobResult:
        if self._is_untouched(self._table.rewrites.files, OFFSET_MAX):
            return Refused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self._name}: compaction reads every file, and there are some that cannot be read",
            )
        end_offset = OFFSET_MAX if self._rules.is_internal else self._compaction_end(is_requested=True)
        return Done() if end_offset is None else await self.jobs.compact(end_offset, self._rules)

    async def _clean_now(self) -> JobResult:
        if self._rules.retention is not None:
            retained = await self.jobs.retain(self._rules.retention)
            if isinstance(retained, Refused):
                return retained
        return await self.jobs.clean(self._rules.versions)

    # ------------------------------------------------------------------ what is due

    async def _run(self) -> None:
        """One job after the other, while any is due."""
        request_id.set("")  # it goes on where the request has long been answered whose commit has begun it
        try:
            while self._stopped is None and (job := self._next_job()) is not None:
                await job
        except Exception:
            _log.exception("maintenance of %s failed", self._name, extra=self._fields())
            self._rest()
        finally:
            self._running = None
            if self._requests and self._stopped is None:
                self._wake()

    def _next_job(self) -> Coroutine[Any, Any, None] | None:
        if self._requests:
            return self._serve(self._requests.popleft())
        if self._resting is not None:
            return None
        if self._is_age_due:
            return self._retain()
        self._wake_cleaning()
        if self._is_look_due:
            return self._next_rewrite()
        return None

    async def _retain(self) -> None:
        self._is_age_due = False
        retention = self._rules.retention
        if retention is not None and isinstance(await self.jobs.retain(retention), Refused):
            self._is_age_due = True
            self._rest()

    def _wake_cleaning(self) -> None:
        if self._is_clean_due and self._cleaning is None:
            self._is_clean_due = False
            if not self._is_clean():
                self._cleaning = self._tasks.start(self._clean(), f"{self._name}/cleaning")

    async def _clean(self) -> None:
        request_id.set("")
        version, now_ms = self._table.state.version, self._maintenance.clock.now_ms()
        if version != self._changed_version:
            self._changed_version, self._changed_ms = version, now_ms
        done: JobResult | None = None
        try:
            done = await self.jobs.clean(self._rules.versions)
        finally:
            self._cleaning = None
            if isinstance(done, Done):
                self._cleaned_version, self._cleaned_ms = version, now_ms
                self._wake()
            else:
                self._is_clean_due = True
                self._rest()

    def _is_clean(self) -> bool:
        """True if nothing has changed since everything came of age."""
        versions = self._rules.versions
        age_ms = max(versions.retention_ms, versions.file_delete_delay_ms) + versions.file_delete_delay_ms
        return self._cleaned_version == self._table.state.version and self._cleaned_ms - self._changed_ms > age_ms

    def _next_rewrite(self) -> Coroutine[Any, Any, None] | None:
        files, rules = self._table.rewrites.files, self._rules
        end_offset = self._compaction_end()
        if end_offset is not None:
            return self._try(self.jobs.compact(end_offset, rules))
        if rules.rolling is not None:
            run = decide_roll(
                files,
                rules.rolling,
                compacted_to=self._table.rewrites.compacted_to,
                now_ms=self._maintenance.clock.now_ms(),
                left_alone=self.jobs.left_alone,
            )
            if run:
                return self._try(self.jobs.roll(run, rules))
        self._is_look_due = False
        self._look_files = self._look_bytes = OFFSET_MAX  # the next commit sets them
        return None

    def _compaction_end(self, *, is_requested: bool = False) -> int | None:
        rules, files = self._rules, self._table.rewrites.files
        if rules.is_internal:
            return OFFSET_MAX if self._is_internal_compaction_due() else None
        if rules.compaction is None:
            return None
        end_offset = decide_key_compaction(
            files,
            unseen_count=len(self._table.rewrites.find_backlog()),
            rules=rules.compaction,
            now_ms=self._maintenance.clock.now_ms(),
            is_requested=is_requested,
        )
        return None if end_offset is None or self._is_untouched(files, end_offset) else end_offset

    def _is_untouched(self, files: Sequence[LogFile], end_offset: int) -> bool:
        """Compaction would read a file that cannot be read."""
        left_alone = self.jobs.left_alone
        return bool(left_alone) and any(f.path in left_alone for f in files if f.next_offset <= end_offset)

    async def _try(self, job: Coroutine[Any, Any, JobResult]) -> None:
        left_alone_count = len(self.jobs.left_alone)
        if isinstance(await job, Refused) and len(self.jobs.left_alone) == left_alone_count:
            self._rest()

    def _rest(self) -> None:
        """Rest after a failure: due work stays due, and is tried again later."""
        if self._resting is None and self._stopped is None:
            loop = asyncio.get_running_loop()
            self._resting = loop.call_later(self._maintenance.backoff_s, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._is_look_due = True
        self._wake()

    # ------------------------------------------------------------------ checkpoints

    async def _write_checkpoint(self) -> None:
        try:
            await self.jobs.write_checkpoint()
        finally:
            self._checkpoint = None
        version = self._checkpoint_version = self._table.state.version
        share = max(_CLEAN_VERSIONS_MIN, self._rules.versions.count_max // _CLEAN_SHARE)
        if version - self._cleaned_version >= share:
            self._is_clean_due = True
            self._wake()

    # ------------------------------------------------------------------ the end

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """Without those that were cancelled before they began, which could not say that they are over."""
        return [task for task in (self._running, self._checkpoint, self._cleaning) if task and not task.done()]

    async def finish(self) -> None:
        """Wait for running maintenance, and for what it makes due. May be cancelled."""
        while self.under_way:
            await asyncio.wait(self.under_way)

    def stop(self, reason: Refused) -> None:
        """Begin nothing more, and give up what is being prepared."""
        self._stopped = reason
        self.jobs.stop()
        if self._resting is not None:
            self._resting.cancel()
        while self._requests:
            request = self._requests.popleft()
            if not request.answer.done():
                request.answer.set_result(reason)

    async def join(self) -> None:
        """Wait, after `stop`, until no maintenance touches the table."""
        if self.under_way:
            await asyncio.wait(self.under_way)

    async def write_last_checkpoint(self) -> None:
        """After `join`, if the next opening would have to replay many versions."""
        if self._table.state.version - self._checkpoint_version >= _TAIL_VERSIONS_MAX:
            await self.jobs.write_checkpoint()

    def _fields(self) -> dict[str, object]:
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._table.state.version}
