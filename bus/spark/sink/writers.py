"""`format("bus")` as a sink, as Spark sees it: one writer for a batch write, one for the batches of a streaming query.

Guards one promise: a row is in its topic once, also if Spark repeats a task or a batch. Nothing is left to do when all
tasks are done: their rows are committed, and a batch that failed half way is completed by the next attempt, not taken
back. With bus.transactional it is the other way round: tasks write nothing, and the driver writes all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bus.spark.sink.columns import SinkColumns, sink_columns
from bus.spark.sink.sink_options import Application, SinkOptions, parse_sink_options
from bus.spark.sink.stamped_writer import check_topic, task_identity
from bus.spark.sink.task import write_rows
from bus.spark.source.source_options import OptionError

if TYPE_CHECKING:
    from bus.spark.sink.transactional_batch import CollectedPart  # loaded by the queries that use it


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    task: int
    rows: int


@dataclass(frozen=True)
class RowsCollected(WriterCommitMessage):
    """The message of a task that has written nothing: the driver writes its rows."""

    application: Application
    task: int
    rows: int
    parts: tuple[CollectedPart, ...]


def _write_task(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, application: Application, task: int
) -> WriterCommitMessage:
    identity = task_identity(application, task)
    if not options.is_transactional:
        return RowsWritten(task, write_rows(batches, columns, options, identity))
    from bus.spark.sink.transactional_batch import collect_rows

    rows, parts = collect_rows(batches, columns, options, identity)
    return RowsCollected(application, task, rows, parts)


def _commit_tasks(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """On the driver, when all tasks are done."""
    collected = [message for message in messages if isinstance(message, RowsCollected) and message.parts]
    if collected:
        from bus.spark.sink.transactional_batch import commit_parts

        parts = [part for message in sorted(collected, key=lambda message: message.task) for part in message.parts]
        commit_parts(parts, options, collected[0].application)


class BusBatchWriter(DataSourceArrowWriter):
    """`application` says who writes: the rows of a task that runs again are known by it."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, application: Application) -> None:
        self._options = options
        self._columns = columns
        self._application = application

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write_task(iterator, self._columns, self._options, self._application, _context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit_tasks(messages, self._options)


class BusStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise RuntimeError("expected a task of a streaming query, found one without its id and batch")
        application = Application(query_id, int(batch_id))
        return _write_task(iterator, self._columns, self._options, application, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit_tasks(messages, self._options)


def batch_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> BusBatchWriter:
    """Raises `OptionError`."""
    if overwrite:
        raise OptionError("mode: expected append, found overwrite: a topic is only appended to")
    parsed = parse_sink_options(options, is_stream=False)
    columns = sink_columns(schema, parsed)
    check_topic(parsed, must_answer=True)
    return BusBatchWriter(parsed, columns, parsed.application or Application(str(uuid.uuid4()), 0))


def stream_writer(schema: StructType, options: Mapping[str, str]) -> BusStreamWriter:
    """Every output mode appends, as with Kafka: a result that is given out again is another record. Raises
    `OptionError`, which is for the start: Spark asks again for each batch, when a broker may be away."""
    parsed = parse_sink_options(options, is_stream=True)
    columns = sink_columns(schema, parsed)
    check_topic(parsed, must_answer=False)
    return BusStreamWriter(parsed, columns)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    return context
