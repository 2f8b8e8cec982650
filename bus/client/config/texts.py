"""Settings that come as text, of the environment or of a profile: text as what the setting takes.

Guards one promise: what a program could have given is what is used, or an error that says what was expected. Functions
and objects are named by their module, `package.module:name`; importing it runs its code, as in a program.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bus import serializers
from bus.client.config.values import Check

_SERIALIZERS: Mapping[str, Callable[[Any], bytes]] = {
    name: getattr(serializers, name) for name in ("text", "json", "integer", "long", "double", "uuid")
}
_DESERIALIZERS: Mapping[str, Callable[[bytes], Any]] = {"text": bytes.decode, "json": json.loads}
_NAMED: Mapping[str, Mapping[str, Any]] = {
    "key_serializer": _SERIALIZERS,
    "value_serializer": _SERIALIZERS,
    "key_deserializer": _DESERIALIZERS,
    "value_deserializer": _DESERIALIZERS,
}
_LISTS = frozenset({"interceptors", "partition_assignment_strategy"})
_OBJECTS = frozenset({*_NAMED, *_LISTS, "partitioner"})
_TRUTHS = {"true": True, "false": False}


def check_text(name: str, check: Check, value: Any) -> Any:
    """The checked value of `name`. Raises `ValueError` that says what was expected."""
    if name in _LISTS and isinstance(value, list):  # profiles have lists
        return _check_listed(name, check, value)
    if not isinstance(value, str):
        return check(value)
    if name in _OBJECTS:
        return _check_named(name, check, value)
    text = value.strip()
    forms = [value, *([_TRUTHS[text.lower()]] if text.lower() in _TRUTHS else ())]
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= 18:
        forms.append(int(text))
    for form in forms[:-1]:
        try:
            return check(form)
        except ValueError:
            continue
    return check(forms[-1])


def _check_named(name: str, check: Check, value: str) -> Any:
    if name not in _LISTS:
        return check(_found(name, value))
    return _check_listed(name, check, value.split(","))


def _check_listed(name: str, check: Check, parts: Sequence[str]) -> Any:
    found = [_found(name, part.strip()) for part in parts]
    return check([_made(each) if name == "interceptors" and isinstance(each, type) else each for each in found])


def _made(kind: type) -> Any:
    """An object of a class of an interceptor, which gets no settings of its own."""
    try:
        return kind()
    except Exception as error:  # its own code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"a class that can be made without arguments ({reason})") from None


def _found(name: str, value: str) -> Any:
    """Return what the text names; the text itself, for names that the setting knows."""
    named = _NAMED.get(name, {})
    if value in named:
        return named[value]
    module, colon, path = value.partition(":")
    if not colon:
        if named:
            raise ValueError(f"one of {', '.join(named)}, or a function as package.module:name")
        return value
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the module's own code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"package.module:name of something that can be imported ({reason})") from None
    return found
