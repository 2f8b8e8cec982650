"""How many leaders move at once in a planned move: an election, or the shutdown of a broker.

A partition is without service from the record that moves it until its new leader has fenced and opened it, and a broker
opens one partition after another. So leaders move in portions: each partition waits for those of its own portion only.
"""

from __future__ import annotations

# The new leaders open a smallest portion in about this time.
PORTION_PAUSE_S = 0.1
_PORTION_MIN = 16
# So many portions at first; they shrink as fewer partitions are left, so that all have moved within some seconds.
_PORTIONS = 40


def portion_size(count: int) -> int:
    """Of `count` partitions that are still to move, how many do now."""
    return max(_PORTION_MIN, count // _PORTIONS)
