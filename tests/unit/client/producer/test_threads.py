from __future__ import annotations

import math
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bus.client.producer.connections import RefreshTopics
from bus.client.producer.threads import ProducerThreads


def test_keeper_that_is_about_to_sleep_when_the_producer_is_closed_ends() -> None:
    threads: Any = object.__new__(ProducerThreads)

    class Wake(threading.Event):
        def clear(self) -> None:
            threads.is_closed = True  # `close` comes just now
            self.set()
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            raise AssertionError("nobody would ever wake it")

    threads.is_closed = False
    threads._wake = Wake()
    threads.engine = SimpleNamespace(tick=lambda: math.inf)
    threads._keep()


def test_calls_are_made_though_the_thread_for_them_could_not_be_started_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads: Any = object.__new__(ProducerThreads)
    threads._runner, threads._errands = None, queue.SimpleQueue()
    run: list[object] = []
    threads._run = run.append
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            threads._run_errand(RefreshTopics(("a",)))
    threads._run_errand(RefreshTopics(("b",)))
    threads._errands.put(None)
    threads._runner.join(20)
    assert run == [RefreshTopics(("b",))]
