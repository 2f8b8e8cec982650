"""Where a repair puts what it takes out of a partition's folder, and its reports.

    <root>/quarantine/<topic>/<partition>/...

Guards one promise: what is taken out is copied first, durably, and an earlier copy is never written over.
"""

from __future__ import annotations

from bus.model import TopicPartition
from bus.storage_delta.log.listing import partition_folder
from bus.storage_delta.stores.store import KeyExists, KeyNotFound, ObjectStore


class Quarantine:
    def __init__(self, store: ObjectStore, partition: TopicPartition) -> None:
        self._store = store
        self._from = partition_folder(partition)
        self.folder = f"quarantine/{partition.topic}/{partition.partition}"

    def keep(self, name: str) -> str | None:
        """Copy `name` of the partition's folder; where to, or None if it is not there."""
        try:
            data = self._store.get(f"{self._from}/{name}")
        except KeyNotFound:
            return None
        return self.write(name, data)

    def remove(self, name: str) -> None:
        """Out of the partition's folder, once it was copied."""
        self._store.delete(f"{self._from}/{name}")

    def write(self, name: str, data: bytes) -> str:
        """Under a name that is free."""
        key, number = f"{self.folder}/{name}", 0
        while True:
            try:
                self._store.create(key, data)
                return key
            except KeyExists:
                if self._store.get(key) == data:
                    return key
                number += 1
                key = f"{self.folder}/{name}.{number}"
