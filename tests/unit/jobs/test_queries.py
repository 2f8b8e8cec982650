"""How a streaming job ends: between two batches, where a signal asks it to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.jobs.queries import follow


class FakeQuery:
    """A streaming query whose batch 0 is under way until `finish`. Each wait of the job is a step."""

    def __init__(self, steps: Iterator[None]) -> None:
        self.recentProgress: list[Any] = []
        self.status = {"isTriggerActive": True}
        self.is_stopped = False
        self._steps = steps

    def finish(self, batch_id: int) -> None:
        progress = SimpleNamespace(batchId=batch_id, numInputRows=5, sources=[])
        self.recentProgress.append(progress)

    def awaitTermination(self, timeout: float) -> bool:
        assert not self.is_stopped
        next(self._steps)
        return False

    def stop(self) -> None:
        self.is_stopped = True


class Told:
    """The lines of the job, which a test waits for, since signals reach it by a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        monkeypatch.setattr("bus.jobs.queries.tell", self._note)

    def _note(self, line: str) -> None:
        self.lines.append(line)

    def has(self, words: str) -> bool:
        return any(words in line for line in self.lines)


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def rows_of(query: FakeQuery) -> int:
    return follow(cast(Any, query))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_job_once_the_batch_under_way_is_written(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)

    def steps() -> Iterator[None]:
        signal.raise_signal(number)
        while not told.has("ending once the batch under way is written"):
            yield  # the signal is on its way
        for _ in range(3):
            yield  # the batch goes on
        query.finish(0)
        yield
        raise AssertionError("another batch was waited for")

    query = FakeQuery(steps())
    assert rows_of(query) == 5
    assert query.is_stopped
    assert told.lines[0].startswith(f"{number.name}: ")


def test_signal_between_two_batches_ends_a_job_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)

    def steps() -> Iterator[None]:
        query.status = {"isTriggerActive": False}
        signal.raise_signal(signal.SIGTERM)
        while not told.has("SIGTERM"):
            yield
        raise AssertionError("a batch was waited for")

    query = FakeQuery(steps())
    assert rows_of(query) == 0
    assert query.is_stopped


def test_second_signal_gives_up_the_batch_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)

    def steps() -> Iterator[None]:
        signal.raise_signal(signal.SIGTERM)
        while not told.has("SIGTERM"):
            yield
        signal.raise_signal(signal.SIGTERM)
        while True:
            yield

    query = FakeQuery(steps())
    assert rows_of(query) == 0
    assert query.is_stopped


def test_hangup_that_the_process_was_started_to_ignore_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)

    def steps() -> Iterator[None]:
        signal.raise_signal(signal.SIGHUP)
        yield
        signal.raise_signal(signal.SIGTERM)
        while not told.has("SIGTERM"):
            yield
        query.finish(0)
        yield

    query = FakeQuery(steps())
    with handled(signal.SIGHUP, signal.SIG_IGN):
        rows_of(query)
    assert not told.has("SIGHUP")
