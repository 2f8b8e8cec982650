"""A partition's Delta log read as plain values: what is in its folders, its actions, and the table they add up to.

For people and for the verification, so it shares no code with the path that writes and opens tables: a mistake there
must not hide itself here. Guards one promise: reading changes nothing. No lock, no repair, no write, so it works beside
a running broker, without one, and on a table that no broker would open.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import StorageDamaged, first_line
from bus.model import TopicPartition
from bus.storage_delta.files.trials import TRIALS
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
BOUNDARY = "_boundary"
HIGH_WATERMARK_APP = "bus/high_watermark"
LEADER_EPOCH_APP = "bus/leader_epoch"
COMPACTED_APP = "bus/compacted"
LOG_START_APP = "bus/log_start"
FORGOTTEN_APP = "bus/forgotten"  # the largest id of a producer that checkpoints no longer have to name
FILE_TAG = "bus.file"
LEVEL_TAG = "bus.level"
SUMS_TAG = "bus.crc32"
AGES_TAG = "bus.ages"
PRODUCER_APPS = "bus/"  # followed by the producer's id
TRANSACTION_APPS = "bus/txn/"  # followed by a transactional id, percent-encoded; a version of -1: it has expired
LOST_APPS = "bus/lost/"  # followed by an offset: from it up to the `txn`'s version, no record is left

_VERSION_NAME = re.compile(r"(\d{20})\.json")
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")
_TAGS = {
    FILE_TAG: re.compile(r"\d+ \d+ \d+ -?\d+ -?\d+ -?\d+(?: \d+)*"),
    AGES_TAG: re.compile(r"(?:\d+:\d+(?: \d+:\d+)*)?"),
    SUMS_TAG: re.compile(r"\d+ (?:[0-9a-f]{8}){2,}"),
}
_SUM = re.compile(rb'"fileCrc32":"(.{8})', re.DOTALL)
_OUR_ENGINE = "delta-bus/"
_INFO = "commitInfo"
_ACTIONS = ("add", "remove", "txn", "metaData", "protocol", "domainMetadata")


def producer_app(producer_id: int) -> str:
    """The `appId` of an idempotent producer's `txn`."""
    return f"{PRODUCER_APPS}{producer_id}"


def is_forgotten(app_id: str, txns: Mapping[str, int]) -> bool:
    """True if a table with `txns` need not name the producer of `app_id`."""
    named = app_id.removeprefix(PRODUCER_APPS)
    return named.isdigit() and int(named) <= txns.get(FORGOTTEN_APP, -1)


class Unreadable(ValueError):
    """A file that is there, but is not what its name says; the message tells what was expected and found."""


# ------------------------------------------------------------------ the folders


@dataclass(frozen=True, slots=True)
class LogListing:
    """The names and sizes in a partition's folder and in its log, at one moment."""

    versions: Mapping[int, int]  # version -> bytes of its file
    checkpoints: Mapping[int, int]  # version -> bytes
    others: Sequence[str]  # all other names in the log folder
    data_files: Mapping[str, int]  # path -> bytes


def partition_folder(partition: TopicPartition) -> str:
    return f"topics/{partition.topic}/{partition.partition}"


def version_file(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_file(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def list_log(store: ObjectStore, folder: str) -> LogListing:
    # The log first: a data file is written before the version that names it, so none is missed.
    versions: dict[int, int] = {}
    checkpoints: dict[int, int] = {}
    others: list[str] = []
    for entry in store.list(f"{folder}/{LOG_FOLDER}").files:
        if match := _VERSION_NAME.fullmatch(entry.name):
            versions[int(match[1])] = entry.size
        elif match := _CHECKPOINT_NAME.fullmatch(entry.name):
            checkpoints[int(match[1])] = entry.size
        elif entry.name not in (LAST_CHECKPOINT, BOUNDARY):
            others.append(entry.name)
    data_files = {entry.name: entry.size for entry in store.list(folder).files}
    return LogListing(dict(sorted(versions.items())), dict(sorted(checkpoints.items())), others, data_files)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first version that stayed when older ones were dropped from the table of that topic."""

    kept_from: int
    topic_id: str


def read_boundary(store: ObjectStore, folder: str) -> Boundary | Unreadable:
    """-1 where none was dropped."""
    try:
        data = store.get(f"{folder}/{LOG_FOLDER}/{BOUNDARY}")
    except KeyNotFound:
        return Boundary(-1, "")
    try:
        found = parse_json(data)
        return Boundary(int(found["keptFrom"]), str(found["topicId"]))
    except (ValueError, KeyError, TypeError) as error:
        return Unreadable(f"{len(data)} bytes that do not tell the first version kept: {error}")


# ------------------------------------------------------------------ the log


Action = Mapping[str, Any]  # one line of a version file: {"add": {...}}


def load_version(store: ObjectStore, folder: str, version: int) -> list[Action]:
    """The actions of a version. Raises `Unreadable` for a file that is empty or torn, `KeyNotFound`."""
    data = store.get(f"{folder}/{version_file(version)}")
    if not data.strip():
        raise Unreadable(f"expected at least one action, found {len(data)} bytes")
    actions: list[Action] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            action = parse_json(line.decode())
        except ValueError as error:
            raise Unreadable(f"expected JSON in line {number}, found {len(line)} bytes: {error}") from None
        if not isinstance(action, dict):
            raise Unreadable(f"expected an action in line {number}, found {type(action).__name__}")
        actions.append(_known_actions(action, f"line {number}"))
    _check_sum(data)
    return actions


def _check_sum(data: bytes) -> None:
    """Check the checksum of a version, if it has one. It covers the whole file except the newlines at its end, with its
    own digits taken as zeros. Raises `Unreadable`."""
    expected = _SUM.search(data.split(b"\n", 1)[0])
    if expected is not None:
        counted = data[: expected.start(1)] + b"0" * 8 + data[expected.end(1) :].rstrip(b"\n")
        found = f"{zlib.crc32(counted):08x}".encode()
        if found != expected[1]:
            raise Unreadable(
                f"expected checksum {expected[1].decode(errors='replace')}, found {found.decode()}: the file has "
                f"changed since it was written"
            )


def _known_actions(action: Action, where: str) -> Action:
    """Return the action without nulls, and without fields that the Delta protocol does not name, which readers ignore.
    Raises `Unreadable`."""
    known = {name: body for name, body in action.items() if name in (*_ACTIONS, _INFO) and body is not None}
    for name, body in known.items():
        if not isinstance(body, dict):
            raise Unreadable(f"expected {name} as an object in {where}, found {type(body).__name__}")
    info = known.get(_INFO)
    if info is not None and not str(info.get("engineInfo")).startswith(_OUR_ENGINE):
        known[_INFO] = {name: value for name, value in info.items() if _is_usable(name, value)}
    _check_fields(known, where)
    return known


def _is_usable(name: str, value: Any) -> bool:
    """Other engines may write what they like into `commitInfo`."""
    is_out_of_range = type(value) is int and not 0 <= value < 1 << 63
    return type(value) in _OPTIONAL[_INFO].get(name, (type(value),)) and not is_out_of_range


# The fields that an action must have, and those that it may leave out (Delta protocol, "Actions").
_NUMBER, _TEXT, _MAP = (int,), (str,), (dict,)
_REQUIRED: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "add": {"path": _TEXT, "size": _NUMBER},
    "remove": {"path": _TEXT},
    "txn": {"appId": _TEXT, "version": _NUMBER},
    "metaData": {"schemaString": _TEXT},
    "protocol": {"minReaderVersion": _NUMBER, "minWriterVersion": _NUMBER},
}
_OPTIONAL: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "add": {"tags": _MAP, "stats": _TEXT, "modificationTime": _NUMBER, "dataChange": (bool,)},
    "remove": {"deletionTimestamp": _NUMBER, "dataChange": (bool,)},
    "txn": {"lastUpdated": _NUMBER},
    "metaData": {"configuration": _MAP, "partitionColumns": (list,)},
    "protocol": {"readerFeatures": (list,), "writerFeatures": (list,)},
    "commitInfo": {
        "timestamp": _NUMBER,
        "operation": _TEXT,
        "operationParameters": _MAP,
        "engineInfo": _TEXT,
        "txnId": _TEXT,
        "leaderEpoch": _NUMBER,
        "actionCount": _NUMBER,
    },
}


def _check_fields(action: Action, where: str) -> None:
    """Check the fields, on behalf of every reader of actions. Raises `Unreadable`."""
    for name, body in action.items():
        for rules, is_required in ((_REQUIRED, True), (_OPTIONAL, False)):
            for field_name, kinds in rules.get(name, {}).items():
                value = body.get(field_name)
                if value is None and not is_required:
                    continue
                if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                    kind = kinds[0].__name__
                    raise Unreadable(f"expected {name}.{field_name} of type {kind} in {where}, found {value!r:.80}")
                if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                    raise Unreadable(f"expected {name}.{field_name} in 64 bits in {where}, found more")
        texts = [value for kept in (body, body.get("tags"), body.get("configuration")) for value in _texts(kept)]
        if not all(map(_is_text, texts)):
            raise Unreadable(f"expected text in {name} in {where}, found what is no Unicode")


def _texts(body: Any) -> list[str]:
    return [text for pair in body.items() for text in pair if isinstance(text, str)] if isinstance(body, dict) else []


def _is_text(text: str) -> bool:
    """JSON can name halves of characters, which cannot be printed or stored."""
    return not any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else True


def load_checkpoint(store: ObjectStore, folder: str, version: int) -> list[Action]:
    """The actions of a classic checkpoint, in the form that they have in version files. Raises `Unreadable`."""
    try:
        table = TRIALS.open_bytes(store.get(f"{folder}/{checkpoint_file(version)}")).read()
        actions: list[Action] = []
        removes: list[Action] = []
        for name in _ACTIONS:
            if name in table.column_names:
                column = table.column(name)
                rows = column.filter(pc.is_valid(column)).combine_chunks()
                if name == "remove" and _are_plain_removes(rows):
                    removes += [{name: {"path": row[0], "deletionTimestamp": row[1]}} for row in _remove_rows(rows)]
                else:
                    actions += [{name: _plain(body)} for body in rows.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        raise Unreadable(f"expected a checkpoint as a Parquet file, found: {first_line(error)}") from None
    for action in actions:
        _check_fields(action, "the checkpoint")
    return removes + actions


def _are_plain_removes(rows: Any) -> bool:
    """Return True if the types of the columns imply everything that `_check_fields` would check in each row: there may
    be very many rows."""
    types = {field.name: field.type for field in rows.type}
    return (
        types.get("path") == pa.string()
        and types.get("deletionTimestamp") == pa.int64()
        and not rows.field("path").null_count
    )


def _remove_rows(rows: Any) -> Iterator[tuple[str, int]]:
    return zip(rows.field("path").to_pylist(), rows.field("deletionTimestamp").fill_null(0).to_pylist(), strict=True)


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """Absent is absent, and Arrow's maps, lists of pairs, are mappings again."""
    plain: dict[str, Any] = {}
    for name, value in body.items():
        if name in ("partitionValues", "tags", "configuration", "options"):
            value = dict(value) if value is not None else None
        elif isinstance(value, dict):
            value = _plain(value)
        if value is not None:
            plain[name] = value
    return plain


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file as the log describes it. `version` is None if only a checkpoint tells of it."""

    path: str
    size_bytes: int
    version: int | None
    stats: Mapping[str, Any]
    tag: str | None  # the bus's own summary of a file that it wrote
    level: int = 0  # how often its rows were rewritten
    sums: str | None = None  # the checksums of its bytes

    @property
    def record_count(self) -> int:
        return int(self.stats["numRecords"])

    @property
    def first_row(self) -> int:
        """Its offset."""
        return int(self.stats["minValues"]["offset"])

    @property
    def last_row(self) -> int:
        return int(self.stats["maxValues"]["offset"])

    @property
    def base_offset(self) -> int:
        """The file stands for offsets from here on; where key compaction took records, that is below the first row."""
        return self.first_row if self.tag is None else int(self.tag.split(" ", 2)[0])

    @property
    def last_offset(self) -> int:
        return self.last_row if self.tag is None else int(self.tag.split(" ", 2)[1]) - 1


def decode_add(body: Mapping[str, Any], version: int | None) -> AddedFile:
    """Raises `Unreadable` for an entry without a path, a size or the statistics of its offsets."""
    try:
        stats = _parse_stats(body["stats"])
        tags = body.get("tags") or {}
        level = int(tags.get(LEVEL_TAG) or 0)
        path, size_bytes = unquote(body["path"]), int(body["size"])
        added = AddedFile(path, size_bytes, version, stats, tags.get(FILE_TAG), level, tags.get(SUMS_TAG))
        _check_path(path)
        _check_tags(tags)
        _ = added.record_count, added.first_row, added.last_row, added.base_offset, added.last_offset
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        problem = f"{type(error).__name__} {error}"
        raise Unreadable(
            f"expected path, size and statistics with numRecords and the offsets' minimum and maximum, found "
            f"{body.get('path', 'an add without a path')} with {problem}"
        ) from None
    return added


@lru_cache(maxsize=10_000)
def _parse_stats(stats: str) -> Mapping[str, Any]:
    """Parse the statistics; cached, because every checkpoint repeats those of the live files. Raises `ValueError`."""
    found: Mapping[str, Any] = parse_json(stats)
    return found


def _check_path(path: str) -> None:
    """Raises `ValueError` for what can be the name of no file."""
    if "\0" in path or any(len(name.encode()) > 255 for name in path.split("/")):
        raise ValueError(f"the name {path[:80]!r}")


def _check_tags(tags: Mapping[str, Any]) -> None:
    """Raises `ValueError` for one of the bus's own that no broker could read."""
    for name, pattern in _TAGS.items():
        text = tags.get(name)
        if text is not None and not pattern.fullmatch(text):
            raise ValueError(f"the tag {name} of {text[:80]!r}")


@dataclass(slots=True)
class ReplayedTable:
    """A table's state as the Delta protocol's action reconciliation gives it. Changes by `apply` alone."""

    version: int = -1
    files: dict[str, AddedFile] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)  # path -> when, as far as the log still tells
    txns: dict[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None

    def apply(self, version: int, actions: Sequence[Action], *, is_checkpoint: bool = False) -> None:
        """Raises `Unreadable` for an `add` or `txn` that says too little."""
        for action in actions:
            if (body := action.get("remove")) is not None:
                path = unquote(str(body.get("path")))
                self.files.pop(path, None)
                self.removed[path] = int(body.get("deletionTimestamp") or 0)
        for action in actions:
            match action:
                case {"add": body}:
                    added = decode_add(body, None if is_checkpoint else version)
                    self.files[added.path] = added
                    self.removed.pop(added.path, None)
                case {"txn": {"appId": str(app_id), "version": int(done)}}:
                    self.txns[app_id] = done
                case {"metaData": body}:
                    self.metadata = body
                case {"protocol": body}:
                    self.protocol = body
        self.version = version

    @property
    def files_by_offset(self) -> list[AddedFile]:
        return sorted(self.files.values(), key=lambda file: file.base_offset)

    @property
    def high_watermark(self) -> int:
        """The high watermark that the log states; if it states none, the end of the last file."""
        end = max((file.last_offset + 1 for file in self.files.values()), default=0)
        return self.txns.get(HIGH_WATERMARK_APP, end)

    @property
    def log_start(self) -> int:
        first = min((file.base_offset for file in self.files.values()), default=self.high_watermark)
        return max(first, self.txns.get(LOG_START_APP, 0))

    @property
    def compacted_to(self) -> int:
        """Key compaction has been over the offsets below: any of them may be missing."""
        return self.txns.get(COMPACTED_APP, 0)

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Offsets whose records were lost and given up, each as (first, one past the last), in order."""
        firsts = {app_id: app_id.removeprefix(LOST_APPS) for app_id in self.txns if app_id.startswith(LOST_APPS)}
        return sorted((int(first), self.txns[app_id]) for app_id, first in firsts.items() if first.isdigit())

    def is_lost(self, first: int, following: int) -> bool:
        """True if all offsets from `first` up to, but not including, `following` are lost."""
        for lost_first, lost_following in self.lost_ranges:
            if lost_first <= first < lost_following:
                first = lost_following
        return first >= following

    def may_have_holes(self, file: AddedFile) -> bool:
        is_lossy = any(
            first <= file.last_offset and file.base_offset < following for first, following in self.lost_ranges
        )
        return is_lossy or file.base_offset < self.compacted_to

    @property
    def leader_epoch(self) -> int:
        return self.txns.get(LEADER_EPOCH_APP, -1)

    @property
    def configuration(self) -> Mapping[str, str]:
        return (self.metadata or {}).get("configuration") or {}


def replay_table(store: ObjectStore, folder: str, listing: LogListing | None = None) -> ReplayedTable:
    """The table at its last version: the newest checkpoint that can be read, then the versions after it.

    Raises `StorageDamaged` if there is no table, or none that could be replayed.
    """
    listing = listing or list_log(store, folder)
    if not listing.versions and not listing.checkpoints:
        raise StorageDamaged(f"{folder}/{LOG_FOLDER}: expected a Delta table, found no version")
    table = _newest_checkpoint(store, folder, listing)
    last = max([*listing.versions, table.version])
    for version in range(table.version + 1, last + 1):
        name = f"{folder}/{version_file(version)}"
        try:
            table.apply(version, load_version(store, folder, version))
        except (Unreadable, KeyNotFound) as error:
            raise StorageDamaged(f"{name}: version {version} of {last}: {error}; see bus log verify") from None
    return table


def _newest_checkpoint(store: ObjectStore, folder: str, listing: LogListing) -> ReplayedTable:
    for version in sorted(listing.checkpoints, reverse=True):
        table = ReplayedTable()
        try:
            table.apply(version, load_checkpoint(store, folder, version), is_checkpoint=True)
        except (Unreadable, KeyNotFound):
            continue
        return table
    return ReplayedTable()


def load_last_checkpoint(store: ObjectStore, folder: str) -> int | None:
    """The version that `_last_checkpoint` names, None without one. Raises `Unreadable`."""
    try:
        data = store.get(f"{folder}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
    except KeyNotFound:
        return None
    try:
        return int(parse_json(data)["version"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Unreadable(f"expected an object with a version, found {len(data)} bytes: {first_line(error)}") from None


def parse_json(text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Raises `ValueError`."""
    try:
        return json.loads(text, object_hook=object_hook)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def parse_schema(text: str) -> Any:
    """Parse a Delta schema without nullability and comments, so that two schemas can be compared. Raises
    `ValueError`."""
    left_out = ("nullable", "metadata", "containsNull", "valueContainsNull")
    return parse_json(text, lambda node: {key: value for key, value in node.items() if key not in left_out})
