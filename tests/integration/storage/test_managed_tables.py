"""Tables that name the writer feature `busManaged`: no other engine writes to them, and every one reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from bus.ports import Committed
from bus.storage_delta.log.listing import version_name
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from tests.support.duckdb_delta import query_by_duckdb
from tests.support.log_root import COUNT, PARTITION, TOPIC_ID, LogRoot
from tests.support.stores import NOW_MS

MANAGED = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "invariants", "busManaged"]}
OPEN = {"minReaderVersion": 1, "minWriterVersion": 2}


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """A managed table with a checkpoint of version 4 and two versions behind it."""
    log = LogRoot(tmp_path, is_managed=True)
    log.append(4)
    log.table.cleanup.write_checkpoint()
    log.append(2)
    return log


def set_managed(log: LogRoot, wanted: bool) -> None:
    outcome = log.table.set_managed(wanted, leader_epoch=0, now_ms=NOW_MS)
    assert isinstance(outcome, Committed)


def protocol(log: LogRoot) -> tuple[int, int, list[str] | None]:
    found = deltalake.DeltaTable(str(log.folder)).protocol()
    assert found.reader_features is None
    return found.min_reader_version, found.min_writer_version, found.writer_features


@contextmanager
def untouched(log: LogRoot) -> Iterator[None]:
    """Nothing below the table's folder comes, goes or changes."""
    before = {path: path.read_bytes() for path in log.folder.rglob("*") if path.is_file()}
    yield
    assert {path: path.read_bytes() for path in log.folder.rglob("*") if path.is_file()} == before


# ------------------------------------------------------------------ readers

READERS: dict[str, Callable[[str], list[int]]] = {
    "delta-rs": lambda url: deltalake.DeltaTable(url).to_pyarrow_table(columns=["offset"])["offset"].to_pylist(),
    "DuckDB over delta-rs": lambda url: [
        row[0]
        for row in duckdb.from_arrow(deltalake.DeltaTable(url).to_pyarrow_dataset()).select('"offset"').fetchall()
    ],
    "DuckDB's extension": lambda url: [
        row[0] for row in query_by_duckdb(f"""SELECT "offset" FROM delta_scan('{url}')""")
    ],
    "Polars": lambda url: polars.scan_delta(url).select("offset").collect()["offset"].to_list(),
}


@pytest.mark.parametrize("engine", READERS)
def test_every_engine_reads_it(log: LogRoot, engine: str) -> None:
    assert sorted(READERS[engine](str(log.folder))) == list(range(6 * COUNT))


def test_every_version_is_read(log: LogRoot) -> None:
    for version in range(7):
        read = deltalake.DeltaTable(str(log.folder), version=version).to_pyarrow_table(columns=["offset"])
        assert read.num_rows == version * COUNT
        assert polars.read_delta(str(log.folder), version=version, columns=["offset"]).height == version * COUNT


# ------------------------------------------------------------------ writers


def rows(log: LogRoot) -> pa.Table:
    return deltalake.DeltaTable(str(log.folder)).to_pyarrow_table()


def merge(table: deltalake.DeltaTable) -> Any:
    source = table.to_pyarrow_table()
    merger = table.merge(source, "t.offset = s.offset", source_alias="s", target_alias="t")
    return merger.when_matched_update_all().when_not_matched_insert_all().execute()


WRITES: dict[str, Callable[[deltalake.DeltaTable], Any]] = {
    "append": lambda table: deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append"),
    "overwrite": lambda table: deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="overwrite"),
    "delete": lambda table: table.delete("offset = 3"),
    "delete all": lambda table: table.delete(),
    "update": lambda table: table.update({"key": "value"}),
    "merge": merge,
    "optimize": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["timestamp"]),
    "restore": lambda table: table.restore(2),
    "vacuum, forced": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "constraint": lambda table: table.alter.add_constraint({"positive": "offset >= 0"}),
}


@pytest.mark.parametrize("write", WRITES)
def test_delta_rs_refuses_to_write_and_changes_no_file(log: LogRoot, write: str) -> None:
    (log.folder / "00000000000000000060-orphan.parquet").write_bytes(b"of a commit that was interrupted")
    with untouched(log), pytest.raises(DeltaError, match=r"(?i)unsupported.*feature"):
        WRITES[write](deltalake.DeltaTable(str(log.folder)))


def test_what_delta_rs_does_not_refuse_finds_nothing_to_do(log: LogRoot) -> None:
    """Its VACUUM keeps what is younger than the table says, its repair looks for data files that are gone."""
    (log.folder / "00000000000000000060-orphan.parquet").write_bytes(b"of a commit that was interrupted")
    table = deltalake.DeltaTable(str(log.folder))
    with untouched(log):
        assert table.vacuum(dry_run=False) == []
        assert table.repair()["files_removed"] == []


def test_polars_refuses_to_write_and_changes_no_file(log: LogRoot) -> None:
    frame = polars.read_delta(str(log.folder))
    with untouched(log), pytest.raises(DeltaError, match=r"(?i)unsupported.*feature"):
        frame.write_delta(str(log.folder), mode="append")


@pytest.mark.parametrize("is_managed", [True, False])
def test_rows_that_an_engine_wrote_before_it_was_refused_are_orphans(tmp_path: Path, is_managed: bool) -> None:
    """Such a file may be about to be committed where other engines may write, and is theirs to remove."""
    log = LogRoot(tmp_path, is_managed=is_managed)
    log.append()
    left = [log.folder / name for name in ("part-00000-1.snappy.parquet", ".part-00000-1.snappy.parquet.crc")]
    kept = log.folder / "of-somebody.parquet"
    for path in (*left, kept):
        path.write_bytes(b"rows")
    log.open()
    orphans = log.table.cleanup.find_orphans()
    assert log.table.cleanup.delete_orphans(orphans) == len(orphans) == is_managed
    assert [path.exists() for path in (*left, kept)] == [not is_managed, not is_managed, True]
    assert log.values() == [b"%d" % offset for offset in range(COUNT)]
    assert log.verify().breaches == []


def test_files_that_an_engine_has_committed_before_the_switch_are_no_orphans(tmp_path: Path) -> None:
    log = LogRoot(tmp_path)
    log.append(3)
    assert deltalake.DeltaTable(str(log.folder)).optimize.compact()["numFilesAdded"] == 1
    log.table.reload()
    set_managed(log, True)
    assert log.open().cleanup.find_orphans() == frozenset()
    files = log.table.rewrites.files
    prepared = log.table.rewrites.prepare_roll(files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1)
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    for _ in range(2):
        assert log.table.cleanup.find_orphans() == frozenset()  # older versions have the file of the engine
        log.table.cleanup.write_checkpoint()
        log.open()


# ------------------------------------------------------------------ the switch


def test_an_older_table_is_switched_while_it_is_read_and_back(tmp_path: Path) -> None:
    log = LogRoot(tmp_path)
    log.append(2)
    reader = log.storage.open_partition(PARTITION, topic_id=TOPIC_ID)
    assert not log.table.is_managed
    for wanted, expected in ((True, MANAGED), (False, OPEN), (True, MANAGED)):
        before = log.table.state
        set_managed(log, wanted)
        assert log.table.is_managed == wanted
        after = log.table.state
        assert (after.version, after.high_watermark) == (before.version + 1, before.high_watermark)
        assert protocol(log) == (*list(expected.values())[:2], expected.get("writerFeatures"))
        assert reader.follow() == after
        log.append()
        assert log.open().is_managed == wanted
    log.table.cleanup.write_checkpoint()
    assert log.open().is_managed
    assert reader.follow().high_watermark == 5 * COUNT
    assert log.verify().breaches == []
    assert sorted(rows(log)["offset"].to_pylist()) == list(range(5 * COUNT))


def test_the_next_leader_knows_without_reading_the_log_again(tmp_path: Path) -> None:
    """It takes over what it has followed, with a fence."""
    log = LogRoot(tmp_path)
    follower = log.storage.open_partition(PARTITION, topic_id=TOPIC_ID)
    set_managed(log, True)
    follower.follow()
    assert isinstance(follower.lead(1, NOW_MS, fence=True), Committed)
    assert follower.is_managed


def test_checkpoints_carry_it_when_its_version_is_gone(log: LogRoot) -> None:
    log.table.cleanup.write_checkpoint()
    log.table.cleanup.drop_old_versions(committed_before_ms=2**62, count_max=1, removed_before_ms=2**62)
    assert not (log.log / version_name(0)).exists()
    assert log.open().is_managed
    assert protocol(log) == tuple(MANAGED.values())
    assert log.verify().breaches == []
    with pytest.raises(DeltaError, match="feature"):
        deltalake.DeltaTable(str(log.folder)).delete()


# ------------------------------------------------------------------ verify and repair


def change_protocol(log: LogRoot, change: Callable[[dict[str, Any]], None]) -> None:
    """Another engine's version, which the features of the table do not allow."""
    body: dict[str, Any] = json.loads(json.dumps(MANAGED))
    change(body)
    info = {"commitInfo": {"operation": "UPGRADE PROTOCOL", "engineInfo": "another", "timestamp": NOW_MS}}
    lines = "\n".join(map(json.dumps, (info, {"protocol": body})))
    (log.log / version_name(log.table.state.version + 1)).write_text(lines)


def test_a_feature_that_the_bus_does_not_know_is_a_breach_and_is_undone(log: LogRoot) -> None:
    change_protocol(log, lambda body: body["writerFeatures"].append("changeDataFeed"))
    (breach,) = log.verify().breaches
    assert breach.promise == "every engine can read it"
    assert "changeDataFeed" in str(breach)
    repair(log)
    assert protocol(log) == tuple(MANAGED.values())
    assert log.open().is_managed


def repair(log: LogRoot) -> None:
    store = LocalStore(str(log.root))
    done = repair_partition(store, PARTITION, topic_id=TOPIC_ID, now_ms=NOW_MS, is_rehearsal=False)
    assert done.error is None
    assert verify_partition(store, PARTITION, topic_id=TOPIC_ID).breaches == []


def lose_version(number: int) -> Callable[[LogRoot], None]:
    return lambda log: (log.log / version_name(number)).unlink()


def lose_checkpoint_and_its_versions(log: LogRoot) -> None:
    """All that is left of the log that can be followed has lost its beginning."""
    (log.log / version_name(2)).unlink()
    next(log.log.glob("*.checkpoint.parquet")).write_bytes(b"PAR1")


@pytest.mark.parametrize("damage", [lose_version(5), lose_checkpoint_and_its_versions])
def test_a_repaired_table_is_managed_as_before(log: LogRoot, damage: Callable[[LogRoot], None]) -> None:
    damage(log)
    repair(log)
    assert log.open().is_managed
    assert log.table.state.high_watermark == 6 * COUNT
    assert protocol(log) == tuple(MANAGED.values())


def test_a_checkpoint_with_another_protocol_is_a_breach(log: LogRoot, tmp_path: Path) -> None:
    other = LogRoot.copy_of(log, tmp_path / "other")
    other.open()
    other.table.set_managed(False, leader_epoch=0, now_ms=NOW_MS)
    other.table.cleanup.write_checkpoint()
    log.append()
    (checkpoint,) = other.log.glob("*07.checkpoint.parquet")
    (log.log / checkpoint.name).write_bytes(checkpoint.read_bytes())
    breaches = [breach for breach in log.verify().breaches if "protocol" in str(breach)]
    assert [breach.promise for breach in breaches] == ["checkpoints equal a replay"]
