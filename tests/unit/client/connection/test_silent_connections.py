"""Silence of a connection on which a call waits for long, and the question that follows, under a clock of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bus.client.connection.broker_watch import PatientCall, SilentConnections

PATIENCE_MS = 15_000


@dataclass(eq=False)
class FakeConnection:
    heard_at_ms: float = 0.0


class Bench:
    """The machine, and a connection that was last heard of when the clock began."""

    def __init__(self) -> None:
        self.machine: SilentConnections[FakeConnection] = SilentConnections()
        self.connection = FakeConnection()
        self.given_up: list[str] = []

    def begin(self, name: str, now_ms: float, patience_ms: float = PATIENCE_MS) -> PatientCall[FakeConnection]:
        return self.machine.begin(self.connection, patience_ms, lambda: self.given_up.append(name), now_ms)

    def end_unanswered(self) -> None:
        for call in self.machine.note_unanswered(self.connection):
            call.give_up()


def test_connection_is_asked_when_nothing_has_come_for_as_long_as_the_call_has_patience() -> None:
    bench = Bench()
    assert bench.machine.next_event() == math.inf
    bench.begin("join", 1_000)
    assert bench.machine.next_event() == 1_000 + PATIENCE_MS
    assert bench.machine.tick(999 + PATIENCE_MS) == []
    assert bench.machine.tick(1_000 + PATIENCE_MS) == [(bench.connection, PATIENCE_MS)]
    assert bench.machine.next_event() == math.inf, "one question is under way at a time"
    assert bench.machine.tick(1_000_000) == []


def test_call_whose_connection_does_not_answer_a_question_is_given_up_within_twice_its_patience() -> None:
    bench = Bench()
    bench.begin("join", 0)
    bench.begin("sync", 5_000)
    ((_, timeout_ms),) = bench.machine.tick(PATIENCE_MS)
    assert PATIENCE_MS + timeout_ms == 2 * PATIENCE_MS
    bench.end_unanswered()
    assert sorted(bench.given_up) == ["join", "sync"]
    assert bench.machine.next_event() == math.inf


def test_call_that_takes_long_is_never_given_up_while_questions_are_answered() -> None:
    bench = Bench()
    bench.begin("join", 0)
    now_ms = 0.0
    for _ in range(20):
        now_ms = bench.machine.next_event()
        assert bench.machine.tick(now_ms)
        now_ms += 10
        bench.connection.heard_at_ms = now_ms
        bench.machine.note_settled(bench.connection)
        assert bench.machine.next_event() == now_ms + PATIENCE_MS
    assert bench.given_up == []


def test_anything_that_comes_meanwhile_answers_for_the_connection() -> None:
    bench = Bench()
    bench.begin("join", 0)
    bench.machine.tick(PATIENCE_MS)
    bench.connection.heard_at_ms = PATIENCE_MS + 1  # another answer; that to the question is late
    bench.end_unanswered()
    assert bench.given_up == []
    assert bench.machine.next_event() == 2 * PATIENCE_MS + 1


def test_connection_that_is_heard_of_for_other_reasons_is_not_asked() -> None:
    bench = Bench()
    bench.begin("join", 0)
    bench.connection.heard_at_ms = 14_000
    assert bench.machine.tick(PATIENCE_MS) == []
    assert bench.machine.next_event() == 14_000 + PATIENCE_MS


def test_connection_that_is_broken_is_not_asked_again_at_once() -> None:
    bench = Bench()
    bench.begin("join", 0)
    bench.machine.tick(PATIENCE_MS)
    bench.machine.note_settled(bench.connection)  # the question could not be asked
    assert bench.machine.next_event() == 2 * PATIENCE_MS


def test_nothing_is_asked_for_a_call_that_has_ended() -> None:
    bench = Bench()
    join = bench.begin("join", 0)
    bench.machine.tick(PATIENCE_MS)
    bench.machine.end(join)
    bench.machine.end(join)
    bench.end_unanswered()
    assert bench.given_up == []
    assert bench.machine.next_event() == math.inf


def test_least_patient_call_decides_when_its_connection_is_asked() -> None:
    bench = Bench()
    bench.begin("maintenance", 0, patience_ms=30_000)
    bench.begin("join", 1_000, patience_ms=2_000)
    assert bench.machine.tick(3_000) == [(bench.connection, 2_000)]
