"""A broker is told to stop by a signal, whatever it is doing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import bus.broker
from bus.settings.broker import BrokerConfig


class JoiningBroker:
    """Waits for a controller that never answers. Meanwhile its process gets signals."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self.is_abandoned = False

    async def start(self) -> None:
        self.handler_of_sighup = signal.getsignal(signal.SIGHUP)
        for number in self._numbers:
            os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            self.is_abandoned = True


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([signal.SIGTERM], id="SIGTERM"),
        pytest.param([signal.SIGHUP], id="SIGHUP"),
        pytest.param([signal.SIGHUP, signal.SIGHUP], id="SIGHUP twice, as of a terminal that is closed"),
        pytest.param([signal.SIGTERM, signal.SIGHUP], id="SIGTERM and SIGHUP, as of systemd with SendSIGHUP"),
    ],
)
def test_broker_that_waits_to_join_ends_at_the_first_signal(
    monkeypatch: pytest.MonkeyPatch, numbers: list[signal.Signals]
) -> None:
    broker = JoiningBroker(*numbers)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    _run(broker, monkeypatch)
    assert broker.is_abandoned
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_broker_that_was_started_by_nohup_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        broker = JoiningBroker(signal.SIGTERM)
        _run(broker, monkeypatch)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert broker.handler_of_sighup is signal.SIG_IGN


def _run(broker: JoiningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus.broker, "Broker", lambda config: broker)
    monkeypatch.setattr(bus.broker, "tune_process", lambda **_: None)
    bus.broker.run_broker(BrokerConfig(), on_ready=lambda _: pytest.fail("it never served"))
