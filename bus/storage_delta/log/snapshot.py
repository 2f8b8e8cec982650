"""What a table's log says: the newest valid checkpoint, then every version after it.

Guards one promise: what comes out is a log, offsets without gap or overlap, in which every file was seen in the store
with its exact size. Anything that would lose or invent an acknowledged record is `StorageDamaged`, with a message that
names file, version and what was expected. Only reads: what a crash left and may be put right is reported, and
`bus.storage_delta.log.recovery` does it, if whoever opens the table is its writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bus.errors import StorageDamaged
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.log.actions import (
    COMPACTED_APP,
    HIGH_WATERMARK_APP,
    LAST_CHECKPOINT,
    LEADER_EPOCH_APP,
    LOG_FOLDER,
    LOG_START_APP,
    Add,
    ChangedCommit,
    Commit,
    LiveFile,
    MalformedCommit,
    Protocol,
    Remove,
    TableMetadata,
    Txn,
    checkpoint_name,
    decode_commit,
    decode_lost_ranges,
    is_replaced_name,
    parse_checkpoint_name,
    parse_version_name,
    version_name,
)
from bus.storage_delta.log.checkpoint_files import (
    CheckpointContent,
    MalformedCheckpoint,
    decode_checkpoint,
    decode_txns,
)
from bus.storage_delta.log.checkpoint_hint import Hint, load_proved, read_hint
from bus.storage_delta.maintenance.orphans import base_offset_of, list_data_files
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

READER_VERSION_MAX = 1
WRITER_VERSION_MAX = 2


@dataclass(frozen=True, slots=True)
class Findings:
    """What is there and should not be, and takes nothing away from the log."""

    truncated_checkpoints: Sequence[str] = ()
    torn_version: str | None = None  # holds no acknowledged record: nobody got as far as a data file for it
    replaced: Sequence[str] = ()  # what acknowledged versions said that another program replaced
    leftovers: Sequence[str] = ()  # of interrupted writes, or of writes under way
    is_hint_wrong: bool = False  # `_last_checkpoint` names another checkpoint than the newest valid one
    is_hint_bare: bool = False  # it has no checksum: an earlier bus or another engine wrote it


@dataclass(frozen=True, slots=True)
class Removal:
    """When a data file went from the table; it is there for as long as any version is kept that had it."""

    version: int
    removed_ms: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version. `files` are in offset order and cover log start to high watermark."""

    version: int
    high_watermark: int
    leader_epoch: int
    files: Sequence[LiveFile]
    removed: Mapping[str, Removal]  # in versions after `checkpoint_version`, which names those before
    txns: Mapping[str, Txn]
    metadata: TableMetadata
    checkpoint_version: int  # of the newest valid checkpoint, -1 if there is none
    checkpoint: CheckpointContent | None
    findings: Findings
    # Of other engines, in versions after the checkpoint. They need not have synced what they wrote.
    foreign_versions: Sequence[str] = ()
    foreign_paths: Sequence[str] = ()

    @property
    def log_start(self) -> int:
        first = self.files[0].base_offset if self.files else self.high_watermark
        return max(first, self.txns[LOG_START_APP].version) if LOG_START_APP in self.txns else first

    @property
    def compacted_to(self) -> int:
        return _compacted_to(self.txns)


@dataclass(slots=True)
class _Replay:
    """The state while versions are applied one after the other."""

    folder: str
    version: int = -1
    files: dict[str, LiveFile] = field(default_factory=dict)
    removed: dict[str, Removal] = field(default_factory=dict)  # by the versions applied, not by the checkpoint
    txns: dict[str, Txn] = field(default_factory=dict)
    metadata: TableMetadata | None = None
    protocol: Protocol | None = None
    high_watermark: int = 0
    # What another engine did and may not, by data file, and the files that it removed. A RESTORE undoes it.
    harms: dict[str, str] = field(default_factory=dict)
    foreign_versions: list[str] = field(default_factory=list)
    taken: dict[str, LiveFile] = field(default_factory=dict)


def table_exists(store: ObjectStore, folder: str) -> bool:
    """Whether any version or checkpoint is there. A folder without is a creation that was never finished."""
    names = [entry.name for entry in store.list(f"{folder}/{LOG_FOLDER}", with_sizes=False).files]
    return any(parse_version_name(name) is not None or parse_checkpoint_name(name) is not None for name in names)


def load_snapshot(store: ObjectStore, folder: str, reader: DataReader) -> Snapshot:
    """The table in `folder` at its last version. Raises `StorageDamaged`."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    hint = read_hint(store, log_folder)
    hinted = None if hint is None else hint.version
    names, leftovers = _list_names(store, log_folder, hinted)
    checkpoint, truncated = _newest_valid_checkpoint(store, log_folder, names, hint)
    if checkpoint is None and hinted is not None:
        names, leftovers = _list_names(store, log_folder, None)
        checkpoint, truncated = _newest_valid_checkpoint(store, log_folder, names, hint)
    versions = sorted(version for name in names if (version := parse_version_name(name)) is not None)
    if not versions and checkpoint is None and not truncated:
        raise StorageDamaged(f"{log_folder}: expected the table's log, found no version and no checkpoint")
    replay = _replay_of_checkpoint(folder, checkpoint, reader)
    tail = _tail_after(store, log_folder, versions, checkpoint, truncated)
    torn = _apply_tail(store, log_folder, tail, replay, reader)
    files = _check_files(store, replay)
    assert replay.metadata is not None
    newest = -1 if checkpoint is None else checkpoint.version
    return Snapshot(
        version=replay.version,
        high_watermark=replay.high_watermark,
        leader_epoch=max([_done(replay, LEADER_EPOCH_APP, -1), *(file.leader_epoch for file in files)]),
        files=files,
        removed=replay.removed,
        txns=replay.txns,
        metadata=replay.metadata,
        checkpoint_version=newest,
        checkpoint=checkpoint,
        findings=Findings(
            truncated_checkpoints=truncated,
            torn_version=torn,
            replaced=sorted(filter(is_replaced_name, names)),
            leftovers=leftovers,
            is_hint_wrong=hinted != checkpoint.version if checkpoint is not None else LAST_CHECKPOINT in names,
            is_hint_bare=hint is not None and hint.sums is None,
        ),
        foreign_versions=replay.foreign_versions,
        foreign_paths=_paths_of_others(files, checkpoint),
    )


def _paths_of_others(files: Sequence[LiveFile], checkpoint: CheckpointContent | None) -> Sequence[str]:
    """Live files of other engines that the checkpoint does not name."""
    foreign = [file.path for file in files if not file.is_ours]
    known = {add.path for add in checkpoint.adds} if foreign and checkpoint is not None else set()
    return [path for path in foreign if path not in known]


def load_txns(store: ObjectStore, folder: str, checkpoint_version: int, version: int) -> dict[str, Txn]:
    """The `txn` actions as `version` left them, from the checkpoint (-1: there is none) and the versions after it.
    Raises `StorageFault`."""
    log_folder, txns = f"{folder}/{LOG_FOLDER}", dict[str, Txn]()
    try:
        if checkpoint_version >= 0:
            name = checkpoint_name(checkpoint_version)
            txns.update(decode_txns(store.get(f"{log_folder}/{name}")))
        for later in range(checkpoint_version + 1, version + 1):
            name = version_name(later)
            txns.update(decode_commit(later, store.get(f"{log_folder}/{name}")).txns)
    except (MalformedCheckpoint, MalformedCommit) as malformed:
        raise StorageDamaged(f"{log_folder}/{name}: {malformed}") from None
    return txns


def _list_names(store: ObjectStore, log_folder: str, checkpoint: int | None) -> tuple[list[str], Sequence[str]]:
    """What is in the log, or what is there from `checkpoint` on: most of the versions that are kept lie before it. And
    what nobody has finished."""
    start_at = "" if checkpoint is None else checkpoint_name(checkpoint)
    found = store.list(log_folder, with_sizes=False, start_at=start_at)
    return [entry.name for entry in found.files], found.leftovers


def _newest_valid_checkpoint(
    store: ObjectStore, log_folder: str, names: Sequence[str], hint: Hint | None
) -> tuple[CheckpointContent | None, list[str]]:
    """The newest one that can be read, and the names of the newer ones that cannot."""
    truncated: list[str] = []
    checkpoints = [version for name in names if (version := parse_checkpoint_name(name)) is not None]
    for version in sorted(checkpoints, reverse=True):
        try:
            return decode_checkpoint(version, load_proved(store, log_folder, version, hint)), truncated
        except MalformedCheckpoint:
            truncated.append(checkpoint_name(version))
    return None, truncated


def _replay_of_checkpoint(folder: str, checkpoint: CheckpointContent | None, reader: DataReader) -> _Replay:
    if checkpoint is None:
        return _Replay(folder)
    _check_protocol(folder, checkpoint.version, checkpoint.protocol)
    replay = _Replay(
        folder,
        version=checkpoint.version,
        txns=dict(checkpoint.txns),
        metadata=checkpoint.metadata,
        protocol=checkpoint.protocol,
    )
    for add in checkpoint.adds:
        replay.files[add.path] = add.live or _adopt(replay, checkpoint.version, "a checkpoint", add, reader)
    replay.high_watermark = max(
        [_done(replay, HIGH_WATERMARK_APP, 0), *(file.next_offset for file in replay.files.values())]
    )
    return replay


def _tail_after(
    store: ObjectStore,
    log_folder: str,
    versions: Sequence[int],
    checkpoint: CheckpointContent | None,
    truncated: Sequence[str],
) -> Sequence[int]:
    """The versions to be applied, checked to be without a gap."""
    start = 0 if checkpoint is None else checkpoint.version + 1
    tail = [version for version in versions if version >= start]
    end = tail[-1] + 1 if tail else start
    # A listing may miss a version that is committed while it is taken, and yet have the one after it.
    missing = next(
        (gap for gap in _gaps(tail, start) if store.sizes([f"{log_folder}/{version_name(gap)}"]) == [None]), None
    )
    if missing is None and (tail or checkpoint is not None):
        return range(start, end)
    missing = start if missing is None else missing
    found = f"found {version_name(end - 1)}" if tail else "found nothing after it"
    why = f" (and no valid checkpoint: {', '.join(truncated)} cannot be read)" if truncated else ""
    raise StorageDamaged(
        f"{log_folder}: expected versions without a gap from {start} on, {version_name(missing)} is missing, "
        f"{found}{why}"
    )


def _gaps(tail: Sequence[int], start: int) -> Iterator[int]:
    expected = start
    for version in tail:
        yield from range(expected, version)
        expected = version + 1


def _apply_tail(
    store: ObjectStore,
    log_folder: str,
    tail: Sequence[int],
    replay: _Replay,
    reader: DataReader,
) -> str | None:
    """Apply every version. Returns the name of a torn last one, if it is known to hold nothing."""
    for version in tail:
        name = version_name(version)
        try:
            commit = decode_commit(version, store.get(f"{log_folder}/{name}"))
        except KeyNotFound:
            raise StorageDamaged(f"{log_folder}/{name}: it was listed, but is gone") from None
        except MalformedCommit as malformed:
            may_be_torn = version == tail[-1] and not isinstance(malformed, ChangedCommit)
            _check_torn_version(f"{log_folder}/{name}", may_be_torn, store, replay, str(malformed))
            return name
        _apply_commit(commit, replay, reader)
    for harm in replay.harms.values():
        raise StorageDamaged(harm)
    return None


def _check_torn_version(key: str, may_be_torn: bool, store: ObjectStore, replay: _Replay, malformed: str) -> None:
    """May the torn version be set aside? Only if no acknowledged record can have been in it.

    A version of ours appears whole or not at all, so a torn one was damaged later or was written by somebody else. Had
    it held records of ours, their data file would have been synced before it: with that file's first offset at or
    above the high watermark that the version found.
    """
    if not may_be_torn or replay.version < 0:
        raise StorageDamaged(f"{key}: {malformed}")
    for name in sorted(list_data_files(store, replay.folder) - replay.files.keys()):
        if base_offset_of(name) >= replay.high_watermark:
            raise StorageDamaged(
                f"{key}: {malformed}; data file {replay.folder}/{name} may hold records that this version acknowledged "
                f"(high watermark before it: {replay.high_watermark})"
            )


def _apply_commit(commit: Commit, replay: _Replay, reader: DataReader) -> None:
    if commit.protocol is not None:
        _check_protocol(replay.folder, commit.version, commit.protocol)
        replay.protocol = commit.protocol
    if commit.metadata is not None:
        _check_metadata_change(commit, replay)
        replay.metadata = commit.metadata
    if commit.version == 0 and (commit.metadata is None or commit.protocol is None):
        raise StorageDamaged(f"{_where(replay, commit)}: expected protocol and metadata, found only {commit.operation}")
    if not commit.is_ours:
        replay.foreign_versions.append(version_name(commit.version))
    for remove in commit.removes:
        _apply_remove(commit, remove, replay)
    for add in commit.adds:
        _apply_add(commit, add, replay, reader)
    replay.txns.update(commit.txns)
    replay.version = commit.version


def _apply_remove(commit: Commit, remove: Remove, replay: _Replay) -> None:
    file = replay.files.pop(remove.path, None)
    replay.removed[remove.path] = Removal(commit.version, remove.removed_ms)
    if replay.harms.pop(remove.path, None) is None and remove.is_data_change and not commit.is_ours:
        replay.harms[remove.path] = _harm(
            replay, commit, f"removed records of {remove.path}, which only the broker may"
        )
        if file is not None:
            replay.taken[remove.path] = file


def _apply_add(commit: Commit, add: Add, replay: _Replay, reader: DataReader) -> None:
    replay.removed.pop(add.path, None)
    if add.path in replay.taken:
        replay.files[add.path] = replay.taken.pop(add.path)
        del replay.harms[add.path]
        return
    try:
        file = add.live or _adopt(replay, commit.version, f"{commit.operation} of {commit.engine_info}", add, reader)
    except StorageDamaged as damage:
        replay.harms[add.path] = f"{damage}; {_way_out(commit)}"
        return
    if add.is_data_change and file.base_offset != replay.high_watermark:
        offsets = f"{file.base_offset} to {file.next_offset - 1}, expected them from {replay.high_watermark} on"
        replay.harms[add.path] = _harm(replay, commit, f"added {add.path} with offsets {offsets}")
        return
    if add.is_data_change:
        replay.high_watermark = file.next_offset
    replay.files[add.path] = file


def _harm(replay: _Replay, commit: Commit, deed: str) -> str:
    return f"{_where(replay, commit)}: {commit.operation} of {commit.engine_info} {deed}; {_way_out(commit)}"


def _way_out(commit: Commit) -> str:
    return f"undo it by `bus log repair`, or by Delta's RESTORE to version {commit.version - 1}"


def _adopt(replay: _Replay, version: int, author: str, add: Add, reader: DataReader) -> LiveFile:
    """The entry of a file that the bus did not write: an OPTIMIZE of another engine, for example."""
    try:
        file = reader.check_foreign(add.path, add.size_bytes)
        return replace(file, is_ours=False, producers=add.producers, committed_ms=add.committed_ms)
    except StorageDamaged as damage:
        raise StorageDamaged(
            f"{replay.folder}/{LOG_FOLDER}/{version_name(version)}: {author} added {add.path}, which is no file of the "
            f"log: {damage}"
        ) from damage


def _check_protocol(folder: str, version: int, protocol: Protocol) -> None:
    if protocol.reader_version > READER_VERSION_MAX or protocol.writer_version > WRITER_VERSION_MAX:
        raise StorageDamaged(
            f"{folder}/{LOG_FOLDER}, version {version}: expected a Delta protocol up to ({READER_VERSION_MAX}, "
            f"{WRITER_VERSION_MAX}), found ({protocol.reader_version}, {protocol.writer_version}): something newer "
            f"wrote to this table"
        )


def _check_metadata_change(commit: Commit, replay: _Replay) -> None:
    if replay.metadata is None:
        return
    assert commit.metadata is not None
    if commit.metadata.topic_id != replay.metadata.topic_id:
        raise StorageDamaged(
            f"{_where(replay, commit)}: {commit.operation} of {commit.engine_info} changed the topic id from "
            f"{replay.metadata.topic_id} to {commit.metadata.topic_id}"
        )


def _check_files(store: ObjectStore, replay: _Replay) -> list[LiveFile]:
    """The live files in offset order: all there with their exact size, without gap or overlap, up to the end."""
    files = sorted(replay.files.values(), key=lambda file: file.base_offset)
    sizes = store.sizes([f"{replay.folder}/{file.path}" for file in files])
    for file, found in zip(files, sizes, strict=True):
        if found != file.size_bytes:
            raise StorageDamaged(
                f"{replay.folder}/{file.path}: version {replay.version} expects {file.size_bytes} bytes with offsets "
                f"{file.base_offset} to {file.next_offset - 1}, found "
                f"{'no such file' if found is None else f'{found} bytes'}"
            )
    promised = max(replay.high_watermark, _done(replay, HIGH_WATERMARK_APP, 0))
    start = _start_of(replay)
    files = _close_foreign_gaps(files, _compacted_to(replay.txns), start)
    if lost := decode_lost_ranges(replay.txns):
        files = _close_lost_ranges(files, lost, promised)
    _check_start(replay, files, start, promised)
    for previous, file in pairwise(files):
        if file.base_offset != previous.next_offset:
            raise StorageDamaged(
                f"{replay.folder}, version {replay.version}: expected offset {previous.next_offset} after "
                f"{previous.path}, found {file.base_offset} in {file.path}"
            )
    if files and files[-1].next_offset != promised:
        raise StorageDamaged(
            f"{replay.folder}, version {replay.version}: expected records up to offset {promised - 1}, found the last "
            f"one, {files[-1].next_offset - 1}, in {files[-1].path}"
        )
    replay.high_watermark = promised
    return files


def _start_of(replay: _Replay) -> int:
    """From where on the live files have to stand for every offset."""
    start = _done(replay, LOG_START_APP, 0)
    for first, past_last in sorted(decode_lost_ranges(replay.txns)):
        if first <= start < past_last:
            start = past_last
    return start


def _check_start(replay: _Replay, files: Sequence[LiveFile], start: int, high_watermark: int) -> None:
    """Nothing is missing between the log start and the first file."""
    begins = files[0].base_offset if files else high_watermark
    if start < begins:
        found = f"found {begins} in {files[0].path}" if files else f"found no data file below {begins}"
        raise StorageDamaged(
            f"{replay.folder}, version {replay.version}: expected offset {start}, where the log starts, {found}"
        )


def _close_foreign_gaps(files: Sequence[LiveFile], compacted_to: int, start: int) -> list[LiveFile]:
    """A file of another engine tells its rows, not the offsets that compaction took from between them and those of its
    neighbours, or from before the first. Our own files say what they cover, so a hole between two of them stays what it
    is: damage."""
    closed = list(files)
    if files and not files[0].is_ours and start < files[0].base_offset <= compacted_to:
        closed[0] = replace(files[0], base_offset=start)
    for index, (file, following) in enumerate(pairwise(files)):
        is_foreign = not file.is_ours or not following.is_ours
        if is_foreign and file.next_offset < following.base_offset <= compacted_to:
            closed[index] = replace(closed[index], next_offset=following.base_offset)
    return closed


def _close_lost_ranges(files: Sequence[LiveFile], lost: Sequence[tuple[int, int]], end_offset: int) -> list[LiveFile]:
    """A repair has said that no record is left there: so the file before stands for these offsets too."""
    closed = list(files)
    begins = [*(file.base_offset for file in files[1:]), end_offset]
    for index, (file, following) in enumerate(zip(files, begins, strict=False)):
        next_offset = file.next_offset
        for first, past_last in lost:
            if first <= next_offset < past_last:
                next_offset = min(past_last, following)
        closed[index] = replace(file, next_offset=next_offset)
    return closed


def _compacted_to(txns: Mapping[str, Txn]) -> int:
    return txns[COMPACTED_APP].version if COMPACTED_APP in txns else 0


def _done(replay: _Replay, app_id: str, default: int) -> int:
    txn = replay.txns.get(app_id)
    return default if txn is None else txn.version


def _where(replay: _Replay, commit: Commit) -> str:
    return f"{replay.folder}/{LOG_FOLDER}/{version_name(commit.version)}"
