"""The rows of a statement, printed: JSON and CSV as they come, a table with a limit and in a pager.

Guards two promises. Nothing is left out without a word: what a table leaves out is counted, and JSON and CSV leave out
nothing but what `--limit` asked for. And what is printed as JSON is JSON, with no digit lost: numbers, also decimals
and those of 128 bits, are numbers with all their digits; what JSON has no number for (NaN, the infinities) is a string.
In CSV and tables a nested value is its JSON.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

from bus.cli.output import Column, Kind, echo, echo_styled, table_text, write_csv, write_json_texts
from bus.errors import count_of

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS_DEFAULT = 1_000
_CELL_CHARACTERS_MAX = 1_000  # on a terminal
_CHUNK_ROWS = 1_000


def write_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str, limit: int | None) -> int:
    """How many rows there were, as far as they were looked at. `limit` None: all; of a table, the usual number."""
    if form == "table":
        return _write_table(schema, batches, TABLE_ROWS_DEFAULT if limit is None else limit)
    rows = islice(_rows(batches), limit)
    return _write_json(schema.names, rows) if form == "json" else write_csv(schema.names, map(_cell_texts, rows))


def _cell_texts(row: Sequence[Any]) -> list[str | None]:
    return [None if cell is None else cell_text(cell) for cell in row]


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    from bus.sql.connection import python_values

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
        echo(f"columns of one name: JSON has the later ones under names of their own: {renamed}", err=True)
    keys = [f"{json_text(name)}: " for name in unique]
    return write_json_texts(
        "{" + ", ".join([key + json_text(cell) for key, cell in zip(keys, row, strict=True)]) + "}" for row in rows
    )


def _write_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int) -> int:
    rest = iter(batches)
    shown: list[Sequence[str | None]] = []
    count, cut = 0, 0
    for batch in rest:
        for row in _rows([batch.slice(0, limit - len(shown))]):
            cells = _cell_texts(row)
            shown.append([_fitting(cell) for cell in cells])
            cut += sum(a is not b for a, b in zip(cells, shown[-1], strict=True))
        count += batch.num_rows  # the rows behind the limit are counted, never converted
    write_paged(table_text([_column(field) for field in schema], shown))
    if count > len(shown):
        echo(f"{count_of(count, 'row')}, of which the first {len(shown):,} are shown: see --limit", err=True)
    if cut:
        echo(f"{count_of(cut, 'value')} shown in part: --format json and csv have them whole", err=True)
    return count


def _fitting(cell: str | None) -> str | None:
    if cell is None or len(cell) <= _CELL_CHARACTERS_MAX or not sys.stdout.isatty():
        return cell
    return f"{cell[:_CELL_CHARACTERS_MAX]}… ({len(cell):,} characters)"


def _column(field: pa.Field) -> Column[Any]:
    import pyarrow as pa

    kind = field.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return Column(field.name, kind=Kind.NUMBER if is_number else Kind.TEXT, label=field.name)


_string = json.encoder.encode_basestring  # as json.dumps with ensure_ascii=False


def json_text(value: Any) -> str:
    encode = _ENCODERS.get(type(value))
    return encode(value) if encode is not None else _other(value)


def cell_text(value: Any) -> str:
    """Return the text of a value that is not null."""
    if isinstance(value, (dict, list)):
        return json_text(value)
    text = json_text(value)
    return str(json.loads(text)) if text.startswith('"') else text


def unique_names(names: list[str]) -> list[str]:
    """An object of JSON has each name once: of columns of one name the later ones get a number, `a`, `a_1`, `a_2`."""
    found: list[str] = []
    taken = set(names)
    for name in names:
        unique, number = name, 0
        while unique in found or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def interval_text(months: int, days: int, nanoseconds: int) -> str:
    """Write an interval as the engine does: `1 year 2 months 3 days 04:05:06.789`."""
    years, months = int(months / 12), int(math.fmod(months, 12))
    counts = ((years, "year"), (months, "month"), (days, "day"))
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counts if count]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), 1_000_000_000)
        sign = "-" if nanoseconds < 0 else ""
        clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(clock + (f".{fraction:09}".rstrip("0") if fraction else ""))
    return " ".join(parts)


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _object(value: dict[Any, Any]) -> str:
    return "{" + ", ".join(f"{_string(str(name))}: {json_text(inner)}" for name, inner in value.items()) + "}"


def _list(value: Any) -> str:
    return "[" + ", ".join(map(json_text, value)) + "]"


def _moment(value: date | time) -> str:
    return f'"{value.isoformat().replace("+00:00", "Z")}"'


def _duration(value: timedelta) -> str:
    return f'"{interval_text(0, value.days, (value.seconds * 1_000_000 + value.microseconds) * 1_000)}"'


def _other(value: Any) -> str:
    if hasattr(value, "months") and hasattr(value, "nanoseconds"):  # Arrow's interval, a tuple otherwise
        return f'"{interval_text(value.months, value.days, value.nanoseconds)}"'
    if isinstance(value, datetime):  # a nanosecond has one more type, where pandas is installed
        return _moment(value)
    return _list(value) if isinstance(value, (list, tuple)) else _string(str(value))


_ENCODERS: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "null",
    bool: lambda value: "true" if value else "false",
    int: str,
    float: _float,
    str: _string,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: _string(value.decode(errors="backslashreplace")),
    dict: _object,
    list: _list,
    tuple: _list,
    datetime: _moment,
    date: _moment,
    time: _moment,
    timedelta: _duration,
}


# As git's: ends by itself where all fits, keeps colours, does not clear the screen, and cuts no line into several.
_LESS = "FRXS"


def write_paged(text: str) -> None:
    """On a terminal that `text` is too high or too wide for, in `$PAGER`, or less; `PAGER=` or `PAGER=cat`: never."""
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or not _is_needed(text) or shutil.which(command[0]) is None:
        echo_styled(text)
        return
    environment = {**os.environ, "LESS": os.environ.get("LESS", _LESS)}
    # Ctrl-C is the pager's, which ends what it does and not itself.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        with suppress(BrokenPipeError):
            process.communicate(f"{text}\n".encode(errors="backslashreplace"))
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _is_needed(text: str) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return text.count("\n") + 2 > shutil.get_terminal_size().lines
