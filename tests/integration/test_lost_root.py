"""A root that is lost while its broker stops."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

import bus.broker
from bus.broker import Broker, run_broker
from bus.errors import RootLost
from bus.settings.broker import BrokerConfig


def test_broker_whose_root_is_lost_while_it_stops_ends_with_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus.broker, "tune_process", lambda **_: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)

    def lose(_: Broker) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        (tmp_path / "root").rename(tmp_path / "renamed")

    with pytest.raises(RootLost, match="the folder was removed"):
        run_broker(BrokerConfig(root=str(tmp_path / "root"), listen="127.0.0.1:0"), on_ready=lose)
