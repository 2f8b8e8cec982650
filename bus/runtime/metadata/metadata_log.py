"""The cluster's metadata on one broker: what the log says and, on the controller, the one way in which it changes.

Theory of operation. The state is `__cluster_metadata` replayed. A broker follows the log until it is elected: then it
leads it, behind a fence, and is the controller until another one is. `change` decides one command after another under
one lock, appends all their records as one commit, applies them, tells the followers, and only then answers. Guards two
promises. What has begun to change the metadata runs to its end in a task of the broker's (`tasks`), even if its caller
is cancelled: a caller that goes away while the commit is in a thread would leave a record in the log that memory never
learns of. And memory that may be wrong, after any failure, is read again before anything is decided on it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import apply_all, decode_record, encode_record, replay_cluster
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, ElectedController
from bus.errors import ErrorCode, NotController, Refused, StorageDamaged, StorageFault
from bus.model import BrokerEndpoint, Step
from bus.partition_log.log_life import MaintenanceRules
from bus.ports import Clock, CommitOutcome, Committed, LogState, Storage, TypedLog
from bus.runtime.blocking import BlockingCalls
from bus.runtime.metadata.metadata_maintenance import NAME, MetadataMaintenance
from bus.runtime.partitions.leader_log import Change, ChangeOutcome, LeaderLog
from bus.runtime.partitions.maintenance import Maintenance
from bus.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)
T = TypeVar("T")

_LOGGED_CHANGES_MAX = 100

Decide = Callable[[ClusterState], Step[ClusterRecord, T | Refused]]
_FOLLOWING = Refused(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
_OTHER_ELECTED = Refused(ErrorCode.NOT_CONTROLLER, "another broker was elected meanwhile")
_HOW_TO_MEND = "with the broker down, `bus log repair __cluster_metadata` says what can be mended"


@dataclass(frozen=True, slots=True)
class Moment:
    monotonic_ms: float
    wall_ms: int


_NEVER = Moment(-math.inf, 0)


class MetadataLog:
    """`open` first. `end` before the threads are gone.

    `tasks` are what has begun to change the metadata, with all that belongs to it: they end before this log does.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        broker_id: int,
        rules: MaintenanceRules,
        clock: Clock,
        calls: BlockingCalls,
        maintenance: Maintenance,
    ) -> None:
        self._storage = storage
        self._broker_id = broker_id
        self._followers: list[Callable[[ClusterState], None]] = []
        self._rules = rules
        self._shared_maintenance = maintenance
        self._clock = clock
        self._calls = calls
        self._cluster: ClusterState = EMPTY_CLUSTER
        self._applied = 0
        self._waiting: dict[asyncio.Event, int] = {}  # the offset that each waits for
        self._confirmed = _NEVER
        self.tasks = TaskScope("metadata")
        self._ended: Refused | None = None
        self._is_controller = False
        self.maintenance: MetadataMaintenance | None = None  # None before this broker is elected for the first time

    async def open(self) -> None:
        """Open the log as a follower. Raises `StorageFault` if the log cannot be read, or contradicts itself."""
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
            on_stopped=self._on_stopped,
        )
        self._leader.stopped = _FOLLOWING
        self._cluster, self._applied = await self._calls.control(self._replay)

    # ------------------------------------------------------------------ following

    @property
    def controller(self) -> BrokerEndpoint | None:
        """The controller's endpoint according to the log as followed so far; None while none is known."""
        elected = self._cluster.controller
        broker = None if elected is None else self._cluster.brokers.get(elected.broker_id)
        return None if broker is None else broker.endpoint

    @property
    def is_leading(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._is_controller and self._ended is None

    @property
    def applied_offset(self) -> int:
        """One past the last record that is in `cluster`."""
        return self._applied

    async def follow(self) -> None:
        """Apply what other brokers have committed. Raises `StorageFault`."""
        await self.tasks.finish(self._follow(), "follow")

    async def _follow(self) -> None:
        async with self._leader.slot:
            if not self.is_leading and self._ended is None:
                await self._read_on(self._log.follow)

    async def _read_on(self, catch_up: Callable[[], LogState]) -> None:
        """Apply the records behind those that are known."""

        def read() -> tuple[ClusterState, int] | None:
            is_known = catch_up().high_watermark == self._applied
            return None if is_known else self._replay(self._cluster, self._applied)

        began = self._now()
        found = await self._calls.control(read)
        if found is not None:
            self._take(*found)
        self._confirmed = began

    @property
    def confirmed(self) -> Moment:
        """The start of the last look at the log that found `cluster` up to date."""
        return self._confirmed

    async def confirm(self) -> None:
        """Look at the log, and apply new records. Raises `StorageFault`. Waits for a change under way only if the log
        has more than `cluster`: other brokers may act on it, long before a slow disk lets the change end here.
        """
        began = self._now()
        is_alone = self._cluster.is_alone(self._broker_id)  # no other broker acts on anything
        is_last = await self._calls.read(self._log.is_last if is_alone else self._log.is_at_end)
        # Else the log was read on meanwhile, or is: what it says is not in `cluster` yet.
        if is_last and self._log.state.high_watermark == self._applied:
            self._confirmed = began
        elif not self.is_leading:
            await self.follow()
        else:
            await self.check_leading()

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    async def wait_until_applied(self, offset: int) -> None:
        """Wait until all records below `offset` are in `cluster`."""
        event = asyncio.Event()
        while self._applied < offset:
            self._waiting[event] = offset
            try:
                await event.wait()
            finally:
                del self._waiting[event]

    # ------------------------------------------------------------------ being the controller

    async def elect(self, decide: Decide[T], *, instead_of: ElectedController | None) -> T | Refused:
        """Lead the log from now on, under a higher epoch than any that it has, and commit what `decide` decides on its
        last state. A refusal: another controller than `instead_of` was elected, or the log cannot be written."""
        return await self.tasks.finish(self._elect(decide, instead_of), "elect")

    async def _elect(self, decide: Decide[T], instead_of: ElectedController | None) -> T | Refused:
        async with self._leader.slot:
            if self._ended is not None or self.is_leading:
                return self._ended or Refused(ErrorCode.INVALID_REQUEST, "this broker is the controller already")
            await self._read_on(self._log.follow)
            if self._cluster.controller != instead_of:
                return _OTHER_ELECTED
            # A fence, unless no other broker can be at work on this root.
            fence = not self._cluster.is_alone(self._broker_id)
            epoch = self._log.state.leader_epoch + 1
            refused = await self._leader.lead(epoch, now_ms=self._clock.now_ms(), fence=fence)
            if refused is not None:
                return refused
            answer: T | Refused = _FOLLOWING
            try:
                answer = await self._begin_to_lead(decide, instead_of)
            finally:
                if isinstance(answer, Refused):  # or it raised: a decision requires an election
                    self._leader.end(_FOLLOWING)
            return answer

    async def _begin_to_lead(self, decide: Decide[T], instead_of: ElectedController | None) -> T | Refused:
        """Behind the fence."""
        await self._read_on(lambda: self._log.state)
        if self._cluster.controller != instead_of:
            return _OTHER_ELECTED
        (step,), after = await self._decide([decide])
        self._is_controller = True
        self.maintenance = MetadataMaintenance(
            self._log,
            self,
            rules=self._rules,
            calls=self._calls,
            tasks=self.tasks,
            maintenance=self._shared_maintenance,
        )
        failure = await self._append(step.records, after) if step.records else None
        return failure or step.response

    async def check_leading(self) -> None:
        """Step down if another broker was elected meanwhile. Raises `StorageFault` if that cannot be told."""
        fault = await self.tasks.finish(self._find_fault_of_lead(), "check")
        if fault is not None:
            raise fault

    async def _find_fault_of_lead(self) -> StorageFault | None:
        """A value, since the caller may have gone: then the next one finds out."""
        try:
            return await self._check_leading()
        except StorageFault as fault:
            return fault

    async def _check_leading(self) -> StorageFault | None:
        async with self._leader.slot:
            if not self.is_leading:
                return None
            began = self._now()
            if self._leader.is_reload_due or not await self._calls.control(self._log.is_at_end):
                await self._reload()
            if not self.is_leading:
                return None
            if self._leader.is_reload_due:
                return StorageFault("the cluster metadata could not be read again after a fault")
            self._confirmed = began
            return None

    def check_is_last(self) -> None:
        """Check, in a thread, that the log has no record that this broker does not know. Raises `StorageFault` if it
        may have some: another broker may be the controller."""
        if not self._log.is_last():
            raise StorageFault("the cluster metadata have changed meanwhile; retry later")

    @property
    def cluster(self) -> ClusterState:
        return self._cluster

    @property
    def state(self) -> LogState:
        """The state of the log itself."""
        return self._log.state

    @property
    def leader_epoch(self) -> int:
        return self._leader.leader_epoch

    @property
    def stopped(self) -> Refused | None:
        """The reason why the metadata can no longer be changed."""
        return self._ended or self._leader.stopped

    def add_follower(self, follow: Callable[[ClusterState], None]) -> None:
        """`follow` is called with the state as it is, at once, and from then on with each newer one before anything is
        decided on it: after a commit, and where the log says something else than memory did. It must not fail."""
        self._followers.append(follow)
        follow(self._cluster)

    async def change(self, decisions: Sequence[Decide[T]]) -> list[T | Refused]:
        """Decide, append once, apply, answer; all or nothing for each decision that is not refused."""
        return await self.tasks.finish(self._change(decisions), "change")

    async def look_ahead(self, decisions: Sequence[Decide[T]]) -> list[Step[ClusterRecord, T | Refused]]:
        """Return what `change` would decide now, on memory that the log has confirmed; nothing is changed."""
        return await self.tasks.finish(self._look_ahead(decisions), "look-ahead")

    async def _look_ahead(self, decisions: Sequence[Decide[T]]) -> list[Step[ClusterRecord, T | Refused]]:
        async with self._leader.slot:
            steps, _ = await self._decide(decisions)
            _log_refusals([step.response for step in steps])
            return steps

    def stop(self, reason: Refused) -> None:
        """Change nothing, and follow no other broker, from now on."""
        self._ended = reason
        self._leader.end(reason)

    async def end(self) -> None:
        """Wait until running changes are over, and refuse later ones."""
        if self.maintenance is not None:
            await self.maintenance.end()
        await self.tasks.join()
        self._ended = self._ended or Refused(ErrorCode.NOT_CONTROLLER, "the broker is shutting down")

    async def commit_between_appends(self, change: Change) -> ChangeOutcome:
        """Commit a change of the log that does not change the state of the cluster, for maintenance."""
        return await self.tasks.finish(self._commit_between_appends(change), "maintenance")

    async def _commit_between_appends(self, change: Change) -> ChangeOutcome:
        async with self._leader.slot:
            if not self.is_leading:
                return self._ended or self._leader.stopped or _FOLLOWING
            refused = await self._check_ready()
            if refused is not None:
                return refused
            decided = change(leader_epoch=self.leader_epoch, now_ms=self._clock.now_ms())
            outcome = await self._commit(decided) if callable(decided) else decided
            if isinstance(outcome, Committed):
                self._note_applied(outcome.high_watermark)  # a snapshot says what memory has
        self._look_after_commit()
        return outcome

    async def housekeep(self, call: Callable[[], T]) -> T:
        """See `LeaderLog.housekeep`."""
        return await self._leader.housekeep(call)

    def _on_stopped(self, reason: Refused) -> None:
        self._is_controller = False
        self._confirmed = _NEVER  # perhaps another broker was elected, and has moved what this one leads
        if self.maintenance is not None:
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
            step = decide(state)
            steps.append(step)
            if step.records:
                state = apply_all(state, step.records)
        return steps, state

    async def _check_ready(self) -> Refused | None:
        """Return why nothing can be decided now; if it returns None, memory equals the log. Raises `NotController`."""
        if self.stopped is None and self._leader.is_reload_due:
            await self._reload()
        self.check_is_controller()
        return self._ended or self._leader.refuse_until_reloaded()

    def check_is_controller(self) -> None:
        """Raises `NotController`, unless this broker is the controller or ends."""
        stopped = self._leader.stopped
        if self._ended is None and stopped is not None and stopped.code is ErrorCode.NOT_CONTROLLER:
            raise NotController(stopped.message)

    async def _append(self, records: Sequence[ClusterRecord], after: ClusterState) -> Refused | None:
        """Commit the records; then memory is `after`."""
        rows = [encode_record(record) for record in records]
        for row in rows:
            decode_record(row)  # an unreadable record would keep the root from starting
        call = functools.partial(self._log.append, rows, leader_epoch=self.leader_epoch, now_ms=self._clock.now_ms())
        committed = await self._commit(call)
        if not isinstance(committed, Committed):
            return committed if isinstance(committed, Refused) else self._leader.refuse(str(committed))
        _log_changes(records)
        self._take(after, committed.high_watermark)
        self._look_after_commit()
        return None

    def _look_after_commit(self) -> None:
        if self.maintenance is not None:
            self.maintenance.look_after_commit()

    def _take(self, state: ClusterState, applied: int) -> None:
        self._cluster, self._applied = state, applied
        for follow in self._followers:
            follow(state)
        self._note_applied(applied)

    def _note_applied(self, applied: int) -> None:
        self._applied = applied
        for event, offset in self._waiting.items():
            if offset <= applied:
                event.set()

    async def _commit(self, call: Callable[[], CommitOutcome]) -> ChangeOutcome:
        """Commit. After anything but a commit, memory equals the log, or the log is read before anything else is
        done."""
        outcome = await self._leader.commit(call, self._calls.control)
        if self._leader.is_reload_due:
            await self._reload()
        return outcome if isinstance(outcome, Committed) else self._leader.stopped or outcome

    async def _reload(self) -> None:
        """Read the log after memory and log may have diverged, and serve what it says."""
        log = await self._leader.reload()
        if log is None:
            return
        try:
            cluster, applied = await self._calls.control(self._replay)
        except StorageFault as fault:
            _log.error("the cluster metadata cannot be read again for now: %s", fault)
            return
        self._leader.is_reload_due = False
        self._take(cluster, applied)

    def _replay(self, known: ClusterState = EMPTY_CLUSTER, offset: int = 0) -> tuple[ClusterState, int]:
        """Replay, in a thread, the log as it was read last; return the state and one past the last record. `known` has
        the records below `offset`."""
        log = self._log.state
        if log.log_start > offset:  # a snapshot replaces the deleted records
            known, offset = EMPTY_CLUSTER, log.log_start
        try:
            return replay_cluster(self._log.replay(offset), first_offset=offset, state=known), log.high_watermark
        except ValueError as error:
            raise StorageDamaged(f"{error}; {_HOW_TO_MEND}") from error


def _log_changes(records: Sequence[ClusterRecord]) -> None:
    """One change may be of thousands of topics: the first ones are named."""
    lines = [line for record in records if (line := record.describe()) is not None]
    for line in lines[:_LOGGED_CHANGES_MAX]:
        _log.info("%s", line)
    if len(lines) > _LOGGED_CHANGES_MAX:
        _log.info("%d more changes of the same call", len(lines) - _LOGGED_CHANGES_MAX)


def _log_refusals(answers: Sequence[object]) -> None:
    refusals = [answer for answer in answers if isinstance(answer, Refused)]
    if refusals:
        first = f"{refusals[0].code.name}: {refusals[0].message}"
        _log.info("refused: %d of %d, the first one with %s", len(refusals), len(answers), first)


PROOF_MS = 1_000


class LeadershipProof:
    """Proof that this broker still leads what it answers for.

    A broker that stood still may have been fenced meanwhile, and others lead its partitions. It cannot commit, since
    their fences are in the logs; but it could answer from memory, with an end of the log or a committed offset of
    yesterday. Guards two promises. What a broker answers as a leader was decided on cluster metadata that were the
    last ones after it was asked, or not longer than `PROOF_MS` before. The broker's life in the cluster looks at the
    log more often than that, so a request waits for a look only behind a stall. And an answer that must not be older
    than the question, such as a committed offset, which a successor may have replaced by now, rests on a look that
    began after the question.
    """

    def __init__(self, metadata: MetadataLog, *, broker_id: int, clock: Clock, tasks: TaskScope) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._clock = clock
        self._tasks = tasks
        self._looking: asyncio.Task[None] | None = None
        self._fault: StorageFault | None = None  # the fault of the last look

    @property
    def is_fresh(self) -> bool:
        """True if both clocks agree: moving a virtual machine may stop the monotonic clock, and a wall clock that was
        set back proves nothing."""
        confirmed = self._metadata.confirmed
        return (
            self._clock.monotonic_ms() - confirmed.monotonic_ms < PROOF_MS
            and abs(self._clock.now_ms() - confirmed.wall_ms) < PROOF_MS
        )

    async def wait(self, *, by_new_look: bool = False) -> Refused | None:
        """Wait until there is a proof, with `by_new_look` one by a look that begins after this call: for an answer that
        must not be older than its question. What this broker does not lead any more is closed by then. Returns
        NOT_LEADER_OR_FOLLOWER if the cluster metadata cannot be read."""
        if not by_new_look and self.is_fresh:
            return None
        called_ms = self._clock.monotonic_ms()
        for _ in range(2):  # the first look may have begun long before this call
            looking = self._looking
            if looking is None:
                looking = self._looking = self._tasks.start(self._look(), "leadership proof")
            await asyncio.wait([looking])
            has_looked = self._metadata.confirmed.monotonic_ms >= called_ms  # however long the look took
            if has_looked or (not by_new_look and self.is_fresh):
                return None
        if self._metadata.cluster.is_alone(self._broker_id):
            return None
        why = self._fault or "its metadata could not be compared with the log"
        reason = f"this broker cannot tell whether it still leads its partitions: {why}"
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)

    async def _look(self) -> None:
        self._fault = None
        try:
            await self._metadata.confirm()
        except StorageFault as fault:
            self._fault = fault
        finally:
            self._looking = None
