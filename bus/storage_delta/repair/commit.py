"""The version that a repair writes, and the checkpoint that makes it the log's new beginning.

Guards two promises. Any Delta reader that applies the version to what it took for the table gets the repaired table;
and so does one that begins with the checkpoint. What readers of changes have seen is not shown to them again: only
records that no version had are new. Writes nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from bus.errors import StorageDamaged
from bus.storage_delta.log import checkpoint_files
from bus.storage_delta.log.actions import (
    REPAIR,
    encode_add,
    encode_line,
    encode_remove,
    encode_version,
)
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.repair.files import FoundFile

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """What the table is to be."""

    files: Sequence[FoundFile]  # in offset order
    txns: Mapping[str, Txn]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]


def encode_repair(
    adds: Sequence[FoundFile],
    removes: Iterable[str],
    *,
    known: Collection[str],
    new_from: int,
    txns: Mapping[str, Txn],
    others: Sequence[Action],
    undone_from: int | None,
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
) -> bytes:
    """`known`: data files that some version has added; `new_from`: records below it were in the table before. `others`:
    protocol and metadata, if they are to be said again. `undone_from`: that version, and those after it, count no
    more."""
    lines = [
        *map(encode_line, others),
        *(_encode_txn(name, txn, now_ms) for name, txn in txns.items()),
        # Records that are lost are a change of data; files that come back in place of others are none.
        *(encode_remove(path, now_ms, is_data_change=not adds) for path in removes),
        *(_encode_add(found, now_ms, is_data_change=_is_new(found, known, new_from)) for found in adds),
    ]
    return encode_version(
        REPAIR,
        lines,
        now_ms=now_ms,
        txn_id=txn_id,
        parameters="{}" if undone_from is None else f'{{"undoneFrom":"{undone_from}"}}',
        author=f'"leaderEpoch":{leader_epoch},',
    )


def encode_checkpoint(table: RepairedTable, *, removed: Iterable[str], now_ms: int) -> bytes:
    """The table as a checkpoint of whatever version; `removed` are data files that are there for older ones. Raises
    `StorageDamaged`."""
    try:
        return checkpoint_files.encode_checkpoint(
            adds=[_body_of(found, now_ms) for found in table.files],
            removes=[{"path": quote(path), "deletionTimestamp": now_ms, "dataChange": False} for path in removed],
            txns={name: replace(txn, updated_ms=txn.updated_ms or now_ms) for name, txn in table.txns.items()},
            metadata=table.metadata,
            protocol=table.protocol,
        )
    except MalformedCheckpoint as error:
        raise StorageDamaged(f"no checkpoint of the repaired table: {error}") from error


def _is_new(found: FoundFile, known: Collection[str], new_from: int) -> bool:
    is_known = found.file.path in known or found.source in known
    return not is_known and found.file.base_offset >= new_from


def _encode_add(found: FoundFile, now_ms: int, *, is_data_change: bool) -> str:
    return encode_line({"add": {**_body_of(found, now_ms), "dataChange": is_data_change}})


def _body_of(found: FoundFile, now_ms: int) -> Mapping[str, Any]:
    body = found.body
    if body is None:
        body = json.loads(encode_add(found.file, found.stats, now_ms, is_data_change=True))["add"]
    return {"partitionValues": {}, "modificationTime": now_ms, **body}  # a damaged log may have lost them


def _encode_txn(name: str, txn: Txn, now_ms: int) -> str:
    """Of any application: its name may need escaping."""
    return encode_line({"txn": {"appId": name, "version": txn.version, "lastUpdated": txn.updated_ms or now_ms}})
