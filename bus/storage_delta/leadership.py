"""The leadership of a table: if this process has it, and the version behind which no former leader commits.

Guards one promise: only the leader commits, and never under an epoch below one that the log has seen.
"""

from __future__ import annotations

from bus.ports import CommitOutcome, Committed
from bus.storage_delta.log.actions import encode_fence
from bus.storage_delta.log.writer import LogWriter
from bus.storage_delta.partition_reader import PartitionReader


class Leadership:
    """The right to commit to the table that `reader` reads and `log` ends."""

    def __init__(self, reader: PartitionReader, log: LogWriter) -> None:
        self._reader = reader
        self._log = log
        self._epoch: int | None = None  # None: the table is followed
        self._is_overtaken = False  # it was led, and another leader has committed since

    @property
    def is_led(self) -> bool:
        return self._epoch is not None

    def begin(self, leader_epoch: int) -> None:
        self._epoch, self._is_overtaken = leader_epoch, False
        self._reader.view = self._reader.view.overtaken(False)

    def end(self) -> None:
        """Only follow the table from here on."""
        self._epoch = None

    def end_overtaken(self) -> None:
        """Only follow the table from here on, since another leader has come."""
        self._epoch, self._is_overtaken = None, True
        self.note_in_view()

    def note_in_view(self) -> None:
        """Say in a view that was read afresh if another leader has come."""
        if self._is_overtaken:
            self._reader.view = self._reader.view.overtaken(True)

    def check(self, leader_epoch: int) -> None:
        """Raises AssertionError for a caller that commits on a table that it does not lead, or under an older epoch."""
        epoch, folder = self._epoch, self._reader.folder
        assert epoch is not None, f"{folder}: expected a table that is led, found one that is followed"
        epoch = max(epoch, self._reader.state.leader_epoch)
        assert leader_epoch >= epoch, (
            f"{folder}: expected a commit under leader epoch {epoch}, found one under {leader_epoch}"
        )
        assert not self._log.must_reload, f"{folder}: commit after an outcome that asked for a reload"

    def commit_fence(self, leader_epoch: int, now_ms: int) -> CommitOutcome:
        """Commit a version that changes nothing. The caller need not lead yet."""
        view, signature = self._reader.view, self._log.sign(leader_epoch, now_ms)
        version, high_watermark = view.state.version + 1, view.state.high_watermark
        data = encode_fence(high_watermark=high_watermark, signature=signature)
        outcome = self._log.commit(version, data, signature, high_watermark=high_watermark)
        if isinstance(outcome, Committed):
            self._reader.view = view.fenced(leader_epoch)
        return outcome
