"""`bus sql`: a statement over topics, answered by the embedded engine at once or by Spark distributed.

Reads the tables, never a broker, so it works with the broker up or down.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import click

from bus.cli.groups import BusCommand
from bus.cli.options import count_of, listing_format_option, root_option
from bus.cli.output import Column, resolve_form, write_listing

_TABLE_ROWS_MAX = 10_000  # a table is laid out as a whole; more than this nobody reads


@click.command(
    cls=BusCommand,
    examples="""
    bus sql "SELECT count(*) FROM flights"
    bus sql "SELECT value->>'$.carrier' AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC"
    bus sql "SELECT * FROM flights ORDER BY offset LIMIT 5" --at-version flights:0=12
    bus sql "SELECT count(*) FROM flights" --engine spark
    bus sql - < report.sql
    bus sql "SHOW TABLES"
    """,
)
@click.argument("query")
@click.option("--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", help="Embedded, or distributed.")
@click.option(
    "--at-version",
    multiple=True,
    metavar="N",
    help="As of a Delta version: N, TOPIC=N or TOPIC:PARTITION=N; repeatable.",
)
@click.option(
    "--at-offset", multiple=True, metavar="N", help="Only offsets below: N, TOPIC=N or TOPIC:PARTITION=N; repeatable."
)
@click.option("--timing", is_flag=True, help="Say how long it took.")
@listing_format_option()
@root_option()
def sql(
    query: str,
    engine: str,
    at_version: tuple[str, ...],
    at_offset: tuple[str, ...],
    timing: bool,
    form: str | None,
    root: str,
) -> None:
    """Run QUERY over the topics; - reads it from standard input. Each topic is a table of its name."""
    statement = sys.stdin.read() if query == "-" else query
    if not statement.strip():
        raise click.UsageError("expected a statement, found none")
    bounds = {
        "at_version": _parse_bound(at_version, "--at-version"),
        "at_offset": _parse_bound(at_offset, "--at-offset"),
    }
    started = time.monotonic()
    run = _run_spark if engine == "spark" else _run_duckdb
    rows = run(root, statement, bounds, lambda columns, rows: _write(columns, rows, form))
    if timing:
        click.echo(f"{count_of(rows, 'row')} in {time.monotonic() - started:.3f} s", err=True)


_Write = Callable[[Sequence[Column], Iterable[Sequence[Any]]], int]


def _run_duckdb(root: str, statement: str, bounds: dict[str, Any], write: _Write) -> int:
    from bus.sql import connect

    with connect(root, **bounds) as connection:
        result = connection.sql(statement)
        return write([_column(field) for field in result.schema], result)


def _run_spark(root: str, statement: str, bounds: dict[str, Any], write: _Write) -> int:
    from bus.cli.sql_spark import run_statement

    table = run_statement(root, statement, **bounds)
    return write([_column(field) for field in table.schema], _table_rows(table))


def _column(field: Any) -> Column:
    import pyarrow as pa

    kind = field.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return Column(field.name, field.name, is_number=is_number)


def _table_rows(table: Any) -> Iterator[Sequence[Any]]:
    for batch in table.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _write(columns: Sequence[Column], rows: Iterable[Sequence[Any]], form: str | None) -> int:
    """How many there were. They are written as they come, but for a table."""
    counted = _Counted(rows)
    if columns and resolve_form(form) == "table":
        write_listing(columns, list(islice(counted, _TABLE_ROWS_MAX)), form, may_expand=True)
    elif columns:
        write_listing(columns, counted, form)
    shown = counted.count
    for _ in counted:
        pass
    if columns and shown < counted.count:
        total = count_of(counted.count, "row")
        click.echo(f"{total}, of which the first {shown:,} are shown; --format csv has all", err=True)
    return counted.count


class _Counted:
    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self.count = 0
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return self

    def __next__(self) -> Sequence[Any]:
        row = next(self._rows)
        self.count += 1
        return [_plain(cell) for cell in row]


def _plain(cell: Any) -> Any:
    """What JSON and people can read."""
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell).decode(errors="backslashreplace")
    if isinstance(cell, dict):
        return {name: _plain(inner) for name, inner in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_plain(inner) for inner in cell]
    return cell.isoformat().replace("+00:00", "Z") if hasattr(cell, "isoformat") else cell


def _parse_bound(texts: tuple[str, ...], option: str) -> Any:
    if not texts:
        return None
    from bus.point_in_time import parse_bound

    try:
        return parse_bound(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
