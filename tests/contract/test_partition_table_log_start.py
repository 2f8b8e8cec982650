"""Promises of a partition's table about its log start, kept by the fake and by Delta alike."""

from __future__ import annotations

from typing import Protocol

import pytest

from bus.model import LogBatch, ProducerStamp, TopicPartition
from bus.ports import Committed, PartitionTable, ProducerProgress
from bus.storage_delta.root import open_storage_on
from tests.support import fake_table, stores
from tests.support.memory_store import MemoryStore
from tests.support.stores import led


class Subject(Protocol):
    table: PartitionTable

    def batch(self, base_offset: int, count: int) -> LogBatch:
        """Return a batch of producer 7, epoch 1, with sequences like the offsets."""
        ...


class Fake:
    def __init__(self) -> None:
        self.table: PartitionTable = fake_table.FakeTable()

    def batch(self, base_offset: int, count: int) -> LogBatch:
        return fake_table.log_batch(base_offset, count, ProducerStamp(7, 1, base_offset))


class Delta:
    def __init__(self) -> None:
        storage = open_storage_on(MemoryStore(), exclusive=False)
        self.table: PartitionTable = led(storage.create_partition(TopicPartition("orders", 0), topic_id="id"))

    def batch(self, base_offset: int, count: int) -> LogBatch:
        return stores.log_batch(base_offset, [b"v"] * count, producer=(7, 1, base_offset))


@pytest.fixture(params=[Fake, Delta])
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    base = 0
    for count in (2, 3, 4):
        progress = [ProducerProgress(7, 1, base + count - 1)]
        outcome = made.table.append([made.batch(base, count)], leader_epoch=0, now_ms=1, producers=progress)
        assert isinstance(outcome, Committed)
        base += count
    return made


@pytest.mark.parametrize(("offset", "file_count"), [(1, 3), (2, 2), (3, 2), (5, 1), (8, 1), (9, 0)])
def test_whole_files_below_the_log_start_go_in_one_version(subject: Subject, offset: int, file_count: int) -> None:
    outcome = subject.table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=2)
    assert outcome == Committed(4, 9)
    state = subject.table.reload()
    assert (state.version, state.log_start, state.high_watermark) == (4, offset, 9)
    assert (state.file_count, len(subject.table.rewrites.files)) == (file_count, file_count)
    assert subject.table.log.high_watermark_at(4) == 9


def test_the_log_start_neither_stays_nor_goes_beyond_the_high_watermark(subject: Subject) -> None:
    for offset in (0, 10):
        with pytest.raises(AssertionError, match="log start"):
            subject.table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=2)


def test_where_a_producer_ended_is_known_after_its_records_and_memory_are_gone(subject: Subject) -> None:
    table = subject.table
    table.cleanup.advance_log_start(8, leader_epoch=0, now_ms=2)
    table.producers.forget(updated_before_ms=2)
    found = table.producers.find_last_sequence(7)
    assert found is not None
    assert (found.producer_epoch, found.last_sequence) == (1, 8)
    table.cleanup.advance_log_start(9, leader_epoch=0, now_ms=2)
    assert table.producers.find_last_sequence(7) == ProducerProgress(7, 1, 8, updated_ms=1)
    assert table.producers.find_last_sequence(8) is None
