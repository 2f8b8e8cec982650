"""Decisions about a record whose handler failed, or that could not be deserialized.

Pure: the settings, the error and the number of attempts decide. Guards two promises: a record is never passed over
unless the settings say so, and an `on_error` of the user's that fails, or gives what is no policy, stops the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bus.client.values import ConsumerRecord
from bus.processing.settings import ERROR_POLICIES, ErrorPolicy, ProcessingSettings


class FailedAt(Enum):
    """The place of a failure; `value` is its name in a dead letter."""

    DESERIALIZER = "deserializer"
    HANDLER = "handler"
    OUTPUT = "output"  # the handler returned, and a topic refuses what it sent


@dataclass(frozen=True, slots=True)
class TryAgain:
    after_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more is handed out; `error` is what run() raises."""

    error: BaseException


class Pass(Enum):
    SKIP = auto()
    DEAD_LETTER = auto()


FailureDecision = TryAgain | Stop | Pass


def decide_failure(
    settings: ProcessingSettings, record: ConsumerRecord, error: BaseException, attempt: int, failed_at: FailedAt
) -> FailureDecision:
    """`attempt`: how often it was tried, counted from 1. What cannot be deserialized is not tried again, nor is output
    that its topic refuses: it would fail again."""
    may_retry = failed_at is FailedAt.HANDLER
    if not isinstance(error, Exception):
        return Stop(error)  # an exit or an interrupt: meant for the program, not for the record
    if may_retry and attempt <= settings.first_retries:
        return TryAgain(backoff_ms(settings, attempt))
    try:
        policy = _policy(settings, record, error, attempt)
    except Exception as raised:
        return Stop(raised)
    if policy == "retry" and callable(settings.on_error) and may_retry:
        return TryAgain(backoff_ms(settings, attempt))
    if policy == "skip":
        return Pass.SKIP
    if policy == "dead_letter":
        return Pass.DEAD_LETTER
    return Stop(error)


def backoff_ms(settings: ProcessingSettings, attempt: int) -> int:
    """Twice as long after each attempt."""
    return min(settings.retry_backoff_ms << min(attempt - 1, 31), settings.retry_backoff_max_ms)


def _policy(settings: ProcessingSettings, record: ConsumerRecord, error: Exception, attempt: int) -> ErrorPolicy:
    if not callable(settings.on_error):
        return settings.on_error
    policy = settings.on_error(record, error, attempt)
    if policy not in ERROR_POLICIES:
        raise ValueError(f"expected on_error to give one of {', '.join(ERROR_POLICIES)}, found {policy!r}") from error
    return policy
