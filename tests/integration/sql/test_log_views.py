"""The history of a log by SQL: what each version did, and what maintenance did among them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import bus.sql
from bus.ports import Committed
from tests.support.log_root import COUNT, LogRoot
from tests.support.stores import NOW_MS


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    log = LogRoot(tmp_path / "root")
    log.append(4)
    return log


def rows(log: LogRoot, query: str) -> list[tuple[Any, ...]]:
    with bus.sql.connect(str(log.root)) as connection:
        return connection.sql(query).fetchall()


def compact(log: LogRoot) -> None:
    prepared = log.table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=0)
    assert prepared is not None
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)


def test_each_version_says_what_it_did(log: LogRoot) -> None:
    query = "SELECT version, operation, leader_epoch, first_offset, last_offset, records, files_added, files_removed"
    found = rows(log, f"{query} FROM versions WHERE topic = 'orders' AND version < 3")
    assert found == [
        (0, "CREATE TABLE", None, None, None, 0, 0, 0),
        (1, "WRITE", 0, 0, 9, COUNT, 1, 0),
        (2, "WRITE", 0, 10, 19, COUNT, 1, 0),
    ]
    start = datetime.fromtimestamp(NOW_MS / 1000, timezone.utc)
    assert rows(log, "SELECT time, bytes FROM versions WHERE topic = 'orders' AND version = 2") == [
        (start + timedelta(seconds=2), log.data_file(10).stat().st_size)
    ]


def test_maintenance_shows_files_records_and_bytes_before_and_after(log: LogRoot) -> None:
    before = sum(file.size_bytes for file in log.table.rewrites.files)
    compact(log)
    (after,) = log.table.rewrites.files
    query = "SELECT version, operation, first_offset, last_offset, files_before, files_after, records_before, "
    query += "records_after, bytes_before, bytes_after, level_before, level_after FROM log_maintenance"
    assert rows(log, query) == [
        (5, "COMPACT", 0, 39, 4, 1, 40, after.record_count, before, after.size_bytes, 0, after.level)
    ]


def test_retention_is_maintenance_that_adds_nothing(log: LogRoot) -> None:
    log.table.cleanup.advance_log_start(25, leader_epoch=0, now_ms=NOW_MS)
    log.table.cleanup.advance_log_start(27, leader_epoch=0, now_ms=NOW_MS)
    query = "SELECT version, operation, first_offset, last_offset, files_before, files_after, level_after"
    assert rows(log, f"{query} FROM log_maintenance") == [
        (5, "DELETE", 0, 19, 2, 0, None),
        (6, "DELETE", None, None, 0, 0, None),
    ]


def test_files_that_were_added_by_a_version_that_is_gone_are_known_from_the_checkpoint(log: LogRoot) -> None:
    size = sum(file.size_bytes for file in log.table.rewrites.files)
    log.table.cleanup.write_checkpoint()
    for version in range(4):
        (log.log / f"{version:020d}.json").unlink()
    compact(log)
    query = "SELECT version, files_before, bytes_before FROM log_maintenance"
    assert rows(log, query) == [(5, 4, size)]


def test_a_version_that_cannot_be_read_says_so_and_hides_no_other(log: LogRoot) -> None:
    (log.log / f"{2:020d}.json").write_bytes(b'{"commitInfo"')
    found = rows(log, "SELECT version, operation, error IS NULL FROM versions WHERE topic = 'orders'")
    assert found == [
        (0, "CREATE TABLE", True),
        (1, "WRITE", True),
        (2, "unreadable", False),
        (3, "WRITE", True),
        (4, "WRITE", True),
    ]
