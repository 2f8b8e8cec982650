"""Decisions on the batches of an idempotent producer: in order, repeated, or wrong (KIP-98, KIP-360).

Guards one promise: the log gets one record for every (producer id, epoch, sequence), and a producer's records in the
order of their sequences. Decides on numbers only. Memory cannot decide about a repeat older than the last five batches,
nor about a forgotten producer; then the table answers, whose rows carry the same three numbers.

A producer that never wrote here begins with sequence 0, and so does a new epoch, unless it continues where the older
one ended. Kafka accepts any first sequence of a producer that it does not know, because it loses its knowledge of a
producer with the records. Here that knowledge outlives the records, so a first sequence above 0 means that the batches
before it are still to come: they were refused, and the producer will send them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count as count_from
from itertools import takewhile
from typing import NamedTuple

from bus.errors import ErrorCode, Refused
from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType, sequence_after
from bus.ports import ProducerMatch, ProducerProgress

# The number of batches that a producer may have in flight (max.in.flight.requests.per.connection), as in Kafka.
RECENT_BATCHES_MAX = 5
# Sequences wrap: of two, the one that is less than this many records behind the other is the earlier one.
_BEHIND_MAX = SEQUENCE_MODULUS // 2
NONE_YET = -1


class AppendedBatch(NamedTuple):  # a tuple, as the state below: one is made for each batch
    """The answer to a repeat. Its offsets are dense from `base_offset`."""

    base_sequence: int
    record_count: int
    base_offset: int
    version: int
    log_append_time_ms: int  # -1 with CreateTime


class ProducerState(NamedTuple):
    """The state of one producer in a partition. The batches of `recent` belong to `producer_epoch`, oldest first."""

    producer_epoch: int  # the epoch of the last record; -1: there is none
    last_sequence: int  # the sequence of the last record; -1: there is none
    # This many sequences up to `last_sequence` were appended under this epoch; those before were not, as far as memory
    # knows. A state that was read from the log assumes that all were.
    sequence_span: int
    last_append_ms: int
    recent: tuple[AppendedBatch, ...] = ()


NEW_PRODUCER = ProducerState(producer_epoch=NONE_YET, last_sequence=NONE_YET, sequence_span=0, last_append_ms=0)


class Question(Enum):
    """A question that only the table can answer, by the port's method of that name."""

    FIND_LAST_SEQUENCE = "find_last_sequence"
    MATCH_PRODUCER = "match_producer"


@dataclass(frozen=True, slots=True)
class InOrder:
    """The whole batch is to be appended."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """The batch is in the log, or in the commit that is being gathered."""

    batch: AppendedBatch


@dataclass(frozen=True, slots=True)
class AskTable:
    question: Question


@dataclass(frozen=True, slots=True)
class Found:
    """The records are in the table, at these offsets; -1: was there, and has since been retired or compacted."""

    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class AppendRest:
    """`rest` is to be appended; what comes before it is in the table."""

    rest: RecordBatch


SequenceDecision = InOrder | Repeat | AskTable | Refused
IN_ORDER = InOrder()
_ASK_LAST_SEQUENCE = AskTable(Question.FIND_LAST_SEQUENCE)
_ASK_MATCH = AskTable(Question.MATCH_PRODUCER)


def decide_sequence(
    state: ProducerState | None, stamp: ProducerStamp, record_count: int, *, fence: int, forgotten_max: int
) -> SequenceDecision:
    """`state` None: memory knows nothing of the producer. One whose id is above `forgotten_max`, the largest that was
    ever forgotten, then never wrote here. Epochs below `fence` are refused."""
    if state is None:
        if stamp.producer_id <= forgotten_max and stamp.producer_epoch >= fence:
            return _ASK_LAST_SEQUENCE
        state = NEW_PRODUCER
    epoch_min = max(fence, state.producer_epoch)
    if stamp.producer_epoch < epoch_min:
        return _refuse_epoch(stamp.producer_id, expected=epoch_min, found=stamp.producer_epoch)
    base, following = stamp.base_sequence, sequence_after(state.last_sequence, 1)
    if base == following:
        return IN_ORDER
    if stamp.producer_epoch > state.producer_epoch:
        return IN_ORDER if base == 0 else _refuse_sequence(stamp, f"0 or {following}" if following else "0")
    for batch in state.recent:
        if batch.base_sequence == base and batch.record_count == record_count:
            return Repeat(batch)
    if _records_behind(state, base) < state.sequence_span:
        return _ASK_MATCH
    return _refuse_sequence(stamp, str(following))


def decide_match(
    state: ProducerState, stamp: ProducerStamp, record_count: int, match: ProducerMatch, *, log_start: int
) -> Found | AppendRest | Refused:
    """Decide on a batch that begins at or before the last sequence, after the table has answered (MATCH_PRODUCER).

    A record up to the last sequence that is not in the table was appended once, because sequences have no gaps, and was
    deleted by retention or compaction since: it is never appended again. If no record of a batch remains, the answer is
    DUPLICATE_SEQUENCE_NUMBER, which a client takes for success without an offset. So that answer is given only if it
    can be true: while the log starts at 0 and has no holes, nothing was deleted, and a record that is not in the table
    never was.
    """
    old_count = min(record_count, _records_behind(state, stamp.base_sequence) + 1)
    matched = [offset >= 0 for offset in match.offsets]
    following = str(sequence_after(state.last_sequence, 1))
    is_whole = log_start == 0 and not match.has_holes
    if is_whole and not all(matched[:old_count]):
        return _refuse_sequence(stamp, following)
    if old_count == record_count:
        return Found(match.offsets) if any(matched) else _refuse_duplicate(state, stamp, record_count)
    rest = match.missing
    if rest is None or not all(matched[:old_count]) or any(matched[old_count:]):
        return _refuse_sequence(stamp, following)
    rest_stamp = replace(stamp, base_sequence=sequence_after(stamp.base_sequence, old_count))
    return AppendRest(replace(rest, producer=rest_stamp))


def decide_resume(
    state: ProducerState | None, *, producer_id: int, producer_epoch: int, fence: int
) -> ProducerState | Refused:
    """Return the sequence at which the producer continues under `producer_epoch`, which is to be the new fence.

    The fence is in memory only. That is enough: the producer continues at that sequence, and once its first record is
    committed the log has the epoch. If memory is lost before, an older instance may append once more; then the sequence
    is not the next one, the producer's batch is OUT_OF_ORDER_SEQUENCE_NUMBER, and it resumes again. Only named
    producers have older instances, and the cluster's metadata fences these durably.
    """
    state = state or NEW_PRODUCER
    epoch_min = max(fence, state.producer_epoch)
    if producer_epoch < epoch_min:
        return _refuse_epoch(producer_id, expected=epoch_min, found=producer_epoch)
    return state


def apply_append(state: ProducerState | None, batch: AppendedBatch, producer_epoch: int, now_ms: int) -> ProducerState:
    """The state behind a batch that was decided to be appended."""
    last_sequence = sequence_after(batch.base_sequence, batch.record_count - 1)
    if state is None or producer_epoch != state.producer_epoch:
        assert state is None or producer_epoch > state.producer_epoch, (
            f"epoch went from {state.producer_epoch} to {producer_epoch}"
        )
        return ProducerState(producer_epoch, last_sequence, batch.record_count, now_ms, (batch,))
    span = min(_BEHIND_MAX, state.sequence_span + batch.record_count)
    recent = (*state.recent[1 - RECENT_BATCHES_MAX :], batch)
    return ProducerState(producer_epoch, last_sequence, span, now_ms, recent)


def apply_progress(progress: ProducerProgress) -> ProducerState:
    """The state that the log tells of. It holds no batches: the table decides about repeats."""
    return ProducerState(
        producer_epoch=progress.producer_epoch,
        last_sequence=progress.last_sequence,
        sequence_span=_BEHIND_MAX,
        last_append_ms=progress.updated_ms,
    )


def complete_offsets(offsets: Sequence[int], *, base_offset: int) -> list[int]:
    """Return the offsets of a batch whose missing records, -1 here, were given offsets from `base_offset` on."""
    given: Iterator[int] = count_from(base_offset)
    return [offset if offset >= 0 else next(given) for offset in offsets]


def _records_behind(state: ProducerState, sequence: int) -> int:
    return (state.last_sequence - sequence) % SEQUENCE_MODULUS


def _name(stamp: ProducerStamp) -> str:
    return f"producer {stamp.producer_id}, epoch {stamp.producer_epoch}"


def _refuse_epoch(producer_id: int, *, expected: int, found: int) -> Refused:
    return Refused(
        ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id}: expected epoch {expected} or higher, found {found}"
    )


def _refuse_duplicate(state: ProducerState, stamp: ProducerStamp, record_count: int) -> Refused:
    last = sequence_after(stamp.base_sequence, record_count - 1)
    return Refused(
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        f"{_name(stamp)}: expected sequences after {state.last_sequence}, found {stamp.base_sequence} to {last}, which "
        f"were appended before and are not in the log any more",
    )


def _refuse_sequence(stamp: ProducerStamp, expected: str) -> Refused:
    return Refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"{_name(stamp)}: expected sequence {expected}, found {stamp.base_sequence}",
    )


@dataclass(frozen=True, slots=True)
class _Fence:
    producer_epoch: int
    raised_ms: int


class ProducerStates:
    """The idempotent producers of a partition. Guards one promise: the committed states are what the log says. Batches
    that are placed and not committed yet are in an overlay, which a commit makes permanent and a failure drops. Time
    and the table's answers are arguments.

    Invariants: the committed states are in the order in which their producers appended last, so that idle ones are
    found without looking at the others; a producer with an id above `forgotten_max` that is not here never wrote."""

    def __init__(self) -> None:
        self._committed: dict[int, ProducerState] = {}
        self._placed: dict[int, ProducerState] = {}
        self._fences: dict[int, _Fence] = {}  # ordered by the time when they were raised
        self._placed_version = -1
        self.forgotten_max = -1

    @property
    def committed(self) -> Mapping[int, ProducerState]:
        """The states by producer id, as the log has them."""
        return self._committed

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, producer_id: int) -> ProducerState | None:
        return self._placed.get(producer_id) or self._committed.get(producer_id)

    def fence_of(self, producer_id: int) -> int:
        """Lower epochs than this one may not append, even if the log knows none as high."""
        fence = self._fences.get(producer_id)
        return 0 if fence is None else fence.producer_epoch

    def place(self, batch: LogBatch, *, version: int, now_ms: int) -> None:
        """A stamped batch was given its offsets; it is to become a part of `version`, the same for all batches of one
        commit."""
        stamp = batch.producer
        assert stamp is not None, f"batch at offset {batch.base_offset} is of no idempotent producer"
        appended = AppendedBatch(
            stamp.base_sequence, batch.record_count, batch.base_offset, version, log_append_time_ms(batch)
        )
        producer_id = stamp.producer_id
        self._placed[producer_id] = apply_append(self.get(producer_id), appended, stamp.producer_epoch, now_ms)
        self._placed_version = version

    def placed_progress(self) -> Sequence[ProducerProgress]:
        """The progress of each producer after the commit of the placed batches."""
        return [
            ProducerProgress(producer_id, state.producer_epoch, state.last_sequence)
            for producer_id, state in self._placed.items()
        ]

    def commit(self, version: int) -> None:
        """Make the placed batches permanent. If the version is not the one that they were placed for, the batches are
        not remembered, and the table decides about their repeats."""
        for producer_id, state in self._placed.items():
            self._committed.pop(producer_id, None)
            self._fences.pop(producer_id, None)  # the log has an epoch as high now
            self._committed[producer_id] = state if version == self._placed_version else state._replace(recent=())
        self._placed.clear()

    def roll_back(self) -> None:
        """Drop the placed batches, which are not in the log: their sequences are expected again."""
        self._placed.clear()

    def reload(self, progress: Mapping[int, ProducerProgress], *, forgotten_max: int) -> None:
        """Load the log's progress. Fences stay: they are this leader's own."""
        self.roll_back()
        self._committed.clear()
        for known in sorted(progress.values(), key=lambda known: known.updated_ms):
            self._committed[known.producer_id] = apply_progress(known)
        self.forgotten_max = max(self.forgotten_max, forgotten_max)

    def remember(self, progress: ProducerProgress, *, now_ms: int) -> None:
        """A forgotten producer is back, and the table's rows tell how far it came."""
        assert self.get(progress.producer_id) is None, f"producer {progress.producer_id} was not forgotten"
        self._committed[progress.producer_id] = apply_progress(replace(progress, updated_ms=now_ms))

    def fence(self, producer_id: int, *, producer_epoch: int, now_ms: int) -> None:
        """Refuse lower epochs from now on. Not while something is placed."""
        assert not self._placed, (
            f"producer {producer_id} is fenced while {len(self._placed)} others have batches placed"
        )
        self._fences.pop(producer_id, None)
        self._fences[producer_id] = _Fence(producer_epoch, now_ms)

    def forget(self, *, idle_since_ms: int) -> None:
        """Drop the producers whose last append was before `idle_since_ms`, and fences as old. Their rows stay in the
        table."""
        idle = takewhile(lambda item: item[1].last_append_ms < idle_since_ms, self._committed.items())
        for producer_id, _ in list(idle):
            del self._committed[producer_id]
            self.forgotten_max = max(self.forgotten_max, producer_id)
        unused = takewhile(lambda item: item[1].raised_ms < idle_since_ms, self._fences.items())
        for producer_id, _ in list(unused):
            del self._fences[producer_id]


def log_append_time_ms(batch: LogBatch) -> int:
    """-1 with CreateTime."""
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return batch.timestamp_ms if is_append_time and batch.timestamp_ms is not None else -1
