"""Functions and objects that a text of the environment or of a profile names, as `package.module:name`.

Guards one promise: what a program could have given is what is used, or an error that says what was expected. Importing
a module runs its code, as in a program.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from bus import serializers

Reader = Callable[[Any], Any]

SERIALIZERS: Mapping[str, Callable[[Any], bytes]] = {
    name: getattr(serializers, name) for name in ("text", "json", "integer", "long", "double", "uuid")
}
DESERIALIZERS: Mapping[str, Callable[[bytes], Any]] = {"text": bytes.decode, "json": json.loads}


def object_of(named: Mapping[str, Any]) -> Reader:
    """Read a name of `named`, or one of a module. Without `named`, other texts are names that the setting knows."""
    return lambda text: _found(named, text) if isinstance(text, str) else text


def objects_of(text: Any) -> Any:
    """Read several with commas between, or the list of a profile."""
    parts = text.split(",") if isinstance(text, str) else text
    return [_found({}, part.strip()) for part in parts] if isinstance(parts, list) else parts


def instances_of(text: Any) -> Any:
    """Read several, and make an object of each class, which gets no settings of its own."""
    found = objects_of(text)
    return [_made(each) if isinstance(each, type) else each for each in found] if isinstance(found, list) else found


def _made(kind: type) -> Any:
    try:
        return kind()
    except Exception as error:  # its own code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"a class that can be made without arguments ({reason})") from None


def _found(named: Mapping[str, Any], value: str) -> Any:
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
