"""Promises of a partition's table about its versions and its compaction, kept by the fake and by Delta alike."""

from __future__ import annotations

from typing import Protocol

import pytest

from bus.model import LogBatch, TopicPartition
from bus.ports import Committed, Conflicted, PartitionTable
from bus.storage_delta.root import open_storage_on
from tests.support import fake_table, stores
from tests.support.memory_store import MemoryStore
from tests.support.stores import led


class Subject(Protocol):
    table: PartitionTable

    def batch(self, base_offset: int, count: int) -> LogBatch: ...


class Fake:
    def __init__(self) -> None:
        self.fake = fake_table.FakeTable()
        self.table: PartitionTable = self.fake

    def batch(self, base_offset: int, count: int) -> LogBatch:
        return fake_table.log_batch(base_offset, count)


class Delta:
    def __init__(self) -> None:
        storage = open_storage_on(MemoryStore(), exclusive=False)
        self.table: PartitionTable = led(storage.create_partition(TopicPartition("orders", 0), topic_id="id"))

    def batch(self, base_offset: int, count: int) -> LogBatch:
        return stores.log_batch(base_offset, [b"v"] * count, keys=[b"k"] * count)


@pytest.fixture(params=[Fake, Delta])
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made


def append(subject: Subject, count: int) -> None:
    batch = subject.batch(subject.table.state.high_watermark, count)
    assert isinstance(subject.table.append([batch], leader_epoch=0, now_ms=1), Committed)


def test_every_version_tells_its_high_watermark_those_that_compact_too(subject: Subject) -> None:
    append(subject, 2)
    append(subject, 3)
    prepared = subject.table.rewrites.prepare_key_compaction(now_ms=1, tombstone_retention_ms=1)
    assert prepared is not None
    assert subject.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1) == Committed(3, 5)
    append(subject, 1)
    found = [subject.table.log.high_watermark_at(version) for version in (-1, 0, 1, 2, 3, 4, 5)]
    assert found == [None, 0, 2, 5, 5, 6, None]


def test_compaction_takes_the_backlog_but_for_what_came_meanwhile(subject: Subject) -> None:
    append(subject, 2)
    append(subject, 3)
    assert len(subject.table.rewrites.find_backlog()) == 2
    assert all(file.size_bytes > 0 for file in subject.table.rewrites.find_backlog())
    prepared = subject.table.rewrites.prepare_key_compaction(now_ms=1, tombstone_retention_ms=1)
    assert prepared is not None
    assert len(prepared.removes) == 2
    append(subject, 1)
    assert isinstance(subject.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    assert len(subject.table.rewrites.find_backlog()) == 1
    assert (subject.table.state.log_start, subject.table.state.high_watermark) == (0, 6)


def test_an_outcome_other_than_committed_changes_nothing(subject: Subject) -> None:
    append(subject, 2)
    prepared = subject.table.rewrites.prepare_key_compaction(now_ms=1, tombstone_retention_ms=1)
    again = subject.table.rewrites.prepare_key_compaction(now_ms=1, tombstone_retention_ms=1)
    assert prepared is not None
    assert again is not None
    assert isinstance(subject.table.rewrites.swap(prepared, leader_epoch=0, now_ms=1), Committed)
    before = subject.table.state
    assert isinstance(subject.table.rewrites.swap(again, leader_epoch=0, now_ms=1), Conflicted)
    assert subject.table.reload() == before
