"""Files of settings, TOML or Java's properties, and variables in them.

Variables are those of Kafka's providers, `${env:NAME}`, `${file:/path:key}`, `${directory:/path:file}`: a file of
settings then holds no secret (KIP-297, KIP-421, KIP-632, KIP-887). Guards two promises: what cannot be read or resolved
is refused with its place, and no error has a value of a variable in it. Values are read once, at the start.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bus.platform.bounded_files import FileFault, read_bounded_text
from bus.settings.keys import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Raises `ConfigError`, with line and column of what is no TOML."""
    try:
        document: dict[str, Any] = tomllib.loads(_read(path, f"{path}: "))
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


def parse_properties(text: str) -> Mapping[str, str]:
    """Lines `key=value`, or with a colon, as Kafka's tools and its file provider of variables have them; the last one
    of a key counts. Lines that are neither are passed over."""
    found = {}
    for _, line in logical_lines(text.splitlines()):
        key, separator, value = _split(line)
        if separator:
            found[key.strip()] = value.strip()
    return found


def _split(line: str) -> tuple[str, str, str]:
    at = min((place for place in (line.find("="), line.find(":")) if place >= 0), default=-1)
    return (line, "", "") if at < 0 else (line[:at], line[at], line[at + 1 :])


def logical_lines(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Each with the number of its first line: without comments, and joined where a line ends with a backslash."""
    found: list[tuple[int, str]] = []
    is_continued = False
    for number, line in enumerate(map(str.strip, lines), start=1):
        if is_continued:
            first, before = found.pop()
            text = before + line
        elif line and not line.startswith(("#", "!")):
            first, text = number, line
        else:
            continue
        is_continued = text.endswith("\\")
        found.append((first, text.removesuffix("\\")))
    return found


PROVIDERS = ("env", "file", "directory")
_VARIABLE = re.compile(r"\$\{([a-z]+):(?:([^}]*):)?([^}:]*)\}")


class Resolved(str):
    """A text in which a variable was replaced: it is parsed as those of command lines are, and never shown."""


def resolve(value: object, enabled: Collection[str], environment: Mapping[str, str] = os.environ) -> object:
    """The value with what its variables stand for; a list item by item. Raises `ConfigError`."""
    if isinstance(value, str):
        return _resolve_text(value, enabled, environment)
    if isinstance(value, (list, tuple)):
        return [resolve(one, enabled, environment) for one in value]
    return value


def _resolve_text(text: str, enabled: Collection[str], environment: Mapping[str, str]) -> str:
    if not any(found[1] in PROVIDERS for found in _VARIABLE.finditer(text)):
        return text

    def value_of(found: re.Match[str]) -> str:
        provider, path, key = found[1], found[2] or "", found[3]
        if provider not in PROVIDERS:
            return found[0]
        if provider not in enabled:
            raise ConfigError(f"{found[0]}: expected {provider} in config.providers, found {_show(enabled)}")
        try:
            return _READERS[provider](path, key, environment)
        except ConfigError as error:
            raise ConfigError(f"{found[0]}: {error}") from None

    return Resolved(_VARIABLE.sub(value_of, text))


def _of_environment(path: str, key: str, environment: Mapping[str, str]) -> str:
    if path:
        raise ConfigError("expected ${env:NAME}")
    if key not in environment:
        raise ConfigError(f"expected {key} in the environment, found none")
    return environment[key]


def _of_file(path: str, key: str, _: Mapping[str, str]) -> str:
    if not path or not key:
        raise ConfigError("expected ${file:/PATH:KEY}")
    pairs = parse_properties(_read(Path(path)))
    if key not in pairs:
        raise ConfigError(f"expected a line {key}=... in the file, found none")
    return pairs[key]


def _of_directory(path: str, key: str, _: Mapping[str, str]) -> str:
    """The file's whole text, without the end of its last line."""
    if not path or not key or "/" in key or key in (".", ".."):
        raise ConfigError("expected ${directory:/PATH:FILE}")
    return _read(Path(path) / key).removesuffix("\n").removesuffix("\r")


_READERS: Mapping[str, Callable[[str, str, Mapping[str, str]], str]] = {
    "env": _of_environment,
    "file": _of_file,
    "directory": _of_directory,
}


def _read(path: Path, where: str = "") -> str:
    try:
        return read_bounded_text(path)
    except FileFault as fault:
        raise ConfigError(f"{where}{fault}") from None


def _show(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
