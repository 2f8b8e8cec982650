"""Listings: tables for people, JSON and CSV for programs, the same columns in all three.

Guards one promise: what a program reads never depends on the width of a terminal, on colour or on how numbers are
written for people.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, islice
from typing import Any, TypeVar

import click

from bus.cli.colors import styled

LISTING_FORMATS = ("table", "json", "csv")
_GAP = "  "
_CHUNK_ROWS = 1_000
T = TypeVar("T")
# A newline in a value must not break a table, nor an escape sequence recolour the terminal.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is the key in JSON and the header in CSV; tables show `label`, or the name in capitals with dashes."""

    name: str
    label: str = ""
    is_number: bool = False
    is_bytes: bool = False  # a table shows KiB and MiB
    is_time_ms: bool = False  # a table shows a date

    @property
    def title(self) -> str:
        return self.label or self.name.replace("_", "-").upper()


def resolve_form(form: str | None) -> str:
    return form or ("table" if sys.stdout.isatty() else "json")


def write_listing(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], form: str | None, *, may_expand: bool = False
) -> None:
    """Print `rows`, each as long as `columns`; None is an empty cell, or null. JSON and CSV are written as the rows
    come, however many; a table is laid out as a whole.

    With `may_expand`, rows that are too long for the terminal are printed a cell a line.
    """
    match resolve_form(form):
        case "json":
            write_json(dict(zip((column.name for column in columns), row, strict=True)) for row in rows)
        case "csv":
            _write_csv([column.name for column in columns], rows)
        case _:
            click.echo(table_text(columns, rows, may_expand=may_expand))


def write_json(items: Iterable[Any]) -> None:
    """One array, an item a line: a whole document for parsers, lines for grep."""
    before = "["
    for chunk in _chunks(items):
        click.echo(before + ",\n ".join(json.dumps(item, ensure_ascii=False, default=str) for item in chunk), nl=False)
        before = ",\n "
    click.echo("[]" if before == "[" else "]")


def _write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    for chunk in _chunks(chain([names], rows)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(chunk)
        click.echo(text.getvalue(), nl=False)


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """A write for each item would cost more than the item."""
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK_ROWS)):
        yield chunk


def table_text(columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, may_expand: bool = False) -> str:
    """Columns side by side. A line that is too long for a terminal goes on in the next one: nothing is cut off."""
    from rich.cells import cell_len

    texts = [[cell_text(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(titles, *texts, strict=True)]
    is_too_wide = sum(widths) + len(_GAP) * (len(widths) - 1) > shutil.get_terminal_size((100, 24)).columns
    if may_expand and texts and is_too_wide and sys.stdout.isatty():
        return _expanded_text(titles, texts)
    is_right = [column.is_number or column.is_bytes for column in columns]

    def line(cells: Sequence[str]) -> str:
        parts = []
        for cell, width, right in zip(cells, widths, is_right, strict=True):
            padding = " " * (width - cell_len(cell))
            parts.append(padding + cell if right else cell + padding)
        return _GAP.join(parts).rstrip()

    return "\n".join([_title(line(titles)), *map(line, texts)])


def _expanded_text(titles: Sequence[str], texts: Sequence[Sequence[str]]) -> str:
    """One cell a line, for rows that would not fit side by side."""
    width = max(map(len, titles))
    lines = []
    for number, cells in enumerate(texts, start=1):
        lines.append(_title(f"-- row {number}"))
        lines += [f"{title:<{width}}{_GAP}{cell}" for title, cell in zip(titles, cells, strict=True)]
    return "\n".join(lines)


def _title(text: str) -> str:
    return styled(text, sys.stdout, bold=True)


def cell_text(column: Column, cell: Any) -> str:
    """A cell as people read it."""
    if cell is None:
        return "-"
    if column.is_bytes:
        return human_bytes(int(cell))
    if column.is_time_ms:
        return human_time(int(cell))
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, (dict, list)):
        cell = json.dumps(cell, ensure_ascii=False, default=str)
    return str(cell).translate(_CONTROLS)


def human_bytes(count: int) -> str:
    """`17 B`, `1.4 KiB`, `3.0 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_time(timestamp_ms: int) -> str:
    """ISO 8601, UTC, milliseconds; a number where the calendar ends."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
