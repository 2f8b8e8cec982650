"""The rows of a statement, printed: JSON and CSV as they come, a table with a limit and in a pager.

Guards one promise: nothing is left out without a word. What a table leaves out is counted, and JSON and CSV leave out
nothing but what `--limit` asked for.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bus.cli.output import Column, table_text
from bus.cli.pager import write_paged
from bus.cli.sql_values import cell_text, json_text, unique_names
from bus.errors import count_of

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS_DEFAULT = 1_000
_CELL_CHARACTERS_MAX = 1_000  # on a terminal
_CHUNK_ROWS = 1_000
T = TypeVar("T")


def write_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, limit: int | None) -> int:
    """How many rows there were, as far as they were looked at. `limit` None: all; of a table, the usual number."""
    if form == "table":
        return _write_table(schema, batches, TABLE_ROWS_DEFAULT if limit is None else limit)
    rows = islice(_rows(batches), limit)
    return _write_json(schema.names, rows) if form == "json" else _write_csv(schema.names, rows)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    from bus.sql.values import python_values

    for batch in batches:
        # In pieces: a batch may have a million rows, and the first are to be seen at once.
        for begin in range(0, batch.num_rows, _CHUNK_ROWS):
            piece = batch.slice(begin, _CHUNK_ROWS)
            yield from zip(*map(python_values, piece.columns), strict=True)


def _write_json(names: list[str], rows: Iterator[tuple[Any, ...]]) -> int:
    """One array, a row a line."""
    unique = unique_names(names)
    if unique != names:
        renamed = ", ".join(f"{name} as {other}" for name, other in zip(names, unique, strict=True) if name != other)
        click.echo(f"columns of one name: JSON has the later ones under names of their own: {renamed}", err=True)
    keys = [f"{json_text(name)}: " for name in unique]
    count, before = 0, "["
    for chunk in _chunks(rows):
        lines = ("{" + ", ".join([k + json_text(c) for k, c in zip(keys, row, strict=True)]) + "}" for row in chunk)
        click.echo(before + ",\n ".join(lines), nl=False)
        before = ",\n "
        count += len(chunk)
    click.echo("]" if count else "[]")
    return count


def _write_csv(names: list[str], rows: Iterator[tuple[Any, ...]]) -> int:
    _write_csv_lines([names])
    count = 0
    for chunk in _chunks(rows):
        _write_csv_lines([["" if cell is None else cell_text(cell) for cell in row] for row in chunk])
        count += len(chunk)
    return count


def _write_csv_lines(lines: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    click.echo(text.getvalue(), nl=False)


def _write_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int) -> int:
    rest = iter(batches)
    shown: list[Sequence[str | None]] = []
    count, cut = 0, 0
    for batch in rest:
        for row in _rows([batch.slice(0, limit - len(shown))]):
            cells = [None if cell is None else cell_text(cell) for cell in row]
            shown.append([_fitting(cell) for cell in cells])
            cut += sum(a is not b for a, b in zip(cells, shown[-1], strict=True))
        count += batch.num_rows  # the rows behind the limit are counted, never converted
    write_paged(table_text([_column(field) for field in schema], shown))
    if count > len(shown):
        click.echo(f"{count_of(count, 'row')}, of which the first {len(shown):,} are shown: see --limit", err=True)
    if cut:
        click.echo(f"{count_of(cut, 'value')} shown in part: --format json and csv have them whole", err=True)
    return count


def _fitting(cell: str | None) -> str | None:
    if cell is None or len(cell) <= _CELL_CHARACTERS_MAX or not sys.stdout.isatty():
        return cell
    return f"{cell[:_CELL_CHARACTERS_MAX]}… ({len(cell):,} characters)"


def _column(field: pa.Field) -> Column:
    import pyarrow as pa

    kind = field.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return Column(field.name, field.name, is_number=is_number)


def _chunks(items: Iterator[T]) -> Iterator[list[T]]:
    while chunk := list(islice(items, _CHUNK_ROWS)):
        yield chunk
