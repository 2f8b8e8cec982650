"""Promises of a partition's table about idempotent producers, kept by the fake and by the Delta table alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.model import sequence_after as after
from bus.ports import Committed, PartitionTable, ProducerProgress
from bus.storage_delta.root import open_storage_on
from tests.support.fake_table import FakeTable
from tests.support.memory_store import MemoryStore
from tests.support.stores import led

LAST = SEQUENCE_MODULUS - 1


class Subject(Protocol):
    """A table, and what its columns are made of."""

    table: PartitionTable

    def columns(self, count: int) -> object: ...

    def sequences(self, batch: RecordBatch) -> list[int]: ...


class Fake:
    def __init__(self) -> None:
        self.table: PartitionTable = FakeTable()

    def columns(self, count: int) -> object:
        return None

    def sequences(self, batch: RecordBatch) -> list[int]:
        return list(batch.columns["sequence"])


class Delta:
    def __init__(self) -> None:
        storage = open_storage_on(MemoryStore(), exclusive=False)
        self.table: PartitionTable = led(storage.create_partition(TopicPartition("orders", 0), topic_id="id"))

    def columns(self, count: int) -> object:
        return pa.RecordBatch.from_arrays([pa.array([b"v"] * count, pa.binary())], names=["value"])

    def sequences(self, batch: RecordBatch) -> list[int]:
        return list(batch.columns.column("sequence").to_pylist())


def records(subject: Subject, stamp: ProducerStamp, count: int) -> RecordBatch:
    return RecordBatch(count, 1, 1, 1, 1, False, subject.columns(count), stamp)


def append(subject: Subject, *parts: tuple[ProducerStamp, int], now_ms: int = 0) -> None:
    table, batches = subject.table, []
    offset = table.state.high_watermark
    progress = {}
    for stamp, count in parts:
        columns = subject.columns(count)
        batches.append(LogBatch(offset, offset + count, count, 1, 0, TimestampType.CREATE_TIME, 1, 1, columns, stamp))
        offset += count
        last = after(stamp.base_sequence, count - 1)
        progress[stamp.producer_id] = ProducerProgress(stamp.producer_id, stamp.producer_epoch, last)
    outcome = table.append(batches, leader_epoch=0, now_ms=now_ms, producers=list(progress.values()))
    assert isinstance(outcome, Committed)


def match(subject: Subject, stamp: ProducerStamp, count: int) -> tuple[list[int], list[int]]:
    """Offsets, and the sequences that are missing."""
    batch = records(subject, stamp, count)
    found = subject.table.producers.match(batch)
    if found.missing is None:
        return list(found.offsets), []
    if found.missing is batch:
        return list(found.offsets), [after(stamp.base_sequence, at) for at in range(count)]
    assert found.missing.record_count == sum(offset < 0 for offset in found.offsets)
    return list(found.offsets), subject.sequences(found.missing)


@pytest.fixture(params=[Fake, Delta])
def subject(request: pytest.FixtureRequest) -> Subject:
    make: Callable[[], Subject] = request.param
    return make()


def test_what_is_there_has_its_offsets_and_the_rest_is_missing(subject: Subject) -> None:
    append(subject, (ProducerStamp(7, 0, LAST - 1), 4), (ProducerStamp(8, 0, 0), 2))
    assert match(subject, ProducerStamp(7, 0, LAST), 2) == ([1, 2], [])
    assert match(subject, ProducerStamp(7, 0, LAST - 2), 6) == ([-1, 0, 1, 2, 3, -1], [LAST - 2, 2])
    assert match(subject, ProducerStamp(7, 1, 0), 2) == ([-1, -1], [0, 1])
    assert match(subject, ProducerStamp(9, 0, 0), 1) == ([-1], [0])


def test_progress_is_that_of_the_last_commit_until_it_is_forgotten(subject: Subject) -> None:
    append(subject, (ProducerStamp(7, 0, 0), 3), (ProducerStamp(3, 0, 5), 1), now_ms=10)
    append(subject, (ProducerStamp(3, 1, 0), 2), now_ms=20)
    table = subject.table
    last = {7: ProducerProgress(7, 0, 2, updated_ms=10), 3: ProducerProgress(3, 1, 1, updated_ms=20)}
    assert table.producers.progress == last
    assert table.producers.forget(updated_before_ms=10) == -1
    assert table.producers.forget(updated_before_ms=11) == 7
    assert table.producers.progress == {3: last[3]}
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 0, 2)
    table.reload()
    assert table.producers.progress == last


stamps = st.builds(
    ProducerStamp,
    st.integers(0, 2),
    st.integers(0, 1),
    st.one_of(st.integers(0, 9), st.integers(LAST - 5, LAST)),
)
runs = st.tuples(stamps, st.integers(1, 8))


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(st.lists(st.lists(runs, min_size=1, max_size=4), max_size=5), st.lists(runs, max_size=10))
def test_both_give_the_same_answers(commits: list[list[tuple[ProducerStamp, int]]], questions: list) -> None:  # type: ignore[type-arg]
    """The table has no record twice, whatever the order in which records came."""
    subjects: list[Subject] = [Fake(), Delta()]
    taken: set[tuple[int, int, int]] = set()
    for commit in commits:
        kept = []
        for stamp, count in commit:
            keys = {(stamp.producer_id, stamp.producer_epoch, after(stamp.base_sequence, at)) for at in range(count)}
            if not keys & taken:
                taken |= keys
                kept.append((stamp, count))
        for subject in subjects:
            if kept:
                append(subject, *kept)
    for stamp, count in questions:
        first, second = (match(subject, stamp, count) for subject in subjects)
        assert first == second
    for producer_id in range(4):
        fake, delta = (subject.table.producers.find_last_sequence(producer_id) for subject in subjects)
        assert fake == delta
