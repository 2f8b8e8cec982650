"""A view that follows a table shows at every version what one that is opened anew shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import StorageDamaged
from bus.ports import Committed
from bus.records.log_schema import log_schema
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.partition_reader import FollowingReader, TableView
from bus.storage_delta.stores.local import LocalStore
from tests.support.log_root import PARTITION, TOPIC_ID, LogRoot
from tests.support.stores import NOW_MS


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    log = LogRoot(tmp_path / "root")
    log.append(2)
    return log


def follow(log: LogRoot, topic_id: str = TOPIC_ID) -> FollowingReader:
    return FollowingReader(
        LocalStore(str(log.root)), partition_folder(PARTITION), log_schema(), ReadCache(), topic_id=topic_id
    )


def shown(view: TableView) -> tuple[object, ...]:
    return view.state, list(view.live_files), view.timestamp_maxima_ms[: view.state.file_count], view.compacted_to


def check(log: LogRoot, reader: FollowingReader) -> None:
    assert shown(reader.refresh()) == shown(follow(log).refresh())
    assert reader.reader.state.version == log.table.state.version
    assert reader.reader.state.high_watermark == log.table.state.high_watermark


def test_appends_are_followed_one_and_many(log: LogRoot) -> None:
    reader = follow(log)
    for commits in (1, 0, 5):
        log.append(commits)
        check(log, reader)


def test_an_append_costs_no_new_reading_of_the_log(log: LogRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = follow(log)
    log.append(3)
    monkeypatch.setattr(reader.reader, "load", lambda **_: pytest.fail("the log was read afresh"))
    assert reader.refresh().state.high_watermark == log.table.state.high_watermark


@pytest.mark.parametrize("change", ["roll", "log start", "fence"])
def test_what_removes_files_or_adds_none_costs_no_new_reading_of_the_log(
    log: LogRoot, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log.append(3)
    reader = follow(log)
    table = log.table
    if change == "roll":
        prepared = table.rewrites.prepare_roll(
            table.rewrites.files[:2], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
        )
        assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    elif change == "log start":
        assert isinstance(table.cleanup.advance_log_start(13, leader_epoch=0, now_ms=NOW_MS), Committed)
    else:
        assert isinstance(table.lead(1, NOW_MS, fence=True), Committed)
    expected = shown(follow(log).refresh())
    monkeypatch.setattr(reader.reader, "load", lambda **_: pytest.fail("the log was read afresh"))
    assert shown(reader.refresh()) == expected


def test_a_view_that_was_given_out_stays_what_it_was(log: LogRoot) -> None:
    reader = follow(log)
    view = reader.refresh()
    before = shown(view)
    log.append(3)
    reader.refresh()
    assert shown(view) == before


def test_rolled_files_are_followed(log: LogRoot) -> None:
    reader = follow(log)
    log.append()
    prepared = log.table.rewrites.prepare_roll(
        log.table.rewrites.files[:2], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    log.append()
    check(log, reader)


def test_a_log_start_that_moves_is_followed(log: LogRoot) -> None:
    reader = follow(log)
    assert isinstance(log.table.cleanup.advance_log_start(13, leader_epoch=0, now_ms=NOW_MS), Committed)
    log.append()
    check(log, reader)
    assert reader.refresh().state.log_start == 13


def test_versions_that_were_dropped_before_they_were_read_are_passed(log: LogRoot) -> None:
    reader = follow(log)
    log.append(4)
    log.table.cleanup.write_checkpoint()
    log.append()
    for version in range(log.table.state.version - 1):
        (log.log / f"{version:020}.json").unlink()
    check(log, reader)


def test_the_version_that_was_last_read_may_be_dropped(log: LogRoot) -> None:
    reader = follow(log)
    seen = reader.reader.state.version
    log.append(4)
    log.table.cleanup.write_checkpoint()
    for version in range(seen + 2):
        (log.log / f"{version:020}.json").unlink()
    check(log, reader)


def test_a_version_that_cannot_be_read_is_damage_and_named(log: LogRoot) -> None:
    reader = follow(log)
    (log.log / f"{log.table.state.version + 1:020}.json").write_text("{", encoding="utf-8")
    with pytest.raises(StorageDamaged, match=f"{log.table.state.version + 1:020}.json"):
        reader.refresh()


def test_a_table_of_another_topic_is_refused(log: LogRoot) -> None:
    with pytest.raises(StorageDamaged, match="another"):
        follow(log, topic_id="another")
