"""A mapping that is replaced and never changed, cheap to replace also when it is large.

Guards one promise: the holder of one keeps what it saw. Entries are put and replaced one by one; to take some out
costs a copy of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

# A put copies the recent entries, and all of them once in so many puts.
_RECENT_MAX = 256


class GrowingMap(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """Equal to every mapping with the same entries. Values are not None."""

    __slots__ = ("_recent", "_settled")

    def __init__(self, settled: Mapping[KeyT, ValueT] | None = None, recent: Mapping[KeyT, ValueT] | None = None):
        self._settled: Mapping[KeyT, ValueT] = {} if settled is None else settled
        self._recent: Mapping[KeyT, ValueT] = {} if recent is None else recent

    def put(self, key: KeyT, value: ValueT) -> GrowingMap[KeyT, ValueT]:
        """This mapping with `key` at `value`."""
        recent = {**self._recent, key: value}
        if len(recent) <= _RECENT_MAX:
            return GrowingMap(self._settled, recent)
        return GrowingMap({**self._settled, **recent})

    def updated(self, changes: Mapping[KeyT, ValueT | None]) -> GrowingMap[KeyT, ValueT]:
        """This mapping with all of `changes`; None takes the key out."""
        if not changes:
            return self
        put = {key: value for key, value in changes.items() if value is not None}
        if len(put) == len(changes) and len(self._recent) + len(put) <= _RECENT_MAX:
            return GrowingMap(self._settled, {**self._recent, **put})
        settled = {**self._settled, **self._recent, **put}
        for key in changes.keys() - put.keys():
            settled.pop(key, None)
        return GrowingMap(settled)

    def find(self, key: KeyT) -> ValueT | None:
        """`get` without the detour over exceptions: for those who ask often."""
        found = self._recent.get(key)
        return self._settled.get(key) if found is None else found

    def __getitem__(self, key: KeyT) -> ValueT:
        return self._recent[key] if key in self._recent else self._settled[key]

    def __iter__(self) -> Iterator[KeyT]:
        return iter({**self._settled, **self._recent})

    def __len__(self) -> int:
        return len(self._settled.keys() | self._recent.keys())

    def __repr__(self) -> str:
        return f"GrowingMap({dict(self)!r})"
