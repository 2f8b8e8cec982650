from __future__ import annotations

import logging
import threading

import pytest

from bus.client.produce_future import BatchFuture, ProduceFuture, RecordFuture, wait_all
from bus.client.values import BatchMetadata, RecordMetadata
from bus.errors import BusError, ErrorCode

METADATA = BatchMetadata(topic="t", partition=1, base_offset=7, record_count=1, timestamp_ms=5, version=3)
FAILURE = BusError(ErrorCode.MESSAGE_TOO_LARGE, "too large")


def test_record_future_gives_the_records_own_metadata() -> None:
    future = RecordFuture()
    future.resolve(0, METADATA, None)
    assert future.result() == RecordMetadata(topic="t", partition=1, offset=7, timestamp_ms=5, version=3)
    assert future.exception() is None


def test_failed_future_raises_and_tells() -> None:
    future = RecordFuture()
    future.resolve(0, None, FAILURE)
    assert future.done()
    assert future.exception() is FAILURE
    with pytest.raises(BusError, match="too large"):
        future.result()


def test_waiting_too_long_raises_and_leaves_the_future_open() -> None:
    future = RecordFuture()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.0)
    future.resolve(0, METADATA, None)
    assert future.result(timeout=0.0).offset == 7


def test_all_waiting_threads_learn_of_the_outcome() -> None:
    future = RecordFuture()
    offsets: list[int] = []
    threads = [threading.Thread(target=lambda: offsets.append(future.result(20).offset)) for _ in range(4)]
    for thread in threads:
        thread.start()
    future.resolve(0, METADATA, None)
    for thread in threads:
        thread.join(20)
    assert offsets == [7] * 4


def test_callbacks_run_once_before_or_after_the_outcome() -> None:
    future = RecordFuture()
    seen: list[tuple[str, ProduceFuture[RecordMetadata]]] = []
    future.add_done_callback(lambda done: seen.append(("before", done)))
    assert seen == []
    future.resolve(0, METADATA, None)
    future.add_done_callback(lambda done: seen.append(("after", done)))
    future.resolve(0, None, FAILURE)
    assert seen == [("before", future), ("after", future)]
    assert future.exception() is None, "the first outcome stays"


def test_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    future = RecordFuture()
    seen: list[str] = []
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: seen.append("second"))
    with caplog.at_level(logging.ERROR):
        future.resolve(0, METADATA, None)
    assert seen == ["second"]
    assert "ZeroDivisionError" in caplog.text


def test_batch_future_waits_for_every_run_and_keeps_their_order() -> None:
    future = BatchFuture(2)
    later = BatchMetadata(topic="t", partition=2, base_offset=0, record_count=4, timestamp_ms=5, version=1)
    future.resolve(1, later, None)
    assert not future.done()
    future.resolve(0, METADATA, None)
    assert future.result(0) == [METADATA, later]


def test_batch_future_fails_if_any_run_did_but_only_at_the_end() -> None:
    future = BatchFuture(2)
    future.resolve(0, None, FAILURE)
    assert not future.done()
    future.resolve(1, METADATA, None)
    assert future.exception(0) is FAILURE


def test_empty_batch_is_done_at_once() -> None:
    assert BatchFuture(0).result(0) == []


def test_waiting_for_all_says_how_many_are_open() -> None:
    futures = [RecordFuture() for _ in range(3)]
    futures[0].resolve(0, METADATA, None)
    with pytest.raises(TimeoutError, match="2 open"):
        wait_all(list(futures), 0.0)
    for future in futures:
        future.resolve(0, None, FAILURE)
    wait_all(list(futures), 0.0)
