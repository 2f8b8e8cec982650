"""`bus sql`: a statement over topics, answered by the embedded engine at once or by Spark distributed.

Reads the tables, never a broker, so it works with the broker up or down.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from bus.cli.commands import BusCommand
from bus.cli.options import listing_format_option, root_option
from bus.cli.output import echo, resolve_form
from bus.cli.sql.sql_rows import TABLE_ROWS_DEFAULT, write_rows
from bus.errors import count_of
from bus.platform.signals import signals_as_interrupts

if TYPE_CHECKING:
    from bus.sql import Connection


class RowLimit(click.ParamType[int]):
    """A number of rows, or all."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "all":
            return sys.maxsize
        if not str(value).isdecimal():
            self.fail(f"expected a number of rows, or all, found {value!r}", param, ctx)
        return min(int(value), sys.maxsize)


@click.command(
    cls=BusCommand,
    examples="""
    bus sql "SELECT count(*) FROM flights"
    bus sql "SELECT value->>'$.carrier' AS carrier, count(*) FROM flights GROUP BY 1 ORDER BY 2 DESC"
    bus sql "SELECT * FROM flights ORDER BY offset LIMIT 5" --at-version flights/0=12
    bus sql "SELECT count(*) FROM flights" --at-transaction payments
    bus sql "SELECT count(*) FROM flights" --engine spark
    bus sql - < report.sql
    bus sql "SHOW TABLES"
    bus sql
    """,
)
@click.argument("query", required=False)
@click.option(
    "--engine",
    type=click.Choice(["duckdb", "spark"]),
    default="duckdb",
    help="duckdb: in this process; spark: with PySpark.",
)
@click.option(
    "--at-version",
    multiple=True,
    metavar="N",
    help="As of a Delta version: N, TOPIC=N or TOPIC/PARTITION=N; repeatable.",
)
@click.option(
    "--at-offset", multiple=True, metavar="N", help="Only offsets below: N, TOPIC=N or TOPIC/PARTITION=N; repeatable."
)
@click.option(
    "--at-transaction",
    metavar="ID",
    help="As of the last committed transaction of a transactional id, in all partitions.",
)
@click.option(
    "--limit",
    type=RowLimit(),
    metavar="N|all",
    show_default=False,
    help=f"Print so many rows at most.  [default: {TABLE_ROWS_DEFAULT:,} of a table; all as JSON and CSV]",
)
@click.option("--timing", is_flag=True, help="Say how long it took.")
@listing_format_option()
@root_option()
def sql(
    query: str | None,
    engine: str,
    at_version: tuple[str, ...],
    at_offset: tuple[str, ...],
    at_transaction: str | None,
    limit: int | None,
    timing: bool,
    form: str | None,
    root: str,
) -> None:
    """Run QUERY over the topics; - reads it from standard input. Each topic is a table of its name.

    Without QUERY, on a terminal: a prompt, with history and completion. QUERY reads: SELECT, EXPLAIN, DESCRIBE, SHOW
    or SUMMARIZE, one at a time. A table that is longer than the terminal is shown in $PAGER.
    """
    bounds = {
        "at_version": _parse_bound(at_version, "--at-version"),
        "at_offset": _parse_bound(at_offset, "--at-offset"),
        "at_transaction": at_transaction,
    }
    if at_version and at_transaction is not None:
        raise click.UsageError("expected --at-version or --at-transaction, found both")
    if query is None and sys.stdin.isatty():
        _prompt(root, engine, bounds, form, limit, timing)
        return
    statement = sys.stdin.read() if query in (None, "-") else query
    if not statement or not statement.strip():
        raise click.UsageError("expected a statement, found none")
    started = time.monotonic()
    run = _run_spark if engine == "spark" else _run_duckdb
    rows = run(root, statement, bounds, resolve_form(form), limit)
    if timing:
        echo(f"{count_of(rows, 'row')} in {time.monotonic() - started:.3f} s", err=True)


def _prompt(root: str, engine: str, bounds: dict[str, Any], form: str | None, limit: int | None, timing: bool) -> None:
    if engine != "duckdb":
        raise click.UsageError("expected a statement: the prompt is the embedded engine's")
    if not sys.stdout.isatty():
        raise click.UsageError("expected a statement, or standard output on a terminal for a prompt")
    from bus.cli.sql.sql_prompt import run_prompt

    with _connect(root, bounds) as connection:
        run_prompt(connection, form=resolve_form(form), limit=limit, is_timed=timing)


def _connect(root: str, bounds: dict[str, Any]) -> Connection:
    # An exception while the engine is loaded aborts the process.
    with signals_as_interrupts() as interrupts, interrupts.held():
        from bus.sql import connect
    return connect(root, **bounds)


def _run_duckdb(root: str, statement: str, bounds: dict[str, Any], form: str, limit: int | None) -> int:
    with _connect(root, bounds) as connection:
        result = connection.sql(statement)
        return write_rows(result.schema, result.batches(), form, limit)


def _run_spark(root: str, statement: str, bounds: dict[str, Any], form: str, limit: int | None) -> int:
    from bus.cli.sql.sql_spark import run_statement

    table = run_statement(root, statement, **bounds)
    return write_rows(table.schema, table.to_batches(), form, limit)


def _parse_bound(texts: tuple[str, ...], option: str) -> Any:
    if not texts:
        return None
    from bus.tables.point_in_time import parse_bound

    try:
        return parse_bound(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
