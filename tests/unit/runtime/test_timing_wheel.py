from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.runtime.timing_wheel import SLOTS, TimingWheel


def expiries(wheel: TimingWheel[str]) -> dict[str, int]:
    """When each timer expires for a driver that sleeps until the next slot."""
    found: dict[str, int] = {}
    while (begin_ms := wheel.next_begin_ms) is not None:
        found |= dict.fromkeys(wheel.advance(begin_ms), begin_ms)
    return found


@pytest.mark.parametrize("after_ms", [0, 1, 19, 20, 21, 399, 400, 401, 7_999, 8_000, 45_000, 1_800_000, 10**9])
def test_timer_expires_exactly_at_its_deadline_in_whichever_wheel_it_lies(after_ms: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(now_ms=12_345)
    wheel.set("t", 12_345 + after_ms)
    assert expiries(wheel) == {"t": 12_345 + after_ms}
    assert len(wheel) == 0


def test_timer_does_not_expire_a_millisecond_early() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.set("t", 45_000)
    assert wheel.advance(44_999) == []
    assert "t" in wheel
    assert wheel.advance(45_000) == ["t"]
    assert "t" not in wheel


def test_moving_a_deadline_back_leaves_the_timer_in_its_slot() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.set("t", 45_000)
    begin_ms = wheel.next_begin_ms
    for now_ms in range(3_000, 30_000, 3_000):
        wheel.advance(now_ms)
        wheel.set("t", now_ms + 45_000)
        assert wheel.next_begin_ms == begin_ms
    assert expiries(wheel) == {"t": 27_000 + 45_000}


def test_earlier_deadline_counts() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.set("t", 45_000)
    wheel.set("t", 30)
    assert expiries(wheel) == {"t": 30}


def test_cancelled_timer_never_expires_and_wakes_nobody() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.set("a", 500)
    wheel.set("b", 9_000)
    wheel.cancel("a")
    wheel.cancel("unknown")
    assert wheel.next_begin_ms is not None
    assert wheel.next_begin_ms > 500
    assert expiries(wheel) == {"b": 9_000}


def test_deadline_in_the_past_expires_with_the_next_advance() -> None:
    wheel: TimingWheel[str] = TimingWheel(1_000)
    wheel.set("t", 10)
    assert wheel.next_begin_ms == 10
    assert wheel.advance(1_000) == ["t"]


def test_sleep_of_hours_wakes_the_driver_once_a_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    wheel.set("t", 3 * 3_600_000 + 7)
    wakes = 0
    while (begin_ms := wheel.next_begin_ms) is not None:
        wheel.advance(begin_ms)
        wakes += 1
    assert wakes <= 7, "20 ** 6 ms is more than three hours"


def test_number_of_slots_does_not_grow_with_the_number_of_timers() -> None:
    wheel: TimingWheel[int] = TimingWheel(0)
    for number in range(10_000):
        wheel.set(number, 1 + number * 9)
    assert len(wheel._slots) <= 4 * (SLOTS + 1)


deadlines = st.integers(0, 100_000)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), deadlines),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("advance"), st.just(0), st.integers(0, 20_000)),
    ),
    max_size=40,
)


@given(steps)
def test_wheel_expires_what_a_plain_dict_of_deadlines_does(steps: list[tuple[str, int, int]]) -> None:
    wheel: TimingWheel[int] = TimingWheel(0)
    model: dict[int, int] = {}
    now_ms = 0
    for action, key, number in steps:
        if action == "set":
            wheel.set(key, now_ms + number)
            model[key] = now_ms + number
        elif action == "cancel":
            wheel.cancel(key)
            model.pop(key, None)
        else:
            now_ms += number
            due = {name for name, deadline_ms in model.items() if deadline_ms <= now_ms}
            assert set(wheel.advance(now_ms)) == due
            model = {name: deadline_ms for name, deadline_ms in model.items() if name not in due}
        assert len(wheel) == len(model)
        begin_ms = wheel.next_begin_ms
        assert (begin_ms is None) == (not model)
        assert begin_ms is None or begin_ms <= min(model.values())
