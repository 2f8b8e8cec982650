"""The cluster's metadata on its controller: what the log says, and the one way in which it changes.

Theory of operation. The state is `__cluster_metadata` replayed. `change` decides one command after another under one
lock, appends all their records as one commit, applies them, tells the followers, and only then answers. Guards two
promises. What has begun to change the metadata runs to its end in a task of the broker's (`tasks`), even if its caller
is cancelled: a caller that goes away while the commit is in a thread would leave a record in the log that memory never
learns of. And memory that may be wrong, after any failure, is read again before anything is decided on it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from bus.cluster_metadata.change_descriptions import describe_change
from bus.cluster_metadata.cluster import EMPTY_CLUSTER, ClusterState, apply_all, replay_cluster
from bus.cluster_metadata.cluster_records import ClusterRecord, decode_record, encode_record
from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.model import Step
from bus.partition_log.maintenance import MaintenanceRules
from bus.ports import Clock, CommitOutcome, Committed, LogState, Storage, TypedLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_maintenance import NAME, MetadataMaintenance
from bus.runtime.partitions.leader_log import Change, ChangeOutcome, LeaderLog
from bus.runtime.partitions.maintenance import Maintenance
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

_LOGGED_CHANGES_MAX = 100

T = TypeVar("T")
Decide = Callable[[ClusterState], Step[ClusterRecord, T | Refused]]
_HOW_TO_MEND = "with the broker down, `bus log repair __cluster_metadata` says what can be mended"


class MetadataLog:
    """`open` first. `end` before the threads are gone.

    `tasks` are what has begun to change the metadata, with all that belongs to it: they end before this log does.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        rules: MaintenanceRules,
        clock: Clock,
        calls: BlockingCalls,
        maintenance: Maintenance,
    ) -> None:
        self._storage = storage
        self._followers: list[Callable[[ClusterState], None]] = []
        self._on_fenced: list[Callable[[Refused], None]] = []
        self._rules = rules
        self._shared_maintenance = maintenance
        self._clock = clock
        self._calls = calls
        self._cluster: ClusterState = EMPTY_CLUSTER
        self.tasks = TaskScope("metadata")
        self._ended: Refused | None = None
        self._is_open = False

    async def open(self) -> None:
        """Raises `StorageFault` if the log cannot be read, or contradicts itself."""
        self._log: TypedLog = await self._calls.control(self._storage.open_metadata)
        self._leader = LeaderLog(
            NAME,
            self._log,
            title="cluster metadata",
            way_out=_HOW_TO_MEND,
            leader_epoch=self._log.state.leader_epoch,
            fenced=ErrorCode.NOT_CONTROLLER,
            reload_in=self._calls.control,
            housekeep_in=self._calls.housekeep,
            on_stopped=self._step_down,
        )
        await self.raise_epoch()
        self.maintenance = MetadataMaintenance(
            self._log,
            self,
            rules=self._rules,
            calls=self._calls,
            tasks=self.tasks,
            maintenance=self._shared_maintenance,
        )
        self._is_open = True

    async def raise_epoch(self) -> None:
        """Change the metadata from now on under a higher epoch than any that the log has, as it was read last."""
        self._leader.lead(self._log.state.leader_epoch + 1)
        self._cluster = await self._replay()

    @property
    def cluster(self) -> ClusterState:
        return self._cluster

    @property
    def state(self) -> LogState:
        """Of the log itself."""
        return self._log.state

    @property
    def leader_epoch(self) -> int:
        return self._leader.leader_epoch

    @property
    def stopped(self) -> Refused | None:
        """Why nothing is changed any more."""
        return self._ended or self._leader.stopped

    def add_follower(self, follow: Callable[[ClusterState], None]) -> None:
        """`follow` is called with the state as it is, at once, and from then on with each newer one before anything is
        decided on it: after a commit, and where the log says something else than memory did. It must not fail."""
        self._followers.append(follow)
        follow(self._cluster)

    def on_fenced(self, step_down: Callable[[Refused], None]) -> None:
        """`step_down` is called when another broker is the controller from now on; this one changes nothing then."""
        self._on_fenced.append(step_down)

    async def change(self, decisions: Sequence[Decide[T]]) -> list[T | Refused]:
        """Decide, append once, apply, answer; all or nothing for each decision that is not refused."""
        return await self.tasks.finish(self._change(decisions), "change")

    async def look_ahead(self, decisions: Sequence[Decide[T]]) -> list[Step[ClusterRecord, T | Refused]]:
        """What `change` would decide now, on memory that the log has confirmed; nothing is changed."""
        return await self.tasks.finish(self._look_ahead(decisions), "look-ahead")

    async def _look_ahead(self, decisions: Sequence[Decide[T]]) -> list[Step[ClusterRecord, T | Refused]]:
        async with self._leader.slot:
            steps, _ = await self._decide(decisions)
            _log_refusals([step.response for step in steps])
            return steps

    async def end(self) -> None:
        """Wait until what has begun is over, and refuse what comes from then on."""
        if self._is_open:
            await self.maintenance.end()
        await self.tasks.join()
        self._ended = Refused(ErrorCode.NOT_CONTROLLER, "the broker is shutting down")

    async def commit_between_appends(self, change: Change) -> ChangeOutcome:
        """For maintenance of the log: a commit that does not change the state of the cluster."""
        return await self.tasks.finish(self._commit_between_appends(change), "maintenance")

    async def _commit_between_appends(self, change: Change) -> ChangeOutcome:
        async with self._leader.slot:
            refused = await self._check_ready()
            if refused is not None:
                return refused
            decided = change(leader_epoch=self.leader_epoch, now_ms=self._clock.now_ms())
            outcome = await self._commit(decided) if callable(decided) else decided
        self.maintenance.look_after_commit()
        return outcome

    async def housekeep(self, call: Callable[[], T]) -> T:
        """See `LeaderLog.housekeep`."""
        return await self._leader.housekeep(call)

    def _step_down(self, reason: Refused) -> None:
        if reason.code is ErrorCode.NOT_CONTROLLER:
            for step_down in self._on_fenced:
                step_down(reason)
        elif self._is_open:
            self.maintenance.stop(reason)

    async def _change(self, decisions: Sequence[Decide[T]]) -> list[T | Refused]:
        async with self._leader.slot:
            steps, after = await self._decide(decisions)
            answers = [step.response for step in steps]
            records = [record for step in steps for record in step.records]
            if records:
                failure = await self._append(records, after)
                if failure is not None:
                    return [answer if isinstance(answer, Refused) else failure for answer in answers]
            _log_refusals(answers)
            return answers

    async def _decide(
        self, decisions: Sequence[Decide[T]]
    ) -> tuple[list[Step[ClusterRecord, T | Refused]], ClusterState]:
        """One after another, each on what those before it change; and the state behind all of them."""
        refused = await self._check_ready()
        state = self._cluster
        if refused is not None:
            return [Step(refused) for _ in decisions], state
        steps = []
        for decide in decisions:
            steps.append(decide(state))
            state = apply_all(state, steps[-1].records)
        return steps, state

    async def _check_ready(self) -> Refused | None:
        """Why nothing can be decided now; memory is what the log says if it returns None."""
        if self.stopped is None and self._leader.is_reload_due:
            await self._reload()
        return self._ended or self._leader.refuse_until_reloaded()

    async def _append(self, records: Sequence[ClusterRecord], after: ClusterState) -> Refused | None:
        """Commit the records; then memory is `after`."""
        rows = [encode_record(record) for record in records]
        for row in rows:
            decode_record(row)  # what could not be read back would keep the root from starting
        call = functools.partial(self._log.append, rows, leader_epoch=self.leader_epoch, now_ms=self._clock.now_ms())
        committed = await self._commit(call)
        if not isinstance(committed, Committed):
            return committed if isinstance(committed, Refused) else self._leader.refuse(str(committed))
        _log_changes(records)
        self._take(after)
        self.maintenance.look_after_commit()
        return None

    def _take(self, state: ClusterState) -> None:
        self._cluster = state
        for follow in self._followers:
            follow(state)

    async def _commit(self, call: Callable[[], CommitOutcome]) -> ChangeOutcome:
        """After anything but a commit memory is what the log says, or the log is read before anything else is done."""
        outcome = await self._leader.commit(call, self._calls.control)
        if self._leader.is_reload_due:
            await self._reload()
        return outcome if isinstance(outcome, Committed) else self._leader.stopped or outcome

    async def _reload(self) -> None:
        """Memory and log may disagree: take what the log says, and serve what it says."""
        log = await self._leader.reload()
        if log is None:
            return
        try:
            state = await self._replay()
        except StorageFault as fault:
            _log.error("the cluster metadata cannot be read again for now: %s", fault)
            return
        self._leader.is_reload_due = False
        self._take(state)

    async def _replay(self) -> ClusterState:
        def replay() -> ClusterState:
            try:
                return replay_cluster(self._log.replay(), first_offset=self._log.state.log_start)
            except ValueError as error:
                raise StorageDamaged(f"{error}; {_HOW_TO_MEND}") from error

        return await self._calls.control(replay)


def _log_changes(records: Sequence[ClusterRecord]) -> None:
    """One change may be of thousands of topics: the first ones are named."""
    lines = [line for record in records if (line := describe_change(record)) is not None]
    for line in lines[:_LOGGED_CHANGES_MAX]:
        _log.info("%s", line)
    if len(lines) > _LOGGED_CHANGES_MAX:
        _log.info("%d more changes of the same call", len(lines) - _LOGGED_CHANGES_MAX)


def _log_refusals(answers: Sequence[object]) -> None:
    refusals = [answer for answer in answers if isinstance(answer, Refused)]
    if refusals:
        first = f"{refusals[0].code.name}: {refusals[0].message}"
        _log.info("refused: %d of %d, the first one with %s", len(refusals), len(answers), first)
