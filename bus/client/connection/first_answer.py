"""One question to several brokers, of which any may answer.

Guards one promise: a broker that does not answer costs a second, not the time-out of the call. For questions only that
may be asked twice at a time.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from bus.client.connection.silent_brokers import SILENT_AFTER_MS
from bus.errors import BusError

# However many brokers there are: if all are slow, more questions do not make them faster.
_AT_ONCE_MAX = 3

Cancel = Callable[[], object]
# Asks the broker at an address; the function given to it is called once, with the answer or a `BusError`.
Start = Callable[[str, Callable[[Any], None]], Cancel]


def first_answer(
    addresses: Sequence[str],
    start: Start,
    *,
    may_ask_next: Callable[[BusError], bool],
    patience_ms: float = SILENT_AFTER_MS,
) -> Any:
    """What the first broker says that answers; all others are cancelled. They are asked in order, the next one when one
    fails so that another may do better (`may_ask_next`), or has not answered for `patience_ms`. Raises the last
    `BusError`."""
    assert addresses, "at least one broker is asked"
    left = list(reversed(addresses))
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    cancels: list[Cancel] = []
    failures = 0
    try:
        while True:
            if left and len(cancels) - failures < _AT_ONCE_MAX:
                cancels.append(start(left.pop(), outcomes.put))
            may_start = bool(left) and len(cancels) - failures < _AT_ONCE_MAX
            try:
                answer = outcomes.get(timeout=patience_ms / 1000 if may_start else None)
            except queue.Empty:
                continue
            if not isinstance(answer, BusError):
                return answer
            failures += 1
            if not may_ask_next(answer) or (not left and failures == len(cancels)):
                raise answer
    finally:
        for cancel in cancels:
            cancel()
