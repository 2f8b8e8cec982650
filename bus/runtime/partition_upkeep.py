"""What a partition's table needs beside its commits: checkpoints, key compaction, and the removal of what was replaced.

Theory of operation. All of it is done in the thread for maintenance, while appends and reads go on. A checkpoint is
written when the table says that it is due. Compaction writes its files there too, and then has them swapped in by the
partition's writer, between two appends: only the writer commits. What was replaced is removed by a timer that runs
while the table changes, and once more after that. Everything here may fail: the log is whole without it, and a later
commit makes it due again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.partition_log.cleaning import Backlog, CleaningRules, decide_compaction
from bus.ports import Clock, PartitionTable, PreparedFiles
from bus.runtime.blocking import BlockingCalls
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)


class PartitionUpkeep:
    """`on_prepared` is called once there is something for the writer to take."""

    def __init__(
        self,
        name: TopicPartition,
        table: PartitionTable,
        *,
        clock: Clock,
        calls: BlockingCalls,
        tasks: TaskScope,
        on_prepared: Callable[[], None],
    ) -> None:
        self._name = name
        self._table = table
        self._clock = clock
        self._calls = calls
        self._tasks = tasks
        self._on_prepared = on_prepared
        self._rules: CleaningRules | None = None
        self._checkpoint: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[None] | None = None
        self._prepared: PreparedFiles | None = None
        self._failed_file_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cleaned_version = -1
        self._is_stopped = False

    def configure(self, rules: CleaningRules | None) -> None:
        """`rules` None: nothing is compacted, and nothing removed."""
        self._rules = rules
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._start_timer()

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True
        self._prepared = None
        if self._timer is not None:
            self._timer.cancel()

    def look_after_commit(self) -> None:
        """Begin what the commit has made due. To be called by the writer; returns at once."""
        if self._table.is_checkpoint_due and self._checkpoint is None:
            self._checkpoint = self._tasks.start(self._write_checkpoint(), f"{self._name}/checkpoint")
        if self._rules is not None:
            if self._compaction is None and self._prepared is None and self._is_compaction_due():
                self._compaction = self._tasks.start(self._compact(self._rules), f"{self._name}/compaction")
            self._start_timer()

    async def wait_for_checkpoint(self) -> None:
        """The table does not reload beside one."""
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])

    # ------------------------------------------------------------------ compaction

    @property
    def has_prepared(self) -> bool:
        return self._prepared is not None

    def take_prepared(self) -> PreparedFiles | None:
        prepared, self._prepared = self._prepared, None
        return prepared

    def compaction_failed(self) -> None:
        """What was taken could not be swapped in."""
        self._failed_file_count = self._table.key_compaction_backlog

    def _is_compaction_due(self) -> bool:
        backlog_bytes = self._table.key_compaction_backlog_bytes
        backlog = Backlog(
            self._table.key_compaction_backlog, backlog_bytes, self._table.state.size_bytes - backlog_bytes
        )
        return decide_compaction(backlog, failed_file_count=self._failed_file_count)

    async def _compact(self, rules: CleaningRules) -> None:
        started = time.monotonic()
        file_count = self._table.key_compaction_backlog
        call = functools.partial(
            self._table.prepare_key_compaction,
            now_ms=self._clock.now_ms(),
            tombstone_retention_ms=rules.tombstone_retention_ms,
        )
        try:
            prepared = await self._calls.maintain(call)
        except StorageFault as fault:
            _log.warning("compaction failed: %s", fault, extra=self._fields())
            self._failed_file_count = file_count
            return
        finally:
            self._compaction = None
        self._failed_file_count = 0
        if prepared is not None and not self._is_stopped:
            _log.debug(
                "%d files compacted to %d with %d bytes in %.0f ms",
                len(prepared.removes),
                prepared.added_count,
                prepared.rewritten_bytes,
                (time.monotonic() - started) * 1000,
                extra=self._fields(),
            )
            self._prepared = prepared
            self._on_prepared()

    # ------------------------------------------------------------------ checkpoints and removal

    async def _write_checkpoint(self) -> None:
        started = time.monotonic()
        try:
            if self._rules is not None:
                # A checkpoint may leave out removals as old as this: the files must have gone before.
                await self._delete_removed_files(self._rules)
            await self._calls.maintain(self._table.write_checkpoint)
            _log.debug("checkpoint written in %.0f ms", (time.monotonic() - started) * 1000, extra=self._fields())
        except StorageFault as fault:
            _log.warning("checkpoint failed: %s", fault, extra=self._fields())
        finally:
            self._checkpoint = None

    def _start_timer(self) -> None:
        if self._timer is None and self._rules is not None and not self._is_stopped:
            delay_s = self._rules.file_delete_delay_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start_cleaning)

    def _start_cleaning(self) -> None:
        if self._rules is not None:
            self._tasks.start(self._clean(self._rules), f"{self._name}/cleaning")

    async def _clean(self, rules: CleaningRules) -> None:
        version = self._table.state.version
        now_ms = self._clock.now_ms()
        drop_versions = functools.partial(
            self._table.drop_old_versions,
            committed_before_ms=now_ms - rules.version_retention_ms,
            count_max=rules.version_count_max,
        )
        try:
            deleted = await self._delete_removed_files(rules)
            dropped = await self._calls.maintain(drop_versions)
            if deleted or dropped:
                _log.debug("%d data files and %d versions removed", deleted, dropped, extra=self._fields())
        except StorageFault as fault:
            _log.warning("cleaning failed: %s", fault, extra=self._fields())
        finally:
            self._timer = None
            if version != self._cleaned_version:  # what was replaced since the last time is not old enough yet
                self._start_timer()
            self._cleaned_version = version

    async def _delete_removed_files(self, rules: CleaningRules) -> int:
        removed_before_ms = self._clock.now_ms() - rules.file_delete_delay_ms
        return await self._calls.maintain(
            functools.partial(self._table.delete_removed_files, removed_before_ms=removed_before_ms)
        )

    def _fields(self) -> dict[str, object]:
        return {"topic": self._name.topic, "partition": self._name.partition, "version": self._table.state.version}
