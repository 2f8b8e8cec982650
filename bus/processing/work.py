"""A record on its way through the loop, the counts of outcomes, and the summary of a run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.client.values import ConsumerRecord
from bus.errors import reduce_error
from bus.model import TopicPartition
from bus.processing.batches import Batch
from bus.processing.commits import OffsetTracker
from bus.processing.error_decisions import FailedAt


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
