from __future__ import annotations

import logging
from typing import Any

import pytest

from bus.client.interceptors import InterceptorChain, ProducerRecord, asks_for, close_all
from bus.client.values import RecordMetadata
from bus.errors import BusError, ErrorCode

RECORD = ProducerRecord("orders", value="v")
METADATA = RecordMetadata("orders", 0, 7, 1_000, 3)
ERROR = BusError(ErrorCode.MESSAGE_TOO_LARGE, "found 9")


class Interceptor:
    """Appends its mark to the value; `broken` names the methods that raise."""

    def __init__(self, mark: str, calls: list[Any], *broken: str) -> None:
        self.mark = mark
        self.calls = calls
        self.broken = broken

    def _note(self, method: str, *arguments: Any) -> None:
        self.calls.append((self.mark, method, *arguments))
        if method in self.broken:
            raise RuntimeError(f"{self.mark} is broken")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self._note("on_send", record.value)
        return record._replace(value=record.value + self.mark)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self._note("on_acknowledgement", metadata, error)

    def close(self) -> None:
        self._note("close")


class Done:
    def __init__(self, place: RecordMetadata, error: BusError | None = None) -> None:
        self._place = place
        self._error = error

    def place(self) -> RecordMetadata:
        return self._place

    def exception(self) -> BusError | None:
        return self._error


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def chain_of(*broken: tuple[str, ...], clock: Clock | None = None) -> tuple[InterceptorChain, list[Any]]:
    calls: list[Any] = []
    interceptors = [Interceptor(mark, calls, *methods) for mark, methods in zip("abc", broken, strict=False)]
    return InterceptorChain(interceptors, clock or Clock()), calls


def test_each_gets_what_the_one_before_it_made() -> None:
    chain, calls = chain_of((), (), ())
    assert chain.on_send(RECORD) == ProducerRecord("orders", value="vabc")
    assert calls == [("a", "on_send", "v"), ("b", "on_send", "va"), ("c", "on_send", "vab")]


def test_record_passes_a_broken_one_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    chain, calls = chain_of((), ("on_send",), ())
    assert chain.on_send(RECORD).value == "vac"
    assert calls[-1] == ("c", "on_send", "va")
    assert "interceptor Interceptor: on_send failed" in caplog.text
    assert "b is broken" in caplog.text


@pytest.mark.parametrize("answer", [None, ("orders", "v", None, None, None, None), "v"])
def test_answer_that_is_no_record_counts_as_broken(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []
    first, second = Interceptor("a", calls), Interceptor("b", calls)
    first.on_send = lambda record: answer  # type: ignore[method-assign]
    assert InterceptorChain([first, second]).on_send(RECORD).value == "vb"
    assert f"found {type(answer).__name__}" in caplog.text


def test_all_learn_of_the_outcome_whoever_is_broken() -> None:
    chain, calls = chain_of(("on_acknowledgement",), ())
    nowhere = RecordMetadata("orders", -1, -1, -1, -1)
    in_partition = RecordMetadata("orders", 2, -1, -1, -1)
    chain.callback_for(RECORD)(Done(METADATA))
    chain.callback_for(RECORD)(Done(in_partition, ERROR))
    chain.on_send_error(RECORD, ERROR)
    chain.on_send_error(RECORD._replace(partition=2), ERROR)
    outcomes = [(METADATA, None), (in_partition, ERROR), (nowhere, ERROR), (in_partition, ERROR)]
    assert calls == [(mark, "on_acknowledgement", *outcome) for outcome in outcomes for mark in "ab"]


def test_one_that_asks_for_the_record_gets_it() -> None:
    class Asking(Interceptor):
        def on_acknowledgement(  # type: ignore[override]
            self, metadata: RecordMetadata, error: Exception | None, record: ProducerRecord
        ) -> None:
            self._note("on_acknowledgement", metadata.offset, record)

    calls: list[Any] = []
    chain = InterceptorChain([Interceptor("a", calls), Asking("b", calls)], Clock())
    chain.callback_for(RECORD)(Done(METADATA))
    chain.on_send_error(RECORD, ERROR)
    assert calls[1::2] == [("b", "on_acknowledgement", 7, RECORD), ("b", "on_acknowledgement", -1, RECORD)]


def test_all_are_closed_whoever_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    chain, calls = chain_of(("close",), ())
    chain.close()
    assert calls == [("a", "close"), ("b", "close")]
    assert "a is broken" in caplog.text


def test_one_that_breaks_for_every_record_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    chain, _ = chain_of(("on_send", "on_acknowledgement"), clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            chain.on_send(RECORD)
        assert len(caplog.records) == 1
        chain.callback_for(RECORD)(Done(METADATA))  # another method has a report of its own
        assert len(caplog.records) == 2
        clock.now += 30.0
        chain.on_send(RECORD)
        assert "999 more times" in caplog.records[2].getMessage()
        clock.now += 30.0
        chain.on_send(RECORD)
        assert "more times" not in caplog.records[3].getMessage()


def test_empty_chain_is_false_and_changes_nothing() -> None:
    chain = InterceptorChain([])
    assert not chain
    assert chain.on_send(RECORD) is RECORD
    assert InterceptorChain([Interceptor("a", [])])


def test_interrupt_of_the_users_thread_is_not_swallowed() -> None:
    class Interrupted(Interceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InterceptorChain([Interrupted("a", [])]).on_send(RECORD)


class Closing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = errors
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        for error in self.errors:
            raise error


def test_each_is_closed_once_whoever_fails(caplog: pytest.LogCaptureFixture) -> None:
    clinging, shared = Closing(OSError("held")), Closing()
    with caplog.at_level(logging.ERROR):
        close_all({"key_serializer": clinging, "value_serializer": shared, "partitioner": shared, "other": None})
    assert (clinging.closed, shared.closed) == (1, 1)
    assert "closing key_serializer failed" in caplog.text
    assert "held" in caplog.text


def test_functions_and_classes_are_not_closed() -> None:
    close_all({"key_serializer": len, "value_serializer": Closing, "partitioner": "round_robin"})


def test_parameter_that_can_be_given_by_name_is_asked_for() -> None:
    def takes_everything(*args: Any, **kwargs: Any) -> None: ...

    assert asks_for(lambda topic, available: 0, "available")
    assert asks_for(lambda topic, *, available=None: 0, "available")
    assert not asks_for(takes_everything, "available")
    assert not asks_for(int, "available")
