"""A mapping that is replaced and never changed, cheap to replace also when it is large and entries go.

Guards one promise: the holder of one keeps what it saw. What was put or taken out lately lies over a large part that
many versions share; a change copies the former, and both become one when the former has grown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

_RECENT_MAX = 256


class ChangingMap(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """Equal to every mapping with the same entries. Values are not None."""

    __slots__ = ("_count", "_recent", "_settled")

    def __init__(self, entries: Mapping[KeyT, ValueT] | None = None) -> None:
        self._settled: Mapping[KeyT, ValueT] = {} if entries is None else entries
        self._recent: Mapping[KeyT, ValueT | None] = {}  # None: taken out
        self._count = len(self._settled)

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> ChangingMap[KeyT, ValueT]:
        """This mapping with `changes`: what each key has now, None: nothing (any more)."""
        if not self._count and not self._recent:
            return ChangingMap({key: value for key, value in changes.items() if value is not None})
        changed: ChangingMap[KeyT, ValueT] = ChangingMap(self._settled)
        changed._recent = {**self._recent, **changes}
        changed._count = self._count + sum((new is not None) - (key in self) for key, new in changes.items())
        return changed if len(changed._recent) <= _RECENT_MAX else ChangingMap(dict(changed.items()))

    def __getitem__(self, key: KeyT) -> ValueT:
        if key not in self._recent:
            return self._settled[key]
        value = self._recent[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._recent[key] is not None if key in self._recent else key in self._settled  # type: ignore[index]  # found by `in`

    def __iter__(self) -> Iterator[KeyT]:
        recent = self._recent
        yield from (key for key in self._settled if key not in recent)
        yield from (key for key, value in recent.items() if value is not None)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"ChangingMap({dict(self)!r})"
