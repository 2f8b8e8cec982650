"""An object store in memory, for tests.

Keeps the promises of `ObjectStore` as far as memory can: atomic, put-if-absent, locks in this process. Durable is what
is in the dictionary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from bus.storage_delta.stores.store import (
    Data,
    Entry,
    KeyExists,
    KeyLocked,
    KeyNotFound,
    KeyReplaced,
    Listing,
    Stamp,
    Written,
)


class MemoryStore:
    """Implements `ObjectStore`. Two brokers in one process that share an instance share its files and its locks."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._files: dict[str, bytes] = {}
        self._modified_ms: dict[str, int] = {}
        self._names: dict[str, dict[str, None]] = {}  # names of the files in each folder
        self._folders: dict[str, dict[str, int]] = {}  # subfolders of each folder, with the number of files below each
        self._locks: dict[str, list[MemoryLock]] = {}
        self._mutex = threading.Lock()

    @property
    def url(self) -> str:
        return "memory:"

    def table_url(self, folder: str) -> str | None:
        return None

    def create(self, key: str, data: Data, *, after: Written | None = None) -> Stamp:
        with self._mutex:
            if after is not None and self._files.get(after.key) != after.stamp:
                raise KeyReplaced(f"{after.key} is not what was written there")
            if key in self._files:
                raise KeyExists(f"{key} exists")
            self._write(key, data)
            return self._files[key]

    def stamp(self, key: str) -> Stamp:
        return self.get(key)

    def confirm(self, key: str, data: Data) -> None:
        self.put(key, data)

    def write_unique(self, key: str, data: Data) -> None:
        self.create(key, data)

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        self.create(key, b"".join(map(bytes, parts)))

    def put(self, key: str, data: Data) -> None:
        with self._mutex:
            self._write(key, data)

    def _write(self, key: str, data: Data) -> None:
        if key not in self._files:
            self._note(key, 1)
        self._files[key] = bytes(data)
        self._modified_ms[key] = self._now_ms()

    def _forget(self, key: str) -> None:
        if self._files.pop(key, None) is not None:
            del self._modified_ms[key]
            self._note(key, -1)

    def _note(self, key: str, count: int) -> None:
        """Count a file that comes or goes: each folder knows its files, and how many are below each of its folders."""
        folder, _, name = key.rpartition("/")
        if count > 0:
            self._names.setdefault(folder, {})[name] = None
        else:
            del self._names[folder][name]
        while folder:
            folder, _, name = folder.rpartition("/")
            below = self._folders.setdefault(folder, {})
            below[name] = below.get(name, 0) + count
            if not below[name]:
                del below[name]

    def get(self, key: str) -> bytes:
        with self._mutex:
            if key not in self._files:
                raise KeyNotFound(f"{key} does not exist")
            return self._files[key]

    def get_range(self, key: str, start: int, length: int) -> Data:
        return memoryview(self.get(key))[start : start + length]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        with self._mutex:
            return [len(self._files[key]) if key in self._files else None for key in keys]

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        path = f"{folder}/" if folder else ""
        with self._mutex:
            files = [
                Entry(name, len(self._files[path + name]), self._modified_ms[path + name])
                if with_sizes
                else Entry(name, -1, -1)
                for name in _chosen(self._names.get(folder, ()), start_at, prefix)
            ]
            return Listing(files, _chosen(self._folders.get(folder, ()), start_at, prefix))

    def measure_volume(self) -> None:
        return None

    def delete(self, key: str) -> None:
        with self._mutex:
            self._forget(key)

    def delete_folder(self, folder: str) -> None:
        with self._mutex:
            for key in [key for key in self._files if key.startswith(f"{folder}/")]:
                self._forget(key)

    def sync(self, folder: str, names: Sequence[str] = ()) -> None:
        """Nothing to do."""

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> MemoryLock:
        with self._mutex:
            held = self._locks.setdefault(key, [])
            if held and not (is_shared and held[-1].is_shared):
                raise KeyLocked(held[-1].holder)
            self._write(key, holder.encode())
            held.append(MemoryLock(self, key, holder, is_shared=is_shared))
            return held[-1]

    def check_private(self) -> None:
        """Nothing to do."""

    def lock_holder(self, key: str) -> str | None:
        with self._mutex:
            return next((lock.holder for lock in self._locks.get(key, ()) if not lock.is_shared), None)

    def unlock(self, key: str, lock: MemoryLock) -> None:
        with self._mutex:
            if lock in self._locks[key]:
                self._locks[key].remove(lock)


def _chosen(names: Iterable[str], start_at: str, prefix: str) -> list[str]:
    return sorted(name for name in names if name >= start_at and name.startswith(prefix))


class MemoryLock:
    def __init__(self, store: MemoryStore, key: str, holder: str, *, is_shared: bool) -> None:
        self._store = store
        self._key = key
        self.holder = holder
        self.is_shared = is_shared
        self._renewals = 0

    def check_held(self) -> None:
        """Memory is lost with the process only."""

    def renew(self) -> None:
        self._renewals += 1
        self._store.put(self._key, f"{self.holder}\n{self._renewals}".encode())

    def release(self) -> None:
        self._store.unlock(self._key, self)
