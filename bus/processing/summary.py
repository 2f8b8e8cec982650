"""How a run of the processing loop went, for those who called it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.client.values import ConsumerRecord
from bus.model import TopicPartition


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
    """A record could not be processed, and `on_error` says to stop. `__cause__` is what the handler or deserializer
    raised. The record is not committed: the next run begins with it. `summary` tells what was done until then."""

    def __init__(self, record: ConsumerRecord, error: BaseException, summary: RunSummary) -> None:
        super().__init__(
            f"{record.topic}-{record.partition} offset {record.offset}: expected the record to be processed, "
            f"found {type(error).__name__}: {error}"
        )
        self.record = record
        self.summary = summary
