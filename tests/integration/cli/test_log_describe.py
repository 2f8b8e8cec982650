"""`bus log describe` of a table whose every part is known."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bus.cli.main import cli
from bus.ports import Committed
from tests.support.log_root import LogRoot
from tests.support.stores import NOW_MS
from tests.support.transactions import KEY, abort_transaction, apply_transaction, staged_batch

# A checkpoint leaves out what was removed long ago, by the clock of the library that writes it.
SWAPPED_MS = time.time_ns() // 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """Three files compacted into one, a checkpoint, then two more."""
    log = LogRoot(tmp_path / "root")
    log.append(3)
    prepared = log.table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=0)
    assert prepared is not None
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=SWAPPED_MS), Committed)
    log.table.cleanup.write_checkpoint()
    log.append(2)
    return log


def describe(log: LogRoot, target: str, form: str) -> str:
    result = CliRunner().invoke(
        cli, ["log", "describe", target, "--root", str(log.root), "--format", form], prog_name="bus"
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_detail_of_a_partition_counts_what_is_live_kept_and_orphaned(log: LogRoot) -> None:
    kept = [
        path
        for path in log.folder.glob("*.parquet")
        if path.name not in {file.path for file in log.table.rewrites.files}
    ]
    (log.folder / f"{50:020d}-left.parquet").write_bytes(b"half")
    (one,) = json.loads(describe(log, "orders/0", "json"))
    compacted, *appended = log.table.rewrites.files
    dirty = sum(file.size_bytes for file in appended)
    levels: list[dict[str, Any]] = [{"level": 0, "file_count": 2, "size_bytes": dirty}]
    if compacted.level:
        levels.append({"level": compacted.level, "file_count": 1, "size_bytes": compacted.size_bytes})
    assert one["files_by_level"] == levels
    assert (one["compacted_to"], one["dirty_files"], one["dirty_bytes"]) == (30, 2, dirty)
    assert one["dirty_ratio"] == round(dirty / (dirty + compacted.size_bytes), 3)
    assert one["reclaimable"] == sum(path.stat().st_size for path in kept)
    assert sorted(one["kept_files"]) == sorted(path.name for path in kept)
    assert one["orphan_files"] == {f"{50:020d}-left.parquet": 4}
    assert (one["checkpoint"], one["checkpoint_lag"], one["checkpoint_ms"]) == (4, 2, SWAPPED_MS)
    assert one["log_files"] == 8
    assert one["log_size"] == sum(path.stat().st_size for path in log.log.iterdir() if path.name[0] == "0")


def test_the_listing_has_the_same_figures_in_every_form(log: LogRoot) -> None:
    (row,) = json.loads(describe(log, "orders", "json"))
    assert (row["log_start"], row["orphans"], row["checkpoint_lag"]) == (0, 0, 2)
    head, cells = describe(log, "orders", "csv").splitlines()
    assert dict(zip(head.split(","), cells.split(","), strict=True)) == {name: str(cell) for name, cell in row.items()}
    title, values = describe(log, "orders", "table").splitlines()[1:]
    assert "RECLAIMABLE" in title
    assert "BEHIND" in title
    assert row["levels"] in values


def test_a_log_to_which_no_leader_has_committed_has_no_leader_epoch(tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    assert json.loads(describe(log, "orders", "json"))[0]["leader_epoch"] is None
    (one,) = json.loads(describe(log, "orders/0", "json"))
    assert (one["leader_epoch"], one["newest_versions"][0]["leader_epoch"]) == (None, None)
    assert "LeaderEpoch:  none has committed yet" in describe(log, "orders/0", "table")


def test_a_log_that_was_never_compacted_has_no_dirty_ratio(tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(1)
    (one,) = json.loads(describe(log, "orders/0", "json"))
    assert (one["dirty_ratio"], one["compacted_to"], one["dirty_files"]) == (None, 0, 1)
    assert "Dirty:" not in describe(log, "orders/0", "table")


def test_people_read_facts(log: LogRoot) -> None:
    log.table.cleanup.advance_log_start(35, leader_epoch=0, now_ms=NOW_MS)
    text = describe(log, "orders/0", "table")
    assert "log start 35, high watermark 50" in text
    assert "of version 4, 3 versions behind" in text
    assert "up to offset 30" in text
    assert "files, " in text.split("Reclaimable:")[1].splitlines()[0]


def test_transactions_are_told_by_their_proofs_and_by_what_is_staged(tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    for number in range(3):
        apply_transaction(log.table, "orders\n1", number, now_ms=NOW_MS + number)
    abort_transaction(log.table, "bills", 8, now_ms=NOW_MS + 5)
    log.table.transactions.staged.stage(KEY, staged_batch(0, b"open", b"still"))
    (one,) = json.loads(describe(log, "orders/0", "json"))
    assert one["transactional_ids"] == 2
    assert one["newest_transactions"] == [
        {"transactional_id": "orders\n1", "number": 2, "is_applied": True, "ended_ms": NOW_MS + 2},
        {"transactional_id": "bills", "number": 8, "is_applied": False, "ended_ms": NOW_MS + 5},
    ]
    (staged,) = one["staged_transactions"]
    (path,) = (log.folder / "_staged" / "7").iterdir()
    assert staged["size_bytes"] == path.stat().st_size
    assert (staged["coordinator_partition"], staged["producer_id"], staged["producer_epoch"]) == (7, 41, 3)
    assert (staged["last_sequence"], one["records"], one["orphans"]) == (1, 6, 0)


def test_people_read_how_transactions_ended(tmp_path: Path) -> None:
    log = LogRoot(tmp_path / "root")
    assert "Transactions" not in describe(log, "orders/0", "table")
    apply_transaction(log.table, "orders\n1", 2)
    abort_transaction(log.table, "bills", 8, now_ms=NOW_MS + 5)
    log.table.transactions.staged.stage(KEY, staged_batch(0, b"open", b"still"))
    shown = describe(log, "orders/0", "table")
    assert "Transactions, the newest 2 of 2:" in shown
    cells = [line.split()[:3] for line in shown.splitlines()]
    assert ["orders\\n1", "2", "committed"] in cells
    assert ["bills", "8", "aborted"] in cells
    assert ["7", "41", "3"] in cells[shown.splitlines().index("Staged, not in the table:") :]
