"""Are the transactions in a log whole? Judged by their proofs, the `txn` actions of the versions that are kept, and by
the rows that are live.

Guards atomicity: all rows of a transaction came in one version, the one that has its proof, behind each other, with
sequences from 0 on; no number of a transactional id ends twice; and a producer that has proofs has no row without one.
What versions say that are not kept any more is not judged, nor what a repair brought back. Retention and key compaction
may take rows, but move none. Memory grows with the number of proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bus.storage_delta.verify.replay import TRANSACTION_APPS, Action, AddedFile, ReplayedTable

TAKEN_BACK = -1  # the version of the `txn` of an expired id
_Finding = tuple[str, str, str]  # promise, expected, found
_WHOLE = "transactions are whole"
_ONCE = "transactions end once"
_PROVED = "transactions are proved"
_Name = tuple[int, int]  # producer id and epoch


@dataclass(slots=True)
class _Proved:
    """A transaction, the offsets of the version that has its proof, and the rows found for it."""

    app_id: str
    version: int
    first_offset: int
    next_offset: int
    base_offset: int = -1  # the offset of sequence 0 that the rows imply; -1 before the first row
    row_count: int = 0
    sequence_max: int = -1


@dataclass(slots=True)
class TransactionCheck:
    """Takes the versions in their order, then the live files."""

    proved: dict[_Name, _Proved] = field(default_factory=dict)
    proved_from: int = 0  # every transaction whose rows are at or behind this offset has its proof here

    def begin(self, high_watermark: int) -> None:
        """Begin at `high_watermark`: the following versions say nothing about offsets below it."""
        self.proved.clear()
        self.proved_from = high_watermark

    def add_version(
        self, version: int, actions: Sequence[Action], table: ReplayedTable, appended: Sequence[AddedFile]
    ) -> Iterator[_Finding]:
        """`table` is that before the version; `appended`: its files with new rows."""
        txns = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        ended = {app_id: done for app_id, done in txns.items() if app_id.startswith(TRANSACTION_APPS)}
        for app_id, done in ended.items():
            before = table.txns.get(app_id, TAKEN_BACK)
            if done != TAKEN_BACK and done <= before:
                yield _ONCE, f"{app_id} above {before}", str(done)
        applied = {app_id for app_id, done in ended.items() if done != TAKEN_BACK and done % 2}
        names = _names_of(actions)
        if applied != names.keys():
            expected = f"the producers of {_listed(applied)}"
            yield _PROVED, expected, f"those of {_listed(names.keys())}"
        for app_id in sorted(applied & names.keys()):
            yield from self._add_proof(version, app_id, names[app_id], appended)

    def _add_proof(self, version: int, app_id: str, name: _Name, appended: Sequence[AddedFile]) -> Iterator[_Finding]:
        known = self.proved.get(name)
        if known is not None:
            found = f"that of {known.app_id} in version {known.version}"
            yield _PROVED, f"a producer epoch of its own for {app_id}", f"{name[1]} of producer {name[0]}, {found}"
        elif not appended:
            yield _PROVED, f"the rows of {app_id}", "a version without rows"
        else:
            first, following = min(file.base_offset for file in appended), max(f.last_offset for f in appended) + 1
            self.proved[name] = _Proved(app_id, version, first, following)

    def add_file(self, rows: pa.Table) -> Iterator[_Finding]:
        """`rows`: offset, producer_id, producer_epoch and sequence of all rows of a live file."""
        stamped = rows.drop_null()
        if not self.proved or not stamped.num_rows:
            return
        offsets, ids, epochs, sequences = (
            stamped.column(name).to_numpy().astype(np.int64)
            for name in ("offset", "producer_id", "producer_epoch", "sequence")
        )
        is_proved = np.isin(ids, list({producer_id for producer_id, _ in self.proved}))
        offsets, ids, epochs, sequences = (values[is_proved] for values in (offsets, ids, epochs, sequences))
        for producer_id, epoch in sorted({*zip(ids.tolist(), epochs.tolist(), strict=True)}):
            is_its = (ids == producer_id) & (epochs == epoch)
            yield from self._add_rows((producer_id, epoch), offsets[is_its], sequences[is_its])

    def _add_rows(self, name: _Name, offsets: Any, sequences: Any) -> Iterator[_Finding]:
        proved, first = self.proved.get(name), int(offsets.min())
        if proved is None:
            if int(offsets.max()) >= self.proved_from:
                expected = f"a proof of producer {name[0]}, which has transactions, for epoch {name[1]}"
                yield _PROVED, expected, f"none for the rows from offset {max(first, self.proved_from)} on"
            return
        is_outside = (offsets < proved.first_offset) | (offsets >= proved.next_offset)
        for at in np.flatnonzero(is_outside)[:1]:
            expected = f"offsets {proved.first_offset} to {proved.next_offset - 1}, those of version {proved.version}"
            yield _WHOLE, f"{proved.app_id} at {expected}", f"a row of it at offset {offsets[at]}"
        if proved.base_offset < 0:
            proved.base_offset = first - int(sequences[offsets.argmin()])
        for at in np.flatnonzero(offsets - sequences != proved.base_offset)[:1]:
            expected = f"sequence {offsets[at] - proved.base_offset} of {proved.app_id} at offset {offsets[at]}"
            yield _WHOLE, expected, str(sequences[at])
        proved.row_count += len(offsets)
        proved.sequence_max = max(proved.sequence_max, int(sequences.max()))

    def finish(self, table: ReplayedTable) -> Iterator[tuple[int, _Finding]]:
        """Check all live files; yield the version of each broken proof and its breach."""
        for proved in self.proved.values():
            if proved.first_offset < max(table.log_start, table.compacted_to) or _is_lossy(table, proved):
                continue
            if proved.row_count == 0:
                yield proved.version, (_WHOLE, f"the rows of {proved.app_id}", "none")
            elif proved.row_count != proved.sequence_max + 1 or proved.base_offset < proved.first_offset:
                expected = f"{proved.app_id} with all sequences from 0 to {proved.sequence_max}"
                yield proved.version, (_WHOLE, expected, f"{proved.row_count} of them")


def _is_lossy(table: ReplayedTable, proved: _Proved) -> bool:
    lost = table.lost_ranges
    return any(first < proved.next_offset and proved.first_offset < following for first, following in lost)


def _names_of(actions: Sequence[Action]) -> dict[str, _Name]:
    """Return, from `commitInfo`, the `appId` of each proof -> producer id and epoch. Malformed entries are ignored."""
    found: dict[str, _Name] = {}
    for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
        recorded = info.get("transactions")
        for app_id, name in recorded.items() if isinstance(recorded, Mapping) else ():
            if isinstance(name, list) and len(name) == 2 and all(type(number) is int for number in name):
                found[app_id] = (name[0], name[1])
    return found


def _listed(app_ids: Any) -> str:
    return ", ".join(sorted(app_ids)) or "none"
