"""Which records of idempotent producers a data file may hold: small enough to be kept of every file.

Guards one promise: a record of a producer lies within a span of its file, so a reader that looks for it may leave every
other file closed. Spans may be wider than what is there, never narrower. Statistics by the Delta protocol could not do
this: one minimum and maximum over all producers of a group commit excludes nothing. The spans of a file go into its tag
in the log, and from there, once it is asked for, into one index in memory. Does no I/O.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from bus.model import SEQUENCE_MODULUS
from bus.records.json_text import parse_json

# A file of more producers has wider spans. It bounds what each file costs in the log, its checkpoints and memory.
SPANS_PER_FILE_MAX = 64

# As text: six numbers a span, three times a minimum and how far the maximum lies above it. So a span of one producer,
# by far the most frequent kind, is short.
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
    """What `add.stats`, JSON, lets one say of a file without spans of its own: one span, or none if it has no record of
    a producer. Anything may be missing there. It never tells the epochs."""
    try:
        told = parse_json(stats or "null")
        if told["nullCount"]["producer_id"] == told["numRecords"]:
            return NO_SPANS
        minima, maxima = told["minValues"], told["maxValues"]
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
