from __future__ import annotations

import re
import threading
from typing import Any

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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 3}, "found 'threads'; did you mean 'workers'?"),
        ({"concurency": 3}, "expected a known option of a listener, found 'concurency'; did you mean 'concurrency'?"),
        ({"auto_offset_rest": "latest"}, "; did you mean 'auto_offset_reset'?"),
    ],
)
def test_an_option_that_a_listener_does_not_have_is_refused_with_the_one_that_was_meant(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(bus.BusError, match=re.escape(message)):
        bus.listener("orders", group_id="g", **settings)


def test_partitions_of_a_pattern_are_refused() -> None:
    with pytest.raises(bus.BusError, match="expected topics by their names beside them, found a pattern"):
        bus.listener(pattern="o.*", group_id="g", partitions=[0])


def test_an_option_of_a_listener_is_refused_where_all_are_run() -> None:
    with pytest.raises(bus.BusError, match=r"workers: expected this option of a listener in its @bus.listener"):
        bus.run_listeners("127.0.0.1:1", workers=3)


def test_listeners_whose_consumers_would_share_a_transactional_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_listeners", [])
    bus.listener("a", group_id="g", transactional_id="t", concurrency=2)(lambda record, output: None)
    bus.listener("b", group_id="g", transactional_id="t-2")(lambda record, output: None)
    with pytest.raises(bus.BusError, match="expected a transactional_id of its own for each listener, found 't-2'"):
        bus.run_listeners("127.0.0.1:1")
