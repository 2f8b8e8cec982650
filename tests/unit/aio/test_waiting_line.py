from __future__ import annotations

import threading

import pytest

from bus.aio.producer import WaitingLine

WAIT_S = 20


class Gate:
    """A call that goes on when it is told to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_S)


def never() -> None:
    raise AssertionError("must not be called")


def test_calls_are_made_in_order_on_one_thread() -> None:
    line, gate = WaitingLine(), Gate()
    made: list[tuple[int, int]] = []
    line.join(gate, never)
    for number in range(100):
        line.join(lambda number=number: made.append((number, threading.get_ident())), never)  # type: ignore[misc]
    gate.opened.set()
    line.mark().result(WAIT_S)
    assert [number for number, _ in made] == list(range(100))
    assert len({thread for _, thread in made} - {threading.get_ident()}) == 1
    line.end()


def test_length_counts_the_call_that_is_being_made() -> None:
    line, gate = WaitingLine(), Gate()
    assert line.length == 0
    line.join(gate, never)
    assert gate.entered.wait(WAIT_S)
    line.join(lambda: None, never)
    assert line.length == 2
    gate.opened.set()
    line.mark().result(WAIT_S)
    line.end()


def test_mark_waits_for_those_before_it_only() -> None:
    line, gate, later = WaitingLine(), Gate(), Gate()
    assert line.mark().done()
    line.join(gate, never)
    marker = line.mark()
    line.join(later, never)
    assert not marker.done()
    gate.opened.set()
    marker.result(WAIT_S)
    assert not later.opened.is_set()
    later.opened.set()
    line.mark().result(WAIT_S)
    line.end()


def test_line_that_was_served_serves_again() -> None:
    line = WaitingLine()
    for _ in range(50):
        made = threading.Event()
        line.join(made.set, never)
        assert made.wait(WAIT_S)
    line.end()


def test_end_abandons_who_still_waits_and_the_call_being_made_goes_on() -> None:
    line, gate = WaitingLine(), Gate()
    abandoned: list[str] = []
    line.join(gate, never)
    assert gate.entered.wait(WAIT_S)
    line.join(never, lambda: abandoned.append("a"))
    marker = line.mark()
    line.join(never, lambda: abandoned.append("b"))
    line.end()
    assert abandoned == ["a", "b"]
    assert marker.done()
    gate.opened.set()


def test_call_that_fails_leaves_the_others_their_turn(caplog: pytest.LogCaptureFixture) -> None:
    line = WaitingLine()
    made = threading.Event()
    line.join(never, never)
    line.join(made.set, never)
    assert made.wait(WAIT_S)
    line.mark().result(WAIT_S)
    assert "must not be called" in caplog.text
    line.end()
