"""Places in a partition as people write them: `beginning`, `end`, `1500`, `-10`, `2013-01-01T12:00`, `@1357041600000`.

Parsing only; where a place is in a partition, the broker says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

import click

from bus.epoch import epoch_ms


class Place(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"  # so many records before the end
    TIMESTAMP = "timestamp"
    MAX_TIMESTAMP = "max"


@dataclass(frozen=True, slots=True)
class Position:
    """`number`: the offset, the count, or milliseconds since the epoch; 0 for the other places."""

    place: Place
    number: int = 0


_NAMES = {
    "beginning": Place.BEGINNING,
    "earliest": Place.BEGINNING,
    "start": Place.BEGINNING,
    "end": Place.END,
    "latest": Place.END,
}


def parse_position(text: str) -> Position:
    """Raises ValueError that says what was expected."""
    if text.lower() in _NAMES:
        return Position(_NAMES[text.lower()])
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        return Position(Place.OFFSET, int(text))
    if re.fullmatch(r"-[0-9]{1,18}", text, re.ASCII):
        return Position(Place.LAST, -int(text))
    timestamp_ms = parse_timestamp_ms(text)
    if timestamp_ms is None:
        raise ValueError(
            f"expected beginning, end, an offset, -N for the last N, a time like 2013-01-31T12:00 or @MILLISECONDS, "
            f"found {text!r}"
        )
    return Position(Place.TIMESTAMP, timestamp_ms)


def parse_time(text: str) -> Position:
    """What `bus offsets --time` takes. Raises ValueError that says what was expected."""
    if text.lower() == "max":
        return Position(Place.MAX_TIMESTAMP)
    if text.lower() in _NAMES:
        return Position(_NAMES[text.lower()])
    timestamp_ms = parse_timestamp_ms(text)
    if timestamp_ms is None:
        raise ValueError(
            f"expected earliest, latest, max, a time like 2013-01-31T12:00 or @MILLISECONDS, found {text!r}"
        )
    return Position(Place.TIMESTAMP, timestamp_ms)


def parse_timestamp_ms(text: str) -> int | None:
    """`@` and milliseconds since the epoch, or ISO 8601, in UTC unless it says otherwise. None if it is neither."""
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII):
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return None
    timestamp_ms = epoch_ms(moment)
    return timestamp_ms if timestamp_ms >= 0 else None


class TimestampType(click.ParamType[int]):
    name = "timestamp"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        timestamp_ms = parse_timestamp_ms(str(value))
        if timestamp_ms is None:
            self.fail(f"expected a time like 2013-01-31T12:00 or @MILLISECONDS, found {value!r}", param, ctx)
        return timestamp_ms


class PositionType(click.ParamType[Position]):
    name = "position"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(click.ParamType[Position]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_time(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
