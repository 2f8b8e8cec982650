"""The log's port to its files: a handful of operations on keys, each with its durability.

Guards one promise: above this line no code knows whether a file is on a disk, in memory or in a bucket, nor which errno
means what. Keys are relative, '/'-separated and never begin or end with '/'. Nothing here knows Delta.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bus.errors import StorageFault, reduce_error
from bus.ports import Volume

# Anything with the buffer protocol: bytes, memoryview, pyarrow.Buffer.
Data = Any

# Only the broker's own user may access files below it, where the store supports that.
PRIVATE_FOLDER = "private"

TEMPORARY_PREFIX = ".writing-"


def temporary_name(name: str) -> str:
    """Return a new name for a file that is being written, beside the one that it will be."""
    return f"{TEMPORARY_PREFIX}{name}.{uuid.uuid4().hex}"


def is_temporary_name(entry_name: str, name: str = "") -> bool:
    """Return whether the file was never finished. `name`: whether it would have become this file, or one whose name
    continues with a dot."""
    return entry_name.startswith(f"{TEMPORARY_PREFIX}{name}." if name else TEMPORARY_PREFIX)


class KeyExists(StorageFault):
    """The key is taken; what holds it is complete and was not touched."""


class KeyNotFound(StorageFault):
    """There is nothing under this key."""


class OutcomeUnknown(StorageFault):
    """The key may be there, now or later, and it is not known whether it will still be there after a power failure."""


class KeyReplaced(StorageFault):
    """Another program has removed or replaced a file that must never change. Nothing was written."""


class KeyLocked(StorageFault):
    """A living process holds the lock; `holder` is what the last one that took it wrote about itself."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a folder: its name there, its size in bytes, and when it was written, by the store's clock (both -1 if
    the listing was asked for names alone)."""

    name: str
    size: int
    modified_ms: int = -1


@dataclass(frozen=True, slots=True)
class Listing:
    """The contents of one folder, sorted by name; an absent folder is an empty one. `leftovers`: unfinished files of
    interrupted writes or of writes under way, wherever the listing starts; they are not in `files`."""

    files: Sequence[Entry]
    folders: Sequence[str]
    leftovers: Sequence[Entry] = ()


# Tells a file from every other one that may come under its key.
Stamp = Hashable


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was there, under `key`."""

    key: str
    stamp: Stamp


class Lock(Protocol):
    def check_held(self) -> None:
        """Raises `RootLost` if another file, or none, is where the lock was taken."""
        ...

    def renew(self) -> None:
        """Give the lock's file another content. Soon seen, not durable."""
        ...

    def release(self) -> None:
        """Safe to repeat."""
        ...


class ObjectStore(Protocol):
    """Durable means: after the call returned, the bytes and their name survive a power failure.

    Every call may raise `StorageFault`, and what writes may raise `StorageFull`; then what it was to write is not
    there, but for `OutcomeUnknown`. Calls may run beside each other.
    """

    @property
    def url(self) -> str: ...

    def table_url(self, folder: str) -> str | None:
        """How another Delta library reaches this folder, None if none can."""
        ...

    def create(self, key: str, data: Data, *, after: Written | None = None) -> Stamp:
        """Put if absent: of several callers one succeeds, and the key appears whole or not at all. Durable.

        Raises `KeyExists`, or `OutcomeUnknown`, after which `confirm` makes the key durable or fails. `after` has to be
        there as it was written: else `KeyReplaced`, or `OutcomeUnknown` if it goes at the same moment."""
        ...

    def stamp(self, key: str) -> Stamp:
        """Return the stamp of the file as it is now. Raises `KeyNotFound`."""
        ...

    def confirm(self, key: str, data: Data) -> None:
        """After `OutcomeUnknown`, and once reading back showed that `data` is under `key`: make it durable."""
        ...

    def write_unique(self, key: str, data: Data) -> None:
        """Write under a name that was never used and that no reader knows yet. Durable, but a crash may leave a part of
        it."""
        ...

    def write_parts(self, key: str, parts: Iterable[Data]) -> None:
        """Write the parts as one file, like `write_unique`. Each part is durable before the next is requested, so a
        large file never delays the syncs of others. If `parts` raises, nothing stays."""
        ...

    def put(self, key: str, data: Data) -> None:
        """Replace the file, if there is one, at once and whole. Durable."""
        ...

    def get(self, key: str) -> bytes:
        """Raises `KeyNotFound`."""
        ...

    def get_range(self, key: str, start: int, length: int) -> Data:
        """Up to `length` bytes, less where the file ends. Raises `KeyNotFound`."""
        ...

    def size(self, key: str) -> int:
        """The size in bytes. Raises `KeyNotFound`."""
        ...

    def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        """The same of many; None where there is nothing."""
        ...

    def list(self, folder: str, *, with_sizes: bool = True, start_at: str = "", prefix: str = "") -> Listing:
        """Without the files and folders whose names sort before `start_at`, or do not begin with `prefix`."""
        ...

    def measure_volume(self) -> Volume | None:
        """None where there is no bound but memory."""
        ...

    def delete(self, key: str) -> None:
        """An absent key is fine."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Delete the folder and everything in it; an absent one is fine."""
        ...

    def sync(self, folder: str, names: Sequence[str] = ()) -> None:
        """Make durable what other programs wrote: these files of the folder, and the folder's names. To be called
        before anything that is acknowledged builds on them."""
        ...

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> Lock:
        """Held until released or until the process ends, however it ends: by one process, or by several that share it.
        A file of that name is there from then on. Raises `KeyLocked`, or `RootNotUsable` if the place cannot keep the
        promises of this port.

        While the first of several locks is held, calls that write or delete raise `RootLost` instead if its
        `check_held` would: other files under the same names are not ours."""
        ...

    def check_private(self) -> None:
        """Raises `RootNotUsable` if others than its owner have rights to `PRIVATE_FOLDER`. There is nothing to check
        where it does not exist, or the store knows no rights."""
        ...

    def lock_holder(self, key: str) -> str | None:
        """Return the text that the exclusive holder of this lock wrote about itself; None if there is none."""
        ...
