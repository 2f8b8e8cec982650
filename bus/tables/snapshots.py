"""One version of a partition's table as those see it who only read: which data files, and what of them counts.

Guards one promise: `FollowedTable.latest` is the last committed version at the time of the call, the very same that
reading the log afresh gives. A version costs the reading of its own file; a log that was cleaned up, put back or cannot
be read is read afresh. What harms the log is for those who open it to judge: here are the rows that any Delta reader
sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bus.errors import StorageDamaged, StorageFault
from bus.model import TopicPartition
from bus.records.log_schema import arrow_schema
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import Add
from bus.storage_delta.log.listing import list_log
from bus.storage_delta.log.reading import LogFollower, describe_by_statistics, read_whole_log
from bus.storage_delta.log.table_protocol import READER_VERSION_MAX
from bus.storage_delta.log.table_state import TableState, apply
from bus.storage_delta.log.txns import LOG_START_APP
from bus.storage_delta.stores.local import LocalStore


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One version of one partition's table."""

    partition: TopicPartition
    folder: str  # the folder of the table, named by the number of its partition
    version: int
    files: tuple[str, ...]  # absolute paths of the live data files, in offset order
    schema: pa.Schema
    log_start: int = 0  # records below it are deleted
    first_offsets: tuple[int, ...] = ()  # the first offset of each file
    delta_schema: str = ""  # the schema in the table's metadata: Spark's JSON
    # its rows are exactly those in its files; False if a feature of Delta changes that (deletion vectors)
    is_plain: bool = True

    @property
    def begin_offset(self) -> int | None:
        """Below which rows do not count, though they are still in the first file; None: all rows count."""
        return self.log_start if self.first_offsets and self.first_offsets[0] < self.log_start else None

    @property
    def is_flat(self) -> bool:
        """True if the path of every file shows its partition. Another engine may put files into subfolders of the
        table's folder, or leave them where they are."""
        return all(file.rpartition("/")[0] == self.folder for file in self.files)


def open_snapshot(
    path: Path, partition: TopicPartition, *, topic_id: str | None, version: int | None = None
) -> TableSnapshot:
    """The table at `version`, or at its last one; `topic_id` None takes any.

    Raises `StorageFault` if there is no such version, `StorageDamaged` if the table cannot be read or is another's.
    """
    return _snapshot_of(_read_state(path, partition, version), path, partition, topic_id)


def check_plain(snapshot: TableSnapshot) -> TableSnapshot:
    """Check the snapshot for a caller that reads the data files itself. Raises `StorageDamaged` if the files alone do
    not determine the rows: rows may be deleted, or columns have other names in the files."""
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
        self._follower = LogFollower(LocalStore(str(path.parent)), path.name, _describe)
        self._known: tuple[TableState, TableSnapshot] | None = None

    def latest(self) -> TableSnapshot:
        """The last committed version. Raises `StorageDamaged`."""
        known, self._known = self._known, None
        commits = None
        if known is not None:
            with contextlib.suppress(StorageDamaged):  # reading the whole log raises it as well
                commits = self._follower.read_on()
        if known is not None and commits == []:
            self._known = known
            return known[1]
        if known is None or commits is None:
            state = _read_state(self._path, self._partition, None)
            self._follower.begin(state.version)
        else:
            state = apply(known[0], commits)
        self._known = state, _snapshot_of(state, self._path, self._partition, self.topic_id)
        return self._known[1]


def _snapshot_of(state: TableState, path: Path, partition: TopicPartition, topic_id: str | None) -> TableSnapshot:
    metadata, protocol = state.metadata, state.protocol
    if metadata is None or protocol is None:
        raise StorageDamaged(f"{partition}: expected a protocol and metadata in the log of {path}, found none")
    if topic_id is not None and metadata.topic_id != topic_id:
        raise StorageDamaged(
            f"{partition}: expected a table of topic id {topic_id} in {path}, found {metadata.topic_id}"
        )
    try:
        schema = arrow_schema(metadata.schema_string)
    except ValueError as error:
        raise StorageDamaged(
            f"{partition}: expected a Delta schema in the log of {path}, found none: {error}"
        ) from None
    files = state.files_by_offset
    return TableSnapshot(
        partition=partition,
        folder=str(path),
        version=state.version,
        files=tuple(f"{path}/{file.path}" for file in files),
        schema=schema,
        log_start=state.done(LOG_START_APP, 0),
        first_offsets=tuple(file.base_offset for file in files),
        delta_schema=metadata.schema_string,
        is_plain=protocol.reader_version <= READER_VERSION_MAX,
    )


def _read_state(path: Path, partition: TopicPartition, version: int | None) -> TableState:
    store, folder = LocalStore(str(path.parent)), path.name
    listing = list_log(store, folder)
    versions = list(listing.versions)
    if not versions and not listing.checkpoints:
        raise StorageDamaged(f"{partition}: expected a Delta table in {path}, found none")
    try:
        state = read_whole_log(store, folder, version=version, describe=_describe).state
    except StorageDamaged as damage:
        if version is not None:
            raise StorageFault(f"{partition}: {_describe_versions(versions, version)} ({damage})") from None
        raise StorageDamaged(f"{partition}: the table in {path} cannot be read: {damage}") from None
    if version is not None and state.version != version:
        raise StorageFault(f"{partition}: {_describe_versions(versions, version)}")
    return state


def _describe(add: Add) -> LiveFile:
    """Other engines name their files as they like; one that they say nothing of is named by the bus, or comes first."""
    try:
        return describe_by_statistics(add)
    except StorageDamaged:
        start = add.path.partition("-")[0]
        base_offset = int(start) if start.isdecimal() else 0
        return LiveFile(add.path, add.size_bytes, base_offset, base_offset + 1, 1, 0, 0, 0)


def _describe_versions(versions: Sequence[int], version: int) -> str:
    """Those behind a checkpoint may have been cleaned up."""
    there = f"{versions[0]} to {versions[-1]}" if versions else "none"
    return f"expected one of the versions that are there, {there}, found {version}"
