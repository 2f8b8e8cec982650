"""The deletion of orphans as a commit, for a partition's writer and for the cluster metadata alike.

Guards one promise: a fence that was lost is an outcome like any other commit's, so its caller treats it as one.
"""

from __future__ import annotations

from bus.ports import CommitOutcome, Committed, FenceLost, TableChanges


class OrphanDeletion:
    """To be called in the writer's place, once. `count` says how many were deleted."""

    def __init__(self, table: TableChanges, orphans: frozenset[str]) -> None:
        self._table = table
        self._orphans = orphans
        self.count = 0

    def __call__(self) -> CommitOutcome:
        try:
            self.count = self._table.delete_orphans(self._orphans)
        except FenceLost as lost:
            return lost.outcome
        log = self._table.state
        return Committed(log.version, log.high_watermark)
