"""One version of a partition's table as those see it who only read: which data files, and what of them counts.

Guards one promise: `FollowedTable.latest` is the last committed version at the time of the call, the very same that
opening the table afresh gives. A version in which the bus only appended costs the reading of its own file; anything
else, a rewritten or removed file, another engine's commit, a log that was cleaned up, put back or cannot be read, has
the table opened afresh, which judges it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from bus.errors import StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.storage_delta.log.actions import (
    LOG_FOLDER,
    LOG_START_APP,
    MalformedCommit,
    decode_commit,
    version_name,
)
from bus.storage_delta.log.table_state import READER_VERSION_MAX

# One after the other costs more than to open the table afresh from its last checkpoint.
_FOLLOWED_VERSIONS_MAX = 100

# Which file it is that has a name: an inode and when it was written.
_FileId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One version of one partition's table."""

    partition: TopicPartition
    folder: str  # of the table, named by the number of its partition
    version: int
    files: tuple[str, ...]  # absolute paths of the live data files, in offset order
    schema: pa.Schema
    log_start: int = 0  # records below it are deleted
    first_offsets: tuple[int, ...] = ()  # of each of the files
    delta_schema: str = ""  # as the table's metadata has it: Spark's JSON of a schema
    is_plain: bool = True  # its rows are all that is in its files; else a feature of Delta decides (deletion vectors)

    @property
    def begin_offset(self) -> int | None:
        """Below which rows do not count, though they are still in the first file; None: all rows count."""
        return self.log_start if self.first_offsets and self.first_offsets[0] < self.log_start else None

    @property
    def is_flat(self) -> bool:
        """Whether a file's path tells its partition. Another engine may put files into folders below that of the table,
        or leave them where they are."""
        return all(file.rpartition("/")[0] == self.folder for file in self.files)


def open_snapshot(
    path: Path, partition: TopicPartition, *, topic_id: str | None, version: int | None = None
) -> TableSnapshot:
    """The table at `version`, or at its last one; `topic_id` None takes any.

    Raises `StorageFault` if there is no such version, `StorageDamaged` if the table cannot be read or is another's.
    """
    table = _open_table(path, partition, version)
    found = table.metadata().configuration.get("bus.topic_id")
    if topic_id is not None and found != topic_id:
        raise StorageDamaged(f"{partition}: expected a table of topic id {topic_id} in {path}, found {found}")
    files = _live_files(table)
    return TableSnapshot(
        partition=partition,
        folder=str(path),
        version=table.version(),
        files=tuple(f"{path}/{file}" for _, file in files),
        schema=pa.schema(table.schema().to_arrow()),
        log_start=table.transaction_version(LOG_START_APP) or 0,
        first_offsets=tuple(first for first, _ in files),
        delta_schema=table.schema().to_json(),
        is_plain=table.protocol().min_reader_version <= READER_VERSION_MAX,
    )


def check_plain(snapshot: TableSnapshot) -> TableSnapshot:
    """For those who read the data files by themselves. Raises `StorageDamaged` if the files do not tell all: rows of
    them may be deleted, columns may have other names in them."""
    if not snapshot.is_plain:
        raise StorageDamaged(
            f"{snapshot.partition}: expected at version {snapshot.version} a table of Delta's reader version "
            f"{READER_VERSION_MAX}, found a newer one: another engine has turned on deletion vectors, column mapping "
            "or the like, and only an engine that knows them can say which rows there are"
        )
    return snapshot


class FollowedTable:
    """The table in `path`, looked at again and again; one thread at a time."""

    def __init__(self, path: Path, partition: TopicPartition, *, topic_id: str | None) -> None:
        self.topic_id = topic_id
        self._path = path
        self._partition = partition
        self._known: TableSnapshot | None = None
        self._file_id: _FileId | None = None  # of that version's file

    def latest(self) -> TableSnapshot:
        """The last committed version. Raises `StorageDamaged`."""
        snapshot, file_id = self._known, self._file_id
        for _ in range(_FOLLOWED_VERSIONS_MAX):
            if snapshot is None or file_id is None:
                break
            found = _read(self._name(snapshot.version + 1))
            # After that look: versions are dropped oldest first, so if this one is there, so would be the next.
            if _id_of(self._name(snapshot.version)) != file_id:
                break
            if found is None:
                self._known, self._file_id = snapshot, file_id
                return snapshot
            data, file_id = found
            snapshot = _appended(snapshot, self._path, data)
        return self._open()

    def _open(self) -> TableSnapshot:
        self._known = None
        snapshot = open_snapshot(self._path, self._partition, topic_id=self.topic_id)
        self._known, self._file_id = snapshot, _id_of(self._name(snapshot.version))
        return snapshot

    def _name(self, version: int) -> str:
        return f"{self._path}/{LOG_FOLDER}/{version_name(version)}"


def _read(name: str) -> tuple[bytes, _FileId | None] | None:
    """None if it is not there. What cannot be read is empty, as no version is."""
    try:
        with open(name, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            return file.readall() or b"", (stat.st_ino, stat.st_mtime_ns)
    except FileNotFoundError:
        return None
    except OSError:
        return b"", None


def _id_of(name: str) -> _FileId | None:
    try:
        stat = os.stat(name)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _appended(snapshot: TableSnapshot, path: Path, data: bytes) -> TableSnapshot | None:
    """The version after `snapshot`; None if it may do anything else than to append files of the bus."""
    try:
        commit = decode_commit(snapshot.version + 1, data)
    except MalformedCommit:
        return None
    if commit.removes or commit.metadata is not None or commit.protocol is not None or LOG_START_APP in commit.txns:
        return None
    files = [add.live for add in commit.adds if add.live is not None]
    first_offsets = (*snapshot.first_offsets, *(file.base_offset for file in files))
    is_in_order = all(first < following for first, following in pairwise(first_offsets))
    if len(files) != len(commit.adds) or not is_in_order:  # a file of another engine, or one that was there before
        return None
    return replace(
        snapshot,
        version=commit.version,
        files=(*snapshot.files, *(f"{path}/{file.path}" for file in files)),
        first_offsets=first_offsets,
    )


def _open_table(path: Path, partition: TopicPartition, version: int | None) -> DeltaTable:
    try:
        return DeltaTable(str(path), version=version)
    except TableNotFoundError:
        if version is not None and (path / LOG_FOLDER).is_dir():  # none of that version, or of an older one
            raise StorageFault(f"{partition}: {_describe_versions(path, version)}") from None
        raise StorageDamaged(f"{partition}: expected a Delta table in {path}, found none") from None
    except (DeltaError, OSError, ValueError) as error:
        if version is not None:
            raise StorageFault(f"{partition}: {_describe_versions(path, version)} ({error})") from None
        raise StorageDamaged(f"{partition}: the table in {path} cannot be read: {error}") from None


def _live_files(table: DeltaTable) -> list[tuple[int, str]]:
    """First offset and path, in offset order. Statistics tell, since other engines name their files as they like; a
    file without any is named by the bus."""
    adds = table.get_add_actions(flatten=True)
    paths = adds.column("path").to_pylist()
    has_statistics = "min.offset" in adds.schema.names
    first = adds.column("min.offset").to_pylist() if has_statistics else [None] * len(paths)
    return sorted(
        (_named_offset(path) if offset is None else offset, path) for offset, path in zip(first, paths, strict=True)
    )


def _named_offset(path: str) -> int:
    start = path.partition("-")[0]
    return int(start) if start.isdecimal() else 0


def _describe_versions(path: Path, version: int) -> str:
    """A table's versions are known by their files; those behind a checkpoint may have been cleaned up."""
    versions = sorted(int(file.stem) for file in (path / LOG_FOLDER).glob("[0-9]" * 20 + ".json"))
    there = f"{versions[0]} to {versions[-1]}" if versions else "none"
    return f"expected one of the versions that are there, {there}, found {version}"
