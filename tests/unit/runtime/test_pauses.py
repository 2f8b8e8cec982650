from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import pytest

from bus.runtime.logs import warn_of_pauses


@dataclass
class World:
    """`asyncio.sleep` takes `late_s` longer than it should, of which the loop's thread uses the processor for
    `used_s`; the second one ends the watch."""

    late_s: float
    used_s: float
    now_s: float = 100.0
    processor_s: float = 7.0
    sleeps: int = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == 2:
            raise asyncio.CancelledError
        self.now_s += seconds + self.late_s
        self.processor_s += self.used_s


@pytest.mark.parametrize(
    ("late_s", "used_s", "said"),
    [
        (0.4, 0.4, []),
        (
            0.8,
            0.7,
            [
                "the event loop did not run for 0.8 s and used the processor for 0.7 s meanwhile: a request or a task "
                "of the broker held it"
            ],
        ),
        (
            3.0,
            0.1,
            [
                "the event loop did not run for 3.0 s and used the processor for 0.1 s meanwhile: the process was "
                "stopped, or the machine is too busy"
            ],
        ),
    ],
)
def test_a_pause_is_told_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, late_s: float, used_s: float, said: list[str]
) -> None:
    world = World(late_s, used_s)
    monkeypatch.setattr(asyncio, "sleep", world.sleep)
    with caplog.at_level(logging.WARNING, "bus.runtime.logs"), contextlib.suppress(asyncio.CancelledError):
        asyncio.run(warn_of_pauses(lambda: world.now_s, lambda: world.processor_s))
    assert caplog.messages == said
