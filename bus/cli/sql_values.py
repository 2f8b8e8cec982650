"""Values of SQL as text: JSON's, and those of cells in CSV and tables.

Guards one promise: what is printed as JSON is JSON, and no digit is lost. Numbers, also decimals and those of 128 bits,
are numbers with all their digits; what JSON has no number for (NaN, the infinities) is a string. In CSV and tables a
nested value is its JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

_string = json.encoder.encode_basestring  # as json.dumps with ensure_ascii=False


def json_text(value: Any) -> str:
    encode = _ENCODERS.get(type(value))
    return encode(value) if encode is not None else _other(value)


def cell_text(value: Any) -> str:
    """Of a value that is not null."""
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
    """As the engine writes it: `1 year 2 months 3 days 04:05:06.789`."""
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
