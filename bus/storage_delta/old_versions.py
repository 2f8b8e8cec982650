"""The versions of a table's past: what each one left.

Guards one promise: what is said about a version is said by its own file, never guessed from those around it. A version
whose file has been dropped is not there any more.
"""

from __future__ import annotations

from bus.errors import StorageDamaged
from bus.storage_delta.actions import HIGH_WATERMARK_APP, Commit, MalformedCommit, decode_commit, version_name
from bus.storage_delta.data_reader import DataReader
from bus.storage_delta.store import KeyNotFound, ObjectStore


def find_high_watermark(store: ObjectStore, log_folder: str, version: int, reader: DataReader) -> int | None:
    """The high watermark that `version` left; None if its file is gone. A version of another engine, which says
    nothing of it, has moved it by the rows that it appended, or not at all. Raises `StorageDamaged`."""
    for earlier in range(version, -1, -1):
        commit = _read_version(store, log_folder, earlier)
        if commit is None:
            return None
        if (told := commit.txns.get(HIGH_WATERMARK_APP)) is not None:
            return told.version
        appended = [add for add in commit.adds if add.is_data_change]
        if appended:
            return max(reader.check_foreign(add.path, add.size_bytes).next_offset for add in appended)
    return 0 if version >= 0 else None


def _read_version(store: ObjectStore, log_folder: str, version: int) -> Commit | None:
    key = f"{log_folder}/{version_name(version)}"
    try:
        return decode_commit(version, store.get(key))
    except KeyNotFound:
        return None
    except MalformedCommit as malformed:
        raise StorageDamaged(f"{key}: {malformed}") from None
