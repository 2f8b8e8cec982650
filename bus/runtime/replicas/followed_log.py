"""How far a followed log is known, and how much of that may be shown.

Guards two promises: only a version that a leader has called committed is shown, or one before it; and what is shown
never goes back. A table is read to its end, which may be a version whose leader does not know yet whether it is
durable; then what was shown before stays until the leader has told of that version, or of a later one.
"""

from __future__ import annotations

from bus.ports import LogState
from bus.runtime.wakeable import Wakeable


class FollowedLog:
    def __init__(self) -> None:
        self._told_version = -1
        self._found: LogState | None = None
        self.settled: LogState | None = None  # what is shown
        self._readers: dict[Wakeable, None] = {}

    def tell(self, version: int) -> None:
        """A leader has committed that version."""
        self._told_version = max(self._told_version, version)
        self._settle()

    @property
    def is_behind(self) -> bool:
        """There is more to read."""
        return self._found is None or self._found.version < self._told_version

    def take(self, found: LogState) -> None:
        """The table was read so far."""
        self._found = found
        self._settle()

    def _settle(self) -> None:
        found, settled = self._found, self.settled
        if found is None or found.version > self._told_version:
            return
        if settled is None or found.version > settled.version:
            self.settled = found
            self.wake_readers()

    # ------------------------------------------------------------------ readers

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def add_reader(self, event: Wakeable) -> None:
        """Have `event` set whenever more is shown, until `remove_reader`."""
        self._readers[event] = None

    def remove_reader(self, event: Wakeable) -> None:
        self._readers.pop(event, None)

    def wake_readers(self) -> None:
        """Also when nothing is shown here any more."""
        for event in self._readers:
            event.set()
