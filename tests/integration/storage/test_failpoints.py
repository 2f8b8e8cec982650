"""Maintenance killed with kill -9 before each change that it makes to the table's folder, and half way through each
write: the log verifies, has every record that it had to have, other readers read every version that is kept, the same
job succeeds at the second try, and nothing is left lying about."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from bus.ports import Committed, ProducerProgress
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.killed_jobs import FAR_MS, JOBS, NAME, NOW_MS, TOPIC_ID, QuickFileSystem, Run, job_runner, open_table
from tests.support.stores import log_batch
from tests.support.table_bench import Row, rows_of

KEYS, PER_COMMIT = 4, 3
PRODUCER = 7
# Fewer steps than a job has at least would mean that it was not followed.
STEPS_MIN = {"roll": 10, "compact": 10, "retain": 5, "checkpoint": 8, "clean": 10, "remove_orphans": 2}


class Table:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "topics" / NAME.topic / str(NAME.partition)
        self.table: DeltaPartitionTable = open_table(str(root), QuickFileSystem())

    def append(self, commits: int = 1) -> None:
        for _ in range(commits):
            base = self.table.state.high_watermark
            offsets = range(base, base + PER_COMMIT)
            batch = log_batch(
                base,
                [b"v%d" % offset for offset in offsets],
                keys=[b"k%d" % (offset % KEYS) for offset in offsets],
                producer=(PRODUCER, 0, base),
            )
            progress = [ProducerProgress(PRODUCER, 0, offsets[-1])]
            outcome = self.table.append([batch], leader_epoch=0, now_ms=NOW_MS, producers=progress)
            assert isinstance(outcome, Committed)

    def leave_orphans(self) -> None:
        for _ in range(2):
            self.table.rewrites.prepare_roll(
                self.table.rewrites.files[-2:], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
            )

    def rows(self) -> list[Row]:
        """Rows as a consumer reads them."""
        rows: list[Row] = []
        offset, end_offset = self.table.state.log_start, self.table.state.high_watermark
        while offset < end_offset:
            for batch in self.table.log.read(offset, end_offset=end_offset, max_bytes=1 << 20):
                rows += [row for row in rows_of(batch) if row[0] >= offset]
                offset = batch.next_offset
        return rows

    def offsets_at(self, version: int) -> list[int]:
        """Offsets as another reader finds them."""
        table = deltalake.DeltaTable(str(self.folder), version=version)
        rows = deltalake.QueryBuilder().register("t", table).execute("select * from t order by offset").read_all()
        found: list[int] = pa.table(rows)["offset"].to_pylist()
        return found

    def kept_versions(self) -> list[int]:
        """Those that can be put together: all, or those from a checkpoint on. A kill may leave some before it."""
        log = self.folder / "_delta_log"
        versions = sorted(int(path.stem) for path in log.glob("0*.json"))
        checkpoints = [int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")]
        first = 0 if versions[0] == 0 else min(checkpoints)
        return [version for version in versions if version >= first]

    def data_files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.parquet")}


def live_a_while(table: Table) -> None:
    """Leaves what each job needs: small files, versions and data files that may go, a checkpoint before the last
    versions, and orphans. No record has gone yet, so every version has all below its high watermark."""
    table.append(5)
    prepared = table.table.rewrites.prepare_roll(
        table.table.rewrites.files[:3], compression="none", now_ms=NOW_MS, tombstone_retention_ms=FAR_MS
    )
    assert isinstance(table.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    table.append()
    table.table.cleanup.write_checkpoint()
    table.append(3)
    table.leave_orphans()


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with job_runner() as run:
        yield run


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = Table(tmp_path_factory.mktemp("lived") / "root")
    live_a_while(table)
    return table


def all_rows(count: int) -> list[Row]:
    return [(offset, b"k%d" % (offset % KEYS), b"v%d" % offset) for offset in range(count)]


def judge(found: Table, before: Table, job: str, *, is_ended: bool) -> None:
    """`found` is what the kill has left of `before`."""
    state, rows, expected = found.table.state, found.rows(), all_rows(before.table.state.high_watermark)
    assert state.high_watermark == len(expected)
    assert found.table.producers.progress == before.table.producers.progress
    assert verify_partition(LocalStore(str(found.root)), NAME, topic_id=TOPIC_ID).breaches == []
    is_committed = state.version > before.table.state.version
    assert is_committed >= (is_ended and job in ("roll", "compact", "retain"))
    match job:
        case "compact" if is_committed:
            assert rows == expected[-KEYS:]
        case "retain" if is_committed:
            assert state.log_start > PER_COMMIT
            assert rows == expected[state.log_start :]
        case _:
            assert (rows, state.log_start) == (expected, 0)
    check_versions(found, before.table.state.version, rows)


def check_versions(found: Table, version_before: int, rows: Sequence[Row]) -> None:
    kept = found.kept_versions()
    assert kept[-1] == found.table.state.version
    for version in kept:
        offsets = found.offsets_at(version)
        if version <= version_before:
            assert offsets == list(range(offsets[-1] + 1 if offsets else 0)), f"version {version}"
        else:
            # A reader of the table itself sees the whole file in which the log begins.
            assert offsets[len(offsets) - len(rows) :] == [offset for offset, _, _ in rows]


def finish(found: Table, job: str) -> None:
    """The log goes on, the job is done once more, and in the end the folder has what is live and nothing else."""
    found.append(2)
    JOBS[job](found.table)
    JOBS["checkpoint"](found.table)
    found.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=1, removed_before_ms=FAR_MS)
    JOBS["remove_orphans"](found.table)
    assert found.data_files() == {file.path for file in found.table.rewrites.files}
    assert found.rows()[-1] == all_rows(found.table.state.high_watermark)[-1]
    assert len(found.kept_versions()) <= 2  # the last one, and a fence if there were orphans
    left = [path.name for path in found.folder.rglob("*") if path.name.startswith(".")]
    assert left == []


@pytest.mark.timeout(240)  # tens of processes, killed one after the other
@pytest.mark.parametrize("job", list(JOBS))
def test_killed_before_any_step_it_leaves_a_log_that_goes_on(lived: Table, run: Run, job: str, tmp_path: Path) -> None:
    for step in itertools.count():
        root = tmp_path / str(step)
        shutil.copytree(lived.root, root)
        is_ended = run(root, job, step)
        found = Table(root)
        judge(found, lived, job, is_ended=is_ended)
        finish(found, job)
        shutil.rmtree(root)
        if is_ended:
            break
    assert step >= STEPS_MIN[job]
