"""Has Parquet files that nothing proves read in a process of their own first, where a crash costs nothing.

Guards one promise: a file without checksums (of an earlier bus, of another engine, a checkpoint) reaches Arrow in this
process only after every page of it was decoded in another one, and then by the checksums of the very bytes that were
decoded there. One such process serves all threads; it is started when it is needed, ends when it is idle, and one that
a file ended is replaced. `open_data_file` and `read_records` open files so to look at what is in them, and change
nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from bus.errors import StorageDamaged, StorageFault, first_line, reduce_error
from bus.storage_delta.files.proved_parquet import (
    BytesSource,
    FileSums,
    ProvedFile,
    Source,
    StoreFile,
    decode_footer,
    decode_sums,
    has_sums,
    open_piece,
    open_proved,
    sum_of,
)
from bus.storage_delta.files.trial import COLUMN, COLUMN_HEAD, FOOTER, HEAD, PIECE
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

_ANSWER_S = 300.0  # a row group takes a second at most
_PROVED_MAX = 4096
_TRAILER_BYTES = 8  # the footer's length, and the magic number


class Unprovable(ValueError):
    """The file cannot be read; the message says what was expected and what was found."""


class _Ended(Exception):
    """The process is gone, or does not answer. `crash`: the file's effect on it, None if something else ended it."""

    def __init__(self, crash: str | None) -> None:
        super().__init__(crash)
        self.crash = crash

    __reduce__ = reduce_error


@dataclass(frozen=True, slots=True)
class SoundGroup:
    """A row group of which these columns can be decoded; `bounds` of those that have no null, by the footer."""

    row_count: int
    columns: Mapping[str, pa.ChunkedArray]
    bounds: Mapping[str, tuple[int, int]]


class Trials:
    """Safe for threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._child: _Child | None = None
        self._proved: OrderedDict[bytes, FileSums] = OrderedDict()  # keyed by the digest of the whole file

    def sums_of(self, source: Source) -> FileSums:
        """The checksums of a file that was read whole without harm. Raises `Unprovable`, `StorageFault` if no process
        can be had, and what `source` raises."""
        footer_start = _footer_start(source)
        with self._mutex:
            for is_last in (False, True):
                try:
                    return self._try(source, footer_start)
                except _Ended as ended:
                    self._stop()
                    if ended.crash is not None:
                        raise Unprovable(
                            f"expected a Parquet file, found what ends its reader: {ended.crash}"
                        ) from None
                    if is_last:
                        raise StorageFault("the process that tries files ended twice before it answered") from None
        raise AssertionError("unreachable")

    def sound_groups(self, source: Source) -> Iterator[SoundGroup]:
        """Yield the row groups that can be decoded of a file that cannot be read as a whole. Raises `Unprovable` if its
        footer cannot be read, and `StorageFault`."""
        footer_start = _footer_start(source)
        footer = bytes(source.get(footer_start, source.size_bytes - footer_start))
        with self._mutex:
            try:
                laid_out = self._ask(FOOTER, footer_start, footer)
            except _Ended as ended:
                self._stop()
                raise Unprovable(f"expected a footer, found one that ends its reader: {ended.crash}") from None
            starts, ends = laid_out["starts"], [*laid_out["starts"][1:], laid_out["end"]]
            metadata = decode_footer(footer)
            names = metadata.schema.to_arrow_schema().names
            for group in range(metadata.num_row_groups):
                at = group if len(starts) > 1 else 0
                start, piece = starts[at], bytes(source.get(starts[at], ends[at] - starts[at]))
                is_sound = len(starts) > 1 and self._is_sound(PIECE, start, piece, (footer_start, footer))
                sound = (
                    names
                    if is_sound
                    else [
                        name
                        for name in names
                        if self._is_sound(
                            COLUMN,
                            start,
                            COLUMN_HEAD.pack(group, len(name.encode())) + name.encode() + piece,
                            (footer_start, footer),
                        )
                    ]
                )
                rows = open_piece(metadata, start, piece).read_row_group(group, columns=sound, use_threads=False)
                columns = dict(zip(rows.column_names, rows.columns, strict=True)) if sound else {}
                row_group = metadata.row_group(group)
                yield SoundGroup(row_group.num_rows, columns, _bounds(row_group))

    def _is_sound(self, kind: bytes, start: int, data: bytes, footer: tuple[int, bytes]) -> bool:
        try:
            self._ask(kind, start, data)
        except Unprovable:
            return False
        except _Ended:  # the next one has to be told of the footer
            self._stop()
            with contextlib.suppress(_Ended):
                self._ask(FOOTER, *footer)
            return False
        return True

    def _ask(self, kind: bytes, start: int, data: bytes) -> dict[str, Any]:
        if self._child is None:
            self._child = _Child()
        return self._child.ask(kind, start, data)

    def open_bytes(self, data: bytes) -> ProvedFile:
        """A whole file in memory, of which the same bytes were proved before, or are by a trial now. Raises
        `ValueError`, `StorageFault`, and what Arrow raises."""
        digest = hashlib.sha256(data).digest()
        sums = self._proved.get(digest)
        if sums is None:
            sums = self.sums_of(BytesSource(data))
            self._keep(digest, sums)
        return open_proved(BytesSource(data), sums)

    def accept(self, data: bytes) -> FileSums:
        """These bytes need no trial: this process has written them, or they have the checksums that were kept of them.
        Raises `Unprovable` if they do not even end as a Parquet file."""
        sums = whole_sums(data)
        self._keep(hashlib.sha256(data).digest(), sums)
        return sums

    def _keep(self, digest: bytes, sums: FileSums) -> None:
        with self._mutex:
            self._proved[digest] = sums
            if len(self._proved) > _PROVED_MAX:
                self._proved.popitem(last=False)

    def close(self) -> None:
        with self._mutex:
            self._stop()

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _try(self, source: Source, footer_start: int) -> FileSums:
        if self._child is None:
            self._child = _Child()
        child = self._child
        footer = source.get(footer_start, source.size_bytes - footer_start)
        laid_out = child.ask(FOOTER, footer_start, footer)
        starts, end = laid_out["starts"], laid_out["end"]
        groups = []
        for start, following in zip(starts, [*starts[1:], end], strict=True):
            piece = source.get(start, following - start)
            child.ask(PIECE, start, piece)
            groups.append(sum_of(piece))
        between = sum_of(source.get(end, footer_start - end))  # indexes of pages, which Arrow is not asked for
        return FileSums(end, sum_of(footer, between), tuple(groups))


def _bounds(group: Any) -> dict[str, tuple[int, int]]:
    found = {}
    for index in range(group.num_columns):
        column = group.column(index)
        statistics = column.statistics if column.is_stats_set else None
        if statistics is not None and statistics.has_min_max and statistics.null_count == 0:
            found[column.path_in_schema] = statistics.min_raw, statistics.max_raw
    return found


def whole_sums(data: bytes) -> FileSums:
    """Return the checksums of a file in memory that is read as a whole: one for all row groups. Raises `Unprovable`."""
    source = BytesSource(data)
    start = _footer_start(source)
    return FileSums(start, sum_of(source.get(start, len(data) - start)), (sum_of(source.get(0, start)),))


def _footer_start(source: Source) -> int:
    size = source.size_bytes
    trailer = bytes(source.get(max(0, size - _TRAILER_BYTES), _TRAILER_BYTES))
    if len(trailer) < _TRAILER_BYTES or trailer[4:] != b"PAR1":
        raise Unprovable(f"expected a Parquet file, found {size} bytes that do not end as one")
    start = size - _TRAILER_BYTES - int.from_bytes(trailer[:4], "little")
    if start < 4:
        raise Unprovable(f"expected a Parquet file, found a footer longer than the file, {size} bytes")
    return start


class _Child:
    """The process and its requests, one at a time."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bus.storage_delta.files.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is not for it
            )
        except OSError as error:
            raise StorageFault(f"no process to try a file in: {error}") from error

    def ask(self, kind: bytes, start: int, data: Any) -> dict[str, Any]:
        """Raises `Unprovable` if it cannot be read, `_Ended`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(HEAD.pack(kind, start, len(data)))
            self._process.stdin.write(data)
            self._process.stdin.flush()
            answered = json.loads(self._read_line())
        except (OSError, ValueError):
            raise self._ended() from None
        if "error" in answered:
            raise Unprovable(answered["error"])
        return cast(dict[str, Any], answered)

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        fd, found, end_s = self._process.stdout.fileno(), b"", time.monotonic() + _ANSWER_S
        while not found.endswith(b"\n"):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                self._process.kill()
                raise OSError("no answer")
            more = os.read(fd, 1 << 16)
            if not more:
                raise OSError("no answer")
            found += more
        return found

    def _ended(self) -> _Ended:
        """Return the error. Only what a file does to its reader counts as a crash: the process may end for other
        reasons, too."""
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return _Ended("no answer")
        crashes = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
        return _Ended(signal.Signals(-code).name if -code in crashes else None)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # this is a child of a fork, and the process belongs to the parent
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


TRIALS = Trials()
atexit.register(TRIALS.close)


class UnreadableFile(ValueError):
    """The file is no Parquet file that can be decoded."""


def open_data_file(store: ObjectStore, folder: str, path: str, sums: str | None = None) -> ProvedFile:
    """Open it by the checksums of its entry in the log, if it has these bytes; else every page of it is decoded once,
    where a crash costs nothing. Raises `UnreadableFile`, `StorageFault`."""
    key = f"{folder}/{path}"
    try:
        source = StoreFile(store, key, store.size(key))
        recorded = None if sums is None else decode_sums(sums)
        return open_proved(
            source, recorded if recorded is not None and has_sums(source, recorded) else TRIALS.sums_of(source)
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFile(f"expected a Parquet file, found: {first_line(error)}") from None


def read_records(
    store: ObjectStore, folder: str, path: str, *, from_offset: int = 0, to_offset: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a data file with offsets from `from_offset` up to, but not including, `to_offset`; all columns.

    Raises `StorageDamaged` for a file that cannot be read.
    """
    try:
        file = open_data_file(store, folder, path)
        for group in range(file.num_row_groups):
            for batch in file.read_row_group(group).to_batches():
                offsets = batch.column(batch.schema.get_field_index("offset")).to_numpy()
                wanted = offsets >= from_offset
                if to_offset is not None:
                    wanted &= offsets < to_offset
                if np.any(wanted):
                    yield batch.filter(pa.array(wanted))
    except (UnreadableFile, KeyNotFound, pa.ArrowException, OSError, ValueError) as error:
        raise StorageDamaged(f"{folder}/{path}: {first_line(error)}") from None
