"""Rows that are in data files already, rewritten as other files: what rolling and key compaction have in common. And
files that are prepared to take the place of others, whoever wrote them (`PreparedSwap`).

Guards two promises: what the entry of a new file says is true of its rows, and of files that are written for nothing
none stays. Rows are gathered to row groups of a size that a fetch likes; a few of these are in memory at a time,
whatever the size of the files. Commits nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from bus.errors import StorageDamaged
from bus.ports import Pace, PreparedFiles, SwapKind
from bus.storage_delta.files.data_files import ROW_GROUP_BYTES, PartSink, open_parquet_writer
from bus.storage_delta.files.live_file import Ages, LiveFile, data_file_name, encode_ages
from bus.storage_delta.files.proved_parquet import encode_sums, sum_of, sums_of_pieces
from bus.storage_delta.files.row_statistics import RowStatistics
from bus.storage_delta.log.writer import FilesUnderWay
from bus.storage_delta.stores.store import ObjectStore


@dataclass(frozen=True, slots=True)
class PreparedSwap(PreparedFiles):
    """Files prepared to take the place of others, until the writer commits them or they are given up. `adds`, each with
    its statistics, follow each other and stand for the offsets of what they replace."""

    adds: Sequence[tuple[LiveFile, str]]
    operation: str  # the name of the operation in the version
    compacted_to: int | None  # offsets below it may be missing from then on; None: no row is
    txn_id: str
    # How often the table had read its log again when the files were begun; a swap is void once it does so again.
    reloads: int = 0
    is_adopted: bool = False  # another program wrote the files


def prepared_swap(
    files: Sequence[LiveFile], adds: Sequence[tuple[LiveFile, str]], kind: SwapKind, *, txn_id: str
) -> PreparedSwap:
    """`adds`, which are in the store, in place of `files`."""
    is_same = kind is SwapKind.SAME_ROWS
    return PreparedSwap(
        removes=[file.path for file in files],
        added_count=len(adds),
        rewritten_bytes=sum(file.size_bytes for file, _ in adds),
        adds=adds,
        operation="OPTIMIZE" if is_same else "COMPACT",
        compacted_to=None if is_same else files[-1].next_offset,
        txn_id=txn_id,
    )


def level_above(files: Iterable[LiveFile]) -> int:
    """The level of files that are made of the rows of `files`."""
    return 1 + max(file.level for file in files)


def with_history(file: LiveFile, ages: Ages, *, level: int) -> LiveFile:
    """`file` with what its rows bring along from those that it replaces; `ages` are of all of these."""
    return replace(
        file, level=level, ages=encode_ages(ages, base_offset=file.base_offset, next_offset=file.next_offset)
    )


# Bounds row groups whose rows have next to no bytes.
_ROW_GROUP_ROWS_MAX = 1 << 18
# Encoding takes each chunk of a table for itself, which costs more than copying many small ones.
_CHUNKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A description of the files to be written. They stand for offsets `base_offset` up to, but not including,
    `next_offset`."""

    base_offset: int
    next_offset: int
    ages: Ages
    level: int
    compression: str
    file_bytes_max: int  # about: the last row group of a file may go beyond
    txn_id: str

    @classmethod
    def of(
        cls, files: Sequence[LiveFile], *, log_start: int, ages: Ages, compression: str, file_bytes_max: int
    ) -> Rewriting:
        """Begin a rewriting of `files`, which follow each other; `ages` are those of their rows. What lies below
        `log_start` was deleted, and is not written again, unless nothing might be left of a file."""
        first = files[0]
        is_any_left = len(files) > 1 or first.record_count > log_start - first.base_offset
        return cls(
            base_offset=max(first.base_offset, log_start) if is_any_left else first.base_offset,
            next_offset=files[-1].next_offset,
            ages=ages,
            level=level_above(files),
            compression=compression,
            file_bytes_max=file_bytes_max,
            txn_id=str(uuid.uuid4()),
        )


def is_from(rows: pa.Table, offset: int) -> Any:
    """Return for each row whether it lies at or behind `offset`."""
    return rows.column("offset").to_numpy() >= offset


class FileRewriter:
    """Writes into the table in `folder`."""

    def __init__(self, store: ObjectStore, folder: str, schema: pa.Schema, under_way: FilesUnderWay) -> None:
        self._store = store
        self._folder = folder
        self._schema = schema
        self._under_way = under_way

    def write(self, rows: Iterable[pa.Table], rewriting: Rewriting, pace: Pace) -> list[tuple[LiveFile, str]]:
        """`rows`, at least one, in offset order and with all columns, as files in the store, each with its statistics.
        Raises what `rows` raises, and `StorageFault`; then nothing stays written."""
        written: list[tuple[LiveFile, str]] = []
        parts = iter(rows)
        base_offset, following = rewriting.base_offset, next(parts, None)
        try:
            while following is not None:
                file = _RewrittenFile(self._folder, data_file_name(base_offset, rewriting.txn_id), self._schema)
                self._write_file(file, file.encode(chain([following], parts), rewriting, pace))
                following = next(parts, None)
                next_offset = rewriting.next_offset if following is None else file.statistics.next_offset
                written.append(file.describe(rewriting, base_offset=base_offset, next_offset=next_offset))
                base_offset = next_offset
        except BaseException:
            self.discard(written)
            raise
        if not written:
            raise StorageDamaged(f"{self._folder}: expected rows from offset {base_offset} on, found none")
        return written

    def _write_file(self, file: _RewrittenFile, contents: Iterator[bytes]) -> None:
        self._under_way.add(file.name)
        try:
            self._store.write_parts(f"{self._folder}/{file.name}", contents)
        except BaseException:
            self._under_way.settle([file.name])
            raise

    def discard(self, written: Iterable[tuple[LiveFile, str]]) -> None:
        self._under_way.discard([file.path for file, _ in written])


class _RewrittenFile:
    def __init__(self, folder: str, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.statistics = RowStatistics(f"{folder}/{name}")
        self._schema = schema
        self._size_bytes = 0
        self._pieces: list[tuple[int, int]] = []  # (size in bytes, checksum) of each row group
        self._sums = ""

    def encode(self, rows: Iterable[pa.Table], rewriting: Rewriting, pace: Pace) -> Iterator[bytes]:
        """The file's bytes, a part for each row group. Takes no more rows than it has room for."""
        sink = PartSink()
        writer = open_parquet_writer(
            pa.PythonFile(sink, mode="w"),
            self._schema,
            compression=rewriting.compression,
            dictionaries=_dictionaries(self._schema),
            is_rewritten=True,
        )
        for gathered in self._gather(rows, rewriting.file_bytes_max):
            self.statistics.add(gathered)
            for group in _cut(gathered):
                writer.write_table(group, row_group_size=group.num_rows)
                part = sink.take()
                self._pieces.append((len(part), sum_of(part)))
                yield self._paced(part, pace)
        writer.close()
        part = sink.take()
        self._sums = encode_sums(sums_of_pieces(self._pieces, sum_of(part)))
        yield self._paced(part, pace)

    def _paced(self, part: bytes, pace: Pace) -> bytes:
        self._size_bytes += len(part)
        pace(len(part))
        return part

    def _gather(self, rows: Iterable[pa.Table], file_bytes_max: int) -> Iterator[pa.Table]:
        """Enough of them for a row group or more, as one table."""
        waiting: list[pa.Table] = []
        waiting_bytes = waiting_rows = 0
        for table in rows:
            waiting.append(table)
            waiting_bytes += table.get_total_buffer_size()
            waiting_rows += table.num_rows
            is_full = self._size_bytes + waiting_bytes >= file_bytes_max
            if is_full or waiting_bytes >= ROW_GROUP_BYTES or waiting_rows >= _ROW_GROUP_ROWS_MAX:
                yield _join(waiting)
                waiting, waiting_bytes, waiting_rows = [], 0, 0
            if is_full:
                return
        if waiting:
            yield _join(waiting)

    def describe(self, rewriting: Rewriting, *, base_offset: int, next_offset: int) -> tuple[LiveFile, str]:
        file, stats = self.statistics.describe(
            self.name, self._size_bytes, base_offset=base_offset, next_offset=next_offset
        )
        file = replace(file, sums=self._sums)
        return with_history(file, rewriting.ages, level=rewriting.level), stats


def _join(tables: Sequence[pa.Table]) -> pa.Table:
    joined = pa.concat_tables(tables)
    return joined.combine_chunks() if len(tables) > _CHUNKS_MAX else joined


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Cut the rows into pieces of about a row group's size: files of other engines come in larger ones."""
    count = max(1, round(rows.nbytes / ROW_GROUP_BYTES), round(rows.num_rows / _ROW_GROUP_ROWS_MAX))
    row_count = -(-rows.num_rows // count)
    for first in range(0, rows.num_rows, row_count):
        yield rows.slice(first, row_count)


def _dictionaries(schema: pa.Schema) -> Sequence[str]:
    """Texts of the bus's own records are names, which repeat."""
    value_type = schema.field("value").type
    texts = (
        [f"value.{field.name}" for field in value_type if field.type == pa.string()]
        if pa.types.is_struct(value_type)
        else []
    )
    return ["timestamp_type", "leader_epoch", *texts]
