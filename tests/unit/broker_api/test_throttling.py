"""How long a producer is asked to wait follows from what was refused and how fast the queue drained."""

from __future__ import annotations

import pytest

from bus.broker_api.client_quotas import THROTTLE_MS_MAX, THROTTLE_MS_MIN, THROTTLE_MS_UNKNOWN, DrainRates

MB = 1_000_000


def steady(bytes_per_s: int) -> tuple[DrainRates, float]:
    """After five seconds of a steady flow, through which one is refused now and then: so it is being watched."""
    rates = DrainRates()
    for tick in range(500):
        rates.throttle_ms("t-0", 1, tick / 100)
        rates.add_drained("t-0", bytes_per_s // 100, tick / 100)
    return rates, 5.0


@pytest.mark.parametrize(("refused", "wait_ms"), [(MB, 100), (5 * MB, 500)])
def test_wait_is_what_the_queue_takes_to_drain_so_much(refused: int, wait_ms: int) -> None:
    rates, now_s = steady(10 * MB)
    assert rates.throttle_ms("t-0", refused, now_s) == pytest.approx(wait_ms, rel=0.03)


def test_those_who_were_refused_before_are_waited_for_too() -> None:
    rates, now_s = steady(10 * MB)
    waits = [rates.throttle_ms("t-0", MB, now_s + place / 1000) for place in range(4)]
    assert waits == sorted(waits)
    assert waits[3] == pytest.approx(4 * waits[0], rel=0.03)


def test_wait_is_bounded_at_both_ends() -> None:
    rates, now_s = steady(10 * MB)
    assert rates.throttle_ms("t-0", 10, now_s) == THROTTLE_MS_MIN
    assert rates.throttle_ms("t-0", 500 * MB, now_s) == THROTTLE_MS_MAX


def test_first_one_is_told_a_guess_and_the_next_ones_what_was_seen_since() -> None:
    rates = DrainRates()
    rates.add_drained("t-0", 100 * MB, 0.0)  # nobody is interested
    assert rates.throttle_ms("t-0", MB, 1.0) == THROTTLE_MS_UNKNOWN
    assert rates.throttle_ms("t-0", MB, 1.0) == THROTTLE_MS_MAX, "nothing drained since"
    rates.add_drained("t-0", 10 * MB, 1.01)
    assert rates.throttle_ms("t-0", MB, 1.01) == pytest.approx(300, rel=0.03)


def test_queue_that_stopped_draining_is_soon_known_to() -> None:
    rates, now_s = steady(10 * MB)
    before = rates.throttle_ms("t-0", MB, now_s)
    assert rates.throttle_ms("t-0", MB, now_s + 2) > 5 * before
    assert rates.throttle_ms("t-0", MB, now_s + 10_000) == THROTTLE_MS_MAX


def test_partition_that_refused_nobody_for_long_is_watched_no_more() -> None:
    rates, now_s = steady(10 * MB)
    rates.add_drained("t-0", MB, now_s + 100)
    assert rates.throttle_ms("t-0", MB, now_s + 100) == THROTTLE_MS_UNKNOWN
