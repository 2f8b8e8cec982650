"""Configuration keys: what one is, how its value is parsed, refused and described.

A `ConfigKey` has all there is to know of a key: name, type, default, range and meaning. A configuration is a dataclass
whose fields are `config_field`s. Guards one promise: a value that was accepted is of its type and within its range, and
the error for any other names the key, what was expected and what was found. Knows no key by name and reads no file.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from bus.errors import did_you_mean, near_names

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
NO_EFFECT_YET = "Accepted, checked and kept; without effect in this version."

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigError(ValueError):
    """A setting that cannot be used. The message names key or file, what was expected and what was found."""


class ConfigType(Enum):
    """Kafka's types; the value is the name that `describe` shows."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"  # 32 bits
    LONG = "long"  # 64 bits
    DOUBLE = "double"
    LIST = "list"  # of strings, separated by commas


class Validator(Protocol):
    """Which values of its type a key takes. `str()` of it is the text for people."""

    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, both included; `high is None`: no bound but that of the type."""

    low: float
    high: float | None = None

    def accepts(self, value: Any) -> bool:
        return bool(self.low <= value and (self.high is None or value <= self.high))

    def __str__(self) -> str:
        return f"[{self.low},...]" if self.high is None else f"[{self.low},...,{self.high}]"


@dataclass(frozen=True, slots=True)
class ZeroOrAtLeast:
    """A bound of a size that must not be too small, or none."""

    low: int

    def accepts(self, value: Any) -> bool:
        return bool(value == 0 or value >= self.low)

    def __str__(self) -> str:
        return f"0 or [{self.low},...]"


@dataclass(frozen=True, slots=True)
class OneOf:
    choices: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        return value in self.choices

    def __str__(self) -> str:
        return f"one of {', '.join(choice or 'nothing' for choice in self.choices)}"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A list of some of the choices, each at most once; it may be empty."""

    choices: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        return set(value) <= set(self.choices) and len(set(value)) == len(value)

    def __str__(self) -> str:
        return f"any of {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True)
class NotEmpty:
    def accepts(self, value: Any) -> bool:
        return bool(value)

    def __str__(self) -> str:
        return "a non-empty string"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One configuration key. `is_in_effect` is False while nothing acts on the key: it is accepted so that settings
    written for Kafka can be used, and `description` says so."""

    name: str
    type: ConfigType
    default: ConfigValue
    documentation: str  # one line
    validator: Validator | None = None
    is_in_effect: bool = True
    is_secret: bool = False  # its value is left out of logs and answers
    shown_as: Callable[[str], str] | None = None  # what of its value is in them; None: all of it

    @property
    def description(self) -> str:
        return self.documentation if self.is_in_effect else f"{self.documentation} {NO_EFFECT_YET}"

    @property
    def valid_values(self) -> str:
        """For people; empty if every value of the type is valid."""
        if self.type is ConfigType.BOOLEAN:
            return "one of true, false"
        return "" if self.validator is None else str(self.validator)

    def parse(self, text: str) -> ConfigValue:
        """The value that `text` stands for. Raises `ConfigError`, a `ValueError`, with what was expected and found."""
        if self.type is ConfigType.STRING and self._accepts(text):
            return text  # a path may begin or end with a space
        value: ConfigValue | None = _PARSERS[self.type](text.strip())
        if value is None or not self._accepts(value):
            raise self._refusal(text)
        return value

    def check(self, value: object) -> ConfigValue:
        """`value` as data of a TOML file, where a number is a number and not a text. Raises `ConfigError`."""
        typed = _typed(self.type, value)
        if typed is None or not self._accepts(typed):
            raise self._refusal(value)
        return typed

    def format(self, value: ConfigValue) -> str:
        """The canonical text of a value: `parse(format(value)) == value`."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _accepts(self, value: ConfigValue) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if not all(map(is_text, value if isinstance(value, tuple) else (str(value),))):
            return False
        bits_max = {ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}.get(self.type)
        if bits_max is not None and not -bits_max - 1 <= value <= bits_max:  # type: ignore[operator]
            return False  # the type says it is an int; Python's have no bound of their own
        return self.validator is None or self.validator.accepts(value)

    def _refusal(self, found: object) -> ConfigError:
        limits = f" ({self.valid_values})" if self.valid_values else ""
        if isinstance(found, str) and not is_text(found):
            limits += " that has a form in UTF-8"
        shown = "another value" if self.is_secret or self.shown_as is not None else repr(found)
        return ConfigError(f"{self.name}: expected {self.type.value}{limits}, found {shown}")


def is_text(value: str) -> bool:
    """False for lone halves of surrogate pairs, which have no bytes: such as stand for what a terminal has brought in
    another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def config_field(
    config_type: ConfigType,
    default: ConfigValue,
    documentation: str,
    validator: Validator | None = None,
    *,
    is_in_effect: bool = True,
    is_secret: bool = False,
    shown_as: Callable[[str], str] | None = None,
    stands_for: str | None = None,
) -> Any:
    """A field of a configuration, for a dataclass. `stands_for`: the topic config whose default it is."""
    key = ConfigKey("", config_type, default, documentation, validator, is_in_effect, is_secret, shown_as)
    is_shown = not is_secret and shown_as is None
    return field(default=default, repr=is_shown, metadata={"key": key, "stands_for": stands_for})


boolean = functools.partial(config_field, ConfigType.BOOLEAN)
string = functools.partial(config_field, ConfigType.STRING)
integer = functools.partial(config_field, ConfigType.INT)
long = functools.partial(config_field, ConfigType.LONG)
double = functools.partial(config_field, ConfigType.DOUBLE)
strings = functools.partial(config_field, ConfigType.LIST)


def keys_of(configuration: type) -> Mapping[str, ConfigKey]:
    """The keys of a dataclass made of `config_field`s, by name: the field's, with dots for underscores."""
    settings = (one for one in fields(configuration) if "key" in one.metadata)
    keys = (replace(one.metadata["key"], name=one.name.replace("_", ".")) for one in settings)
    return MappingProxyType({key.name: key for key in keys})


def _parse_int(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) else None


def _parse_double(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII) else None


_PARSERS: Mapping[ConfigType, Any] = {
    ConfigType.BOOLEAN: lambda text: {"true": True, "false": False}.get(text.lower()),
    ConfigType.STRING: lambda text: text,
    ConfigType.INT: _parse_int,
    ConfigType.LONG: _parse_int,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: lambda text: tuple(item.strip() for item in text.split(",")) if text else (),
}


def _typed(config_type: ConfigType, value: object) -> ConfigValue | None:
    match config_type:
        case ConfigType.BOOLEAN:
            return value if isinstance(value, bool) else None
        case ConfigType.STRING:
            return value if isinstance(value, str) else None
        case ConfigType.INT | ConfigType.LONG:
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        case ConfigType.DOUBLE:
            return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        case ConfigType.LIST:
            is_list = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
            return tuple(value) if is_list else None  # type: ignore[arg-type]  # is_list has looked at it


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One line of `describe`: a key, its value now and what it means."""

    name: str
    value: str
    default: str
    is_default: bool  # it was not set
    type: str
    valid_values: str
    documentation: str
    is_read_only: bool


def describe_key(key: ConfigKey, *, value: str, default: str, is_default: bool, is_read_only: bool) -> ConfigEntry:
    if key.is_secret and value:
        value = "(hidden)"
    elif key.shown_as is not None:
        value = key.shown_as(value)
    return ConfigEntry(
        name=key.name,
        value=value,
        default=default,
        is_default=is_default,
        type=key.type.value,
        valid_values=key.valid_values,
        documentation=key.description,
        is_read_only=is_read_only,
    )


def unknown_key_message(name: str, known: Iterable[str]) -> str:
    """Say that there is no such key, and which one may be meant."""
    return f"unknown configuration key {name!r}{did_you_mean(near_names(name, known))}"


def check_at_most(settings: object, name: str, longest: str) -> None:
    """Raises `ConfigError` if the value of the key `name` is larger than that of the key `longest`."""
    value, limit = getattr(settings, field_name(name)), getattr(settings, field_name(longest))
    if value > limit:
        raise ConfigError(f"expected {name} of at most {longest}, {limit}, found {value}")


def field_name(name: str) -> str:
    """The Python name of a key: `num.partitions` -> `num_partitions`."""
    return name.replace(".", "_")
