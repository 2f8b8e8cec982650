from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

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
