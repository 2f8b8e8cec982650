from __future__ import annotations

import threading
from concurrent.futures import wait

from bus.aio.producer import WaitingLines

WAIT_S = 20


def never() -> None:
    raise AssertionError("must not be called")


def test_calls_of_a_topic_keep_their_order_and_another_topic_does_not_wait_for_them() -> None:
    lines, gate, other = WaitingLines(), threading.Event(), threading.Event()
    made: list[int] = []
    lines.join("late", lambda: gate.wait(WAIT_S), never)
    for number in range(20):
        lines.join("late", lambda number=number: made.append(number), never)  # type: ignore[misc]
    assert not lines.has("t")
    lines.join("t", other.set, never)
    assert other.wait(WAIT_S)
    assert made == []
    assert lines.has("late")
    assert lines.length >= 21
    gate.set()
    wait(lines.mark(), WAIT_S)
    assert made == list(range(20))
    assert not lines.has("late")
    lines.end()


def test_topics_beyond_the_last_line_share_one() -> None:
    lines, gate = WaitingLines(lines_max=2), threading.Event()
    made: list[str] = []
    for topic in ("a", "b"):
        lines.join(topic, lambda: gate.wait(WAIT_S), never)
    for topic in ("c", "a", "c", "b"):
        lines.join(topic, lambda topic=topic: made.append(topic), never)  # type: ignore[misc]
    gate.set()
    wait(lines.mark(), WAIT_S)
    assert sorted(made) == ["a", "b", "c", "c"]
    lines.end()


def test_end_abandons_who_waits_in_any_line() -> None:
    lines, gate, entered = WaitingLines(), threading.Event(), threading.Semaphore(0)
    abandoned: list[str] = []
    for topic in ("a", "b"):
        lines.join(topic, lambda: (entered.release(), gate.wait(WAIT_S)), never)
        assert entered.acquire(timeout=WAIT_S)
        lines.join(topic, never, lambda topic=topic: abandoned.append(topic))  # type: ignore[misc]
    markers = lines.mark()
    lines.end()
    assert abandoned == ["a", "b"]
    assert all(marker.done() for marker in markers)
    gate.set()
