"""Answers of partitions that were asked at once.

Guards one promise: each partition that was asked has one answer, in the order of the questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from bus.errors import ErrorCode, Refused
from bus.runtime.loop_shares import LoopShare

T = TypeVar("T")


async def gather_answers(
    answers: Sequence[asyncio.Future[T]], *, timeout_ms: int, otherwise: str, share: LoopShare
) -> list[T | Refused]:
    """What they say within `timeout_ms`; of those that are late REQUEST_TIMED_OUT with `otherwise`."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + timeout_ms / 1000
    results: list[T | Refused] = []
    for answer in answers:
        if share.is_used_up:
            await share.wait()
        if not answer.done() and (left_s := due_s - loop.time()) > 0:
            await asyncio.wait([answer], timeout=left_s)
            share.renew()
        results.append(answer.result() if answer.done() else Refused(ErrorCode.REQUEST_TIMED_OUT, otherwise))
    return results
