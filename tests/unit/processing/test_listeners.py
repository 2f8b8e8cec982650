from __future__ import annotations

import threading

import pytest

import bus
from bus.processing import listeners


def test_listeners_end_together_though_one_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail_at_the_second(thread: threading.Thread) -> None:
        if thread.name == "bus-listener-second":
            raise RuntimeError("can't start new thread")
        start(thread)

    def first(record: object) -> None: ...

    def second(record: object) -> None: ...

    first.__qualname__, second.__qualname__ = "first", "second"
    monkeypatch.setattr(listeners, "_listeners", [])
    handlers = [bus.listener("orders", group_id="g")(one) for one in (first, second)]
    monkeypatch.setattr(threading.Thread, "start", fail_at_the_second)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        bus.run_listeners("127.0.0.1:1", handlers)
    assert not [thread for thread in threading.enumerate() if thread.name == "bus-listener-first"]
