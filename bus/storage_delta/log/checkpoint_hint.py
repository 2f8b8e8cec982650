"""`_last_checkpoint`: which checkpoint is the newest, and the checksum that proves it.

Guards one promise: a checkpoint that has changed since the bus wrote it is never decoded. The Delta protocol gives the
hint a map of tags for what writers want to add; the checksums of the checkpoint are there (file_sums.py). A checkpoint
of another engine, or of an earlier bus, has none: it is tried in another process first (trials.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bus.records.json_text import parse_json
from bus.storage_delta.files.file_sums import FileSums, decode_sums, encode_sums
from bus.storage_delta.files.trials import TRIALS, Unprovable, whole_sums
from bus.storage_delta.log.actions import LAST_CHECKPOINT, SUMS_TAG, checkpoint_name
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore


@dataclass(frozen=True, slots=True)
class Hint:
    version: int
    sums: FileSums | None


def read_hint(store: ObjectStore, log_folder: str) -> Hint | None:
    """None if it is not there or cannot be read."""
    try:
        hint: Any = parse_json(store.get(f"{log_folder}/{LAST_CHECKPOINT}"))
        told = (hint.get("tags") or {}).get(SUMS_TAG)
        return Hint(int(hint["version"]), None if told is None else decode_sums(told))
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
