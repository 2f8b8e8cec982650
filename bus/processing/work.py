"""A record on its way through the loop, and the counts of what became of records."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from bus.client.values import ConsumerRecord
from bus.model import TopicPartition
from bus.processing.offset_tracker import OffsetTracker


@dataclass(frozen=True, slots=True)
class Work:
    record: ConsumerRecord
    partition: TopicPartition
    lane: Hashable
    batch: int  # of which poll
    tracker: OffsetTracker = field(repr=False, compare=False)  # another one after the partition was given up
    attempt: int = 1
    failure: Exception | None = None  # why it has no key and value: it could not be deserialized


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
