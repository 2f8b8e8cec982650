"""The data files of one table on a local disk, for those who read them by themselves.

Guards one promise: what is read was proved first, as the broker does (proved_parquet.py), and a file that cannot be
proved is named with its partition and its offsets. The log is read for the files' entries; a file that it does not name
at its last version is tried in another process. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from bus.errors import RecordsDamaged, StorageDamaged
from bus.records.log_schema import LOG_SCHEMA
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.read_cache import ReadCache
from bus.storage_delta.log.actions import LiveFile
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.replay import AddedFile, replay_table

# <root>/topics/<topic>/<partition>
_FOLDERS_BELOW_ROOT = 3


class TableFiles:
    """Of the table in `folder`, an absolute path below a root."""

    def __init__(self, folder: str) -> None:
        root, *names = folder.rsplit("/", _FOLDERS_BELOW_ROOT)
        store, self._folder = LocalStore(root), folder
        self._reader = DataReader(store, "/".join(names), LOG_SCHEMA, ReadCache())
        try:
            self._entries = {file.path: _entry(file) for file in replay_table(store, "/".join(names)).files.values()}
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


def _entry(file: AddedFile) -> LiveFile:
    return LiveFile(
        path=file.path,
        size_bytes=file.size_bytes,
        base_offset=file.base_offset,
        next_offset=file.last_offset + 1,
        record_count=file.record_count,
        timestamp_min_ms=0,
        timestamp_max_ms=0,
        leader_epoch=0,
        is_ours=file.tag is not None,
        sums=file.sums or "",
    )
