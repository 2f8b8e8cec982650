"""The thread that has silent brokers and silent connections asked."""

from __future__ import annotations

import queue
from typing import Any

from bus.client.connection.broker_watch import BrokerWatch

WAIT_S = 20.0


class FakeConnection:
    address = "a:1"
    heard_at_ms = 0.0


def test_connection_is_asked_again_where_a_question_could_not_be_sent() -> None:
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    given_up: list[str] = []

    def fail(connection: Any, timeout_ms: float) -> None:
        asked.put(connection)
        raise RuntimeError("can't start new thread")

    watch = BrokerWatch(ask=lambda: None, give_up=given_up.append, ask_on=fail)
    connection: Any = FakeConnection()
    watch.begin_patient(connection, 1, lambda: given_up.append("call"))
    assert [asked.get(timeout=WAIT_S) for _ in range(2)] == [connection] * 2
    watch.close()
    assert given_up == []
