"""Any run of calls, delays, doubled messages, time-outs and crashes on a transactional id with two instances of its
producer: one decision a transaction, one epoch for each, and no message reaches a later one.

Instances here do what the SDK's do, but at any time; every message that was ever sent, by them or by what carries
decisions out, may come again, and a coordinator may crash between any two of them. What holds of each record, and of
memory and log, `TransactionBench` watches by itself; below, each promise has its name (T1 ...: the invariants of the
simulation). At the end everything behaves, and the id must be free for a new transaction. Each promise is broken once,
and seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import bus.transactions.decisions as decisions
import bus.transactions.endings as endings
import bus.transactions.epochs as epochs
import bus.transactions.loading as loading
import tests.support.transaction_bench as bench_module
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.transactions.changes import CollectVotes, Finish, Resolve, TransactionNotice, TransactionStep
from bus.transactions.records import TransactionLogged, decode_record, encode_record
from bus.transactions.requests import (
    AbortTransaction,
    AddOffsets,
    AddPartitions,
    EndTransaction,
    FenceProducer,
    Finished,
    InitProducerId,
    ProducerInitialized,
    Resolved,
    TimerKind,
    TransactionAnswer,
    TransactionCommand,
    TransactionEnded,
    TransactionTimer,
    Voted,
)
from bus.transactions.state import (
    NO_PRODUCER_EPOCH,
    AbortCause,
    AppliedRows,
    ProducerIdentity,
    Transaction,
    TransactionPartition,
    TransactionState,
)
from tests.simulation.transaction_bugs import broken_ends
from tests.support.transaction_bench import AUDIT, BEGIN_MS, DESK, ID, ORDERS, TIMEOUT_MS, TransactionBench

PARTITIONS = (ORDERS, AUDIT)
INSTANCES = (0, 1)
OPERATOR = -1
ROUNDS = 10
# What a client may be told (T13), of those that this machine's clients can bring about.
CODES = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_REQUEST,  # a commit that names other sequences than the one that it repeats
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # a partition is asked what it has committed last; retry
}
LAST_ERRORS = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@dataclass
class Instance:
    number: int
    identity: ProducerIdentity | None = None
    acknowledged: dict[TopicPartition, int] = field(default_factory=dict)
    ending: bool | None = None  # the call that it has to repeat
    names_ends: bool = True  # in that call
    request: int | None = None  # whose answer it waits for; those of earlier calls it does not hear


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = TransactionBench(first_producer_id=8)
        self.instances = [Instance(number) for number in INSTANCES]
        self.sent: list[tuple[int, TransactionCommand]] = []  # with the instance that sent it
        self.timers: set[TransactionTimer] = set()
        self.notices: list[TransactionNotice] = []
        self.senders: dict[int, tuple[int, TransactionCommand]] = {}  # by request id
        self.heard = 0  # of the bench's steps
        self.owner: int | None = None  # the instance that was initialised last
        self.told: dict[ProducerIdentity, int] = {}
        self.newest: ProducerIdentity | None = None  # told last, and neither used up nor fenced since
        self.of_newest: set[int] = set()  # requests that name it
        self.numbers: dict[ProducerIdentity, int] = {}  # of the transaction that has the identity
        self.decisions: dict[ProducerIdentity, TransactionState] = {}
        self.staged: dict[tuple[ProducerIdentity, TransactionPartition], int] = {}
        self.acknowledged: dict[tuple[ProducerIdentity, TransactionPartition], int] = {}
        self.results: dict[ProducerIdentity, Any] = {}

    @initialize(epoch=st.sampled_from([None, 32_763, 32_764, 32_765, 32_766]))
    def begin(self, epoch: int | None) -> None:
        """At the beginning, or near the end of the epochs."""
        if epoch is None:
            return
        row = encode_record(TransactionLogged(ID, 40, 7, epoch, TIMEOUT_MS, TransactionState.EMPTY, BEGIN_MS))
        self.bench.rows.append(row)
        self.bench.records.append(decode_record(row))
        self.bench.crash()

    # ---------------------------------------------------------------- what instances do

    @rule(
        who=st.sampled_from(INSTANCES),
        steps=st.integers(1, 6),
        way=st.sampled_from(["commit", "abort", "recover"]),
        is_refused=st.booleans(),
    )
    def go_on(self, who: int, steps: int, way: str, is_refused: bool) -> None:
        """Take the next steps of an instance that meets no disturbance."""
        for _ in range(steps):
            instance = self.instances[who]
            if instance.request is not None:
                self.carry_out(is_refused)
            elif instance.identity is None:
                self.initialise(who)
            elif instance.ending is None and not instance.acknowledged:
                self.produce(who, ORDERS)
            elif way == "recover" and instance.ending is None:
                self.initialise_again(who)
            else:
                self.end(who, way == "commit")

    @rule(who=st.sampled_from(INSTANCES))
    def initialise(self, who: int) -> None:
        """The process of the instance starts."""
        self.instances[who] = Instance(who)
        self.send(who, InitProducerId(ID, TIMEOUT_MS))

    @rule(who=st.sampled_from(INSTANCES))
    def initialise_again(self, who: int) -> None:
        """After an error that it may recover from (KIP-360)."""
        instance = self.instances[who]
        if instance.identity is not None:
            who_it_is = instance.identity
            self.send(who, InitProducerId(ID, TIMEOUT_MS, who_it_is.producer_id, who_it_is.producer_epoch))

    @rule(who=st.sampled_from(INSTANCES), partition=st.sampled_from(PARTITIONS))
    def produce(self, who: int, partition: TransactionPartition) -> None:
        """The leader stages the batch beside its call, whatever the answer."""
        instance = self.instances[who]
        if instance.identity is None or instance.ending is not None:
            return
        identity = instance.identity
        place = (identity, partition)
        self.staged[place] = self.staged.get(place, -1) + 1
        answer = self.send(who, AddPartitions(ID, identity.producer_id, identity.producer_epoch, (partition,)))
        if answer is not None and not isinstance(answer, Refused):
            instance.acknowledged[partition.name] = self.acknowledged[place] = self.staged[place]

    @rule(who=st.sampled_from(INSTANCES))
    def send_offsets(self, who: int) -> None:
        identity = self.instances[who].identity
        if identity is not None and self.instances[who].ending is None:
            self.send(who, AddOffsets(ID, identity.producer_id, identity.producer_epoch, DESK))

    @rule(who=st.sampled_from(INSTANCES), is_commit=st.sampled_from([True, True, False]), names_ends=st.booleans())
    def end(self, who: int, is_commit: bool, names_ends: bool = True) -> None:
        """After an answer that tells nothing it repeats the same call, never the opposite."""
        instance = self.instances[who]
        if instance.identity is None:
            return
        if instance.ending is None:
            instance.ending, instance.names_ends = is_commit, names_ends
        sequences = dict(instance.acknowledged) if instance.ending and instance.names_ends else {}
        identity = instance.identity
        self.send(who, EndTransaction(ID, identity.producer_id, identity.producer_epoch, instance.ending, sequences))

    @rule(is_fence=st.booleans())
    def operate(self, is_fence: bool) -> None:
        self.send(OPERATOR, FenceProducer(ID) if is_fence else AbortTransaction(ID))

    # ---------------------------------------------------------------- what carries decisions out

    @precondition(lambda self: self.notices)
    @rule(is_refused=st.booleans())
    def carry_out(self, is_refused: bool) -> None:
        """Carry out the coordinator's last request."""
        if self.notices:
            self.answer_to(self.notices[-1], is_refused=is_refused)

    @precondition(lambda self: self.notices)
    @rule(data=st.data(), is_refused=st.booleans())
    def carry_out_late(self, data: st.DataObject, is_refused: bool) -> None:
        """Carry out any earlier request again: of a coordinator that has died, or one that was carried out before."""
        self.answer_to(data.draw(st.sampled_from(self.notices[-8:])), is_refused=is_refused)

    def answer_to(self, notice: TransactionNotice, *, is_refused: bool = False) -> None:
        if isinstance(notice, Resolve):  # no commit is in one phase here, so the partition has no later one
            self.send(OPERATOR, Resolved(ID, notice.number, notice.number))
            return
        rows = ProducerIdentity(notice.producer_id, notice.producer_epoch)
        if isinstance(notice, Finish):
            results = {p: AppliedRows(notice.number, 10 * notice.number) for p in notice.partitions}
            self.send(OPERATOR, Finished(ID, notice.number, results if notice.is_commit else {}))
            return
        refused = Refused(ErrorCode.INVALID_REQUEST, "group desk: no pending offsets") if is_refused else None
        found = {partition: self.staged.get((rows, partition), -1) for partition in notice.partitions}
        self.send(OPERATOR, Voted(ID, notice.number, notice.vote_id, found, refused=refused))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def come_late(self, data: st.DataObject) -> None:
        """A message that was sent before comes (again)."""
        kind = data.draw(st.sampled_from(sorted({type(command).__name__ for _, command in self.sent})))
        sent = [(who, command) for who, command in self.sent if type(command).__name__ == kind]
        self.carry(*data.draw(st.sampled_from(sent)))

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def run_out_late(self, data: st.DataObject) -> None:
        self.run_out_late_timer(data.draw(st.sampled_from(sorted(self.timers, key=repr))))

    def run_out_late_timer(self, timer: TransactionTimer) -> None:
        before, number = self.bench.state, self.number
        self.bench.say(timer)
        if timer.kind is TimerKind.TIMEOUT and timer.number < number:
            assert self.bench.state == before, "T5: the time-out of an earlier transaction changed a later one"
        self.hear()

    @rule(ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS, 8 * 24 * 3_600_000]))
    def wait(self, ms: int) -> None:
        self.bench.wait(ms)
        self.hear()

    @rule()
    def log_in_time(self) -> None:
        self.bench.log_in_time()

    @rule(is_early=st.booleans())
    def crash(self, is_early: bool = False) -> None:
        """The calls that wait fail."""
        self.bench.crash(before_all_is_logged=is_early)
        self.hear()
        for instance in self.instances:
            instance.request = None

    # ---------------------------------------------------------------- messages

    def send(self, who: int, command: TransactionCommand) -> TransactionAnswer | None:
        self.sent.append((who, command))
        request = self.carry(who, command)
        if who != OPERATOR:
            self.instances[who].request = request
            self.hear_answer(self.instances[who])
        return self.bench.answers.get(request)

    def carry(self, who: int, command: TransactionCommand) -> int:
        """To the coordinator; a producer id that was never given is the coordinator's to add."""
        before = self.bench.state
        is_over = self.is_of_an_earlier_transaction(command)
        carried = command
        if isinstance(command, (InitProducerId, FenceProducer)):
            carried = self.bench.with_producer_id(command)
        elif isinstance(command, Finished):
            carried = replace(command, new_producer_id=self.bench.new_producer_id())
        self.note_newest(command)
        request = self.bench.ask(carried)
        self.senders[request] = (who, command)
        if is_over:
            assert self.bench.state == before, f"T5: {command} changed a later transaction"
        self.hear()
        return request

    def note_newest(self, command: TransactionCommand) -> None:
        if isinstance(command, FenceProducer) or (isinstance(command, InitProducerId) and command.producer_id == -1):
            self.newest = None
            self.of_newest.clear()
        elif isinstance(command, (AddPartitions, AddOffsets, EndTransaction, InitProducerId)):
            if ProducerIdentity(command.producer_id, command.producer_epoch) != self.newest:
                return
            self.of_newest.add(self.bench.last_request_id + 1)
            if isinstance(command, (EndTransaction, InitProducerId)):
                self.newest = None

    @property
    def number(self) -> int:
        return -1 if self.bench.state is None else self.bench.state.number

    def is_of_an_earlier_transaction(self, command: TransactionCommand) -> bool:
        """Or of the last one, if that has ended; or of an earlier vote."""
        state = self.bench.state
        if state is None:
            return False
        ended = state.number + (not state.state.is_open)
        match command:
            case Voted(number=number, vote_id=vote_id):
                is_over = state.vote is None or state.vote.vote_id != vote_id
                return number < ended or is_over
            case Finished(number=number):
                return number < ended
            case AddPartitions() | AddOffsets() | EndTransaction() | InitProducerId():
                identity = ProducerIdentity(command.producer_id, command.producer_epoch)
                return self.numbers.get(identity, ended) < ended
            case _:
                return False

    # ---------------------------------------------------------------- what comes back

    def hear(self) -> None:
        steps = self.bench.steps[self.heard :]
        self.heard = len(self.bench.steps)
        for step in steps:
            for record in step.records:
                if isinstance(record, TransactionLogged):
                    self.note_record(record)
            for reply in step.replies:
                if isinstance(reply.answer, Refused) and reply.answer.code in LAST_ERRORS and step.state is not None:
                    assert reply.request_id not in self.of_newest, f"T7: what was told is not known: {reply.answer}"
                if reply.request_id in self.senders:
                    self.note_answer(*self.senders[reply.request_id], reply.answer)
            self.notices += step.notices
            self.timers |= {change.timer for change in step.timers if isinstance(change.timer, TransactionTimer)}
        for instance in self.instances:
            self.hear_answer(instance)

    def hear_answer(self, instance: Instance) -> None:
        answer = self.bench.answers.get(instance.request) if instance.request is not None else None
        if answer is None:
            return
        instance.request = None
        match answer:
            case ProducerInitialized(producer_id, epoch) | TransactionEnded(producer_id, epoch):
                instance.identity = ProducerIdentity(producer_id, epoch)
                instance.acknowledged, instance.ending = {}, None
            case Refused(ErrorCode.TRANSACTION_ABORTABLE):
                instance.ending = False
            case Refused(code) if code in LAST_ERRORS:
                self.instances[instance.number] = Instance(instance.number)

    def note_record(self, record: TransactionLogged) -> None:
        """T4: one decision about each transaction."""
        identity = Transaction(**{f: getattr(record, f) for f in TransactionLogged.__dataclass_fields__}).open_identity
        if identity is None:
            if record.state is TransactionState.COMPLETE_COMMIT:
                self.results[self.identity_of(record.number)] = record.results
            return
        assert self.numbers.setdefault(identity, record.number) == record.number, f"T7: two transactions of {identity}"
        if record.state.is_decided:
            assert self.decisions.setdefault(identity, record.state) is record.state, f"T4: {identity} decided twice"
        if record.state is TransactionState.PREPARE_COMMIT:
            self.check_commit(identity, record)

    def identity_of(self, number: int) -> ProducerIdentity:
        """The last one: of an earlier one the log knows nothing."""
        return next(identity for identity, found in reversed(self.numbers.items()) if found == number)

    def check_commit(self, identity: ProducerIdentity, record: TransactionLogged) -> None:
        assert self.told[identity] == self.owner, "T7: an older instance's transaction commits"
        for partition, last_sequence in record.partitions.items():
            staged = self.staged.get((identity, partition), -1)
            assert last_sequence <= staged, f"T1: {partition} commits {last_sequence} of {staged}"
        for (rows, partition), last_sequence in self.acknowledged.items():
            if rows == identity:
                committed = record.partitions.get(partition, -1)
                assert committed >= last_sequence, (
                    f"T1: {partition} has {committed} of the acknowledged {last_sequence}"
                )
        assert not self.refused_votes(record.number), "T1: committed though a group lacks its offsets"

    def refused_votes(self, number: int) -> bool:
        """All votes on it were refused."""
        votes = [vote for _, vote in self.sent if isinstance(vote, Voted) and vote.number == number]
        return all(vote.refused is not None for vote in votes)

    def note_answer(self, who: int, command: TransactionCommand, answer: TransactionAnswer) -> None:
        match answer:
            case Refused(code):
                assert code in CODES, f"T13: {answer}"
            case ProducerInitialized(producer_id, epoch):
                self.note_identity(who, ProducerIdentity(producer_id, epoch))
                if isinstance(command, FenceProducer) or command.producer_id == -1:  # type: ignore[union-attr]
                    self.owner = who
            case TransactionEnded(producer_id, epoch) if isinstance(command, EndTransaction):
                self.note_identity(who, ProducerIdentity(producer_id, epoch))
                self.note_end(command, answer)

    def note_identity(self, who: int, identity: ProducerIdentity) -> None:
        if identity not in self.told:
            self.newest = identity
        assert self.told.setdefault(identity, who) == who, f"T7: two instances have {identity}"
        assert identity.producer_epoch <= 32_766, f"T7: {identity} was told"

    def note_end(self, command: EndTransaction, answer: TransactionEnded) -> None:
        """T3: what is answered is what was decided, and stays so."""
        identity = ProducerIdentity(command.producer_id, command.producer_epoch)
        decided = TransactionState.PREPARE_COMMIT if command.is_commit else TransactionState.PREPARE_ABORT
        assert self.decisions[identity] is decided, f"T3: {identity} was {self.decisions[identity].value}"
        if command.is_commit:
            assert answer.versions == self.results[identity], "T3: the answer names other versions"
            assert answer.versions.keys() == self.results[identity].keys()

    # ---------------------------------------------------------------- at the end

    def teardown(self) -> None:
        """T11: every transaction ends, and a new one of the same id begins and commits."""
        self.bench.crash(before_all_is_logged=True)
        self.bench.wait(TIMEOUT_MS)
        self.hear()
        for notice in self.notices[::-1]:
            if isinstance(notice, Finish) and notice.number == self.number:
                self.answer_to(notice)
                break
        self.instances[0] = Instance(0)
        answer = self.send(0, InitProducerId(ID, TIMEOUT_MS))
        if isinstance(answer, Refused) and answer.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.answer_to(self.notices[-1])
            answer = self.send(0, InitProducerId(ID, TIMEOUT_MS))
        assert isinstance(answer, ProducerInitialized), f"T11: no new producer: {answer}"
        self.produce(0, ORDERS)
        self.end(0, True)
        self.answer_to(self.bench.last_vote)
        self.answer_to(self.bench.last_finish)
        assert self.bench.known.state is TransactionState.COMPLETE_COMMIT, "T11: no new transaction"
        assert self.bench.known.results.keys() == {ORDERS}


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(stateful_step_count=50)


# ---------------------------------------------------------------- broken promises


def _change(
    monkeypatch: pytest.MonkeyPatch, alter: Callable[[TransactionStep, dict[str, Any]], dict[str, Any]]
) -> None:
    """Every record with what `alter` makes of it; what `apply` asserts is off, or it would find the bug first."""
    change = TransactionStep.change
    monkeypatch.setattr(TransactionStep, "change", lambda step, **fields: change(step, **alter(step, fields)))
    monkeypatch.setattr("bus.transactions.changes._check_change", lambda before, after: None)


def _no_epoch_for_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-6119, 5231."""

    def alter(step: TransactionStep, fields: dict[str, Any]) -> dict[str, Any]:
        is_timeout = fields.get("abort_cause") is AbortCause.TIMEOUT
        return {**fields, "producer_epoch": step.transaction.producer_epoch} if is_timeout else fields

    _change(monkeypatch, alter)


def _two_epochs_for_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-19367."""

    def alter(step: TransactionStep, fields: dict[str, Any]) -> dict[str, Any]:
        is_fence = fields.get("abort_cause") is AbortCause.NEW_INSTANCE
        return {**fields, "producer_epoch": step.transaction.producer_epoch + 2} if is_fence else fields

    _change(monkeypatch, alter)


def _number_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def alter(step: TransactionStep, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "number"}

    _change(monkeypatch, alter)


def _new_instance_has_a_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instance before repeats its call, and is told the epoch of the new one."""

    def alter(step: TransactionStep, fields: dict[str, Any]) -> dict[str, Any]:
        is_new = fields.get("last_producer_epoch") == NO_PRODUCER_EPOCH and fields["state"] is TransactionState.EMPTY
        return {**fields, "last_producer_epoch": step.transaction.producer_epoch} if is_new else fields

    _change(monkeypatch, alter)


def _memory_changes_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-9666."""
    record = TransactionStep.record

    def record_in_memory(step: TransactionStep, *records: Any) -> None:
        record(step, *records)
        if step.state is not None and len(step.state.partitions) > 1:
            step.records = [one for one in step.records if one not in records]

    monkeypatch.setattr(TransactionStep, "record", record_in_memory)


def _results_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are in memory only: the answer of the next coordinator is another one."""
    encode = bench_module.encode_record

    def without_results(record: Any) -> Any:
        return encode(replace(record, results={}) if isinstance(record, TransactionLogged) else record)

    monkeypatch.setattr(bench_module, "encode_record", without_results)


def _late_completion_counts_for_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-16352, 9777, 10080."""
    decide_finished = decisions.decide_finished

    def of_the_current_one(step: TransactionStep, command: Finished, *, request_id: int) -> bool:
        number = command.number if step.state is None else step.state.number
        return decide_finished(step, replace(command, number=number), request_id=request_id)

    monkeypatch.setattr(decisions, "decide_finished", of_the_current_one)


def _late_timeout_counts_for_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    time_out = decisions.time_out
    monkeypatch.setattr(decisions, "time_out", lambda step, number: time_out(step, step.transaction.number))


def _new_instance_does_not_end_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told its epoch before the transaction of the one before is decided."""

    def tell(step: TransactionStep, call: Any, cause: AbortCause) -> None:
        transaction = step.transaction
        step.reply(call.request_id, ProducerInitialized(transaction.producer_id, transaction.producer_epoch))

    monkeypatch.setattr(epochs, "_initialize", tell)


def _late_initialisation_ends_the_next_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abort what is ongoing before looking at the epoch, as Kafka does."""
    initialize = epochs._initialize

    def as_if_new(step: TransactionStep, call: Any, cause: AbortCause) -> None:
        is_ongoing = step.transaction.state is TransactionState.ONGOING
        initialize(step, replace(call, expected=None) if is_ongoing else call, cause)

    monkeypatch.setattr(epochs, "_initialize", as_if_new)


def _late_vote_counts_for_the_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_voted = decisions.decide_voted

    def of_the_current_one(step: TransactionStep, command: Voted, *, request_id: int) -> None:
        vote = None if step.state is None else step.state.vote
        vote_id = command.vote_id if vote is None else vote.vote_id
        decide_voted(step, replace(command, vote_id=vote_id), request_id=request_id)

    monkeypatch.setattr(decisions, "decide_voted", of_the_current_one)


def _refused_vote_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_voted = decisions.decide_voted

    def all_is_well(step: TransactionStep, command: Voted, *, request_id: int) -> None:
        decide_voted(step, replace(command, refused=None), request_id=request_id)

    monkeypatch.setattr(decisions, "decide_voted", all_is_well)


def _more_is_committed_than_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        endings, "_pin", lambda transaction, voted: {p: last + 1 for p, last in voted.last_sequences.items()}
    )


def _decision_is_not_carried_out_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_driving(transaction: Transaction) -> Any:
        return tuple(t for t in loading.resume_timers(transaction) if t.timer.kind is not TimerKind.DRIVE)  # type: ignore[union-attr]

    monkeypatch.setattr(bench_module, "resume_timers", without_driving)


def _new_producer_id_is_logged_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end at the last epoch, too, is answered before it is in the log; the next coordinator has another id."""
    monkeypatch.setattr(TransactionStep, "change", _later(TransactionStep.change))


def _later(change: Callable[..., None]) -> Callable[..., None]:
    def later(step: TransactionStep, **fields: Any) -> None:
        change(step, **fields)
        step._later_count += fields.get("state") is TransactionState.COMPLETE_ABORT and fields["producer_epoch"] == 0

    return later


def _next_epoch_is_unknown_while_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator was gone before the end was in the log."""
    initialize = epochs._initialize

    def as_if_not_told(step: TransactionStep, call: Any, cause: AbortCause) -> None:
        if step.transaction.state.is_decided and call.expected == step.transaction.identity:
            step.reply(call.request_id, epochs._fenced(step.transaction, call.expected))
        else:
            initialize(step, call, cause)

    monkeypatch.setattr(epochs, "_initialize", as_if_not_told)


def _commit_without_ends_leaves_out_what_was_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    load = bench_module.TransactionBench.loaded

    def as_if_all_were_known(bench: TransactionBench) -> Transaction | None:
        loaded = load(bench)
        return None if loaded is None else replace(loaded, may_lack_partitions=False)

    monkeypatch.setattr(bench_module.TransactionBench, "loaded", as_if_all_were_known)


def _call_that_waits_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "give_epochs", lambda step: None)


def _commit_is_answered_after_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-17754, its other half: the answer does not look at the decision."""

    end_again = endings._end_again

    def say_done(step: TransactionStep, command: EndTransaction, *, request_id: int) -> None:
        if step.transaction.state is TransactionState.COMPLETE_ABORT:
            step.reply(request_id, endings._ended(step.transaction))
        else:
            end_again(step, command, request_id=request_id)

    monkeypatch.setattr(endings, "_end_again", say_done)


def _commit_is_refused_with_an_error_that_no_client_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-14417."""
    monkeypatch.setattr(
        endings, "_refuse_aborted", lambda transaction: Refused(ErrorCode.REQUEST_TIMED_OUT, "it was aborted")
    )


def _bugs() -> Iterator[tuple[Callable[[pytest.MonkeyPatch], None], str]]:
    yield _no_epoch_for_a_timeout, "T7: the epoch rose by 0"
    yield _two_epochs_for_a_fence, "T7: the epoch rose by 2"
    yield _number_is_used_again, "T4: number"
    yield _new_instance_has_a_past, "T7: two instances have"
    yield _memory_changes_without_a_record, "T12"
    yield _results_are_not_written, "T12"
    yield broken_ends, "T5: EndTransaction"
    yield _late_completion_counts_for_the_next_transaction, "T5: Finished"
    yield _late_timeout_counts_for_the_next_transaction, "T5: the time-out"
    yield _new_instance_does_not_end_what_is_open, "T7: (an older instance|two instances|.* was told)"
    yield _late_initialisation_ends_the_next_transaction, "T5: InitProducerId"
    yield _late_vote_counts_for_the_one_under_way, "T5: Voted"
    yield _refused_vote_commits, "T1: committed though"
    yield _more_is_committed_than_is_staged, "T1: .* commits"
    yield (
        _decision_is_not_carried_out_after_a_load,
        "T11: the decision is not carried out|T11: the transaction has no time-out",
    )
    yield _call_that_waits_is_lost, "T11: .* wait for the end of nothing"
    yield _new_producer_id_is_logged_later, "T7: what was told is not known"
    yield _next_epoch_is_unknown_while_the_last_one_ends, "T7: what was told is not known"
    yield _commit_without_ends_leaves_out_what_was_not_logged, "T1: orders-0 has -1 of the acknowledged 0"
    yield _commit_is_answered_after_an_abort, "T3"
    yield _commit_is_refused_with_an_error_that_no_client_knows, "T13"


BUGS = {bug.__name__.strip("_"): (bug, message) for bug, message in _bugs()}


class Story:
    """One run of the machine in which everything happens once, late and doubled: every bug has its moment."""

    def __init__(self) -> None:
        self.machine = TransactionMachine()
        self.machine.begin(32_764)

    def tell(self) -> None:
        self.commit_of_two_coordinators()
        self.abort_while_messages_of_the_commit_arrive()
        self.time_out()
        self.recovery()
        self.instances_follow_each_other()
        self.refused_vote()
        self.end_that_is_not_logged_yet()
        self.partition_that_is_not_logged_yet()
        self.machine.teardown()

    def commit_of_two_coordinators(self) -> None:
        machine = self.machine
        machine.initialise(0)
        machine.produce(0, ORDERS)
        machine.produce(0, AUDIT)
        machine.send_offsets(0)
        machine.end(0, True)
        first = machine.bench.last_vote
        machine.crash()
        machine.end(0, True)
        machine.answer_to(first)
        machine.answer_to(machine.bench.last_vote)
        machine.crash()
        machine.wait(1)
        machine.end(0, True)
        self.finish()
        self.again(EndTransaction)

    def abort_while_messages_of_the_commit_arrive(self) -> None:
        machine = self.machine
        machine.produce(0, ORDERS)
        self.again(EndTransaction)
        machine.run_out_late_timer(min(machine.timers, key=lambda timer: timer.number or machine.number))
        late = next(command for _, command in machine.sent if isinstance(command, Finished))
        machine.end(0, False)
        machine.carry(OPERATOR, late)
        aborted = machine.instances[0].identity
        self.finish()
        assert aborted is not None
        commit = EndTransaction(ID, aborted.producer_id, aborted.producer_epoch, True)
        machine.carry(0, commit)
        machine.crash(is_early=True)

    def time_out(self) -> None:
        machine = self.machine
        machine.produce(0, ORDERS)
        machine.wait(TIMEOUT_MS)
        machine.end(0, True)
        self.finish()
        machine.end(0, False)

    def recovery(self) -> None:
        machine = self.machine
        machine.produce(0, ORDERS)
        machine.initialise_again(0)
        self.finish()
        machine.produce(0, ORDERS)
        self.again(InitProducerId)

    def instances_follow_each_other(self) -> None:
        machine = self.machine
        machine.initialise(1)
        machine.initialise_again(0)
        self.finish()
        machine.initialise(0)
        machine.initialise_again(1)

    def refused_vote(self) -> None:
        machine = self.machine
        machine.produce(0, ORDERS)
        machine.end(0, True)
        machine.answer_to(machine.bench.last_vote, is_refused=True)
        self.finish()

    def end_that_is_not_logged_yet(self) -> None:
        machine = self.machine
        machine.initialise(0)
        machine.produce(0, ORDERS)
        machine.end(0, False)
        self.finish()
        machine.crash(is_early=True)
        machine.initialise_again(0)
        machine.wait(1)
        self.finish()
        machine.produce(0, ORDERS)

    def partition_that_is_not_logged_yet(self) -> None:
        machine = self.machine
        machine.initialise(0)
        self.finish()
        machine.produce(0, ORDERS)
        machine.crash(is_early=True)
        machine.produce(0, AUDIT)
        machine.end(0, True, names_ends=False)
        if any(isinstance(notice, CollectVotes) for notice in machine.bench.notices):
            machine.answer_to(machine.bench.last_vote)
        machine.end(0, False)
        self.finish()
        machine.produce(0, ORDERS)
        machine.crash(is_early=True)
        machine.wait(1)
        self.finish()
        machine.end(0, True)
        machine.end(0, False)
        self.finish()

    def finish(self) -> None:
        self.machine.answer_to(self.machine.bench.last_finish)

    def again(self, kind: type[TransactionCommand]) -> None:
        """The last message of its kind comes once more."""
        who, command = next(sent for sent in reversed(self.machine.sent) if isinstance(sent[1], kind))
        self.machine.carry(who, command)


def test_story_is_told_to_its_end() -> None:
    story = Story()
    story.tell()
    causes = {one.abort_cause for one in story.machine.bench.records if isinstance(one, TransactionLogged)}
    assert causes == {None, *AbortCause} - {AbortCause.OPERATOR, AbortCause.FENCE}


@pytest.mark.parametrize(("bug", "message"), BUGS.values(), ids=BUGS)
def test_machine_finds_a_broken_promise(
    bug: Callable[[pytest.MonkeyPatch], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        Story().tell()
