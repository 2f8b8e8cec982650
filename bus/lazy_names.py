"""Public names of a package that are loaded when they are first used, so that importing a part of it loads no other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from bus.extras import extra_missing


def load_name(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Load a name for a package's `__getattr__`, which is asked once for each; `homes` says in which modules they are.
    Raises `ExtraMissing` if they need what is not installed."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        raise (extra_missing(error) or error) from None
    setattr(sys.modules[package], name, value)
    return value
