from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from bus.runtime.timing_wheel import Timers


class FakeHandle:
    def __init__(self, when: float, call: Callable[[], Any]) -> None:
        self.when = when
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """Time that a test moves; calls what is due."""

    def __init__(self) -> None:
        self.now = 100.0004
        self.handles: list[FakeHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], Any]) -> FakeHandle:
        self.handles.append(FakeHandle(when, call))
        return self.handles[-1]

    @property
    def waiting(self) -> list[FakeHandle]:
        return [handle for handle in self.handles if not handle.is_cancelled]

    def pass_ms(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            self.now += 0.001
            for handle in [handle for handle in self.waiting if handle.when <= self.now]:
                handle.cancel()
                handle.call()


def make() -> tuple[Timers[str], FakeLoop, list[str]]:
    loop = FakeLoop()
    expired: list[str] = []
    return Timers(expired.append, cast(asyncio.AbstractEventLoop, loop)), loop, expired


def test_timer_expires_after_its_time_and_not_before() -> None:
    timers, loop, expired = make()
    timers.set("session", 6_000)
    loop.pass_ms(5_999)
    assert expired == []
    loop.pass_ms(2)
    assert expired == ["session"]


def test_moved_timer_expires_at_its_last_deadline() -> None:
    timers, loop, expired = make()
    timers.set("session", 6_000)
    for _ in range(4):
        loop.pass_ms(3_000)
        timers.set("session", 6_000)
    loop.pass_ms(5_999)
    assert expired == []
    loop.pass_ms(2)
    assert expired == ["session"]


def test_thousand_timers_have_one_call_in_the_loop() -> None:
    timers, loop, _ = make()
    for number in range(1_000):
        timers.set(f"session {number}", 45_000 + number)
    assert len(loop.waiting) == 1


def test_earlier_timer_wakes_the_driver_earlier() -> None:
    timers, loop, expired = make()
    timers.set("late", 60_000)
    timers.set("early", 5)
    loop.pass_ms(7)
    assert expired == ["early"]
    assert "late" in timers


def test_what_expires_may_set_timers_anew() -> None:
    loop = FakeLoop()
    rounds: list[str] = []

    def on_expired(key: str) -> None:
        rounds.append(key)
        timers.set(key, 10)

    timers = Timers(on_expired, cast(asyncio.AbstractEventLoop, loop))
    timers.set("again", 10)
    loop.pass_ms(40)
    assert len(rounds) == 3


def test_nothing_expires_after_close() -> None:
    timers, loop, expired = make()
    timers.set("session", 10)
    timers.close()
    loop.pass_ms(100)
    assert expired == []
    assert loop.waiting == []
