"""Staged files lie beside a table. Code that reads, cleans, rewrites, judges or mends the table neither reads nor
touches them, and they go with the table."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from bus.cli.main import cli
from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.ports import Committed
from bus.records.log_schema import log_schema
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.log.txns import decode_proofs
from bus.storage_delta.partition_reader import FollowingReader
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import LocalStore
from tests.support.log_root import PARTITION, TOPIC_ID, LogRoot
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, ScriptedStore, led
from tests.support.transactions import KEY, abort_transaction, apply_transaction, staged_batch

FAR_MS = 2**62
LONG_AGO_S = time.time() - 30 * 86_400


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """Transactions in the table and beside it; and what crashes and other programs may leave there, long ago."""
    log = LogRoot(tmp_path / "root")
    log.append(3)
    apply_transaction(log.table, "orders", 0, b"30", b"31")
    abort_transaction(log.table, "bills", 4)
    log.table.transactions.staged.stage(KEY, staged_batch(0, b"open", b"too"))
    staged = log.folder / "_staged"
    (staged / "7" / ".writing-0").write_bytes(b"half")
    (staged / "7" / "41-3-2-3.arrow").write_bytes(b"torn")
    (staged / "empty").mkdir()
    for place in (staged, staged / "7"):
        (place / f"{0:020d}-left.parquet").write_bytes(b"no data file")
        (place / f"{32:020d}-left.parquet").write_bytes(b"no data file")
    for path in staged.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return log


def fingerprint(log: LogRoot) -> dict[str, str]:
    files = sorted(path for path in (log.folder / "_staged").rglob("*") if path.is_file())
    return {str(path.relative_to(log.folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def delta_rs(log: LogRoot) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(log.folder))


def vacuum(log: LogRoot, *, full: bool) -> None:
    deleted = delta_rs(log).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=full)
    assert not any("_staged" in path for path in deleted)


def optimize(log: LogRoot) -> None:
    assert delta_rs(log).optimize.compact()["numFilesRemoved"] > 1


def clean(log: LogRoot) -> None:
    log.append(1)
    log.table.cleanup.write_checkpoint()
    log.append(1)
    assert log.table.cleanup.delete_orphans(log.table.cleanup.find_orphans()) == 0
    log.table.cleanup.drop_old_versions(committed_before_ms=FAR_MS, count_max=1, removed_before_ms=FAR_MS)


def rewrite(log: LogRoot) -> None:
    table = log.table
    prepared = table.rewrites.prepare_roll(
        table.rewrites.files, compression="zstd", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    compacted = table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=1)
    assert compacted is None or isinstance(table.rewrites.swap(compacted, leader_epoch=0, now_ms=NOW_MS), Committed)


def take_over(log: LogRoot) -> None:
    """Take over as another broker, behind a fence, which takes stock and puts right what a crash left."""
    other = open_storage_on(LocalStore(str(log.root)), exclusive=False).open_partition(PARTITION, topic_id=TOPIC_ID)
    (log.log / ".writing-1").write_bytes(b"half")
    os.utime(log.log / ".writing-1", (0, 0))
    assert isinstance(other.lead(1, NOW_MS, fence=True), Committed)
    assert not (log.log / ".writing-1").exists()


def repair(log: LogRoot, *options: str) -> None:
    arguments = ["log", "repair", "orders/0", "--root", str(log.root), "--format", "json", *options]
    result = CliRunner().invoke(cli, arguments, prog_name="bus")
    assert result.exit_code == 0, result.output


def repair_damage(log: LogRoot) -> None:
    (log.log / f"{2:020d}.json").write_bytes(b"torn")
    repair(log)
    repair(log, "--execute")


def follow(log: LogRoot) -> None:
    store = LocalStore(str(log.root))
    reader = FollowingReader(store, partition_folder(PARTITION), log_schema(), ReadCache(), topic_id=TOPIC_ID)
    log.append(1)
    assert reader.refresh().state == log.table.state


def checkpoint_of_delta_rs(log: LogRoot) -> None:
    delta_rs(log).create_checkpoint()


DEEDS: Sequence[Callable[[LogRoot], None]] = [
    lambda log: vacuum(log, full=False),
    lambda log: vacuum(log, full=True),
    optimize,
    checkpoint_of_delta_rs,
    clean,
    rewrite,
    take_over,
    follow,
    repair_damage,
]
NAMES = ["vacuum", "full vacuum", "optimize", "checkpoint", "clean", "rewrite", "take over", "follow", "repair"]


@pytest.mark.parametrize("do", DEEDS, ids=NAMES)
def test_what_is_staged_is_neither_read_nor_touched(log: LogRoot, do: Callable[[LogRoot], None]) -> None:
    before = fingerprint(log)
    assert len(before) == 7
    do(log)
    assert fingerprint(log) == before
    table = log.open()
    assert [value for value in log.values() if value in (b"30", b"31", b"open", b"too")] == [b"30", b"31"]
    assert (table.transactions.version_of("orders"), table.transactions.version_of("bills")) == (1, 8)
    assert log.verify().breaches == []
    assert [batch.columns.column("value").to_pylist() for batch in table.transactions.staged.read(KEY, 1)] == [
        [b"open", b"too"]
    ]


def test_other_readers_see_the_rows_and_the_proofs_and_nothing_that_is_staged(log: LogRoot) -> None:
    rows: Sequence[bytes] = delta_rs(log).to_pyarrow_table(columns=["value"]).column("value").to_pylist()
    assert sorted(rows) == sorted([*(b"%d" % offset for offset in range(32))])
    assert delta_rs(log).transaction_version("bus/txn/orders") == 1
    assert delta_rs(log).transaction_version("bus/txn/bills") == 8
    found = pa.table(deltalake.QueryBuilder().register("t", delta_rs(log)).execute("select value from t").read_all())
    assert sorted(found.column("value").to_pylist()) == sorted(rows)


@pytest.mark.parametrize("lost", ["torn", "gone"])
def test_a_repair_keeps_the_proofs_behind_the_damage(log: LogRoot, lost: str) -> None:
    """The rows behind it come back, and so does what says that they need not be applied again."""
    version = log.log / f"{2:020d}.json"
    if lost == "torn":
        version.write_bytes(b"torn")
    else:
        version.unlink()
    repair(log, "--execute")
    table = log.open()
    assert log.values() == [b"%d" % offset for offset in range(32)]
    assert (table.transactions.version_of("orders"), table.transactions.version_of("bills")) == (1, 8)
    table.cleanup.write_checkpoint()
    log.open()
    assert log.verify().breaches == []


@pytest.mark.parametrize("damage", ["version gone", "version torn", "all versions behind the checkpoint gone"])
def test_rows_come_back_with_their_proof_though_their_version_is_lost(log: LogRoot, damage: str) -> None:
    """Else the coordinator, which was not answered, would have them applied again."""
    log.table.cleanup.write_checkpoint()
    apply_transaction(log.table, 'more "', 6, b"32", epoch=6)
    version = log.log / f"{6:020d}.json"
    if damage == "version torn":
        apply_transaction(log.table, 'more "', 7, b"33", epoch=7)
        version.write_bytes(version.read_bytes()[:100])
    elif damage == "version gone":
        apply_transaction(log.table, 'more "', 7, b"33", epoch=7)
        version.unlink()
    else:
        apply_transaction(log.table, 'more "', 7, b"33", epoch=7)
        version.unlink()
        (log.log / f"{7:020d}.json").unlink()
    repair(log, "--execute")
    table = log.open()
    assert log.values()[30:] == [b"30", b"31", b"32", b"33"]
    assert table.transactions.version_of('more "') == 15
    assert (table.transactions.version_of("orders"), table.transactions.version_of("bills")) == (1, 8)
    assert log.verify().breaches == []


def test_an_interrupted_application_that_a_repair_brings_back_is_proved(log: LogRoot) -> None:
    """A crash left the data file, and no version."""
    apply_transaction(log.table, "more", 6, b"32", epoch=6)
    (log.log / f"{6:020d}.json").unlink()
    (log.log / f"{2:020d}.json").write_bytes(b"torn")
    repair(log, "--execute")
    table = log.open()
    has_rows = log.values()[-1] == b"32"
    assert table.transactions.version_of("more") == (13 if has_rows else -1)


@pytest.mark.parametrize(
    "said", [b"", b"no json", b"[1]", b'{"bus/high_watermark": 0}', b'{"bus/txn/a": -1}', b"{" * 9]
)
def test_notes_that_are_not_ours_prove_nothing(said: bytes) -> None:
    assert decode_proofs({b"bus.transactions": said}) == {}


# ------------------------------------------------------------------ the topic goes


def test_what_is_staged_goes_with_its_topic(log: LogRoot) -> None:
    log.storage.delete_topic("orders", topic_id=TOPIC_ID)
    assert not (log.root / "topics" / "orders").exists()


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_topic_of_that_name() -> None:
    name, files = TopicPartition("orders", 0), MemoryStore()
    for at in range(1, 30):
        files = MemoryStore()
        store = ScriptedStore(files)
        storage = open_storage_on(store, exclusive=False)  # type: ignore[arg-type]
        table = led(storage.create_partition(name, topic_id="one"))
        apply_transaction(table, "orders", 0)
        table.transactions.staged.stage(KEY, staged_batch(0, b"open"))
        for _ in range(at - 1):
            store.before_next("delete", lambda: None)
        store.before_next("delete", lambda: _raise(StorageFault("killed")))
        before = len(store.calls)
        try:
            storage.delete_topic("orders", topic_id="one")
        except StorageFault:
            fresh = led(storage.create_partition(name, topic_id="two"))
            assert list(fresh.transactions.staged.list()) == []
            assert fresh.state.high_watermark == 0
            assert fresh.transactions.version_of("orders") == -1
            continue
        assert not files.list("topics/orders").folders
        assert store.calls[before:].count("delete") == at - 1
        return
    raise AssertionError("expected the deletion to come to an end")


def _raise(error: Exception) -> None:
    raise error
