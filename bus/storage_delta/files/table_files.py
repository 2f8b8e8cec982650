"""The data files of one table on a local disk, for those who read them by themselves.

Guards one promise: what is read was proved first, as the broker does (proved_parquet.py), and a file that cannot be
proved is named with its partition and its offsets. The log is read for the files' entries; a file that it does not name
at its last version is tried in another process. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from bus.errors import RecordsDamaged, StorageDamaged
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.read_cache import ReadCache
from bus.storage_delta.log.actions import LiveFile
from bus.storage_delta.log.reading import load_state
from bus.storage_delta.stores.local import LocalStore

# <root>/topics/<topic>/<partition>
_FOLDERS_BELOW_ROOT = 3


class TableFiles:
    """Of the table in `folder`, an absolute path below a root."""

    def __init__(self, folder: str) -> None:
        root, *names = folder.rsplit("/", _FOLDERS_BELOW_ROOT)
        store, self._folder = LocalStore(root), folder
        self._reader = DataReader(store, "/".join(names), LOG_SCHEMA, ReadCache())
        try:
            self._entries: Mapping[str, LiveFile] = load_state(store, "/".join(names)).files
        except StorageDamaged:
            self._entries = {}

    def read(self, paths: Iterable[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of each file, as they are in it. Raises `StorageDamaged`."""
        for path in paths:
            name = path.removeprefix(f"{self._folder}/")
            entry = self._entries.get(name)
            yield self._reader.read_unnamed(name, columns) if entry is None else self._reader.read_file(entry, columns)

    def find_damage(self, paths: Iterable[str]) -> str | None:
        """What is wrong with the first of the files that cannot be read: its name, its offsets, what was found."""
        for path in paths:
            try:
                for _ in self.read([path], []):
                    pass
            except RecordsDamaged as damage:
                return str(damage)
        return None
