"""Decisions about a record that failed."""

from __future__ import annotations

from typing import Any

import pytest

from bus.processing import parse_settings
from bus.processing.work import FailedAt, Pass, Stop, TryAgain, decide_failure
from tests.support.processing import record

ERROR = ValueError("no")


def decided(
    attempt: int = 1, failed_at: FailedAt = FailedAt.HANDLER, error: BaseException = ERROR, **options: Any
) -> Any:
    return decide_failure(parse_settings(options), record(7), error, attempt, failed_at)


@pytest.mark.parametrize(
    ("on_error", "decision"), [("stop", Stop(ERROR)), ("skip", Pass.SKIP), ("dead_letter", Pass.DEAD_LETTER)]
)
def test_each_policy_without_retries_acts_at_once(on_error: str, decision: Any) -> None:
    assert decided(on_error=on_error) == decision


@pytest.mark.parametrize("on_error", ["stop", "skip", "dead_letter", "retry"])
def test_retries_come_first_with_growing_pauses(on_error: str) -> None:
    options = {"on_error": on_error, "retries": 3, "retry_backoff_ms": 10, "retry_backoff_max_ms": 30}
    assert [decided(attempt, **options) for attempt in (1, 2, 3)] == [TryAgain(10), TryAgain(20), TryAgain(30)]
    assert not isinstance(decided(4, **options), TryAgain)


def test_retry_without_a_number_never_gives_up() -> None:
    assert isinstance(decided(1_000_000, on_error="retry"), TryAgain)


def test_retry_with_a_number_stops_behind_it() -> None:
    assert decided(3, on_error="retry", retries=2) == Stop(ERROR)


def test_what_cannot_be_deserialized_is_not_tried_again() -> None:
    assert decided(failed_at=FailedAt.DESERIALIZER, on_error="retry") == Stop(ERROR)
    assert decided(failed_at=FailedAt.DESERIALIZER, on_error="dead_letter", retries=5) is Pass.DEAD_LETTER
    assert decided(failed_at=FailedAt.DESERIALIZER, on_error=lambda r, e, n: "retry") == Stop(ERROR)


def test_a_function_decides_with_record_error_and_attempt() -> None:
    seen = []

    def on_error(*told: Any) -> str:
        seen.append(told)
        return "retry" if told[2] < 3 else "skip"

    assert isinstance(decided(2, on_error=on_error), TryAgain)
    assert decided(3, on_error=on_error) is Pass.SKIP
    assert seen == [(record(7), ERROR, 2), (record(7), ERROR, 3)]


def test_a_function_that_fails_or_gives_nonsense_stops() -> None:
    failure = KeyError("x")

    def failing(*told: Any) -> str:
        raise failure

    assert decided(on_error=failing) == Stop(failure)
    stopped = decided(on_error=lambda r, e, n: "ignore")
    assert "expected on_error to give one of" in str(stopped.error)


def test_an_exit_is_meant_for_the_program() -> None:
    leaving = SystemExit(3)
    assert decided(error=leaving, on_error="skip", retries=9) == Stop(leaving)
