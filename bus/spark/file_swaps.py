"""Files that a job has written take the place of live ones: named, put into the table's folder, handed to the leader.

Guards two promises: nothing is in the log that the leader has not checked and committed itself; and a file goes again
only if it is certain that no version will name it. Where that cannot be told (the answer was lost), the table is asked;
what it does not name then stays for the leader to find as an orphan.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.client.admin.admin import Admin
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition
from bus.ports import SwapKind
from bus.spark.file_writer import WrittenFile
from bus.spark.jobs import JobFailed, tell
from bus.spark.log_files import load_files
from bus.storage_delta.files.live_file import LiveFile
from bus.tables.topics import TopicTables

# After these it cannot be said from the answer alone whether the swap was committed.
_DOUBTFUL = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class FileSwap:
    """`written` take the place of `removes`, live files that follow each other; both in offset order. Rows below
    `log_start` are not in them: they were deleted."""

    partition: TopicPartition
    folder: str
    removes: Sequence[LiveFile]
    written: Sequence[WrittenFile]
    kind: SwapKind
    log_start: int = 0

    @property
    def base_offset(self) -> int:
        return max(self.removes[0].base_offset, self.log_start)


class Leader(Protocol):
    """The partitions' leader, and what the tables say."""

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        """The version that has the new files. Raises `BusError`."""
        ...

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        """The live files, as of now."""
        ...


class LeaderByAdmin:
    """Asks a broker for the swap and the tables for what came of it."""

    def __init__(self, admin: Admin, tables: TopicTables) -> None:
        self._admin = admin
        self._tables = tables

    def commit(self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: SwapKind) -> int:
        return self._admin.swap_files(partition.topic, partition.partition, removes, adds, kind.name.lower())

    def live_names(self, partition: TopicPartition) -> frozenset[str]:
        return frozenset(file.path for file in load_files(self._tables, partition).files)


def swap(change: FileSwap, leader: Leader) -> int | None:
    """The version that has the new files; None if the table has them, but the answer that names it was lost. Raises
    `JobFailed` if the swap was refused, and then nothing stays of it, or if it cannot be told."""
    adds = _place(change)
    removes = [file.path for file in change.removes]
    try:
        version = leader.commit(change.partition, removes, adds, change.kind)
    except BusError as error:
        if error.code not in _DOUBTFUL:
            _remove(change.folder, adds)
            raise JobFailed(f"{change.partition}: the swap was refused, nothing has changed: {error}") from error
        if not leader.live_names(change.partition).issuperset(adds):
            raise JobFailed(
                f"{change.partition}: {error}; the table does not have the new files so far: {', '.join(adds)}. If it "
                "does not take them up, the leader removes them as orphans"
            ) from error
        version = None
    _tell(change, version)
    return version


def _tell(change: FileSwap, version: int | None) -> None:
    before, after = change.removes, change.written
    where = f"version {version}" if version is not None else "the answer was lost, but the table has them"
    tell(
        f"{change.partition}: offsets {before[0].base_offset} to {before[-1].next_offset - 1}: "
        f"{count_of(len(before), 'file')} of "
        f"{sum(file.size_bytes for file in before)} bytes into {len(after)} of "
        f"{sum(file.size_bytes for file in after)} bytes ({where})"
    )


def check_record_count(change: FileSwap, expected: int) -> None:
    """Raises `JobFailed` unless Spark has written that many rows."""
    found = sum(file.record_count for file in change.written)
    if found != expected:
        offsets = f"offsets {change.removes[0].base_offset} to {change.removes[-1].next_offset - 1}"
        raise JobFailed(
            f"{change.partition}: expected {count_of(expected, 'record')} for {offsets}, found {found}: see bus "
            "log verify"
        )


def _place(change: FileSwap) -> list[str]:
    """Give the files their names: the first offset that each stands for, as the bus names its own. Synced."""
    names: list[str] = []
    base_offset = change.base_offset
    try:
        for file in change.written:
            name = f"{base_offset:020d}-{uuid.uuid4()}.parquet"
            os.chmod(file.path, 0o640)  # as the broker's own
            os.rename(file.path, f"{change.folder}/{name}")
            names.append(name)
            base_offset = file.last_offset + 1
        _sync_folder(change.folder)
    except OSError as error:
        _remove(change.folder, names)
        raise JobFailed(f"{change.partition}: a prepared file could not be put into its place: {error}") from error
    return names


def _remove(folder: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
