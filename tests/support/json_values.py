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
    "m": None,  # has no more than two digits behind the point
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
    (b'{"place":{"city":null}}', NULLS, False),
    (b'{"place":{"zip-code":"12"}}', _fields(place={"city": None, "zip-code": 12}), False),
    (b'{"legs":[{"stops":[1]},[{"to":"x"}],"x",true,{"stops":1,"to":2}]}', SOME_LEGS, False),
    # numbers that a double does not hold
    (b'{"s":12345678901234567.89}', _fields(s="12345678901234567.89"), False),
    (b'{"s":1.10,"m":1.10}', _fields(s="1.10", m=Decimal("1.10")), False),
    (b'{"s":1e400,"m":1e400,"d":1e400}', _fields(s="1e400"), False),
    (b'{"s":-0.0,"m":-0.0}', _fields(s="-0.0", m=Decimal("0.00")), False),
    (b'{"m":12345678.90}', _fields(m=Decimal("12345678.90")), False),
    (b'{"m":1234567.8900}', _fields(m=Decimal("1234567.89")), False),
    (b'{"m":1234.5e-1}', _fields(m=Decimal("123.45")), False),
    (b'{"m":1e-3}', NULLS, False),
    (b'{"s":{"a":[1.10,-0,"1.10","\\"2.0"]}}', _fields(s='{"a":[1.10,-0,"1.10","\\"2.0"]}'), False),
    (b'{"s":100000000000000000000000000000.5e-1}', _fields(s="100000000000000000000000000000.5e-1"), False),
    (b'{"tags":[0.10,[0.10]]}', _fields(tags=["0.10", "[0.10]"]), False),
    (b"{1:2.5}", NULLS, True),
    (b'{"d":1.5 2.5}', NULLS, True),
    (b'{"s":"a 1.5}', NULLS, True),
    # a name twice, at any depth, by any spelling
    (b'{"i":1,"i":2}', NULLS, True),
    (b'{"i":1,"\\u0069":1}', NULLS, True),
    (b'{"i":1,"other":[{"x":{"y":1,"y":1}}]}', NULLS, True),
    (b'{"i":1,"other":[{"x":1},{"x":1}]}', _fields(i=1), False),
    # halves of characters, and what the views keep for themselves
    (b'{"s":"\\ud83d\\ude00"}', _fields(s="\U0001f600"), False),
    (b'{"s":"\\\\ud83d"}', _fields(s="\\ud83d"), False),
    (b'{"s":"\\ud83d"}', NULLS, True),
    (b'{"s":"\\ude00\\ud83d"}', NULLS, True),
    (b'{"s":"\\ufdd0"}', NULLS, True),
    ('{"s":"\ufdd1"}'.encode(), NULLS, True),
    # a text that looks like an object is none
    (b'{"place":"{\\"city\\":1}","legs":["{\\"to\\":1}"]}', _fields(legs=[None]), False),
    # dates and times
    (b'{"day":"2024-02-30","at":"2024-02-30T00:00:00Z"}', NULLS, False),
    (b'{"day":"2024-2-3","at":"2024-02-03"}', NULLS, False),
    (b'{"day":"2024-02-03T00:00:00","at":1706918400}', NULLS, False),
    (b'{"at":"2024-02-03 04:05:06"}', _fields(at=_utc(2024, 2, 3, 4, 5, 6)), False),
    (b'{"at":"2024-02-03T04:05:06.123456789+05:30"}', _fields(at=_utc(2024, 2, 2, 22, 35, 6, 123_456)), False),
    (b'{"at":"2024-02-03T24:00:00Z"}', NULLS, False),
    (b'{"at":"2024-02-03T04:05:60Z"}', NULLS, False),
]
