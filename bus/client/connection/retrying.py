"""The one loop that repeats what may succeed later, how long it pauses, and the clock that says when it is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from bus.errors import BusError

ResultT = TypeVar("ResultT")
# After so many failures, one after another, the next one is a warning: a leader that moves costs one or two.
FAILURES_UNTOLD = 2
# For so long a broker may not know a partition that there is: it follows the metadata several times a second.
UNKNOWN_PARTITION_MS_MAX = 2_000


def monotonic_ms() -> float:
    """The clock of every `now_ms` and `deadline_ms` of a client: milliseconds with fractions, never going back."""
    return time.monotonic() * 1000


class Backoff:
    """Exponential, with a fifth of jitter either way: clients that failed together do not come back together."""

    def __init__(self, base_ms: int, max_ms: int) -> None:
        self._base_ms = base_ms
        self._max_ms = max(base_ms, max_ms)

    def ms(self, attempt: int) -> float:
        """The next pause. `attempt` 0 is the first repetition."""
        bounded: float = min(self._max_ms, self._base_ms * 2 ** min(attempt, 30))
        return bounded * random.uniform(0.8, 1.2)


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
