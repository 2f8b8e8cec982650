"""A mapping that is replaced and never changed, cheap to replace also when it is large.

Guards one promise: the holder of one keeps what it saw. What was put or taken out lately lies over a large part that
many versions share; a change copies the former, and both become one when the former has grown. Unlike the maps of
libraries, which iterate in the order of hashes, it has the same order in every process: snapshots and simulations
depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
T = TypeVar("T")

_RECENT_MAX = 256
_ABSENT = object()


class PersistentMap(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """Equal to every mapping with the same entries. Values are not None."""

    __slots__ = ("_count", "_recent", "_settled")

    def __init__(self, entries: Mapping[KeyT, ValueT] | None = None) -> None:
        self._settled: Mapping[KeyT, ValueT] = {} if entries is None else entries
        self._recent: Mapping[KeyT, ValueT | None] = {}  # None: taken out
        self._count = len(self._settled)

    def changed(self, changes: Mapping[KeyT, ValueT | None]) -> PersistentMap[KeyT, ValueT]:
        """This mapping with `changes`: what each key has now, None: nothing (any more)."""
        if not changes:
            return self
        if not self._count and not self._recent:
            return PersistentMap({key: value for key, value in changes.items() if value is not None})
        changed: PersistentMap[KeyT, ValueT] = PersistentMap(self._settled)
        changed._recent = {**self._recent, **changes}
        changed._count = self._count + sum((new is not None) - (key in self) for key, new in changes.items())
        return changed if len(changed._recent) <= _RECENT_MAX else PersistentMap(dict(changed.items()))

    @overload
    def get(self, key: KeyT, /) -> ValueT | None: ...
    @overload
    def get(self, key: KeyT, default: ValueT | T, /) -> ValueT | T: ...
    def get(self, key: KeyT, default: Any = None, /) -> Any:
        """Without the exceptions that `Mapping.get` raises on its way: it is asked often."""
        found = self._recent.get(key, _ABSENT)
        if found is _ABSENT:
            return self._settled.get(key, default)
        return default if found is None else found

    def __getitem__(self, key: KeyT) -> ValueT:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self._recent[key] is not None if key in self._recent else key in self._settled  # type: ignore[index]  # found by `in`

    def __iter__(self) -> Iterator[KeyT]:
        recent = self._recent
        yield from (key for key in self._settled if key not in recent)
        yield from (key for key, value in recent.items() if value is not None)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"
