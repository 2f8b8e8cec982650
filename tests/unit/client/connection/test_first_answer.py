from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bus.client.connection.retrying import Cancel, first_answer
from bus.errors import BusError, ErrorCode

AWAY = BusError(ErrorCode.NETWORK_EXCEPTION, "away")
REFUSED = BusError(ErrorCode.INVALID_REQUEST, "no")


class Brokers:
    """`answers`: by address what a broker says at once; the others say nothing until `late` is called."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.waiting: dict[str, Callable[[Any], None]] = {}
        self.late: Callable[[str], None] = lambda address: None

    def start(self, address: str, on_done: Callable[[Any], None]) -> Cancel:
        self.asked.append(address)
        self.waiting[address] = on_done
        if address in self.answers:
            on_done(self.answers[address])
        self.late(address)
        return lambda: self.cancelled.append(address)

    def ask(self, *addresses: str) -> Any:
        return first_answer(
            addresses,
            self.start,
            may_ask_next=lambda error: error.code is ErrorCode.NETWORK_EXCEPTION,
            patience_ms=1,
        )


def test_first_broker_that_answers_is_the_only_one_that_is_asked() -> None:
    brokers = Brokers({"a": "from a", "b": "from b"})
    assert brokers.ask("a", "b") == "from a"
    assert brokers.asked == ["a"]


def test_broker_that_cannot_be_reached_has_the_next_one_asked() -> None:
    brokers = Brokers({"a": AWAY, "b": "from b"})
    assert brokers.ask("a", "b", "c") == "from b"
    assert brokers.asked == ["a", "b"]


def test_refusal_that_another_broker_would_repeat_is_the_answer() -> None:
    brokers = Brokers({"a": REFUSED, "b": "from b"})
    with pytest.raises(BusError, match="no"):
        brokers.ask("a", "b")
    assert brokers.asked == ["a"]


def test_silent_broker_has_the_next_one_asked_beside_it_and_is_let_go() -> None:
    brokers = Brokers({"b": "from b"})
    assert brokers.ask("a", "b") == "from b"
    assert brokers.cancelled == ["a", "b"]


def test_slow_broker_may_still_be_the_first_to_answer() -> None:
    brokers = Brokers({"b": AWAY})
    brokers.late = lambda address: brokers.waiting["a"]("from a") if address == "b" else None
    assert brokers.ask("a", "b") == "from a"


def test_last_error_is_raised_when_all_have_failed() -> None:
    brokers = Brokers({"a": AWAY, "b": AWAY})
    with pytest.raises(BusError, match="away"):
        brokers.ask("a", "b")
    assert brokers.asked == ["a", "b"]


def test_three_brokers_at_most_are_asked_at_a_time() -> None:
    brokers = Brokers({})

    def settle(address: str) -> None:
        if address == "c":
            brokers.waiting["b"](AWAY)
        if address == "d":
            assert len(brokers.waiting) == 4
            brokers.waiting["a"]("from a")

    brokers.late = settle
    assert brokers.ask("a", "b", "c", "d", "e") == "from a"
    assert brokers.asked == ["a", "b", "c", "d"]
