"""The views of transactions, of a log that was written by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import bus.sql
from bus.transactions.bounds import coordinator_partition
from tests.support.hand_written_root import FIRST_TIMESTAMP_MS, HandWrittenRoot
from tests.support.hand_written_transactions import HandWrittenTransactions


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(FIRST_TIMESTAMP_MS / 1000, timezone.utc) + timedelta(milliseconds=ms)


@pytest.fixture
def root(tmp_path: Path) -> HandWrittenRoot:
    root = HandWrittenRoot(tmp_path / "root")
    root.create_topic("orders", partitions=2)
    return root


@pytest.fixture
def log(root: HandWrittenRoot) -> HandWrittenTransactions:
    return HandWrittenTransactions(root)


def rows(root: HandWrittenRoot, query: str) -> list[tuple[object, ...]]:
    with bus.sql.connect(str(root.folder)) as connection:
        return connection.sql(query).fetchall()


def test_of_every_id_the_last_record_counts(root: HandWrittenRoot, log: HandWrittenTransactions) -> None:
    log.store("b", "Empty", 1)
    log.store("a", "Ongoing", 2, {("orders", 1): (-1, -1)}, ["readers"])
    log.store("b", "CompleteAbort", 2)
    log.store("c", "Ongoing", 2)
    log.store("a", "CompleteCommit", 3, {("orders", 1): (4, 20), ("orders", 0): (-1, -1)}, ["readers", "others"])
    log.expire("c")
    columns = "transactional_id, state, number, producer_id, producer_epoch, timeout_ms, abort_cause, update_time"
    assert rows(root, f"SELECT {columns} FROM transactions") == [
        ("a", "CompleteCommit", 3, 7, 3, 60_000, None, at(3)),
        ("b", "CompleteAbort", 2, 7, 2, 60_000, "timeout", at(2)),
    ]
    columns = "partitions, group_ids, start_time, coordinator_partition"
    (a, b) = rows(root, f"SELECT {columns} FROM bus.transactions")
    place = {"topic": "orders", "topic_id": root.topic_ids["orders"]}
    assert a == (
        [
            {**place, "partition": 1, "last_sequence": 0, "version": 4, "base_offset": 20},
            {**place, "partition": 0, "last_sequence": None, "version": None, "base_offset": None},
        ],
        ["readers", "others"],
        at(0),
        coordinator_partition("a", 2),
    )
    assert b == ([], [], at(0), coordinator_partition("b", 2))


def test_an_id_without_a_transaction_has_no_start(root: HandWrittenRoot, log: HandWrittenTransactions) -> None:
    log.store("a", "Empty", 1)
    assert rows(root, "SELECT start_time, partitions FROM transactions") == [(None, [])]


def test_history_has_every_change_in_order(root: HandWrittenRoot, log: HandWrittenTransactions) -> None:
    for number, state in enumerate(("Empty", "Ongoing", "PrepareCommit", "CompleteCommit")):
        log.store("a", state, number)
    log.expire("a")
    columns = "transactional_id, state, number, time, update_time"
    assert rows(root, f"SELECT {columns} FROM transaction_history") == [
        ("a", "Empty", 0, at(0), at(0)),
        ("a", "Ongoing", 1, at(1), at(1)),
        ("a", "PrepareCommit", 2, at(2), at(2)),
        ("a", "CompleteCommit", 3, at(3), at(3)),
        ("a", "Expired", None, at(4), None),
    ]
    (place,) = rows(root, "SELECT DISTINCT coordinator_partition FROM transaction_history")
    assert place == (coordinator_partition("a", 2),)


def test_versions_join_what_they_brought(root: HandWrittenRoot, log: HandWrittenTransactions) -> None:
    root.append("orders", 1, (b"k", b"v"))
    log.store("a", "CompleteCommit", 1, {("orders", 1): (1, 0)})
    query = """SELECT p.topic, p.partition, v.records FROM transactions t, unnest(t.partitions) AS u(p)
               JOIN versions v ON v.topic = p.topic AND v.partition = p.partition AND v.version = p.version"""
    assert rows(root, query) == [("orders", 1, 1)]


@pytest.mark.parametrize("view", ["transactions", "transaction_history"])
def test_root_without_transactions_has_empty_views(root: HandWrittenRoot, view: str) -> None:
    assert rows(root, f"SELECT * FROM {view}") == []
    HandWrittenTransactions(root)
    assert rows(root, f"SELECT * FROM {view}") == []
