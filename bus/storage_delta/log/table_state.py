"""A table at one version, as its log says: the one reading of the log with which tables are opened, followed, mended
and described.

Guards one promise: `apply` gives what Delta's action reconciliation gives, and names each thing in the log that would
lose or invent an acknowledged record. A later version may undo such a thing (a repair, Delta's RESTORE), so a harm is
an entry of the state and not the end of the reading: opening refuses a table that has one left at its last version, a
repair goes back to the version before the first of them, and people are shown the table as it is. Pure: no I/O, no
clock. What a file of another engine holds has to be in its `Add` before the commit is applied (`adopt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bus.errors import StorageDamaged
from bus.records.log_schema import has_same_columns
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import REPAIR, Add, Commit, Protocol, Remove, TableMetadata
from bus.storage_delta.log.checkpoint_files import CheckpointContent
from bus.storage_delta.log.table_protocol import KNOWN_PROTOCOLS, describe_protocol, is_too_new
from bus.storage_delta.log.txns import (
    COMPACTED_APP,
    HIGH_WATERMARK_APP,
    LEADER_EPOCH_APP,
    LOG_START_APP,
    Txn,
    decode_lost_ranges,
)

# Keys of `TableState.harms` that are no data file.
_PROTOCOL, _METADATA = "protocol", "metaData"
_OTHER_COLUMNS = "changed the table's columns"


@dataclass(frozen=True, slots=True)
class Removal:
    """When a data file went from the table; it is there for as long as any version is kept that had it."""

    version: int
    removed_ms: int
    file: LiveFile | None = None  # its entry in the log before the removal; None if it was not live


@dataclass(frozen=True, slots=True)
class Harm:
    """The violation of one of the log's promises by a version."""

    version: int
    author: str
    deed: str
    is_file_unknown: bool = False  # it added a data file of which the state has no entry
    is_doubt: bool = False  # opening judges it by what the table has at last: its columns, the offsets of its files

    @property
    def way_out(self) -> str:
        return (
            f"undo it by `bus log repair`, or by Delta's RESTORE to version {self.version - 1} where other engines may "
            "write to the table"
        )


@dataclass(frozen=True, slots=True)
class TableState:
    """`high_watermark`: where the next record belongs. `harms`: what no later version has undone, by the data file or
    the action that it is about, the first one first."""

    version: int = -1
    high_watermark: int = 0
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    # removed by the applied versions, without those that a checkpoint names
    removed: Mapping[str, Removal] = field(default_factory=dict)
    txns: Mapping[str, Txn] = field(default_factory=dict)
    metadata: TableMetadata | None = None
    protocol: Protocol | None = None
    trusted_metadata: TableMetadata | None = None  # the last that no other engine wrote
    harms: Mapping[str, Harm] = field(default_factory=dict)
    foreign_versions: Sequence[int] = ()

    @property
    def files_by_offset(self) -> list[LiveFile]:
        return sorted(self.files.values(), key=lambda file: file.base_offset)

    @property
    def log_start(self) -> int:
        first = min((file.base_offset for file in self.files.values()), default=self.high_watermark)
        return max(first, self.done(LOG_START_APP, 0))

    @property
    def leader_epoch(self) -> int:
        return max([self.done(LEADER_EPOCH_APP, -1), *(file.leader_epoch for file in self.files.values())])

    @property
    def compacted_to(self) -> int:
        """Key compaction has been over the offsets below: any of them may be missing."""
        return self.done(COMPACTED_APP, 0)

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Offsets whose records were given up, each as (first, one past the last), in order."""
        return decode_lost_ranges(self.txns)

    def done(self, app_id: str, default: int) -> int:
        """How far the application has come, by its `txn`."""
        txn = self.txns.get(app_id)
        return default if txn is None else txn.version


def adopt(adds: Sequence[Add], describe: Callable[[Add], LiveFile]) -> Sequence[Add]:
    """`adds` with what `describe` says of the files that are not of our making; it may raise `StorageDamaged`."""
    return adds if all(add.live for add in adds) else [add if add.live else _adopt(add, describe) for add in adds]


def _adopt(add: Add, describe: Callable[[Add], LiveFile]) -> Add:
    try:
        file = describe(add)
    except StorageDamaged as damage:
        return replace(add, fault=str(damage))
    return replace(add, live=replace(file, is_ours=False, producers=add.producers, committed_ms=add.committed_ms))


def state_of_checkpoint(checkpoint: CheckpointContent) -> TableState:
    """The table with which a log begins. Its removed files are not decoded: they may be many times the live ones."""
    draft = RunningState(TableState())
    if is_too_new(checkpoint.protocol):
        draft.harms[_PROTOCOL] = Harm(checkpoint.version, "a checkpoint", _newness(checkpoint.protocol))
    for add in checkpoint.adds:
        if add.live is None:
            deed = f"added {add.path}, which is no file of the log: {add.fault}"
            draft.harms[add.path] = Harm(checkpoint.version, "a checkpoint", deed, is_file_unknown=True)
        else:
            draft.files[add.path] = add.live
    recorded = checkpoint.txns.get(HIGH_WATERMARK_APP)
    ends = [file.next_offset for file in draft.files.values()]
    return TableState(
        version=checkpoint.version,
        high_watermark=max([0 if recorded is None else recorded.version, *ends]),
        files=draft.files,
        txns=checkpoint.txns,
        metadata=checkpoint.metadata,
        protocol=checkpoint.protocol,
        trusted_metadata=checkpoint.metadata,
        harms=draft.harms,
    )


def apply(state: TableState, commits: Iterable[Commit]) -> TableState:
    """Return the table after `commits`, each the version after the one before it. The maps of `state` are copied once
    for all of them, so thousands of versions cost what they contain and not what the table holds."""
    running = RunningState(state)
    for commit in commits:
        running.apply(commit)
    return running.state


class RunningState:
    """A state that is advanced by versions, each at the cost of its own size. `state` shares its maps: do not use an
    earlier `state` after the next version."""

    def __init__(self, state: TableState) -> None:
        self.version = state.version
        self.high_watermark = state.high_watermark
        self.files = dict(state.files)
        self.removed = dict(state.removed)
        self.txns = dict(state.txns)
        self.metadata = state.metadata
        self.protocol = state.protocol
        self.trusted_metadata = state.trusted_metadata
        self.harms = dict(state.harms)
        self.foreign_versions = list(state.foreign_versions)

    @property
    def state(self) -> TableState:
        return TableState(
            version=self.version,
            high_watermark=self.high_watermark,
            files=self.files,
            removed=self.removed,
            txns=self.txns,
            metadata=self.metadata,
            protocol=self.protocol,
            trusted_metadata=self.trusted_metadata,
            harms=self.harms,
            foreign_versions=self.foreign_versions,
        )

    def apply(self, commit: Commit) -> None:
        self.version = commit.version
        if commit.protocol is not None:
            self.protocol = commit.protocol
            self._judge(commit, _PROTOCOL, _newness(commit.protocol) if is_too_new(commit.protocol) else "")
        if commit.metadata is not None:
            self._apply_metadata(commit, commit.metadata)
        if commit.version == 0 and (commit.metadata is None or commit.protocol is None):
            self._judge(commit, _METADATA, "has no protocol or no metadata")
        if not commit.is_ours:
            self.foreign_versions.append(commit.version)
        gone = () if commit.is_ours else self._replaced_by(commit)
        for remove in commit.removes:
            self._remove(commit, remove)
        for add in commit.adds:
            self._add(commit, add)
        if not commit.is_ours and not any(remove.is_data_change for remove in commit.removes):
            self._judge_rewriting(commit, gone)
        if commit.txns:
            self.txns.update(commit.txns)
            recorded = commit.txns.get(HIGH_WATERMARK_APP)
            if recorded is not None and recorded.version > self.high_watermark:
                self.high_watermark = recorded.version

    def _replaced_by(self, commit: Commit) -> Sequence[LiveFile]:
        """Live files that go, or are added again because their statistics were computed again."""
        paths = dict.fromkeys([*(remove.path for remove in commit.removes), *(add.path for add in commit.adds)])
        return [self.files[path] for path in paths if path in self.files]

    def _judge(
        self, commit: Commit, subject: str, deed: str, *, is_file_unknown: bool = False, is_doubt: bool = False
    ) -> None:
        """An empty `deed` undoes the harm that was done to the subject."""
        if deed:
            author = f"{commit.operation} of {commit.engine_info}"
            self.harms[subject] = Harm(commit.version, author, deed, is_file_unknown, is_doubt)
        else:
            self.harms.pop(subject, None)

    def _apply_metadata(self, commit: Commit, metadata: TableMetadata) -> None:
        before, deed = self.trusted_metadata, ""
        if before is not None and metadata.topic_id != before.topic_id:
            deed = f"changed the topic id from {before.topic_id} to {metadata.topic_id}"
        elif (
            before is not None
            and not commit.is_ours
            and not has_same_columns(metadata.schema_string, before.schema_string)
        ):
            deed = _OTHER_COLUMNS
        self._judge(commit, _METADATA, deed, is_doubt=deed == _OTHER_COLUMNS)
        self.metadata = metadata
        if not deed:
            self.trusted_metadata = metadata

    def _judge_rewriting(self, commit: Commit, gone: Sequence[LiveFile]) -> None:
        """Check a rewrite by another engine: files that replace others have as many records."""
        added = [add.live for add in commit.adds if not add.is_data_change and add.live is not None]
        before, after = sum(file.record_count for file in gone), sum(file.record_count for file in added)
        if before != after:
            deed = f"replaced files with {before} records by files with {after}"
            self._judge(commit, [*gone, *added][0].path, deed, is_doubt=True)

    def _remove(self, commit: Commit, remove: Remove) -> None:
        path, file = remove.path, self.files.pop(remove.path, None)
        self.removed[path] = Removal(commit.version, remove.removed_ms, file)
        is_undone = self.harms.pop(path, None) is not None
        if is_undone:
            return
        if remove.is_data_change and not commit.is_ours:
            self._judge(commit, path, f"removed records of {path}, which only the broker may")
        elif file is None and commit.is_ours and commit.operation != REPAIR:
            self._judge(commit, path, f"removed {path}, which was not there: another version had this number")

    def _add(self, commit: Commit, add: Add) -> None:
        path, file = add.path, add.live
        removal = self.removed.pop(path, None)
        if removal is not None and removal.file is not None and path in self.harms:
            self.files[path] = removal.file  # it is back, and as it was
            del self.harms[path]
            return
        if file is None:
            self._judge(commit, path, f"added {path}, which is no file of the log: {add.fault}", is_file_unknown=True)
            return
        if add.is_data_change:
            if file.base_offset != self.high_watermark:
                found = f"{file.base_offset} to {file.next_offset - 1}, expected them from {self.high_watermark} on"
                self._judge(commit, path, f"added {path} with offsets {found}")
            else:
                self.high_watermark = file.next_offset
        self.files[path] = file


def _newness(protocol: Protocol) -> str:
    return (
        f"raised the Delta protocol to {describe_protocol(protocol)}, expected one {KNOWN_PROTOCOLS}: something newer "
        "wrote to this table"
    )
