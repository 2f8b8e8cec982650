"""Listings: tables for people, JSON and CSV for programs, the same columns in all three; bold and coloured text.

Guards three promises: what a program reads never depends on the width of a terminal, on colour or on how numbers are
written for people, and has every byte; what a record or a name holds never controls a terminal, in whichever form it is
printed; and colours are for a terminal only, unless NO_COLOR says no (https://no-color.org).
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import select
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from itertools import compress, islice
from typing import Any, Generic, TextIO, TypeVar

import click

from bus.client_texts import one_line, text_for

T = TypeVar("T")
ItemT = TypeVar("ItemT")

LISTING_FORMATS = ("table", "json", "csv")
_GAP = "  "
_CHUNK_ROWS = 1_000
_QUOTED_IN_CSV = re.compile(r'[,"\r\n]')


class Kind(Enum):
    """The form of a value in tables."""

    TEXT = "text"
    NUMBER = "number"
    BYTES = "KiB and MiB"
    TIME_MS = "a date"


@dataclass(frozen=True, slots=True)
class Column(Generic[ItemT]):
    """`name` is the key in JSON and the header in CSV; tables show `label`, or the name in capitals with dashes.
    `value`: of an item; None is an empty cell, or null. Without it items are rows, with a cell for each column."""

    name: str
    value: Callable[[ItemT], Any] | None = None
    kind: Kind = Kind.TEXT
    label: str = ""
    is_key: bool = False  # says which row it is: a table that is too wide for the terminal repeats it
    is_in_heading: bool = False  # a table has it above, once
    is_optional: bool = False  # a table has it only if some row has a value

    @property
    def title(self) -> str:
        return self.label or self.name.replace("_", "-").upper()


Columns = Sequence[Column[ItemT]]


def resolve_form(form: str | None) -> str:
    return form or ("table" if sys.stdout.isatty() else "json")


def write_listing(
    columns: Columns[ItemT],
    items: Iterable[ItemT],
    form: str | None,
    *,
    headings: Iterable[Sequence[str]] = (),
    documents: Iterable[Any] | None = None,
) -> None:
    """Print `items`, a row each. JSON and CSV are written as they come, however many; a table is laid out as a whole.
    `headings`: lines of facts above a table. `documents`: what JSON has in place of the items, if that is more."""
    rows = (_row(columns, item) for item in items)
    match resolve_form(form):
        case "json":
            write_json((named_cells(columns, item) for item in items) if documents is None else documents)
        case "csv":
            write_csv([column.name for column in columns], rows)
        case _:
            for facts in headings:
                write_heading(facts)
            echo_styled(table_text(columns, list(rows)))


def named_cells(columns: Columns[ItemT], item: ItemT) -> dict[str, Any]:
    """An item as JSON has it."""
    return dict(zip((column.name for column in columns), _row(columns, item), strict=True))


def _row(columns: Columns[ItemT], item: ItemT) -> Sequence[Any]:
    if columns[0].value is None:
        return item  # type: ignore[return-value]  # as `value` says
    return [column.value(item) for column in columns if column.value is not None]


def write_data(text: str, *, is_json: bool = False) -> None:
    """Write it to standard output, without an end of line: escaped on a terminal, every byte of it otherwise."""
    click.echo(text_for(sys.stdout, text, is_json=is_json), nl=False, color=True)


def echo(message: str = "", *, err: bool = False) -> None:
    """Write a line, which may have names that others have chosen; not for text that is `styled`."""
    echo_styled(text_for(sys.stderr if err else sys.stdout, message), err=err)


def echo_styled(line: str, *, err: bool = False) -> None:
    """Write a line whose parts were escaped before they were `styled`."""
    click.echo(line, err=err, color=True)


def write_json(items: Iterable[Any]) -> None:
    write_json_texts(json.dumps(item, ensure_ascii=False, default=str) for item in items)


def write_json_texts(texts: Iterable[str]) -> int:
    """One array, an item a line: a whole document for parsers, lines for grep. Returns how many items there were."""
    count = 0
    for chunk in _chunks(texts):
        write_data((",\n " if count else "[") + ",\n ".join(chunk), is_json=True)
        count += len(chunk)
    echo("]" if count else "[]")
    return count


def write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Returns how many rows there were."""
    write_data(csv_text([names]))
    count = 0
    for chunk in _chunks(rows):
        write_data(csv_text(chunk))
        count += len(chunk)
    return count


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Lines of RFC 4180 with a plain newline at their ends. Python's own writer leaves a carriage return without quotes
    then, and readers take it for the end of the line."""
    return "".join([(",".join(map(_csv_cell, row)) or '""') + "\n" for row in rows])


def _csv_cell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    return '"' + text.replace('"', '""') + '"' if _QUOTED_IN_CSV.search(text) else text


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """A write for each item would cost more than the item."""
    rest = iter(items)
    while chunk := list(islice(rest, _CHUNK_ROWS)):
        yield chunk


def write_heading(facts: Sequence[str]) -> None:
    """One line with tabs, as Kafka's tools begin a table; a line each where the terminal is too narrow for it."""
    line = "\t".join(facts)
    width = _terminal_width()
    echo(line if width is None or len(line.expandtabs()) <= width else "\n".join(facts))


def table_text(columns: Sequence[Column[Any]], rows: Sequence[Sequence[Any]]) -> str:
    """Columns side by side; nothing is cut off.

    Where the terminal is too narrow, the columns follow in several tables that repeat the keys; without keys, or with
    keys that take most of the line, each cell has a line.
    """
    from rich.cells import cell_len

    is_shown = [
        not column.is_in_heading and (not column.is_optional or any(row[number] is not None for row in rows))
        for number, column in enumerate(columns)
    ]
    columns = list(compress(columns, is_shown))
    texts = [
        [cell_text(column, cell) for column, cell in zip(columns, compress(row, is_shown), strict=True)] for row in rows
    ]
    titles = [one_line(column.title) for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(titles, *texts, strict=True)]
    keys = [number for number, column in enumerate(columns) if column.is_key]
    parts = [list(range(len(columns)))]
    width_max = _terminal_width()
    if width_max is not None and _line_width(widths) > width_max:
        if texts and not 0 < _line_width([widths[number] for number in keys]) <= width_max // 2:
            return _expanded_text(titles, texts)
        parts = _fitting_parts(widths, keys, width_max)

    def line(cells: Sequence[str], shown: Iterable[int]) -> str:
        parts = []
        for number in shown:
            padding = " " * (widths[number] - cell_len(cells[number]))
            is_right = columns[number].kind in (Kind.NUMBER, Kind.BYTES)
            parts.append(padding + cells[number] if is_right else cells[number] + padding)
        return _GAP.join(parts).rstrip()

    tables = ("\n".join([_title(line(titles, shown)), *(line(cells, shown) for cells in texts)]) for shown in parts)
    return "\n\n".join(tables)


def _fitting_parts(widths: Sequence[int], keys: Sequence[int], width_max: int) -> list[list[int]]:
    """The columns by number, in parts that are at most `width_max` wide, or have one column beside the keys."""
    parts: list[list[int]] = []
    for number in range(len(widths)):
        if number in keys:
            continue
        if parts and _line_width([widths[shown] for shown in (*parts[-1], number)]) <= width_max:
            parts[-1].append(number)
        else:
            parts.append([*keys, number])
    return parts


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _terminal_width() -> int | None:
    """The width in columns; None if the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


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


def cell_text(column: Column[Any], cell: Any) -> str:
    """A cell as people read it."""
    if cell is None:
        return "-"
    if column.kind is Kind.BYTES:
        return human_bytes(int(cell))
    if column.kind is Kind.TIME_MS:
        return human_time(int(cell))
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, (dict, list)):
        cell = json.dumps(cell, ensure_ascii=False, default=str)
    return one_line(str(cell))


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


def styled(text: str, stream: TextIO, **style: Any) -> str:
    """`text` for `stream`, with the `style` that click knows."""
    return click.style(text, **style) if _has_colors(stream) else text


def _has_colors(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


# The streams that the command was started with, made fit for use.
#
# Guards three promises: what a command prints is written whole, or it fails; after an exception, Ctrl-C included, it is
# known how many bytes the operating system has taken; and a stream that was closed before the start (`>&-`) is told by
# name when it is needed, and its number is no file's or socket's of the command. Python's own streams do not promise
# the first two: with PYTHONUNBUFFERED a write may be short without a word, and a descriptor that does not wait makes
# them fail.


def prepare_streams() -> None:
    """Once, before anything is opened."""
    for number in range(3):
        _occupy(number)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("standard input")))
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  it is open for as long as the process
    if sys.stdout is None:
        sys.stdout = _text(_Closed("standard output"), None)
    else:
        sys.stdout = _text(WholeOutput(sys.stdout.fileno()), sys.stdout)


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


def _text(raw: io.RawIOBase, like: TextIO | None) -> TextIO:
    # A name or a value that the terminal's encoding has no characters for is no reason to fail.
    errors = "backslashreplace" if like is None or like.errors == "strict" else like.errors
    encoding = "utf-8" if like is None else like.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty())


class _Closed(io.RawIOBase):
    """Fails when it is used, not before: a command that has nothing to read or to print does not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        raise OSError(errno.EBADF, f"{self._name} is closed")

    def write(self, data: Any, /) -> int:
        raise OSError(errno.EBADF, f"{self._name} is closed")


_FILE_CHUNK_BYTES = 1 << 20


class Descriptor:
    """One descriptor to write to, that of standard output; it stays open."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Where a pipe has room at all, it has room for so much: such a write does not wait, so nothing interrupts it.
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        self._chunk_bytes = _FILE_CHUNK_BYTES if is_file else select.PIPE_BUF
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Wait until there is room, or a write would fail. False: not within `timeout_ms`."""
        return bool(self._poll.poll(timeout_ms))

    def write_some(self, data: memoryview) -> int:
        """After `wait`: how many of the first bytes were taken. Raises `OSError`."""
        try:
            return os.write(self.number, data[: self._chunk_bytes])
        except BlockingIOError:
            return 0  # other processes may fill the same pipe
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


class WholeOutput(io.RawIOBase):
    """A raw stream whose `write` returns when all is written."""

    def __init__(self, number: int) -> None:
        self._descriptor = Descriptor(number)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor.number

    def isatty(self) -> bool:
        return os.isatty(self._descriptor.number)

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        while rest:
            self._descriptor.wait()
            rest = rest[self._descriptor.write_some(rest) :]
        return count
