"""How far a damaged table's log can be followed, and what stops it there.

Guards one promise: the history that comes out is what a broker would accept, version by version, up to the first that
it would not; nothing behind that is in it. What later versions say is told apart, for a repair to weigh. Never writes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from bus.errors import StorageDamaged
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.log.actions import (
    HIGH_WATERMARK_APP,
    Commit,
    LiveFile,
    MalformedCommit,
    Protocol,
    TableMetadata,
    Txn,
    checkpoint_name,
    decode_add,
    decode_commit,
    decode_metadata,
    decode_protocol,
    decode_txn,
    is_same_schema,
    version_name,
)
from bus.storage_delta.log.table_state import READER_VERSION_MAX, WRITER_VERSION_MAX
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore
from bus.storage_delta.verify.replay import (
    LOG_FOLDER,
    PRODUCER_APPS,
    Action,
    LogListing,
    Unreadable,
    load_checkpoint,
    load_version,
)

_ADD_FIELDS = ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags")


class Trouble(Enum):
    """Why a log cannot be followed any further."""

    LOST = "lost"  # versions are missing, or cannot be read
    HARMFUL = "harmful"  # a version is there that breaks a promise of the log


class BeyondRepair(StorageDamaged):
    """Mending it would be guessing; the message says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Problem:
    trouble: Trouble
    version: int
    message: str


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A data file as the log names it: its `add`, and what that means."""

    body: Mapping[str, Any]
    file: LiveFile


@dataclass(slots=True)
class History:
    """A table at `version`, the last one that is sound; -1: none is."""

    version: int = -1
    base: int = -1  # of the checkpoint that it begins with
    files: dict[str, NamedFile] = field(default_factory=dict)
    removed: dict[str, NamedFile] = field(default_factory=dict)  # of those that went, what the log said of them
    txns: dict[str, Txn] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    high_watermark: int = 0
    problem: Problem | None = None  # with the version after it
    is_gathered: bool = False  # of all that can be read, in no order: which files were live is not known

    @property
    def table_metadata(self) -> TableMetadata | None:
        return None if self.metadata is None else decode_metadata(self.metadata)


class HistoryReader:
    """Reads the log of one table."""

    def __init__(
        self, store: ObjectStore, folder: str, reader: DataReader, schema: pa.Schema, listing: LogListing
    ) -> None:
        self._schema = schema
        self._store = store
        self._folder = folder
        self._reader = reader
        self._listing = listing
        self.broken_checkpoints: list[str] = []

    def follow(self) -> History:
        """The history that goes furthest, from whatever checkpoint it begins. Raises `BeyondRepair`."""
        best = History(problem=Problem(Trouble.LOST, 0, "no version and no checkpoint is there"))
        for start in [*sorted(self._listing.checkpoints, reverse=True), None]:
            history = self._follow_from(start)
            if history is None:
                continue
            if history.version > best.version or best.version < 0:
                best = history
            if best.problem is None:
                break
        return best

    def gather(self, problem: Problem | None) -> History:
        """What every version and checkpoint says that can be read, where following them leads nowhere."""
        found = History(problem=problem or Problem(Trouble.LOST, 0, "the log does not add up"), is_gathered=True)
        found.problem = replace(found.problem, trouble=Trouble.LOST) if found.problem is not None else None
        for actions in self._all_actions():
            told: dict[str, Txn] = {}
            for action in actions:
                match action:
                    case {"add": body}:
                        self._gather_file(found, body)
                    case {"txn": body}:
                        told[str(body["appId"])] = decode_txn(body)
                    case {"metaData": body} if is_same_schema(decode_metadata(body).schema_string, self._schema):
                        found.metadata = body
                    case {"protocol": body} if not _is_too_new(decode_protocol(body)):
                        found.protocol = body
            for app_id, txn in told.items():
                if app_id not in found.txns or _is_later(txn, found.txns[app_id], app_id):
                    found.txns[app_id] = txn
        return found

    def _all_actions(self) -> Iterator[Sequence[Action]]:
        for version in sorted({*self._listing.checkpoints, *self._listing.versions}):
            for load, listed in ((load_checkpoint, self._listing.checkpoints), (load_version, self._listing.versions)):
                if version in listed:
                    with contextlib.suppress(Unreadable, KeyNotFound):
                        yield load(self._store, self._folder, version)

    def _gather_file(self, found: History, body: Mapping[str, Any]) -> None:
        with contextlib.suppress(StorageDamaged, Unreadable, KeyError, ValueError, TypeError):
            named = self._named(body)
            found.removed[named.file.path] = named

    def _follow_from(self, checkpoint: int | None) -> History | None:
        history = History() if checkpoint is None else self._history_of_checkpoint(checkpoint)
        if history is None:
            return None
        last = max([*self._listing.versions, history.version])
        if last < 0:
            return None
        for version in range(history.version + 1, last + 1):
            history.problem = self._apply(history, version)
            if history.problem is not None:
                break
        return history

    def _history_of_checkpoint(self, version: int) -> History | None:
        try:
            actions = load_checkpoint(self._store, self._folder, version)
            history = History(version=version, base=version)
            for action in actions:
                match action:
                    case {"add": body}:
                        named = self._named(body)
                        history.files[named.file.path] = named
                    case {"txn": body}:
                        history.txns[str(body["appId"])] = decode_txn(body)
                    case {"metaData": body}:
                        history.metadata = body
                    case {"protocol": body}:
                        history.protocol = body
        except (Unreadable, KeyNotFound, KeyError, ValueError, TypeError):
            if (name := checkpoint_name(version)) not in self.broken_checkpoints:
                self.broken_checkpoints.append(name)
            return None
        except StorageDamaged:
            return None  # it is whole, but names a file that is none of the log
        if history.metadata is None or history.protocol is None:
            self.broken_checkpoints.append(checkpoint_name(version))
            return None
        if _is_too_new(decode_protocol(history.protocol)):
            return None
        told = history.txns.get(HIGH_WATERMARK_APP)
        ends = [named.file.next_offset for named in history.files.values()]
        history.high_watermark = max([0 if told is None else told.version, *ends])
        return history

    def _apply(self, history: History, version: int) -> Problem | None:
        key = f"{self._folder}/{LOG_FOLDER}/{version_name(version)}"
        try:
            data = self._store.get(key)
            commit = decode_commit(version, data)
            actions = load_version(self._store, self._folder, version)
            added = [
                (self._named(action["add"]), bool(action["add"].get("dataChange", True))) for action in _adds(actions)
            ]
        except KeyNotFound:
            return Problem(Trouble.LOST, version, f"{version_name(version)} is missing")
        except (MalformedCommit, Unreadable) as malformed:
            return Problem(Trouble.LOST, version, f"{version_name(version)}: {malformed}")
        except StorageDamaged as damage:
            return Problem(Trouble.HARMFUL, version, f"{_author(commit)} added what is no file of the log: {damage}")
        if commit.protocol is not None and (commit.is_ours or history.version < 0):
            self._check_protocol(version, commit.protocol)
        harm = _find_harm(history, commit, added, self._schema)
        if harm is not None:
            return Problem(Trouble.HARMFUL, version, harm)
        _advance(history, commit, actions, added)
        return None

    def _check_protocol(self, version: int, protocol: Protocol) -> None:
        if _is_too_new(protocol):
            raise BeyondRepair(
                f"{self._folder}, version {version}: expected a Delta protocol up to ({READER_VERSION_MAX}, "
                f"{WRITER_VERSION_MAX}), found {_levels(protocol)}: a newer bus wrote this table"
            )

    def _named(self, body: Mapping[str, Any]) -> NamedFile:
        """Raises `StorageDamaged` if the file has no offsets, or the same twice."""
        add = decode_add(body)
        if add.live is not None:
            return NamedFile(_bare(body), add.live)
        try:
            found = self._reader.check_foreign(add.path, add.size_bytes)
        except StorageDamaged:
            told = _told_by_statistics(body)
            if told is None:
                raise
            found = told
        return NamedFile(_bare(body), found)

    def later_commits(self, version: int) -> Iterator[tuple[Commit, list[tuple[NamedFile, bool]]]]:
        """What can be read of the versions behind `version`, as far as the bus wrote them; each with the files that it
        added, and whether they were new records."""
        for number in self._listing.versions:
            if number <= version:
                continue
            try:
                key = f"{self._folder}/{LOG_FOLDER}/{version_name(number)}"
                commit = decode_commit(number, self._store.get(key))
                adds = _adds(load_version(self._store, self._folder, number))
                if commit.is_ours:
                    yield commit, [(self._named(add["add"]), bool(add["add"].get("dataChange"))) for add in adds]
            except (MalformedCommit, Unreadable, StorageDamaged, KeyNotFound):
                continue

    def is_readable(self, version: int) -> bool:
        try:
            load_version(self._store, self._folder, version)
        except (Unreadable, KeyNotFound):
            return False
        return version in self._listing.versions

    def paths_after(self, history: History) -> tuple[set[str], set[str]]:
        """Which data files any Delta reader takes for live at the last version, all of them readable, and which were
        ever added."""
        live, named = set(history.files), {*history.files, *history.removed}
        for version in self._listing.versions:
            if version <= history.version:
                continue
            actions = load_version(self._store, self._folder, version)
            live -= {unquote(str(action["remove"].get("path"))) for action in actions if "remove" in action}
            added = {unquote(str(action["add"].get("path"))) for action in _adds(actions)}
            live |= added
            named |= added
        return live, named

    def find_metadata(self) -> Mapping[str, Any] | None:
        """Of any version that can be read, the newest first."""
        for version in sorted(self._listing.versions, reverse=True):
            try:
                actions = load_version(self._store, self._folder, version)
            except (Unreadable, KeyNotFound):
                continue
            for action in actions:
                if "metaData" in action:
                    found: Mapping[str, Any] = action["metaData"]
                    return found
        return None


def _is_later(txn: Txn, known: Txn, app_id: str) -> bool:
    """What goes back does so because the log was damaged; a producer's sequences alone begin again."""
    if app_id.removeprefix(PRODUCER_APPS).isdigit() and txn.version >> 32 == known.version >> 32:
        return True
    return txn.version >= known.version


def _adds(actions: Sequence[Action]) -> list[Action]:
    return [action for action in actions if "add" in action]


def _bare(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _ADD_FIELDS if body.get(name) is not None}


def _told_by_statistics(body: Mapping[str, Any]) -> LiveFile | None:
    """A file of another engine whose rows cannot be read tells its offsets by its statistics alone."""
    try:
        stats = json.loads(body["stats"])
        first, last = int(stats["minValues"]["offset"]), int(stats["maxValues"]["offset"])
        return LiveFile(
            unquote(body["path"]), int(body["size"]), first, last + 1, int(stats["numRecords"]), 0, 0, 0, is_ours=False
        )
    except (KeyError, TypeError, ValueError):
        return None


def _is_too_new(protocol: Protocol) -> bool:
    return protocol.reader_version > READER_VERSION_MAX or protocol.writer_version > WRITER_VERSION_MAX


def _levels(protocol: Protocol) -> str:
    return f"({protocol.reader_version}, {protocol.writer_version})"


def _author(commit: Commit) -> str:
    return f"version {commit.version}, {commit.operation} of {commit.engine_info},"


def _find_harm(
    history: History, commit: Commit, added: Sequence[tuple[NamedFile, bool]], schema: pa.Schema
) -> str | None:
    """What a broker would refuse to open, and which it was."""
    if commit.protocol is not None and _is_too_new(commit.protocol):
        return f"{_author(commit)} raised the table's protocol to {_levels(commit.protocol)}"
    if commit.metadata is not None and history.table_metadata is not None:
        known = history.table_metadata
        if commit.metadata.topic_id != known.topic_id:
            return f"{_author(commit)} changed the topic id from {known.topic_id} to {commit.metadata.topic_id}"
        had_columns = is_same_schema(known.schema_string, schema)
        if had_columns and not is_same_schema(commit.metadata.schema_string, schema):
            return f"{_author(commit)} changed the table's columns"
    if commit.version == 0 and (commit.metadata is None or commit.protocol is None):
        return f"{_author(commit)} has no protocol or no metadata"
    for remove in commit.removes:
        if remove.is_data_change and not commit.is_ours:
            return f"{_author(commit)} removed the records of {remove.path}"
    if not commit.is_ours:
        before = sum(
            history.files[gone.path].file.record_count for gone in commit.removes if gone.path in history.files
        )
        after = sum(named.file.record_count for named, is_data_change in added if not is_data_change)
        if before != after:
            return f"{_author(commit)} replaced files with {before} records by files with {after}"
    end = history.high_watermark
    for named, is_data_change in added:
        file = named.file
        if is_data_change and file.base_offset != end:
            offsets = f"offsets {file.base_offset} to {file.next_offset - 1}"
            return f"{_author(commit)} added {file.path} with {offsets}, expected them from {end} on"
        end = file.next_offset if is_data_change else end
    return None


def _advance(
    history: History, commit: Commit, actions: Sequence[Action], added: Sequence[tuple[NamedFile, bool]]
) -> None:
    for remove in commit.removes:
        gone = history.files.pop(remove.path, None)
        if gone is not None:
            history.removed[remove.path] = gone
    for named, is_data_change in added:
        history.files[named.file.path] = named
        history.removed.pop(named.file.path, None)
        if is_data_change:
            history.high_watermark = named.file.next_offset
    history.txns.update(commit.txns)
    told = commit.txns.get(HIGH_WATERMARK_APP)
    if told is not None:
        history.high_watermark = max(history.high_watermark, told.version)
    for action in actions:
        history.metadata = action.get("metaData", history.metadata)
        history.protocol = action.get("protocol", history.protocol)
    history.version = commit.version
