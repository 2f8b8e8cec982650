"""Maintenance of a table in a process that is killed at a step of it: `python -m tests.support.killed_jobs`.

A step is a call that changes the table's folder: a write, a sync, a link, a rename, a removal. The process dies as by
kill -9, so nothing tidies up. Each line of standard input is one run, in a fork of its own; the answer is how it ended.
Nothing here may start a thread: forks have none of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.model import TopicPartition
from bus.ports import AppliedTransaction, Committed, PreparedFiles
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.stores.store import Data
from bus.storage_delta.table import DeltaPartitionTable
from tests.support.stores import led
from tests.support.transactions import KEY, apply_staged, staged_batch

NAME = TopicPartition("ledger", 0)
TOPIC_ID = "id"
NOW_MS = 1_700_000_000_000
FAR_MS = 2**62


def open_table(root: str, file_system: FileSystem) -> DeltaPartitionTable:
    """Created if it is not there."""
    return led(
        open_storage_on(LocalStore(root, file_system), exclusive=False).create_partition(NAME, topic_id=TOPIC_ID)
    )


# ---------------------------------------------------------------- the jobs, as maintenance does them


def _swap(table: DeltaPartitionTable, prepared: PreparedFiles | None) -> None:
    assert prepared is not None
    assert isinstance(table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)


def roll(table: DeltaPartitionTable) -> None:
    _swap(
        table,
        table.rewrites.prepare_roll(table.rewrites.files, compression="zstd", now_ms=NOW_MS, tombstone_retention_ms=1),
    )


def compact(table: DeltaPartitionTable) -> None:
    _swap(table, table.rewrites.prepare_key_compaction(now_ms=NOW_MS, tombstone_retention_ms=FAR_MS))


def retain(table: DeltaPartitionTable) -> None:
    """Whole files, and the first records of one."""
    start = table.state.log_start
    offset = start + 2 * (table.rewrites.files[0].next_offset - start) // 2 + 1
    assert isinstance(table.cleanup.advance_log_start(offset, leader_epoch=0, now_ms=NOW_MS), Committed)


def checkpoint(table: DeltaPartitionTable) -> None:
    table.cleanup.write_checkpoint()


def clean(table: DeltaPartitionTable) -> None:
    table.cleanup.drop_old_versions(committed_before_ms=0, count_max=2, removed_before_ms=FAR_MS)


def remove_orphans(table: DeltaPartitionTable) -> None:
    table.cleanup.delete_orphans(table.cleanup.find_orphans())


def transact(table: DeltaPartitionTable) -> None:
    """A transaction of two batches, or what is left of it to be done. Notes what was acknowledged."""
    proof = AppliedTransaction("orders", 0, KEY.producer_id, KEY.producer_epoch)
    if table.transactions.version_of(proof.transactional_id) < proof.aborted_version:
        for number, batch in enumerate((staged_batch(0, b"a0", b"a1"), staged_batch(2, b"a2"))):
            assert table.transactions.staged.stage(KEY, batch) is None
            _acknowledge(table, number)
        assert isinstance(apply_staged(table, KEY, proof, 2), Committed)
        _acknowledge(table, 2)
    table.transactions.staged.drop(KEY)


def _acknowledge(table: DeltaPartitionTable, number: int) -> None:
    Path(table._store.url, f"acknowledged-{number}").touch()


JOBS: dict[str, Callable[[DeltaPartitionTable], None]] = {
    job.__name__: job for job in (roll, compact, retain, checkpoint, clean, remove_orphans)
}
TRANSACTION_JOBS: dict[str, Callable[[DeltaPartitionTable], None]] = {"transact": transact}


# ---------------------------------------------------------------- the killed process


class QuickFileSystem(FileSystem):
    """Syncs nothing: a process that is killed loses no page cache."""

    def __init__(self) -> None:
        self.fsync = lambda fd: None


class _Steps(QuickFileSystem):
    """The steps of writing a table in `root`, counted from `arm` on. A write has two: before it, and half way."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self._left: int | None = None
        self.write, self.fsync = self._write, self._fsync
        for name in ("link", "unlink", "rename"):
            setattr(os, name, self._counted(getattr(os, name)))
        self.link = os.link

    def arm(self, step: int) -> None:
        self._left = step

    def _pass(self) -> None:
        if self._left is None:
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def _write(self, fd: int, data: Data) -> int:
        self._pass()
        half = len(data) // 2
        written = os.write(fd, data[:half])
        self._pass()
        return written + os.write(fd, data[half:])

    def _fsync(self, fd: int) -> None:
        self._pass()

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *rest: Any, **options: Any) -> Any:
            if str(path).startswith(self._root):
                self._pass()
            return call(path, *rest, **options)

        return counted


def _run(root: str, job: str, step: int) -> None:
    steps = _Steps(root)
    table = open_table(root, steps)
    steps.arm(step)
    {**JOBS, **TRANSACTION_JOBS}[job](table)


def _serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            ending = 1
            try:
                _run(**json.loads(line))
                ending = 0
            finally:
                sys.stderr.flush()
                os._exit(ending)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


# ---------------------------------------------------------------- for tests

Run = Callable[[Path, str, int], bool]


@contextmanager
def job_runner() -> Iterator[Run]:
    """`run(root, job, step)`: true if the job came to its end, false if it was killed before that step."""
    command = [sys.executable, "-m", "tests.support.killed_jobs"]
    folder = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def run(root: Path, job: str, step: int) -> bool:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps({"root": str(root), "job": job, "step": step}) + "\n")
            server.stdin.flush()
            ending = int(server.stdout.readline())
            assert ending in (0, -signal.SIGKILL), f"{job} ended with {ending} before step {step}"
            return ending == 0

        yield run
        server.stdin.close()


if __name__ == "__main__":
    _serve()
