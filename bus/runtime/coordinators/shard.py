"""A shard of a coordinator: the entities of one partition that this broker leads, and the order in which they change.

Theory of operation. Commands and expired timers wait in one queue. A turn takes everything that waits, decides one
after another and appends all records as one batch as soon as a commit slot is free; while that commit is in flight,
work for the next turn gathers. Only when the batch is committed do the new states replace the old ones, are timers set,
requests answered and notices sent. A decision without records is carried out at once. So is a decision whose records a
later load would reproduce (`Step.may_log_later`): its records go into the log with the next batch, or by themselves
soon after, and losing them does no harm.

A record that could not be read back, or is too large, is found before the append: its own call is refused, and the
others are decided again without it. If an append is refused, only the log can tell what it holds: no decision of that
turn takes effect, every waiting call is refused with a retriable error, and the states are loaded again. The answer to
a request whose client has gone is dropped.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from bus.errors import ErrorCode, Refused, StorageDamaged, StorageFault
from bus.machine import AnswerT, CancelTimer, CommandT, Machine, NoticeT, RecordT, Reply, SetTimer, StateT, Totals
from bus.ports import Clock
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.tasks import TaskScope
from bus.runtime.timing_wheel import Timers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting(Generic[CommandT]):
    """`request_id` None: a timer has expired, and no caller awaits an answer."""

    command: CommandT
    request_id: int | None


class Turn(Generic[StateT, CommandT, RecordT, AnswerT, NoticeT]):
    """Decisions of a coordinator that share one commit. `states` are those before the first decision, `timers` those
    that are set. Does no I/O.

    Guards one promise: each decision sees the states that the decisions before it produced, although nothing is
    committed yet; and if the commit fails, none of them takes effect. Timers count in the same way: a timer that
    expired after a heartbeat of the same commit has no effect. A record that cannot go into the log costs only the call
    that requested it: the other decisions are taken again without it."""

    def __init__(
        self,
        machine: Machine[StateT, CommandT, RecordT, AnswerT, NoticeT],
        states: Mapping[str, StateT],
        timers: Container[CommandT],
    ) -> None:
        self._machine = machine
        self._before = states
        self._set_timers = timers
        self.states: dict[str, StateT | None] = {}  # after the decisions
        self.records: list[RecordT] = []
        self.may_log_later = True  # all of it may happen before `records` are committed
        self.replies: list[Reply[AnswerT]] = []
        self.timers: list[SetTimer[CommandT] | CancelTimer[CommandT]] = []
        self.notices: list[NoticeT] = []
        self._taken: list[tuple[Waiting[CommandT], int]] = []  # each with the time of its decision
        self._origins: list[int] = []  # the position in `_taken` of the decision behind each of `records`
        self._touched_timers: set[CommandT] = set()

    @property
    def request_ids(self) -> frozenset[int]:
        """The requests that await the outcome of these decisions."""
        return frozenset(waiting.request_id for waiting, _ in self._taken if waiting.request_id is not None)

    def state_of(self, entity_id: str) -> StateT | None:
        """The state as the decisions leave it."""
        return self.states[entity_id] if entity_id in self.states else self._before.get(entity_id)

    def take(self, waiting: Waiting[CommandT], *, now_ms: int) -> None:
        self._taken.append((waiting, now_ms))
        command, request_id = waiting.command, waiting.request_id
        if request_id is None and (command in self._touched_timers or command in self._set_timers):
            return  # it was set again since it expired
        entity_id = self._machine.entity_id(command)
        step = self._machine.decide(self.state_of(entity_id), command, request_id=request_id or 0, now_ms=now_ms)
        self.states[entity_id] = step.state
        self.records += step.records
        self.may_log_later &= step.may_log_later
        self._origins += [len(self._taken) - 1] * len(step.records)
        self.replies += step.replies
        self.notices += step.notices
        for change in step.timers:
            self.timers.append(change)
            self._touched_timers.add(change.timer)

    def without(self, faults: Mapping[int, Refused]) -> Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]:
        """The same decisions, but for those that gave the records at the positions of `faults`: their calls are
        refused, and nothing else of them happens."""
        refused = {self._origins[position]: fault for position, fault in faults.items()}
        others = Turn(self._machine, self._before, self._set_timers)
        for number, (waiting, now_ms) in enumerate(self._taken):
            if number in refused:
                others._refuse(waiting, refused[number], now_ms)
            else:
                others.take(waiting, now_ms=now_ms)
        return others

    def _refuse(self, waiting: Waiting[CommandT], fault: Refused, now_ms: int) -> None:
        command, request_id = waiting.command, waiting.request_id
        _log.error("%s of %s is refused: %s", type(command).__name__, self._machine.entity_id(command), fault.message)
        self._taken.append((waiting, now_ms))
        if request_id is not None:
            self.replies.append(Reply(request_id, self._machine.refuse(command, fault)))


# One turn decides about this much and leaves the rest to the next: it bounds the size of a commit, and how long the
# loop is held.
_TURN_RECORDS_MAX = 10_000
_TURN_BYTES_MAX = 4 << 20
_TURN_MS_MAX = 10
# Commands that may wait for a turn; more are refused until there is room.
WAITING_MAX = 100_000
_LOAD_RETRY_S = 1.0
# Records that may be logged later wait `_LOG_LATER_S` for a batch of decisions to be logged with, then they are logged
# in a batch of their own. Each such batch is a commit, so there is at most one in `_LOG_AGAIN_S`; what reads the log
# itself sees the end of a transaction that much later at most.
_LOG_LATER_S = 0.2
_LOG_AGAIN_S = 2.0

_SHUTTING_DOWN = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is shutting down")

# The translation of a partition's refusals as in Kafka's coordinators (CoordinatorOperationExceptionHelper); all other
# refusals concern this broker's own state.
_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class CoordinatorShard(Generic[StateT, CommandT, RecordT, AnswerT, NoticeT]):
    """A shard of a coordinator. All shards share `commit_slots`, which bounds concurrent commits, and `totals`, which
    bounds memory; they share `request_ids` if no two calls of different shards may have the same id. `on_notice` is
    called with a message that a client gets without having asked for it."""

    def __init__(
        self,
        machine: Machine[StateT, CommandT, RecordT, AnswerT, NoticeT],
        log: CoordinatorLog[StateT, RecordT],
        totals: Totals[StateT, CommandT],
        *,
        clock: Clock,
        tasks: TaskScope,
        commit_slots: asyncio.Semaphore,
        request_ids: Iterator[int] | None = None,
        on_notice: Callable[[NoticeT], None],
    ) -> None:
        self._machine = machine
        self._states_log = log
        self._totals = totals
        self._clock = clock
        self._tasks = tasks
        self._commit_slots = commit_slots
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._states: dict[str, StateT] = {}
        self._timers: Timers[CommandT] = Timers(self._on_timer)
        self._waiting: deque[Waiting[CommandT]] = deque()
        self._answers: dict[int, asyncio.Future[AnswerT | Refused]] = {}  # of the waiting requests, by request id
        self._request_ids = itertools.count(1) if request_ids is None else request_ids
        self._committing: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT] | None = None
        self._commit_task: asyncio.Task[None] | None = None
        # records of carried-out decisions that are not in the log yet; no decision about them is open
        self._later: list[RecordT] = []
        self._later_bytes = 0
        self._later_timer: asyncio.TimerHandle | None = None
        self._is_leaving = False
        self._logged_s = -_LOG_AGAIN_S  # when they were last logged in a batch of their own
        self._closed: Refused | None = None
        self._loading: asyncio.Task[None] | None = None
        if not log.is_empty:
            self._reload()

    # ------------------------------------------------------------------ what it knows

    @property
    def states(self) -> Mapping[str, StateT]:
        """The committed states by entity id. Empty while loading."""
        return self._states

    @property
    def refusal(self) -> Refused | None:
        """Why nothing is decided here for now; None if it is."""
        stopped = self._states_log.stopped
        if stopped is not None:
            return Refused(ErrorCode.NOT_COORDINATOR, stopped.message)
        if self._closed is not None:
            return self._closed
        if self._loading is not None:
            return Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._states_log.name} is being read; retry later"
            )
        return None

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    # ------------------------------------------------------------------ calls

    def submit(self, command: CommandT) -> asyncio.Future[AnswerT | Refused]:
        """The answer comes when the command is decided and committed, or when a later step answers it. The future never
        fails. Cancelling it withdraws the command if it has not been decided."""
        answer: asyncio.Future[AnswerT | Refused] = self._loop.create_future()
        refused = self._check(command)
        if refused is not None:
            answer.set_result(refused)
            return answer
        request_id = next(self._request_ids)
        self._answers[request_id] = answer
        answer.add_done_callback(functools.partial(self._forget, request_id))
        self._waiting.append(Waiting(command, request_id))
        self._turn()
        return answer

    def answer_at_once(self, command: CommandT) -> AnswerT | Refused | None:
        """Return the answer of `submit` if it needs no commit. None: the caller has to wait, with `submit`. The command
        may then have been decided already, and its change is committed all the same; so use it only for commands that
        may be repeated and that no later step answers."""
        if self._committing is not None or self._waiting:
            return None
        answer = self.submit(command)
        if answer.done():
            return answer.result()
        answer.cancel()
        return None

    def would_change(self, command: CommandT) -> bool:
        """True if the command would change the committed state; does not carry it out."""
        state = self._states.get(self._machine.entity_id(command))
        return bool(self._machine.decide(state, command, request_id=0, now_ms=self._clock.now_ms()).records)

    def set_timer(self, timer: CommandT, after_ms: int) -> None:
        """Set a timer without a decision, for heartbeats: the most frequent call does nothing else."""
        self._timers.set(timer, after_ms)

    async def log_all(self) -> None:
        """Log everything before another broker leads the partition, after which its log takes nothing from here:
        records kept for later are logged, and later ones wait for no other batch. Takes two commits at most."""
        self._is_leaving = True
        for _ in range(2):
            self._log_later()
            if self._commit_task is not None:
                await asyncio.wait([self._commit_task])

    def close(self, reason: Refused = _SHUTTING_DOWN) -> None:
        """Close the shard. Every new and every waiting call is refused, even if its command is decided; only calls
        whose commit is in flight get their answers as it ends. Records kept for later are logged if the log still takes
        them."""
        self._closed = reason
        self._timers.close()
        self._waiting.clear()
        self._refuse_all(self._closed, but=self._committing.request_ids if self._committing else ())
        self._log_later()
        if self._loading is not None:
            self._loading.cancel()
        if self._committing is None:
            self._leave_totals()

    def _check(self, command: CommandT) -> Refused | None:
        refused = self.refusal
        if refused is not None:
            return refused
        if len(self._waiting) >= WAITING_MAX:
            return Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._states_log.name} has {WAITING_MAX} calls waiting"
            )
        state = self._states.get(self._machine.entity_id(command))
        return self._totals.check(command, state, now_ms=int(self._clock.monotonic_ms()))

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
                turn = Turn(self._machine, self._states, self._timers)
                self._decide(turn)
                if turn.records and not turn.may_log_later:
                    self._start_commit(turn)
                else:
                    self._carry_out(turn)
                    self._wait_to_log(turn.records)
                    if self._waiting:  # others have their turn on the loop
                        self._loop.call_soon(self._turn)
                        return
        except Exception as error:
            _log.exception("a decision of the coordinator of %s failed", self._states_log.name)
            self._fail(Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"a decision of the coordinator failed: {error!r}"))

    def _decide(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> None:
        now_ms, until_ms = self._clock.now_ms(), self._clock.monotonic_ms() + _TURN_MS_MAX
        record_bytes, measured = 0, 0
        while self._waiting and self._clock.monotonic_ms() <= until_ms:
            record_bytes += self._states_log.approximate_bytes(turn.records[measured:])
            measured = len(turn.records)
            if measured >= _TURN_RECORDS_MAX or record_bytes >= _TURN_BYTES_MAX:
                return
            waiting = self._waiting.popleft()
            if waiting.request_id is None or waiting.request_id in self._answers:
                turn.take(waiting, now_ms=now_ms)

    def _start_commit(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> None:
        self._committing = turn
        self._commit_task = self._tasks.start(self._commit(turn), f"coordinator/{self._states_log.name}")

    async def _commit(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> None:
        refused: Refused | None = Refused(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{self._states_log.name}: the commit was interrupted"
        )
        try:
            async with self._commit_slots:
                self._decide(turn)  # takes up commands that came while the commit waited for its slot
                later = self._take_later(turn)
                prepared = await self._states_log.prepare([*later, *turn.records])
                while prepared.faults:
                    later, turn = self._without(later, turn, prepared.faults)
                    self._committing = turn
                    prepared = await self._states_log.prepare([*later, *turn.records])
                refused = None if prepared.batch is None else await self._states_log.append(prepared.batch)
        finally:
            self._committing = self._commit_task = None
            if refused is not None:
                self._fail(refused)
            else:
                self._carry_out(turn)
                self._states.update(self._machine.logged(self._states, [*later, *turn.records]))
                self._turn()
                if self._closed is not None or self._is_leaving:
                    self._log_later()  # logs the records that this commit kept back
            if self._closed is not None and self._committing is None:
                self._leave_totals()

    @staticmethod
    def _without(
        later: Sequence[RecordT],
        turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT],
        faults: Mapping[int, Refused],
    ) -> tuple[list[RecordT], Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]]:
        """Return the records to log, and the turn, without the records at the positions of `faults`. Faulty records of
        carried-out decisions are left out of the log."""
        count = len(later)
        for fault in (fault for position, fault in faults.items() if position < count):
            _log.error("a record of what has happened is left out: %s", fault.message)
        kept = [record for position, record in enumerate(later) if position not in faults]
        return kept, turn.without({at - count: fault for at, fault in faults.items() if at >= count})

    def _carry_out(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> None:
        """Carry out the committed decisions."""
        self._states_log.log_lines(turn.records)
        for entity_id, state in turn.states.items():
            self._totals.replace(self._states.get(entity_id), state)
            if state is None:
                self._states.pop(entity_id, None)
            else:
                self._states[entity_id] = state
        if self._closed is None:
            self._set_timers(turn.timers)
        for reply in turn.replies:
            self._answer(reply.request_id, reply.answer)
        for notice in turn.notices:
            self._on_notice(notice)
        if self._closed is not None:
            self._refuse_all(self._closed)

    def _fail(self, refused: Refused) -> None:
        """Memory and log may disagree: the log decides."""
        _log.error("%s is read again: %s", self._states_log.name, refused.message)
        code = _TRANSLATED.get(refused.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._waiting.clear()
        self._refuse_all(self._closed or Refused(code, refused.message))
        if self._closed is None:
            self._reload()

    # ------------------------------------------------------------------ what is logged later

    def _wait_to_log(self, records: Sequence[RecordT]) -> None:
        """Keep records for the next commit, or until the timer expires."""
        self._later += records
        self._later_bytes += self._states_log.approximate_bytes(records)
        if not (self._is_much_later and self._log_later()):
            self._set_later_timer(_LOG_LATER_S)

    @property
    def _is_much_later(self) -> bool:
        is_full = len(self._later) >= _TURN_RECORDS_MAX or self._later_bytes >= _TURN_BYTES_MAX
        return is_full or self._is_leaving

    def _set_later_timer(self, after_s: float) -> None:
        if self._later and self._later_timer is None and self._closed is None:
            at_s = max(self._loop.time() + after_s, self._logged_s + _LOG_AGAIN_S)
            self._later_timer = self._loop.call_at(at_s, self._log_in_time)

    def _log_in_time(self) -> None:
        self._later_timer = None
        if self._log_later():
            self._logged_s = self._loop.time()
        else:
            self._set_later_timer(_LOG_AGAIN_S)

    def _log_later(self) -> bool:
        """Log records that were kept for later; True if a commit was started. While a commit is in flight, the timer or
        the closing of the shard logs what it keeps back."""
        if self._committing is not None or self._states_log.stopped is not None:
            return False
        turn = Turn(self._machine, self._states, self._timers)
        if len(self._keep_back(turn)) == len(self._later):
            return False
        self._start_commit(turn)
        return True

    def _take_later(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> list[RecordT]:
        """Those that go into the log before the records of `turn`."""
        later, kept = self._later, self._keep_back(turn)
        self._forget_later()
        self._later = [later[position] for position in sorted(kept)]
        self._later_bytes = self._states_log.approximate_bytes(self._later)
        self._set_later_timer(_LOG_LATER_S)
        return [record for position, record in enumerate(later) if position not in kept]

    def _keep_back(self, turn: Turn[StateT, CommandT, RecordT, AnswerT, NoticeT]) -> Collection[int]:
        """A shard that closes or is about to move, or has too many, keeps back only what must not be in the log yet."""
        return self._machine.keep_back(
            self._later,
            turn.records,
            turn.state_of,
            now_ms=self._clock.now_ms(),
            may_wait=self._closed is None and not self._is_much_later,
        )

    def _forget_later(self) -> None:
        if self._later_timer is not None:
            self._later_timer.cancel()
            self._later_timer = None
        self._later, self._later_bytes = [], 0

    # ------------------------------------------------------------------ answers

    def _forget(self, request_id: int, _: asyncio.Future[AnswerT | Refused]) -> None:
        self._answers.pop(request_id, None)

    def _answer(self, request_id: int, answer: AnswerT | Refused) -> None:
        waiting = self._answers.pop(request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _refuse_all(self, refused: Refused, but: Iterable[int] = ()) -> None:
        kept = frozenset(but)
        for request_id in self._answers.keys() - kept:
            self._answer(request_id, refused)

    # ------------------------------------------------------------------ timers

    def _on_timer(self, timer: CommandT) -> None:
        self._waiting.append(Waiting(timer, None))
        self._turn()

    def _set_timers(self, changes: Iterable[SetTimer[CommandT] | CancelTimer[CommandT]]) -> None:
        for change in changes:
            if isinstance(change, SetTimer):
                self._timers.set(change.timer, change.after_ms)
            else:
                self._timers.cancel(change.timer)

    # ------------------------------------------------------------------ loading

    def _reload(self) -> None:
        self._timers.close()
        self._forget_later()
        self._leave_totals()
        self._states = {}
        self._loading = self._tasks.start(self._load(), f"coordinator/{self._states_log.name}/load")

    def _leave_totals(self) -> None:
        for state in self._states.values():
            self._totals.replace(state, None)

    async def _load(self) -> None:
        try:
            states = await self._load_until_it_succeeds()
            if states is not None and self._closed is None:
                self._states = states
                for state in states.values():
                    self._totals.replace(None, state)
                    self._set_timers(self._machine.resume(state))
        finally:
            self._loading = None

    async def _load_until_it_succeeds(self) -> dict[str, StateT] | None:
        """None: the partition does not serve, and says why."""
        name = self._states_log.name
        while True:
            try:
                loaded = await self._states_log.load()
                if not isinstance(loaded, Refused):
                    return loaded.states
                _log.warning("%s cannot be read for now: %s", name, loaded.message)
            except StorageDamaged as damage:
                self._states_log.stop(str(damage))
            except StorageFault as fault:
                _log.warning("%s cannot be read for now: %s", name, fault)
            except Exception:
                _log.exception("reading %s failed", name)
            if self._states_log.stopped is not None:
                return None
            await asyncio.sleep(_LOAD_RETRY_S)
