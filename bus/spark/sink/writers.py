"""`format("bus")` as a sink, as Spark sees it: one writer for a batch write, one for the batches of a streaming query.

Guards one promise: a row is in its topic once, also if Spark repeats a task or a batch. Nothing is left to do when all
tasks are done: their rows are committed, and a batch that failed half way is completed by the next attempt, not taken
back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bus.spark.sink.columns import SinkColumns, sink_columns
from bus.spark.sink.connections import check_topic
from bus.spark.sink.options import Application, SinkOptions, parse_sink_options
from bus.spark.sink.stamps import task_identity
from bus.spark.sink.task import write_rows
from bus.spark.source.options import OptionError


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    task: int
    rows: int


class BusBatchWriter(DataSourceArrowWriter):
    """`application` says who writes: the rows of a task that runs again are known by it."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, application: Application) -> None:
        self._options = options
        self._columns = columns
        self._application = application

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _context().partitionId()
        identity = task_identity(self._application, task)
        return RowsWritten(task, write_rows(iterator, self._columns, self._options, identity))


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
        task = context.partitionId()
        identity = task_identity(Application(query_id, int(batch_id)), task)
        return RowsWritten(task, write_rows(iterator, self._columns, self._options, identity))


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
