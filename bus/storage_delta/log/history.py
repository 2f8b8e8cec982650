"""What each version of a partition did, read from the versions that are kept.

Guards two promises. What is said about a version is said by its own file; the sizes and levels of what it removed come
from the version or the checkpoint that added it, and are unknown where neither is kept. And a version that cannot be
read hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from bus.errors import StorageDamaged
from bus.model import TopicPartition
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.replay import (
    Action,
    AddedFile,
    LogListing,
    Unreadable,
    decode_add,
    list_log,
    load_checkpoint,
    load_version,
    partition_folder,
    version_file,
)


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """Data files that a version added, or those that it removed. Offsets and level: -1 if nothing is known of any."""

    file_count: int
    record_count: int | None  # None: some file is not told of by what is kept
    size_bytes: int | None
    base_offset: int
    last_offset: int
    level: int  # the highest


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """What one version did. `error`: why its file, or what it says of its data files, cannot be read."""

    version: int
    timestamp_ms: int
    operation: str
    leader_epoch: int
    added: FilesSummary
    removed: FilesSummary
    error: str | None = None

    @property
    def is_maintenance(self) -> bool:
        """It took something away, or was to: rolling, compaction, retention, a repair, or what another engine did."""
        return self.removed.file_count > 0 or self.operation in ("DELETE", "REPAIR")


NO_FILES = FilesSummary(0, 0, 0, -1, -1, -1)


def describe_versions(store: ObjectStore, partition: TopicPartition, *, count_max: int) -> list[VersionSummary]:
    """The newest versions whose files are there, oldest first, at most `count_max`. Raises `StorageDamaged` for one
    that cannot be read."""
    folder = partition_folder(partition)
    summaries = list(_summaries(store, folder, sorted(list_log(store, folder).versions)[-count_max:], {}))
    for summary in summaries:
        if summary.error is not None:
            raise StorageDamaged(f"{folder}/{version_file(summary.version)}: {summary.error}")
    return summaries


def read_history(store: ObjectStore, partition: TopicPartition) -> Iterator[VersionSummary]:
    """All versions that are kept, oldest first."""
    folder = partition_folder(partition)
    listing = list_log(store, folder)
    yield from _summaries(store, folder, list(listing.versions), _files_before(store, folder, listing))


def _files_before(store: ObjectStore, folder: str, listing: LogListing) -> dict[str, AddedFile]:
    """What was live at the oldest checkpoint that can be read: versions are dropped up to one."""
    for version in listing.checkpoints:
        try:
            return _added(load_checkpoint(store, folder, version), None)
        except (Unreadable, KeyNotFound):
            continue
    return {}


def _summaries(
    store: ObjectStore, folder: str, versions: Iterable[int], known: dict[str, AddedFile]
) -> Iterator[VersionSummary]:
    for version in versions:
        try:
            actions = load_version(store, folder, version)
        except KeyNotFound:
            continue  # a broker dropped it meanwhile
        except Unreadable as error:
            yield VersionSummary(version, -1, "unreadable", -1, NO_FILES, NO_FILES, str(error))
            continue
        yield _summarize(version, actions, known)


def _summarize(version: int, actions: Sequence[Action], known: dict[str, AddedFile]) -> VersionSummary:
    """Keeps `known`, the live files, in step."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    removed = [known.pop(path, None) for path in _removed(actions)]
    added: Mapping[str, AddedFile] = {}
    error = None
    try:
        added = _added(actions, version)
    except Unreadable as unreadable:
        error = str(unreadable)
    known.update(added)
    return VersionSummary(
        version=version,
        timestamp_ms=int(info.get("timestamp", -1)),
        operation=str(info.get("operation", "unknown")),
        leader_epoch=int(info.get("leaderEpoch", -1)),
        added=_summarize_files(list(added.values())),
        removed=_summarize_files(removed),
        error=error,
    )


def _added(actions: Sequence[Action], version: int | None) -> dict[str, AddedFile]:
    files = [decode_add(action["add"], version) for action in actions if "add" in action]
    return {file.path: file for file in files}


def _removed(actions: Sequence[Action]) -> list[str]:
    return [unquote(str(action["remove"].get("path"))) for action in actions if "remove" in action]


def _summarize_files(files: Sequence[AddedFile | None]) -> FilesSummary:
    known = [file for file in files if file is not None]
    is_whole = len(known) == len(files)
    return FilesSummary(
        file_count=len(files),
        record_count=sum(file.record_count for file in known) if is_whole else None,
        size_bytes=sum(file.size_bytes for file in known) if is_whole else None,
        base_offset=min((file.base_offset for file in known), default=-1),
        last_offset=max((file.last_offset for file in known), default=-1),
        level=max((file.level for file in known), default=-1),
    )
