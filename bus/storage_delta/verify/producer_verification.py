"""Do the records of idempotent producers follow each other? Judged over all live files, in the order of their offsets.

Guards exactly-once: within a partition, what a producer sent is there once and in its order. Epochs never fall; under
one epoch each sequence is the one after that before it, modulo 2**31; a higher epoch begins with 0 or goes on. What
came before the first record that is still there is not judged: retention took it. Behind a record of a compacted file,
and where records were given up, any number may be missing: then the next one only has to be later. Memory grows with
the number of producers, not with that of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bus.storage_delta.verify.replay import PRODUCER_APPS, AddedFile, is_forgotten, producer_app

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
    """Takes the live files in offset order."""

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
