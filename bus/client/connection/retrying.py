"""The one loop that repeats what may succeed later, and how long it pauses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from bus.errors import BusError

ResultT = TypeVar("ResultT")


class Backoff:
    """Exponential, with a fifth of jitter either way: clients that failed together do not come back together."""

    def __init__(self, base_ms: int, max_ms: int) -> None:
        self._base_ms = base_ms
        self._max_ms = max(base_ms, max_ms)

    def seconds(self, attempt: int) -> float:
        """`attempt` 0 is the first repetition."""
        bounded: float = min(self._max_ms, self._base_ms * 2 ** min(attempt, 30))
        return bounded * random.uniform(0.8, 1.2) / 1000


def retry(
    ask: Callable[[], ResultT],
    *,
    may_retry: Callable[[int, BusError], bool],
    pause: Callable[[int, BusError], bool],
) -> ResultT:
    """What `ask` returns. After its `BusError` it is asked again, if `may_retry`, and if `pause`, which waits, says
    that there is time for that; both get the number of attempts before this one. Raises the last error."""
    attempt = 0
    while True:
        try:
            return ask()
        except BusError as error:
            if not may_retry(attempt, error) or not pause(attempt, error):
                raise
        attempt += 1
