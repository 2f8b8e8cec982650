"""Delta actions as bytes and back: version file names, commits, table metadata, and what a file's entry says.

Guards one promise: what is written here follows the Delta protocol (reader 1, writer 2, "Actions"), and what is read
here is complete: a version file that was cut short never decodes as a shorter commit. Does no I/O and decides nothing.

Every commit of the bus carries two `txn` actions of its own, `bus/high_watermark` and `bus/leader_epoch`. A checkpoint
drops `commitInfo` and, once everything has been retired, has no file left to tell the next offset; `txn` actions
survive both, and any Delta library can ask for them. Each of our files carries the tag `bus.file` with what opening
needs to know about it, so that no statistics are parsed and no data file is opened then: the six numbers of `LiveFile`
from `base_offset` to `leader_epoch`, then how many spans of producers it has (producer_spans.py), and these. Files from
before there were producers have the six numbers alone. A file whose rows were rewritten says so in `bus.level` and
has the tag `bus.ages` (tombstone_ages.py). `bus.crc32` has the checksums of its bytes (file_sums.py). Two more `txn`
actions are there once they are needed: `bus/compacted`,
offsets below it may be missing, and `bus/log_start`, offsets below it are gone for every reader of the log. A repair
that had to give records up leaves `bus/lost/<first offset>`: from there up to its version, no record is left. And
`bus/forgotten` is the largest id of a producer that was idle for so long that checkpoints need not name it any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version as distribution_version
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from bus.model import TIMESTAMP_MS_MAX, TopicPartition
from bus.ports import ProducerProgress
from bus.records.json_text import parse_json
from bus.records.log_schema import STATS_COLUMNS, delta_schema_string
from bus.storage_delta.files.producer_spans import NO_SPANS, check_spans, count_spans, spans_of_statistics
from bus.storage_delta.files.tombstone_ages import check_ages
from bus.storage_delta.log.version_sums import add_sum, check_sum

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
FORMAT_VERSION = 1

ENGINE = "delta-bus"
REPAIR = "REPAIR"  # the operation of a version that a repair writes
ENGINE_INFO = f"{ENGINE}/{distribution_version('delta-bus')}"
HIGH_WATERMARK_APP = "bus/high_watermark"
LEADER_EPOCH_APP = "bus/leader_epoch"
COMPACTED_APP = "bus/compacted"
LOG_START_APP = "bus/log_start"
FORGOTTEN_APP = "bus/forgotten"
_LOST_APP = re.compile(r"bus/lost/(\d+)")
_PRODUCER_APP = re.compile(r"bus/(\d+)")
FILE_TAG = "bus.file"
AGES_TAG = "bus.ages"
LEVEL_TAG = "bus.level"
SUMS_TAG = "bus.crc32"
_OLD_TAG_NUMBERS = 6
_UNKNOWN_ENGINE = "an unknown engine"
_TAG_NUMBERS = 7

# A name that is too long for a file system, or that it cannot say, is the name of no file.
_NAME_BYTES_MAX = 255
_STATS_DEPTH_MAX = 10_000

_VERSION_NAME = re.compile(r"(\d{20})\.json")
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint\.parquet")

# Delta accepts any positive integer here. Only the broker checkpoints: two writers of one checkpoint, or a Hadoop
# writer that leaves its own checksum files beside it, can make it unreadable for the others.
_CHECKPOINT_INTERVAL_NEVER = 2_000_000_000
# The broker knows when a removed data file may go, and no VACUUM does. Until then every checkpoint names it as removed:
# so this is longer than anybody keeps versions, and than a clock is wrong.
REMOVED_FILES_STAY = {"delta.deletedFileRetentionDuration": "interval 10000 days"}


class MalformedCommit(ValueError):
    """These bytes are no complete version file; the message says what was expected and what was found."""


class ChangedCommit(MalformedCommit):
    """The version was complete when it was written, and has changed since: no interrupted write leaves that."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of the current version. Invariant: 0 < record_count <= next_offset - base_offset."""

    path: str  # relative to the table, as it is called in the store
    size_bytes: int
    base_offset: int
    next_offset: int  # one past the last offset that the file stands for
    record_count: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    leader_epoch: int  # the largest in the file
    is_ordered: bool = True  # rows are in offset order; known of our files, not of those that others rewrote
    is_ours: bool = True  # and not of another engine
    producers: str = NO_SPANS  # as producer_spans.py writes them: no other record of a producer is in the file
    committed_ms: int = 0  # when the version that added it was made
    ages: str = ""  # as tombstone_ages.py writes them, if the rows were rewritten
    level: int = 0  # how often they were
    sums: str = ""  # as file_sums.py writes them; empty: of an earlier bus, or of another engine
    version: int = field(default=-1, compare=False)  # that added it, as far as the log still tells

    @property
    def is_dense(self) -> bool:
        return self.record_count == self.next_offset - self.base_offset

    @property
    def appended_ms(self) -> int:
        """When the newest of its rows was committed."""
        return int(self.ages.rpartition(":")[2]) if self.ages else self.committed_ms


@dataclass(frozen=True, slots=True)
class Add:
    """`live` is None if the file is not of our making; then its rows, and what `producers` says, tell what it holds."""

    path: str
    size_bytes: int
    is_data_change: bool
    live: LiveFile | None
    producers: str = NO_SPANS
    committed_ms: int = 0
    stats: str | None = None  # of a file that is not of our making
    fault: str = ""  # why the rows of such a file are none of the log
    body: Mapping[str, Any] | None = None  # the action itself, if it was asked for


@dataclass(frozen=True, slots=True)
class Remove:
    path: str
    is_data_change: bool
    removed_ms: int  # 0 if its writer did not say


@dataclass(frozen=True, slots=True)
class Txn:
    """How far an application has come, by its own count (Delta protocol, "Transaction Identifiers")."""

    version: int
    updated_ms: int = 0  # 0 if its writer did not say


@dataclass(frozen=True, slots=True)
class TableMetadata:
    schema_string: str
    configuration: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict, compare=False)  # the action itself

    @property
    def topic_id(self) -> str | None:
        return self.configuration.get("bus.topic_id")


@dataclass(frozen=True, slots=True)
class Protocol:
    reader_version: int
    writer_version: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One decoded version file."""

    version: int
    operation: str = "unknown"
    engine_info: str = _UNKNOWN_ENGINE
    txn_id: str | None = None
    leader_epoch: int | None = None
    incarnation: str | None = None  # of the leader that wrote it; None if it is no leader, or an earlier version did
    committed_ms: int = 0  # 0 if its writer did not say
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    txns: Mapping[str, Txn] = field(default_factory=dict)
    metadata: TableMetadata | None = None
    protocol: Protocol | None = None

    @property
    def is_signed(self) -> bool:
        """It says which engine wrote it."""
        return self.engine_info != _UNKNOWN_ENGINE

    @property
    def is_ours(self) -> bool:
        return self.engine_info.startswith(f"{ENGINE}/")


def version_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def replaced_name(version: int) -> str:
    """Of a copy of an acknowledged version in whose place another program has put one. No reader of Delta knows it."""
    return f"_replaced.{version_name(version)}"


def is_replaced_name(name: str) -> bool:
    return name.startswith("_replaced.") and parse_version_name(name.removeprefix("_replaced.")) is not None


def parse_version_name(name: str) -> int | None:
    match = _VERSION_NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_checkpoint_name(name: str) -> int | None:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_create(
    partition: TopicPartition,
    *,
    topic_id: str,
    table_id: str,
    txn_id: str,
    schema: pa.Schema,
    now_ms: int,
) -> bytes:
    """Version 0: protocol and metadata of an empty table."""
    configuration = {
        "delta.dataSkippingStatsColumns": ",".join(STATS_COLUMNS),
        "delta.enableExpiredLogCleanup": "false",
        **REMOVED_FILES_STAY,
        "delta.checkpointInterval": str(_CHECKPOINT_INTERVAL_NEVER),
        "bus.topic": partition.topic,
        "bus.partition": str(partition.partition),
        "bus.topic_id": topic_id,
        "bus.format_version": str(FORMAT_VERSION),
    }
    commit_info = {
        "timestamp": now_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {},
        "isBlindAppend": True,
        "engineInfo": ENGINE_INFO,
        "txnId": txn_id,
        "actionCount": 3,
    }
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table_schema_string(schema),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now_ms,
    }
    actions = (
        {"commitInfo": commit_info},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    )
    return add_sum("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode())


def encode_append(
    file: LiveFile,
    *,
    stats: str,
    producers: Sequence[ProducerProgress],
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
    incarnation: str = "",
    forgotten_id_max: int | None = None,
) -> bytes:
    """An append as a version file. Written by hand, since every acknowledged record waits for it. `forgotten_id_max`:
    where it has grown.

    No value in here needs escaping but the statistics, which are JSON within JSON.
    """
    lines = [
        f'{{"commitInfo":{{"timestamp":{now_ms},"operation":"WRITE","operationParameters":{{"mode":"Append"}},'
        f'"isBlindAppend":true,"engineInfo":"{ENGINE_INFO}","txnId":"{txn_id}","leaderEpoch":{leader_epoch},'
        f'"incarnation":"{incarnation}","actionCount":{4 + len(producers) + (forgotten_id_max is not None)}}}}}\n',
        _encode_txn(HIGH_WATERMARK_APP, file.next_offset, now_ms),
        _encode_txn(LEADER_EPOCH_APP, leader_epoch, now_ms),
    ]
    if forgotten_id_max is not None:
        lines.append(_encode_txn(FORGOTTEN_APP, forgotten_id_max, now_ms))
    for progress in producers:
        assert progress.last_sequence >= 0, f"producer {progress.producer_id} has sequence {progress.last_sequence}"
        done = progress.producer_epoch << 32 | progress.last_sequence
        lines.append(_encode_txn(producer_app(progress.producer_id), done, now_ms))
    lines.append(_encode_add(file, stats, now_ms, is_data_change=True))
    return add_sum("".join(lines).encode())


def encode_swap(
    adds: Sequence[tuple[LiveFile, str]],
    removes: Sequence[str],
    *,
    operation: str,
    high_watermark: int,
    compacted_to: int | None,
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
    incarnation: str = "",
) -> bytes:
    """A rewriting of rows as a version file: `adds`, each with its statistics, in place of `removes`. Nothing in it is
    a change of data, so that readers of changes pass over it. `compacted_to` None: no row is missing."""
    compacted = [] if compacted_to is None else [_encode_txn(COMPACTED_APP, compacted_to, now_ms)]
    return _encode_maintenance(
        operation,
        [
            *compacted,
            *(_encode_remove(path, now_ms, is_data_change=False) for path in removes),
            *(_encode_add(file, stats, now_ms, is_data_change=False) for file, stats in adds),
        ],
        high_watermark=high_watermark,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        txn_id=txn_id,
        incarnation=incarnation,
    )


def encode_removal(
    removes: Sequence[str],
    *,
    high_watermark: int,
    log_start: int,
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
    incarnation: str = "",
) -> bytes:
    """The end of all records below `log_start` as a version file. It adds nothing: a reader of changes that ignores
    deletions goes on."""
    return _encode_maintenance(
        "DELETE",
        [
            _encode_txn(LOG_START_APP, log_start, now_ms),
            *(_encode_remove(path, now_ms, is_data_change=True) for path in removes),
        ],
        high_watermark=high_watermark,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        txn_id=txn_id,
        incarnation=incarnation,
    )


def encode_fence(*, high_watermark: int, leader_epoch: int, now_ms: int, txn_id: str, incarnation: str = "") -> bytes:
    """A version that changes nothing: what another leader was about to commit under its number is not in the log,
    now or later."""
    return _encode_maintenance(
        "FENCE",
        (),
        high_watermark=high_watermark,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        txn_id=txn_id,
        incarnation=incarnation,
    )


def _encode_maintenance(
    operation: str,
    lines: Sequence[str],
    *,
    high_watermark: int,
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
    incarnation: str,
) -> bytes:
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": ENGINE_INFO,
        "txnId": txn_id,
        "leaderEpoch": leader_epoch,
        "incarnation": incarnation,
        "actionCount": 3 + len(lines),
    }
    head = (
        json.dumps({"commitInfo": info}, separators=(",", ":")) + "\n",
        _encode_txn(HIGH_WATERMARK_APP, high_watermark, now_ms),
        _encode_txn(LEADER_EPOCH_APP, leader_epoch, now_ms),
    )
    return add_sum("".join((*head, *lines)).encode())


def _encode_remove(path: str, now_ms: int, *, is_data_change: bool) -> str:
    return (
        f'{{"remove":{{"path":{json.dumps(quote(path))},"deletionTimestamp":{now_ms},'
        f'"dataChange":{"true" if is_data_change else "false"}}}}}\n'
    )


def _encode_add(file: LiveFile, stats: str, now_ms: int, *, is_data_change: bool) -> str:
    tag = (
        f"{file.base_offset} {file.next_offset} {file.record_count} "
        f"{file.timestamp_min_ms} {file.timestamp_max_ms} {file.leader_epoch} "
        f"{count_spans(file.producers)}{' ' if file.producers else ''}{file.producers}"
    )
    ages = f',"{AGES_TAG}":"{file.ages}"' if file.ages else ""
    level = f',"{LEVEL_TAG}":"{file.level}"' if file.level else ""
    sums = f',"{SUMS_TAG}":"{file.sums}"' if file.sums else ""
    return (
        f'{{"add":{{"path":"{file.path}","partitionValues":{{}},"size":{file.size_bytes},"modificationTime":{now_ms},'
        f'"dataChange":{"true" if is_data_change else "false"},"stats":{json.dumps(stats)},'
        f'"tags":{{"{FILE_TAG}":"{tag}"{ages}{level}{sums}}}}}}}\n'
    )


def encode_new_file(file: LiveFile, stats: str, now_ms: int) -> dict[str, Any]:
    """The body of an `add`."""
    added: dict[str, Any] = json.loads(_encode_add(file, stats, now_ms, is_data_change=True))["add"]
    return {**added, "path": quote(file.path)}


def _encode_txn(app_id: str, version: int, now_ms: int) -> str:
    return f'{{"txn":{{"appId":"{app_id}","version":{version},"lastUpdated":{now_ms}}}}}\n'


def decode_commit(version: int, data: bytes, *, with_bodies: bool = False) -> Commit:
    """Raises `MalformedCommit` if the file is empty, torn or is no list of actions, or `ChangedCommit`. `with_bodies`:
    each `Add` has its action too."""
    try:
        actions = [parse_json(line) for line in data.decode().split("\n") if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise TypeError("a line is no JSON object")
        told = (action["commitInfo"] for action in actions if "commitInfo" in action)
        info: Mapping[str, Any] = next(told, {}) or {}
        commit = _commit_of(version, info, actions, with_bodies)
        expected = info.get("actionCount")
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedCommit(f"expected one action a line, found {len(data)} bytes: {error}") from None
    if not actions:
        raise MalformedCommit(f"expected at least one action, found {len(data)} bytes without any")
    # A file may be cut exactly at the end of a line. Ours say how many actions follow `commitInfo` or are it.
    if commit.is_ours and expected != len(actions):
        raise MalformedCommit(f"expected {expected} actions, found {len(actions)}")
    try:
        check_sum(data)
    except ValueError as error:
        raise ChangedCommit(str(error)) from None
    return commit


def _text_of(value: Any) -> str:
    """JSON can name halves of characters, which no store and no terminal takes. Raises `ValueError`."""
    text = str(value)
    if not text.isascii():
        text.encode()
    return text


def _told(info: Mapping[str, Any], name: str, number_max: int) -> int | None:
    """A number of `commitInfo`, in which other engines may write what they like."""
    number = info.get(name)
    return number if type(number) is int and 0 <= number <= number_max else None


def _commit_of(
    version: int, info: Mapping[str, Any], actions: Sequence[Mapping[str, Any]], with_bodies: bool
) -> Commit:
    adds, removes, txns = list[Add](), list[Remove](), dict[str, Txn]()
    metadata, protocol = None, None
    for action in actions:
        if (body := action.get("txn")) is not None:
            txns[_text_of(body["appId"])] = decode_txn(body)
        if (body := action.get("add")) is not None:
            add = decode_add(body, version)
            adds.append(replace(add, body=body) if with_bodies else add)
        if (body := action.get("remove")) is not None:
            removes.append(decode_remove(body))
        if (body := action.get("metaData")) is not None and metadata is None:
            metadata = decode_metadata(body)
        if (body := action.get("protocol")) is not None and protocol is None:
            protocol = decode_protocol(body)
    return Commit(
        version=version,
        operation=_text_of(info.get("operation", "unknown")),
        engine_info=_text_of(info.get("engineInfo", _UNKNOWN_ENGINE)),
        txn_id=info.get("txnId"),
        leader_epoch=_told(info, "leaderEpoch", (1 << 31) - 1),
        incarnation=info.get("incarnation") or None,
        committed_ms=_told(info, "timestamp", TIMESTAMP_MS_MAX) or 0,
        adds=adds,
        removes=removes,
        txns=txns,
        metadata=metadata,
        protocol=protocol,
    )


def decode_add(add: Mapping[str, Any], version: int = -1) -> Add:
    """An `add` of a version file."""
    tags = add.get("tags") or {}
    return make_add(
        add["path"],
        int(add["size"]),
        bool(add.get("dataChange", True)),
        tags.get(FILE_TAG),
        stats=_check_stats(add.get("stats")),
        committed_ms=int(add.get("modificationTime") or 0),
        ages=tags.get(AGES_TAG),
        level=tags.get(LEVEL_TAG),
        sums=tags.get(SUMS_TAG),
        version=version,
    )


def make_add(
    encoded_path: str,
    size_bytes: int,
    is_data_change: bool,
    tag: str | None,
    *,
    stats: str | None,
    committed_ms: int,
    ages: str | None,
    level: str | None,
    sums: str | None,
    version: int = -1,
) -> Add:
    """`tag` is that of our files, None if the file is not of our making. `stats` counts if the tag tells nothing of
    producers (see `is_telling`)."""
    path = _decode_path(encoded_path)
    check_int64(max(size_bytes, committed_ms))
    if tag is None:
        return Add(path, size_bytes, is_data_change, None, spans_of_statistics(stats), committed_ms, stats)
    numbers, spans = tag.split(" ", _TAG_NUMBERS), NO_SPANS
    base, following, count, time_min, time_max, epoch = map(int, numbers[:_OLD_TAG_NUMBERS])
    check_int64(max(following, time_max, epoch))
    if len(numbers) == _OLD_TAG_NUMBERS:
        spans = spans_of_statistics(stats)
    elif numbers[_OLD_TAG_NUMBERS] != "0":
        spans = check_spans(numbers[_TAG_NUMBERS], int(numbers[_OLD_TAG_NUMBERS]))
    live = LiveFile(
        path=path,
        size_bytes=size_bytes,
        base_offset=base,
        next_offset=following,
        record_count=count,
        timestamp_min_ms=time_min,
        timestamp_max_ms=time_max,
        leader_epoch=epoch,
        producers=spans,
        committed_ms=committed_ms,
        ages=check_ages(ages or ""),
        level=int(level or 0),
        sums=sums or "",
        version=version,
    )
    return Add(path, size_bytes, is_data_change, live, spans, committed_ms)


def _check_stats(stats: str | None) -> str | None:
    """The Delta library that writes checkpoints parses them by recursion, and has the process end where they are very
    deep. Raises `ValueError`."""
    if stats and len(stats) > _STATS_DEPTH_MAX and max(stats.count("["), stats.count("{")) > _STATS_DEPTH_MAX:
        raise ValueError(f"expected statistics, found {len(stats)} characters of nested JSON")
    return stats


def _decode_path(encoded: str) -> str:
    path = unquote(encoded)
    is_long = (len(path) > _NAME_BYTES_MAX or not path.isascii()) and _has_long_name(path)
    if not path or "\0" in path or is_long:
        raise ValueError(f"expected the name of a data file, found {path[:80]!r}")
    return path


def _has_long_name(path: str) -> bool:
    return any(len(name.encode()) > _NAME_BYTES_MAX for name in path.split("/"))


def check_int64(number: int) -> int:
    """Delta has no larger numbers. Raises `ValueError`."""
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"expected a number of 64 bits, found one of {number.bit_length()}")
    return number


def is_telling(tag: str | None) -> bool:
    """Whether a file's tag says which producers are in it, so that its statistics need not be parsed."""
    return tag is not None and tag.count(" ") >= _OLD_TAG_NUMBERS


def decode_remove(remove: Mapping[str, Any]) -> Remove:
    """A `remove` of a version file or a checkpoint."""
    return Remove(
        _decode_path(remove["path"]),
        bool(remove.get("dataChange", True)),
        check_int64(int(remove.get("deletionTimestamp") or 0)),
    )


def decode_txn(txn: Mapping[str, Any]) -> Txn:
    version, updated_ms = int(txn["version"]), int(txn.get("lastUpdated") or 0)
    check_int64(version if updated_ms < 1 << 63 else updated_ms)
    return Txn(version, updated_ms)


def decode_metadata(metadata: Mapping[str, Any]) -> TableMetadata:
    return TableMetadata(str(metadata["schemaString"]), dict(metadata.get("configuration") or {}), metadata)


def decode_protocol(protocol: Mapping[str, Any]) -> Protocol:
    return Protocol(int(protocol["minReaderVersion"]), int(protocol["minWriterVersion"]))


def decode_producers(txns: Mapping[str, Txn]) -> dict[int, ProducerProgress]:
    """The idempotent producers among the `txn` actions."""
    producers = {}
    for app_id, txn in txns.items():
        if match := _PRODUCER_APP.fullmatch(app_id):
            producer_id = int(match[1])
            producers[producer_id] = ProducerProgress(
                producer_id, txn.version >> 32, txn.version & 0xFFFFFFFF, txn.updated_ms
            )
    return producers


def forgotten_id_max_of(txns: Mapping[str, Txn]) -> int:
    """-1 if no producer was ever forgotten."""
    return txns[FORGOTTEN_APP].version if FORGOTTEN_APP in txns else -1


def is_forgotten(app_id: str, txns: Mapping[str, Txn]) -> bool:
    """Whether `app_id` is of a producer that a table with `txns` need not name any more: one that it does not name may
    be an older one that is back."""
    match = _PRODUCER_APP.fullmatch(app_id)
    return match is not None and int(match[1]) <= forgotten_id_max_of(txns)


def producer_app(producer_id: int) -> str:
    """The `appId` of an idempotent producer's `txn`."""
    return f"bus/{producer_id}"


def lost_app(first_offset: int) -> str:
    """The `appId` that says from where records were given up."""
    return f"bus/lost/{first_offset}"


def decode_lost_ranges(txns: Mapping[str, Txn]) -> list[tuple[int, int]]:
    """Offsets whose records were given up, each as (first, one past the last), in order."""
    found = ((_LOST_APP.fullmatch(app_id), txn.version) for app_id, txn in txns.items())
    return sorted((int(match[1]), following) for match, following in found if match)


def table_schema_string(schema: pa.Schema) -> str:
    """The Delta schema of a partition: every column nullable, though the bus writes no null offset or timestamp.

    NOT NULL is an invariant that each foreign writer has to check before a MERGE or OPTIMIZE; delta-spark refuses to
    write to a table that has it within a list, as the key of a header is. A promise that only the broker can keep is
    better checked by the broker.
    """
    return delta_schema_string(pa.schema([_nullable(column) for column in schema]))


def _nullable(column: pa.Field) -> pa.Field:
    return pa.field(column.name, nullable_type(column.type))


def nullable_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere, as Delta tables of the bus have it."""
    if pa.types.is_struct(arrow_type):
        return pa.struct([_nullable(inner) for inner in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(_nullable(arrow_type.value_field))
    if pa.types.is_map(arrow_type):
        return pa.map_(nullable_type(arrow_type.key_type), _nullable(arrow_type.item_field))
    return arrow_type


def is_same_schema(schema_string: str, schema: pa.Schema) -> bool:
    """Whether a table has the columns of `schema`, whatever it says about nulls and comments."""
    return _has_columns_of(schema_string, table_schema_string(schema))


def has_same_columns(one: TableMetadata, other: TableMetadata) -> bool:
    """As `is_same_schema`."""
    return one.schema_string == other.schema_string or _has_columns_of(one.schema_string, other.schema_string)


def _has_columns_of(one: str, other: str) -> bool:
    try:
        found, expected = (parse_json(text, object_hook=_without_trimmings) for text in (one, other))
    except ValueError:
        return False
    return bool(found == expected)


def _without_trimmings(node: dict[str, Any]) -> dict[str, Any]:
    left_out = ("nullable", "metadata", "containsNull", "valueContainsNull")
    return {key: value for key, value in node.items() if key not in left_out}
