"""A store whose changes stay in memory: what would be done is done, and nothing has happened.

Guards one promise: the store beneath is never written to, while a reader here sees what was written here. So a
rehearsal runs the very code of the real thing. Not for several threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from bus.storage_delta.stores.store import (
    Data,
    Entry,
    KeyExists,
    KeyNotFound,
    KeyReplaced,
    Listing,
    Lock,
    ObjectStore,
    Stamp,
    Written,
)


class RehearsalStore:
    """Implements `ObjectStore` over another one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._written: dict[str, bytes] = {}
        self._written_ms: dict[str, int] = {}
        self._gone: set[str] = set()  # keys, and folders

    @property
    def url(self) -> str:
        return self._store.url

    def table_url(self, folder: str) -> str | None:
        return None

    def create(self, key: str, data: Data, *, after: Written | None = None) -> Stamp:
        if after is not None and (not self._is_there(after.key) or self.stamp(after.key) != after.stamp):
            raise KeyReplaced(f"{after.key} is not what was written there")
        if self._is_there(key):
            raise KeyExists(f"{key} exists")
        self.put(key, data)
        return self.stamp(key)

    def stamp(self, key: str) -> Stamp:
        self._check_not_gone(key)
        return self._written[key] if key in self._written else self._store.stamp(key)

    def confirm(self, key: str, data: Data) -> None:
        self.put(key, data)

    def write_unique(self, key: str, data: Data) -> None:
        self.create(key, data)

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        self.create(key, b"".join(map(bytes, parts)))

    def put(self, key: str, data: Data) -> None:
        self._written[key] = bytes(data)
        self._written_ms[key] = time.time_ns() // 1_000_000
        self._gone.discard(key)

    def get(self, key: str) -> bytes:
        self._check_not_gone(key)
        return self._written[key] if key in self._written else self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> Data:
        self._check_not_gone(key)
        if key in self._written:
            return memoryview(self._written[key])[start : start + length]
        return self._store.get_range(key, start, length)

    def size(self, key: str) -> int:
        self._check_not_gone(key)
        return len(self._written[key]) if key in self._written else self._store.size(key)

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        return [self.size(key) if self._is_there(key) else None for key in keys]

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        path = f"{folder}/" if folder else ""
        found = self._store.list(folder, with_sizes=with_sizes, start_at=start_at, prefix=prefix)
        files = {entry.name: entry for entry in found.files if f"{path}{entry.name}" not in self._gone}
        folders = {name for name in found.folders if f"{path}{name}" not in self._gone}
        for key, data in self._written.items():
            name, *below = key[len(path) :].split("/", 1)
            if key.startswith(path) and name >= start_at and name.startswith(prefix):
                if below:
                    folders.add(name)
                else:
                    files[name] = Entry(name, *((len(data), self._written_ms[key]) if with_sizes else (-1, -1)))
        leftovers = [entry for entry in found.leftovers if f"{path}{entry.name}" not in self._gone]
        return Listing([files[name] for name in sorted(files)], sorted(folders), leftovers)

    def delete(self, key: str) -> None:
        self._written.pop(key, None)
        self._gone.add(key)

    def delete_folder(self, folder: str) -> None:
        found = self.list(folder)
        for entry in found.files:
            self.delete(f"{folder}/{entry.name}")
        for below in found.folders:
            self.delete_folder(f"{folder}/{below}")
        self._gone.add(folder)

    def sync(self, folder: str, names: Sequence[str] = ()) -> None:
        """Nothing to do."""

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> Lock:
        return self._store.lock(key, holder, is_shared=is_shared)

    def check_private(self) -> None:
        self._store.check_private()

    def lock_holder(self, key: str) -> str | None:
        return self._store.lock_holder(key)

    def _is_there(self, key: str) -> bool:
        try:
            self.size(key)
        except KeyNotFound:
            return False
        return True

    def _check_not_gone(self, key: str) -> None:
        if key in self._gone:
            raise KeyNotFound(f"{key} does not exist")
