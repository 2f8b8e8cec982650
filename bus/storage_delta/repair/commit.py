"""The version that a repair writes, and the checkpoint that makes it the log's new beginning.

Guards two promises. Any Delta reader that applies the version to what it took for the table gets the repaired table;
and so does one that begins with the checkpoint. What readers of changes have seen is not shown to them again: only
records that no version had are new. Writes nothing itself.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake

from bus.errors import StorageDamaged, StorageFault
from bus.storage_delta.files.trials import TRIALS
from bus.storage_delta.log.actions import (
    ENGINE_INFO,
    LOG_FOLDER,
    REPAIR,
    Txn,
    checkpoint_name,
    encode_new_file,
    version_name,
)
from bus.storage_delta.log.version_sums import add_sum
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
    lines: list[Action] = [
        *others,
        *(_txn(name, txn, now_ms) for name, txn in txns.items()),
        # Records that are lost are a change of data; files that come back in place of others are none.
        *(_remove(path, now_ms, is_data_change=not adds) for path in removes),
        *(_add(found, now_ms, is_data_change=_is_new(found, known, new_from)) for found in adds),
    ]
    info = {
        "timestamp": now_ms,
        "operation": REPAIR,
        "operationParameters": {} if undone_from is None else {"undoneFrom": str(undone_from)},
        "isBlindAppend": False,
        "engineInfo": ENGINE_INFO,
        "txnId": txn_id,
        "leaderEpoch": leader_epoch,
        "actionCount": 1 + len(lines),
    }
    return add_sum(_encode([{"commitInfo": info}, *lines]))


def encode_checkpoint(table: RepairedTable, *, removed: Iterable[str], now_ms: int) -> bytes:
    """The table as a checkpoint of whatever version; `removed` are data files that are there for older ones. Raises
    `StorageFault`."""
    version_0 = _encode(
        [
            {"protocol": dict(table.protocol)},
            {"metaData": dict(table.metadata)},
            *(_txn(name, txn, now_ms) for name, txn in table.txns.items()),
            *(_remove(path, now_ms, is_data_change=False) for path in removed),
            *(_add(found, now_ms, is_data_change=False) for found in table.files),
        ]
    )
    try:
        # A checkpoint does not say which version it is of, so that of a copy with this version alone will do.
        with tempfile.TemporaryDirectory(prefix="bus-repair-") as scratch:
            log = Path(scratch) / LOG_FOLDER
            log.mkdir()
            (log / version_name(0)).write_bytes(version_0)
            deltalake.DeltaTable(scratch).create_checkpoint()
            data = (log / checkpoint_name(0)).read_bytes()
            TRIALS.accept(data)
            return data
    except (deltalake.exceptions.DeltaError, ValueError) as error:
        raise StorageDamaged(f"no checkpoint of the repaired table: {error}") from error
    except OSError as error:
        raise StorageFault(f"no checkpoint of the repaired table: {error}") from error


def _is_new(found: FoundFile, known: Collection[str], new_from: int) -> bool:
    return found.file.path not in known and found.file.base_offset >= new_from


def _add(found: FoundFile, now_ms: int, *, is_data_change: bool) -> Action:
    body = found.body if found.body is not None else encode_new_file(found.file, found.stats, now_ms)
    required = {"partitionValues": {}, "modificationTime": now_ms}  # a damaged log may have lost them
    return {"add": {**required, **body, "dataChange": is_data_change}}


def _txn(name: str, txn: Txn, now_ms: int) -> Action:
    return {"txn": {"appId": name, "version": txn.version, "lastUpdated": txn.updated_ms or now_ms}}


def _remove(path: str, now_ms: int, *, is_data_change: bool) -> Action:
    return {"remove": {"path": quote(path), "deletionTimestamp": now_ms, "dataChange": is_data_change}}


def _encode(actions: Iterable[Action]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
