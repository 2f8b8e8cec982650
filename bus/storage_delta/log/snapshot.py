"""A table opened: what its log says, checked against what is in the store.

Guards one promise: what comes out is a log, offsets without gap or overlap, in which every file was seen in the store
with its exact size. Anything that would lose or invent an acknowledged record is `StorageDamaged`, with a message that
names file, version and what was expected. Only reads: what a crash left and may be put right is reported, and
recovery.py does it, if the table is opened by its writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bus.errors import StorageDamaged
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile, base_offset_of
from bus.storage_delta.log.actions import Add, TableMetadata
from bus.storage_delta.log.checkpoint_files import (
    CheckpointContent,
    MalformedCheckpoint,
    decode_checkpoint,
    load_proved,
    read_hint,
)
from bus.storage_delta.log.listing import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    is_replaced_name,
    list_data_files,
    list_log,
    version_name,
)
from bus.storage_delta.log.reading import LogReading, find_commit, read_log
from bus.storage_delta.log.table_state import Removal, TableState
from bus.storage_delta.log.txns import HIGH_WATERMARK_APP, LOG_START_APP, Txn
from bus.storage_delta.stores.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Findings:
    """Leftovers in a table's folder that should not be there and do no harm to the log."""

    truncated_checkpoints: Sequence[str] = ()
    torn_version: str | None = None  # holds no acknowledged record: no writer got as far as a data file for it
    replaced: Sequence[str] = ()  # contents of acknowledged versions that another program replaced
    leftovers: Sequence[str] = ()  # unfinished files of interrupted or running writes
    is_hint_wrong: bool = False  # `_last_checkpoint` names another checkpoint than the newest valid one
    is_hint_bare: bool = False  # it has no checksum: an earlier bus or another engine wrote it


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version. `files` are in offset order and cover log start to high watermark."""

    state: TableState
    high_watermark: int
    files: Sequence[LiveFile]
    metadata: TableMetadata
    checkpoint_version: int  # the version of the newest valid checkpoint; -1 if there is none
    checkpoint: CheckpointContent | None  # that checkpoint, where it was decoded
    findings: Findings
    # Files of other engines, added by versions after the checkpoint. Their writers need not have synced them.
    foreign_paths: Sequence[str] = ()

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def removed(self) -> Mapping[str, Removal]:
        """Files removed by versions after the checkpoint; the checkpoint names those removed before it."""
        return self.state.removed

    @property
    def txns(self) -> Mapping[str, Txn]:
        return self.state.txns

    @property
    def foreign_versions(self) -> Sequence[str]:
        return [version_name(version) for version in self.state.foreign_versions]

    @property
    def log_start(self) -> int:
        first = self.files[0].base_offset if self.files else self.high_watermark
        return max(first, self.state.done(LOG_START_APP, first))

    @property
    def compacted_to(self) -> int:
        return self.state.compacted_to


def table_exists(store: ObjectStore, folder: str) -> bool:
    """True if any version or checkpoint exists. A folder without either is a creation that did not finish."""
    found = list_log(store, folder)
    return bool(found.versions or found.checkpoints)


def load_snapshot(store: ObjectStore, folder: str, reader: DataReader) -> Snapshot:
    """The table in `folder` at its last version. Raises `StorageDamaged`."""

    def describe(add: Add) -> LiveFile:
        return reader.check_foreign(add.path, add.size_bytes)

    reading = read_log(store, folder, describe)
    state, checkpoint = reading.state, reading.checkpoint
    for harm in [one for one in state.harms.values() if not one.is_doubt]:
        name = f"{folder}/{LOG_FOLDER}/{version_name(harm.version)}"
        raise StorageDamaged(f"{name}: {harm.author} {harm.deed}; {harm.way_out}")
    if reading.torn is not None:
        _check_torn_version(store, folder, state, reading.torn)
    files = _check_files(store, folder, state)
    assert state.metadata is not None, f"{folder}: a table without metadata is harmed"
    return Snapshot(
        state=state,
        high_watermark=state.high_watermark,
        files=files,
        metadata=state.metadata,
        checkpoint_version=-1 if checkpoint is None else checkpoint.version,
        checkpoint=checkpoint,
        findings=_findings(reading, -1 if checkpoint is None else checkpoint.version),
        foreign_paths=_paths_of_others(files, checkpoint),
    )


def take_stock(store: ObjectStore, folder: str, state: TableState, files: Sequence[LiveFile]) -> Snapshot | None:
    """A table that was followed to `state`, with what lies around it now; None if it has to be read afresh. Its
    checkpoint is proved by the sums that the hint has of it; it is decoded only if there are none, or for the files of
    other engines that it names."""
    log_folder = f"{folder}/{LOG_FOLDER}"
    hint = read_hint(store, log_folder)
    listing = list_log(store, folder, from_checkpoint=None if hint is None else hint.version)
    newest, checkpoint = max(listing.checkpoints, default=-1), None
    if newest != (-1 if hint is None else hint.version) or max(listing.versions, default=-1) != state.version:
        return None
    if hint is not None:
        try:
            data = load_proved(store, log_folder, newest, hint)
            if hint.sums is None or not all(file.is_ours for file in files):
                checkpoint = decode_checkpoint(newest, data)
        except MalformedCheckpoint:
            return None
    removed = {path: removal for path, removal in state.removed.items() if removal.version > newest}
    assert state.metadata is not None, f"{folder}: a table without metadata was followed"
    return Snapshot(
        state=replace(state, removed=removed),
        high_watermark=state.high_watermark,
        files=files,
        metadata=state.metadata,
        checkpoint_version=newest,
        checkpoint=checkpoint,
        findings=_findings(LogReading(state, listing, hint, checkpoint, truncated=[]), newest),
        foreign_paths=_paths_of_others(files, checkpoint),
    )


def _findings(reading: LogReading, checkpoint_version: int) -> Findings:
    hint, others = reading.hint, reading.listing.others
    is_hint_wrong = LAST_CHECKPOINT in others
    if checkpoint_version >= 0:
        is_hint_wrong = hint is None or hint.version != checkpoint_version
    return Findings(
        truncated_checkpoints=reading.truncated,
        torn_version=None if reading.torn is None else version_name(reading.state.version + 1),
        replaced=sorted(filter(is_replaced_name, others)),
        leftovers=reading.listing.leftovers,
        is_hint_wrong=is_hint_wrong,
        is_hint_bare=hint is not None and hint.sums is None,
    )


def _paths_of_others(files: Sequence[LiveFile], checkpoint: CheckpointContent | None) -> Sequence[str]:
    """Live files of other engines that the checkpoint does not name."""
    foreign = [file.path for file in files if not file.is_ours]
    known = {add.path for add in checkpoint.adds} if foreign and checkpoint is not None else set()
    return [path for path in foreign if path not in known]


def find_high_watermark(store: ObjectStore, log_folder: str, version: int, reader: DataReader) -> int | None:
    """The high watermark that `version` left; None if its file is gone. A version of another engine, which says
    nothing of it, has moved it by the rows that it appended, or not at all. Raises `StorageDamaged`."""
    for earlier in range(version, -1, -1):
        commit = find_commit(store, log_folder, earlier)
        if commit is None:
            return None
        if (recorded := commit.txns.get(HIGH_WATERMARK_APP)) is not None:
            return recorded.version
        appended = [add for add in commit.adds if add.is_data_change]
        if appended:
            return max(reader.check_foreign(add.path, add.size_bytes).next_offset for add in appended)
    return 0 if version >= 0 else None


def _check_torn_version(store: ObjectStore, folder: str, state: TableState, malformed: str) -> None:
    """May the torn version be set aside? Only if no acknowledged record can have been in it.

    A version of ours appears whole or not at all, so a torn one was damaged later or was written by another program.
    Had it held records of ours, their data file would have been synced before it: with that file's first offset at or
    above the high watermark that the version found.
    """
    key = f"{folder}/{LOG_FOLDER}/{version_name(state.version + 1)}"
    if state.version < 0:
        raise StorageDamaged(f"{key}: {malformed}")
    for name in sorted(list_data_files(store, folder) - state.files.keys()):
        if base_offset_of(name) >= state.high_watermark:
            raise StorageDamaged(
                f"{key}: {malformed}; data file {folder}/{name} may hold records that this version acknowledged "
                f"(high watermark before it: {state.high_watermark})"
            )


def _check_files(store: ObjectStore, folder: str, state: TableState) -> list[LiveFile]:
    """The live files in offset order: all there with their exact size, without gap or overlap, up to the end."""
    files = state.files_by_offset
    sizes = store.sizes([f"{folder}/{file.path}" for file in files])
    for file, found in zip(files, sizes, strict=True):
        if found != file.size_bytes:
            raise StorageDamaged(
                f"{folder}/{file.path}: version {state.version} expects {file.size_bytes} bytes with offsets "
                f"{file.base_offset} to {file.next_offset - 1}, found "
                f"{'no such file' if found is None else f'{found} bytes'}"
            )
    return arrange_files(folder, state)


def arrange_files(folder: str, state: TableState) -> list[LiveFile]:
    """The live files in offset order, each with the offsets that it stands for. Raises `StorageDamaged`."""
    files = state.files_by_offset
    promised, start, lost = state.high_watermark, _start_of(state), state.lost_ranges
    files = _close_foreign_gaps(files, state.compacted_to, start)
    if lost:
        files = _close_lost_ranges(files, lost, promised)
    _check_start(folder, state, files, start)
    for previous, file in pairwise(files):
        if file.base_offset != previous.next_offset:
            raise StorageDamaged(
                f"{folder}, version {state.version}: expected offset {previous.next_offset} after "
                f"{previous.path}, found {file.base_offset} in {file.path}"
            )
    if files and files[-1].next_offset != promised:
        raise StorageDamaged(
            f"{folder}, version {state.version}: expected records up to offset {promised - 1}, found the last "
            f"one, {files[-1].next_offset - 1}, in {files[-1].path}"
        )
    return files


def _start_of(state: TableState) -> int:
    """From where on the live files have to stand for every offset."""
    start = state.done(LOG_START_APP, 0)
    for first, past_last in state.lost_ranges:
        if first <= start < past_last:
            start = past_last
    return start


def _check_start(folder: str, state: TableState, files: Sequence[LiveFile], start: int) -> None:
    """Nothing is missing between the log start and the first file."""
    begins = files[0].base_offset if files else state.high_watermark
    if start < begins:
        found = f"found {begins} in {files[0].path}" if files else f"found no data file below {begins}"
        raise StorageDamaged(
            f"{folder}, version {state.version}: expected offset {start}, where the log starts, {found}"
        )


def _close_foreign_gaps(files: Sequence[LiveFile], compacted_to: int, start: int) -> list[LiveFile]:
    """Extend files of another engine over offsets without rows: their entries have the offsets of rows only, and not
    those that compaction removed between them and their neighbours, or before the first. Files of the bus state the
    offsets that they cover, so a hole between two of them is damage."""
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
