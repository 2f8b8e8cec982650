"""A topic as a view: the SQL that stands for the live data files of its partitions.

Columns: topic, partition, then those of the log. `key` and `value` are text: UTF-8 as it is, any other bytes escaped
as \\xNN; `key_bytes` and `value_bytes` are the bytes themselves. A typed topic's `value` is its struct. Nothing below
the log start is shown, even while its file is there. Files come in offset order, so a plain SELECT does too, partition
by partition. The engine reads Parquet itself: it skips row groups by their statistics, decodes the columns that are
asked for, and counts from the footers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from bus.model import TopicPartition
from bus.sql.statement import quote_name, quote_text
from bus.table_snapshots import TableSnapshot


def create_view(topic: str, snapshots: Sequence[TableSnapshot], end_offsets: Sequence[int | None]) -> str:
    """The statement that makes the view `topic`; a partition with an end offset shows what is below it."""
    parts = [
        _select_partition(snapshot, end_offset) for snapshot, end_offset in zip(snapshots, end_offsets, strict=True)
    ]
    return f"CREATE OR REPLACE VIEW {quote_name(topic)} AS\n" + "\nUNION ALL\n".join(parts)


def _select_partition(snapshot: TableSnapshot, end_offset: int | None) -> str:
    columns = ", ".join(_columns(snapshot.partition, snapshot.schema))
    bounds = [f'"offset" >= {snapshot.log_start}'] if snapshot.has_deleted_rows else []
    bounds += [] if end_offset is None else [f'"offset" < {end_offset}']
    where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
    return f"SELECT {columns} FROM {_source(snapshot)}{where}"


def _columns(partition: TopicPartition, schema: pa.Schema) -> list[str]:
    columns = [f"{quote_text(partition.topic)} AS topic", f"{partition.partition}::INTEGER AS partition"]
    raw = []
    for field in schema:
        name = quote_name(field.name)
        if field.name in ("key", "value") and pa.types.is_binary(field.type):
            columns.append(f"coalesce(try(decode({name})), {name}::VARCHAR) AS {name}")
            raw.append(f"{name} AS {quote_name(field.name + '_bytes')}")
        else:
            columns.append(name)
    return columns + raw


def _source(snapshot: TableSnapshot) -> str:
    if not snapshot.files:
        nothing = ", ".join(f"NULL::{sql_type(field.type)} AS {quote_name(field.name)}" for field in snapshot.schema)
        return f"(SELECT {nothing} WHERE false)"
    files = ", ".join(quote_text(_escape_glob(file)) for file in snapshot.files)
    return f"read_parquet([{files}], hive_partitioning = false)"


def _escape_glob(path: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", path)


_SQL_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.int16(): "SMALLINT",
    pa.int8(): "TINYINT",
    pa.float64(): "DOUBLE",
    pa.float32(): "FLOAT",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
}


def sql_type(arrow_type: pa.DataType) -> str:
    """The engine's name of a type that a column of the log can have."""
    if arrow_type in _SQL_TYPES:
        return _SQL_TYPES[arrow_type]
    if pa.types.is_timestamp(arrow_type):
        return "TIMESTAMP WITH TIME ZONE" if arrow_type.tz else "TIMESTAMP"
    if pa.types.is_list(arrow_type):
        return f"{sql_type(arrow_type.value_type)}[]"
    if pa.types.is_map(arrow_type):
        return f"MAP({sql_type(arrow_type.key_type)}, {sql_type(arrow_type.item_type)})"
    if pa.types.is_struct(arrow_type):
        return "STRUCT(" + ", ".join(f"{quote_name(field.name)} {sql_type(field.type)}" for field in arrow_type) + ")"
    raise ValueError(f"expected a type of a topic's column, found {arrow_type}")
