"""What is committed behind a version that is known, for those who look at a table again and again.

Guards one promise: what comes out is every version after the known one, in order, and the log is the one that it was
known from. Where that cannot be said, for versions were dropped, put back or cannot be read, the log has to be read
afresh.
"""

from __future__ import annotations

from bus.errors import StorageDamaged, StorageFault
from bus.storage_delta.log.actions import LOG_FOLDER, Commit, MalformedCommit, version_name
from bus.storage_delta.log.reading import Describe, read_commit
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore, Stamp

# One after the other costs more than to read the log afresh from its last checkpoint.
_FOLLOWED_VERSIONS_MAX = 100


class LogFollower:
    """Of the log in `folder`; one thread at a time."""

    def __init__(self, store: ObjectStore, folder: str, describe: Describe) -> None:
        self._store = store
        self._folder = folder
        self._describe = describe
        self._version = -1
        self._stamp: Stamp = None  # of that version's file, None if it is not there

    def begin(self, version: int) -> None:
        """The log was read up to `version`."""
        self._version, self._stamp = version, self._stamp_of(version)

    def read_on(self) -> list[Commit] | None:
        """What was committed since the last call; None if the log has to be read afresh. Raises `StorageDamaged` for a
        version that cannot be read."""
        commits, version, stamp = list[Commit](), self._version, self._stamp
        try:
            while stamp is not None and len(commits) < _FOLLOWED_VERSIONS_MAX:
                following = self._stamp_of(version + 1)
                # After that look: versions are dropped oldest first, so if this one is there, so would be the next.
                if self._stamp_of(version) != stamp:
                    return None
                if following is None:
                    self._version, self._stamp = version, stamp
                    return commits
                commits.append(read_commit(self._store, self._folder, version + 1, self._describe))
                version, stamp = version + 1, following
        except MalformedCommit as malformed:
            name = f"{self._folder}/{LOG_FOLDER}/{version_name(version + 1)}"
            raise StorageDamaged(f"{name}: {malformed}") from None
        except StorageFault:
            pass
        return None

    def _stamp_of(self, version: int) -> Stamp:
        try:
            return self._store.stamp(f"{self._folder}/{LOG_FOLDER}/{version_name(version)}")
        except KeyNotFound:
            return None
