"""Data files that no reader needs and no log names: what a crash left between a file and its version.

Guards one promise: nothing is called an orphan that any kept version has, that a checkpoint names as removed but there,
or that this process is about to commit. So the files that are being written are noted here before they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bus.errors import StorageDamaged
from bus.storage_delta.log.actions import LOG_FOLDER, checkpoint_name
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint, decode_removed
from bus.storage_delta.stores.store import ObjectStore

_DATA_FILE_NAME = re.compile(r"(\d{20})-.+\.parquet")


def is_data_file(name: str) -> bool:
    """Whether the bus names its data files so. Those of other engines are theirs to remove."""
    return _DATA_FILE_NAME.fullmatch(name) is not None


def base_offset_of(name: str) -> int:
    """The first offset of a data file of the bus, by its name."""
    return int(name.split("-", 1)[0])


class FilesUnderWay:
    """Data files that are written, or about to be, and that no version names yet."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """To be called before the file is there."""
        self._names.add(name)

    def settle(self, names: Iterable[str]) -> None:
        """They are committed, and memory says so; or they are given up."""
        self._names.difference_update(names)

    def __contains__(self, name: str) -> bool:
        return name in self._names


def list_data_files(store: ObjectStore, folder: str) -> set[str]:
    return {entry.name for entry in store.list(folder, with_sizes=False).files if is_data_file(entry.name)}


def load_removed(store: ObjectStore, folder: str, checkpoint_version: int) -> dict[str, int]:
    """Data files that the checkpoint names as removed -> when; none if there is no checkpoint. Raises `StorageFault`,
    also if it was damaged since it was found whole."""
    if checkpoint_version < 0:
        return {}
    key = f"{folder}/{LOG_FOLDER}/{checkpoint_name(checkpoint_version)}"
    try:
        return decode_removed(store.get(key))
    except MalformedCheckpoint as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None
