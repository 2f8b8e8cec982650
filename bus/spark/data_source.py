"""`format("bus")`: what Spark makes of the name, and where it asks for readers and writers.

Guards one promise: options are checked before anything else, so a wrong one fails at load() or start() and says why.
Each reader and writer is loaded by the queries that use it, since every query has new processes that come through here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from bus.spark.source.rows import SOURCE_SCHEMA, SOURCE_SCHEMA_WITH_HEADERS, columns_of
from bus.spark.source.source_options import OptionError, SourceOptions, parse_source_options

if TYPE_CHECKING:
    from bus.spark.sink.writers import BusBatchWriter, BusStreamWriter
    from bus.spark.source.batch import BusBatchReader
    from bus.spark.source.stream import BusStreamReader


class BusDataSource(DataSource):
    """Topics of a bus: see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "bus"

    def schema(self) -> StructType:
        """Return the schema for load(). Nothing says then if the query will be a stream, so options are refused only if
        they are wrong for both."""
        if _OF_A_CATALOG in self.options:
            raise OptionError(
                "expected a frame or a temporary view of the bus, found a table of Spark's catalog, which cannot keep "
                "what is written in Python: CREATE TEMPORARY VIEW name USING bus OPTIONS (...) reads topics, "
                "bus.spark.register() makes views of all of them, and INSERT is DataFrame.write.format('bus')"
            )
        return SOURCE_SCHEMA_WITH_HEADERS if self._any_options().include_headers else SOURCE_SCHEMA

    def reader(self, schema: StructType) -> BusBatchReader:
        from bus.spark.source.batch import batch_reader

        options = self._source_options(is_stream=False)
        columns = columns_of(schema, include_headers=options.include_headers)
        return batch_reader(options, columns, cores=_cores())

    def streamReader(self, schema: StructType) -> BusStreamReader:
        from bus.spark.source.stream import BusStreamReader

        options = self._source_options(is_stream=True)
        return BusStreamReader(options, columns_of(schema, include_headers=options.include_headers), cores=_cores())

    def writer(self, schema: StructType, overwrite: bool) -> BusBatchWriter:
        from bus.spark.sink.writers import batch_writer

        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BusStreamWriter:
        from bus.spark.sink.writers import stream_writer

        return stream_writer(schema, self.options)

    def _any_options(self) -> SourceOptions:
        try:
            return self._source_options(is_stream=True)
        except OptionError:
            return self._source_options(is_stream=False)

    def _source_options(self, *, is_stream: bool) -> SourceOptions:
        return parse_source_options(self.options, is_stream=is_stream)


# Delta's catalog adds it to the options of CREATE TABLE.
_OF_A_CATALOG = "provider"


def _cores() -> int:
    """How many tasks run at once. The driver's planner does not know the cluster: minPartitions asks for more."""
    return os.cpu_count() or 1
