"""Streaming queries as jobs: started once or for good, followed with lines for those who watch, ended by a signal.

Guards one promise: a batch of a query that is run again writes to a topic what it wrote before, under the same stamps,
so that the topic has it once: rows are brought into the order of their offsets first (`ranges.in_offset_order`), and
the name of the writer is that of the query, which lives in its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bus.cli.options import gathered
from bus.jobs.ranges import OffsetSpan, Place
from bus.model import TopicPartition
from bus.processing.run import StopSignals
from bus.spark.jobs import tell
from bus.spark.source.positions import encode_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 1
_TELL_S = 5.0


def checkpoint_option(command: Any) -> Any:
    return click.option(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="Where the job keeps how far it is; the same folder goes on, a new one starts from the beginning.",
    )(command)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a query goes on, and how often it looks for records."""

    continuous: bool
    interval: str

    def trigger(self) -> dict[str, Any]:
        """Return what `DataStreamWriter.trigger` takes."""
        return {"processingTime": self.interval} if self.continuous else {"availableNow": True}


def pace_options(command: Any) -> Any:
    return gathered(
        "pace",
        Pace,
        click.option(
            "--continuous",
            is_flag=True,
            help="Go on until stopped.  [default: up to the end that there is at the start]",
        ),
        click.option(
            "--interval", metavar="TIME", default="1 second", help="With --continuous, from one batch to the next."
        ),
    )(command)


def check_target(source: str, target: str) -> None:
    """Raise `click.UsageError` for a job that would read what it writes."""
    if source == target:
        raise click.UsageError(f"expected another topic than {source} as the target: it would read what it writes")


def stream_of(
    spark: SparkSession,
    topic: str,
    span: OffsetSpan,
    place: Place,
    *,
    group: str,
    batch_records: int,
    has_headers: bool = False,
) -> DataFrame:
    """The topic from the start of `span` on, as a stream whose groups' names begin with `group`."""
    return (
        spark.readStream.format("bus")
        .options(
            **place.options(),
            subscribe=topic,
            includeHeaders=str(has_headers).lower(),
            maxOffsetsPerTrigger=str(batch_records),
            startingOffsets=json.dumps(encode_partitions(span.begin)),
            groupIdPrefix=group,
        )
        .load()
    )


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """The topic that the rows of a query go to."""

    broker: Mapping[str, str]  # as options of `format("bus")`
    topic: str | None  # None: the column `topic` says it
    keeps_timestamps: bool
    order: str = "rows"  # bus.order

    def options(self) -> dict[str, str]:
        given = {**self.broker, "bus.order": self.order}
        if self.topic is not None:
            given["topic"] = self.topic
        if self.keeps_timestamps:
            given["bus.timestamps"] = "keep"
        return given


def batch_to_topic(change: Callable[[DataFrame], DataFrame], target: TopicTarget) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`: what `change` makes of a batch is appended to the topic, once."""

    def write(batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None, "a batch of no streaming query"
        written = change(batch).write.format("bus").options(**target.options())
        written.options(**{"bus.txnAppId": query_id, "bus.txnVersion": str(batch_id)}).mode("append").save()

    return write


def follow(query: StreamingQuery, *, ends: Mapping[TopicPartition, int] | None = None) -> int:
    """Wait until the query ends, its source has reached `ends`, or the batch is written that was under way when a
    signal came. Return how many rows it has read. A second signal gives the batch up. Raises what ended the query."""
    told, signals = _Told(), _Signals()
    with StopSignals(signals.note, has_hangup=True):
        while not query.awaitTermination(_POLL_S):
            told.look(query)
            if signals.end(query, told.last_batch):
                tell("stopped; the same checkpoint goes on from here")
                break
            if ends is not None and told.has_reached(ends):
                break
        query.stop()
    told.look(query)
    tell(f"{told.rows:,} records in {told.batches} batches, {told.rate():,.0f} a second")
    return told.rows


def reaches(end_offset: str | None, ends: Mapping[TopicPartition, int]) -> bool:
    """Return True if a source whose offsets are this JSON has nothing to read below `ends` any more."""
    found = json.loads(end_offset) if end_offset else {}
    return all(
        found.get(partition.topic, {}).get(str(partition.partition), 0) >= end for partition, end in ends.items()
    )


class _Signals:
    """Signals that ask a query to end. `note` is called on a thread of its own."""

    def __init__(self) -> None:
        self._came: list[str] = []
        self._last_batch: int | None = None  # that was done when the first one was seen

    def note(self, name: str) -> None:
        self._came.append(name)

    def end(self, query: StreamingQuery, last_batch: int) -> bool:
        """Return True if the query is to be stopped now."""
        if not self._came:
            return False
        if self._last_batch is None:
            self._last_batch = last_batch
            tell(f"{self._came[0]}: ending once the batch under way is written; a second signal gives it up")
        return len(self._came) > 1 or last_batch > self._last_batch or not query.status["isTriggerActive"]


class _Told:
    """The work that a query has done, and how much of it was told."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.last_batch = -1
        self._end_offset: str | None = None
        self._started_s = self._told_s = time.monotonic()

    def look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            if progress.batchId > self.last_batch:
                self.last_batch = progress.batchId
                self._end_offset = progress.sources[0].endOffset if progress.sources else None
                self.rows += progress.numInputRows
                self.batches += bool(progress.numInputRows)
        if self.batches and time.monotonic() - self._told_s >= _TELL_S:
            self._told_s = time.monotonic()
            tell(f"batch {self.last_batch}: {self.rows:,} records, {self.rate():,.0f} a second")

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        return reaches(self._end_offset, ends)

    def rate(self) -> float:
        return self.rows / max(time.monotonic() - self._started_s, 0.001)
