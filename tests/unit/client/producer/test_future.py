from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from bus.client.producer.future import BatchFuture, RunChunk, wait_all
from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

METADATA = BatchMetadata(topic="t", partition=1, base_offset=7, record_count=1, timestamp_ms=5, version=3)
FAILURE = BusError(ErrorCode.MESSAGE_TOO_LARGE, "too large")


def run_of(future: BatchFuture, slot: int = 0, *, timestamp_ms: int | None = 77) -> RunChunk:
    return RunChunk(
        future,
        slot,
        (b"payload", 0, 7),
        partition=TopicPartition("t", 0),
        record_count=1,
        size_bytes=7,
        timestamp_ms=timestamp_ms,
        deadline_ms=9.0,
    )


def test_future_waits_for_every_run_and_keeps_their_order() -> None:
    future = BatchFuture(2)
    later = BatchMetadata(topic="t", partition=2, base_offset=0, record_count=4, timestamp_ms=5, version=1)
    future.resolve(1, later, None)
    assert not future.done()
    future.resolve(0, METADATA, None)
    assert future.result(0) == [METADATA, later]
    assert future.exception(0) is None


def test_future_fails_if_any_run_did_but_only_at_the_end() -> None:
    future = BatchFuture(2)
    future.resolve(0, None, FAILURE)
    assert not future.done()
    future.resolve(1, METADATA, None)
    assert future.exception(0) is FAILURE
    with pytest.raises(BusError, match="too large"):
        future.result(0)


def test_empty_batch_is_done_at_once() -> None:
    assert BatchFuture(0).result(0) == []


def test_waiting_too_long_raises_and_leaves_the_future_open() -> None:
    future = BatchFuture(1)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.0)
    future.resolve(0, METADATA, None)
    assert future.result(timeout=0.0) == [METADATA]


def test_all_waiting_threads_learn_of_the_outcome() -> None:
    future = BatchFuture(1)
    offsets: list[int] = []
    threads = [threading.Thread(target=lambda: offsets.append(future.result(20)[0].base_offset)) for _ in range(4)]
    for thread in threads:
        thread.start()
    future.resolve(0, METADATA, None)
    for thread in threads:
        thread.join(20)
    assert offsets == [7] * 4


def test_callbacks_run_once_before_or_after_the_outcome() -> None:
    future = BatchFuture(2)
    seen: list[tuple[str, Any]] = []
    future.add_done_callback(lambda done: seen.append(("before", done)))
    future.resolve(0, METADATA, None)
    assert seen == []
    future.resolve(1, METADATA, None)
    future.add_done_callback(lambda done: seen.append(("after", done)))
    assert seen == [("before", future), ("after", future)]


def test_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    future = BatchFuture(1)
    seen: list[str] = []
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: seen.append("second"))
    with caplog.at_level(logging.ERROR):
        future.resolve(0, METADATA, None)
    assert seen == ["second"]
    assert "ZeroDivisionError" in caplog.text


def test_run_tells_its_future_only_when_it_is_announced() -> None:
    future = BatchFuture(1)
    run = run_of(future)
    run.settle(METADATA, None)
    assert run.is_settled
    assert not future.done(), "the lock of the sender is still held"
    run.announce()
    assert future.result(0) == [METADATA]


def test_run_has_the_time_of_the_call_unless_the_log_gave_another_or_each_record_its_own() -> None:
    unknown = BatchMetadata(topic="t", partition=1, base_offset=7, record_count=1, timestamp_ms=-1, version=3)
    found = []
    for metadata, timestamp_ms in ((unknown, 77), (METADATA, 77), (unknown, None)):
        future = BatchFuture(1)
        run = run_of(future, timestamp_ms=timestamp_ms)
        run.settle(metadata, None)
        run.announce()
        found.append(future.result(0)[0].timestamp_ms)
    assert found == [77, 5, -1]


def test_settled_run_lets_go_of_its_bytes_and_is_not_settled_again() -> None:
    run = run_of(BatchFuture(1))
    run.settle(None, FAILURE)
    assert not run.payload
    with pytest.raises(AssertionError, match="settled once"):
        run.settle(METADATA, None)


def test_waiting_for_all_says_how_many_are_open() -> None:
    futures = [BatchFuture(1) for _ in range(3)]
    futures[0].resolve(0, METADATA, None)
    with pytest.raises(TimeoutError, match="2 batches open"):
        wait_all(futures, 0.0)
    for future in futures[1:]:
        future.resolve(0, None, FAILURE)
    wait_all(futures, 0.0)
