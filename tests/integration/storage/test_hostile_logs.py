"""Versions as no bus writes them: each reader of a log takes them alike or refuses them; a repair gets past them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.errors import StorageDamaged, StorageFault
from bus.records.log_schema import log_schema
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log.listing import LAST_CHECKPOINT, partition_folder
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.log.summary import describe_partition, load_entries, read_history
from bus.storage_delta.partition_reader import FollowingReader
from bus.storage_delta.repair.plan import RepairReport
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.stores.local import LocalStore
from bus.tables.snapshots import open_snapshot
from bus.tables.system_views import read_view
from bus.tables.topics import TopicTables
from tests.support.log_root import PARTITION, TOPIC_ID, LogRoot
from tests.support.stores import NOW_MS
from tests.support.version_files import without_sum

Action = dict[str, Any]
FOLDER = partition_folder(PARTITION)
SPARK = {"timestamp": NOW_MS, "operation": "OPTIMIZE", "operationParameters": {}, "engineInfo": "Apache-Spark/4.2.0"}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    log = LogRoot(tmp_path / "root")
    log.append(3)
    return log


def path_of(log: LogRoot, version: int) -> Path:
    return log.log / f"{version:020}.json"


def change(log: LogRoot, number: int, name: str, **fields: Any) -> Action:
    """The version says that, as one of an earlier bus does, which has no checksum; gives what was there."""
    path = path_of(log, number)
    actions = [json.loads(line) for line in without_sum(path.read_bytes()).splitlines()]
    body: Action = next(action[name] for action in actions if name in action)
    before = dict(body)
    body.update(fields)
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    return before


def commit(log: LogRoot, *actions: Action, info: Any = SPARK) -> None:
    lines = [{"commitInfo": info}, *actions]
    last = max(int(path.stem) for path in log.log.glob("*.json"))
    path_of(log, last + 1).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def repair(log: LogRoot) -> RepairReport:
    store = LocalStore(str(log.root))
    return repair_partition(store, PARTITION, topic_id=TOPIC_ID, now_ms=NOW_MS, is_rehearsal=False)


def readers(log: LogRoot) -> dict[str, Callable[[], object]]:
    store = LocalStore(str(log.root))

    def describe() -> object:
        summary = describe_partition(store, PARTITION)
        return load_entries(store, summary, summary.files)

    def follow() -> object:
        return FollowingReader(store, FOLDER, log_schema(), ReadCache(), topic_id=TOPIC_ID)

    return {
        "open": log.open,
        "follow": follow,
        "describe": describe,
        "history": lambda: list(read_history(store, PARTITION)),
        "snapshot": lambda: open_snapshot(log.folder, PARTITION, topic_id=TOPIC_ID),
        "verify": log.verify,
    }


def is_refused(reader: Callable[[], object]) -> bool:
    try:
        reader()
    except (StorageDamaged, StorageFault):
        return True
    return False


def check_taken_alike(log: LogRoot) -> None:
    """Opened, followed, described and shown without a word, and nothing there for a repair to mend."""
    values = [b"%d" % offset for offset in range(30)]
    assert [name for name, reader in readers(log).items() if is_refused(reader)] == []
    assert log.verify().breaches == []
    assert repair(log).steps == []
    log.open()
    assert log.values() == values


HOSTILE: dict[str, Callable[[LogRoot], object]] = {
    "deep JSON": lambda log: path_of(log, 4).write_text(f'{{"add":{DEEP}}}', encoding="utf-8"),
    "deep commitInfo": lambda log: path_of(log, 4).write_text(f'{{"commitInfo":{DEEP}}}', encoding="utf-8"),
    "deep statistics": lambda log: change(log, 3, "add", stats=DEEP),
    "no statistics": lambda log: change(log, 3, "add", stats="{"),
    "deep schema": lambda log: change(log, 0, "metaData", schemaString=DEEP),
    "a schema that is no JSON": lambda log: change(log, 0, "metaData", schemaString="{"),
    "a deep hint": lambda log: (log.log / LAST_CHECKPOINT).write_text(DEEP, encoding="utf-8"),
    "an endless hint": lambda log: (log.log / LAST_CHECKPOINT).write_text('{"version":Infinity}', encoding="utf-8"),
    "a path with a zero": lambda log: change(log, 3, "add", path="a%00b.parquet"),
    "a path of halves": lambda log: change(log, 3, "add", path="\ud800.parquet"),
    "a long path": lambda log: change(log, 3, "add", path="9" * 5000),
    "a removed path with a zero": lambda log: commit(log, {"remove": {"path": "a\0", "dataChange": False}}),
    "a size of many bits": lambda log: change(log, 3, "add", size=1 << 70),
    "a leader epoch in words": lambda log: change(log, 3, "commitInfo", leaderEpoch="one"),
    "a time beyond all calendars": lambda log: change(log, 3, "commitInfo", timestamp=1 << 62),
    "an application of halves": lambda log: change(log, 3, "txn", appId="\udfff"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_log_is_read_or_refused_and_repaired(log: LogRoot, name: str) -> None:
    values = log.values()
    HOSTILE[name](log)
    for reader in readers(log).values():
        is_refused(reader)
    for view in ("versions", "log_maintenance"):
        read_view(view, TopicTables(str(log.root)))
    report = repair(log)
    assert report.error is None
    assert not [step for step in report.steps if step.action == "give up"]
    log.open()
    assert log.values() == values
    assert log.verify().breaches == []


@pytest.mark.parametrize(
    "info",
    [
        {"engineInfo": "Spark", "timestamp": "2026-11-22"},
        {"engineInfo": ["Spark"], "operation": 5, "txnId": {"a": 1}, "leaderEpoch": "q", "operationParameters": "x"},
        {"engineInfo": "Spark", "timestamp": 1 << 70, "leaderEpoch": -5, "actionCount": "many"},
    ],
)
def test_other_engines_write_what_they_like_into_commit_info(log: LogRoot, info: Action) -> None:
    commit(log, {"txn": {"appId": "job", "version": 1}}, info=info)
    check_taken_alike(log)


def test_unknown_actions_and_absent_ones_are_passed_over(log: LogRoot) -> None:
    commit(log, {"later": None}, {"sometime": [1]}, {"txn": {"appId": "job", "version": 1}, "add": None})
    check_taken_alike(log)
    assert load_state(LocalStore(str(log.root)), FOLDER).txns["job"].version == 1


def test_a_file_that_is_added_again_with_other_statistics_is_the_same_file(log: LogRoot) -> None:
    """Spark's ANALYZE TABLE adds it so."""
    added = change(log, 2, "add")
    commit(log, {"add": {**added, "dataChange": False}})
    check_taken_alike(log)


def test_a_high_watermark_that_no_log_can_have_is_not_believed(log: LogRoot) -> None:
    change(log, 3, "txn", version=1 << 80)
    with pytest.raises(StorageDamaged, match="64 bits"):
        log.open()
    repair(log)
    assert log.open().state.high_watermark == 30


def test_a_mark_of_the_byte_order_is_no_json_to_any_reader(log: LogRoot) -> None:
    path = path_of(log, 2)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(StorageDamaged):
        log.open()
    assert [breach.promise for breach in log.verify().breaches] == ["versions are whole"]


@pytest.mark.parametrize("damage", ["truncated", "unnamed", "lost"])
def test_files_are_described_from_the_checkpoint_that_can_be_read(log: LogRoot, damage: str) -> None:
    log.table.cleanup.write_checkpoint()
    log.append(2)
    log.table.cleanup.write_checkpoint()
    log.append()
    newest, hint = log.log / f"{5:020}.checkpoint.parquet", log.log / LAST_CHECKPOINT
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-9])
    else:
        (hint if damage == "unnamed" else newest).unlink()
    store = LocalStore(str(log.root))
    summary = describe_partition(store, PARTITION)
    entries = load_entries(store, summary, summary.files)
    assert [entry["stats"]["numRecords"] for entry in entries] == [10] * 6
    assert summary.checkpoint_lag == (1 if damage == "unnamed" else 3)
