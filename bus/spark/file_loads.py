"""Files of records into a topic, each row once, however often it is tried: what runs in tasks, and what the log has.

Every file is a producer of its own, named after the load, the file's path and its size, and its rows have sequences in
the order of the file. So (producer, epoch, sequence) is the key on which the log takes or passes over a row, as an
insert-only MERGE on these columns would. Guards one promise: no state but the log's decides what is there already, so a
load may be killed, run twice, or run again from elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bus.model import TopicPartition
from bus.spark.log_files import table_at
from bus.spark.sink.columns import SinkColumns, sink_columns
from bus.spark.sink.sink_options import SinkOptions, parse_sink_options
from bus.spark.sink.stamped_writer import TaskIdentity
from bus.spark.sink.task import write_rows
from bus.storage_delta.log.txns import decode_producers
from bus.tables.topics import TopicTables

FILE_COLUMN = "file_producer"

Write = Callable[[str, Iterator[pa.RecordBatch]], int]  # a file's producer and rows -> how many


def producer_name(load: str, path: str, size_bytes: int) -> str:
    """The same for the same file of the same load, for ever."""
    digest = hashlib.sha256(f"{path}\0{size_bytes}".encode()).hexdigest()[:32]
    return f"backfill.{load}.{digest}"


class BusFileSink(DataSource):
    """A sink for batch writes, with the options and columns of `format("bus")` and the column `FILE_COLUMN`, the
    producer of each row. Rows of a file follow one another, in its order, in one task."""

    @classmethod
    def name(cls) -> str:
        return "bus_files"

    def writer(self, schema: StructType, overwrite: bool) -> BusFileWriter:
        options = parse_sink_options(self.options, is_stream=False)
        return BusFileWriter(options, sink_columns(schema, options))


class BusFileWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        write_files(iterator, self._write_file)
        return WriterCommitMessage()

    def _write_file(self, producer: str, batches: Iterator[pa.RecordBatch]) -> int:
        # Rows without a key begin at another partition for each file, and at the same one for the same file.
        first_turn = int(producer[-4:], 16)
        return write_rows(batches, self._columns, self._options, TaskIdentity(producer, 0, 0, first_turn))


def write_files(batches: Iterable[pa.RecordBatch], write: Write) -> int:
    """How many rows, all in all."""
    files = itertools.groupby(_pieces(batches), key=lambda piece: piece[0])
    return sum(write(producer, (rows for _, rows in found)) for producer, found in files)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each batch cut where another file begins."""
    for batch in batches:
        encoded = pc.run_end_encode(batch.column(FILE_COLUMN))
        begin = 0
        for producer, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            yield producer, batch.slice(begin, end - begin)
            begin = end


def records_in_log(tables: TopicTables, topic: str, producers: Collection[str]) -> Mapping[str, int]:
    """How many rows of each of these producers the log of `topic` has taken, as of now, by their last sequences in each
    partition: those that retention or compaction let go count too. 0 for one that the cluster does not know."""
    known = tables.cluster().producers.by_name
    ids = {found.producer_id: name for name in producers if (found := known.get(name)) is not None}
    taken = dict.fromkeys(producers, 0)
    for partition in tables.partitions(topic):
        for producer_id, last_sequence in _last_sequences(tables, partition).items():
            if producer_id in ids:
                taken[ids[producer_id]] += last_sequence + 1
    return taken


def _last_sequences(tables: TopicTables, partition: TopicPartition) -> Mapping[int, int]:
    producers = decode_producers(table_at(tables, partition, None).txns)
    return {producer_id: found.last_sequence for producer_id, found in producers.items()}
