"""A partition's table for those who look at it again and again: what was appended since costs what was appended.

Guards one promise: after `refresh` the view is that of the last committed version. A version that only appends is added
to the view; anything else, or a version that is gone already, has the log read anew.
"""

from __future__ import annotations

import pyarrow as pa

from bus.errors import StorageDamaged
from bus.storage_delta.files.read_cache import ReadCache
from bus.storage_delta.log.actions import LOG_FOLDER, Commit, MalformedCommit, decode_commit, version_name
from bus.storage_delta.partition_reader import PartitionReader, TableView
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore


class FollowingReader:
    """Of the table in `folder`; one thread at a time."""

    def __init__(
        self, store: ObjectStore, folder: str, schema: pa.Schema, cache: ReadCache, *, topic_id: str | None
    ) -> None:
        """Raises `StorageDamaged`, also if the table is another topic's."""
        self._store = store
        self._topic_id = topic_id
        self._log_folder = f"{folder}/{LOG_FOLDER}"
        self.reader = PartitionReader(store, folder, schema, cache)
        self.reader.load(topic_id=topic_id)

    def refresh(self) -> TableView:
        """The last committed version. Raises `StorageDamaged`."""
        while (commit := self._read(self.reader.state.version + 1)) is not None:
            if not self._append(commit):
                self.reader.load(topic_id=self._topic_id)
        if not self._is_there(self.reader.state.version):  # cleaning has overtaken: later versions may be there
            self.reader.load(topic_id=self._topic_id)
        return self.reader.view

    def _append(self, commit: Commit) -> bool:
        """False if the version does anything else than to append files of ours."""
        view = self.reader.view
        if commit.removes or commit.metadata is not None or commit.protocol is not None or len(commit.adds) != 1:
            return False
        (add,) = commit.adds
        if add.live is None or not add.is_data_change or add.live.base_offset != view.state.high_watermark:
            return False
        self.reader.view = view.appended(add.live, -1 if commit.leader_epoch is None else commit.leader_epoch)
        return True

    def _read(self, version: int) -> Commit | None:
        key = f"{self._log_folder}/{version_name(version)}"
        try:
            return decode_commit(version, self._store.get(key))
        except KeyNotFound:
            return None
        except MalformedCommit as malformed:
            raise StorageDamaged(f"{key}: {malformed}") from None

    def _is_there(self, version: int) -> bool:
        try:
            self._store.size(f"{self._log_folder}/{version_name(version)}")
        except KeyNotFound:
            return False
        return True
