"""Checkpoint files (classic, version 1) as what they say about a table, and `_last_checkpoint`, which names the newest.

Guards two promises: a checkpoint that was cut short or is not what the Delta protocol describes is never taken for a
smaller table, and none is decoded that was not proved or tried. The Delta protocol gives `_last_checkpoint` a map of
tags for what writers want to add: the checksums of a checkpoint that the bus wrote are there (proved_parquet.py). One
of another engine, or of an earlier bus, has none: it is tried in another process first (trials.py). Opening does not
ask which files were removed, for that may be many times what is live: the cleanup does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import AGES_TAG, FILE_TAG, LEVEL_TAG, SUMS_TAG, is_telling
from bus.storage_delta.files.proved_parquet import FileSums, ProvedFile, decode_sums, encode_sums
from bus.storage_delta.files.trials import TRIALS, Unprovable, whole_sums
from bus.storage_delta.log.actions import (
    Add,
    Protocol,
    TableMetadata,
    decode_add,
    decode_metadata,
    decode_protocol,
    make_add,
)
from bus.storage_delta.log.listing import LAST_CHECKPOINT, checkpoint_name
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

_COLUMNS = [
    "add.path",
    "add.size",
    "add.modificationTime",
    "add.tags",
    "txn",
    "protocol",
    "metaData",
]


# The number of rows that are converted to Python values at once: the conversion holds the GIL.
_ROWS_AT_ONCE = 500
_MAPS = ("partitionValues", "tags", "configuration", "options")


def _struct(**fields: pa.DataType) -> pa.StructType:
    """A name that ends with `_` is that of a field that may be null."""
    return pa.struct([pa.field(name.rstrip("_"), kind, nullable=name.endswith("_")) for name, kind in fields.items()])


_TEXT, _LONG, _MAP = pa.string(), pa.int64(), pa.map_(pa.string(), pa.string())
_TEXTS = pa.list_(pa.field("element", _TEXT, nullable=False))
# Delta protocol, "Checkpoint Schema", as far as a table of the bus can have it.
_TYPES = {
    "txn": _struct(appId=_TEXT, version=_LONG, lastUpdated_=_LONG),
    "add": _struct(
        path=_TEXT,
        partitionValues=_MAP,
        size=_LONG,
        modificationTime=_LONG,
        dataChange=pa.bool_(),
        stats_=_TEXT,
        tags_=_MAP,
    ),
    "remove": _struct(path=_TEXT, deletionTimestamp_=_LONG, dataChange=pa.bool_()),
    "metaData": _struct(
        id=_TEXT,
        name_=_TEXT,
        description_=_TEXT,
        format=_struct(provider=_TEXT, options=_MAP),
        schemaString=_TEXT,
        partitionColumns=_TEXTS,
        createdTime_=_LONG,
        configuration=_MAP,
    ),
    "protocol": _struct(minReaderVersion=pa.int32(), minWriterVersion=pa.int32(), writerFeatures_=_TEXTS),
}
_METADATA_DEFAULTS = {"partitionColumns": (), "configuration": {}, "format": {"provider": "parquet", "options": {}}}
_FAULTS = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError)


class MalformedCheckpoint(ValueError):
    """These bytes are no complete checkpoint."""


@dataclass(frozen=True, slots=True)
class Hint:
    version: int
    sums: FileSums | None


def read_hint(store: ObjectStore, log_folder: str) -> Hint | None:
    """None if it is not there or cannot be read."""
    try:
        hint: Any = parse_json(store.get(f"{log_folder}/{LAST_CHECKPOINT}"))
        sums = (hint.get("tags") or {}).get(SUMS_TAG)
        return Hint(int(hint["version"]), None if sums is None else decode_sums(sums))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, KeyNotFound):
        return None


def encode_hint(version: int, *, action_count: int, data: bytes) -> bytes:
    """`data`: the checkpoint."""
    hint = {
        "version": version,
        "size": action_count,
        "sizeInBytes": len(data),
        "tags": {SUMS_TAG: encode_sums(whole_sums(data))},
    }
    return json.dumps(hint, separators=(",", ":")).encode()


def load_proved(store: ObjectStore, log_folder: str, version: int, hint: Hint | None) -> bytes:
    """The checkpoint of `version`. Raises `MalformedCheckpoint` if it is not the one that `hint` names, `KeyNotFound`,
    `StorageFault`."""
    data = store.get(f"{log_folder}/{checkpoint_name(version)}")
    if hint is None or hint.version != version or hint.sums is None:
        return data
    try:
        found = TRIALS.accept(data) if whole_sums(data) == hint.sums else None
    except Unprovable as error:
        raise MalformedCheckpoint(f"expected a checkpoint of version {version}: {error}") from None
    if found is None:
        raise MalformedCheckpoint(
            f"expected the checkpoint of version {version} that {LAST_CHECKPOINT} names, found other bytes than were "
            "written"
        )
    return data


@contextlib.contextmanager
def _expecting(name: str, data: bytes) -> Iterator[None]:
    """Raises `MalformedCheckpoint` for what `data` makes Arrow and its decoder raise."""
    try:
        yield
    except _FAULTS as error:
        raise MalformedCheckpoint(f"expected {name}, found {len(data)} bytes: {error}") from None


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    version: int
    data: bytes
    action_count: int
    adds: Sequence[Add]
    txns: Mapping[str, Txn]
    metadata: TableMetadata
    protocol: Protocol


def decode_checkpoint(version: int, data: bytes, *, with_bodies: bool = False) -> CheckpointContent:
    """`with_bodies`: each `Add` has its action too. Raises `MalformedCheckpoint`."""
    with _expecting(f"a checkpoint of version {version}", data):
        parquet = TRIALS.open_bytes(data)
        table = parquet.read(_COLUMNS)
        metadata, protocol = _only(table, "metaData"), _only(table, "protocol")
        return CheckpointContent(
            version=version,
            data=data,
            action_count=table.num_rows,
            adds=_adds_with_bodies(parquet) if with_bodies else _adds(parquet, table),
            txns=_txns(table),
            metadata=decode_metadata(plain_body(metadata)),
            protocol=decode_protocol(protocol),
        )


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    action_count: int
    paths: frozenset[str]  # live files
    txns: Mapping[str, Txn]


def summarize_checkpoint(data: bytes) -> CheckpointSummary:
    """Decode only what is needed to check a new checkpoint, at a fraction of the cost of decoding all of it. Raises
    `MalformedCheckpoint`."""
    with _expecting("a checkpoint", data):
        table = TRIALS.open_bytes(data).read(["add.path", "txn"])
        return CheckpointSummary(
            action_count=table.num_rows,
            paths=frozenset(map(unquote, _rows_of(table, "add").field("path").to_pylist())),
            txns=_txns(table),
        )


def decode_removed(data: bytes) -> dict[str, int]:
    """Data files that the checkpoint names as removed -> when, in milliseconds. Raises `MalformedCheckpoint`."""
    with _expecting("a checkpoint", data):
        columns = ["remove.path", "remove.deletionTimestamp"]
        removes = _rows_of(TRIALS.open_bytes(data).read(columns), "remove")
        if not len(removes):
            return {}
        times = removes.field("deletionTimestamp").fill_null(0).to_pylist()
        return dict(zip(map(unquote, removes.field("path").to_pylist()), times, strict=True))


def decode_txns(data: bytes) -> dict[str, Txn]:
    """Raises `MalformedCheckpoint`."""
    with _expecting("a checkpoint", data):
        return _txns(TRIALS.open_bytes(data).read(["txn"]))


def _txns(table: pa.Table) -> dict[str, Txn]:
    """Decode whole columns at once, because there may be one `txn` for each of very many producers."""
    txns = _rows_of(table, "txn")
    if not len(txns):
        return {}
    has_times = txns.type.get_field_index("lastUpdated") >= 0
    times = txns.field("lastUpdated").fill_null(0).to_pylist() if has_times else [0] * len(txns)
    columns = zip(txns.field("appId").to_pylist(), txns.field("version").to_pylist(), times, strict=True)
    return {app_id: Txn(version, updated_ms) for app_id, version, updated_ms in columns}


class CheckpointRows:
    """The adds and removes of a checkpoint, to be carried into the next one. Raises `MalformedCheckpoint`."""

    def __init__(self, data: bytes) -> None:
        with _expecting("a checkpoint", data):
            table = TRIALS.open_bytes(data).read(["add", "remove", "txn", "metaData", "protocol"])
            self.adds, self.removes = (_typed_rows(table, action) for action in ("add", "remove"))
            self.add_paths, self.remove_paths = (_paths(rows) for rows in (self.adds, self.removes))
            self.txns = _txns(table)
            self.metadata, self.protocol = (plain_body(_only(table, action)) for action in ("metaData", "protocol"))

    def without(self, gone: Container[str], present: Container[str]) -> tuple[pa.StructArray, pa.StructArray]:
        """Adds but for the paths `gone`, and removes of those in `present` but for the same."""
        is_kept = pa.array([path not in gone for path in self.add_paths], pa.bool_())
        is_named = pa.array([path not in gone and path in present for path in self.remove_paths], pa.bool_())
        return self.adds.filter(is_kept), self.removes.filter(is_named)


def encode_checkpoint(
    *,
    adds: Iterable[Mapping[str, Any]],
    removes: Iterable[Mapping[str, Any]],
    txns: Mapping[str, Txn],
    metadata: Mapping[str, Any],
    protocol: Mapping[str, Any],
    kept: tuple[pa.StructArray, pa.StructArray] | None = None,
) -> bytes:
    """A checkpoint of these actions, as they stand in versions, and of `kept`, adds and removes of the checkpoint
    before. Raises `MalformedCheckpoint` for an action that lacks what a checkpoint needs."""
    applications = [
        list(txns),
        [txn.version for txn in txns.values()],
        [txn.updated_ms or None for txn in txns.values()],
    ]
    kinds = [field.type for field in _TYPES["txn"]]
    try:
        rows = {
            "protocol": _array([protocol], "protocol"),
            "metaData": _array([{**_METADATA_DEFAULTS, **metadata}], "metaData"),
            "txn": pa.StructArray.from_arrays(list(map(pa.array, applications, kinds)), fields=list(_TYPES["txn"])),
            "remove": _array(removes, "remove"),
            "add": _array(({"partitionValues": {}, **body, "dataChange": False} for body in adds), "add"),
        }
        if kept is not None:
            rows["add"] = pa.concat_arrays([kept[0], rows["add"]])
            rows["remove"] = pa.concat_arrays([kept[1], rows["remove"]])
        count, before, columns = sum(map(len, rows.values())), 0, dict[str, pa.Array]()
        for action, array in rows.items():
            after = count - before - len(array)
            columns[action] = pa.concat_arrays([_nulls(before, action), array, _nulls(after, action)])
            before += len(array)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink, use_dictionary=False, store_schema=False)
        data = bytes(sink.getvalue())
        TRIALS.accept(data)
        return data
    except _FAULTS as error:
        raise MalformedCheckpoint(f"expected actions that a checkpoint can hold, found others: {error}") from None


def _array(bodies: Iterable[Mapping[str, Any]], action: str) -> pa.StructArray:
    """Fields that no reader of such a table knows are left out."""
    parts, rows = [pa.array([], _TYPES[action])], map(_row_of, bodies)
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        parts.append(pa.array(part, _TYPES[action]))
    return pa.concat_arrays(parts)


def _nulls(count: int, action: str) -> pa.StructArray:
    """Unlike those of `pa.nulls`, their fields are not null: Arrow writes no null in a field that may have none."""
    return pa.array([None], _TYPES[action]).take(pa.array(np.zeros(count, np.int64)))


def _row_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `plain_body`."""
    return {
        name: list(value.items()) if name in _MAPS and value else _row_of(value) if name == "format" else value
        for name, value in body.items()
    }


def _typed_rows(table: pa.Table, action: str) -> pa.StructArray:
    """Return the rows with the columns that `encode_checkpoint` writes; checkpoints of other engines or of an earlier
    bus have different columns."""
    rows = _rows_of(table, action)
    if rows.type == _TYPES[action]:
        return rows
    parts = (rows.slice(first, _ROWS_AT_ONCE) for first in range(0, len(rows), _ROWS_AT_ONCE))
    return _array((plain_body(row) for part in parts for row in part.to_pylist()), action)


def _paths(rows: pa.StructArray) -> list[str]:
    return list(map(unquote, rows.field("path").to_pylist()))


def _adds(parquet: ProvedFile, table: pa.Table) -> list[Add]:
    """Decode whole columns at once, because there is one `add` for each live file."""
    adds = _rows_of(table, "add")
    tags = _tags(adds, FILE_TAG)
    stats = [None] * len(adds) if all(map(is_telling, tags)) else _stats(parquet, len(adds))
    plain = (adds.field(name).to_pylist() for name in ("path", "size", "modificationTime"))
    others = (_tags(adds, name) for name in (AGES_TAG, LEVEL_TAG, SUMS_TAG))
    columns = zip(*plain, tags, stats, *others, strict=True)
    return [
        make_add(
            path, size_bytes, False, tag, stats=stats, committed_ms=committed_ms or 0, ages=ages, level=level, sums=sums
        )
        for path, size_bytes, committed_ms, tag, stats, ages, level, sums in columns
    ]


def _adds_with_bodies(parquet: ProvedFile) -> list[Add]:
    bodies = map(plain_body, _rows(parquet.read(["add"]), "add"))
    return [replace(decode_add({**body, "dataChange": False}), body=body) for body in bodies]


def _tags(adds: pa.StructArray, name: str) -> list[str | None]:
    if adds.type.get_field_index("tags") < 0:
        return [None] * len(adds)
    return pc.map_lookup(adds.field("tags"), name, "first").to_pylist()  # type: ignore[no-any-return]


def _stats(parquet: ProvedFile, count: int) -> list[str | None]:
    """The largest column by far, and most checkpoints are read without it."""
    table = parquet.read(["add.path", "add.stats"])
    adds = _rows_of(table, "add")
    if adds.type.get_field_index("stats") < 0:
        return [None] * count
    return adds.field("stats").to_pylist()  # type: ignore[no-any-return]


def _rows(table: pa.Table, action: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _rows_of(table, action).to_pylist()
    return rows


def _rows_of(table: pa.Table, action: str) -> pa.StructArray:
    """The rows that hold this action. A required field of the others is no null: only the struct itself tells."""
    if action not in table.column_names:
        return pa.array([], pa.struct([pa.field("path", pa.string())]))
    column = table.column(action).combine_chunks()
    return column.filter(column.is_valid())


def plain_body(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a checkpoint in the form that the action has in a version: without nulls, and with objects
    instead of Arrow's maps, which are lists of pairs."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if name in _MAPS:
            plain[name] = dict(value or ())
        elif value is not None:
            plain[name] = plain_body(value) if isinstance(value, dict) else value
    return plain


def _only(table: pa.Table, action: str) -> dict[str, Any]:
    rows = _rows(table, action)
    if len(rows) != 1:
        raise ValueError(f"expected one {action} action, found {len(rows)}")
    return rows[0]
