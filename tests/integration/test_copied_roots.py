"""A root that is copied at work: the documented order gives a copy that keeps every promise."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.root import open_storage
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_root
from tests.support.log_root import COUNT, PARTITION, TOPIC_ID, LogRoot
from tests.support.stores import NOW_MS

EXAMPLE = Path(__file__).parents[2] / "docs/examples/copy_root.py"


@pytest.fixture
def copy_root() -> Callable[[Path, Path], None]:
    spec = importlib.util.spec_from_file_location("copy_root", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Path, Path], None] = module.copy_root
    return found


def test_a_root_that_is_copied_while_records_come_is_whole(
    copy_root: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    log, is_copied, written = LogRoot(tmp_path / "root"), threading.Event(), threading.Semaphore(0)
    log.append(30)
    log.table.cleanup.write_checkpoint()

    def write() -> None:
        while not is_copied.is_set():
            log.append()
            written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        written.acquire()
        copy_root(log.root, tmp_path / "copy")
        while written.acquire(blocking=False):
            pass
        written.acquire()  # of the commits that ended meanwhile none may be behind the copy; this one or the next is
        written.acquire()
    finally:
        is_copied.set()
        writer.join()
    copied = LogRoot.__new__(LogRoot)
    copied._place(tmp_path / "copy")
    assert [breach for report in verify_root(LocalStore(str(copied.root))) for breach in report.breaches] == []
    end = copied.open().state.high_watermark
    assert 31 * COUNT <= end < log.table.state.high_watermark
    assert copied.values() == [b"%d" % offset for offset in range(end)]
    found = deltalake.DeltaTable(str(copied.folder)).to_pyarrow_table().column("offset").to_pylist()
    # Data files behind the end of the copied log may have come along: they are orphans, and a repair may take them in.
    assert sorted(found) == list(range(end))
    report = repair_partition(
        LocalStore(str(copied.root)), PARTITION, topic_id=TOPIC_ID, now_ms=NOW_MS, is_rehearsal=False
    )
    assert report.error is None
    open_storage(str(copied.root), create=False).close()


def test_a_file_that_goes_while_it_is_copied_is_left_out(
    copy_root: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    log = LogRoot(tmp_path / "root")
    log.append(3)
    orphan = log.folder / "part-0.parquet"
    orphan.write_bytes(b"x")
    orphan.with_name("gone").symlink_to("nowhere")
    copy_root(log.root, tmp_path / "copy")
    assert not (tmp_path / "copy/topics/orders/0/gone").exists()
    assert (tmp_path / "copy/topics/orders/0/part-0.parquet").exists()
