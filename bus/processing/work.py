"""A record, or a batch of them, on its way through the loop; what follows if it fails; and the summary of a run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import pyarrow as pa

from bus.client.consumer.records import raw_records
from bus.client.values import ConsumerRecord
from bus.errors import reduce_error
from bus.model import TopicPartition
from bus.processing.commits import OffsetTracker
from bus.processing.settings import ERROR_POLICIES, ErrorPolicy, ProcessingSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition that one call of a handler gets together, as a list or as an Arrow table. Never empty.
    `first.offset <= last_offset`.

    A batch is one piece of work: it is done, tried again, skipped or put aside as a whole, and no commit ends inside of
    it. What a table holds becomes records only where one is needed: for `on_error`, an error, a dead letter."""

    partition: TopicPartition
    first: ConsumerRecord
    last_offset: int
    count: int
    content: list[ConsumerRecord] | pa.Table  # the argument for the handler

    def records(self) -> Sequence[ConsumerRecord]:
        """The records of the batch; those of a table as they were read, with bytes."""
        if isinstance(self.content, pa.Table):
            return [record for rows in self.content.to_batches() for record in raw_records(self.partition, rows)]
        return self.content


def batches_of(records: Iterable[ConsumerRecord]) -> list[Batch]:
    """Those of each partition together, in their order."""
    by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
    for record in records:
        by_partition.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return [
        Batch(partition, some[0], some[-1].offset, len(some), some) for partition, some in by_partition.items() if some
    ]


def batches_of_table(table: pa.Table) -> list[Batch]:
    """Make a batch of each partition in a table of `poll_arrow`, each chunk of which is of one partition."""
    by_partition: dict[TopicPartition, list[pa.RecordBatch]] = {}
    for rows in table.to_batches():
        if rows.num_rows:
            partition = TopicPartition(rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py())
            by_partition.setdefault(partition, []).append(rows)
    return [_batch_of_rows(partition, some) for partition, some in by_partition.items()]


def _batch_of_rows(partition: TopicPartition, some: list[pa.RecordBatch]) -> Batch:
    (first,) = raw_records(partition, some[0].slice(0, 1))
    last_offset = int(some[-1].column("offset")[-1].as_py())
    return Batch(partition, first, last_offset, sum(rows.num_rows for rows in some), pa.Table.from_batches(some))


class FailedAt(Enum):
    """The place of a failure; `value` is its name in a dead letter."""

    DESERIALIZER = "deserializer"
    HANDLER = "handler"
    OUTPUT = "output"  # the handler returned, and a topic refuses what it sent


@dataclass(frozen=True, slots=True)
class TryAgain:
    after_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more is handed out; `error` is what run() raises."""

    error: BaseException


class Pass(Enum):
    SKIP = auto()
    DEAD_LETTER = auto()


FailureDecision = TryAgain | Stop | Pass


def decide_failure(
    settings: ProcessingSettings, record: ConsumerRecord, error: BaseException, attempt: int, failed_at: FailedAt
) -> FailureDecision:
    """Decide about a record whose handler failed, or that could not be deserialized. Pure. Two promises: a record is
    never passed over unless the settings say so, and an `on_error` of the user's that fails, or gives what is no
    policy, stops the loop.

    `attempt`: how often it was tried, counted from 1. What cannot be deserialized is not tried again, nor is output
    that its topic refuses: it would fail again."""
    may_retry = failed_at is FailedAt.HANDLER
    if not isinstance(error, Exception):
        return Stop(error)  # an exit or an interrupt: meant for the program, not for the record
    if may_retry and attempt <= settings.first_retries:
        return TryAgain(backoff_ms(settings, attempt))
    try:
        policy = _policy(settings, record, error, attempt)
    except Exception as raised:
        return Stop(raised)
    if policy == "retry" and callable(settings.on_error) and may_retry:
        return TryAgain(backoff_ms(settings, attempt))
    if policy == "skip":
        return Pass.SKIP
    if policy == "dead_letter":
        return Pass.DEAD_LETTER
    return Stop(error)


def backoff_ms(settings: ProcessingSettings, attempt: int) -> int:
    """Twice as long after each attempt."""
    return min(settings.retry_backoff_ms << min(attempt - 1, 31), settings.retry_backoff_max_ms)


def _policy(settings: ProcessingSettings, record: ConsumerRecord, error: Exception, attempt: int) -> ErrorPolicy:
    if not callable(settings.on_error):
        return settings.on_error
    policy = settings.on_error(record, error, attempt)
    if policy not in ERROR_POLICIES:
        raise ValueError(f"expected on_error to give one of {', '.join(ERROR_POLICIES)}, found {policy!r}") from error
    return policy


@dataclass(frozen=True, slots=True)
class Work:
    """A record, or a batch of them: then `record` is its first one."""

    record: ConsumerRecord
    partition: TopicPartition
    lane: Hashable
    poll: int  # the poll that returned it
    tracker: OffsetTracker = field(repr=False, compare=False)  # another one after the partition was given up
    attempt: int = 1
    failure: Exception | None = None  # why it has no key and value: it could not be deserialized
    is_output_refused: bool = False
    batch: Batch | None = field(default=None, repr=False)

    @property
    def records(self) -> Sequence[ConsumerRecord]:
        return (self.record,) if self.batch is None else self.batch.records()

    @property
    def count(self) -> int:
        """How many records it is."""
        return 1 if self.batch is None else self.batch.count

    @property
    def content(self) -> object:
        """The handler's first argument: a record, or the content of a batch."""
        return self.record if self.batch is None else self.batch.content

    @property
    def failed_at(self) -> FailedAt:
        """The place where it fails, if it does."""
        if self.failure is not None:
            return FailedAt.DESERIALIZER
        return FailedAt.OUTPUT if self.is_output_refused else FailedAt.HANDLER


@dataclass(slots=True)
class Counts:
    """`abandoned`: with a worker when their partition was given up or the loop ended without waiting for them any
    longer; they come again."""

    handled: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    retried: int = 0
    abandoned: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Counts are of records. `handled`: their handlers returned; `retried`: attempts that failed and were repeated;
    `abandoned`: still with a worker when their partition was given up, or at the end: they come again.

    `committed`: the last offset that was committed, of each partition that ever was."""

    handled: int
    skipped: int
    dead_lettered: int
    retried: int
    abandoned: int
    commits: int
    committed: Mapping[TopicPartition, int]
    duration_ms: int
    ended_by: str  # "SIGTERM", "SIGINT", "stop" or "error"


class RecordFailed(Exception):
    """A record could not be processed, and `on_error` says to stop. `__cause__` is the error of the handler or
    deserializer. The record is not committed: the next run begins with it. `summary` describes the run until then."""

    def __init__(self, record: ConsumerRecord, error: BaseException, summary: RunSummary) -> None:
        super().__init__(
            f"{record.topic}-{record.partition} offset {record.offset}: expected the record to be processed, "
            f"found {type(error).__name__}: {error}"
        )
        self.record = record
        self.summary = summary

    __reduce__ = reduce_error
