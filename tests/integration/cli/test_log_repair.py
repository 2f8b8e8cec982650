"""Every kind of damage that stops a partition: a dry run says what would be done, and doing it gives a table that
opens, keeps every promise of the log and has all records that could still be read."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.errors import StorageDamaged, StorageFault
from bus.ports import Committed, ProducerProgress
from bus.records.arrow_batches import complete_columns
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.root import open_storage
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.stores.store import ObjectStore, temporary_name
from tests.support.log_root import COUNT, PARTITION, TOPIC_ID, LogRoot
from tests.support.stores import NOW_MS, log_batch
from tests.support.version_files import without_sum

COMMITS = 6
RECORDS = COMMITS * COUNT
FOREIGN = {"operation": "X", "engineInfo": "Apache-Spark/4.2.0", "timestamp": NOW_MS}


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """Versions 0 to 6, a checkpoint of version 3."""
    log = LogRoot(tmp_path / "root")
    log.append(3)
    log.table.cleanup.write_checkpoint()
    log.append(3)
    return log


def repair(log: LogRoot, *options: str, target: str = "orders/0") -> Result:
    arguments = ["log", "repair", target, "--root", str(log.root), "--format", "json", *options]
    return CliRunner().invoke(cli, arguments, prog_name="bus")


def steps(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def fingerprint(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".bus-lock")
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def merge(log: LogRoot, source: pa.Table) -> Any:
    """Begin a MERGE of another engine into the partition, matched by offset."""
    table = deltalake.DeltaTable(str(log.folder))
    return table.merge(source, "t.offset = s.offset", source_alias="s", target_alias="t")


def test_a_merge_of_another_engine_that_changes_rows_is_named_and_taken_back(log: LogRoot) -> None:
    source = pa.table({"offset": pa.array([3, 4], pa.int64()), "value": pa.array([b"x", b"y"], pa.binary())})
    merge(log, source).when_matched_update({"value": "s.value"}).execute()
    author = "MERGE of delta-rs:"
    told = [breach for breach in log.verify().breaches if breach.promise == "offsets are dense"]
    assert told[0].version == COMMITS + 1
    assert f"found 0, by {author}" in str(told[0])
    assert "only the broker changes records, and `bus log repair` undoes it" in str(told[0])
    with pytest.raises(
        StorageDamaged, match=f"{author}.* removed records of .*, which only the broker may; undo it by"
    ):
        log.open()
    assert any(author in step["detail"] for step in steps(repair(log, "--execute")))
    check_mended(log, offsets_but())


def test_what_a_killed_repair_left_unfinished_goes_with_the_next_one(log: LogRoot) -> None:
    version(log, 5).write_bytes(b"torn")
    quarantine = log.root / "quarantine" / "orders" / "0"
    left = [folder / temporary_name("x.parquet") for folder in (quarantine, quarantine / "_delta_log", log.log)]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    repair(log)
    assert all(file.exists() for file in left), "a dry run changes nothing"
    steps(repair(log, "--execute"))
    assert [file for file in left if file.exists()] == []


def offsets_but(*lost: Iterable[int]) -> list[int]:
    gone = {offset for some in lost for offset in some}
    return [offset for offset in range(RECORDS) if offset not in gone]


def check_mended(log: LogRoot, offsets: list[int], *, high_watermark: int = RECORDS) -> None:
    """It opens, keeps its promises and has these records; goes on; and another Delta reader sees the same."""
    table = log.open()
    assert table.state.high_watermark == high_watermark
    assert log.values() == [b"%d" % offset for offset in offsets]
    assert log.verify().breaches == []
    log.append(1)
    expected = {*offsets, *range(high_watermark, high_watermark + COUNT)}
    assert set(deltalake.DeltaTable(str(log.folder)).to_pyarrow_table().column("offset").to_pylist()) == expected
    table.cleanup.write_checkpoint()
    log.open()
    assert log.verify().breaches == []
    assert steps(repair(log)) == []


def version(log: LogRoot, number: int) -> Path:
    return log.log / f"{number:020d}.json"


def checkpoint(log: LogRoot, number: int) -> Path:
    return log.log / f"{number:020d}.checkpoint.parquet"


def foreign_version(log: LogRoot, number: int, *actions: dict[str, Any], operation: str) -> None:
    lines = [{"commitInfo": {**FOREIGN, "operation": operation}}, *actions]
    version(log, number).write_text("".join(json.dumps(line) + "\n" for line in lines))


def foreign_rows(log: LogRoot, name: str, rows: pa.Table) -> dict[str, Any]:
    pq.write_table(rows, log.folder / name)
    size = (log.folder / name).stat().st_size
    stats = json.dumps({"numRecords": rows.num_rows})
    add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True, "stats": stats}
    return {"add": add}


def rows(base: int, end: int) -> pa.Table:
    batch = log_batch(base, [b"%d" % offset for offset in range(base, end)])
    return pa.Table.from_batches([complete_columns(batch)])


def remove(path: Path, *, is_data_change: bool) -> dict[str, Any]:
    return {"remove": {"path": path.name, "dataChange": is_data_change, "deletionTimestamp": NOW_MS}}


# ---------------------------------------------------------------- the damages


@dataclass(frozen=True)
class Damage:
    inflict: Callable[[LogRoot], None]
    says: tuple[tuple[str, str], ...]  # of some steps: action, and a part of its subject or detail
    lost: range = range(0)
    high_watermark: int = RECORDS


def truncate(path: Path, keep: int = 20) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0xFF
    path.write_bytes(data)


def lose_versions_and_checkpoint(log: LogRoot) -> None:
    truncate(checkpoint(log, 3))
    for number in range(3):
        version(log, number).unlink()


def tear_last(log: LogRoot) -> None:
    truncate(version(log, 6), 200)


def tear_last_and_its_file(log: LogRoot) -> None:
    tear_last(log)
    truncate(log.data_file(50))


def torn_orphan_version(log: LogRoot) -> None:
    version(log, 7).write_bytes(b'{"commitInfo"')


def overlap(log: LogRoot) -> None:
    path = version(log, 5)
    path.write_bytes(without_sum(path.read_bytes()).replace(b'"bus.file":"40 50', b'"bus.file":"35 50'))


def foreign_delete(log: LogRoot) -> None:
    foreign_version(log, 7, remove(log.data_file(20), is_data_change=True), operation="DELETE")


def foreign_delete_and_vacuum(log: LogRoot) -> None:
    foreign_delete(log)
    log.data_file(20).unlink()


def foreign_append_without_offsets(log: LogRoot) -> None:
    table = rows(60, 62).select(["key", "value"])
    foreign_version(log, 7, foreign_rows(log, "part-0.parquet", table), operation="WRITE")


def foreign_append_of_other_offsets(log: LogRoot) -> None:
    foreign_version(log, 7, foreign_rows(log, "part-0.parquet", rows(0, 5)), operation="WRITE")


def foreign_update(log: LogRoot) -> None:
    gone = remove(log.data_file(10), is_data_change=True)
    foreign_version(log, 7, gone, foreign_rows(log, "part-0.parquet", rows(10, 20)), operation="UPDATE")


def foreign_hole(log: LogRoot) -> None:
    foreign_version(log, 7, remove(log.data_file(20), is_data_change=False), operation="FSCK")


def newer_protocol(log: LogRoot) -> None:
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}}
    foreign_version(log, 7, protocol, operation="UPGRADE PROTOCOL")


def changed_column(log: LogRoot) -> None:
    metadata = next(line for line in version(log, 0).read_text().splitlines() if "metaData" in line)
    changed = metadata.replace('\\"name\\":\\"key\\"', '\\"name\\":\\"cle\\"')
    assert changed != metadata
    foreign_version(log, 7, json.loads(changed), operation="ALTER TABLE")


def other_topic_id(log: LogRoot) -> None:
    metadata = next(line for line in version(log, 0).read_text().splitlines() if "metaData" in line)
    foreign_version(log, 7, json.loads(metadata.replace("bus.topic_id", "topic_id")), operation="REPLACE TABLE")


def no_log_at_all(log: LogRoot) -> None:
    shutil.rmtree(log.log)


DAMAGES = {
    "a truncated checkpoint, all versions there": Damage(
        lambda log: truncate(checkpoint(log, 3)),
        (("quarantine", "checkpoint"), ("checkpoint", "0006.checkpoint.parquet")),
    ),
    "a missing checkpoint that is named": Damage(
        lambda log: checkpoint(log, 3).unlink(),
        (("find", "names no checkpoint"), ("checkpoint", "0006.checkpoint.parquet")),
    ),
    "a wrong hint": Damage(
        lambda log: (log.log / "_last_checkpoint").write_text('{"version":2}') and None,
        (("find", "_last_checkpoint"),),
    ),
    "a missing hint": Damage(
        lambda log: (log.log / "_last_checkpoint").unlink(), (("checkpoint", "_last_checkpoint"),)
    ),
    "a truncated checkpoint, versions before it gone": Damage(
        lose_versions_and_checkpoint, (("find", "is missing"), ("commit", "0007.json"), ("checkpoint", "0007"))
    ),
    "a gap in the versions behind the checkpoint": Damage(
        lambda log: version(log, 5).unlink(),
        (("find", "0005.json is missing"), ("commit", "0007.json"), ("quarantine", "0006.json")),
    ),
    "a gap in the versions before the checkpoint": Damage(
        lambda log: version(log, 1).unlink(), (("quarantine", "0002.json"), ("quarantine", "0000.json"))
    ),
    "a torn version in the middle": Damage(
        lambda log: truncate(version(log, 5)), (("find", "0005.json"), ("bring back", "0040-"))
    ),
    "a torn last version that acknowledged nothing": Damage(torn_orphan_version, (("quarantine", "0007.json"),)),
    "a torn last version whose data file is there": Damage(
        tear_last, (("quarantine", "0006.json"), ("bring back", "0050-"), ("commit", "0006.json"))
    ),
    "a torn last version whose data file is torn too": Damage(
        tear_last_and_its_file, (("quarantine", "0006.json"), ("quarantine", "0050-")), range(50, 60), 50
    ),
    "a data file missing": Damage(
        lambda log: log.data_file(20).unlink(),
        (("find", "there is no such file"), ("give up", "offsets 20 to 29"), ("drop", "0020-")),
        range(20, 30),
    ),
    "the first data file missing": Damage(
        lambda log: log.data_file(0).unlink(), (("give up", "offsets 0 to 9"),), range(10)
    ),
    "the last data file missing": Damage(
        lambda log: log.data_file(50).unlink(), (("give up", "offsets 50 to 59"),), range(50, 60)
    ),
    "a data file of another size": Damage(
        lambda log: truncate(log.data_file(20), 500),
        (("find", "cannot be read"), ("quarantine", "0020-"), ("give up", "offsets 20 to 29")),
        range(20, 30),
    ),
    "a data file that rotted": Damage(
        lambda log: flip(log.data_file(20)), (("find", "cannot be read"), ("quarantine", "0020-")), range(20, 30)
    ),
    "offsets that overlap": Damage(overlap, (("find", "expected them from 40"), ("undo", "versions 5 to 6"))),
    "records removed by another engine": Damage(
        foreign_delete, (("find", "DELETE of Apache-Spark/4.2.0"), ("undo", "versions 7 to 7"), ("commit", "0008.json"))
    ),
    "records removed by another engine, and their file deleted": Damage(
        foreign_delete_and_vacuum,
        (("find", "DELETE of Apache-Spark/4.2.0"), ("give up", "offsets 20 to 29")),
        range(20, 30),
    ),
    "records updated by another engine": Damage(foreign_update, (("find", "UPDATE"), ("drop", "part-0.parquet"))),
    "rows without offsets": Damage(
        foreign_append_without_offsets, (("find", "WRITE of Apache-Spark"), ("drop", "part-0.parquet"))
    ),
    "rows with other offsets": Damage(
        foreign_append_of_other_offsets, (("find", "expected them from 60"), ("drop", "part-0.parquet"))
    ),
    "a hole that another engine left": Damage(
        foreign_hole, (("find", "files with 10 records by files with 0"), ("bring back", "0020-"))
    ),
    "a protocol that is too new": Damage(newer_protocol, (("find", "protocol to (3, 7)"), ("undo", "versions 7"))),
    "other columns": Damage(changed_column, (("find", "changed the table's columns"), ("undo", "versions 7"))),
    "another topic id": Damage(other_topic_id, (("find", "changed the topic id"), ("undo", "versions 7"))),
    "no log at all": Damage(no_log_at_all, (("find", "no version and no checkpoint"), ("commit", "0000.json"))),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_then_mended_without_losing_what_can_be_read(log: LogRoot, name: str) -> None:
    damage = DAMAGES[name]
    damage.inflict(log)
    before = fingerprint(log.root)
    told = steps(repair(log))
    assert fingerprint(log.root) == before  # a dry run changes nothing
    for action, part in damage.says:
        assert any(step["action"] == action and part in f"{step['subject']} {step['detail']}" for step in told), told
    done = steps(repair(log, "--execute"))
    assert [(step["action"], step["subject"]) for step in done] == [(step["action"], step["subject"]) for step in told]
    check_mended(log, offsets_but(damage.lost), high_watermark=damage.high_watermark)


class DyingStore:
    """Another store of which nothing more is to be had after so many changes."""

    def __init__(self, store: ObjectStore, changes: int) -> None:
        self._store = store
        self._left = changes

    def __getattr__(self, operation: str) -> Any:
        found = getattr(self._store, operation)
        if operation not in ("create", "write_unique", "put", "delete"):
            return found

        def change(*args: Any) -> Any:
            if self._left == 0:
                raise StorageFault("the process was killed")
            self._left -= 1
            return found(*args)

        return change


@pytest.mark.parametrize(
    "name",
    [
        "a gap in the versions behind the checkpoint",
        "a gap in the versions before the checkpoint",
        "a torn last version whose data file is there",
        "a data file that rotted",
        "records removed by another engine, and their file deleted",
    ],
)
def test_a_repair_that_was_killed_at_any_step_is_ended_by_the_next_one(log: LogRoot, tmp_path: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.inflict(log)
    for changes in itertools.count(0):
        again = LogRoot.copy_of(log, tmp_path / f"killed-after-{changes}")
        store: Any = DyingStore(LocalStore(str(again.root)), changes)
        try:
            repair_partition(store, PARTITION, topic_id=TOPIC_ID, now_ms=NOW_MS, is_rehearsal=False)
            break
        except StorageFault:
            steps(repair(again, "--execute"))
        again.open()
        assert again.values() == [b"%d" % offset for offset in offsets_but(damage.lost)]
        assert again.verify().breaches == []
    assert changes >= 2


def test_what_is_taken_out_lies_in_the_quarantine_with_the_report(log: LogRoot) -> None:
    lost = log.data_file(20)
    truncate(lost, 500)
    bytes_before = lost.read_bytes()
    done = steps(repair(log, "--execute"))
    kept = log.root / "quarantine/orders/0"
    assert (kept / lost.name).read_bytes() == bytes_before
    assert not lost.exists()
    (report,) = kept.glob("repair-*.jsonl")
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["action"], line["subject"], line["detail"]) for line in lines] == [
        (step["action"], step["subject"], step["detail"]) for step in done
    ]
    assert all(line["dry_run"] is False for line in lines)


def test_the_report_goes_where_it_is_asked_for(log: LogRoot, tmp_path: Path) -> None:
    log.data_file(20).unlink()
    report = tmp_path / "report.jsonl"
    steps(repair(log, "--report", str(report)))
    lost = next(line for line in map(json.loads, report.read_text().splitlines()) if line["action"] == "give up")
    assert (lost["first_offset"], lost["last_offset"], lost["dry_run"]) == (20, 29, True)


def test_a_sound_table_has_nothing_to_mend(log: LogRoot) -> None:
    before = fingerprint(log.root)
    result = repair(log, "--execute")
    assert steps(result) == []
    assert "nothing to mend" in result.stderr
    assert fingerprint(log.root) == before


def test_records_of_a_lost_file_come_back_from_the_files_that_it_replaced(log: LogRoot) -> None:
    prepared = log.table.rewrites.prepare_roll(
        log.table.rewrites.files[:4], compression="none", now_ms=NOW_MS, tombstone_retention_ms=0
    )
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    rolled = log.folder / log.table.rewrites.files[0].path
    flip(rolled)
    told = steps(repair(log))
    assert not any(step["action"] == "give up" for step in told)
    assert sum(step["action"] == "bring back" for step in told) == 4
    steps(repair(log, "--execute"))
    check_mended(log, offsets_but())


def test_records_of_a_lost_compacted_file_come_back_from_what_was_compacted(log: LogRoot) -> None:
    prepared = log.table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=0)
    assert prepared is not None
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    (compacted,) = log.table.rewrites.files
    (log.folder / compacted.path).unlink()
    told = steps(repair(log, "--execute"))
    assert not any(step["action"] == "give up" for step in told)
    check_mended(log, offsets_but())


def test_a_table_that_another_engine_rewrote_has_nothing_to_mend(log: LogRoot) -> None:
    removes = [{"remove": {**remove(log.data_file(base), is_data_change=False)["remove"]}} for base in (10, 20)]
    add = foreign_rows(log, "part-0.parquet", rows(10, 30).sort_by([("offset", "descending")]))
    add["add"] |= {"dataChange": False}
    foreign_version(log, 7, *removes, add, operation="OPTIMIZE")
    assert steps(repair(log)) == []
    (log.folder / "part-0.parquet").unlink()
    assert any(step["action"] == "bring back" for step in steps(repair(log, "--execute")))
    log.open()
    assert log.values() == [b"%d" % offset for offset in range(RECORDS)]


def test_given_up_offsets_survive_rolling_checkpoints_and_another_loss(log: LogRoot) -> None:
    log.data_file(20).unlink()
    steps(repair(log, "--execute"))
    table = log.open()
    prepared = table.rewrites.prepare_roll(
        table.rewrites.files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=0
    )
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    log.append(2)
    log.data_file(60).unlink()
    (lost,) = [step for step in steps(repair(log, "--execute")) if step["action"] == "give up"]
    assert (lost["first_offset"], lost["last_offset"]) == (60, 69)
    log.open().cleanup.write_checkpoint()
    table = log.open()
    assert log.values() == [b"%d" % offset for offset in [*offsets_but(range(20, 30)), *range(70, 80)]]
    report = log.verify()
    assert report.breaches == []
    assert [note for note in report.notes if "given up" in note] == [
        "offsets 20 to 29 were given up by a repair: no record of theirs is left",
        "offsets 60 to 69 were given up by a repair: no record of theirs is left",
    ]


def test_a_producer_whose_commit_was_lost_is_known_again_by_its_rows(log: LogRoot) -> None:
    batch = log_batch(RECORDS, [b"60", b"61"], producer=(7, 2, 40))
    progress = [ProducerProgress(7, 2, 41)]
    log.table.append([batch], leader_epoch=0, now_ms=NOW_MS, producers=progress)
    truncate(version(log, 7))
    steps(repair(log, "--execute"))
    found = log.open().producers.progress[7]
    assert (found.producer_epoch, found.last_sequence) == (2, 41)
    assert log.verify().breaches == []


@pytest.mark.parametrize("lost", [5, 8], ids=["before its version", "behind its version"])
def test_records_that_retention_let_go_do_not_come_back(log: LogRoot, lost: int) -> None:
    log.table.cleanup.advance_log_start(25, leader_epoch=0, now_ms=NOW_MS)
    log.append(1)
    truncate(version(log, lost))
    steps(repair(log, "--execute"))
    table = log.open()
    assert (table.state.log_start, table.state.high_watermark) == (25, RECORDS + COUNT)
    assert log.values() == [b"%d" % offset for offset in range(25, RECORDS + COUNT)]
    assert log.verify().breaches == []


def test_a_root_that_brokers_hold_is_refused_by_name(log: LogRoot) -> None:
    log.data_file(20).unlink()
    storages = [
        open_storage(str(log.root), broker_id=number, holder=f"broker {number} of this test") for number in (7, 8)
    ]
    try:
        for options in ((), ("--execute",)):
            result = repair(log, *options)
            assert result.exit_code == 1
            assert "in use by broker 7 of this test and by broker 8 of this test; stop them first" in result.stderr
    finally:
        for storage in storages:
            storage.close()
    assert steps(repair(log))


def test_a_table_of_something_newer_is_left_alone(log: LogRoot) -> None:
    for path in [checkpoint(log, 3), log.log / "_last_checkpoint"]:
        path.unlink()
    data = without_sum(version(log, 0).read_bytes())
    version(log, 0).write_bytes(data.replace(b'"minReaderVersion":1', b'"minReaderVersion":3'))
    before = fingerprint(log.root)
    result = repair(log, "--execute")
    assert result.exit_code == 1
    assert "found (3, 2): a newer bus wrote this table" in result.stderr
    assert fingerprint(log.root) == before


def test_a_table_of_which_nothing_is_left_is_not_made_up(log: LogRoot) -> None:
    shutil.rmtree(log.folder)
    result = repair(log, "--execute")
    assert result.exit_code == 1
    assert "found none" in result.stderr
    with pytest.raises(StorageDamaged):
        log.open()


def test_the_metadata_of_the_cluster_can_be_mended_too(log: LogRoot) -> None:
    metadata = log.root / "topics/__cluster_metadata/0/_delta_log"
    (metadata / f"{2:020d}.json").write_bytes(b"{")
    assert steps(repair(log, "--execute", target="__cluster_metadata"))
    assert steps(repair(log, target="__cluster_metadata")) == []
    log.open()
