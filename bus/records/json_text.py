"""JSON from outside: a file of a log, a record's value, a key.

Guards one promise of `parse_exact` and `format_exact`: what was read is written again with every digit, or it is
refused. Python's own parser takes more than JSON has (NaN), keeps one of two members of a name, and makes a float of
each fraction; its writer makes names of numbers, and so two of one name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_DIGITS_MAX = 4_000  # digits of a whole number: Python refuses to convert more than 4,300
# A name that was no text may have become that of another member.
_MADE_NAME = re.compile(r'[{,]"(-?[0-9][^"]*|true|false|null)":')


@dataclass(frozen=True, slots=True, repr=False)
class ExactNumber:
    """A number that no int or float has the digits of, as it was written."""

    text: str

    def __repr__(self) -> str:
        return self.text


def parse_json(
    text: str | bytes,
    *,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parse like `json.loads`. Raises `ValueError`, also for text that is nested deeper than the interpreter can
    follow."""
    try:
        return json.loads(text, object_hook=object_hook, parse_constant=parse_constant)
    except RecursionError:
        raise _too_deep(text) from None


def parse_exact(text: str | bytes) -> Any:
    """Parse as `parse_strict` does, but a fraction into a float only if that is written the same, else an
    `ExactNumber`."""
    return parse_strict(text, parse_float=_exact_float, parse_int=_exact_int)


def parse_strict(
    text: str | bytes,
    *,
    parse_float: Callable[[str], Any] | None = None,
    parse_int: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON by RFC 8259, in UTF-8, each name once in an object. Raises `ValueError` that says what was found."""
    if not isinstance(text, str):
        try:
            text = bytes(text).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"expected JSON in UTF-8, found {error}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_each_name_once,
            parse_float=parse_float,
            parse_int=parse_int,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise _too_deep(text) from None


def format_exact(value: Any) -> str:
    """Write what `parse_exact` gave as JSON without spaces, members in their order. Raises `ValueError` or `TypeError`
    for what is no JSON: NaN, infinity, two members of one name, an object of Python's."""
    try:
        try:
            return checked_names(_encode(value), value)
        except _NumberFound:
            return _format_exactly(value)
    except RecursionError:
        raise ValueError("expected JSON, found a value that is nested too deep") from None


def checked_names(text: str, value: Any) -> str:
    """`text`, which was made of `value`. Raises `ValueError` if an object in it has a name twice."""
    if _MADE_NAME.search(text) is not None:
        _check_names(value)
    return text


def _too_deep(text: str | bytes) -> ValueError:
    return ValueError(f"expected JSON, found {len(text)} characters that are nested too deep")


def _each_name_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"expected each name once in an object, found {name[:100]!r} twice")
        members[name] = value
    return members


def _exact_float(text: str) -> float | ExactNumber:
    number = float(text)
    return number if repr(number) == text else ExactNumber(text)


def _exact_int(text: str) -> int | ExactNumber:
    return ExactNumber(text) if text == "-0" or len(text) > _DIGITS_MAX else int(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"expected JSON, found {name}, which JSON does not have")


class _NumberFound(Exception):
    """The value has an `ExactNumber`."""


def _refuse_value(value: Any) -> None:
    if isinstance(value, ExactNumber):
        raise _NumberFound
    raise TypeError(f"expected a value of JSON, found {type(value).__name__}")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_refuse_value).encode
_string = json.encoder.encode_basestring


def _format_exactly(value: Any) -> str:
    """Encode as `_encode` does, but slowly."""
    match value:
        case ExactNumber(text):
            return text
        case dict():
            members = [f"{_string(name)}:{_format_exactly(inner)}" for name, inner in value.items()]
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_format_exactly, value)) + "]"
        case _:
            return _encode(value)


def _check_names(value: Any) -> None:
    if isinstance(value, dict):
        found: set[str] = set()
        for name in value:
            written = name if isinstance(name, str) else _encode({name: 0})[2:-4]
            if written in found:
                raise ValueError(f"expected each name once in an object, found {written!r} twice")
            found.add(written)
            _check_names(value[name])
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_names(inner)
