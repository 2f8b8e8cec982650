"""Which damaged data file made the embedded engine fail: the engine speaks of pages and protocols."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from bus.errors import show_way_out
from bus.storage_delta.partition_reader import TableFiles
from bus.tables.snapshots import TableSnapshot

# What says that the statement is at fault, or its caller.
_OF_STATEMENTS = (
    duckdb.ParserException,
    duckdb.CatalogException,
    duckdb.InterruptException,
    duckdb.OutOfMemoryException,
    duckdb.PermissionException,
)


def explain_damage(error: BaseException, shown: Iterable[TableSnapshot]) -> str | None:
    """The partition, file and offsets, if a data file of the topics that are `shown` cannot be read; None if it is not
    that. Reads them all, so it is asked only about errors that files may have caused."""
    is_of_names = isinstance(error, duckdb.BinderException) and "read_parquet" not in str(error)
    if isinstance(error, _OF_STATEMENTS) or is_of_names:
        return None
    return find_damage(shown)


def find_damage(shown: Iterable[TableSnapshot]) -> str | None:
    """The first of their files that cannot be read, if there is one."""
    for snapshot in shown:
        damage = TableFiles(snapshot.folder).find_damage(snapshot.files)
        if damage is not None:
            partition = f"{snapshot.partition.topic}/{snapshot.partition.partition}"
            return f"{partition}: {damage}; {show_way_out(snapshot.partition.topic, snapshot.partition.partition)}"
    return None
