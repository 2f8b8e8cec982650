"""What the views of a root have in common: how columns become a table of a view's schema."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

TIME_TYPE = pa.timestamp("us", tz="UTC")


def time_of(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(pc.cast(milliseconds, pa.timestamp("ms", tz="UTC")), TIME_TYPE)


def view_table(schema: pa.Schema, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """These columns in the schema's order and types; one that is not given is null."""
    count = len(next(iter(columns.values())))
    arrays = [pc.cast(columns.get(field.name, pa.nulls(count, field.type)), field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
