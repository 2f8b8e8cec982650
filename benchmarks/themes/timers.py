"""The timing wheel beside asyncio's own heap, with the load of a group coordinator: many timers, mostly moved.

100,000 members with a session of 45 s and a heartbeat each 3 s, over minutes of their life. Time is counted, not
waited for: what is measured is the processor time of setting, moving and expiring. asyncio's loop is a real one whose
clock is moved by hand. Its timers are moved in two ways: cancelled and set anew, as asyncio is used as a rule; and left
alone until they fire, when they look at their deadline, which is the wheel's own trick on a heap.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.figure import Figure
from bus.runtime.timing_wheel import TimingWheel

_SESSION_MS = 45_000
_HEARTBEAT_MS = 3_000
_STEP_MS = 100  # the loop turns so often
_DEAD_SHARE = 100  # one member in so many falls silent at once


def measure_timers(bench: Bench) -> list[Figure]:
    members, life_ms = bench.sizes.timers, bench.sizes.timers_life_ms
    runs: dict[str, list[float]] = {"wheel": [], "cancel": [], "lazy": []}
    for number in range(bench.sizes.rounds):
        for name, run in (("wheel", _run_wheel), ("cancel", _run_cancelled), ("lazy", _run_lazy)):
            gc.collect()
            runs[name].append(run(members, life_ms))
        bench.report(f"timers, round {number + 1}: " + ", ".join(f"{name} {r[-1]:.2f} µs" for name, r in runs.items()))
    note = f"{members:,} timers of {_SESSION_MS // 1000} s, moved each {_HEARTBEAT_MS // 1000} s"
    return [
        Figure("timers-wheel", "timing wheel, processor time of moving a timer", "µs", runs["wheel"], note=note),
        Figure("timers-cancel", "... asyncio: call_later and cancel", "µs", runs["cancel"], note=note),
        Figure("timers-lazy", "... asyncio: call_at that looks at the deadline", "µs", runs["lazy"], note=note),
    ]


class _HandLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, its heap and its turn; only the clock is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def turn(self, now_s: float) -> None:
        self.now_s = now_s
        self.call_soon(self.stop)
        self.run_forever()


def _live(members: int, life_ms: int, move: Callable[[int, int], None], advance: Callable[[int], None]) -> float:
    """Microseconds of processor time for each heartbeat; the heartbeats are spread evenly over time."""
    for member in range(members):
        move(member, 0)
    heartbeats = 0
    started = time.process_time()
    for now_ms in range(_STEP_MS, life_ms, _STEP_MS):
        turn = (now_ms // _STEP_MS) % (_HEARTBEAT_MS // _STEP_MS)
        for member in range(turn, members, _HEARTBEAT_MS // _STEP_MS):
            if member % _DEAD_SHARE:
                move(member, now_ms)
                heartbeats += 1
        advance(now_ms)
    return (time.process_time() - started) * 1e6 / heartbeats


def _check(expired: int, members: int) -> None:
    dead = len(range(0, members, _DEAD_SHARE))
    assert expired == dead, f"expected the {dead} silent members to expire, found {expired}"


def _run_wheel(members: int, life_ms: int) -> float:
    wheel: TimingWheel[int] = TimingWheel(0)
    expired = 0

    def advance(now_ms: int) -> None:
        nonlocal expired
        begin_ms = wheel.next_begin_ms
        if begin_ms is not None and begin_ms <= now_ms:
            expired += len(wheel.advance(now_ms))

    def move(member: int, now_ms: int) -> None:
        wheel.set(member, now_ms + _SESSION_MS)

    cost = _live(members, life_ms, move, advance)
    _check(expired, members)
    return cost


def _run_cancelled(members: int, life_ms: int) -> float:
    loop = _HandLoop()
    handles: dict[int, asyncio.TimerHandle] = {}
    expired = 0

    def expire(member: int) -> None:
        nonlocal expired
        expired += 1
        del handles[member]

    def move(member: int, now_ms: int) -> None:
        handle = handles.get(member)
        if handle is not None:
            handle.cancel()
        handles[member] = loop.call_at((now_ms + _SESSION_MS) / 1000, expire, member)

    try:
        cost = _live(members, life_ms, move, lambda now_ms: loop.turn(now_ms / 1000))
        _check(expired, members)
        return cost
    finally:
        loop.close()


def _run_lazy(members: int, life_ms: int) -> float:
    loop = _HandLoop()
    deadlines: dict[int, float] = {}
    expired = 0

    def look(member: int) -> None:
        nonlocal expired
        deadline = deadlines[member]
        if deadline <= loop.now_s:
            expired += 1
            del deadlines[member]
        else:
            loop.call_at(deadline, look, member)

    def move(member: int, now_ms: int) -> None:
        is_new = member not in deadlines
        deadlines[member] = (now_ms + _SESSION_MS) / 1000
        if is_new:
            loop.call_at(deadlines[member], look, member)

    try:
        cost = _live(members, life_ms, move, lambda now_ms: loop.turn(now_ms / 1000))
        _check(expired, members)
        return cost
    finally:
        loop.close()
