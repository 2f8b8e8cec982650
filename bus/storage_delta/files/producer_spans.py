"""Spans: the producer ids, epochs and sequences that a data file may hold, small enough to keep for every file.

Guards one promise: a record of a producer lies within a span of its file, so a reader that looks for it may leave every
other file closed. Spans may be wider than what is there, never narrower. Statistics by the Delta protocol could not do
this: one minimum and maximum over all producers of a group commit excludes nothing. The spans of a file go into its tag
in the log, and from there, once it is asked for, into one index in memory. Does no I/O.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from bus.model import SEQUENCE_MODULUS, LogBatch, ProducerStamp
from bus.records.json_text import parse_json

# A file of more producers has wider spans. It bounds what each file costs in the log, its checkpoints and memory.
SPANS_PER_FILE_MAX = 64

# The text form of a span has six numbers: three times a minimum and the distance from it to the maximum. The span of a
# single producer, by far the most frequent kind, is therefore short.
_NUMBERS_PER_SPAN = 6
_SPANS = re.compile(r"[0-9]+(?: [0-9]+)*")
_ID_MAX, _EPOCH_MAX = 2**63 - 1, 2**15 - 1
NO_SPANS = ""
EVERY_SPAN = f"0 {_ID_MAX} 0 {_EPOCH_MAX} 0 {SEQUENCE_MODULUS - 1}"

_SPAN = np.dtype(
    [
        ("file", np.int32),
        ("producer_id_min", np.int64),
        ("producer_id_max", np.int64),
        ("epoch_min", np.int16),
        ("epoch_max", np.int16),
        ("sequence_min", np.int32),
        ("sequence_max", np.int32),
    ]
)


def encode_run(*, producer_id: int, producer_epoch: int, first: int, last: int) -> str:
    """The span of a run of sequences of one producer."""
    return f"{producer_id} 0 {producer_epoch} 0 {first} {last - first}"


def encode_runs(producer_ids: Any, producer_epochs: Any, firsts: Any, lasts: Any) -> str:
    """The spans of many runs, four arrays in the order of the records: those that continue another are one with it."""
    order = np.lexsort((producer_epochs, producer_ids))
    ids, epochs, firsts, lasts = (runs[order] for runs in (producer_ids, producer_epochs, firsts, lasts))
    is_first = np.ones(len(ids), bool)
    is_first[1:] = (ids[1:] != ids[:-1]) | (epochs[1:] != epochs[:-1]) | (firsts[1:] != lasts[:-1] + 1)
    begins = np.flatnonzero(is_first)
    if len(begins) > SPANS_PER_FILE_MAX:
        begins = begins[:: -(-len(begins) // SPANS_PER_FILE_MAX)]
    numbers = np.empty((len(begins), _NUMBERS_PER_SPAN), np.int64)
    for column, (low, high) in enumerate(((ids, ids), (epochs, epochs), (firsts, lasts))):
        numbers[:, 2 * column] = np.minimum.reduceat(low, begins)
        numbers[:, 2 * column + 1] = np.maximum.reduceat(high, begins) - numbers[:, 2 * column]
    return " ".join(map(str, numbers.ravel().tolist()))


def spans_of_statistics(stats: str | None) -> str:
    """Return the span that `add.stats` (JSON) implies for a file without spans of its own, or none if the file has no
    record of a producer. Any statistic may be missing, and epochs always are."""
    try:
        parsed = parse_json(stats or "null")
        if parsed["nullCount"]["producer_id"] == parsed["numRecords"]:
            return NO_SPANS
        minima, maxima = parsed["minValues"], parsed["maxValues"]
        id_min, id_max = int(minima["producer_id"]), int(maxima["producer_id"])
        sequence_min, sequence_max = int(minima["sequence"]), int(maxima["sequence"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return EVERY_SPAN
    if not (0 <= id_min <= id_max <= _ID_MAX and 0 <= sequence_min <= sequence_max < SEQUENCE_MODULUS):
        return EVERY_SPAN
    return f"{id_min} {id_max - id_min} 0 {_EPOCH_MAX} {sequence_min} {sequence_max - sequence_min}"


def check_spans(text: str, count: int) -> str:
    """`text`, if it can be `count` spans. Raises `ValueError`."""
    if text.count(" ") + 1 != count * _NUMBERS_PER_SPAN or not _SPANS.fullmatch(text):
        raise ValueError(f"expected {count} spans of {_NUMBERS_PER_SPAN} numbers each, found {text!r}")
    return text


def count_spans(text: str) -> int:
    return (text.count(" ") + 1) // _NUMBERS_PER_SPAN if text else 0


def id_max_of(text: str) -> int:
    """The largest producer id that may be in a file of these spans, -1 if none can."""
    spans = decode_spans([text])
    return int(spans["producer_id_max"].max()) if len(spans) else -1


def decode_spans(texts: Sequence[str], first_file: int = 0) -> Any:
    """The spans of files, one text each, as one array; the files are counted from `first_file`."""
    written = [text for text in texts if text]
    counts = [count_spans(text) for text in texts]
    numbers = np.array(" ".join(written).split(), np.int64).reshape(-1, _NUMBERS_PER_SPAN)
    spans = np.empty(len(numbers), _SPAN)
    spans["file"] = np.repeat(np.arange(first_file, first_file + len(texts)), counts)
    for column, name in enumerate(("producer_id", "epoch", "sequence")):
        spans[f"{name}_min"] = numbers[:, 2 * column]
        spans[f"{name}_max"] = numbers[:, 2 * column] + numbers[:, 2 * column + 1]
    return spans


class _FileOfProducers(Protocol):
    @property
    def producers(self) -> str: ...


class ProducerSpans:
    """The spans of all files of a list that only grows at its end. Costs nothing until it is asked for. Safe for
    threads.

    An answer is an array of spans, in the order of their files: `file` is the file's place in the list.
    """

    def __init__(self, files: Sequence[_FileOfProducers]) -> None:
        self._files = files
        self._file_count = 0
        self._spans = np.empty(0, _SPAN)
        self._used = 0
        self._mutex = threading.Lock()

    def find_producer(self, producer_id: int, *, file_count: int) -> Any:
        """The spans that may hold a record of that producer, among the first `file_count` files."""
        spans = self._up_to(file_count)
        return spans[
            (spans["producer_id_min"] <= producer_id)
            & (producer_id <= spans["producer_id_max"])
            & (spans["file"] < file_count)
        ]

    def _up_to(self, file_count: int) -> Any:
        with self._mutex:
            if self._file_count < file_count:
                texts = [file.producers for file in self._files[self._file_count : file_count]]
                self._extend(decode_spans(texts, self._file_count))
                self._file_count = file_count
            return self._spans[: self._used]

    def _extend(self, spans: Any) -> None:
        """Room is doubled: between two questions there are often only a few new files."""
        used = self._used + len(spans)
        if used > len(self._spans):
            room = np.empty(max(used, 2 * len(self._spans)), _SPAN)
            room[: self._used] = self._spans[: self._used]
            self._spans = room
        self._spans[self._used : used] = spans
        self._used = used


PRODUCER_COLUMNS = ("producer_id", "producer_epoch", "sequence")
_LAST_SEQUENCE = SEQUENCE_MODULUS - 1
_NO_STAMP = ProducerStamp(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Stamps:
    """The producer stamps of a commit's batches, one entry a batch; zeros for a batch without one. Columns, statistics
    and spans of the data file are computed from these arrays, so they agree, and a commit of thousands of small batches
    needs no loop over rows."""

    counts: Any  # records in each batch
    is_stamped: Any
    producer_ids: Any
    producer_epochs: Any
    base_sequences: Any


def stamps_of(batches: Sequence[LogBatch]) -> Stamps | None:
    """None if no batch has one."""
    if all(batch.producer is None for batch in batches):
        return None
    count = len(batches)
    stamps = [batch.producer or _NO_STAMP for batch in batches]
    return Stamps(
        counts=np.fromiter((batch.record_count for batch in batches), np.int64, count),
        is_stamped=np.fromiter((batch.producer is not None for batch in batches), bool, count),
        producer_ids=np.fromiter((stamp.producer_id for stamp in stamps), np.int64, count),
        producer_epochs=np.fromiter((stamp.producer_epoch for stamp in stamps), np.int64, count),
        base_sequences=np.fromiter((stamp.base_sequence for stamp in stamps), np.int64, count),
    )


def merge_producer_column(stamps: Stamps, field: pa.Field) -> pa.Array:
    """One of the three columns of batches that bring none of them."""
    counts = stamps.counts
    nulls = None if stamps.is_stamped.all() else np.repeat(~stamps.is_stamped, counts)
    dtype = field.type.to_pandas_dtype()
    match field.name:
        case "producer_id":
            values = np.repeat(stamps.producer_ids, counts)
        case "producer_epoch":
            values = np.repeat(stamps.producer_epochs.astype(dtype), counts)
        case _:
            ends = np.cumsum(counts)
            values = np.repeat(stamps.base_sequences - (ends - counts), counts)
            values += np.arange(ends[-1])
            values = (values & _LAST_SEQUENCE).astype(dtype)
    return pa.array(values, mask=nulls)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The bounds (minimum, maximum) are those of the rows that have a producer; None if there is none."""

    null_count: int
    producer_ids: tuple[int, int] | None = None
    sequences: tuple[int, int] | None = None
    spans: str = NO_SPANS


def statistics_of_stamps(stamps: Stamps) -> ProducerStatistics:
    """Return the statistics of batches that bring no producer columns of their own."""
    is_stamped = stamps.is_stamped
    ids, epochs, firsts = (
        values[is_stamped] for values in (stamps.producer_ids, stamps.producer_epochs, stamps.base_sequences)
    )
    lasts = firsts + stamps.counts[is_stamped] - 1
    is_wrapped = lasts > _LAST_SEQUENCE
    if is_wrapped.any():  # one that begins before the last sequence and ends behind it is two runs
        ids, epochs = (np.concatenate([values, values[is_wrapped]]) for values in (ids, epochs))
        firsts = np.concatenate([firsts, np.zeros(int(is_wrapped.sum()), np.int64)])
        lasts = np.concatenate([np.minimum(lasts, _LAST_SEQUENCE), lasts[is_wrapped] - SEQUENCE_MODULUS])
    return _statistics_of_runs(ids, epochs, firsts, lasts, null_count=int(stamps.counts[~is_stamped].sum()))


def statistics_of_one(stamp: ProducerStamp, count: int) -> ProducerStatistics:
    """Return the statistics of a single batch without building an array: most commits of an idle partition have one
    batch."""
    first, last = stamp.base_sequence, stamp.base_sequence + count - 1
    producer_ids = (stamp.producer_id, stamp.producer_id)
    key = {"producer_id": stamp.producer_id, "producer_epoch": stamp.producer_epoch}
    if last <= _LAST_SEQUENCE:
        return ProducerStatistics(0, producer_ids, (first, last), encode_run(**key, first=first, last=last))
    begin = encode_run(**key, first=first, last=_LAST_SEQUENCE)
    end = encode_run(**key, first=0, last=last - SEQUENCE_MODULUS)
    return ProducerStatistics(0, producer_ids, (0, _LAST_SEQUENCE), f"{begin} {end}")


def statistics_of_rows(rows: pa.RecordBatch) -> ProducerStatistics:
    """Return the statistics of rows that have the producer columns, which are null in rows without a producer."""
    stamped = rows.select(list(PRODUCER_COLUMNS)).drop_null()
    if not stamped.num_rows:
        return ProducerStatistics(rows.num_rows)
    ids, epochs, sequences = (column.to_numpy().astype(np.int64) for column in stamped.columns)
    return _statistics_of_runs(ids, epochs, sequences, sequences, null_count=rows.num_rows - stamped.num_rows)


def _statistics_of_runs(ids: Any, epochs: Any, firsts: Any, lasts: Any, *, null_count: int) -> ProducerStatistics:
    return ProducerStatistics(
        null_count=null_count,
        producer_ids=(int(ids.min()), int(ids.max())),
        sequences=(int(firsts.min()), int(lasts.max())),
        spans=encode_runs(ids, epochs, firsts, lasts),
    )
