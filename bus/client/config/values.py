"""Checks of single values of a client's config: each returns the value to use, or says what was expected."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from bus import serializers
from bus.client_texts import CLIENT_ID_BYTES_MAX
from bus.errors import BusError, ErrorCode
from bus.settings.keys import INT_MAX, Between, Check, ConfigType, Typed, key_field

INSTANCES = "list[Any] | tuple[Any, ...]"  # the type of `interceptors`
BY_DURATION = "by_duration:"
_DURATION_PATTERN = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?", re.ASCII)
_NAME_PATTERN = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def setting(default: Any, takes: Check, **of_key: Any) -> Any:
    """A field of a config class; `of_key`: fields of `Key`."""
    return key_field(takes, default, **of_key)


def integer(minimum: int, maximum: int = INT_MAX, *, besides: int | None = None) -> Typed:
    """`besides`: one value below the range that is allowed as well."""
    words = f"an integer from {minimum} to {maximum}" + ("" if besides is None else f", or {besides}")
    return Typed(ConfigType.LONG, Between(minimum, maximum, besides), words)


def choice(choices: Mapping[Any, Any]) -> Check:
    """A spelling, and what it means."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, Hashable) or value not in choices:
            raise ValueError("one of " + ", ".join(map(repr, choices)))
        return choices[value]

    return check


def literal(choices: Mapping[Any, Any]) -> str:
    """The type of a `choice`."""
    return f"Literal[{', '.join(map(repr, choices))}]"


ANY_MILLISECONDS = integer(0)
SOME_MILLISECONDS = integer(1)
boolean = Typed(ConfigType.BOOLEAN, words="True or False")
text = Typed(ConfigType.STRING, words="a text")


def conflict(message: str) -> BusError:
    """Two settings contradict each other."""
    return BusError(ErrorCode.INVALID_CONFIG, message)


def client_id(value: Any) -> str:
    # It travels as a gRPC header, which carries printable ASCII only.
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise ValueError("printable ASCII text")
    if len(value) > CLIENT_ID_BYTES_MAX:
        raise ValueError(f"at most {CLIENT_ID_BYTES_MAX} characters")
    return value


def name(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _NAME_PATTERN.fullmatch(value)):
        raise ValueError("None, or 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'")
    return value


def identity(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise ValueError("None, or a text that is not blank")
    return value


def path(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("a path")
    return str(value)


def offset_reset(value: Any) -> str:
    """Check the position for a partition without an offset. The duration of by_duration (KIP-1106) is an ISO 8601 one,
    in days at most."""
    if value in ("earliest", "latest", "none"):
        return str(value)
    if isinstance(value, str) and value.startswith(BY_DURATION) and duration_ms(value[len(BY_DURATION) :]) is not None:
        return value
    raise ValueError("one of 'earliest', 'latest', 'none', 'by_duration:PnDTnHnMn.nS'")


def duration_ms(value: str) -> int | None:
    """An ISO 8601 duration as java.time.Duration reads it, not negative, in whole milliseconds; None if it is none."""
    match = _DURATION_PATTERN.fullmatch(value.upper())
    if match is None or value.upper() == "P" or value.upper().endswith("T"):
        return None
    days, hours, minutes, seconds, fraction = match.groups(default="0")
    whole_seconds = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole_seconds * 1000 + int(fraction.ljust(3, "0")[:3])


def serializer(value: Any) -> Any:
    if value is not None and not _is_function_or_has("serialize", value):
        raise ValueError("None, a function of the value, or an object with serialize(topic, headers, value)")
    return value


def deserializer(value: Any) -> Any:
    if value is not None and not _is_function_or_has("deserialize", value):
        raise ValueError("None, a function of the bytes, or an object with deserialize(topic, headers, data)")
    return value


def _is_function_or_has(method: str, value: Any) -> bool:
    if isinstance(value, type) and hasattr(value, method):
        return False  # a class in place of its instance: it fails only when the first record comes
    return callable(value) or callable(getattr(value, method, None))


def partitioner(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in ("round_robin", "random")):
        return value
    # Texts and bytes have a method of that name, which cuts them in two.
    if isinstance(value, (str, bytes, bytearray)) or not _is_function_or_has("partition", value):
        raise ValueError(
            "None, 'round_robin', 'random', a function of (topic, key, value, partition_count), or an object with "
            "such a method partition()"
        )
    return value


def interceptors(*methods: str) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (list, tuple)) and all(is_instance_with(methods, candidate) for candidate in value):
            return tuple(value)
        raise ValueError("a list of objects with the methods " + ", ".join(methods))

    return check


def is_instance_with(methods: tuple[str, ...], candidate: Any) -> bool:
    # A class in place of its instance has all the methods, and fails only when the first record comes.
    return not isinstance(candidate, type) and all(callable(getattr(candidate, name, None)) for name in methods)


Reader = Callable[[Any], Any]

SERIALIZERS: Mapping[str, Callable[[Any], bytes]] = {
    name: getattr(serializers, name) for name in ("text", "json", "integer", "long", "double", "uuid")
}
DESERIALIZERS: Mapping[str, Callable[[bytes], Any]] = {"text": bytes.decode, "json": json.loads}


def object_of(named: Mapping[str, Any]) -> Reader:
    """Read a name of `named`, or that of a function or object of a module, as `package.module:name`: so a text of the
    environment or of a profile has it. Importing the module runs its code, as in a program. Without `named`, other
    texts are names that the setting knows."""
    return lambda text: _find_object(named, text) if isinstance(text, str) else text


def objects_of(text: Any) -> Any:
    """Read several with commas between, or the list of a profile."""
    parts = text.split(",") if isinstance(text, str) else text
    return [_find_object({}, part.strip()) for part in parts] if isinstance(parts, list) else parts


def instances_of(text: Any) -> Any:
    """Read several, and make an object of each class, which gets no settings of its own."""
    found = objects_of(text)
    return (
        [_new_instance(each) if isinstance(each, type) else each for each in found]
        if isinstance(found, list)
        else found
    )


def _new_instance(kind: type) -> Any:
    try:
        return kind()
    except Exception as error:  # its own code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"a class that can be made without arguments ({reason})") from None


def _find_object(named: Mapping[str, Any], value: str) -> Any:
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
