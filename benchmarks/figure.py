"""What a measurement gives: figures for the table, curves for the pictures.

Guards the fairness of the comparison in arithmetic: runs of ours and of the peer pair up as they were taken, in turn
within one round, and what is compared is the median over the rounds, never the best one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`runs` and `peer_runs` pair up, one of each taken in turn.

    `target` is of our value, `ratio_target` of ours over the peer's; None: for information.
    """

    name: str
    title: str
    unit: str
    runs: Sequence[float]
    target: float | None = None
    is_more_better: bool = False
    peer_runs: Sequence[float] = ()
    note: str = ""
    ratio_target: float | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.runs)

    @property
    def peer_value(self) -> float | None:
        return statistics.median(self.peer_runs) if self.peer_runs else None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's: the median over the pairs."""
        if not self.peer_runs:
            return None
        return statistics.median(ours / peer for ours, peer in zip(self.runs, self.peer_runs, strict=True))

    @property
    def is_met(self) -> bool | None:
        return self._meets(self.value, self.target)

    @property
    def is_ratio_met(self) -> bool | None:
        return self._meets(self.ratio, self.ratio_target)

    def _meets(self, found: float | None, target: float | None) -> bool | None:
        if found is None or target is None:
            return None
        return found >= target if self.is_more_better else found <= target


@dataclass(frozen=True, slots=True)
class Point:
    """`runs` at `x`, one a round, for each y that the curve has."""

    x: float
    runs: Mapping[str, Sequence[float]]

    @property
    def values(self) -> dict[str, float]:
        return {name: statistics.median(runs) for name, runs in self.runs.items()}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture: `picture` names which, `label` says whose it is and with which durability."""

    picture: str
    label: str
    points: Sequence[Point]


def scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]
