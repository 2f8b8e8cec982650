"""Documents of JSON that are made by chance, and what a view is to show of each by Python's exact reading of it: the
judge of both engines. Shares no code with their SQL but the patterns of what counts as a number."""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal, InvalidOperation
from random import Random
from typing import Any

from bus.json_views import ArrayType, Field, JsonType, ScalarType, StructType, parse_ddl
from bus.json_views.view import EXPONENT, NUMBER, WHOLE
from bus.records.json_text import ExactNumber, format_exact, parse_strict

SCHEMA = (
    "t STRING, n DECIMAL(38,6), m DECIMAL(5,2), w DECIMAL(20,0), d DOUBLE, f FLOAT, i BIGINT, j INT, b BOOLEAN, "
    "l ARRAY<STRING>, q ARRAY<DECIMAL(38,20)>, o STRUCT<t: STRING, n: DECIMAL(38,6), o: STRUCT<t: STRING>>, "
    "k ARRAY<STRUCT<t: STRING, n: DECIMAL(20,3), l: ARRAY<STRING>>>, y ARRAY<ARRAY<STRING>>"
)
FIELDS = parse_ddl(SCHEMA)
NAMES = tuple(field.name for field in FIELDS)
NUMBERS = (
    "1.10",
    "0.1",
    "12345678901234567.89",
    "1e400",
    "1e-400",
    "-0.0",
    "-0",
    "0e5",
    "9007199254740993",
    "9223372036854775808",
    "1000000000000000000000000000000",
    "1.005",
    "100e-2",
    "1.5E+3",
    "99999999999999999999999999999999.999999",
    "0.1234567890123456789012345",
)
_LETTERS = 'ab"\\{}[],:1.5eE-0 \né\x1f\u2028😀/'
_ITEMS = {"k": "o", "y": "l", "q": "n", "l": "t"}
_MANY = Context(prec=2_000, Emin=-999_999, Emax=999_999)


def documents(random: Random, count: int) -> list[str]:
    """Mostly objects with the names of `SCHEMA`; some have a name twice, a character too few, or other marks."""
    return [_damaged(random, _object(random, 0)) if random.random() < 0.1 else _object(random, 0) for _ in range(count)]


def seen(text: str) -> dict[str, Any] | None:
    """The fields of `SCHEMA`; None: it is no JSON object."""
    try:
        found = parse_strict(text, parse_float=ExactNumber, parse_int=ExactNumber)
        format_exact(found).encode()
    except ValueError:  # no JSON, a name twice, half of a character
        return None
    return _fields(found, FIELDS) if isinstance(found, dict) else None


def _fields(found: dict[str, Any], fields: tuple[Field, ...]) -> dict[str, Any]:
    return {field.name: _seen_as(found.get(field.name), field.type) for field in fields}


def _seen_as(value: Any, json_type: JsonType) -> Any:
    match json_type:
        case StructType(fields):
            return _fields(value, fields) if _fits(value, json_type) else None
        case ArrayType(item):
            return [_seen_as(one, item) for one in value] if isinstance(value, list) else None
        case ScalarType():
            text = value if isinstance(value, str) else None if value is None else _written(value)
            return None if text is None else _scalar(text, json_type)


def _fits(value: Any, json_type: JsonType) -> bool:
    """Tell whether an object that has it is there, for that alone."""
    match json_type:
        case StructType(fields):
            return isinstance(value, dict) and any(_fits(value.get(field.name), field.type) for field in fields)
        case ArrayType():
            return isinstance(value, list)
        case ScalarType():
            return value is not None


def _written(value: Any) -> str:
    # Both engines write control characters in capitals.
    return re.sub(r"\\u00[01][0-9a-f]", lambda found: found[0][:2] + found[0][2:].upper(), format_exact(value))


def _scalar(text: str, json_type: ScalarType) -> Any:
    match json_type.kind:
        case "string":
            return text
        case "boolean":
            return {"true": True, "false": False}.get(text)
        case "bigint" | "int":
            bits = 64 if json_type.kind == "bigint" else 32
            is_whole = re.fullmatch(WHOLE, text) and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)
            return int(text) if is_whole else None
        case "double":
            return _finite(float(text)) if re.fullmatch(NUMBER, text) else None
        case "float":
            import numpy as np

            with np.errstate(over="ignore"):
                return _finite(float(np.float32(text))) if re.fullmatch(NUMBER, text) else None
        case _:
            return _decimal(text, json_type)


def _finite(number: float) -> float | None:
    return number if abs(number) != float("inf") else None


def _decimal(text: str, json_type: ScalarType) -> Decimal | None:
    if not re.fullmatch(f"-?[0-9]+([.][0-9]+)?({EXPONENT})?", text):
        return None
    try:
        scaled = Decimal(text).quantize(Decimal(1).scaleb(-json_type.scale), context=_MANY)
    except InvalidOperation:
        return None
    is_held = scaled == Decimal(text) and len(scaled.as_tuple().digits) <= json_type.precision
    return scaled if is_held else None


def _object(random: Random, depth: int) -> str:
    names = random.sample(NAMES, random.randint(0, len(NAMES) if depth == 0 else 4))
    if random.random() < 0.05 and names:
        names.append(random.choice(names))
    if random.random() < 0.2:
        names.append(_text(random))
    space = random.choice(["", "", " ", "\n\t"])
    members = [f"{_name(random, name)}{space}:{space}{_value(random, name, depth + 1)}" for name in names]
    return space + "{" + f"{space},{space}".join(members) + space + "}" + space


def _value(random: Random, name: str, depth: int) -> str:
    if random.random() < 0.6 and depth < 4:
        if name in _ITEMS:
            inner = _ITEMS[name]
            return "[" + ",".join(_value(random, inner, depth + 1) for _ in range(random.randint(0, 3))) + "]"
        if name == "o":
            return _object(random, depth)
    kind = random.randrange(10)
    if kind < 4:
        return _number(random)
    if kind < 6:
        return json.dumps(random.choice([_number(random), _text(random), '{"t":1}']))
    if kind < 8:
        return random.choice(["true", "false", "null"])
    return _object(random, depth) if depth < 4 else "[]"


def _number(random: Random) -> str:
    if random.random() < 0.4:
        return random.choice(NUMBERS)
    digits = "".join(random.choice("0123456789") for _ in range(random.choice([1, 2, 5, 16, 19, 30, 40])))
    text = random.choice(["", "-"]) + (digits.lstrip("0") or "0")
    if random.random() < 0.7:
        text += "." + "".join(random.choice("0012345") for _ in range(random.choice([1, 2, 3, 6, 20, 38, 60])))
    if random.random() < 0.3:
        text += random.choice("eE") + random.choice(["", "-", "+"]) + str(random.choice([0, 1, 2, 5, 20, 60, 400]))
    return text


def _text(random: Random) -> str:
    return "".join(random.choice(_LETTERS) for _ in range(random.randint(0, 8)))


def _name(random: Random, name: str) -> str:
    """Written as it is, or with escapes."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name) if name.isascii() else None
    return f'"{escaped}"' if escaped and random.random() < 0.1 else json.dumps(name, ensure_ascii=False)


def _damaged(random: Random, text: str) -> str:
    at = random.randrange(len(text))
    return (
        text[:at]
        + random.choice(["", ",", ":", '"', "1", "\\", "'", "NaN", "\x01"])
        + text[at + random.randint(0, 1) :]
    )
