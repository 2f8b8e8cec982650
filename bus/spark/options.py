"""The options of a query as keys: how each is read, checked and refused by its name.

Spark's names are told apart without regard to upper and lower case; what begins with `bus.` is ours, what begins with
`kafka.` is a setting of the client. Guards one promise: a refusal has the name as it is documented, what was expected
and what was found. Decides only: reaches nothing but the profiles that name a broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any

from bus.client.config.parsing import parse_addresses
from bus.client.config.sources import default_addresses
from bus.errors import BusError, did_you_mean, near_names
from bus.ports import OFFSET_MAX
from bus.settings.keys import Check, ConfigType, Key, Typed, WrongSetting

_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option that cannot be used. The message names it, what was expected and what was found."""


def option(key: Key) -> Any:
    """A field of a dataclass of options that is the value of one."""
    return field(default=key.default, metadata={"key": key})


def options_of(table: type) -> Mapping[str, Key]:
    """The options that are fields of a dataclass, by these."""
    return {one.name: one.metadata["key"] for one in fields(table) if "key" in one.metadata}


def text(name: str, default: str | None = None, takes: Check | None = None) -> Key:
    return Key(name, takes or _not_blank, default)


def flag(name: str, default: bool | None = None) -> Key:
    return Key(name, Typed(ConfigType.BOOLEAN, words="true or false"), default)


def choice(name: str, *choices: str) -> Key:
    """The first one is the default."""

    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"{', '.join(choices[:-1])} or {choices[-1]}")
        return value

    return Key(name, check, choices[0], reader=lambda text: text.strip().lower())


def number(name: str, low: int = -OFFSET_MAX - 1, default: int | None = None) -> Key:
    def check(value: Any) -> int:
        if not isinstance(value, int):
            raise ValueError("a whole number")
        if value < low:
            raise ValueError(f"a number from {low} on")
        if value > OFFSET_MAX:
            raise ValueError(f"a number up to {OFFSET_MAX}")
        return value

    return Key(name, check, default, reader=ConfigType.LONG.read)


def duration_ms(name: str, default: int) -> Key:
    return Key(name, _milliseconds, default)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("a value")
    return value


def _milliseconds(value: str) -> int:
    match = _DURATION.fullmatch(value.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError("a time like 500ms, 30s, 15m, 2h or 1d")
    return int(match[1]) * _UNITS_MS[match[2]]


# Where the brokers are, for source and sink.
BROKERS = (
    text("kafka.bootstrap.servers"),
    text("bus.bootstrap.servers"),
    text("bus.profile"),
    text("bus.configFile"),
)


class Options:
    """Those of one query; `kind`: of what they are, for people."""

    def __init__(self, keys: Iterable[Key], given: Mapping[str, str], kind: str) -> None:
        self._keys = {key.name.lower(): key for key in keys}
        self._kind = kind
        self.texts = {name.lower(): value for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.texts

    def __getitem__(self, name: str) -> Any:
        """The value, or the default of its key. Raises `OptionError`."""
        key = self._keys[name.lower()]
        return self.value(key) if name in self else key.default

    def value(self, key: Key) -> Any:
        """The value that the option has by `key`, which may take something else of it than the table says."""
        try:
            return key.check(key.read(self.texts[key.name.lower()]))
        except WrongSetting as wrong:
            raise OptionError(str(wrong)) from None

    def spelling(self, name: str) -> str | None:
        """The documented one; None if there is no such option."""
        key = self._keys.get(name)
        return None if key is None else key.name

    def unknown(self, name: str) -> OptionError:
        hint = did_you_mean(self._keys[near].name for near in near_names(name, self._keys))
        return OptionError(f"{name}: expected an option of {self._kind}, found an unknown one{hint}")

    def client_settings(self) -> Mapping[str, str]:
        """The options that are settings of the client, each with the name of the setting in Python."""
        names = (name for name in self.texts if name.startswith("kafka.") and name not in self._keys)
        return {name: name.removeprefix("kafka.").replace(".", "_") for name in names}

    def client_value(self, name: str, key: Key) -> Any:
        """The value of an option that is a setting of the client, as a client checks it."""
        try:
            return replace(key, name=name).parse(self.texts[name])
        except WrongSetting as wrong:
            raise OptionError(str(wrong)) from None

    def profile(self) -> dict[str, str]:
        """The settings that name a profile of the client."""
        found = {"profile": self["bus.profile"], "config_file": self["bus.configFile"]}
        return {name: value for name, value in found.items() if value is not None}

    def addresses(self) -> dict[str, str]:
        """The addresses that are given, each by the option that has them."""
        return {name: self[name] for name in ("bus.bootstrap.servers", "kafka.bootstrap.servers") if name in self}

    def default_address(self) -> dict[str, str]:
        """The address that the environment or the profile has, like `addresses`; empty if there is none."""
        try:
            found = default_addresses(self.profile())
        except BusError as error:
            raise OptionError(f"bus.profile: {error.message}") from None
        return {} if found is None else {"bus.profile": found}


def checked_addresses(name: str, value: str) -> tuple[str, ...]:
    try:
        return parse_addresses(value)
    except BusError as error:
        raise OptionError(f"{name}: {error.message}") from None
