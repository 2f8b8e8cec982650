"""Keys of settings: what one is, how its value is read from a text, checked, refused and described.

Guards one promise: a value that was accepted is one that its key takes, and the error for any other names the key, what
was expected and what was found, unless that is a secret. A `Key` has all there is to know of a setting: of a broker, a
topic, a client, a query of Spark or a loop that processes records. The tables are dataclasses, a field a key, and
`keys_of` lists the keys of one. Knows no key by name and reads no file.
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

from bus.descriptions import ConfigDescription
from bus.errors import did_you_mean, near_names, reduce_error

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
NO_EFFECT_YET = "Accepted, checked and kept; without effect in this version."

ConfigValue = bool | int | float | str | tuple[str, ...]
# Returns the value to use. Raises ValueError that says what was expected, and nothing of what was found.
Check = Callable[[Any], Any]


class ConfigError(ValueError):
    """A setting that cannot be used. The message names key or file, what was expected and what was found."""


class WrongSetting(ConfigError):
    """A value that a key does not take. `found` is its text, unless it may be secret."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(f"{name}: expected {expected}, found {found}")
        self.name, self.expected, self.found = name, expected, found

    __reduce__ = reduce_error


# ---------------------------------------------------------------- what a key takes


class ConfigType(Enum):
    """Kafka's types; the value is the name that `describe` shows."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"  # 32 bits
    LONG = "long"  # 64 bits
    DOUBLE = "double"
    LIST = "list"  # of strings, separated by commas

    def read(self, text: str) -> Any:
        """The value that the text stands for; the text itself if it stands for none."""
        value = _READERS[self](text.strip())
        return text if value is None else value

    def typed(self, value: object) -> ConfigValue | None:
        """`value` as one of this type; None if it is of another one."""
        match self:
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


def _read_int(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) else None


def _read_double(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII) else None


_READERS: Mapping[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: lambda text: {"true": True, "false": False}.get(text.lower()),
    ConfigType.STRING: lambda text: text,
    ConfigType.INT: _read_int,
    ConfigType.LONG: _read_int,
    ConfigType.DOUBLE: _read_double,
    ConfigType.LIST: lambda text: tuple(item.strip() for item in text.split(",")) if text else (),
}
_BITS_MAX = {ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}


class Validator(Protocol):
    """A check of a key's values beside their type. `str()` of it is the text for people."""

    def accepts(self, value: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, both included; `high is None`: no bound but that of the type. `besides`: one more
    number that is taken."""

    low: float
    high: float | None = None
    besides: float | None = None

    def accepts(self, value: Any) -> bool:
        return bool((self.low <= value and (self.high is None or value <= self.high)) or value == self.besides)

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
class Typed:
    """The check of a value of one type, and of a range in it. `words`: what was expected, for people who do not know
    Kafka's types."""

    type: ConfigType
    validator: Validator | None = None
    words: str = ""

    @property
    def valid_values(self) -> str:
        """Text for people; empty if every value of the type is valid."""
        if self.type is ConfigType.BOOLEAN:
            return "one of true, false"
        return "" if self.validator is None else str(self.validator)

    @property
    def expected(self) -> str:
        return self.words or f"{self.type.value}{f' ({self.valid_values})' if self.valid_values else ''}"

    def __call__(self, value: object) -> ConfigValue:
        typed = self.type.typed(value)
        if typed is None or not self._accepts(typed):
            raise ValueError(self.expected)
        return typed

    def read(self, text: str) -> Any:
        is_whole = self.type is ConfigType.STRING and self._accepts(text)
        return text if is_whole else self.type.read(text)  # a path may begin or end with a space

    def _accepts(self, value: ConfigValue) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        bits_max = _BITS_MAX.get(self.type)
        if bits_max is not None and not -bits_max - 1 <= value <= bits_max:  # type: ignore[operator]
            return False  # the type says it is an int; Python's have no bound of their own
        return self.validator is None or self.validator.accepts(value)


def is_text(value: str) -> bool:
    """False for lone halves of surrogate pairs, which have no bytes: such as stand for what a terminal has brought in
    another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `is_in_effect` is False while nothing acts on the key: it is accepted so that settings written for
    Kafka can be used, and `description` says so."""

    name: str
    takes: Check
    default: Any
    documentation: str = ""  # one line
    is_in_effect: bool = True
    is_secret: bool = False  # its value is left out of logs and answers
    shown_as: Callable[[str], str] | None = None  # the part of the value that may appear there; None: all of it
    reader: Callable[[Any], Any] | None = None  # reads a text if `takes` is no `Typed`; None: the text is the value
    typed: str | None = None  # the type of the argument of a program, if the field has another one

    @property
    def type(self) -> ConfigType:
        return self._typed.type

    @property
    def valid_values(self) -> str:
        """Text for people; empty if every value of the type is valid."""
        return self._typed.valid_values

    @property
    def _typed(self) -> Typed:
        assert isinstance(self.takes, Typed), f"{self.name} has none of Kafka's types"
        return self.takes

    @property
    def description(self) -> str:
        return self.documentation if self.is_in_effect else f"{self.documentation} {NO_EFFECT_YET}"

    def parse(self, text: Any) -> Any:
        """The value that a text stands for, or the value of a file where settings may be texts. Raises
        `WrongSetting`."""
        self._check_texts(text)
        return self._checked(self.read(text), text)

    def read(self, text: Any) -> Any:
        """The value that a text stands for, unchecked; the text itself if it stands for none."""
        if isinstance(self.takes, Typed):
            return self.takes.read(text) if isinstance(text, str) else text
        try:
            return text if self.reader is None else self.reader(text)
        except ValueError as expected:
            raise self._refusal(str(expected), text) from None

    def check(self, value: object) -> Any:
        """`value` as a program or a TOML file gives it, where a number is a number and not a text. Raises
        `WrongSetting`."""
        self._check_texts(value)
        return self._checked(value, value)

    def format(self, value: ConfigValue) -> str:
        """The canonical text of a value: `parse(format(value)) == value`."""
        return config_text(value)

    def _check_texts(self, value: object) -> None:
        """Lone surrogates could not be sent or stored."""
        items = value if isinstance(value, (list, tuple)) else (value,)
        if not all(is_text(item) for item in items if isinstance(item, str)):
            kind = self.takes.expected if isinstance(self.takes, Typed) and not self.takes.words else "text"
            raise self._refusal(f"{kind} that has a form in UTF-8", value)

    def _checked(self, value: object, found: object) -> Any:
        try:
            return self.takes(value)
        except (ValueError, TypeError) as expected:
            raise self._refusal(str(expected), found) from None

    def _refusal(self, expected: str, found: object) -> WrongSetting:
        is_hidden = self.is_secret or self.shown_as is not None
        return WrongSetting(self.name, expected, "another value" if is_hidden else repr(found))


def config_text(value: object) -> str:
    """A value of a config as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(config_text, value)) if isinstance(value, (list, tuple)) else str(value)


def key_field(
    takes: Check, default: Any, documentation: str = "", *, stands_for: str | None = None, **of_key: Any
) -> Any:
    """A field of a table of settings, for a dataclass. `stands_for`: the topic config whose default it is; `of_key`:
    fields of `Key`."""
    key = Key("", takes, default, documentation, **of_key)
    is_shown = not key.is_secret and key.shown_as is None
    return field(default=default, repr=is_shown, metadata={"key": key, "stands_for": stands_for})


def _config_field(
    config_type: ConfigType, default: ConfigValue, documentation: str, validator: Validator | None = None, **of_key: Any
) -> Any:
    return key_field(Typed(config_type, validator), default, documentation, **of_key)


boolean = functools.partial(_config_field, ConfigType.BOOLEAN)
string = functools.partial(_config_field, ConfigType.STRING)
integer = functools.partial(_config_field, ConfigType.INT)
long = functools.partial(_config_field, ConfigType.LONG)
double = functools.partial(_config_field, ConfigType.DOUBLE)
strings = functools.partial(_config_field, ConfigType.LIST)


def keys_of(table: type, separator: str = ".") -> Mapping[str, Key]:
    """The keys of a dataclass made of `key_field`s, by name: the field's, with `separator` for underscores."""
    settings = (one for one in fields(table) if "key" in one.metadata)
    keys = (replace(one.metadata["key"], name=one.name.replace("_", separator)) for one in settings)
    return MappingProxyType({key.name: key for key in keys})


def field_name(name: str) -> str:
    """The Python name of a key: `num.partitions` -> `num_partitions`."""
    return name.replace(".", "_")


def check_at_most(settings: object, name: str, longest: str) -> None:
    """Raises `ConfigError` if the value of the key `name` is larger than that of the key `longest`."""
    value, limit = getattr(settings, field_name(name)), getattr(settings, field_name(longest))
    if value > limit:
        raise ConfigError(f"expected {name} of at most {longest}, {limit}, found {value}")


def describe_key(key: Key, *, value: str, default: str, is_default: bool, is_read_only: bool) -> ConfigDescription:
    if key.is_secret and value:
        value = "(hidden)"
    elif key.shown_as is not None:
        value = key.shown_as(value)
    return ConfigDescription(
        name=key.name,
        value=value,
        default_value=default,
        is_default=is_default,
        type=key.type.value,
        valid_values=key.valid_values,
        documentation=key.description,
        is_read_only=is_read_only,
    )


# ---------------------------------------------------------------- names that are no keys


@dataclass(frozen=True, slots=True)
class AbsentKeys:
    """Settings that others have and the bus has not, and what to do instead: one that would do nothing is refused with
    the reason, not ignored. `families`: the beginning of names -> the reason for all of them."""

    reasons: Mapping[str, str]
    families: Mapping[str, str] = field(default_factory=dict)

    def reason(self, name: str, *, by_family: bool = True) -> str | None:
        """Why there is no such key; None of a name that others do not have either."""
        if name in self.reasons or not by_family:
            return self.reasons.get(name)
        return next((reason for start, reason in self.families.items() if name.startswith(start)), None)


def unknown_key_message(name: str, known: Iterable[str]) -> str:
    """Say that there is no such key, and which one may be meant."""
    return f"unknown configuration key {name!r}{did_you_mean(near_names(name, known))}"
