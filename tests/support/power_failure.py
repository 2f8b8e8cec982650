"""The disk after a power failure, in the worst case: it has nothing that was not synced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from bus.storage_delta.stores.local import FileSystem


class RememberingFileSystem(FileSystem):
    """Remembers, from `begin` on, what of a folder was synced: bytes by the sync of their file, names by that of their
    folder. A removal or a renaming counts once the folder was synced. `after_sync` is called after each sync."""

    def __init__(self, root: Path, after_sync: Callable[[], None]) -> None:
        self._root = root
        self._after_sync = after_sync
        self._is_begun = False
        self._names: dict[str, dict[str, int]] = {}  # of each folder by its path: name -> inode
        self._bytes: dict[int, bytes] = {}
        self._folders: set[int] = set()
        self._held: dict[int, int] = {}  # inode -> descriptor, so that no other file gets that inode
        self.fsync = self._fsync  # type: ignore[method-assign]

    def begin(self) -> None:
        """All that is there now is on the disk."""
        for folder, _, files in os.walk(self._root):
            self._take_folder(folder)
            for name in files:
                self._take_file(os.path.join(folder, name))
        self._is_begun = True

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def write_image(self, target: Path) -> None:
        """Write the present content of the disk as a folder, which must not exist."""
        self._write_folder(str(self._root), target)

    def _write_folder(self, folder: str, target: Path) -> None:
        target.mkdir()
        for name, inode in self._names.get(folder, {}).items():
            if inode in self._folders:
                self._write_folder(f"{folder}/{name}", target / name)
            else:
                (target / name).write_bytes(self._bytes.get(inode, b""))

    def _fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            self._take_folder(path)
        else:
            self._take_file(path)
        if self._is_begun:
            self._after_sync()

    def _take_folder(self, path: str) -> None:
        found = {entry.name: entry for entry in os.scandir(path)}
        self._names[path] = {name: entry.inode() for name, entry in found.items()}
        self._folders |= {entry.inode() for entry in found.values() if entry.is_dir()}
        for entry in found.values():
            self._hold(entry.path, entry.inode())

    def _take_file(self, path: str) -> None:
        inode = os.stat(path).st_ino
        self._hold(path, inode)
        self._bytes[inode] = Path(path).read_bytes()

    def _hold(self, path: str, inode: int) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
