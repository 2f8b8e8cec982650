"""The history of a damaged table: the part of its log that can be replayed, and the fault that ends it.

Guards one promise: the history is what a broker would accept, version by version, up to the first version that it would
not; nothing behind that is in it. The contents of later versions are kept apart, for a repair to weigh. Never writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from bus.errors import StorageDamaged, StorageFault
from bus.records.json_text import parse_json
from bus.records.log_schema import is_same_schema
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import (
    Add,
    Commit,
    MalformedCommit,
    Protocol,
    TableMetadata,
    check_sum,
    decode_add,
    decode_commit,
    decode_metadata,
    decode_protocol,
)
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_checkpoint
from bus.storage_delta.log.listing import LOG_FOLDER, LogListing, checkpoint_name, version_name
from bus.storage_delta.log.reading import describe_by_statistics, load_removed
from bus.storage_delta.log.table_protocol import KNOWN_PROTOCOLS, describe_protocol, is_too_new
from bus.storage_delta.log.table_state import TableState, adopt, apply, state_of_checkpoint
from bus.storage_delta.log.txns import HIGH_WATERMARK_APP, Txn, decode_producers, decode_txn
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

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
    base: int = -1  # the version of the checkpoint that it begins with
    files: Mapping[str, NamedFile] = field(default_factory=dict)
    removed: dict[str, NamedFile] = field(default_factory=dict)  # removed files, with what the log said of them
    txns: dict[str, Txn] = field(default_factory=dict)
    metadata: TableMetadata | None = None
    protocol: Protocol | None = None
    high_watermark: int = 0
    problem: Problem | None = None  # the fault of the version after it
    # collected from everything that can be read, in no order; which files were live is unknown
    is_gathered: bool = False


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

    def _follow_from(self, checkpoint: int | None) -> History | None:
        named: dict[str, NamedFile] = {}
        start = TableState() if checkpoint is None else self._state_of_checkpoint(checkpoint, named)
        if start is None or max([start.version, *self._listing.versions]) < 0:
            return None
        lost = list[Problem]()
        state = apply(start, self._commits(start.version + 1, lost, named))
        problem = next(iter(lost), None)
        if state.harms:
            harm = min(state.harms.values(), key=lambda one: one.version)
            message = f"version {harm.version}, {harm.author}, {harm.deed}"
            problem = Problem(Trouble.HARMFUL, harm.version, message)
            state = apply(start, self._commits(start.version + 1, lost, named, end=harm.version))
        gone = {path: one.file for path, one in state.removed.items() if one.file is not None}
        return History(
            version=state.version,
            base=-1 if checkpoint is None else checkpoint,
            files={path: NamedFile(named[path].body, file) for path, file in state.files.items()},
            removed={path: NamedFile(named[path].body, file) for path, file in gone.items()},
            txns=dict(state.txns),
            metadata=state.metadata,
            protocol=state.protocol,
            high_watermark=state.high_watermark,
            problem=problem,
        )

    def _state_of_checkpoint(self, version: int, named: dict[str, NamedFile]) -> TableState | None:
        try:
            data = self._store.get(f"{self._folder}/{LOG_FOLDER}/{checkpoint_name(version)}")
            content = decode_checkpoint(version, data, with_bodies=True)
        except (MalformedCheckpoint, KeyNotFound):
            if (name := checkpoint_name(version)) not in self.broken_checkpoints:
                self.broken_checkpoints.append(name)
            return None
        adds = adopt(content.adds, self._describe)
        named.update(named_files(adds))
        state = state_of_checkpoint(replace(content, adds=adds))
        return None if state.harms else state  # it is whole, but names a file that is none of the log

    def _commits(
        self, start: int, lost: list[Problem], named: dict[str, NamedFile], *, end: int | None = None
    ) -> Iterator[Commit]:
        """Yield the versions from `start` on, up to the first that is missing or cannot be read; `lost` receives that
        one."""
        for version in range(start, max([-1, *self._listing.versions]) + 1 if end is None else end):
            try:
                commit = self._commit(version)
            except KeyNotFound:
                lost.append(Problem(Trouble.LOST, version, f"{version_name(version)} is missing"))
                return
            except MalformedCommit as malformed:
                lost.append(Problem(Trouble.LOST, version, f"{version_name(version)}: {malformed}"))
                return
            self._check_protocol(commit, is_first=version == 0)
            named.update(named_files(commit.adds))
            yield commit

    def _commit(self, version: int) -> Commit:
        data = self._store.get(f"{self._folder}/{LOG_FOLDER}/{version_name(version)}")
        commit = decode_commit(version, data, with_bodies=True)
        return replace(commit, adds=adopt(commit.adds, self._describe))

    def _check_protocol(self, commit: Commit, *, is_first: bool) -> None:
        protocol = commit.protocol
        if protocol is not None and is_too_new(protocol) and (commit.is_ours or is_first):
            raise BeyondRepair(
                f"{self._folder}, version {commit.version}: expected a Delta protocol {KNOWN_PROTOCOLS}, found "
                f"{describe_protocol(protocol)}: a newer bus wrote this table"
            )

    def _describe(self, add: Add) -> LiveFile:
        """Describe a file by its rows; if they cannot be read, by the statistics in the log."""
        try:
            return self._reader.check_foreign(add.path, add.size_bytes)
        except StorageDamaged:
            with contextlib.suppress(StorageDamaged):
                return describe_by_statistics(add)
            raise

    # ------------------------------------------------------------------ behind the history

    def gather(self, problem: Problem | None) -> History:
        """Return the contents of every readable version and checkpoint, for a log that cannot be replayed."""
        found = History(problem=problem or Problem(Trouble.LOST, 0, "the log does not add up"), is_gathered=True)
        found.problem = replace(found.problem, trouble=Trouble.LOST) if found.problem is not None else None
        for version in sorted({*self._listing.checkpoints, *self._listing.versions}):
            if version in self._listing.checkpoints:
                self._gather_checkpoint(found, version)
            if version in self._listing.versions:
                self._gather_version(found, version)
        return found

    def _gather_checkpoint(self, found: History, version: int) -> None:
        with contextlib.suppress(MalformedCheckpoint, KeyNotFound):
            data = self._store.get(f"{self._folder}/{LOG_FOLDER}/{checkpoint_name(version)}")
            content = decode_checkpoint(version, data, with_bodies=True)
            found.removed.update(named_files(adopt(content.adds, self._describe)))
            self._gather_metadata(found, content.metadata)
            _gather_protocol(found, content.protocol)
            _gather_txns(found, content.txns)

    def _gather_version(self, found: History, version: int) -> None:
        """Line by line: of a torn one there may be some left."""
        recorded: dict[str, Txn] = {}
        for action in self._lines(version):
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, OverflowError):
                match action:
                    case {"add": body}:
                        add = replace(decode_add(body, version), body=body)
                        found.removed.update(named_files(adopt([add], self._describe)))
                    case {"txn": body}:
                        recorded[str(body["appId"])] = decode_txn(body)
                    case {"metaData": body}:
                        self._gather_metadata(found, decode_metadata(body))
                    case {"protocol": body}:
                        _gather_protocol(found, decode_protocol(body))
        _gather_txns(found, recorded)

    def _lines(self, version: int) -> Iterator[Any]:
        with contextlib.suppress(KeyNotFound, ValueError):
            data = self._store.get(f"{self._folder}/{LOG_FOLDER}/{version_name(version)}")
            check_sum(data)  # a changed version proves nothing
            for line in data.splitlines():
                with contextlib.suppress(ValueError):
                    yield parse_json(line)

    def _gather_metadata(self, found: History, metadata: TableMetadata) -> None:
        if is_same_schema(metadata.schema_string, self._schema):
            found.metadata = metadata

    def later_commits(self, version: int) -> Iterator[Commit]:
        """Yield the readable versions behind `version` that the bus wrote, with the actions of the files that they
        added."""
        for commit in self._readable(version):
            if commit.is_ours and not any(add.fault for add in commit.adds):
                yield commit

    def displaced_commits(self, history: History) -> Iterator[Commit]:
        """Versions of ours at or before the checkpoint with which `history` begins that go on where it ends: files of
        the log that have another's name."""
        for commit in self._readable(-1, end=history.base + 1):
            recorded = commit.txns.get(HIGH_WATERMARK_APP)
            if commit.is_ours and recorded is not None and recorded.version > history.high_watermark:
                yield commit

    def removed_before(self, history: History) -> set[str]:
        """Data files that the checkpoint with which `history` begins names as removed."""
        with contextlib.suppress(StorageFault):
            return set(load_removed(self._store, self._folder, history.base))
        return set()

    def is_readable(self, version: int) -> bool:
        return any(True for _ in self._readable(version - 1, end=version + 1))

    def paths_after(self, history: History) -> tuple[set[str], set[str]]:
        """Return the data files that any Delta reader considers live at the last version, all of them readable, and all
        data files that were ever added."""
        live, named = set(history.files), {*history.files, *history.removed}
        for commit in self._readable(history.version):
            added = {add.path for add in commit.adds}
            live = (live - {remove.path for remove in commit.removes}) | added
            named |= added
        return live, named

    def find_metadata(self) -> TableMetadata | None:
        """Return the metadata of the newest version that can be read and has some."""
        found = (commit.metadata for commit in reversed(list(self._readable(-1))) if commit.metadata is not None)
        return next(found, None)

    def find_protocol(self, history: History) -> Protocol | None:
        """Return the last protocol that a version of the bus gave the table behind `history`, else that of `history`.
        A sound version has one, and where none is sound, all versions are behind."""
        found = history.protocol
        for commit in self._readable(history.version):
            if commit.is_ours and commit.protocol is not None and not is_too_new(commit.protocol):
                found = commit.protocol
        return found

    def _readable(self, after: int, *, end: int | None = None) -> Iterator[Commit]:
        for version in self._listing.versions:
            if version > after and (end is None or version < end):
                with contextlib.suppress(MalformedCommit, KeyNotFound):
                    yield self._commit(version)


def named_files(adds: Iterable[Add]) -> dict[str, NamedFile]:
    """Those of a log, with their actions as a version may repeat them."""
    return {add.path: NamedFile(_bare(add.body or {}), add.live) for add in adds if add.live is not None}


def _gather_protocol(found: History, protocol: Protocol) -> None:
    if not is_too_new(protocol):
        found.protocol = protocol


def _gather_txns(found: History, recorded: Mapping[str, Txn]) -> None:
    for app_id, txn in recorded.items():
        if app_id not in found.txns or _is_later(txn, found.txns[app_id], app_id):
            found.txns[app_id] = txn


def _is_later(txn: Txn, known: Txn, app_id: str) -> bool:
    """True if `txn` is later than `known`. Only a producer's sequences may start again; any other decrease comes from
    the damage."""
    if decode_producers({app_id: txn}) and txn.version >> 32 == known.version >> 32:
        return True
    return txn.version >= known.version


def _bare(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _ADD_FIELDS if body.get(name) is not None}
