"""What one value of a client's config may be: checks that give the value to use, or say what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], Any]  # raises ValueError that says what was expected, and nothing of what was found

_INT_MAX = 2**31 - 1
_NAME_PATTERN = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INTERCEPTOR_METHODS = ("on_send", "on_acknowledgement", "close")


def integer(minimum: int, maximum: int = _INT_MAX, *, besides: int | None = None) -> Check:
    """`besides`: one value below the range that is allowed as well."""
    expected = f"an integer from {minimum} to {maximum}" + ("" if besides is None else f", or {besides}")

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(expected)
        if not minimum <= value <= maximum and value != besides:
            raise ValueError(expected)
        return value

    return check


def choice(choices: Mapping[Any, Any]) -> Check:
    """A spelling, and what it means."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or value not in choices:
            raise ValueError("one of " + ", ".join(map(repr, choices)))
        return choices[value]

    return check


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def client_id(value: Any) -> str:
    # It travels as a gRPC header, which carries printable ASCII only.
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise ValueError("printable ASCII text")
    return value


def producer_name(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _NAME_PATTERN.fullmatch(value)):
        raise ValueError("None, or 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'")
    return value


def serializer(value: Any) -> Any:
    if value is not None and not callable(value) and not callable(getattr(value, "serialize", None)):
        raise ValueError("None, a function of the value, or an object with serialize(topic, headers, value)")
    return value


def partitioner(value: Any) -> Any:
    if value is None or value == "round_robin":
        return value
    if isinstance(value, str) or not (callable(value) or callable(getattr(value, "partition", None))):
        raise ValueError(
            "None, 'round_robin', a function of (topic, key, value, partition_count), or an object with such a "
            "method partition()"
        )
    return value


def interceptors(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple)) and all(map(_is_interceptor, value)):
        return tuple(value)
    raise ValueError("a list of objects with the methods " + ", ".join(_INTERCEPTOR_METHODS))


def _is_interceptor(candidate: Any) -> bool:
    # A class in place of its instance has all the methods, and fails only when the first record is sent.
    return not isinstance(candidate, type) and all(callable(getattr(candidate, m, None)) for m in _INTERCEPTOR_METHODS)
