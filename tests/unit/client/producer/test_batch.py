from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client.producer.batch import RECORD_OVERHEAD_BYTES, RecordBatchBuilder, RecordFuture, RowChunk, headers_bytes
from bus.client.values import BatchMetadata, RecordMetadata
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import Flag

FAILURE = BusError(ErrorCode.KAFKA_STORAGE_ERROR, "disk")
REFUSED = BusError(ErrorCode.MESSAGE_TOO_LARGE, "large")
WAIT_S = 20


def batch_of(*values: bytes, time_ms: int = 5) -> tuple[RecordBatchBuilder, list[RecordFuture]]:
    batch = RecordBatchBuilder("t", limit_bytes=2**30, due_at_ms=1.0, deadline_ms=9.0)
    futures = [batch.add(value, None, None, None, time_ms, RECORD_OVERHEAD_BYTES + len(value)) for value in values]
    return batch, futures


def close(batch: RecordBatchBuilder, *partitions: int) -> dict[int, RowChunk]:
    keys = None if batch.keys is None else pa.array(batch.keys, pa.binary())
    return dict(batch.close_split(np.array(partitions, np.int64), keys))


def metadata(chunk: RowChunk, base_offset: int = 100, *, partition: int = 0, timestamp_ms: int = -1) -> BatchMetadata:
    return BatchMetadata("t", partition, base_offset, chunk.record_count, timestamp_ms, version=3)


def settle(chunk: RowChunk, *arguments: Any) -> None:
    chunk.settle(*arguments)
    chunk.announce()


# ---------------------------------------------------------------- where each record goes

BYTES = st.none() | st.binary(max_size=5)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), min_size=1, max_size=2)
RECORDS = st.lists(
    st.tuples(BYTES, BYTES, HEADERS, st.integers(0, 2**40), st.integers(0, 4)), min_size=1, max_size=30
)  # value, key, headers, time, partition


def columns_of(chunk: RowChunk) -> list[tuple[Any, ...]]:
    chunk.to_arrow()
    keys = [None] * chunk.record_count if chunk.keys is None else chunk.keys.to_pylist()
    headers = chunk.headers or {}
    return [
        (value, key, headers.get(position), int(time_ms))
        for position, (value, key, time_ms) in enumerate(
            zip(chunk.values.to_pylist(), keys, chunk.times_ms, strict=True)
        )
    ]


@settings(deadline=None)
@given(RECORDS, st.data())
def test_every_record_is_where_plain_python_would_put_it_and_its_future_tells(
    records: list[tuple[Any, Any, Any, int, int]], data: st.DataObject
) -> None:
    batch = RecordBatchBuilder("t", limit_bytes=2**30, due_at_ms=1.0, deadline_ms=9.0)
    futures = []
    for value, key, headers, time_ms, _ in records:
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + headers_bytes(headers or ())
        futures.append(batch.add(value, key, headers, None, time_ms, size))
    size_bytes = batch.size_bytes

    expected: defaultdict[int, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        expected[record[4]].append(index)
    chunks = close(batch, *(record[4] for record in records))
    assert sorted(chunks) == sorted(expected)
    for partition, indices in expected.items():
        assert columns_of(chunks[partition]) == [records[index][:4] for index in indices]
    assert sum(chunk.size_bytes for chunk in chunks.values()) == size_bytes, "memory is counted to the byte"

    # Some records are refused, at once or one after another; the rest of each partition is acknowledged densely.
    offsets: dict[int, int] = {}
    refused: set[int] = set()
    for partition, indices in expected.items():
        left = list(indices)
        for _ in range(data.draw(st.integers(0, 2))):
            bad = sorted(data.draw(st.sets(st.integers(0, len(left) - 1), max_size=len(left) - 1)))
            if bad:
                chunks[partition].refuse_records(dict.fromkeys(bad, REFUSED))
                refused |= {left[position] for position in bad}
                left = [index for position, index in enumerate(left) if position not in bad]
        assert columns_of(chunks[partition]) == [records[index][:4] for index in left]
        offsets |= {index: 1_000 * partition + place for place, index in enumerate(left)}
        settle(chunks[partition], metadata(chunks[partition], 1_000 * partition, partition=partition), None)
    assert batch.done()
    for index, (future, record) in enumerate(zip(futures, records, strict=True)):
        if index in refused:
            assert future.exception(0) is REFUSED
        else:
            assert future.result(0) == RecordMetadata("t", record[4], offsets[index], record[3], 3)


def test_batch_of_one_partition_stays_as_it_is_so_that_small_ones_are_encoded_together() -> None:
    batch, _ = batch_of(b"a", b"b")
    (chunk,) = close(batch, 3, 3).values()
    assert (chunk.values, chunk.times_ms, chunk.keys) == ([b"a", b"b"], [5, 5], None)
    assert (chunk.due_at_ms, chunk.deadline_ms, chunk.size_bytes) == (1.0, 9.0, 2 * RECORD_OVERHEAD_BYTES + 2)


def test_first_key_after_records_without_one_leaves_these_without() -> None:
    batch, _ = batch_of(b"a")
    batch.add(b"b", b"k", None, None, 5, 1)
    batch.add(b"c", None, None, None, 5, 1)
    assert batch.keys == [None, b"k", None]


def test_batch_is_closed_once() -> None:
    batch, _ = batch_of(b"a")
    batch.close_whole(0)
    with pytest.raises(AssertionError, match="closed once"):
        batch.close_whole(0)


class Interrupt(BaseException):
    pass


class InterruptedColumn(list[Any]):
    """A column of a batch whose user is interrupted while a record is added, before or after this column has it."""

    def __init__(self, values: list[Any], *, is_added: bool) -> None:
        super().__init__(values)
        self.is_added: bool | None = is_added

    def append(self, value: Any) -> None:
        is_added, self.is_added = self.is_added, None
        if is_added is not False:
            super().append(value)
        if is_added is not None:
            raise Interrupt


@pytest.mark.parametrize("column", ["values", "times_ms", "keys"])
@pytest.mark.parametrize("is_added", [True, False])
def test_record_that_an_interrupt_left_half_added_shifts_none_of_those_behind_it(column: str, is_added: bool) -> None:
    batch, _ = batch_of()
    batch.add(b"a", b"k", None, None, 5, 1)
    setattr(batch, column, InterruptedColumn(getattr(batch, column), is_added=is_added))
    with pytest.raises(Interrupt):
        batch.add(b"lost", b"lost", [("lost", b"")], 4, 666, 1)
    whole = len(batch.values)
    later = batch.add(b"b", b"l", None, None, 6, 1)
    ((_, chunk),) = batch.close_whole(0)
    found = columns_of(chunk)
    assert found[0] == (b"a", b"k", None, 5)
    assert found[whole:] == [(b"b", b"l", None, 6)]
    settle(chunk, metadata(chunk, 70), None)
    assert (later.result(0).offset, later.result(0).timestamp_ms) == (70 + whole, 6)


# ---------------------------------------------------------------- outcomes


def test_acknowledged_records_have_dense_offsets_and_their_own_time() -> None:
    batch, futures = batch_of(b"a", b"b", b"c")
    ((_, chunk),) = batch.close_whole(4)
    settle(chunk, metadata(chunk, 70, partition=4), None)
    assert [future.result(0) for future in futures] == [RecordMetadata("t", 4, offset, 5, 3) for offset in (70, 71, 72)]
    assert futures[0].exception(0) is None


def test_time_and_offsets_that_the_log_gave_count() -> None:
    batch, futures = batch_of(b"a", b"b", b"c")
    ((_, chunk),) = batch.close_whole(0)
    settle(chunk, metadata(chunk, 70, timestamp_ms=99), None, [70, 75, 76])
    assert [(future.result(0).offset, future.result(0).timestamp_ms) for future in futures] == [
        (70, 99),
        (75, 99),
        (76, 99),
    ]


def test_place_that_nobody_knows_is_unknown_for_every_record() -> None:
    batch, futures = batch_of(b"a", b"b")
    ((_, chunk),) = batch.close_whole(0)
    settle(chunk, metadata(chunk, -1), None)
    assert [future.result(0).offset for future in futures] == [-1, -1]


def test_offsets_skip_the_records_that_were_refused() -> None:
    batch, futures = batch_of(b"a", b"b", b"c", b"d")
    ((_, chunk),) = batch.close_whole(0)
    chunk.refuse_records({1: REFUSED})
    settle(chunk, metadata(chunk, 70), None, [70, 75, 76])
    assert [future.exception(0) for future in futures] == [None, REFUSED, None, None]
    assert [futures[index].result(0).offset for index in (0, 2, 3)] == [70, 75, 76]


def test_record_that_was_refused_keeps_its_own_error_when_the_others_fail_later() -> None:
    batch, futures = batch_of(b"a", b"b")
    ((_, chunk),) = batch.close_whole(0)
    chunk.refuse_records({0: REFUSED})
    settle(chunk, None, FAILURE)
    assert [future.exception(0) for future in futures] == [REFUSED, FAILURE]
    with pytest.raises(BusError, match="disk"):
        futures[1].result(0)


def test_chunk_is_settled_once_and_lets_go_of_its_records() -> None:
    batch, _ = batch_of(b"a")
    ((_, chunk),) = batch.close_whole(0)
    chunk.settle(None, FAILURE)
    assert not chunk.values
    with pytest.raises(AssertionError, match="settled once"):
        chunk.settle(None, FAILURE)


def test_future_of_an_open_batch_is_open_and_waiting_too_long_leaves_it_so() -> None:
    batch, futures = batch_of(b"a")
    assert not futures[0].done()
    with pytest.raises(TimeoutError):
        futures[0].result(0)
    ((_, chunk),) = batch.close_whole(0)
    assert not futures[0].done()
    settle(chunk, metadata(chunk), None)
    assert futures[0].done()


def test_chunks_of_one_batch_are_settled_apart() -> None:
    batch, futures = batch_of(b"a", b"b", b"c")
    chunks = close(batch, 1, 0, 1)
    settle(chunks[1], metadata(chunks[1], 10, partition=1), None)
    assert [future.done() for future in futures] == [True, False, True]
    assert not batch.done()
    with pytest.raises(TimeoutError):
        batch.wait(0)
    settle(chunks[0], None, FAILURE)
    batch.wait(0)
    assert [future.exception(0) for future in futures] == [None, FAILURE, None]


# ---------------------------------------------------------------- waiting


class Waiters:
    """Threads that wait for a future each, or for a batch, and are known to do so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._threads: dict[str, threading.Thread] = {}
        waiting = self._waiting = threading.Semaphore(0)

        class ReportingFlag(Flag):
            def wait(self, timeout: float | None = None) -> bool:
                waiting.release()
                return super().wait(timeout)

        monkeypatch.setattr("bus.client.producer.batch.Flag", ReportingFlag)

    def start(self, **waitables: Any) -> None:
        for name, waitable in waitables.items():
            self._threads[name] = threading.Thread(target=waitable.wait, args=(WAIT_S,), daemon=True)
            self._threads[name].start()
            self.wait_for_waits(1)

    def wait_for_waits(self, count: int) -> None:
        for _ in range(count):
            assert self._waiting.acquire(timeout=WAIT_S)

    def finish(self, *names: str) -> None:
        for name in names:
            self._threads[name].join(WAIT_S)
            assert not self._threads[name].is_alive(), f"{name} still waits"


def test_who_waits_for_one_chunk_is_not_let_go_by_another_and_not_forgotten_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, futures = batch_of(b"a", b"b", b"c")
    chunks = close(batch, 0, 1, 2)
    waiters = Waiters(monkeypatch)
    waiters.start(first=futures[0], second=futures[1], also_second=futures[1], everything=batch)
    settle(chunks[1], metadata(chunks[1]), None)
    waiters.finish("second", "also_second")
    waiters.wait_for_waits(2)  # the others look, and wait again
    settle(chunks[0], None, FAILURE)
    waiters.finish("first")
    waiters.wait_for_waits(1)
    settle(chunks[2], metadata(chunks[2]), None)
    waiters.finish("everything")


def test_who_waits_for_a_record_of_an_open_batch_learns_of_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, futures = batch_of(b"a", b"b")
    waiters = Waiters(monkeypatch)
    waiters.start(first=futures[0], everything=batch)
    chunks = close(batch, 1, 0)
    settle(chunks[0], metadata(chunks[0]), None)
    waiters.wait_for_waits(2)
    settle(chunks[1], metadata(chunks[1]), None)
    waiters.finish("first", "everything")


# ---------------------------------------------------------------- callbacks


def test_callbacks_run_once_each_with_their_chunk_whenever_they_were_added() -> None:
    batch, futures = batch_of(b"a", b"b", b"c", b"d")
    seen: list[str] = []
    futures[0].add_done_callback(lambda _: seen.append("0 while open"))
    chunks = close(batch, 0, 1, 0, 1)
    futures[1].add_done_callback(lambda _: seen.append("1 while closed"))
    futures[2].add_done_callback(lambda _: seen.append("2 while closed"))
    assert seen == []
    settle(chunks[1], metadata(chunks[1]), None)
    assert seen == ["1 while closed"]
    futures[3].add_done_callback(lambda _: seen.append("3 when done"))
    settle(chunks[0], None, FAILURE)
    assert seen == ["1 while closed", "3 when done", "0 while open", "2 while closed"]


def test_callback_gets_a_future_that_equals_its_own_and_may_ask_it() -> None:
    batch, futures = batch_of(b"a")
    seen: list[Any] = []
    futures[0].add_done_callback(lambda future: seen.append((future == futures[0], future.result(0).offset)))
    ((_, chunk),) = batch.close_whole(0)
    settle(chunk, metadata(chunk, 70), None)
    assert seen == [(True, 70)]


def test_callback_that_comes_between_the_outcome_and_its_announcement_runs_once() -> None:
    batch, futures = batch_of(b"a")
    ((_, chunk),) = batch.close_whole(0)
    seen: list[int] = []
    chunk.settle(metadata(chunk, 70), None)
    futures[0].add_done_callback(lambda future: seen.append(future.result(0).offset))
    chunk.announce()
    assert seen == [70]


def test_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    batch, futures = batch_of(b"a", b"b")
    seen: list[str] = []
    futures[0].add_done_callback(lambda _: 1 / 0)
    futures[1].add_done_callback(lambda _: seen.append("second"))
    ((_, chunk),) = batch.close_whole(0)
    with caplog.at_level(logging.ERROR):
        settle(chunk, metadata(chunk), None)
    assert seen == ["second"]
    assert "ZeroDivisionError" in caplog.text


def test_callback_may_add_another_one_and_wait_for_what_is_done() -> None:
    batch, futures = batch_of(b"a", b"b")
    seen: list[str] = []
    futures[0].add_done_callback(lambda _: futures[1].add_done_callback(lambda _: seen.append("inner")))
    ((_, chunk),) = batch.close_whole(0)
    settle(chunk, metadata(chunk), None)
    assert seen == ["inner"], "no lock is held while a user's code runs"
