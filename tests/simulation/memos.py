"""Computes once what a simulated world would compute again and again from the same bytes: what a data file, a
checkpoint or a version says. Many lives of brokers and every judge read the same files, which never change.

Each read of the store is made, and may fail, as before; only what follows from its bytes is remembered. And a file that
nothing proves is tried in this process: what a trial does to its own process no simulation shows.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from bus.storage_delta.files import proved_parquet, trials
from bus.storage_delta.files.proved_parquet import BytesSource, Source
from bus.storage_delta.files.trial import FOOTER, Trial, answer
from bus.storage_delta.log import actions, commit, reading, recovery, writer

_FILES_MAX = 4_000

open_whole, with_plain_types, decode_commit = (
    proved_parquet._open_whole,
    proved_parquet.with_plain_types,
    actions.decode_commit,
)


class _ReadOnce:
    """A `pq.ParquetFile` that is in memory, as far as one is used."""

    def __init__(self, data: bytes) -> None:
        self._file: Any = open_whole(BytesSource(data))
        self._tables: dict[tuple[int, tuple[str, ...] | None], _Plain] = {}
        self.metadata = self._file.metadata

    def read_row_group(self, index: int, columns: Sequence[str] | None = None, *, use_threads: bool) -> _Plain:
        key = index, None if columns is None else tuple(columns)
        if key not in self._tables:
            table = self._file.read_row_group(index, columns=columns, use_threads=use_threads)
            self._tables[key] = _Plain(with_plain_types(table))
        return self._tables[key]


class _Plain:
    """A table whose types are plain."""

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        self.table = table


def _plain(table: pa.Table | _Plain) -> pa.Table:
    return table.table if isinstance(table, _Plain) else with_plain_types(table)


class _OwnChild:
    """A `trials._Child`, without a process."""

    def __init__(self) -> None:
        self._trial = Trial()

    def ask(self, kind: bytes, start: int, data: Any) -> dict[str, Any]:
        if kind == FOOTER:
            self._trial = Trial()
        found = answer(self._trial, kind, start, bytes(data))
        if "error" in found:
            raise trials.Unprovable(found["error"])
        return found

    def close(self) -> None: ...


@functools.lru_cache(_FILES_MAX)
def read_rows(data: bytes, *columns: str) -> Sequence[tuple[Any, ...]]:
    """The rows of a data file, for judges: by plain Parquet, not by the code under test."""
    found = pq.ParquetFile(io.BytesIO(data)).read(list(columns), use_threads=False)
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    read_once = functools.lru_cache(_FILES_MAX)(_ReadOnce)

    def open_once(source: Source, metadata: Any = None) -> Any:
        return read_once(bytes(source.data)) if isinstance(source, BytesSource) else open_whole(source, metadata)

    decode_once = functools.lru_cache(_FILES_MAX)(decode_commit)
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(proved_parquet, "_open_whole", open_once))
        patches.enter_context(mock.patch.object(proved_parquet, "with_plain_types", _plain))
        patches.enter_context(mock.patch.object(trials, "_Child", _OwnChild))
        for module in (commit, reading, recovery, writer):
            patches.enter_context(mock.patch.object(module, "decode_commit", decode_once))
        try:
            yield
        finally:
            trials.TRIALS.close()  # else the next one to be asked is not the one that it would start
