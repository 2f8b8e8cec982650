"""Do the records of idempotent producers follow each other, and are their transactions whole? `ProducerCheck` judges
the first over all live files, in the order of their offsets; `TransactionCheck` the second, by proofs and live rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bus.storage_delta.verify.replay import (
    PRODUCER_APPS,
    TRANSACTION_APPS,
    Action,
    AddedFile,
    ReplayedTable,
    is_forgotten,
    producer_app,
)

PRODUCER_COLUMNS = ("producer_id", "producer_epoch", "sequence")
_MODULUS = 2**31
_Finding = tuple[str, str, str]  # promise, expected, found
_PROMISE = "producers' sequences follow each other"


@dataclass(frozen=True, slots=True)
class _Last:
    """The last record of a producer so far."""

    epoch: int
    sequence: int
    file: AddedFile
    may_be_followed_by_holes: bool


@dataclass(slots=True)
class ProducerCheck:
    """Takes the live files in offset order.

    Guards exactly-once: within a partition, what a producer sent is there once and in its order. Epochs never fall;
    under one epoch each sequence is the one after that before it, modulo 2**31; a higher epoch begins with 0 or goes
    on. What came before the first record that is still there is not judged: retention took it. Behind a record of a
    compacted file, and where records were given up, any number may be missing: then the next one only has to be later.
    Memory grows with the number of producers, not with that of records."""

    last: dict[int, _Last] = field(default_factory=dict)

    def add_file(self, file: AddedFile, rows: pa.Table, *, may_have_holes: bool = False) -> Iterator[_Finding]:
        """`rows`: offset and the three columns of all rows of the file."""
        nulls = [rows.column(name).null_count for name in PRODUCER_COLUMNS]
        stamped = rows.drop_null()
        if {rows.num_rows - count for count in nulls} != {stamped.num_rows}:
            found = ", ".join(f"{count} in {name}" for name, count in zip(PRODUCER_COLUMNS, nulls, strict=True))
            yield "producers have id, epoch and sequence", "nulls in the same rows of all three columns", found
        if not stamped.num_rows:
            return
        offsets, ids, epochs, sequences = (
            stamped.column(name).to_numpy().astype(np.int64) for name in ("offset", *PRODUCER_COLUMNS)
        )
        yield from _check_spans(file, ids, epochs, sequences)
        order = np.lexsort((offsets, ids))
        offsets, ids, epochs, sequences = (values[order] for values in (offsets, ids, epochs, sequences))
        begins = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        ends = np.concatenate([begins[1:], [len(ids)]]) - 1
        follows = _follows(epochs[:-1], sequences[:-1], epochs[1:], sequences[1:], may_have_holes)
        follows[begins[1:] - 1] = True  # another producer's
        for at in np.flatnonzero(~follows)[:1]:
            yield _broken(ids[at], epochs[at], sequences[at], epochs[at + 1], sequences[at + 1], offsets[at + 1])
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            last = self.last.get(int(ids[begin]))
            if last is not None and not _follows(
                last.epoch, last.sequence, epochs[begin], sequences[begin], last.may_be_followed_by_holes
            ):
                yield _broken(ids[begin], last.epoch, last.sequence, epochs[begin], sequences[begin], offsets[begin])
            self.last[int(ids[end])] = _Last(int(epochs[end]), int(sequences[end]), file, may_have_holes)

    def pass_loss(self) -> None:
        """Records were given up here: whose they were is not known."""
        self.last = {producer: replace(last, may_be_followed_by_holes=True) for producer, last in self.last.items()}

    def check_txns(self, txns: Mapping[str, int], *, is_whole: bool) -> Iterator[tuple[str | None, _Finding]]:
        """The path of a file, if one is at fault, and what is wrong. `is_whole`: no record was retired yet."""
        promise = "the log tells where producers ended"
        for producer_id, last in sorted(self.last.items()):
            app_id, expected = producer_app(producer_id), last.epoch << 32 | last.sequence
            recorded = txns.get(app_id)
            if recorded is None and is_forgotten(app_id, txns):
                continue
            # Another engine that appends by MERGE knows no `txn` of ours.
            is_later = recorded is not None and recorded > expected and last.may_be_followed_by_holes
            if recorded != expected and not is_later and not (recorded is None and last.file.tag is None):
                where = f"epoch {last.epoch} and sequence {last.sequence}"
                found = "none" if recorded is None else f"epoch {recorded >> 32} and sequence {recorded & 0xFFFFFFFF}"
                yield last.file.path, (promise, f"txn {app_id} at {where}", found)
        if is_whole:
            named = {producer_app(producer_id) for producer_id in self.last}
            for app_id in sorted(set(_producer_apps(txns)) - named):
                yield None, (promise, f"a record of {app_id}, which has a txn", "none")


def _follows(epoch: Any, sequence: Any, next_epoch: Any, next_sequence: Any, may_have_holes: bool) -> Any:
    if may_have_holes:  # later is what lies in the half of all sequences that is ahead
        step = (next_sequence - sequence) % _MODULUS
        return (next_epoch > epoch) | ((next_epoch == epoch) & (step > 0) & (step < _MODULUS // 2))
    goes_on = next_sequence == (sequence + 1) % _MODULUS
    return ((next_epoch == epoch) & goes_on) | ((next_epoch > epoch) & (goes_on | (next_sequence == 0)))


def _broken(*numbers: Any) -> _Finding:
    producer_id, epoch, sequence, next_epoch, next_sequence, offset = map(int, numbers)
    expected = f"epoch {epoch} and sequence {(sequence + 1) % _MODULUS} of producer {producer_id}, or a higher epoch"
    return _PROMISE, expected, f"epoch {next_epoch} and sequence {next_sequence} at offset {offset}"


def _producer_apps(txns: Mapping[str, int]) -> Iterator[str]:
    yield from (app_id for app_id in txns if app_id.removeprefix(PRODUCER_APPS).isdigit())


def _check_spans(file: AddedFile, ids: Any, epochs: Any, sequences: Any) -> Iterator[_Finding]:
    """The tag's spans, if it has any, leave no row out: readers do not open a file whose spans exclude theirs."""
    numbers = (file.tag or "").split()
    if len(numbers) <= 6:
        return
    is_held = np.zeros(len(ids), bool)
    for low_id, ids_more, low_epoch, epochs_more, low, more in _spans(numbers):
        is_held |= (
            (low_id <= ids)
            & (ids <= low_id + ids_more)
            & (low_epoch <= epochs)
            & (epochs <= low_epoch + epochs_more)
            & (low <= sequences)
            & (sequences <= low + more)
        )
    for at in np.flatnonzero(~is_held)[:1]:
        expected = f"a span for producer {ids[at]}, epoch {epochs[at]}, sequence {sequences[at]}"
        yield "statistics are true", expected, f"the tag {file.tag!r}"


def _spans(numbers: Sequence[str]) -> Iterator[list[int]]:
    """Behind the six numbers of the file itself: how many spans, then six numbers each, a minimum and the distance to
    the maximum for producer id, epoch and sequence."""
    try:
        values = [int(number) for number in numbers[6:]]
    except ValueError:
        return
    for begin in range(1, min(1 + 6 * values[0], len(values) - 5), 6):
        yield values[begin : begin + 6]


TAKEN_BACK = -1  # the version of the `txn` of an expired id
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
    """Takes the versions in their order, then the live files. Judges transactions by their proofs, the `txn` actions of
    the versions that are kept, and by the rows that are live.

    Guards atomicity: all rows of a transaction came in one version, the one that has its proof, behind each other, with
    sequences from 0 on; no number of a transactional id ends twice; and a producer that has proofs has no row without
    one. What versions say that are not kept any more is not judged, nor what a repair brought back. Retention and key
    compaction may take rows, but move none. Memory grows with the number of proofs."""

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
