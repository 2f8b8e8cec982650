"""Promises of transactions, judged by the logs of their coordinators and of the groups, as they come to the disk, by
what clients ask for and what brokers answer. The tables are judged in transaction_invariants.py."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bus.client.producer.transaction_manager import Call, Verdict, judge
from bus.consumer_groups.records import OffsetCommitted, TxnOffsetsEnded, TxnOffsetsPending
from bus.errors import BusError, ErrorCode
from bus.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from bus.transactions.records import TransactionLogged
from bus.transactions.state import ONE_PHASE_MAX, first_number
from tests.simulation.broker_invariants import Invariant
from tests.simulation.coordinator_journal import CoordinatorJournal, Entry, Identity, key_of, rows_identity

if TYPE_CHECKING:
    from tests.simulation.broker_network import Answered
    from tests.simulation.broker_world import BrokerLife, BrokerWorld

# Kafka's table without Dead and PrepareEpochFence, and with the abort of what never arrived: state -> those before it.
_FOLLOWS: Mapping[str, Collection[str]] = {
    "Empty": ("Empty", "CompleteCommit", "CompleteAbort"),
    "Ongoing": ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort"),
    "PrepareCommit": ("Ongoing",),
    "PrepareAbort": ("Ongoing", "Empty", "CompleteCommit", "CompleteAbort"),
    "CompleteCommit": ("PrepareCommit", "CompleteCommit"),
    "CompleteAbort": ("PrepareAbort",),
}
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
_EPOCH_MAX = 32_766  # the last one that a client is given
_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class JournalInvariant(Invariant):
    """One that goes by the logs of coordinators."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world)
        self.journal = journal

    def changes(self) -> Iterator[tuple[TransactionLogged | None, TransactionLogged]]:
        """Return each record of a transactional id in the version that has just come, with the record before it."""
        return iter(self.journal.changes)


class DecisionsAreFinal(JournalInvariant):
    """A transaction has one decision at most, states follow each other as the table says, and numbers grow by one. What
    a call of an end was answered fits the decision, and the same call is answered in the same way by every coordinator,
    until the instance has gone on. Only where a topic is deleted, and with it the proofs of what was committed behind
    the log, a producer aborts what it has, whether that was committed or not; and it is fenced by nothing but another
    instance."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world, journal)
        # Of ends that were answered without an error: the next identity, and where the rows are.
        self._answers: dict[tuple[Identity, bool], tuple[Identity, dict[Any, tuple[int, int]]]] = {}
        self.left_behind: set[Identity] = set()  # that were aborted because a topic was deleted
        self._begun: dict[int, int] = {}  # by producer id: the highest epoch that a batch was ever sent with

    def on_asked(self, who: str, method: str, message: Any) -> None:
        if method in ("ProduceOnce", "Produce") and message.transactional_id:
            for part in message.partitions:
                self._begun[part.producer_id] = max(self._begun.get(part.producer_id, -1), part.producer_epoch)

    def on_version(self, version: Any) -> None:
        for before, after in self.changes():
            name, state = after.transactional_id, after.state.value
            if before is None:
                assert state == "Empty", f"{name} begins as {after}"
                last = self.journal.expired.get(name, -1)
                is_by_clock = after.number < first_number(0)
                assert is_by_clock or after.number > last, (
                    f"{name} had transaction {last} before it expired, and begins as {after}"
                )
                continue
            was = before.state.value
            assert was in _FOLLOWS[state], f"{name}: {state} follows {was}: {before}, {after}"
            begins = was not in _OPEN and state in _OPEN
            if is_taken_up(before, after):
                if state == "Empty":
                    topic_ids = {each.topic_id for each in before.partitions}
                    is_there = topic_ids <= self.world.journal.state.topic_names.keys()
                    assert not is_there, f"{name}: {after} leaves {before} behind, whose topic is there"
                else:
                    is_proved = self.journal.is_proved(name, after.number)
                    assert is_proved, f"{name}: {after} follows {before}, and no partition has it"
            else:
                is_skipped = self.journal.is_given_up(name, before.number + 1) and (begins or state == "Empty")
                expected = {before.number + begins, before.number + begins + is_skipped}
                if before.number < first_number(0):  # above the marks of lives that began at another clock
                    expected |= {number + 1 for number in self.journal.numbers_proved(name)}
                assert after.number in expected, f"{name}: {after} follows {before}"
            is_aborted, where = state == "PrepareAbort", f"{after} is aborted"
            assert not (is_aborted and self.journal.is_proved(name, after.number)), f"{where}, a partition has its rows"
            states = self.journal.ids[name].states_of(after.number)
            if self.journal.is_given_up(name, after.number) and state in ("Ongoing", "PrepareCommit"):
                # Its coordinator asked the partition to commit it, which lacked rows, and then logs all that it knows.
                is_refused = state == "Ongoing" and "PrepareAbort" in states
                assert is_refused, f"{after}, which was given up; the log has {states}"
            decided = {each for each in states if each.startswith("Prepare")}
            assert len(decided) <= 1, f"{name}: transaction {after.number} has the decisions {decided}"

    def on_answered(self, answered: Answered) -> None:
        if answered.method != "EndTxn" or isinstance(answered.answer, BusError):
            return
        asked, code = answered.request, ErrorCode(answered.answer.error_code)
        identity, is_commit = (asked.producer_id, asked.producer_epoch), asked.is_commit
        states = self.journal.states_of(identity)
        behind = self._left_behind(asked.transactional_id, identity)
        if code is ErrorCode.NONE:
            self._check_done(answered, identity, states)
        elif code is ErrorCode.TRANSACTION_ABORTABLE and is_commit:
            is_aborted = "PrepareAbort" in states or behind is not None
            assert is_aborted, f"{asked} is answered with {answered.answer}, the log has {states}"
        elif code is ErrorCode.PRODUCER_FENCED and behind is not None:
            is_last = self.journal.ids[asked.transactional_id].records[-1] is behind
            has_gone_on = self._begun.get(behind.producer_id, -1) >= behind.producer_epoch
            assert has_gone_on or not is_last, f"{asked} is fenced by no other instance, the log has {behind}"
        elif code not in _RETRIABLE and (identity, is_commit) in self._answers:
            found = self.journal.ids.get(asked.transactional_id)
            last = None if found is None else found.records[-1]
            has_gone_on = last is None or found is None or found.numbers.get(identity) != last.number
            has_gone_on |= self._begun.get(identity[0], -1) > identity[1]  # that may be in the log later
            assert has_gone_on or (last is not None and last.state.value == "Empty"), (
                f"{asked} was done, and is answered with {answered.answer}; the log has {last}"
            )

    def _left_behind(self, name: str, identity: Identity) -> TransactionLogged | None:
        """The record behind the epochs, of which the identity has one, that ended with a topic."""
        history = self.journal.ids.get(name)
        for before, after in itertools.pairwise([] if history is None else history.records):
            is_between = before.producer_epoch <= identity[1] < after.producer_epoch
            if after.producer_id == identity[0] and is_between and after.state.value == "Empty":
                return after if is_taken_up(before, after) else None
        return None

    def _check_done(self, answered: Answered, identity: Identity, states: list[str]) -> None:
        asked, answer = answered.request, answered.answer
        decision = "PrepareCommit" if asked.is_commit else "PrepareAbort"
        is_left_behind = not asked.is_commit and self._left_behind(asked.transactional_id, identity) is not None
        assert decision in states or is_left_behind, f"{asked} is answered as done, the log has {states}"
        if is_left_behind:
            self.left_behind.add(identity)
        told = {(each.topic, each.partition): (each.version, each.base_offset) for each in answer.versions}
        following = answer.producer_id, answer.producer_epoch
        before, versions = self._answers.setdefault((identity, asked.is_commit), (following, told))
        is_same = following == before or self._left_behind(asked.transactional_id, before) is not None
        assert is_same, f"{asked} was answered with {before}, and now with {following}"
        for place in told.keys() & versions.keys():
            # Where the record of the end was lost, a repeat may know no more than that the rows are there.
            base_offsets = {told[place][1], versions[place][1]} - {-1}
            assert len(base_offsets) <= 1, f"{asked} was answered with {versions}, and now with {told}"


def is_taken_up(before: TransactionLogged, after: TransactionLogged) -> bool:
    """A new coordinator has asked the only partition of the last commit how far the id has come, or has left all
    behind that may have come."""
    if before.state.value != "CompleteCommit" or after.number - before.number < 1:
        return False
    return after.state.value == "CompleteCommit" or (
        after.state.value == "Empty" and after.number - before.number > ONE_PHASE_MAX
    )


@dataclass(slots=True)
class Asked:
    """Everything that clients have ever asked for in the name of one transaction."""

    partitions: dict[TopicPartition, int] = field(default_factory=dict)  # with the last sequence
    groups: dict[str, set[tuple[TopicPartition, int]]] = field(default_factory=dict)  # with the offsets
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)  # the last sequences that were named
    is_abort_asked: bool = False


class MessagesNameTheirTransaction(JournalInvariant):
    """Each change of the log was asked for by a message with the identity of that very transaction: what takes part,
    what is pinned, who commits and who aborts, and which offsets are pending. So nothing that was said of an earlier
    transaction changes a later one."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world, journal)
        self._asked: dict[Identity, Asked] = defaultdict(Asked)

    def on_asked(self, who: str, method: str, message: Any) -> None:
        match method:
            case "ProduceOnce" | "Produce":
                for part in message.partitions if message.transactional_id else ():
                    self._note_batch(part)
            case "TxnOffsetCommit":
                offsets = {(TopicPartition(each.topic, each.partition), each.offset) for each in message.partitions}
                self._of(message).groups.setdefault(message.group_id, set()).update(offsets)
            case "EndTxn" if message.is_commit:
                ends = {TopicPartition(each.topic, each.partition): each.last_sequence for each in message.ends}
                self._of(message).commits.append(ends)
            case "EndTxn":
                self._of(message).is_abort_asked = True
            case "InitProducerId" if message.HasField("producer_id"):
                self._of(message).is_abort_asked = True

    def _of(self, message: Any) -> Asked:
        return self._asked[message.producer_id, message.producer_epoch]

    def _note_batch(self, part: Any) -> None:
        asked, name = self._of(part).partitions, TopicPartition(part.topic, part.partition)
        asked[name] = max(asked.get(name, -1), part.base_sequence + _count_records(part) - 1)

    def on_version(self, version: Any) -> None:
        for _, record in self.changes():
            if record.state.value in _OPEN:
                self._check_open(record, self._asked[rows_identity(record)])
        for proof in self.journal.new_proofs:
            if proof.identity is not None:
                assert self._asked[proof.identity].commits, f"{proof}: no commit was asked for"
        for entry in self.journal.new:
            if isinstance(entry.record, TxnOffsetsPending):
                self._check_pending(entry.record)

    def _check_open(self, record: TransactionLogged, asked: Asked) -> None:
        state = record.state.value
        for partition in record.partitions:
            assert partition.name in asked.partitions, f"{record}: nothing was sent to {partition}"
        for group in record.groups:
            assert group.group_id in asked.groups, f"{record}: no offset was sent to {group}"
        if state == "PrepareCommit":
            assert asked.commits, f"{record}: no commit was asked for"
            pinned = {partition.name: last for partition, last in record.partitions.items()}
            fits = [ends for ends in asked.commits if all(ends.get(name, -1) == pinned[name] for name in pinned)]
            is_free = any(not ends for ends in asked.commits)
            assert fits or is_free, f"{record}: the commits that were asked for are {asked.commits}"
            for name, last in pinned.items():
                assert last <= asked.partitions[name], f"{record}: {name} was sent up to {asked.partitions[name]}"
        cause = None if record.abort_cause is None else record.abort_cause.value
        assert cause != "client" or asked.is_abort_asked, f"{record}: no abort was asked for"
        assert cause != "vote" or asked.commits, f"{record}: no commit was asked for"

    def _check_pending(self, record: TxnOffsetsPending) -> None:
        identity = record.transaction.producer_id, record.transaction.producer_epoch
        sent = self._asked[identity].groups.get(record.group_id, set())
        found = {(offset.partition, offset.offset) for offset in record.offsets}
        assert found <= sent, f"{record}: what was sent is {sent}"


def _count_records(part: Any) -> int:
    import pyarrow as pa

    return int(pa.ipc.open_stream(part.arrow).read_all().num_rows) if part.arrow else len(part.records.records)


class EpochsAreGivenOnce(JournalInvariant):
    """Epochs of an id rise by one with each end and each initialisation, and never otherwise; a producer id belongs to
    one transactional id. No two instances, and no two transactions, have the same identity. What an initialisation was
    answered is in the log, and no transaction of an older instance is committed behind it."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world, journal)
        self._told: dict[str, list[Identity]] = defaultdict(list)  # to new instances

    def on_version(self, version: Any) -> None:
        for before, after in self.changes():
            if before is not None:
                self._check_step(before, after)
            for name, history in self.journal.ids.items():
                producers = {record.producer_id for record in history.records}
                is_own = name == after.transactional_id
                assert is_own or after.producer_id not in producers, f"{after}: {name} has that producer id"
            if after.state.value == "PrepareCommit":
                self._check_commit(after.transactional_id, rows_identity(after))
        for proof in self.journal.new_proofs:
            is_alone = proof.transactional_id in self.journal.ids and proof.identity is not None
            if is_alone and not self.journal.ids[proof.transactional_id].states_of(proof.number):
                assert proof.identity is not None
                self._check_commit(proof.transactional_id, proof.identity)

    def _check_commit(self, name: str, rows: Identity) -> None:
        for producer_id, epoch in self._told[name]:
            is_older = rows < (producer_id, epoch)  # producer ids rise
            assert not is_older, f"{rows} of {name} is committed, an instance was told {(producer_id, epoch)} before"

    def _check_step(self, before: TransactionLogged, after: TransactionLogged) -> None:
        if is_taken_up(before, after):
            count = after.number - before.number - (after.state.value == "Empty")
            found = after.producer_id - before.producer_id, after.producer_epoch - before.producer_epoch
            assert found == (0, count), f"the epoch went up by {found[1]}: {before}, {after}"
            return
        is_decided = before.state.value.startswith("Prepare")
        raises = after.state.value in ("Empty", "PrepareCommit", "PrepareAbort")
        if after.producer_id == before.producer_id:
            found = after.producer_epoch - before.producer_epoch
            assert found == raises, f"the epoch went up by {found}: {before}, {after}"
            return
        assert after.producer_epoch == 0, f"a new producer id begins: {before}, {after}"
        assert before.producer_epoch >= _EPOCH_MAX + is_decided, f"epochs are left: {before}, {after}"
        assert raises or is_decided, f"a new producer id in the middle: {before}, {after}"
        assert after.producer_id > before.producer_id, f"{after} has an earlier producer id"

    def on_answered(self, answered: Answered) -> None:
        asked, answer = answered.request, answered.answer
        if answered.method != "InitProducerId" or isinstance(answer, BusError) or answer.error_code:
            return
        if asked.transactional_id:
            told = answer.producer_id, answer.producer_epoch
            history = self.journal.ids.get(asked.transactional_id)
            known = [] if history is None else [(each.producer_id, each.producer_epoch) for each in history.records]
            assert told in known, f"{asked} was answered {told}, the log has {known[-3:]}"
            if not asked.HasField("producer_id"):
                self._told[asked.transactional_id].append(told)

    def check_end(self) -> None:
        from tests.simulation.transaction_programs import transactors_of

        seen: dict[Identity, str] = {}
        for program in transactors_of(self.world):
            for attempt in program.attempts:
                identity = attempt.producer_id, attempt.producer_epoch
                assert identity not in seen, f"{program.name} and {seen[identity]} both had {identity}"
                seen[identity] = program.name


class MemoryIsTheLog(JournalInvariant):
    """The memory of a coordinator is a replay of its log, as far as it has led it, and of what may be logged later,
    whenever nothing of it is being committed: checked with each answer of any broker."""

    def on_answered(self, answered: Answered) -> None:
        life = answered.life
        if life.is_serving and not life.is_over:
            self._check(life)

    def on_tick(self) -> None:
        for broker in self.world.brokers:
            if broker.life is not None and broker.life.is_serving:
                self._check(broker.life)

    def _check(self, life: BrokerLife) -> None:
        for topic, coordinated in (
            (TRANSACTION_STATE_TOPIC, life.core.transactions.coordinator._topic),
            (CONSUMER_OFFSETS_TOPIC, life.core.coordinator._topic),
        ):
            for number, (shard, partition) in coordinated._shards.items():
                is_known = shard.refusal is None and shard._committing is None
                if is_known:
                    folder = f"topics/{topic}/{number}"
                    logged = dict(self.journal.state_before(folder, partition.state.high_watermark))
                    for record in shard._later:  # it has happened, and goes into the log with the next batch
                        logged[key_of(record)] = record
                    expected, found = _durable(logged), _remembered(topic, shard.states)
                    assert found == expected, f"{life.name}, {topic}-{number}: the log says {expected}, found {found}"


def _durable(logged: Mapping[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, record in logged.items():
        match record:
            case TransactionLogged():
                found[key] = tuple(getattr(record, name) for name in _FIELDS)
            case OffsetCommitted():
                found[key] = record.offset
            case TxnOffsetsPending():
                found[key] = record.sequence, {each.partition: each.offset for each in record.offsets}
    return found


def _remembered(topic: str, states: Mapping[str, Any]) -> dict[Any, Any]:
    if topic == TRANSACTION_STATE_TOPIC:
        return {name: tuple(getattr(state, each) for each in _FIELDS) for name, state in states.items()}
    found: dict[Any, Any] = {}
    for name, group in states.items():
        for partition, committed in group.offsets.items():
            found["offset", name, partition] = committed.offset
        for transaction, pending in group.pending_offsets.items():
            offsets = {each.partition: each.offset for each in pending.offsets}
            found["pending", name, transaction] = pending.sequence, offsets
    return found


_FIELDS = (
    "number",
    "producer_id",
    "producer_epoch",
    "last_producer_epoch",
    "previous_producer_id",
    "timeout_ms",
    "state",
    "partitions",
    "groups",
    "abort_cause",
    "results",
)


class OffsetsFollowDecisions(JournalInvariant):
    """Pending offsets are committed only of a transaction whose commit is decided, and then all that are still pending;
    they are dropped only of one that is aborted. Which of them a client must not have been shown a stable offset
    before: an OffsetFetch that asks for stable offsets is not answered while a transaction may still move it, also not
    by a coordinator that was replaced."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world, journal)
        # When it came to the log, and when it ended; by group and identity.
        self._pending: dict[tuple[str, Identity], _Pending] = {}

    def on_version(self, version: Any) -> None:
        new = self.journal.new
        committed = {(each.record.group_id, each.record.partition): each.record for each in new if _is_offset(each)}
        for entry in new:
            record = entry.record
            if isinstance(record, TxnOffsetsPending):
                key = record.group_id, (record.transaction.producer_id, record.transaction.producer_epoch)
                offsets = {each.partition: each.offset for each in record.offsets}
                known = self._pending.setdefault(key, _Pending(self.world.now))
                known.offsets = offsets
            elif isinstance(record, TxnOffsetsEnded):
                self._check_ended(record, committed)

    def _check_ended(self, record: TxnOffsetsEnded, committed: Mapping[Any, OffsetCommitted]) -> None:
        identity = record.transaction.producer_id, record.transaction.producer_epoch
        known = self._pending.pop((record.group_id, identity), None)
        states = self.journal.states_of(identity)
        if known is None or not known.offsets:
            return
        applied = {
            partition
            for partition, offset in known.offsets.items()
            if (found := committed.get((record.group_id, partition))) is not None and found.offset == offset
        }
        if applied:
            assert "PrepareCommit" in states, f"{record}: offsets are committed, the transaction is {states}"
            assert applied == known.offsets.keys(), f"{record}: only {applied} of {known.offsets} are committed"
        else:
            assert "PrepareCommit" not in states, f"{record}: {known.offsets} are dropped, the transaction is {states}"
        if applied:
            for at, partition, found, who in known.shown:
                assert found == known.offsets.get(partition, found), (
                    f"{who} was told at {at:.3f} that {partition} is stable at {found}; {record} moves it to "
                    f"{known.offsets[partition]}"
                )

    def on_lost(self, key: str) -> None:
        for identity in [each for each in self._pending if each not in self.journal.pending]:
            del self._pending[identity]

    def on_answered(self, answered: Answered) -> None:
        if answered.method != "OffsetFetch" or isinstance(answered.answer, BusError):
            return
        if not answered.request.require_stable:
            return
        for group in answered.answer.groups:
            for each in group.offsets if not group.error_code else ():
                if each.error_code:
                    continue
                partition = TopicPartition(each.topic, each.partition)
                for (group_id, _), known in self._pending.items():
                    if group_id == group.group_id and partition in known.offsets and known.at <= answered.asked_at:
                        known.shown.append((self.world.now, partition, each.offset, answered.life.name))


@dataclass(slots=True)
class _Pending:
    at: float
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    shown: list[tuple[float, TopicPartition, int, str]] = field(default_factory=list)


def _is_offset(entry: Entry) -> bool:
    return isinstance(entry.record, OffsetCommitted)


# What a client may be answered, by call, and what its library makes of it: Kafka's table (TransactionManager). Every
# error that may pass is for another try, but for Produce, which the sender repeats itself.
_VERDICTS: Mapping[str, tuple[Call, Mapping[ErrorCode, Verdict]]] = {
    "InitProducerId": (Call.INITIALIZE, {ErrorCode.PRODUCER_FENCED: Verdict.FATAL}),
    "ProduceOnce": (
        Call.PRODUCE,
        {
            ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.ABORTABLE,
            ErrorCode.INVALID_TXN_STATE: Verdict.ABORTABLE,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.ABORTABLE,
            ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.ABORTABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.ABORTABLE,
        },
    ),
    "TxnOffsetCommit": (
        Call.COMMIT_OFFSETS,
        {
            ErrorCode.PRODUCER_FENCED: Verdict.FATAL,
            ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.FATAL,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
            ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
            ErrorCode.UNKNOWN_MEMBER_ID: Verdict.ABORTABLE,
            ErrorCode.ILLEGAL_GENERATION: Verdict.ABORTABLE,
            ErrorCode.FENCED_INSTANCE_ID: Verdict.ABORTABLE,
            ErrorCode.REBALANCE_IN_PROGRESS: Verdict.ABORTABLE,
        },
    ),
    "EndTxn": (
        Call.COMMIT,
        {
            ErrorCode.PRODUCER_FENCED: Verdict.FATAL,
            ErrorCode.INVALID_TXN_STATE: Verdict.FATAL,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.ABORTABLE,
            ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
        },
    ),
}


class ErrorsAreOfTheTable(Invariant):
    """A client of transactions is answered with what its library knows an answer to, and the library goes on as Kafka's
    does: another try, the transaction aborted, or the producer closed."""

    def on_answered(self, answered: Answered) -> None:
        known, asked = _VERDICTS.get(answered.method), answered.request
        if known is None or isinstance(answered.answer, BusError) or not asked.transactional_id:
            return
        call, verdicts = known
        for part in getattr(answered.answer, "partitions", (answered.answer,)):
            error = BusError(ErrorCode(part.error_code), part.error_message)
            if error.code is ErrorCode.NONE:
                continue
            passes = Verdict.ABORTABLE if call is Call.PRODUCE else Verdict.RETRY
            expected = verdicts.get(error.code, passes if error.retriable else None)
            assert judge(call, error) is expected, (
                f"{answered.life.name} answers {answered.method} {asked} with {part}, expected {expected}"
            )
