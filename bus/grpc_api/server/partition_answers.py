"""Answers of partitions that were asked at once.

Guards one promise: each partition that was asked has one answer, in the order of the questions, whatever the others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from bus.errors import ErrorCode, Refused

T = TypeVar("T")


def answered(result: T) -> asyncio.Future[T]:
    """For what is known without asking the partition."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer


async def gather_answers(answers: Sequence[asyncio.Future[T]], *, timeout_ms: int, otherwise: str) -> list[T | Refused]:
    """What they say within `timeout_ms`; of those that are late REQUEST_TIMED_OUT with `otherwise`."""
    if answers:
        await asyncio.wait(answers, timeout=timeout_ms / 1000)
    late = Refused(ErrorCode.REQUEST_TIMED_OUT, otherwise)
    return [answer.result() if answer.done() else late for answer in answers]
