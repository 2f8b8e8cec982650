"""The Delta tables behind the topics of a bus root, read without a broker.

Which topics and partitions there are is the cluster's metadata log replayed, never a guess from folder names. Guards
one promise: what is read here is one committed version of a table, the latest at the time of the call unless a version
is asked for. Read-only: takes no lock, repairs nothing, writes nothing, so it may run beside a broker or without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from bus.errors import BusError, ErrorCode, RootNotUsable, StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import LogState
from bus.storage_delta.actions import LOG_START_APP
from bus.storage_delta.root import FORMAT_VERSION, MARKER, open_reader
from bus.storage_delta.snapshot import READER_VERSION_MAX
from bus.storage_delta.store import ObjectStore
from bus.topics.cluster import EMPTY_CLUSTER, ClusterState, replay_cluster

_METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One version of one partition's table."""

    partition: TopicPartition
    version: int
    files: tuple[str, ...]  # absolute paths of the live data files, in offset order
    schema: pa.Schema
    log_start: int = 0  # records below it are deleted
    has_deleted_rows: bool = False  # some of those are still in the first file
    first_offsets: tuple[int, ...] = ()  # of each of the files
    delta_schema: str = ""  # as the table's metadata has it: Spark's JSON of a schema
    is_plain: bool = True  # its rows are all that is in its files; else a feature of Delta decides (deletion vectors)


class TopicTables:
    """The topics of one root. Snapshots are cached by version; not safe for several threads at once."""

    def __init__(self, root: str) -> None:
        """`root` is a path or a file URL. Raises `RootNotUsable` if it is no bus root that this version can read."""
        self.root = check_root(root)
        self._latest: dict[TopicPartition, tuple[str | None, TableSnapshot]] = {}
        self._cluster: tuple[int, ClusterState] = (-1, EMPTY_CLUSTER)
        self._reader = open_reader(str(self.root))
        self._states: dict[TopicPartition, tuple[str | None, LogState]] = {}

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
        """Where the tables lie, for those who look at the log itself."""
        return self._reader.store

    def cluster(self) -> ClusterState:
        """Topics with their ids and configs, leaders and brokers, as of now."""
        return self._replay()

    def log_state(self, partition: TopicPartition) -> LogState:
        """Where the partition's log begins and ends, and how large it is, at its last committed version.

        Raises `StorageDamaged`, as a broker would that opens it.
        """
        topic = self._replay().topics.get(partition.topic)
        topic_id = topic.topic_id if topic else None
        known = self._states.get(partition)
        if known is None or known[0] != topic_id or not self._is_latest(partition, known[1].version):
            is_metadata = partition == _METADATA
            reader = (
                self._reader.open_metadata()
                if is_metadata
                else self._reader.open_partition(partition, topic_id=topic_id)
            )
            known = (topic_id, reader.state)
            self._states[partition] = known
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

    def _snapshot(self, partition: TopicPartition, topic_id: str | None, version: int | None) -> TableSnapshot:
        if version is not None:
            return self._open(partition, topic_id, version)
        cached = self._latest.get(partition)
        if cached is not None and cached[0] == topic_id and self._is_latest(partition, cached[1].version):
            return cached[1]
        snapshot = self._open(partition, topic_id, None)
        self._latest[partition] = (topic_id, snapshot)
        return snapshot

    def _is_latest(self, partition: TopicPartition, version: int) -> bool:
        """Versions are contiguous, so the next one's file tells; log clean-up removes the own one first."""
        log = self.path(partition) / "_delta_log"
        has_next = (log / f"{version + 1:020}.json").exists()
        return not has_next and (log / f"{version:020}.json").exists()

    def _open(self, partition: TopicPartition, topic_id: str | None, version: int | None) -> TableSnapshot:
        path = self.path(partition)
        try:
            table = DeltaTable(str(path), version=version)
        except TableNotFoundError:
            if version is not None and (path / "_delta_log").is_dir():  # none of that version, or of an older one
                raise StorageFault(f"{partition}: {_describe_versions(path, version)}") from None
            raise StorageDamaged(f"{partition}: expected a Delta table in {path}, found none") from None
        except (DeltaError, OSError, ValueError) as error:
            if version is not None:
                raise StorageFault(f"{partition}: {_describe_versions(path, version)} ({error})") from None
            raise StorageDamaged(f"{partition}: the table in {path} cannot be read: {error}") from None
        found = table.metadata().configuration.get("bus.topic_id")
        if topic_id is not None and found != topic_id:
            raise StorageDamaged(f"{partition}: expected a table of topic id {topic_id} in {path}, found {found}")
        files = _live_files(table)
        log_start = table.transaction_version(LOG_START_APP) or 0
        return TableSnapshot(
            partition=partition,
            version=table.version(),
            files=tuple(str(path / file) for _, file in files),
            schema=pa.schema(table.schema().to_arrow()),
            log_start=log_start,
            has_deleted_rows=bool(files) and files[0][0] < log_start,
            first_offsets=tuple(first for first, _ in files),
            delta_schema=table.schema().to_json(),
            is_plain=table.protocol().min_reader_version <= READER_VERSION_MAX,
        )

    def _has_metadata(self) -> bool:
        return (self.path(_METADATA) / "_delta_log").is_dir()

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


def check_root(root: str) -> Path:
    """The folder of a bus root, absolute. Raises `RootNotUsable`: no bus root, or one of a newer format."""
    path = Path(_local_path(root)).absolute()
    marker = path / MARKER
    try:
        format_version = json.loads(marker.read_text(encoding="utf-8"))["format_version"]
    except (FileNotFoundError, NotADirectoryError):
        found = "a folder without it" if path.is_dir() else "a file" if path.exists() else "nothing"
        raise RootNotUsable(f"expected a bus root, a folder with {MARKER}, at {path}, found {found}") from None
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


def _describe_versions(path: Path, version: int) -> str:
    """A table's versions are known by their files; those behind a checkpoint may have been cleaned up."""
    versions = sorted(int(file.stem) for file in (path / "_delta_log").glob("[0-9]" * 20 + ".json"))
    there = f"{versions[0]} to {versions[-1]}" if versions else "none"
    return f"expected one of the versions that are there, {there}, found {version}"


def _values(snapshot: TableSnapshot) -> Iterator[Mapping[str, Any]]:
    """The values of a typed log, in offset order."""
    # Not `read_table`, which loads Arrow's datasets and with them pandas: half a second of each new process.
    tables = [pq.ParquetFile(file).read(columns=["offset", "value"]) for file in snapshot.files]
    if tables:
        yield from pa.concat_tables(tables).sort_by("offset").column("value").to_pylist()
