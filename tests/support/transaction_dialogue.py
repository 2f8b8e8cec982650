"""The rules of transactions as a conversation between instances of one producer, who are called by name, and the
coordinator of its transactional id.

at epoch 32765          before anything else: the id is known, with producer id 7 and this epoch
a inits; a inits again  as a new instance; with the identity that it has
a adds orders-0 audit-1; a adds group desk
a commits orders-0=4; a aborts
a@3 commits             as if its epoch were 3; a@7/3: of producer id 7
vote 4; vote orders-0=4 gone=audit-1; vote refused
finish                  what was decided is done everywhere
late vote 4; late finish        of the transaction before
fence; abort; describe
wait 3000               milliseconds pass; what runs out meanwhile is told with its time
crash                   another coordinator loads the log; clients repeat their calls
crash early             the same, and what may be logged later is not in the log yet
one phase               from here on a version may decide a transaction
flush                   what may be logged later is in the log now
resolve 2; resolve gone the partition has 2 transactions behind the log; its topic is deleted

Every outcome: answers by instance, `|` and the records that were written, `>` and what is asked of others, and
`[state, number since the beginning, producer id/epoch]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bus.errors import ErrorCode, Refused
from bus.transactions.changes import CollectVotes, Finish, Resolve, TransactionNotice
from bus.transactions.records import LoggedRecord, TransactionExpired, TransactionLogged, decode_record, encode_record
from bus.transactions.requests import (
    AbortTransaction,
    Added,
    AddOffsets,
    AddPartitions,
    DescribedTransaction,
    DescribeTransaction,
    EndTransaction,
    FenceProducer,
    Finished,
    InitProducerId,
    Noted,
    ProducerInitialized,
    Resolved,
    TransactionAnswer,
    TransactionCommand,
    TransactionEnded,
    Voted,
)
from bus.transactions.state import (
    AppliedRows,
    ProducerIdentity,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
    first_number,
)
from tests.support.transaction_bench import BEGIN_MS, ID, NO_VOTE, TIMEOUT_MS, TransactionBench

_OTHERS = "-"


class TransactionDialogue:
    def __init__(self) -> None:
        self.bench = TransactionBench()
        self.identities: dict[str, ProducerIdentity] = {}
        self.requests: dict[int, str] = {}
        self.told = 0  # of the bench's steps
        self.first_number = first_number(7)

    def say(self, command: str) -> str:
        """The outcome of one command."""
        words = command.split()
        number = None if self.bench.state is None else self.bench.known.number
        if words[0] == "late":
            assert number is not None
            words, number = words[1:], number - 1
        match words:
            case ["at", "epoch", epoch]:
                self._begin_at(int(epoch))
            case ["wait", ms]:
                return self._wait(int(ms))
            case ["crash", *early]:
                self.bench.crash(before_all_is_logged=early == ["early"])
            case ["vote", *found]:
                assert number is not None
                self._ask(_OTHERS, self._vote(number, found))
            case ["one", "phase"]:
                self.bench.allows_one_phase = True
            case ["flush"]:
                self.bench.flush()
            case ["resolve", behind]:
                assert number is not None
                self._ask(_OTHERS, self._resolved(number, None if behind == "gone" else int(behind)))
            case ["finish"]:
                assert number is not None
                self._ask(_OTHERS, self._finished(number))
            case ["fence"]:
                self._ask(_OTHERS, self.bench.with_producer_id(FenceProducer(ID)))
            case ["abort"]:
                self._ask(_OTHERS, AbortTransaction(ID))
            case ["describe"]:
                self._ask(_OTHERS, DescribeTransaction(ID))
            case [name, verb, *rest]:
                self._speak(name, verb, rest)
        return " ".join([*self._happened(), self._state()])

    def _speak(self, name: str, verb: str, words: list[str]) -> None:
        name, _, spoken = name.partition("@")
        who = self.identities.get(name, ProducerIdentity(-1, -1))
        if spoken:
            producer_id, _, epoch = spoken.rpartition("/")
            who = ProducerIdentity(int(producer_id or who.producer_id), int(epoch))
        producer_id, epoch = who.producer_id, who.producer_epoch
        match verb, words:
            case "inits", ["again"]:
                self._ask(name, self.bench.with_producer_id(InitProducerId(ID, TIMEOUT_MS, producer_id, epoch)))
            case "inits", []:
                self._ask(name, self.bench.with_producer_id(InitProducerId(ID, TIMEOUT_MS)))
            case "adds", ["group", group_id]:
                self._ask(name, AddOffsets(ID, producer_id, epoch, TransactionGroup(group_id, 0)))
            case "adds", partitions:
                self._ask(name, AddPartitions(ID, producer_id, epoch, tuple(map(_partition, partitions))))
            case (("commits" | "aborts"), sequences):
                named = {partition.name: last for partition, last in _sequences(sequences).items()}
                allows = self.bench.allows_one_phase
                self._ask(name, EndTransaction(ID, producer_id, epoch, verb == "commits", named, allows))
            case _:
                raise AssertionError(f"no such command: {verb} {words}")

    def _vote(self, number: int, words: list[str]) -> Voted:
        vote = self.bench.known.vote
        vote_id = NO_VOTE if vote is None else vote.vote_id
        if words == ["refused"]:
            refused = Refused(ErrorCode.INVALID_REQUEST, "group desk: expected pending offsets, found none")
            return Voted(ID, number, vote_id, refused=refused)
        if len(words) == 1 and words[0].isdigit():
            found = int(words[0])
            is_committed = vote is not None and vote.is_one_phase and found >= max(vote.last_sequences.values())
            last_sequences = dict.fromkeys(self.bench.known.partitions, found)
            return Voted(ID, number, vote_id, last_sequences, rows=AppliedRows(3, 100) if is_committed else None)
        gone = frozenset(_partition(word[5:]) for word in words if word.startswith("gone="))
        sequences = _sequences(word for word in words if not word.startswith("gone="))
        return Voted(ID, number, vote_id, sequences, gone)

    def _finished(self, number: int) -> Finished:
        state = self.bench.known
        rows = {p: AppliedRows(3, 100) for p, last in state.partitions.items() if last >= 0}
        is_needed = state.producer_epoch > 32_766
        return Finished(ID, number, rows, self.bench.new_producer_id() if is_needed else None)

    def _resolved(self, number: int, behind: int | None) -> Resolved:
        if behind is None:
            return Resolved(ID, number, None)
        return Resolved(ID, number, number + behind, AppliedRows(9, 300) if behind else None)

    def _begin_at(self, epoch: int) -> None:
        row = encode_record(
            TransactionLogged(ID, first_number(7), 7, epoch, TIMEOUT_MS, TransactionState.EMPTY, BEGIN_MS)
        )
        self.bench.rows.append(row)
        self.bench.records.append(decode_record(row))
        self.bench.next_producer_id = 8
        self.bench.crash()

    def _ask(self, name: str, command: TransactionCommand) -> None:
        self.requests[self.bench.last_request_id + 1] = name
        self.bench.ask(command)

    def _wait(self, ms: int) -> str:
        begin_ms, told = self.bench.now_ms, []
        end_ms = begin_ms + ms
        while (timer := self.bench.next_timer(end_ms)) is not None:
            self.bench.run_out(timer)
            happened = " ".join(self._happened())
            if happened:
                told.append(f"at {self.bench.now_ms - begin_ms} {timer.kind.value}: {happened}")
        self.bench.now_ms = end_ms
        return "; ".join([*told, self._state()])

    def _state(self) -> str:
        state = self.bench.state
        if state is None:
            return "[none]"
        number = state.number - self.first_number
        return f"[{state.state.value} {number} {state.producer_id}/{state.producer_epoch}]"

    def _happened(self) -> Iterator[str]:
        steps, self.told = self.bench.steps[self.told :], len(self.bench.steps)
        for step in steps:
            said = [
                f"{self.requests[reply.request_id]}: {self._heard(reply.request_id, reply.answer)}"
                for reply in step.replies
                if not isinstance(reply.answer, Noted)
            ]
            if said:
                yield ", ".join(said)
            if step.records:
                yield "| " + ", ".join(map(_written, step.records))
            if step.notices:
                yield "> " + ", ".join(map(_wanted, step.notices))

    def _heard(self, request_id: int, answer: TransactionAnswer) -> str:
        match answer:
            case ProducerInitialized(producer_id, epoch) | TransactionEnded(producer_id, epoch):
                self.identities[self.requests[request_id]] = ProducerIdentity(producer_id, epoch)
                versions = answer.versions if isinstance(answer, TransactionEnded) else {}
                rows = "".join(f" {p} in version {r.version} from {r.base_offset}" for p, r in versions.items())
                return f"{producer_id}/{epoch}{rows}"
            case Added() | Noted():
                return "ok"
            case DescribedTransaction():
                parts = " ".join([*map(str, answer.partitions), *answer.groups]) or "nothing"
                cause = "" if answer.abort_cause is None else f" ({answer.abort_cause})"
                return f"{answer.state}{cause} {parts}"
            case Refused(code, message):
                return f"{code.name} {message}"


def _partition(text: str) -> TransactionPartition:
    topic, _, number = text.rpartition("-")
    return TransactionPartition(topic, f"id-of-{topic}", int(number))


def _sequences(words: Iterable[str]) -> dict[TransactionPartition, int]:
    return {_partition(key): int(last) for key, last in (word.split("=") for word in words)}


def _shown(partitions: dict[TransactionPartition, int]) -> str:
    return "".join(f" {partition}" + (f"={last}" if last >= 0 else "") for partition, last in partitions.items())


def _written(record: LoggedRecord) -> str:
    if isinstance(record, TransactionExpired):
        return "expired"
    groups = "".join(f" {group.group_id}" for group in record.groups)
    cause = "" if record.abort_cause is None else f" ({record.abort_cause.value})"
    who = f"{record.producer_id}/{record.producer_epoch}"
    return f"{record.state.value}{cause} {who}{_shown(dict(record.partitions))}{groups}"


def _wanted(notice: TransactionNotice) -> str:
    who = f"{notice.producer_id}/{notice.producer_epoch}"
    if isinstance(notice, Resolve):
        return f"ask {notice.partition} for {who} and later"
    groups = "".join(f" {group.group_id}" for group in notice.groups)
    match notice:
        case CollectVotes() if notice.is_one_phase:
            named = {partition: notice.last_sequences[partition.name] for partition in notice.partitions}
            return f"commit, in one phase, {who}{_shown(named)}"
        case CollectVotes():
            return f"vote on {who}{_shown(dict.fromkeys(notice.partitions, -1))}{groups}"
        case Finish():
            verb = "apply" if notice.is_commit else "drop"
            new = ", with a new producer id" if notice.needs_producer_id else ""
            return f"{verb} {who}{_shown(dict(notice.partitions))}{groups}{new}"
