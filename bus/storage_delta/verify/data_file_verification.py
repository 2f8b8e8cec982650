"""Is a data file what the log says about it? Size, columns, offsets, statistics, and the statistics inside it.

Guards the promises that readers prune by: a file or a row group that they skip holds nothing that they want. Works on
whole columns, one row group at a time, so a large file needs little memory. Prints and mends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.errors import count_of, first_line
from bus.model import TimestampType
from bus.records.log_schema import STATS_COLUMNS, TIMESTAMP_TYPE, delta_schema_string
from bus.storage_delta.files.proved_parquet import ProvedFile
from bus.storage_delta.files.trials import UnreadableFile, open_data_file
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.verify.producer_verification import PRODUCER_COLUMNS
from bus.storage_delta.verify.replay import AddedFile, parse_schema

_Finding = tuple[str, str, str]  # promise, expected, found
_NEVER_NULL = ("offset", "timestamp", "timestamp_type", "leader_epoch")
_TIME = re.compile(r"[+-]?\d+-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?")
_GROUP_STATS = ("offset", "timestamp", "producer_id", "sequence", "leader_epoch")


@dataclass(slots=True)
class DataFileCheck:
    """The contents of one file's columns, and the breaches in them."""

    breaches: list[_Finding] = field(default_factory=list)
    leader_epoch_max: int = -1
    row_count: int = 0
    minima: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, int] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)
    offsets: list[Any] = field(default_factory=list)  # one array a row group
    producers: list[pa.Table] = field(default_factory=list)  # a row group each: offset and the columns of the producer

    @property
    def producer_rows(self) -> pa.Table | None:
        """None if not all of them could be read."""
        rows = pa.concat_tables(self.producers) if self.producers else None
        return rows if rows is not None and rows.num_rows == self.row_count else None


def check_data_file(
    store: ObjectStore,
    folder: str,
    file: AddedFile,
    schema_string: str,
    *,
    epoch_min: int,
    is_read: bool,
    may_have_holes: bool = False,
) -> DataFileCheck:
    """Every breach of `file`; `epoch_min` is the largest leader epoch before it, and with `may_have_holes` key
    compaction may have taken records from it. Raises `KeyNotFound`."""
    check = DataFileCheck(leader_epoch_max=epoch_min)
    size = store.size(f"{folder}/{file.path}")
    if size != file.size_bytes:
        check.breaches.append(("sizes are exact", f"{file.size_bytes} bytes", str(size)))
        return check
    check.breaches += _check_entry(file, may_have_holes)
    if not is_read:
        return check
    try:
        parquet = open_data_file(store, folder, file.path, file.sums)
        strange = list(_check_columns(_schema_of(parquet), schema_string))
        if strange:  # nothing can be said of its rows
            check.breaches += strange
            return check
        for group in range(parquet.num_row_groups):
            _read_group(check, parquet, group)
    except (UnreadableFile, pa.ArrowException, OSError, ValueError) as error:
        check.breaches.append(("live files are readable", "a Parquet file that can be decoded", first_line(error)))
        return check
    if not check.row_count:
        check.breaches.append(("statistics are true", count_of(file.record_count, "record"), "none"))
    elif check.offsets:
        check.breaches += [
            *_check_offsets(check, file, may_have_holes),
            *_check_statistics(check, file),
            *_check_tag(check, file, may_have_holes),
        ]
    if not check.breaches:  # an earlier breach says more than a wrong checksum
        check.breaches += _check_sums(parquet, file)
    return check


def _check_entry(file: AddedFile, may_have_holes: bool) -> Iterator[_Finding]:
    """Yield the contradictions within the log's entry of a file."""
    count = file.last_row - file.first_row + 1
    if file.record_count > count or (file.record_count < count and not may_have_holes):
        records = f"{'at most ' if may_have_holes else ''}{count_of(count, 'record')}"
        yield (
            "offsets are dense",
            f"{records} for offsets {file.first_row} to {file.last_row}",
            str(file.record_count),
        )
    covered, rows = (file.base_offset, file.last_offset), (file.first_row, file.last_row)
    if covered != rows and not (may_have_holes and covered[0] <= rows[0] and rows[1] <= covered[1]):
        expected = f"rows {'within' if may_have_holes else 'of'} the offsets {covered[0]} to {covered[1]} of its tag"
        yield "statistics are true", expected, f"{rows[0]} to {rows[1]}"
    name = file.path.split("-", 1)[0]
    if file.tag is None:
        return
    if not name.isdigit() or name.lstrip("0") != str(file.base_offset).lstrip("0"):
        yield "files are named by their first offset", f"{file.base_offset:020d}", name


def _check_sums(parquet: ProvedFile, file: AddedFile) -> Iterator[_Finding]:
    """The bytes are those that were written, also where they can be decoded."""
    if file.sums is None:
        return
    found = parquet.footer.sums
    text = f"{found.tail_start} {''.join(f'{one:08x}' for one in (found.tail, *found.groups))}"
    if text != file.sums:
        yield "checksums are true", f"the checksums {_shortened(file.sums)} of its entry", _shortened(text)


def _shortened(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:64]}..."


def _schema_of(parquet: ProvedFile) -> pa.Schema:
    """Spark writes INT96, which says no time zone: it means UTC (Delta protocol, "Data Files")."""
    leaves = parquet.metadata.schema
    columns = (leaves.column(index) for index in range(len(leaves)))
    utc = {column.path for column in columns if column.physical_type == "INT96"}
    return pa.schema(
        [field.with_type(TIMESTAMP_TYPE) if field.name in utc else field for field in parquet.schema_arrow]
    )


def _check_columns(found: pa.Schema, schema_string: str) -> Iterator[_Finding]:
    promise = "files have the table's columns"
    try:
        expected, actual = (
            [(column["name"], column["type"]) for column in parse_schema(text)["fields"]]
            for text in (schema_string, delta_schema_string(found))
        )
    except (ValueError, KeyError, TypeError) as error:
        yield promise, "types that Delta knows", first_line(error)
        return
    if [name for name, _ in actual] != [name for name, _ in expected]:
        yield promise, ", ".join(name for name, _ in expected), ", ".join(name for name, _ in actual)
        return
    for (name, kind), (_, other) in zip(expected, actual, strict=True):
        if kind != other:
            yield promise, f"{name} of type {kind}", str(other)


def _read_group(check: DataFileCheck, parquet: ProvedFile, group: int) -> None:
    rows = parquet.read_row_group(group)  # every column, so that every page was decoded once
    check.row_count += rows.num_rows
    for name in _NEVER_NULL:
        if nulls := rows.column(name).null_count:
            check.breaches.append(
                ("no offset, timestamp, type or epoch is null", f"a value in every {name}", count_of(nulls, "null"))
            )
            return
    for name in (*STATS_COLUMNS, "leader_epoch"):
        _widen(check, name, rows.column(name))
    check.breaches += _check_group_statistics(parquet, group, rows)
    check.offsets.append(rows.column("offset").to_numpy())
    check.producers.append(rows.select(["offset", *PRODUCER_COLUMNS]))
    kinds = set(pc.unique(rows.column("timestamp_type")).to_pylist())
    if not kinds <= {int(kind) for kind in TimestampType}:
        check.breaches.append(("timestamp types are known", "0 or 1", ", ".join(map(str, sorted(kinds)))))
    epochs = np.concatenate([[check.leader_epoch_max], rows.column("leader_epoch").to_numpy()])
    if np.any(np.diff(epochs) < 0):
        at = int(np.argmax(np.diff(epochs) < 0))
        found = f"{epochs[at + 1]} at offset {check.offsets[-1][at]}"
        check.breaches.append(("leader epochs never go back", f"a leader epoch of at least {epochs[at]}", found))
    check.leader_epoch_max = int(epochs.max())


def _widen(check: DataFileCheck, name: str, column: pa.ChunkedArray) -> None:
    check.null_counts[name] = check.null_counts.get(name, 0) + column.null_count
    bounds = _bounds(column)
    if bounds is not None:
        check.minima[name] = min(check.minima.get(name, bounds[0]), bounds[0])
        check.maxima[name] = max(check.maxima.get(name, bounds[1]), bounds[1])


def _bounds(column: pa.ChunkedArray) -> tuple[int, int] | None:
    """Minimum and maximum as integers, microseconds for timestamps; None if every value is null."""
    if column.null_count == len(column):
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _check_group_statistics(parquet: ProvedFile, group: int, rows: pa.Table) -> Iterator[_Finding]:
    metadata = parquet.metadata.row_group(group)
    for index in range(metadata.num_columns):
        column = metadata.column(index)
        name = column.path_in_schema
        if name not in _GROUP_STATS or not column.is_stats_set or not column.statistics.has_min_max:
            continue
        bounds = _bounds(rows.column(name))
        recorded = _bounds(pa.chunked_array([_statistics(column.statistics, rows.column(name).type)]))
        if bounds != recorded:
            yield "statistics are true", f"row group {group} with {name} from {bounds}", str(recorded)


def _statistics(statistics: Any, data_type: pa.DataType) -> pa.Array:
    """Minimum and maximum. Python's calendar, as which Arrow gives times, ends with the year 9999; the raw numbers are
    in the unit of the column."""
    try:
        return pa.array([statistics.min, statistics.max], data_type)
    except (OverflowError, ValueError):
        return pa.array([statistics.min_raw, statistics.max_raw], pa.int64())


def _check_offsets(check: DataFileCheck, file: AddedFile, may_have_holes: bool) -> Iterator[_Finding]:
    offsets = np.concatenate(check.offsets) if check.offsets else np.empty(0, np.int64)
    if file.tag is None:  # another engine rewrote it, and owes no order
        offsets = np.sort(offsets)
    steps = np.diff(offsets)
    if may_have_holes:
        for at in np.flatnonzero(steps < 1)[:1]:
            yield "offsets grow", f"an offset above {offsets[at]} after it", str(offsets[at + 1])
    elif np.any(steps != 1):
        at = int(np.argmax(steps != 1))
        yield "offsets are dense", f"offset {offsets[at] + 1} after {offsets[at]}", str(offsets[at + 1])


def _check_statistics(check: DataFileCheck, file: AddedFile) -> Iterator[_Finding]:
    promise = "statistics are true"
    if check.row_count != file.record_count:
        yield promise, f"numRecords {check.row_count}", str(file.record_count)
    for kind, actual in (("minValues", check.minima), ("maxValues", check.maxima)):
        recorded = file.stats.get(kind) or {}
        for name in STATS_COLUMNS:
            if name == "timestamp":
                yield from _check_timestamp(file.stats, kind, actual.get(name))
            elif recorded.get(name) != actual.get(name):
                yield promise, f"{kind}.{name} {actual.get(name)}", str(recorded.get(name))
    nulls = file.stats.get("nullCount") or {}
    for name in STATS_COLUMNS:
        if nulls.get(name) != check.null_counts.get(name):
            yield promise, f"nullCount.{name} {check.null_counts.get(name)}", str(nulls.get(name))


def _check_tag(check: DataFileCheck, file: AddedFile, may_have_holes: bool) -> Iterator[_Finding]:
    """The bus's own summary: first offset, next offset, count, first and last millisecond, leader epoch. The spans of
    producers behind it are judged with their rows (producer_verification.py)."""
    low, high = check.minima, check.maxima
    covered = (low["offset"], high["offset"] + 1)
    if may_have_holes:  # how far its rows lie within that was looked at in the entry
        covered = (file.base_offset, file.last_offset + 1)
    actual = (
        f"{covered[0]} {covered[1]} {check.row_count} "
        f"{low['timestamp'] // 1000} {high['timestamp'] // 1000} {high['leader_epoch']}"
    )
    if file.tag is not None and file.tag.split()[:6] != actual.split():
        yield "statistics are true", f"the tag {actual!r}", repr(file.tag)


def _check_timestamp(stats: Mapping[str, Any], kind: str, actual_us: int | None) -> Iterator[_Finding]:
    """Statistics have milliseconds: a minimum is rounded down, a maximum may be rounded either way."""
    if actual_us is None:
        return
    recorded = _milliseconds(stats, kind)
    allowed = {actual_us // 1000} if kind == "minValues" else {actual_us // 1000, -(-actual_us // 1000)}
    if recorded not in allowed:
        yield "statistics are true", f"{kind}.timestamp {min(allowed)} ms", f"{recorded} ms"


def _milliseconds(stats: Mapping[str, Any], kind: str) -> int | None:
    text = str((stats.get(kind) or {}).get("timestamp", ""))
    text = text.removesuffix("Z").removesuffix("+00:00")
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(np.datetime64(text, "ms").astype(np.int64))
    except ValueError:
        return None
