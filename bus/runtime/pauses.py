"""Warns when the event loop of a broker did not run for a while, and says why.

Everything that a broker does waits for its loop, so a pause explains late answers, missed heartbeats and sessions that
ended. The processor time of the loop's thread tells the two causes apart: code that holds the loop uses the processor;
a process that was stopped, or whose machine was moved or is too busy, gets none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_INTERVAL_S = 0.25
PAUSE_S_MIN = 0.5


async def warn_of_pauses(
    clock: Callable[[], float] = time.monotonic, processor_clock: Callable[[], float] = time.thread_time
) -> None:
    """Until it is cancelled. A WARNING for each pause of half a second and longer. Both clocks are in seconds;
    `processor_clock`: the processor time of the calling thread."""
    while True:
        began_s, used_s = clock(), processor_clock()
        await asyncio.sleep(_INTERVAL_S)
        paused_s = clock() - began_s - _INTERVAL_S
        if paused_s >= PAUSE_S_MIN:
            _warn(paused_s, processor_clock() - used_s)


def _warn(paused_s: float, used_s: float) -> None:
    cause = (
        "a request or a task of the broker held it"
        if used_s >= paused_s / 2
        else "the process was stopped, or the machine is too busy"
    )
    _log.warning(
        "the event loop did not run for %.1f s and used the processor for %.1f s meanwhile: %s",
        paused_s,
        used_s,
        cause,
    )
