"""JSON values that parsers and casts like to disagree about, and the columns that they are to be seen as."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

SCHEMA = (
    "s STRING, b BOOLEAN, i INT, l BIGINT, d DOUBLE, f FLOAT, m DECIMAL(10,2), day DATE, at TIMESTAMP, "
    "tags ARRAY<STRING>, place STRUCT<city: STRING, `zip-code`: INT>, legs ARRAY<STRUCT<to: STRING, stops: ARRAY<INT>>>"
)
NAMES = ("s", "b", "i", "l", "d", "f", "m", "day", "at", "tags", "place", "legs")


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type, misc]


FULL = {
    "s": 'é "x"\n',
    "b": True,
    "i": -5,
    "l": 2**62,
    "d": 0.1,
    "f": 1.5,
    "m": 12.345,
    "day": "2024-02-29",
    "at": "2024-02-29T23:30:00.25-01:00",
    "tags": ["a", 1, None, {"x": [1, 2]}],
    "place": {"city": "Ulm", "zip-code": 89073},
    "legs": [{"to": "ULM", "stops": [1, "2", "x", 2.5]}, None, {}, 7],
}
FULL_SEEN = {
    "s": 'é "x"\n',
    "b": True,
    "i": -5,
    "l": 2**62,
    "d": 0.1,
    "f": 1.5,
    "m": Decimal("12.35"),
    "day": date(2024, 2, 29),
    "at": _utc(2024, 3, 1, 0, 30, 0, 250_000),
    "tags": ["a", "1", None, '{"x":[1,2]}'],
    "place": {"city": "Ulm", "zip-code": 89073},
    "legs": [{"to": "ULM", "stops": [1, 2, None, None]}, None, None, None],
}
NULLS: dict[str, Any] = dict.fromkeys(NAMES)


def _fields(**found: Any) -> dict[str, Any]:
    return {**NULLS, **found}


SOME_LEGS = _fields(legs=[{"to": None, "stops": [1]}, None, None, None, {"to": "2", "stops": None}])

# The text, what is seen of it, and whether it is shown as corrupt.
CASES: list[tuple[bytes | None, dict[str, Any], bool]] = [
    (json.dumps(FULL).encode(), FULL_SEEN, False),
    (json.dumps(FULL, ensure_ascii=False, indent=1).encode(), FULL_SEEN, False),
    (None, NULLS, False),
    (b"{}", NULLS, False),
    (b' \n{"i": 1}\t ', _fields(i=1), False),
    (b'{"unknown": 1, "S": 2}', NULLS, False),
    # not JSON, or no object
    (b"", NULLS, True),
    (b"no json", NULLS, True),
    (b"null", NULLS, True),
    (b"5", NULLS, True),
    (b'"{}"', NULLS, True),
    (b'[{"i":1}]', NULLS, True),
    (b'{"i":1', NULLS, True),
    (b'{"i":1} x', NULLS, True),
    (b'{"i":1}{"i":2}', NULLS, True),
    (b'{"i":1},{"i":2}', NULLS, True),
    (b"{'i':1}", NULLS, True),
    (b'{"i":1,}', NULLS, True),
    (b'{"tags":[1, ]}', NULLS, True),
    (b'{"d":NaN}', NULLS, True),
    (b'{"d":-Infinity}', NULLS, True),
    (b'{"i":01}', NULLS, True),
    (b'{"s":"\t"}', NULLS, True),
    (b'/* c */{"i":1}', NULLS, True),
    (b'{"s":"\xff"}', NULLS, True),
    (bytes(range(256)), NULLS, True),
    # looks like leniency, but within a string
    (b'{"s":"NaN,]"}', _fields(s="NaN,]"), False),
    (b'{"s":"a\\",]"}', _fields(s='a",]'), False),
    # values of other types than the columns
    (b'{"i":"7","b":"true","d":"1e3","l":"-8"}', _fields(i=7, b=True, d=1000.0, l=-8), False),
    (b'{"i":1.0,"l":1e3,"b":1,"d":true}', NULLS, False),
    (b'{"i":2147483648,"l":9223372036854775808,"m":123456789.12}', NULLS, False),
    (b'{"d":"Infinity","f":1e39,"m":"1e3"}', _fields(m=Decimal("1000.00")), False),
    (b'{"d":1e999}', NULLS, False),
    (b'{"i":" 7","b":"TRUE","d":".5","l":"+1"}', NULLS, False),
    (b'{"s":true,"i":null}', _fields(s="true"), False),
    (b'{"s":{"a":1, "b":[ ]}}', _fields(s='{"a":1,"b":[]}'), False),
    (b'{"tags":"a","place":[1],"legs":{"to":"x"}}', NULLS, False),
    (b'{"tags":[],"place":{"other":1}}', _fields(tags=[]), False),
    (b'{"place":{"zip-code":"12"}}', _fields(place={"city": None, "zip-code": 12}), False),
    (b'{"legs":[{"stops":[1]},[{"to":"x"}],"x",true,{"stops":1,"to":2}]}', SOME_LEGS, False),
    # dates and times
    (b'{"day":"2024-02-30","at":"2024-02-30T00:00:00Z"}', NULLS, False),
    (b'{"day":"2024-2-3","at":"2024-02-03"}', NULLS, False),
    (b'{"day":"2024-02-03T00:00:00","at":1706918400}', NULLS, False),
    (b'{"at":"2024-02-03 04:05:06"}', _fields(at=_utc(2024, 2, 3, 4, 5, 6)), False),
    (b'{"at":"2024-02-03T04:05:06.123456789+05:30"}', _fields(at=_utc(2024, 2, 2, 22, 35, 6, 123_456)), False),
    (b'{"at":"2024-02-03T24:00:00Z"}', NULLS, False),
    (b'{"at":"2024-02-03T04:05:60Z"}', NULLS, False),
]
