"""The typed logs of coordinators as columns, for the views of groups and of transactions.

Guards one promise: of every key the last row counts, and a null value deletes. A root without such a log has no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bus.model import TopicPartition
from bus.records.log_schema import TIMESTAMP_TYPE
from bus.storage_delta.partition_reader import TableFiles
from bus.tables.snapshots import check_plain
from bus.tables.topics import TopicTables

LOG_PARTITION = pa.field("log_partition", pa.int32())


def last_values(tables: TopicTables, topic: str, value_type: pa.StructType) -> pa.Table:
    """The fields of the last value of every key, and `log_partition`, the partition that has it."""
    schema = pa.schema([*value_type, LOG_PARTITION])
    parts = [_last_values(tables, one, schema) for one in _partitions(tables, topic)]
    return pa.concat_tables([schema.empty_table(), *parts])


def _last_values(tables: TopicTables, partition: TopicPartition, schema: pa.Schema) -> pa.Table:
    rows = read_rows(tables, partition, ["offset", "key", "value"])
    last = rows.group_by("key").aggregate([("offset", "max")]).column("offset_max")
    rows = rows.filter(pc.and_(pc.is_in(rows.column("offset"), last), pc.is_valid(rows.column("value"))))
    return _with_fields(rows, partition, schema)


def all_values(
    tables: TopicTables, topic: str, value_type: pa.StructType, columns: Sequence[str] = ("offset", "timestamp", "key")
) -> pa.Table:
    """A row for each that the log still has: `columns` of the log, the fields of the value, and `log_partition`."""
    schema = pa.schema([*value_type, LOG_PARTITION])
    parts = []
    for partition in _partitions(tables, topic):
        rows = read_rows(tables, partition, [*columns, "value"])
        values = _with_fields(rows, partition, schema)
        parts.append(pa.table({**{name: rows.column(name) for name in columns}, **dict(_columns(values))}))
    return pa.concat_tables(parts) if parts else pa.table({})


def read_rows(
    tables: TopicTables, partition: TopicPartition, columns: Sequence[str], version: int | None = None
) -> pa.Table:
    """These columns of a partition's live rows, at the last version or at that one. Raises `StorageFault`."""
    snapshot = check_plain(tables.snapshot(partition, version))
    if not snapshot.files:
        return pa.schema([snapshot.schema.field(name) for name in columns]).empty_table()
    return pa.concat_tables(list(TableFiles(snapshot.folder).read(snapshot.files, columns)))


def _partitions(tables: TopicTables, topic: str) -> list[TopicPartition]:
    return tables.partitions(topic) if topic in tables.topics() else []


def _with_fields(rows: pa.Table, partition: TopicPartition, schema: pa.Schema) -> pa.Table:
    fields, count = fields_of(rows.column("value")), rows.num_rows
    columns = [fields.get(field.name, pa.nulls(count, field.type)) for field in schema if field != LOG_PARTITION]
    return pa.Table.from_arrays([*columns, pa.repeat(pa.scalar(partition.partition, pa.int32()), count)], schema=schema)


def _columns(table: pa.Table) -> zip[tuple[str, pa.ChunkedArray]]:
    return zip(table.column_names, table.columns, strict=True)


def fields_of(structs: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array]:
    """The columns of an array of structs; a null struct is null in each."""
    if isinstance(structs, pa.ChunkedArray):
        structs = structs.combine_chunks()
    return dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))


def time_of(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.cast(milliseconds, pa.timestamp("ms", tz="UTC")), TIMESTAMP_TYPE)


def view_table(schema: pa.Schema, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """These columns in the schema's order and types; one that is not given is null."""
    count = len(next(iter(columns.values())))
    arrays = [pc.cast(columns.get(field.name, pa.nulls(count, field.type)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
