"""The one shape of a coordinator's rules: a command goes in, a step comes out, and `apply` is all that changes a state.

A coordinator's log has many entities (consumer groups, transactional ids), each with a state of its own. `Machine` is
what the runtime asks of the rules, `RecordCodec` what it asks of their records; the runtime owns the order: load,
decide many, append once, take the new states, then reply. `java_hash` says which coordinator has an entity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bus.errors import Refused
from bus.ports import KeyedRow

StateT = TypeVar("StateT")
CommandT = TypeVar("CommandT")
RecordT = TypeVar("RecordT")
AnswerT = TypeVar("AnswerT")
NoticeT = TypeVar("NoticeT")
# Type variables of protocols that only return or only accept the type.
StateT_co = TypeVar("StateT_co", covariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)
NoticeT_co = TypeVar("NoticeT_co", covariant=True)
StateT_contra = TypeVar("StateT_contra", contravariant=True)
CommandT_contra = TypeVar("CommandT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class SetTimer(Generic[CommandT]):
    """Decide on the command `timer` once `after_ms` have passed. Replaces an equal timer."""

    timer: CommandT
    after_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer(Generic[CommandT]):
    """Without effect if there is no such timer."""

    timer: CommandT


@dataclass(frozen=True, slots=True)
class Reply(Generic[AnswerT]):
    """To the command with this request id, which an earlier step may have left without an answer."""

    request_id: int
    answer: AnswerT


class Step(Protocol[StateT_co, CommandT, RecordT_co, AnswerT, NoticeT_co]):
    """The result of a decision. Nothing of it happens before its records are committed, unless `may_log_later`."""

    @property
    def state(self) -> StateT_co | None:
        """The state after the step, made by `apply` alone."""
        ...

    @property
    def records(self) -> Sequence[RecordT_co]:
        """Records for the log. Changes in memory alone, which are lost with it, are in `state` only."""
        ...

    @property
    def may_log_later(self) -> bool:
        """True if the step may happen before its records are committed: whoever loads the log without them reaches the
        same state by itself, and answers as this step does."""
        ...

    @property
    def replies(self) -> Iterable[Reply[AnswerT]]: ...

    @property
    def timers(self) -> Iterable[SetTimer[CommandT] | CancelTimer[CommandT]]: ...

    @property
    def notices(self) -> Iterable[NoticeT_co]:
        """Messages to clients that did not request them."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded(Generic[StateT]):
    """The loaded states by entity id. `faults` describes each record that could not be read: what it was, what is lost,
    and what to do."""

    states: dict[str, StateT]
    faults: tuple[str, ...]


class Machine(Protocol[StateT, CommandT, RecordT, AnswerT, NoticeT_co]):
    """The rules. State None: nothing is known of the entity."""

    def entity_id(self, command: CommandT) -> str: ...

    def decide(
        self, state: StateT | None, command: CommandT, *, request_id: int, now_ms: int
    ) -> Step[StateT, CommandT, RecordT, AnswerT, NoticeT_co]:
        """On a request, or on a timer that has expired. A request may be answered by a later step."""
        ...

    def resume(self, state: StateT) -> Sequence[SetTimer[CommandT]]:
        """The timers of a state that was just loaded."""
        ...

    def keep_back(
        self,
        later: Sequence[RecordT],
        decided: Sequence[RecordT],
        state_of: Callable[[str], StateT | None],
        *,
        now_ms: int,
        may_wait: bool,
    ) -> Collection[int]:
        """Return the positions in `later` of the records that are not to be logged with the next batch. `later` has the
        records that may be logged later, oldest first; `decided` has those that the batch logs after them, if any;
        `state_of` returns the state of an entity after both. The order within an entity must hold: no record is kept
        back if `later` or `decided` has a newer one of its entity. `may_wait` False: keep back only what the log must
        not have yet."""
        ...

    def logged(self, states: Mapping[str, StateT], records: Sequence[RecordT]) -> Mapping[str, StateT]:
        """Take note that `records` are committed, in the order of the log. Returns those of `states` that change by
        that, by entity id; empty if the machine does not look at logged records."""
        ...

    def refuse(self, command: CommandT, refused: Refused) -> AnswerT:
        """The answer to a command that is refused without a decision."""
        ...


class Totals(Protocol[StateT_contra, CommandT_contra]):
    """The sums over all states in memory."""

    def check(self, command: CommandT_contra, state: StateT_contra | None, *, now_ms: int) -> Refused | None:
        """Return why the command is refused for now: it would grow what has reached its bound. `now_ms` is
        monotonic."""
        ...

    def replace(self, before: StateT_contra | None, after: StateT_contra | None) -> None: ...


class RecordCodec(Protocol[StateT, RecordT]):
    """Between records and the rows of the log."""

    def encode(self, record: RecordT) -> KeyedRow: ...

    def decode(self, row: KeyedRow) -> RecordT:
        """Raises `ValueError` for a row that this version cannot read."""
        ...

    def load(self, rows: Iterable[KeyedRow], *, now_ms: int) -> Loaded[StateT]:
        """The states after the last row of each key, in the order of the log. A bad row costs itself."""
        ...

    def approximate_bytes(self, record: RecordT) -> int: ...

    def fault(self, record: RecordT, reason: str, *, is_too_large: bool) -> Refused:
        """The refusal of a call whose record cannot go into the log."""
        ...

    def log_line(self, record: RecordT) -> str | None:
        """The line about a committed record for the broker's own log; None: no line."""
        ...


def java_hash(text: str) -> int:
    """Java's String.hashCode in 32 bits, taken without sign, by which Kafka gives a group or a transactional id its
    partition. Guards one promise: the same text gives the same number as in Kafka, in every process and for ever."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for position in range(0, len(units), 2):
        code = (31 * code + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return code


def java_abs(code: int) -> int:
    """Kafka's Utils.abs of such a hash: in Java the smallest number has no absolute value, and counts as 0."""
    return 0 if code == 0x80000000 else min(code, 0x100000000 - code)
