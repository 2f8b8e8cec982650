"""A broker is told to stop by a signal, whatever it is doing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import bus.broker
from bus.config.broker import BrokerConfig


class JoiningBroker:
    """Waits for a controller that never answers."""

    def __init__(self, config: BrokerConfig) -> None:
        self.is_abandoned = False

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            self.is_abandoned = True


def test_broker_that_waits_to_join_ends_at_the_first_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = JoiningBroker(BrokerConfig())
    monkeypatch.setattr(bus.broker, "Broker", lambda config: broker)
    monkeypatch.setattr(bus.broker, "tune_process", lambda: None)
    bus.broker.run_broker(BrokerConfig(), on_ready=lambda _: pytest.fail("it never served"))
    assert broker.is_abandoned
