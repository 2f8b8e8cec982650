"""The meter of a rate against a naive one that keeps every amount for ever, and what it promises to obeying clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.security.quota_usage import WAIT_S_MAX, RateMeter, TokenBucket, Windows

WINDOWS = st.builds(Windows, st.integers(2, 12), st.sampled_from([0.5, 1.0, 3.0]))
# Quarters are exact, so that two ways of adding agree at the borders of windows.
PAUSES = st.integers(0, 60).map(lambda quarters: quarters / 4)
AMOUNTS = st.integers(0, 1000)


def naive_rate(events: list[tuple[float, float]], windows: Windows, now_s: float) -> float:
    """Return the rate by the definition: samples of a window each, those that began less than all windows ago, over at
    least all windows but one."""
    samples: list[list[float]] = []
    for at_s, amount in events:
        if not samples or at_s >= samples[-1][0] + windows.size_s:
            samples.append([at_s, 0.0])
        samples[-1][1] += amount
    live = [sample for sample in samples if now_s - sample[0] < windows.count * windows.size_s]
    if not live:
        return 0.0
    span_s = now_s - live[0][0]
    while span_s < (windows.count - 1) * windows.size_s:
        span_s += windows.size_s
    return sum(amount for _, amount in live) / span_s


@given(WINDOWS, st.lists(st.tuples(PAUSES, AMOUNTS), max_size=60), PAUSES)
def test_rate_is_that_of_a_naive_meter(windows: Windows, events: list[tuple[float, int]], last_pause: float) -> None:
    meter, now_s, told = RateMeter(windows), 0.0, []
    for pause, amount in events:
        now_s += pause
        meter.record(amount, now_s)
        told.append((now_s, float(amount)))
        assert meter.rate(now_s) == pytest.approx(naive_rate(told, windows, now_s))
    assert meter.rate(now_s + last_pause) == pytest.approx(naive_rate(told, windows, now_s + last_pause))


@given(WINDOWS, st.integers(1, 500), st.lists(st.tuples(PAUSES, AMOUNTS), max_size=60))
def test_client_that_waits_as_told_uses_no_more_than_its_quota(
    windows: Windows, limit: int, events: list[tuple[float, int]]
) -> None:
    """But for what an idle one may use at once, and the amount with which it went over."""
    meter, now_s, used = RateMeter(windows), 0.0, 0
    for pause, amount in events:
        now_s += pause + meter.wait_s(limit, now_s)
        assert used <= limit * (now_s + windows.burst_s + windows.size_s) + 1e-6
        used += amount
        meter.record(amount, now_s)


@given(WINDOWS, st.integers(1, 50), st.lists(st.tuples(PAUSES, st.integers(0, 200)), max_size=60))
def test_bucket_gives_no_more_than_its_rate_and_what_it_holds(
    windows: Windows, limit: int, events: list[tuple[float, int]]
) -> None:
    bucket, now_s, taken = TokenBucket(windows), 0.0, 0.0
    for pause, count in events:
        now_s += pause
        if bucket.wait_s(limit, now_s) == 0:
            assert taken <= limit * (now_s + windows.count * windows.size_s) + 1e-6
            bucket.take(count, limit, now_s)
            taken += count


@pytest.mark.parametrize("limit", [5e-324, 1e-320, 1e-300, 0.001])
def test_the_smallest_quota_is_waited_for_for_a_time_that_can_be_told(limit: float) -> None:
    meter, bucket = RateMeter(Windows()), TokenBucket(Windows())
    meter.record(1e9, 0.0)
    bucket.take(1e9, limit, 0.0)
    for wait_s in (meter.wait_s(limit, 0.0), bucket.wait_s(limit, 0.0)):
        assert 0 < wait_s <= WAIT_S_MAX
        assert round(wait_s * 1000) < 2**31
