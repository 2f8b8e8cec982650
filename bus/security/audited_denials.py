"""Counts denials that repeat, so that a principal without permissions floods neither the log nor the audit.

Guards two promises: of each principal, operation and resource type the first denial of each of the first
`NAMES_REPORTED_MAX` names in an interval is reported at once; and all others are counted. Memory is bounded: names are
kept as hashes. Knows no time: an interval ends with `take`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

DENIAL_INTERVAL_MS = 60_000
DENIAL_KINDS_MAX = 10_000
NAMES_REPORTED_MAX = 10  # for each kind

ValueT = TypeVar("ValueT")
DenialKind = tuple[str, str, str]  # principal, operation, type of the resource


class DenialCounts(Generic[ValueT]):
    def __init__(self, merge: Callable[[ValueT, ValueT], ValueT]) -> None:
        """`merge`: one value for what was counted before and the next one."""
        self._merge = merge
        self._reported: dict[DenialKind, set[int]] = {}  # hashes of names
        self._counted: dict[DenialKind, ValueT] = {}  # kinds that are in `_reported`
        self._lost = 0

    def add(self, kind: DenialKind, name: str, value: ValueT) -> bool:
        """True: report it at once. False: it was counted. `name`: of the resource."""
        reported = self._reported.get(kind)
        if reported is None:
            if len(self._reported) >= DENIAL_KINDS_MAX:
                self._lost += 1
                return False
            reported = self._reported[kind] = set()
        if len(reported) < NAMES_REPORTED_MAX and hash(name) not in reported:
            reported.add(hash(name))
            return True
        known = self._counted.get(kind)
        self._counted[kind] = value if known is None else self._merge(known, value)
        return False

    @property
    def is_empty(self) -> bool:
        return not self._reported

    def take(self) -> tuple[list[ValueT], int]:
        """End the interval. Returns what was counted, one value for each kind, and the number of denials that found no
        room because there were too many kinds."""
        counted, lost = list(self._counted.values()), self._lost
        self._reported.clear()
        self._counted.clear()
        self._lost = 0
        return counted, lost
