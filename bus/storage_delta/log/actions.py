"""Versions of a table: the files of its log as bytes and back (Delta protocol, "Actions").

Guards two promises. What is read is complete: a version file that was cut short never decodes as a shorter commit. And
a version that has a checksum is what was written, digit by digit: JSON that was changed can be sound JSON with another
offset, sequence or size, and most fields contradict no other. The checksum is in `commitInfo`, where any Delta reader
passes over it; versions of other engines and of earlier buses have none, and count as they are. Does no I/O and decides
nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version as distribution_version
from typing import Any
from urllib.parse import quote, unquote

from bus.model import TIMESTAMP_MS_MAX
from bus.ports import AppliedTransaction, ProducerProgress
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import (
    AGES_TAG,
    FILE_TAG,
    LEVEL_TAG,
    SUMS_TAG,
    LiveFile,
    check_int64,
    decode_tags,
    encode_tags,
)
from bus.storage_delta.files.producer_spans import NO_SPANS, spans_of_statistics
from bus.storage_delta.log.txns import (
    COMPACTED_APP,
    FORGOTTEN_APP,
    HIGH_WATERMARK_APP,
    LEADER_EPOCH_APP,
    LOG_START_APP,
    Txn,
    decode_txn,
    encode_aborted,
    encode_applied,
    encode_progress,
    encode_taken_back,
    encode_txn,
    transaction_app,
)

ENGINE = "delta-bus"
REPAIR = "REPAIR"  # the operation of a version that a repair writes
ENGINE_INFO = f"{ENGINE}/{distribution_version('delta-bus')}"
_UNKNOWN_ENGINE = "an unknown engine"

# A name that is too long for a file system, or that it cannot say, is the name of no file.
_NAME_BYTES_MAX = 255
_STATS_DEPTH_MAX = 10_000

_SUM_FIELD = b'"fileCrc32":"'
_SUM_NOT_COUNTED = b"00000000"  # the sum is of the file with these digits in the place of its own
_BEFORE_SUM = b'"actionCount"'


class MalformedCommit(ValueError):
    """These bytes are no complete version file; the message says what was expected and what was found."""


class ChangedCommit(MalformedCommit):
    """The version was complete when it was written, and has changed since: no interrupted write leaves that."""


@dataclass(frozen=True, slots=True)
class Add:
    """The addition of a data file. `live` is None if the bus did not write the file; then its rows, and `producers`,
    say what it holds."""

    path: str
    size_bytes: int
    is_data_change: bool
    live: LiveFile | None
    producers: str = NO_SPANS
    committed_ms: int = 0
    stats: str | None = None  # only for files that another engine wrote
    fault: str = ""  # the reason why the rows of such a file do not belong to the log
    body: Mapping[str, Any] | None = None  # the action itself, if the caller requested it


@dataclass(frozen=True, slots=True)
class Remove:
    path: str
    is_data_change: bool
    removed_ms: int  # 0 if its writer did not say
    body: Mapping[str, Any] | None = None  # the action itself, if it was asked for


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
    writer_features: frozenset[str] | None = None  # None: the version alone says what a writer has to know
    body: Mapping[str, Any] = field(default_factory=dict, compare=False)  # the action itself


@dataclass(frozen=True, slots=True)
class Commit:
    """One decoded version file."""

    version: int
    operation: str = "unknown"
    engine_info: str = _UNKNOWN_ENGINE
    txn_id: str | None = None
    leader_epoch: int | None = None
    incarnation: str | None = None  # the leader that wrote it; None if no leader did, or an earlier bus
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


# ------------------------------------------------------------------ writing


@dataclass(frozen=True, slots=True)
class Signature:
    """The leader that commits a version, its incarnation, and the time."""

    leader_epoch: int
    now_ms: int
    txn_id: str
    incarnation: str = ""

    @property
    def author(self) -> str:
        """The fields that `encode_version` adds for the leader."""
        return f'"leaderEpoch":{self.leader_epoch},"incarnation":"{self.incarnation}",'


def encode_append(
    file: LiveFile,
    *,
    stats: str,
    producers: Sequence[ProducerProgress],
    signature: Signature,
    forgotten_id_max: int | None = None,
    transactions: Sequence[AppliedTransaction] = (),
    expired_ids: Sequence[str] = (),
) -> bytes:
    """An append as a version file. `forgotten_id_max`: where it has grown. `expired_ids`: whose transactions are taken
    back, none of them among `transactions`."""
    now_ms = signature.now_ms
    lines = [encode_progress(progress, now_ms) for progress in producers]
    if forgotten_id_max is not None:
        lines.insert(0, encode_txn(FORGOTTEN_APP, forgotten_id_max, now_ms))
    lines += [encode_applied(transaction, now_ms) for transaction in transactions]
    lines += [encode_taken_back(transactional_id, now_ms) for transactional_id in expired_ids]
    lines.append(encode_add(file, stats, now_ms, is_data_change=True))
    return _encode_signed("WRITE", lines, file.next_offset, signature, mode="Append", transactions=transactions)


def encode_abort(
    transaction: AppliedTransaction, *, high_watermark: int, signature: Signature, expired_ids: Sequence[str] = ()
) -> bytes:
    """The end of a transaction whose rows are not in the table: a version that adds none. `expired_ids` as for an
    append."""
    now_ms = signature.now_ms
    lines = [encode_aborted(transaction, now_ms)]
    lines += [encode_taken_back(transactional_id, now_ms) for transactional_id in expired_ids]
    return _encode_signed("ABORT", lines, high_watermark, signature)


def encode_swap(
    adds: Sequence[tuple[LiveFile, str]],
    removes: Sequence[str],
    *,
    operation: str,
    high_watermark: int,
    compacted_to: int | None,
    signature: Signature,
) -> bytes:
    """A rewriting of rows as a version file: `adds`, each with its statistics, in place of `removes`. Nothing in it is
    a change of data, so that readers of changes pass over it. `compacted_to` None: no row is missing."""
    now_ms = signature.now_ms
    lines = [] if compacted_to is None else [encode_txn(COMPACTED_APP, compacted_to, now_ms)]
    lines += [encode_remove(path, now_ms, is_data_change=False) for path in removes]
    lines += [encode_add(file, stats, now_ms, is_data_change=False) for file, stats in adds]
    return _encode_signed(operation, lines, high_watermark, signature)


def encode_removal(removes: Sequence[str], *, high_watermark: int, log_start: int, signature: Signature) -> bytes:
    """Encode the removal of all records below `log_start` as a version file. The version adds nothing, so a reader of
    changes that ignores deletions continues."""
    now_ms = signature.now_ms
    lines = [encode_txn(LOG_START_APP, log_start, now_ms)]
    lines += [encode_remove(path, now_ms, is_data_change=True) for path in removes]
    return _encode_signed("DELETE", lines, high_watermark, signature)


def encode_fence(*, high_watermark: int, signature: Signature) -> bytes:
    """A version that changes nothing: what another leader was about to commit under its number is not in the log,
    now or later."""
    return _encode_signed("FENCE", (), high_watermark, signature)


def encode_protocol(protocol: Mapping[str, Any], *, high_watermark: int, signature: Signature) -> bytes:
    """A version that changes the protocol alone."""
    return _encode_signed("UPGRADE PROTOCOL", [encode_line({"protocol": protocol})], high_watermark, signature)


def _encode_signed(
    operation: str,
    lines: Sequence[str],
    high_watermark: int,
    signature: Signature,
    *,
    mode: str | None = None,
    transactions: Sequence[AppliedTransaction] = (),
) -> bytes:
    now_ms, leader_epoch = signature.now_ms, signature.leader_epoch
    return encode_version(
        operation,
        [
            encode_txn(HIGH_WATERMARK_APP, high_watermark, now_ms),
            encode_txn(LEADER_EPOCH_APP, leader_epoch, now_ms),
            *lines,
        ],
        now_ms=now_ms,
        txn_id=signature.txn_id,
        parameters="{}" if mode is None else f'{{"mode":"{mode}"}}',
        is_blind_append=mode is not None,
        author=signature.author + _encode_names(transactions),
    )


def _encode_names(transactions: Sequence[AppliedTransaction]) -> str:
    """Return the field of `encode_version` that says whose rows a proof covers: each `appId` with its producer id and
    epoch."""
    if not transactions:
        return ""
    names = ",".join(
        f'"{transaction_app(each.transactional_id)}":[{each.producer_id},{each.producer_epoch}]'
        for each in transactions
    )
    return f'"transactions":{{{names}}},'


def encode_version(
    operation: str,
    lines: Sequence[str],
    *,
    now_ms: int,
    txn_id: str,
    parameters: str = "{}",
    is_blind_append: bool = False,
    author: str = "",
) -> bytes:
    """The actions `lines` behind their `commitInfo`, with the checksum of all. `parameters` is a JSON object of texts;
    `author`, if there is one, has fields of `commitInfo`, with a comma behind each. By hand, since every append waits
    for it."""
    info = (
        f'{{"commitInfo":{{"timestamp":{now_ms},"operation":"{operation}","operationParameters":{parameters},'
        f'"isBlindAppend":{"true" if is_blind_append else "false"},"engineInfo":"{ENGINE_INFO}","txnId":"{txn_id}",'
        f'{author}"actionCount":{1 + len(lines)}}}}}\n'
    )
    return add_sum("".join((info, *lines)).encode())


_encode_json = json.JSONEncoder(separators=(",", ":")).encode


def encode_line(action: Mapping[str, Any]) -> str:
    return _encode_json(action) + "\n"


def encode_remove(path: str, now_ms: int, *, is_data_change: bool) -> str:
    body = {"path": quote(path), "deletionTimestamp": now_ms, "dataChange": is_data_change}
    return encode_line({"remove": body})


def encode_add(file: LiveFile, stats: str, now_ms: int, *, is_data_change: bool) -> str:
    """Encode an `add` by hand, because every append waits for it."""
    return (
        f'{{"add":{{"path":"{quote(file.path)}","partitionValues":{{}},"size":{file.size_bytes},'
        f'"modificationTime":{now_ms},"dataChange":{"true" if is_data_change else "false"},'
        f'"stats":{_encode_json(stats)},"tags":{encode_tags(file)}}}}}\n'
    )


def add_sum(data: bytes) -> bytes:
    """A version file whose `commitInfo`, its first line, has an `actionCount`."""
    at = data.index(_BEFORE_SUM)
    head, rest = data[:at] + _SUM_FIELD, b'",' + data[at:]
    return head + _sum_around(head, rest) + rest


def check_sum(data: bytes) -> None:
    """Raises `ValueError` if the version file has a checksum and is not what was written."""
    at = data.find(_SUM_FIELD, 0, data.find(b"\n") + 1)
    if at < 0:
        return
    begin, end = at + len(_SUM_FIELD), at + len(_SUM_FIELD) + len(_SUM_NOT_COUNTED)
    said, found = data[begin:end], _sum_around(data[:begin], data[end:])
    if said != found:
        expected = said.decode("ascii", errors="replace")
        raise ValueError(
            f"expected checksum {expected}, found {found.decode()}: the file has changed since it was written"
        )


def _sum_around(head: bytes, rest: bytes) -> bytes:
    """The newline at the end carries nothing, so it does not count."""
    return b"%08x" % zlib.crc32(rest.rstrip(b"\n"), zlib.crc32(head + _SUM_NOT_COUNTED))


# ------------------------------------------------------------------ reading


def decode_commit(version: int, data: bytes, *, with_bodies: bool = False) -> Commit:
    """Raises `MalformedCommit` if the file is empty, torn or is no list of actions, or `ChangedCommit`. `with_bodies`:
    each `Add` and `Remove` has its action too."""
    try:
        actions = [parse_json(line) for line in data.decode().split("\n") if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise TypeError("a line is no JSON object")
        infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
        info: Mapping[str, Any] = next(infos, {}) or {}
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


def _recorded_number(info: Mapping[str, Any], name: str, number_max: int) -> int | None:
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
            remove = decode_remove(body)
            removes.append(replace(remove, body=body) if with_bodies else remove)
        if (body := action.get("metaData")) is not None and metadata is None:
            metadata = decode_metadata(body)
        if (body := action.get("protocol")) is not None and protocol is None:
            protocol = decode_protocol(body)
    return Commit(
        version=version,
        operation=_text_of(info.get("operation", "unknown")),
        engine_info=_text_of(info.get("engineInfo", _UNKNOWN_ENGINE)),
        txn_id=info.get("txnId"),
        leader_epoch=_recorded_number(info, "leaderEpoch", (1 << 31) - 1),
        incarnation=info.get("incarnation") or None,
        committed_ms=_recorded_number(info, "timestamp", TIMESTAMP_MS_MAX) or 0,
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
    live = decode_tags(
        path,
        size_bytes,
        tag,
        stats=stats,
        committed_ms=committed_ms,
        ages=ages,
        level=level,
        sums=sums,
        version=version,
    )
    return Add(path, size_bytes, is_data_change, live, live.producers, committed_ms)


def _check_stats(stats: str | None) -> str | None:
    """The Delta library that the embedded SQL reads with parses them by recursion, and has the process end where they
    are very deep. Raises `ValueError`."""
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


def decode_remove(remove: Mapping[str, Any]) -> Remove:
    """A `remove` of a version file or a checkpoint."""
    return Remove(
        _decode_path(remove["path"]),
        bool(remove.get("dataChange", True)),
        check_int64(int(remove.get("deletionTimestamp") or 0)),
    )


def decode_metadata(metadata: Mapping[str, Any]) -> TableMetadata:
    return TableMetadata(str(metadata["schemaString"]), dict(metadata.get("configuration") or {}), metadata)


def decode_protocol(protocol: Mapping[str, Any]) -> Protocol:
    features = protocol.get("writerFeatures")
    named = None if features is None else frozenset(map(_text_of, features))
    return Protocol(int(protocol["minReaderVersion"]), int(protocol["minWriterVersion"]), named, protocol)
