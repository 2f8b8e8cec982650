"""TOML files of settings: errors name the place of what cannot be read, and dotted keys are names again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bus.bounded_files import FileFault, read_bounded_text
from bus.config.keys import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Raises `ConfigError`, with line and column of what is no TOML."""
    try:
        text = read_bounded_text(path)
    except FileFault as fault:
        raise ConfigError(f"{path}: {fault}") from None
    try:
        document: dict[str, Any] = tomllib.loads(text)
        return document
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML, found: {error}") from error


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Dotted keys are nested tables in TOML; here they are names again. Raises `ConfigError` for a name that is there
    twice, with dots and with tables."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        inner = flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        twice = flat.keys() & inner.keys()
        if twice:
            raise ConfigError(f"expected {min(twice)} once, found it twice")
        flat.update(inner)
    return flat
