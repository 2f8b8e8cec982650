"""What a user gave a client besides settings: serializers, partitioners, interceptors.

Guards two promises: each object that has a `close()` is closed once, also if others raise, and in however many places
it was given; and a function may ask for what it can be told by naming a parameter, so that one without it goes on
working.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)


def asks_for(function: Callable[..., Any], parameter: str) -> bool:
    """It has a parameter of this name, which can be given by name."""
    try:
        found = inspect.signature(function).parameters.get(parameter)
    except (TypeError, ValueError):  # a function of C without a signature
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def close_all(given: Mapping[str, Any]) -> None:
    """Close what `given` has, by the name of its setting. What a `close()` raises is logged."""
    closed: list[Any] = []
    for name, thing in given.items():
        close = getattr(thing, "close", None)
        if isinstance(thing, type) or not callable(close) or any(thing is other for other in closed):
            continue
        closed.append(thing)
        try:
            close()
        except Exception:  # a user's code, while everything else is to be closed as well
            logger.exception("closing %s failed", name)
