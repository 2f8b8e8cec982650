"""The groups of one partition of `__consumer_offsets` that this broker leads, and the one order in which they change.

Theory of operation. Commands, timers that expired and sweeps wait in one queue. A turn takes all that waits, decides it
one after another and appends all records as one batch, when it is this shard's turn to commit; while that is in flight
the next turn's work gathers. Only when the batch is committed are the groups replaced, timers set, requests answered
and members told. What needs no record is carried out at once. Heartbeats, the frequent call, pass the queue by: they
are checked against the groups as they are.

A record that could not be read back, or is too large, is found before the append: its own call is refused, and the
others are decided again without it. If an append is refused nothing can tell what the log holds: nothing of that turn
happens, every call that waits is refused (retriable), and the groups are loaded again. A request whose client has gone
is answered into nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from bus.consumer_groups.decisions import check_heartbeat, is_sign_of_life, resume_timers
from bus.consumer_groups.group import Group
from bus.consumer_groups.group_rules import GroupRules
from bus.consumer_groups.records import GroupRecord, GroupStored, GroupTombstone
from bus.consumer_groups.requests import Heartbeat, HeartbeatTaken
from bus.consumer_groups.steps import (
    CancelTimer,
    GroupAnswer,
    GroupCommand,
    GroupTimer,
    Notice,
    SetTimer,
    TimerKind,
)
from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.ports import Clock
from bus.runtime.group_decisions import (
    DecideForGroup,
    GroupDecisions,
    Waiting,
    WaitingCommand,
    WaitingSweep,
    WaitingTimeout,
)
from bus.runtime.group_log import GroupLog
from bus.runtime.group_totals import GroupTotals
from bus.runtime.tasks import TaskScope
from bus.runtime.timers import Timers

_log = logging.getLogger(__name__)

# One turn decides so much, or by one call more, and leaves the rest to the next: bounds what is committed at a time,
# and how long the loop is held.
_TURN_RECORDS_MAX = 10_000
_TURN_BYTES_MAX = 4 << 20
_TURN_S_MAX = 0.01
# Commands that may wait for a turn; more are refused until there is room.
WAITING_MAX = 100_000
# A sweep looks at so many groups and offsets at a time, so that it holds up no call for long.
_SWEEP_ITEMS = 5_000
_GROUP_ITEMS = 50  # a group without offsets counts as so many
_LOAD_RETRY_S = 1.0
_TAKEN = HeartbeatTaken()
_SWEPT: GroupAnswer = _TAKEN  # nobody looks at it

OnNotice = Callable[[str, Notice], None]

# As Kafka's coordinators translate what a partition says (CoordinatorOperationExceptionHelper); every other refusal is
# of this broker's state.
_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class GroupShard:
    """`commit_slots` and `totals` are shared by all shards: so many commit at a time, and hold so much. `on_notice` is
    called with the group's id and what one of its members is to be told."""

    def __init__(
        self,
        log: GroupLog,
        *,
        rules: GroupRules,
        clock: Clock,
        tasks: TaskScope,
        commit_slots: asyncio.Semaphore,
        totals: GroupTotals,
        on_notice: OnNotice,
    ) -> None:
        self._groups_log = log
        self._rules = rules
        self._clock = clock
        self._tasks = tasks
        self._commit_slots = commit_slots
        self._totals = totals
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, Group] = {}
        self._timers: Timers[GroupTimer] = Timers(self._on_timer)
        self._waiting: deque[Waiting] = deque()
        self._answers: dict[int, asyncio.Future[GroupAnswer]] = {}  # of those who wait, by request id
        self._last_request_id = 0
        self._committing: GroupDecisions | None = None
        self._closed: Refused | None = None
        self._loading: asyncio.Task[None] | None = None
        if not log.is_empty:
            self._load_anew()

    # ------------------------------------------------------------------ what it knows

    @property
    def groups(self) -> Mapping[str, Group]:
        """As they are committed. Empty while loading."""
        return self._groups

    @property
    def refusal(self) -> Refused | None:
        """Why nothing is decided here for now; None if it is."""
        stopped = self._groups_log.stopped
        if stopped is not None:
            return Refused(ErrorCode.NOT_COORDINATOR, stopped.message)
        if self._closed is not None:
            return self._closed
        if self._loading is not None:
            return Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._groups_log.name} is being read; retry later"
            )
        return None

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    # ------------------------------------------------------------------ calls

    def heartbeat(self, command: Heartbeat) -> HeartbeatTaken | Refused:
        """At once. While the groups are being loaded every heartbeat is taken, as Kafka does: who sent it may well be
        a member, and its session begins anew after the load."""
        refused = self.refusal
        if refused is not None:
            return _TAKEN if refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else refused
        group = self._groups.get(command.group_id)
        answer = check_heartbeat(group, command)
        if group is not None and is_sign_of_life(answer):
            session = GroupTimer(TimerKind.SESSION, command.group_id, command.member_id)
            self._timers.set(session, group.members[command.member_id].session_timeout_ms)
        return answer

    def submit(self, command: GroupCommand, new_member_id: str = "") -> asyncio.Future[GroupAnswer]:
        """The answer comes when the command is decided and committed; that of a join or a sync when all the others are
        there. The future never fails. Cancelling it withdraws the command if it has not been decided."""
        request_id, answer = self._expect_answer(command)
        if not answer.done():
            self._waiting.append(WaitingCommand(command, request_id, new_member_id))
            self._turn()
        return answer

    async def sweep(self, decide: DecideForGroup, group_ids: Iterable[str] | None = None) -> None:
        """Have `decide` decide on each of these groups, or on all. What is refused meanwhile is left to the next."""
        for ids in self._portions(tuple(self._groups if group_ids is None else group_ids)):
            request_id, answer = self._expect_answer()
            if not answer.done():
                self._waiting.append(WaitingSweep(request_id, ids, decide))
                self._turn()
            await answer
            await asyncio.sleep(0)  # an answer may be there at once

    def _portions(self, group_ids: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Of groups that are all small many, and one that is large by itself."""
        portion: list[str] = []
        items = 0
        for group_id in group_ids:
            group = self._groups.get(group_id)
            items += _GROUP_ITEMS + (0 if group is None else len(group.offsets))
            portion.append(group_id)
            if items >= _SWEEP_ITEMS:
                yield tuple(portion)
                portion, items = [], 0
        if portion:
            yield tuple(portion)

    def close(self) -> None:
        """Refuse all that comes and all who wait, joins and syncs too; only what is being committed is still answered
        as it ends."""
        self._closed = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is shutting down")
        self._timers.close()
        self._waiting.clear()
        self._refuse_all(self._closed, but=self._committing.request_ids if self._committing else ())
        if self._loading is not None:
            self._loading.cancel()

    # ------------------------------------------------------------------ turns

    def _turn(self) -> None:
        """Decide what waits, unless a commit is in flight."""
        try:
            if self._waiting and self._committing is None:
                refused = self.refusal
                if refused is not None:
                    self._waiting.clear()
                    self._refuse_all(refused)
                    return
                decisions = GroupDecisions(self._groups, self._timers, self._rules)
                self._decide(decisions)
                if decisions.records:
                    self._committing = decisions
                    self._tasks.start(self._commit(decisions), f"groups/{self._groups_log.name}")
                else:
                    self._carry_out(decisions)
                    if self._waiting:  # others have their turn on the loop
                        self._loop.call_soon(self._turn)
                        return
        except Exception as error:
            _log.exception("a decision about the groups of %s failed", self._groups_log.name)
            self._fail(Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"a decision about the group failed: {error!r}"))

    def _decide(self, decisions: GroupDecisions) -> None:
        now_ms, until_s = self._clock.now_ms(), self._loop.time() + _TURN_S_MAX
        while self._waiting and not self._is_full(decisions) and self._loop.time() <= until_s:
            waiting = self._waiting.popleft()
            if isinstance(waiting, WaitingTimeout) or waiting.request_id in self._answers:
                decisions.take(waiting, now_ms=now_ms)

    def _is_full(self, decisions: GroupDecisions) -> bool:
        return len(decisions.records) >= _TURN_RECORDS_MAX or decisions.record_bytes >= _TURN_BYTES_MAX

    async def _commit(self, decisions: GroupDecisions) -> None:
        refused: Refused | None = Refused(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{self._groups_log.name}: the commit was interrupted"
        )
        try:
            async with self._commit_slots:
                self._decide(decisions)  # what has come while it waited for its turn
                prepared = await self._groups_log.prepare(decisions.records)
                while prepared.faults:
                    self._committing = decisions = decisions.without(prepared.faults)
                    prepared = await self._groups_log.prepare(decisions.records)
                refused = None if prepared.batch is None else await self._groups_log.append(prepared.batch)
        finally:
            self._committing = None
            if refused is not None:
                self._fail(refused)
            else:
                self._carry_out(decisions)
                self._turn()

    def _carry_out(self, decisions: GroupDecisions) -> None:
        _log_changes(decisions.records)
        for group_id, step in decisions.steps:
            self._totals.replace(self._groups.get(group_id), step.group)
            if step.group is None:
                self._groups.pop(group_id, None)
            else:
                self._groups[group_id] = step.group
            if self._closed is None:
                self._set_timers(step.timers)
            for reply in step.replies:
                self._answer(reply.request_id, reply.answer)
            for notice in step.notices:
                self._on_notice(group_id, notice)
        for request_id in decisions.sweeps:
            self._answer(request_id, _SWEPT)
        if self._closed is not None:
            self._refuse_all(self._closed)

    def _fail(self, refused: Refused) -> None:
        """Memory and log may disagree: the log decides."""
        _log.error("groups of %s are read again: %s", self._groups_log.name, refused.message)
        code = _TRANSLATED.get(refused.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._waiting.clear()
        self._refuse_all(self._closed or Refused(code, refused.message))
        if self._closed is None:
            self._load_anew()

    # ------------------------------------------------------------------ answers

    def _expect_answer(self, command: GroupCommand | None = None) -> tuple[int, asyncio.Future[GroupAnswer]]:
        """Done already if it is refused."""
        answer: asyncio.Future[GroupAnswer] = self._loop.create_future()
        refused = self.refusal
        if refused is None and len(self._waiting) >= WAITING_MAX:
            refused = Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._groups_log.name} has {WAITING_MAX} calls waiting"
            )
        if refused is None and command is not None:
            group = self._groups.get(command.group_id)
            refused = self._totals.check(command, group, now_ms=self._clock.monotonic_ms())
        self._last_request_id += 1
        request_id = self._last_request_id
        if refused is not None:
            answer.set_result(refused)
        else:
            self._answers[request_id] = answer
            answer.add_done_callback(functools.partial(self._forget, request_id))
        return request_id, answer

    def _forget(self, request_id: int, _: asyncio.Future[GroupAnswer]) -> None:
        self._answers.pop(request_id, None)

    def _answer(self, request_id: int, answer: GroupAnswer) -> None:
        waiting = self._answers.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _refuse_all(self, refused: Refused, but: Iterable[int] = ()) -> None:
        kept = frozenset(but)
        for request_id in self._answers.keys() - kept:
            self._answer(request_id, refused)

    # ------------------------------------------------------------------ timers

    def _on_timer(self, timer: GroupTimer) -> None:
        self._waiting.append(WaitingTimeout(timer))
        self._turn()

    def _set_timers(self, changes: Iterable[SetTimer | CancelTimer]) -> None:
        for change in changes:
            if isinstance(change, SetTimer):
                self._timers.set(change.timer, change.after_ms)
            else:
                self._timers.cancel(change.timer)

    # ------------------------------------------------------------------ loading

    def _load_anew(self) -> None:
        self._timers.close()
        for group in self._groups.values():
            self._totals.replace(group, None)
        self._groups = {}
        self._loading = self._tasks.start(self._load(), f"groups/{self._groups_log.name}/load")

    async def _load(self) -> None:
        try:
            groups = await self._load_until_it_succeeds()
            if groups is not None and self._closed is None:
                self._groups = groups
                for group in groups.values():
                    self._totals.replace(None, group)
                for change in _timers_of(groups.values()):
                    self._timers.set(change.timer, change.after_ms)
        finally:
            self._loading = None

    async def _load_until_it_succeeds(self) -> dict[str, Group] | None:
        """None: the partition does not serve, and says why."""
        while True:
            try:
                loaded = await self._groups_log.load()
                if not isinstance(loaded, Refused):
                    return loaded.groups
                _log.warning("groups of %s cannot be read for now: %s", self._groups_log.name, loaded.message)
            except StorageDamaged as damage:
                self._groups_log.stop(str(damage))
            except StorageFault as fault:
                _log.warning("groups of %s cannot be read for now: %s", self._groups_log.name, fault)
            except Exception:
                _log.exception("reading the groups of %s failed", self._groups_log.name)
            if self._groups_log.stopped is not None:
                return None
            await asyncio.sleep(_LOAD_RETRY_S)


def _timers_of(groups: Iterable[Group]) -> Iterator[SetTimer]:
    for group in groups:
        yield from resume_timers(group)


def _log_changes(records: Iterable[GroupRecord]) -> None:
    """A line for each generation that has its assignment, and for each group that ends. Offsets have none."""
    for record in records:
        match record:
            case GroupStored(group_id, generation=generation, state=state, members=members):
                _log.info("group %s: %s, generation %d, members: %d", group_id, state, generation, len(members))
            case GroupTombstone(group_id):
                _log.info("group %s has ended", group_id)
