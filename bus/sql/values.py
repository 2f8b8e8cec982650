"""Arrow columns as Python values, also those that Python has no type for.

Whole numbers of any width are int, timestamps with a zone aware, in UTC. A date or a time outside of the years 1 to
9999, one with nanoseconds, and an infinite one, is its text in ISO 8601: `+10000-01-01T00:00:00Z`, `infinity`.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

_EPOCH = date(1970, 1, 1).toordinal()
_SECOND_DAYS = 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAYS_OF_400_YEARS = 146_097
# What the engine takes for infinity: the largest number of its unit, and the negative one.
_INFINITE = {64: (1 << 63) - 1, 32: (1 << 31) - 1}


def python_values(column: pa.Array) -> list[Any]:
    """One for each row."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":  # pandas', where it is installed
        return _one_by_one(column)
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, ArithmeticError):
        return _one_by_one(column)
    # The sum of an integer column is wider than any of Arrow's integers and comes as a decimal without fraction.
    if pa.types.is_decimal(column.type) and column.type.scale == 0:
        return [None if value is None else int(value) for value in values]
    return values


def _one_by_one(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [_moment(ticks, kind) for ticks in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(kind):
        return [_date(days) for days in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(python_values, column.flatten()), strict=True)
        valid = column.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)
        ]
    if pa.types.is_map(kind):
        entries = [None if row.values is None else python_values(row.values) for row in column]
        return [None if row is None else [tuple(entry.values()) for entry in row] for row in entries]
    if pa.types.is_nested(kind):
        return [None if row.values is None else python_values(row.values) for row in column]
    return [str(value) for value in column]


def _moment(ticks: int | None, kind: pa.TimestampType) -> datetime | str | None:
    if ticks is None or abs(ticks) == _INFINITE[64]:
        return None if ticks is None else _infinity(ticks)
    per_second = _PER_SECOND[kind.unit]
    seconds, fraction = divmod(ticks, per_second)
    if fraction * 1_000_000 % per_second == 0:
        try:
            moment = datetime(1970, 1, 1, tzinfo=timezone.utc if kind.tz else None)
            return moment + timedelta(seconds=seconds, microseconds=fraction * 1_000_000 // per_second)
        except OverflowError:
            pass
    days, second = divmod(seconds, _SECOND_DAYS)
    text = f"{_date(days)}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    digits = len(str(per_second)) - 1
    return text + (f".{fraction:0{digits}}" if fraction else "") + ("Z" if kind.tz else "")


def _date(days: int | None) -> date | str | None:
    if days is None or abs(days) == _INFINITE[32]:
        return None if days is None else _infinity(days)
    try:
        return date.fromordinal(_EPOCH + days)
    except (OverflowError, ValueError):
        # The calendar repeats after 400 years.
        cycles, day = divmod(days, _DAYS_OF_400_YEARS)
        within = date.fromordinal(_EPOCH + day)
        return f"{within.year + 400 * cycles:+05}-{within.month:02}-{within.day:02}"


def _infinity(number: int) -> str:
    return "infinity" if number > 0 else "-infinity"
