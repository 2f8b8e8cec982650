"""JSON from outside: a file of a log, a record's value, a key."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parse_json(
    text: str | bytes,
    *,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """As `json.loads`. Raises `ValueError`, also for text that is nested deeper than the interpreter can follow."""
    try:
        return json.loads(text, object_hook=object_hook, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError(f"expected JSON, found {len(text)} characters that are nested too deep") from None
