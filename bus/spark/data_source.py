"""`format("bus")`: what Spark makes of the name, and where it asks for readers and writers.

Guards one promise: options are checked before anything else, so a wrong one fails at load() or start() and says why.
"""

from __future__ import annotations

import os

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from bus.spark.sink.writers import BusBatchWriter, BusStreamWriter, batch_writer, stream_writer
from bus.spark.source.batch import BusBatchReader, batch_reader
from bus.spark.source.options import OptionError, SourceOptions, parse_source_options
from bus.spark.source.rows import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS, columns_of
from bus.spark.source.stream import BusStreamReader


class BusDataSource(DataSource):
    """Topics of a bus: see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "bus"

    def schema(self) -> StructType:
        """What load() asks for. Whether the query will be a stream is not known then: what is wrong for both is."""
        return SOURCE_SCHEMA_WITH_HEADERS if self._any_options().include_headers else SOURCE_SCHEMA

    def reader(self, schema: StructType) -> BusBatchReader:
        options = self._source_options(is_stream=False)
        columns = columns_of(schema, include_headers=options.include_headers)
        return batch_reader(options, columns, cores=_cores())

    def streamReader(self, schema: StructType) -> BusStreamReader:
        options = self._source_options(is_stream=True)
        return BusStreamReader(options, columns_of(schema, include_headers=options.include_headers), cores=_cores())

    def writer(self, schema: StructType, overwrite: bool) -> BusBatchWriter:
        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BusStreamWriter:
        return stream_writer(schema, self.options)

    def _any_options(self) -> SourceOptions:
        try:
            return self._source_options(is_stream=True)
        except OptionError:
            return self._source_options(is_stream=False)

    def _source_options(self, *, is_stream: bool) -> SourceOptions:
        return parse_source_options(self.options, is_stream=is_stream)


def _cores() -> int:
    """How many tasks run at once. The driver's planner does not know the cluster: minPartitions asks for more."""
    return os.cpu_count() or 1
