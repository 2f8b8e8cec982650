"""The boundary of a table: the first version that stayed when older ones were last dropped.

Guards one promise: a version number that was used is not taken for a free one because its file was dropped since. Who
drops versions raises the boundary first, durably; who may have slept since it last knew the log compares. The file is
beside the log, in a folder whose name begins with an underscore: Delta readers, and their VACUUM, pass over it.
"""

from __future__ import annotations

import json

from bus.errors import StorageDamaged
from bus.records.json_text import parse_json
from bus.storage_delta.log.listing import LOG_FOLDER
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

BOUNDARY = f"{LOG_FOLDER}/_boundary"


def read_boundary(store: ObjectStore, folder: str, *, topic_id: str) -> int:
    """The first version that stayed; -1 if none was dropped from the table of this topic. One of another topic, which
    had this name before, does not count. Raises `StorageFault`, `StorageDamaged`."""
    key = f"{folder}/{BOUNDARY}"
    try:
        data = store.get(key)
    except KeyNotFound:
        return -1
    try:
        found = parse_json(data)
        version, owner = int(found["keptFrom"]), str(found["topicId"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(
            f"{key}: expected the first version that is kept as keptFrom, and topicId, found {data[:100]!r} ({error}); "
            f"`bus log repair` puts it right"
        ) from None
    return version if owner == topic_id else -1


def raise_boundary(store: ObjectStore, folder: str, version: int, *, topic_id: str) -> None:
    """Before versions below `version` are dropped. Never lowers it: a leader that was overtaken while it looked for
    what it may drop would let a third one through. Durable. Raises `StorageFault`, `StorageDamaged`."""
    if version > read_boundary(store, folder, topic_id=topic_id):
        store.put(f"{folder}/{BOUNDARY}", json.dumps({"keptFrom": version, "topicId": topic_id}).encode() + b"\n")


def remove_boundary(store: ObjectStore, folder: str) -> None:
    """Where no leader can have slept."""
    store.delete(f"{folder}/{BOUNDARY}")
