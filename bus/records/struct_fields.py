"""The fields of a stored struct, taken with the type that each must have.

Rows come from disk, so that they are checked: a field that is not as expected raises `ValueError`, which says what was
expected and what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.settings.keys import INT_MAX, LONG_MAX


class StructFields:
    """A struct from disk, whose fields are taken with the type that they must have."""

    def __init__(self, fields: Mapping[str, Any], type_name: str) -> None:
        self._fields = fields
        self._type_name = type_name
        if fields.get("type", type_name) != type_name:
            raise ValueError(f"expected a record of type {type_name}, found {fields['type']!r}: of a newer version?")

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if type(value) is not str:
            raise self._wrong(name, "a string", value)
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def data(self, name: str) -> bytes:
        value = self._fields.get(name)
        if type(value) is not bytes:
            raise self._wrong(name, "bytes", value)
        return value

    def integer(self, name: str, *, low: int = 0, high: int = INT_MAX) -> int:
        value = self._fields.get(name)
        if type(value) is not int:  # a bool is none
            raise self._wrong(name, "an integer", value)
        if not low <= value <= high:
            raise self._wrong(name, f"{low} to {high}", value)
        return value

    def long(self, name: str) -> int:
        return self.integer(name, high=LONG_MAX)

    def long_or_none(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.long(name)

    def structs(self, name: str, type_name: str) -> list[StructFields]:
        """The items of a list, of which each has to be a struct."""
        items = self._items(name)
        if not all(isinstance(item, Mapping) for item in items):
            raise self._wrong(name, f"{type_name} in every item", None)
        return [StructFields(item, type_name) for item in items]

    def texts(self, name: str) -> tuple[str, ...]:
        items = self._items(name)
        if not all(type(item) is str for item in items):
            raise self._wrong(name, "a string in every item", items)
        return tuple(items)

    def _items(self, name: str) -> list[Any]:
        value = self._fields.get(name)
        if type(value) is not list:
            raise self._wrong(name, "a list", value)
        return value

    def _wrong(self, name: str, expected: str, found: object) -> ValueError:
        return ValueError(f"{self._type_name}: expected {expected} in the field {name}, found {found!r}")
