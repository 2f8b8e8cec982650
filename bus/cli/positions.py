"""Places in a partition as people write them: `beginning`, `end`, `1500`, `-10`, `2013-01-01T12:00`,
`@1357041600000`, `@-1h`.

Parsing only; where a place is in a partition, the broker says.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

import click

from bus.records.epoch import epoch_ms


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


_AGO = re.compile("@-" + "".join(f"([0-9]{{1,9}}{unit})?" for unit in "wdhms"), re.ASCII)
_UNITS_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
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
            f"expected beginning, end, an offset, -N for the last N, a time like 2013-01-31T12:00, @-1h "
            f"or @MILLISECONDS, found {text!r}"
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
            f"expected earliest, latest, max, a time like 2013-01-31T12:00, @-1h or @MILLISECONDS, found {text!r}"
        )
    return Position(Place.TIMESTAMP, timestamp_ms)


def parse_timestamp_ms(text: str) -> int | None:
    """`@` and milliseconds since the epoch, `@-` and how long ago (`@-90s`, `@-1h30m`, `@-2d`), or ISO 8601, in UTC
    unless it says otherwise. None if it is none of them."""
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII):
        return int(text[1:])
    ago = _AGO.fullmatch(text)
    if ago is not None and len(text) > 2:
        ago_ms = sum(int(count[:-1]) * unit for count, unit in zip(ago.groups(), _UNITS_MS, strict=True) if count)
        return max(0, time.time_ns() // 1_000_000 - ago_ms)
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
            self.fail(f"expected a time like 2013-01-31T12:00, @-1h or @MILLISECONDS, found {value!r}", param, ctx)
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
