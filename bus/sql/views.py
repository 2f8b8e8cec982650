"""A topic as a view: the SQL that stands for the live data files of its partitions.

Columns: topic, partition, then those of the log. `key` and `value` are text: UTF-8 as it is, any other bytes escaped
as \\xNN; `key_bytes` and `value_bytes` are the bytes themselves. A typed topic's `value` is its struct. Nothing below
the log start is shown, even while its file is there. Files come in offset order, so a plain SELECT does too, partition
by partition. The engine reads Parquet itself: it skips row groups by their statistics, decodes the columns that are
asked for, and counts from the footers.

A scan costs the engine a third of a millisecond to plan, several times a statement. So partitions that differ in their
files alone share one, and a row's partition is the folder of its file; the engine asks that once a file, also to leave
out the files of other partitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from bus.records.log_schema import TIMESTAMP_TYPE
from bus.sql.read_only import quote_name, quote_text
from bus.tables.snapshots import TableSnapshot
from bus.tables.transaction_cuts import is_not_of

_FOLDER = r"""regexp_extract(filename, '/([0-9]+)/[^/]*$', 1)::INTEGER"""


def create_view(
    topic: str,
    snapshots: Sequence[TableSnapshot],
    end_offsets: Sequence[int | None],
    hidden: Sequence[Sequence[tuple[int, int]]],
) -> str:
    """Return the statement that creates the view `topic`; a partition with an end offset shows only rows below it, and
    no rows of the `hidden` transactions, by producer id and epoch."""
    parts = [_Part(*each) for each in zip(snapshots, end_offsets, map(tuple, hidden), strict=True)]
    bounded = [part for part in parts if part.snapshot.files]
    scans = [list(parts) for _, parts in groupby(bounded, key=_scan_of)]
    selects = [_select(parts) for parts in scans] or [_select_nothing(snapshots[0])]
    return f"CREATE OR REPLACE VIEW {quote_name(topic)} AS\n" + "\nUNION ALL\n".join(selects)


@dataclass(frozen=True, slots=True)
class _Part:
    snapshot: TableSnapshot
    end_offset: int | None
    hidden: tuple[tuple[int, int], ...]

    @property
    def where(self) -> str:
        begin_offset = self.snapshot.begin_offset
        bounds = [] if begin_offset is None else [f'"offset" >= {begin_offset}']
        bounds += [] if self.end_offset is None else [f'"offset" < {self.end_offset}']
        bounds += [is_not_of(producer_id, epoch) for producer_id, epoch in self.hidden]
        return f" WHERE {' AND '.join(bounds)}" if bounds else ""


def _scan_of(part: _Part) -> tuple[object, ...]:
    """Neighbours with the same answer share a scan. A struct is in each file as it was when the file was written, and
    the first file of a scan decides for all."""
    snapshot = part.snapshot
    is_typed = not pa.types.is_binary(snapshot.schema.field("value").type)
    return part.where, snapshot.schema, snapshot.partition.partition if is_typed or not snapshot.is_flat else None


def _select(parts: Sequence[_Part]) -> str:
    snapshots = [part.snapshot for part in parts]
    is_shared = len(parts) > 1
    partition = _FOLDER if is_shared else f"{snapshots[0].partition.partition}::INTEGER"
    columns = ", ".join(_columns(snapshots[0], partition))
    files = escape_globs(", ".join(quote_text(file) for snapshot in snapshots for file in snapshot.files))
    options = f"hive_partitioning = false, filename = {'true' if is_shared else 'false'}"
    return f"SELECT {columns} FROM read_parquet([{files}], {options}){parts[0].where}"


def _select_nothing(snapshot: TableSnapshot) -> str:
    nothing = ", ".join(f"NULL::{sql_type(field.type)} AS {quote_name(field.name)}" for field in snapshot.schema)
    columns = ", ".join(_columns(snapshot, f"{snapshot.partition.partition}::INTEGER"))
    return f"SELECT {columns} FROM (SELECT {nothing} WHERE false)"


def _columns(snapshot: TableSnapshot, partition: str) -> list[str]:
    columns = [f"{quote_text(snapshot.partition.topic)} AS topic", f"{partition} AS partition"]
    raw = []
    for field in snapshot.schema:
        name = quote_name(field.name)
        if field.name in ("key", "value") and pa.types.is_binary(field.type):
            columns.append(f"coalesce(try(decode({name})), {name}::VARCHAR) AS {name}")
            raw.append(f"{name} AS {quote_name(field.name + '_bytes')}")
        elif field.type == TIMESTAMP_TYPE:  # Spark writes it in a form that does not tell the time zone
            columns.append(f"{name}::{sql_type(field.type)} AS {name}")
        else:
            columns.append(name)
    return columns + raw


def escape_globs(paths: str) -> str:
    """Escape paths for the engine, which treats every path as a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", paths)


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
