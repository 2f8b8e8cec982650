"""Versions of a partition by time, according to the times in the versions themselves."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from bus.errors import StorageFault
from bus.model import TopicPartition
from bus.storage_delta.log.actions import MalformedCommit, decode_commit
from bus.storage_delta.log.listing import LOG_FOLDER, list_log, partition_folder, version_name
from bus.storage_delta.stores.local import LocalStore
from bus.tables.topics import TopicTables


def version_at(tables: TopicTables, partition: TopicPartition, timestamp_ms: int) -> int:
    """The last version that was committed at or before `timestamp_ms`, by the times in the versions themselves: a copy
    of the table keeps them. Raises `StorageFault` if all versions that are kept are younger."""
    store, folder = LocalStore(str(tables.root)), partition_folder(partition)
    versions = sorted(list_log(store, folder).versions)
    later = bisect_right(versions, timestamp_ms, key=lambda version: _committed_ms(store, folder, version))
    if not later:
        raise StorageFault(
            f"{partition}: expected a version that was committed by {_text(timestamp_ms)}, found "
            + (
                f"the oldest, {versions[0]}, of {_text(_committed_ms(store, folder, versions[0]))}"
                if versions
                else "none"
            )
        )
    return versions[later - 1]


def committed_ms(tables: TopicTables, partition: TopicPartition, version: int) -> int:
    """Return the commit time of that version. Raises `StorageFault` if it is not kept."""
    return _committed_ms(LocalStore(str(tables.root)), partition_folder(partition), version)


def _committed_ms(store: LocalStore, folder: str, version: int) -> int:
    key = f"{folder}/{LOG_FOLDER}/{version_name(version)}"
    try:
        recorded_ms = decode_commit(version, store.get(key)).committed_ms
    except MalformedCommit:
        recorded_ms = 0
    if not recorded_ms:
        raise StorageFault(f"{key}: expected the time of the commit, found none")
    return recorded_ms


def _text(timestamp_ms: int) -> str:
    return f"{np.datetime64(timestamp_ms, 'ms')}Z"
