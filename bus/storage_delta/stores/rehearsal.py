"""A store whose changes are kept apart: what would be done is done, and nothing has happened.

Guards one promise: the store beneath is never written to, while a reader here sees what was written here. So a
rehearsal runs the very code of the real thing. What is small is kept in memory, what is large in a file of the system's
temporary folder, since a repair may write every data file of a table anew. Not for several threads.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from bus.errors import StorageFault
from bus.ports import Volume
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

_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes that were written: `data`, or `size_bytes` from `start` on of the file that is open as `descriptor`."""

    data: bytes
    descriptor: int | None
    start: int
    size_bytes: int

    def get(self, start: int = 0, length: int | None = None) -> bytes:
        wanted = max(0, self.size_bytes - start) if length is None else min(length, max(0, self.size_bytes - start))
        if self.descriptor is None:
            return self.data[start : start + wanted]
        found = b""
        while len(found) < wanted:
            found += os.pread(self.descriptor, wanted - len(found), self.start + start + len(found))
        return found


class RehearsalStore:
    """Implements `ObjectStore` over another one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._written: dict[str, _Kept] = {}
        self._large: IO[bytes] | None = None
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
        self._written[key] = self._keep(bytes(data))
        self._written_ms[key] = time.time_ns() // 1_000_000
        self._gone.discard(key)

    def get(self, key: str) -> bytes:
        self._check_not_gone(key)
        return self._written[key].get() if key in self._written else self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> Data:
        self._check_not_gone(key)
        if key in self._written:
            return self._written[key].get(start, length)
        return self._store.get_range(key, start, length)

    def size(self, key: str) -> int:
        self._check_not_gone(key)
        return self._written[key].size_bytes if key in self._written else self._store.size(key)

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        return [self.size(key) if self._is_there(key) else None for key in keys]

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        path = f"{folder}/" if folder else ""
        found = self._store.list(folder, with_sizes=with_sizes, start_at=start_at, prefix=prefix)
        files = {entry.name: entry for entry in found.files if f"{path}{entry.name}" not in self._gone}
        folders = {name for name in found.folders if f"{path}{name}" not in self._gone}
        for key, kept in self._written.items():
            name, *below = key[len(path) :].split("/", 1)
            if key.startswith(path) and name >= start_at and name.startswith(prefix):
                if below:
                    folders.add(name)
                else:
                    files[name] = Entry(name, *((kept.size_bytes, self._written_ms[key]) if with_sizes else (-1, -1)))
        leftovers = [entry for entry in found.leftovers if f"{path}{entry.name}" not in self._gone]
        return Listing([files[name] for name in sorted(files)], sorted(folders), leftovers)

    def measure_volume(self) -> Volume | None:
        return self._store.measure_volume()

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

    def _keep(self, data: bytes) -> _Kept:
        if len(data) < _LARGE_BYTES:
            return _Kept(data, None, 0, len(data))
        try:
            if self._large is None:
                self._large = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it ends with the store
                weakref.finalize(self, self._large.close)
            start = self._large.seek(0, os.SEEK_END)
            rest = memoryview(data)
            while rest:
                rest = rest[self._large.write(rest) :]
        except OSError as error:
            raise StorageFault(f"no room to rehearse in {tempfile.gettempdir()}: {error}") from error
        return _Kept(b"", self._large.fileno(), start, len(data))

    def _is_there(self, key: str) -> bool:
        try:
            self.size(key)
        except KeyNotFound:
            return False
        return True

    def _check_not_gone(self, key: str) -> None:
        if key in self._gone:
            raise KeyNotFound(f"{key} does not exist")
