"""The Delta tables behind the topics of a bus root, read without a broker.

Which topics and partitions there are is the cluster's metadata log replayed, never a guess from folder names. Guards
one promise: what is read here is one committed version of a table, the latest at the time of the call unless a version
is asked for. Read-only: takes no lock, repairs nothing, writes nothing, so it may run beside a broker or without one.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.cluster_metadata.cluster_history import ClusterHistory, LoggedRow, LogPlace, read_history
from bus.cluster_metadata.cluster_records import replay_cluster
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import BusError, ErrorCode, RootNotUsable, StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, ROOT_MARKER, TopicPartition
from bus.ports import LogState
from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.listing import LOG_FOLDER, list_log, partition_folder, version_name
from bus.storage_delta.log.txns import transaction_app, transaction_txns
from bus.storage_delta.partition_reader import FollowingReader, TableFiles
from bus.storage_delta.root import FORMAT_VERSION, open_reader
from bus.storage_delta.stores.store import ObjectStore
from bus.tables.snapshots import FollowedTable, TableSnapshot, check_plain, open_snapshot

_METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


class TopicTables:
    """The topics of one root. Last versions are followed from call to call; not safe for several threads at once."""

    def __init__(self, root: str) -> None:
        """`root` is a path or a file URL. Raises `RootNotUsable` if it is no bus root that this version can read."""
        self.root = check_root(root)
        self._metadata_log = f"{self.path(_METADATA)}/{LOG_FOLDER}"
        self._followed: dict[TopicPartition, FollowedTable] = {}
        self._cluster: tuple[int, ClusterState] = (-1, EMPTY_CLUSTER)
        self._reader = open_reader(str(self.root))
        self._readers: dict[TopicPartition, tuple[str | None, FollowingReader]] = {}

    def topics(self) -> Mapping[str, int]:
        """Name -> number of partitions, as of now; internal topics included, sorted by name."""
        topics = {name: len(topic.partitions) for name, topic in self._replay().topics.items()}
        if self._has_metadata():
            topics[CLUSTER_METADATA_TOPIC] = 1
        return dict(sorted(topics.items()))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION, whose message lists the topics that there are."""
        topics = self.topics()
        if topic not in topics:
            known = ", ".join(name for name in topics if not name.startswith("__")) or "none yet"
            raise BusError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"expected a topic of {self.root}, found {topic!r}; topics there: {known}",
            )
        return [TopicPartition(topic, number) for number in range(topics[topic])]

    @property
    def store(self) -> ObjectStore:
        """The store with the tables, for callers that look at the log itself."""
        return self._reader.store

    def cluster(self) -> ClusterState:
        """Topics with their ids and configs, leaders and brokers, as of now."""
        return self._replay()

    def cluster_history(self) -> ClusterHistory:
        """The history in the records of the metadata log, as of now. Raises `StorageDamaged`."""
        if not self._has_metadata():
            return read_history(())
        try:
            return read_history(_logged_rows(self._snapshot(_METADATA, None, None)))
        except ValueError as error:
            raise StorageDamaged(str(error)) from error

    def log_state(self, partition: TopicPartition) -> LogState:
        """The state of the partition's log at its last committed version: its begin, its end, its size.

        Raises `StorageDamaged`, as a broker would that opens it.
        """
        return self._reader_of(partition).refresh().state

    def proof_of(self, partition: TopicPartition, transactional_id: str) -> int:
        """The `txn` version of the last transaction of the id that ended in the partition, twice its number, and one
        more if its rows are there; -1 if there is none. Raises `StorageDamaged`."""
        reader = self._reader_of(partition)
        reader.refresh()
        txn = reader.txns.get(transaction_app(transactional_id))
        return -1 if txn is None else txn.version

    def transaction_marks(self, partition: TopicPartition) -> Mapping[str, int]:
        """The number of the last transaction that ended in the partition, of each transactional id. Raises
        `StorageDamaged`."""
        reader = self._reader_of(partition)
        reader.refresh()
        return {transactional_id: txn.version // 2 for transactional_id, txn in transaction_txns(reader.txns)}

    def _reader_of(self, partition: TopicPartition) -> FollowingReader:
        topic = self._replay().topics.get(partition.topic)
        topic_id = topic.topic_id if topic else None
        known = self._readers.get(partition)
        if known is None or known[0] != topic_id:
            known = self._readers[partition] = topic_id, self._reader.follow_partition(partition, topic_id=topic_id)
        return known[1]

    def path(self, partition: TopicPartition) -> Path:
        """The folder of the partition's table, which any Delta reader can open."""
        return self.root / "topics" / partition.topic / str(partition.partition)

    def snapshot(self, partition: TopicPartition, version: int | None = None) -> TableSnapshot:
        """The table at `version`, or at its last committed version.

        Raises `StorageFault` if the partition has no such version, `StorageDamaged` if its table cannot be read.
        """
        topic = self._replay().topics.get(partition.topic) if partition != _METADATA else None
        return self._snapshot(partition, topic.topic_id if topic else None, version)

    def read_rows(self, partition: TopicPartition, columns: Sequence[str], version: int | None = None) -> pa.Table:
        """These columns of the partition's live rows, at the last version or at that one. Raises `StorageFault`."""
        return _read_rows(self.snapshot(partition, version), columns)

    def version_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """The last version that was committed at or before `timestamp_ms`, by the times in the versions themselves: a
        copy of the table keeps them. Raises `StorageFault` if all versions that are kept are younger."""
        versions = list(list_log(self.store, partition_folder(partition)).versions)
        later = bisect_right(versions, timestamp_ms, key=lambda version: self.committed_ms(partition, version))
        if later:
            return versions[later - 1]
        found = (
            f"the oldest, {versions[0]}, of {_text(self.committed_ms(partition, versions[0]))}" if versions else "none"
        )
        raise StorageFault(
            f"{partition}: expected a version that was committed by {_text(timestamp_ms)}, found {found}"
        )

    def committed_ms(self, partition: TopicPartition, version: int) -> int:
        """Return the commit time of that version. Raises `StorageFault` if it is not kept."""
        key = f"{partition_folder(partition)}/{LOG_FOLDER}/{version_name(version)}"
        try:
            recorded_ms = decode_commit(version, self.store.get(key)).committed_ms
        except MalformedCommit:
            recorded_ms = 0
        if not recorded_ms:
            raise StorageFault(f"{key}: expected the time of the commit, found none")
        return recorded_ms

    def _snapshot(self, partition: TopicPartition, topic_id: str | None, version: int | None) -> TableSnapshot:
        if version is not None:
            return open_snapshot(self.path(partition), partition, topic_id=topic_id, version=version)
        table = self._followed.get(partition)
        if table is None or table.topic_id != topic_id:
            table = self._followed[partition] = FollowedTable(self.path(partition), partition, topic_id=topic_id)
        return table.latest()

    def _has_metadata(self) -> bool:
        return os.path.isdir(self._metadata_log)

    def _replay(self) -> ClusterState:
        if not self._has_metadata():
            return EMPTY_CLUSTER
        snapshot = self._snapshot(_METADATA, None, None)
        version, state = self._cluster
        if snapshot.version != version:
            try:
                state = replay_cluster(_values(snapshot))
            except ValueError as error:
                raise StorageDamaged(str(error)) from error
            self._cluster = (snapshot.version, state)
        return state


def check_root(root: str) -> Path:
    """The folder of a bus root, absolute. Raises `RootNotUsable`: no bus root, or one of a newer format."""
    path = Path(_local_path(root)).absolute()
    marker = path / ROOT_MARKER
    try:
        format_version = json.loads(marker.read_text(encoding="utf-8"))["format_version"]
    except (FileNotFoundError, NotADirectoryError):
        found = "a folder without it" if path.is_dir() else "a file" if path.exists() else "nothing"
        raise RootNotUsable(f"expected a bus root, a folder with {ROOT_MARKER}, at {path}, found {found}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RootNotUsable(f"expected a readable {marker}, found {type(error).__name__}: {error}") from None
    if not isinstance(format_version, int) or format_version > FORMAT_VERSION:
        raise RootNotUsable(
            f"expected format_version up to {FORMAT_VERSION} in {marker}, found {format_version!r}: "
            "written by a newer version?"
        )
    return path


def _local_path(root: str) -> str:
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", root)
    if scheme is None:
        return str(Path(root).expanduser())
    url = urlsplit(root)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        raise RootNotUsable(f"expected a path or a file:// URL as bus root, found {root!r}: not supported yet")
    return unquote(url.path)


def _values(snapshot: TableSnapshot) -> Iterator[Mapping[str, Any]]:
    """The values of a typed log, in offset order."""
    yield from _read_rows(snapshot, ["offset", "value"]).sort_by("offset").column("value").to_pylist()


def _logged_rows(snapshot: TableSnapshot) -> Iterator[LoggedRow]:
    """From the log start on, in offset order."""
    rows = _read_rows(snapshot, ["offset", "timestamp", "leader_epoch", "value"]).sort_by("offset")
    rows = rows.filter(pc.greater_equal(rows.column("offset"), snapshot.log_start))
    times = pc.cast(rows.column("timestamp"), pa.timestamp("ms", tz="UTC"), safe=False)
    columns = [rows.column("offset"), pc.cast(times, pa.int64()), rows.column("leader_epoch"), rows.column("value")]
    for offset, timestamp_ms, epoch, value in zip(*(column.to_pylist() for column in columns), strict=True):
        yield LoggedRow(LogPlace(offset, timestamp_ms), epoch, value)


def _read_rows(snapshot: TableSnapshot, columns: Sequence[str]) -> pa.Table:
    check_plain(snapshot)
    if not snapshot.files:
        return pa.schema([snapshot.schema.field(name) for name in columns]).empty_table()
    return pa.concat_tables(list(TableFiles(snapshot.folder).read(snapshot.files, columns)))


def _text(timestamp_ms: int) -> str:
    return f"{np.datetime64(timestamp_ms, 'ms')}Z"
