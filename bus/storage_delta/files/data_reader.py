"""Data files of one partition as batches of the log, row group by row group, without the columns that say nothing.

Guards one promise: a reader gets exactly the rows that the log's entry promises. A file that is not there, has another
size, another checksum or cannot be decoded is `RecordsDamaged`, never an empty answer; Arrow sees proved bytes only
(proved_parquet.py). What was decoded last stays in a bounded cache
that all partitions share, so that a reader in small steps decodes each row group once. Never writes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bus.errors import RecordsDamaged, count_of
from bus.model import LogBatch, ProducerStamp, TimestampType
from bus.ports import FoundOffset
from bus.records.arrow_batches import dense_sequences
from bus.records.log_schema import LOG_COLUMNS
from bus.storage_delta.files.data_files import find_in_batch, merge_batches, position_of, slice_batch
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.proved_parquet import (
    BytesSource,
    FileSums,
    ProvedFile,
    ProvedFooter,
    Source,
    StoreFile,
    check_every_byte,
    decode_sums,
    open_proved,
)
from bus.storage_delta.files.trials import TRIALS, Trials
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore

_DECODED_BYTES_MAX = 64 << 20
_COMMITTED_BYTES_MAX = 16 << 20
_FOOTERS_MAX = 512
_SUMS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Offsets from `base_offset` up to `next_offset` are here, if they are anywhere. `columns` are worth decoding."""

    index: int
    base_offset: int
    next_offset: int
    columns: tuple[str, ...]
    constants: dict[str, int]  # timestamp in microseconds


@dataclass(frozen=True, slots=True)
class Footer:
    proved: ProvedFooter
    row_groups: tuple[RowGroup, ...]


class ReadCache:
    """Footers and decoded row groups of the data files of all partitions, and the batches of small files that were just
    committed; drops the least recently used beyond fixed bounds. Data files never change, so no entry becomes stale.
    Safe for threads."""

    def __init__(
        self,
        *,
        decoded_bytes_max: int = _DECODED_BYTES_MAX,
        committed_bytes_max: int = _COMMITTED_BYTES_MAX,
        footers_max: int = _FOOTERS_MAX,
    ) -> None:
        self._decoded_bytes_max = decoded_bytes_max
        self._committed_bytes_max = committed_bytes_max
        self._footers_max = footers_max
        self._decoded: OrderedDict[tuple[str, int], LogBatch] = OrderedDict()
        self._decoded_bytes = 0
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._sums: OrderedDict[str, FileSums] = OrderedDict()
        self._committed: OrderedDict[str, Sequence[LogBatch]] = OrderedDict()
        self._committed_bytes = 0
        self._mutex = threading.Lock()

    def footer(self, key: str) -> Footer | None:
        with self._mutex:
            if key in self._footers:
                self._footers.move_to_end(key)
            return self._footers.get(key)

    def add_footer(self, key: str, footer: Footer) -> None:
        with self._mutex:
            self._footers[key] = footer
            if len(self._footers) > self._footers_max:
                self._footers.popitem(last=False)

    def sums(self, key: str) -> FileSums | None:
        """The checksums that `add_sums` remembered for a file whose entry in the log has none."""
        with self._mutex:
            if key in self._sums:
                self._sums.move_to_end(key)
            return self._sums.get(key)

    def add_sums(self, key: str, sums: FileSums) -> None:
        with self._mutex:
            self._sums[key] = sums
            if len(self._sums) > _SUMS_MAX:
                self._sums.popitem(last=False)

    def decoded(self, key: str, group: int) -> LogBatch | None:
        with self._mutex:
            if (key, group) in self._decoded:
                self._decoded.move_to_end((key, group))
            return self._decoded.get((key, group))

    def add_decoded(self, key: str, group: int, batch: LogBatch) -> None:
        # One batch may not push out everything else.
        if batch.size_bytes > self._decoded_bytes_max // 4:
            return
        with self._mutex:
            if (key, group) not in self._decoded:
                self._decoded[key, group] = batch
                self._decoded_bytes += batch.size_bytes
            while self._decoded_bytes > self._decoded_bytes_max:
                _, dropped = self._decoded.popitem(last=False)
                self._decoded_bytes -= dropped.size_bytes

    def add_committed(self, key: str, batches: Sequence[LogBatch]) -> None:
        """Remember the batches of which the new data file `key` was made, until somebody takes them."""
        with self._mutex:
            self._committed[key] = batches
            self._committed_bytes += _size_of(batches)
            while self._committed_bytes > self._committed_bytes_max:
                _, dropped = self._committed.popitem(last=False)
                self._committed_bytes -= _size_of(dropped)

    def take_committed(self, key: str) -> Sequence[LogBatch] | None:
        with self._mutex:
            batches = self._committed.pop(key, None)
            self._committed_bytes -= _size_of(batches or ())
            return batches


def _size_of(batches: Sequence[LogBatch]) -> int:
    return sum(batch.size_bytes for batch in batches)


# A file below this is read at once, footer and all: one call costs less than the bytes that it saves.
_SMALL_FILE_BYTES = 1 << 20

Statistics = Mapping[str, Any]  # statistics of a row group by column: pq.Statistics


class DataReader:
    """Reads the data files of the table in `folder`. Any number of threads at once."""

    def __init__(
        self, store: ObjectStore, folder: str, schema: pa.Schema, cache: ReadCache, trials: Trials = TRIALS
    ) -> None:
        self._store = store
        self._folder = folder
        self._schema = schema
        self._cache = cache
        self._trials = trials

    def batches_from(self, file: LiveFile, offset: int) -> Iterator[LogBatch]:
        """The file's row groups that may hold `offset` or a later one, in offset order; the first may begin below."""
        key, footer = self._open_footer(file)
        if not file.is_ordered:
            yield self._decode_unordered(file, footer)
            return
        for group in footer.row_groups:
            if group.next_offset > offset:
                cached = self._cache.decoded(key, group.index)
                if cached is None:
                    cached = self._decode(file, footer, group)
                    self._cache.add_decoded(key, group.index, cached)
                yield cached

    def find_timestamp(self, file: LiveFile, timestamp_ms: int, *, offset: int = 0) -> FoundOffset | None:
        """The first record of the file, from `offset` on, whose timestamp is at or after `timestamp_ms`."""
        for batch in self._parts_from(file, offset):
            if batch.timestamp_max_ms >= timestamp_ms:
                return find_in_batch(batch, timestamp_ms)
        return None

    def timestamp_max_ms_from(self, file: LiveFile, offset: int) -> int | None:
        """The largest timestamp of the file's records from `offset` on; None if there is none."""
        return max((batch.timestamp_max_ms for batch in self._parts_from(file, offset)), default=None)

    def _parts_from(self, file: LiveFile, offset: int) -> Iterator[LogBatch]:
        """Yield what `batches_from` yields, with the first batch cut to begin at `offset`."""
        for batch in self.batches_from(file, offset):
            start = position_of(batch, offset)
            if start < batch.record_count:
                yield slice_batch(batch, start=start, stop=batch.record_count)

    def read_columns(
        self, file: LiveFile, names: Sequence[str], may_hold: Callable[[Statistics], bool]
    ) -> Iterator[pa.Table]:
        """These columns of the row groups whose statistics `may_hold` lets pass, the last group first; the rows as
        they lie in the file. Nothing, if the file lacks one of them: then all its values are null."""
        _, footer = self._open_footer(file)
        metadata = footer.proved.metadata
        for index in reversed(range(metadata.num_row_groups)):
            statistics = _statistics_by_column(metadata.row_group(index))
            if not may_hold(statistics):
                continue
            with self._damage_named(file):
                parquet = self._open(file, footer)
                if not set(names) <= set(parquet.schema_arrow.names):
                    return
                table = parquet.read_row_group(index, names)
                table = table.cast(pa.schema([self._schema.field(name).with_nullable(True) for name in names]))
            yield table

    def scan(self, file: LiveFile, names: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of all rows, in offset order, a part of the file at a time: for a reader of each file once,
        so it passes by the cache. Of the log's types; a column that the file lacks is null."""
        is_whole = names == self._schema.names
        schema = self._schema if is_whole else pa.schema([self._schema.field(name) for name in names])
        with self._damage_named(file):
            parquet = self._open_checked(file)
            columns = None if is_whole else [name for name in names if name in parquet.schema_arrow.names]
            groups = parquet.num_row_groups
        if not file.is_ordered:
            with self._damage_named(file):
                rows = _conform(parquet.read().sort_by("offset"), self._schema).select(names)
            yield rows
        elif file.size_bytes <= _SMALL_FILE_BYTES:
            with self._damage_named(file):
                rows = _conform(parquet.read(columns), schema)
                _check_span(rows, file)
            yield rows
        else:
            for group in range(groups):
                with self._damage_named(file):
                    rows = _conform(parquet.read_row_group(group, columns), schema)
                    _check_span(rows, file)
                if rows.num_rows:
                    yield rows

    def scan_once(self, files: Iterable[LiveFile]) -> Iterator[tuple[int, pa.Table]]:
        """All rows of files that follow each other, in offset order, and how many bytes of the files they took. Small
        files that were just committed are joined from memory; their bytes are only compared with their checksums."""
        waiting: list[LogBatch] = []
        waiting_bytes = 0
        for file in files:
            batches = self._take_committed(file)
            if waiting and (batches is None or waiting_bytes + file.size_bytes > _SMALL_FILE_BYTES):
                yield waiting_bytes, self._join(waiting)
                waiting, waiting_bytes = [], 0
            if batches is None:
                for rows in self.scan(file, self._schema.names):
                    yield file.size_bytes * rows.num_rows // file.record_count, rows
            else:
                waiting += batches
                waiting_bytes += file.size_bytes
        if waiting:
            yield waiting_bytes, self._join(waiting)

    def _take_committed(self, file: LiveFile) -> Sequence[LogBatch] | None:
        """The batches of a file that are in memory, once; then the file has the bytes that were made of them."""
        batches = self._cache.take_committed(f"{self._folder}/{file.path}")
        if batches is not None:
            with self._damage_named(file):
                self._check_size(file)
                check_every_byte(self._source(file.path, file.size_bytes), decode_sums(file.sums))
        return batches

    def _join(self, batches: Sequence[LogBatch]) -> pa.Table:
        return pa.Table.from_batches([merge_batches(batches, self._schema)])

    def read_file(self, file: LiveFile, names: Sequence[str]) -> pa.Table:
        """These columns of all rows, of the types and in the order that the file has; all of its bytes are proved."""
        with self._damage_named(file):
            return self._open_checked(file).read(names)

    def read_unnamed(self, path: str, names: Sequence[str]) -> pa.Table:
        """The same of a file that the log does not name now."""
        try:
            return self.open_unnamed(path)[0].read(names)
        except (pa.ArrowException, OSError, ValueError, KeyNotFound) as error:
            raise RecordsDamaged(f"data file {self._folder}/{path}: {error}") from error

    def open_unnamed(self, path: str) -> tuple[ProvedFile, int]:
        """A file of the table's folder that no version names, and its size in bytes; every page of it was decoded once.
        Raises what Arrow raises, `ValueError`, and `StorageFault`."""
        size_bytes = self._store.size(f"{self._folder}/{path}")
        source = self._source(path, size_bytes)
        return open_proved(source, self._trials.sums_of(source)), size_bytes

    def open_source(self, path: str) -> tuple[Source, Trials]:
        """The bytes of a file that cannot be read as a whole, and who can tell which parts of it can. Raises
        `KeyNotFound`."""
        return self._source(path, self._store.size(f"{self._folder}/{path}")), self._trials

    def check_foreign(self, file_path: str, size_bytes: int) -> LiveFile:
        """The entry of a file that another engine wrote, from its rows. Raises `StorageDamaged` if offsets repeat."""
        parts = []
        source = LiveFile(file_path, size_bytes, 0, 1, 1, 0, 0, 0)
        with self._damage_named(source):
            parquet = self._prove(source, self._source(file_path, size_bytes))
            for name in ("offset", "timestamp", "leader_epoch"):
                column = parquet.read([name]).column(name).cast(self._schema.field(name).type)
                if column.null_count:
                    raise ValueError(f"expected no null in column {name}, found {column.null_count}")
                parts.append((column.cast(pa.int64()) if name != "leader_epoch" else column).to_numpy())
            offsets, micros, epochs = parts
            if not len(offsets):
                raise ValueError("expected at least one row, found none")
            if len(np.unique(offsets)) != len(offsets):
                raise ValueError("expected every offset once, found some repeated")
        return LiveFile(
            path=file_path,
            size_bytes=size_bytes,
            base_offset=int(offsets.min()),
            next_offset=int(offsets.max()) + 1,
            record_count=len(offsets),
            timestamp_min_ms=int(micros.min()) // 1000,
            timestamp_max_ms=int(micros.max()) // 1000,
            leader_epoch=int(epochs.max()),
            is_ordered=bool(np.all(offsets[1:] > offsets[:-1])),
        )

    def _open_footer(self, file: LiveFile) -> tuple[str, Footer]:
        key = f"{self._folder}/{file.path}"
        footer = self._cache.footer(key)
        if footer is None:
            with self._damage_named(file):
                parquet = self._open_checked(file)
                footer = Footer(parquet.footer, tuple(_plan_row_groups(file, parquet.metadata)))
            self._cache.add_footer(key, footer)
        return key, footer

    def _decode(self, file: LiveFile, footer: Footer, group: RowGroup) -> LogBatch:
        with self._damage_named(file, group):
            table = self._open(file, footer).read_row_group(group.index, group.columns)
            return self._to_batch(table, group.base_offset, group.next_offset, group.constants, file)

    def _decode_unordered(self, file: LiveFile, footer: Footer) -> LogBatch:
        with self._damage_named(file):
            table = self._open(file, footer).read().sort_by("offset")
            if file.is_dense:
                table = table.drop_columns(["offset"])
            return self._to_batch(table, file.base_offset, file.next_offset, {}, file)

    def _open(self, file: LiveFile, footer: Footer) -> ProvedFile:
        """Open the file with a footer that was checked before."""
        return ProvedFile(self._source(file.path, file.size_bytes), footer.proved)

    def _open_checked(self, file: LiveFile) -> ProvedFile:
        """If it has the size and the number of rows that its entry says."""
        self._check_size(file)
        parquet = self._prove(file, self._source(file.path, file.size_bytes))
        if parquet.metadata.num_rows != file.record_count:
            raise ValueError(f"expected {count_of(file.record_count, 'row')}, found {parquet.metadata.num_rows}")
        if not file.sums and file.is_ours:
            self._check_names(parquet.schema_arrow.names)
        return parquet

    def _check_size(self, file: LiveFile) -> None:
        found = self._store.size(f"{self._folder}/{file.path}")
        if found != file.size_bytes:
            raise ValueError(f"found {found} bytes")

    def _check_names(self, names: Sequence[str]) -> None:
        """The footer of a file without checksums may have rotted in a name: then a column would pass for absent."""
        alien = [name for name in names if name not in self._schema.names]
        if alien:
            raise ValueError(f"expected the columns {', '.join(self._schema.names)}, found {alien[0]!r}")

    def _prove(self, file: LiveFile, source: Source) -> ProvedFile:
        """Open the file with the checksums of its entry. An entry without checksums gets those of a trial, remembered
        as long as the cache has room."""
        if file.sums:
            return open_proved(source, decode_sums(file.sums))
        key = f"{self._folder}/{file.path}"
        sums = self._cache.sums(key)
        if sums is None:
            sums = self._trials.sums_of(source)
            self._cache.add_sums(key, sums)
        return open_proved(source, sums)

    def _source(self, path: str, size_bytes: int) -> Source:
        key = f"{self._folder}/{path}"
        if size_bytes <= _SMALL_FILE_BYTES:
            return BytesSource(self._store.get_range(key, 0, size_bytes))
        return StoreFile(self._store, key, size_bytes)

    def _to_batch(
        self, table: pa.Table, base_offset: int, next_offset: int, constants: dict[str, int], file: LiveFile
    ) -> LogBatch:
        columns: dict[str, pa.Array] = {}
        for name in table.column_names:
            column = table.column(name)
            array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            expected = self._schema.field(name).type
            if array.null_count < len(array) or name == "value":
                columns[name] = array if array.type == expected else array.cast(expected)
        producer = _take_stamp(columns, constants, table.num_rows)
        timestamp_us = constants.get("timestamp")
        if timestamp_us is None:
            micros = columns["timestamp"].view(pa.int64()).to_numpy()
            timestamp_us = int(micros.max())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return LogBatch(
            base_offset=base_offset,
            next_offset=next_offset,
            record_count=batch.num_rows,
            size_bytes=batch.nbytes,
            leader_epoch=constants.get("leader_epoch", file.leader_epoch),
            timestamp_type=TimestampType(constants.get("timestamp_type", 0)),
            timestamp_ms=None if "timestamp" in columns else timestamp_us // 1000,
            timestamp_max_ms=timestamp_us // 1000,
            columns=batch,
            producer=producer,
        )

    def _damage_named(self, file: LiveFile, group: RowGroup | None = None) -> _DamageNamed:
        expected = (
            f"data file {self._folder}/{file.path}: expected {file.size_bytes} bytes "
            f"with offsets {file.base_offset} to {file.next_offset - 1}"
        )
        if group is not None:
            expected += f", of which {group.base_offset} to {group.next_offset - 1} cannot be read"
        return _DamageNamed(expected)


@dataclass(frozen=True, slots=True)
class _DamageNamed:
    """Translates the errors that Arrow raises for a bad file to `RecordsDamaged`. Faults of the store itself pass."""

    expectation: str

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyNotFound):
            raise RecordsDamaged(f"{self.expectation}, found no such file") from error
        if isinstance(error, (pa.ArrowException, OSError, ValueError, KeyError, OverflowError)):
            raise RecordsDamaged(f"{self.expectation}: {error}") from error


def _check_span(rows: pa.Table, file: LiveFile) -> None:
    """Check that `rows`, which are in offset order, lie within the offsets of `file`."""
    if "offset" in rows.column_names and rows.num_rows:
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if not file.base_offset <= first <= last < file.next_offset:
            raise ValueError(f"found offsets {first} to {last}")


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    return pa.Table.from_arrays(
        [
            table.column(field.name).cast(field.type)
            if field.name in table.column_names
            else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
            for field in schema
        ],
        schema=schema,
    )


def _plan_row_groups(file: LiveFile, metadata: Any) -> Iterator[RowGroup]:
    """Yield, for each row group, its offsets and the columns worth reading, taken from the file's own statistics."""
    begins = file.base_offset
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        statistics = _statistics_by_column(group)
        offsets = statistics.get("offset")
        if file.is_dense:
            following = begins + group.num_rows
        elif offsets is not None and offsets.has_min_max:
            following = offsets.max_raw + 1
        else:
            following = file.next_offset
        if index == metadata.num_row_groups - 1:
            following = file.next_offset
        constants = _constants(statistics, group.num_rows)
        skipped = {*constants, *_all_null(statistics, group.num_rows)}
        if file.is_dense:
            skipped.add("offset")
        present = {group.column(column).path_in_schema.split(".", 1)[0] for column in range(group.num_columns)}
        columns = tuple(name for name in LOG_COLUMNS if name in present and name not in skipped)
        yield RowGroup(index, begins, following, columns, constants)
        begins = following


def _take_stamp(columns: dict[str, pa.Array], constants: dict[str, int], count: int) -> ProducerStamp | None:
    """The stamp of rows that one producer sent under one epoch. Then `columns` lose their sequences, if these are
    dense: by looking at each, since a minimum and a maximum tell nothing of the order, nor of sequences that wrap.
    If they are not, the column stays and beats the stamp's."""
    if "producer_id" not in constants:
        return None
    producer_id, producer_epoch = constants["producer_id"], constants["producer_epoch"]
    if "sequence" in constants:
        return ProducerStamp(producer_id, producer_epoch, constants["sequence"])
    sequences = columns["sequence"].to_numpy()
    stamp = ProducerStamp(producer_id, producer_epoch, int(sequences[0]))
    if np.array_equal(sequences, dense_sequences(stamp.base_sequence, count)):
        del columns["sequence"]
    return stamp


def _statistics_by_column(group: Any) -> dict[str, Any]:
    statistics = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.is_stats_set:
            statistics[column.path_in_schema] = column.statistics
    return statistics


def _constants(statistics: dict[str, Any], rows: int) -> dict[str, int]:
    """Return the columns that have one value in all rows, with that value. The producer's columns count only all
    together."""
    constants = {
        name: value
        for name in ("timestamp", "timestamp_type", "leader_epoch", "producer_id", "producer_epoch")
        if (value := _constant(statistics.get(name))) is not None
    }
    if constants.get("timestamp", 0) % 1000:
        del constants["timestamp"]  # a batch's one timestamp has milliseconds
    if not {"producer_id", "producer_epoch"} <= constants.keys() or _has_nulls(statistics.get("sequence")):
        constants.pop("producer_id", None)
        constants.pop("producer_epoch", None)
    elif rows == 1 and (sequence := _constant(statistics["sequence"])) is not None:
        constants["sequence"] = sequence
    return constants


def _constant(found: Any) -> int | None:
    if found is None or not found.has_min_max or _has_nulls(found) or found.min_raw != found.max_raw:
        return None
    return found.min_raw if isinstance(found.min_raw, int) else None


def _has_nulls(found: Any) -> bool:
    """Also if it is not known."""
    return found is None or not found.has_null_count or found.null_count > 0


def _all_null(statistics: dict[str, Any], rows: int) -> Iterator[str]:
    for name in ("producer_id", "producer_epoch", "sequence"):
        found = statistics.get(name)
        if found is not None and found.has_null_count and found.null_count == rows:
            yield name
