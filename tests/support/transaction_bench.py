"""One transactional id with its log, its timers and its clock, as the runtime would keep them: what the tests of the
rules share.

After every step it holds the rules to what they promise whatever happens: what is durable is what the log tells, at
every step (T12); a state follows only states that it may follow, with one decision a transaction (T4); the epoch rises
by one a record at most (T7); a request is answered once, and awaited until then; and whoever has to be heard of is
asked, or has a timer. It knows the table of states by itself, as Kafka has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bus.machine import SetTimer
from bus.model import TopicPartition
from bus.ports import KeyedRow
from bus.transactions.changes import (
    CollectVotes,
    Finish,
    Resolve,
    TransactionNotice,
    TransactionRules,
    TransactionStep,
    logged,
)
from bus.transactions.decisions import TransactionMachine, decide
from bus.transactions.epochs import needs_producer_id
from bus.transactions.loading import TransactionCodec, resume_timers
from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged, decode_record, encode_record
from bus.transactions.requests import (
    AbortTransaction,
    Added,
    AddOffsets,
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    FenceProducer,
    Finished,
    InitProducerId,
    Noted,
    ProducerInitialized,
    Resolved,
    TimerKind,
    TransactionAnswer,
    TransactionCommand,
    TransactionTimer,
    Voted,
)
from bus.transactions.state import (
    ONE_PHASE_MAX,
    PRODUCER_EPOCH_MAX,
    AbortCause,
    AppliedRows,
    ProducerIdentity,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
    VoteId,
)

ID = "billing"
BEGIN_MS = 1_000_000
TIMEOUT_MS = 60_000
ORDERS = TransactionPartition("orders", "id-of-orders", 0)
AUDIT = TransactionPartition("audit", "id-of-audit", 1)
DESK = TransactionGroup("desk", 12)
NO_VOTE = VoteId(0)

_MAY_FOLLOW = {
    "Empty": {None, "Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},  # but for Ongoing: an empty one
    "CompleteCommit": {"PrepareCommit", "CompleteCommit"},  # the latter: several commits at once
    "CompleteAbort": {"PrepareAbort"},
}


class TransactionBench:
    def __init__(self, rules: TransactionRules | None = None, *, first_producer_id: int = 7) -> None:
        self.rules = TransactionRules() if rules is None else rules
        self.state: Transaction | None = None
        self.rows: list[KeyedRow] = []  # of the log
        self.later: list[KeyedRow] = []  # of what has happened, not in the log yet
        self.records: list[LoggedRecord] = []
        self.now_ms = BEGIN_MS
        self.deadlines: dict[TransactionTimer, int] = {}
        self.open: dict[int, TransactionCommand] = {}
        self.answers: dict[int, TransactionAnswer] = {}
        self.notices: list[TransactionNotice] = []  # of this life
        self.steps: list[TransactionStep] = []
        self.last_request_id = 0
        self.next_producer_id = first_producer_id
        self.allows_one_phase = False
        self.taken_number = -1  # that a partition has told of
        self._machine = TransactionMachine(self.rules)
        self._finishing: set[int] = set()  # numbers that `Finish` was said of in this life

    # ---------------------------------------------------------------- what is asked

    def ask(self, command: TransactionCommand) -> int:
        """The request id; `answers` has the answer, as soon as there is one."""
        self.last_request_id += 1
        self.open[self.last_request_id] = command
        self._take(self._decide(command, self.last_request_id))
        return self.last_request_id

    def answer(self, command: TransactionCommand) -> TransactionAnswer | None:
        """None: it waits."""
        return self.answers.get(self.ask(command))

    def init(
        self, expected: ProducerIdentity | None = None, *, timeout_ms: int = TIMEOUT_MS
    ) -> TransactionAnswer | None:
        command = InitProducerId(ID, timeout_ms)
        if expected is not None:
            command = InitProducerId(ID, timeout_ms, expected.producer_id, expected.producer_epoch)
        return self.answer(self.with_producer_id(command))

    def with_producer_id(self, command: InitProducerId | FenceProducer) -> Any:
        """The command as the runtime submits it."""
        if not needs_producer_id(self.state, command):
            return command
        if isinstance(command, FenceProducer):
            return FenceProducer(ID, self.new_producer_id())
        return InitProducerId(
            ID, command.timeout_ms, command.producer_id, command.producer_epoch, self.new_producer_id()
        )

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def add(self, *partitions: TransactionPartition, of: ProducerIdentity | None = None) -> TransactionAnswer | None:
        who = self.known.identity if of is None else of
        return self.answer(AddPartitions(ID, who.producer_id, who.producer_epoch, partitions, self.allows_one_phase))

    def add_offsets(self, group: TransactionGroup, *, of: ProducerIdentity | None = None) -> TransactionAnswer | None:
        who = self.known.identity if of is None else of
        return self.answer(AddOffsets(ID, who.producer_id, who.producer_epoch, group))

    def end(
        self,
        is_commit: bool,
        *,
        of: ProducerIdentity | None = None,
        last_sequences: Mapping[TopicPartition, int] | None = None,
    ) -> TransactionAnswer | None:
        who = self.known.identity if of is None else of
        return self.answer(
            EndTransaction(
                *(ID, who.producer_id, who.producer_epoch, is_commit),
                dict(last_sequences or {}),
                self.allows_one_phase,
            )
        )

    def commit(self, **arguments: Any) -> TransactionAnswer | None:
        return self.end(True, **arguments)

    def abort(self, **arguments: Any) -> TransactionAnswer | None:
        return self.end(False, **arguments)

    def vote(self, last_sequence: int = 4, **fields: Any) -> None:
        """Every partition of the transaction has all up to `last_sequence`. In one phase that commits it, unless the
        client was acknowledged more. Offsets and versions follow from the number."""
        number, vote = self.known.number, self.known.vote
        partitions = dict.fromkeys(self.known.partitions, last_sequence)
        is_committed = vote is not None and vote.is_one_phase and last_sequence >= max(vote.last_sequences.values())
        rows = AppliedRows(number, 10 * number) if is_committed else None
        fields = {"last_sequences": partitions, "rows": rows, **fields}
        self.taken_number = max(self.taken_number, fields.get("taken_number", -1))
        assert self.answer(Voted(ID, number, NO_VOTE if vote is None else vote.vote_id, **fields)) == Noted()

    def finish(self) -> None:
        """Every partition and group has done it. Offsets and versions follow from the number."""
        notice = self.last_finish
        number = notice.number
        results = {partition: AppliedRows(number, 10 * number) for partition, last in notice.partitions.items()}
        if not notice.is_commit:
            results = {}
        new_producer_id = self.new_producer_id() if notice.needs_producer_id else None
        assert self.answer(Finished(ID, number, results, new_producer_id)) == Noted()

    def commit_one(self, **fields: Any) -> ProducerIdentity:
        """A transaction of orders-0 that is committed, in one phase if it may be. The identity that its rows have."""
        rows = self.known.identity
        assert isinstance(self.add(ORDERS), Added)
        self.commit(last_sequences={ORDERS.name: 4})
        self.vote(**fields)
        if self.known.state.is_decided:
            self.finish()
        return rows

    def flush(self) -> None:
        """Log everything that may be logged later, except what must not be in the log yet."""
        self._log(kept=self._keep_back(may_wait=False))

    def log_in_time(self) -> None:
        """It is in the log, but for what is kept back."""
        self._log(kept=self._keep_back(may_wait=True))

    def _keep_back(self, *, may_wait: bool) -> Collection[int]:
        records = [decode_record(row) for row in self.later]
        return self._machine.keep_back(records, (), lambda _: self.state, now_ms=self.now_ms, may_wait=may_wait)

    def resolve(self, behind: int | None = 0) -> None:
        """The partition tells of so many transactions behind the log; None: its topic is deleted."""
        notice = self.last_resolve
        last_number = None if behind is None else notice.number + behind
        rows = AppliedRows(last_number, 10 * last_number) if last_number is not None and behind else None
        assert self.answer(Resolved(ID, notice.number, last_number, rows)) == Noted()

    def resolve_at_once(self) -> None:
        """If a partition is to be asked, it has nothing behind the log."""
        if self.known.is_unresolved:
            self.answer(DescribeTransaction(ID))
            self.resolve()

    @property
    def last_resolve(self) -> Resolve:
        return next(notice for notice in reversed(self.notices) if isinstance(notice, Resolve))

    @property
    def last_finish(self) -> Finish:
        return next(notice for notice in reversed(self.notices) if isinstance(notice, Finish))

    @property
    def last_vote(self) -> CollectVotes:
        return next(notice for notice in reversed(self.notices) if isinstance(notice, CollectVotes))

    @property
    def known(self) -> Transaction:
        assert self.state is not None
        return self.state

    # ---------------------------------------------------------------- time

    def wait(self, ms: int) -> None:
        """Time passes, and what runs out meanwhile does so in order."""
        end_ms = self.now_ms + ms
        while (timer := self.next_timer(end_ms)) is not None:
            self.run_out(timer)
        self.now_ms = end_ms

    def next_timer(self, end_ms: int) -> TransactionTimer | None:
        """The first that runs out by then."""
        timer = min(self.deadlines, key=self.deadlines.__getitem__, default=None)
        return None if timer is None or self.deadlines[timer] > end_ms else timer

    def run_out(self, timer: TransactionTimer) -> None:
        self.now_ms = max(self.now_ms, self.deadlines.pop(timer))
        self.say(timer)

    def say(self, timer: TransactionTimer) -> None:
        """Submit the timer as if it had run out before it was cancelled."""
        self._take(self._decide(timer, 0))

    def crash(self, *, before_all_is_logged: bool = False) -> None:
        """A new coordinator loads the log; whoever waited for the old one has to ask again."""
        if before_all_is_logged:
            del self.records[len(self.records) - len(self.later) :]
        else:
            self.rows += self.later
        self.later.clear()
        self.state = self.loaded()
        self.open.clear()
        self.notices.clear()
        self._finishing.clear()
        self.deadlines.clear()
        for change in () if self.state is None else resume_timers(self.state):
            assert isinstance(change.timer, TransactionTimer)
            self.deadlines[change.timer] = self.now_ms + change.after_ms
        self.check()

    def know_all(self) -> None:
        """Pretend that the coordinator has seen the whole of this epoch."""
        self.state = replace(self.known, may_lack_partitions=False, is_unresolved=False)

    def loaded(self) -> Transaction | None:
        """Return the state that the last row determines, as after compaction."""
        loaded = TransactionCodec().load([*self.rows, *self.later][-1:], now_ms=self.now_ms)
        assert loaded.faults == ()
        return loaded.states.get(ID)

    # ---------------------------------------------------------------- a step, and its checks

    def _decide(self, command: TransactionCommand, request_id: int) -> TransactionStep:
        return decide(self.state, command, request_id=request_id, rules=self.rules, now_ms=self.now_ms)

    def _take(self, step: TransactionStep) -> None:
        self.steps.append(step)
        for record in step.records:
            self.check_record(self.records[-1] if self.records else None, record)
            self.records.append(record)
            self.later.append(encode_record(record))
        self.state = step.state
        if step.records and not step.may_log_later:
            self._log()
        for change in step.timers:
            assert isinstance(change.timer, TransactionTimer)
            if isinstance(change, SetTimer):
                self.deadlines[change.timer] = self.now_ms + change.after_ms
            else:
                self.deadlines.pop(change.timer, None)
        for reply in step.replies:
            del self.open[reply.request_id]
            self.answers[reply.request_id] = reply.answer
        self.notices += step.notices
        self._finishing |= {notice.number for notice in step.notices if isinstance(notice, Finish)}
        self.check()

    def _log(self, kept: Collection[int] = ()) -> None:
        taken = [row for position, row in enumerate(self.later) if position not in kept]
        self.later = [self.later[position] for position in sorted(kept)]
        records = list(map(decode_record, taken))
        self.rows += taken
        if self.state is not None:
            self.state = self._machine.logged({ID: self.state}, records).get(ID, self.state)

    def check(self) -> None:
        self.check_memory_is_the_log()
        self.check_every_request_is_awaited()
        self.check_every_open_transaction_goes_on()

    def check_memory_is_the_log(self) -> None:
        """T12."""
        loaded = self.loaded()
        if self.state is None or loaded is None:
            assert self.state is loaded is None, f"T12: memory has {self.state}, the log {loaded}"
        else:
            assert logged(self.state) == logged(loaded), f"T12: memory has {self.state}, the log {loaded}"

    def check_every_request_is_awaited(self) -> None:
        state = self.state
        awaited = [] if state is None else [*state.awaiting_end, *(call.request_id for call in state.awaiting_init)]
        assert sorted(awaited) == sorted(self.open), f"T11: {sorted(awaited)} wait, expected {sorted(self.open)}"

    def check_every_open_transaction_goes_on(self) -> None:
        """A vote only beside a time-out, a decision only with somebody who carries it out, an id only until it may
        expire."""
        state = self.state
        if state is None:
            return
        kinds = {timer.kind for timer in self.deadlines}
        assert TimerKind.EXPIRE in kinds, "T11: the id never expires"
        if state.state is TransactionState.ONGOING:
            is_timed = TransactionTimer(TimerKind.TIMEOUT, ID, state.number) in self.deadlines
            is_driven = TimerKind.DRIVE in kinds or state.may_be_committed
            assert is_timed or is_driven, "T11: the transaction has no time-out"
        elif state.state.is_decided:
            is_driven = state.number in self._finishing or TimerKind.DRIVE in kinds
            assert is_driven, "T11: the decision is not carried out"
        else:
            assert not self.open, f"T11: {self.open} wait for the end of nothing"
        assert state.vote is None or state.state is TransactionState.ONGOING

    def check_record(self, before: LoggedRecord | None, after: LoggedRecord) -> None:
        if isinstance(after, TransactionExpired):
            assert isinstance(before, TransactionLogged)
            assert before.state.value in {"Empty", "CompleteCommit", "CompleteAbort"}
            return
        last = before if isinstance(before, TransactionLogged) else None
        self.check_states(last, after)
        if last is None:
            assert after.producer_epoch == 0, f"T7: a new id begins with epoch {after.producer_epoch}"
            earlier = [record.number for record in self.records if isinstance(record, TransactionLogged)]
            assert not earlier or after.number > max(earlier), "T4: a number is used again after the id has expired"
        else:
            self.check_epochs(last, after)
            assert after.update_ms >= last.update_ms

    def check_states(self, before: TransactionLogged | None, after: TransactionLogged) -> None:
        """T4: states by the table, numbers by one with each transaction, and no second decision about one."""
        state = after.state.value
        earlier = None if before is None else before.state.value
        assert earlier in _MAY_FOLLOW[state], f"T4: {state} after {earlier}"
        if before is None:
            return
        if is_taken_up(before, after):
            return
        begins = before.state.value not in ("Ongoing", "PrepareCommit", "PrepareAbort") and state != "Empty"
        if before.state.value == "CompleteCommit":  # the one behind it may be given up
            assert after.number in (before.number + begins, before.number + begins + 1)
        else:
            last = before.number if after.number == before.number else max(before.number, self.taken_number)
            assert after.number == last + begins, f"T4: number {after.number} after {before.number}"
        if before.state.value.startswith("Prepare"):
            expected = ({}, ()) if after.abort_cause is not None else (before.partitions, before.groups)
            assert (after.partitions, after.groups) == expected, "T4: a decision changed while it was carried out"

    @staticmethod
    def check_epochs(before: TransactionLogged, after: TransactionLogged) -> None:
        """T7: the epoch rises by one a record at most, with every decision and every initialisation; never above
        32,767, never back."""
        if is_taken_up(before, after):
            found = after.producer_epoch - before.producer_epoch, after.number - before.number
            assert found[0] == found[1] - (after.state.value == "Empty") > 0, f"T7: epoch and number rose by {found}"
            return
        is_raised = after.state.value in ("PrepareCommit", "PrepareAbort", "Empty")
        if after.producer_id == before.producer_id:
            raised = after.producer_epoch - before.producer_epoch
            assert raised == is_raised, f"T7: the epoch rose by {raised} with {after.state.value}"
        else:
            last = 32_766 if is_raised else 32_767
            found = (after.producer_epoch, before.producer_epoch)
            assert found == (0, last), f"T7: expected a new producer id with epoch 0 after {last}, found {found}"


def is_taken_up(before: TransactionLogged, after: TransactionLogged) -> bool:
    """A new coordinator has asked the only partition how far the id has come, or has left that behind."""
    if before.state is not TransactionState.COMPLETE_COMMIT:
        return False
    is_commit = after.state is TransactionState.COMPLETE_COMMIT
    return is_commit or after.number - before.number > ONE_PHASE_MAX


def bench_in(state: TransactionState, *, cause: AbortCause = AbortCause.CLIENT, epoch: int = 0) -> TransactionBench:
    """A bench whose id is in `state`, with a transaction on orders-0 that has epoch `epoch`; no call waits."""
    bench = TransactionBench()
    bench.init()
    for _ in range(epoch):
        assert isinstance(bench.init(), ProducerInitialized)
    if state is TransactionState.EMPTY:
        return bench
    bench.add(ORDERS)
    if state is TransactionState.ONGOING:
        return bench
    if state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT):
        bench.commit()
        bench.vote()
    else:
        _abort(bench, cause)
    bench.crash()  # calls that waited are made again or not
    bench.know_all()
    bench.wait(0)
    if not state.is_decided:
        bench.finish()
    assert bench.known.state is state
    return bench


def bench_at_the_last_epoch(state: TransactionState = TransactionState.EMPTY) -> TransactionBench:
    """The same where epoch 32,766 is the current one, or that of the transaction."""
    row = encode_record(TransactionLogged(ID, 40, 7, PRODUCER_EPOCH_MAX, TIMEOUT_MS, TransactionState.EMPTY, BEGIN_MS))
    bench = TransactionBench(first_producer_id=8)
    bench.rows.append(row)
    bench.records.append(decode_record(row))
    bench.crash()
    bench.know_all()
    if state is not TransactionState.EMPTY:
        bench.add(ORDERS)
    if state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT):
        bench.commit()
        bench.vote()
    elif state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT):
        bench.abort()
    if state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        bench.finish()
    assert bench.known.state is state
    return bench


def _abort(bench: TransactionBench, cause: AbortCause) -> None:
    match cause:
        case AbortCause.CLIENT:
            bench.abort()
        case AbortCause.TIMEOUT:
            bench.wait(TIMEOUT_MS)
        case AbortCause.VOTE:
            bench.commit(last_sequences={ORDERS.name: 5})
            bench.vote(4)
        case AbortCause.OPERATOR:
            bench.ask(AbortTransaction(ID))
        case AbortCause.NEW_INSTANCE:
            bench.init()
        case AbortCause.FENCE:
            bench.ask(bench.with_producer_id(FenceProducer(ID)))
