"""A search for the sound data files of a damaged table, and for the combination of them that has all its records.

Guards one promise: an offset is given up only if no file in the table's folder has a row of it that can be read. Every
page of every file that counts is decoded, and its offsets are compared with what the log says. Never writes.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from bus.errors import StorageDamaged, count_of, first_line
from bus.storage_delta.files.data_files import open_parquet_writer
from bus.storage_delta.files.data_reader import DataReader
from bus.storage_delta.files.live_file import LiveFile, base_offset_of, data_file_name, is_data_file
from bus.storage_delta.files.proved_parquet import Source, decode_sums, encode_sums, sum_of, sums_of_pieces
from bus.storage_delta.files.row_statistics import COLUMNS, RowStatistics
from bus.storage_delta.files.trials import SoundGroup, Trials, Unprovable
from bus.storage_delta.log import checkpoint_files
from bus.storage_delta.log.actions import (
    REPAIR,
    encode_add,
    encode_line,
    encode_remove,
    encode_version,
)
from bus.storage_delta.log.checkpoint_files import MalformedCheckpoint
from bus.storage_delta.log.txns import Txn
from bus.storage_delta.repair.history import NamedFile
from bus.storage_delta.stores.store import KeyNotFound

_NEEDED = ("key", "value", "headers")
_STAMP = ("producer_id", "producer_epoch", "sequence")


def salvage(trials: Trials, source: Source, file: LiveFile, schema: pa.Schema) -> list[tuple[LiveFile, str, bytes]]:
    """Return files with the records of `file` that can be read, each with its statistics and its bytes. Row groups that
    follow each other become one file. Returns none if the footer cannot be read. Raises `StorageFault`.

    Guards one promise: a damaged page costs only the records that need it. Row groups are decoded one by one, and a
    damaged one column by column, in another process (trials.py). A record stays if its key, value, headers and time can
    be read; columns of the bus are restored where the rest of the file implies them: offsets of a file without holes,
    columns that a proved footer knows to be constant, sequences of one producer. Never writes."""
    is_footer_proved = _is_footer_proved(source, file)
    runs: list[list[pa.Table]] = [[]]
    position = file.base_offset
    try:
        for group in trials.sound_groups(source):
            rows = _rows_of(group, file, schema, position, has_constants=is_footer_proved)
            position += group.row_count
            if rows is not None and rows.num_rows:
                runs[-1].append(rows)
            elif runs[-1]:
                runs.append([])
        return [encode_rows(file, run, schema) for run in runs if run]
    except (StorageDamaged, pa.ArrowException, ValueError, KeyError):
        return []


def _is_footer_proved(source: Source, file: LiveFile) -> bool:
    try:
        sums = decode_sums(file.sums)
    except ValueError:
        return False
    return sum_of(source.get(sums.tail_start, max(0, source.size_bytes - sums.tail_start))) == sums.tail


def _rows_of(
    group: SoundGroup, file: LiveFile, schema: pa.Schema, first_offset: int, *, has_constants: bool
) -> pa.Table | None:
    if not set(_NEEDED) <= group.columns.keys():
        return None
    columns, count = dict(group.columns), group.row_count
    bounds = group.bounds if has_constants else {}
    constants = {name: low for name, (low, high) in bounds.items() if low == high}
    if "offset" not in columns and file.is_dense:
        columns["offset"] = pa.array(np.arange(first_offset, first_offset + count))
    for name in ("timestamp", "timestamp_type", "leader_epoch"):
        if name not in columns and name in constants:
            columns[name] = pa.array(np.full(count, constants[name], np.int64))
    if not {"offset", "timestamp", "timestamp_type"} <= columns.keys():
        return None
    columns.setdefault("leader_epoch", pa.array(np.full(count, file.leader_epoch, np.int64)))
    for name in ("producer_id", "producer_epoch"):
        if name not in columns and name in constants:
            columns[name] = pa.array(np.full(count, constants[name], np.int64))
    low, high = bounds.get("sequence", (0, -1))
    is_of_one = {"producer_id", "producer_epoch"} <= constants.keys()
    if "sequence" not in columns and is_of_one and high - low + 1 == count:
        columns["sequence"] = pa.array(np.arange(low, high + 1))
    if not set(_STAMP) <= columns.keys():
        columns.update({name: pa.nulls(count) for name in _STAMP})
    return pa.Table.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def encode_rows(
    file: LiveFile, run: Sequence[pa.Table], schema: pa.Schema, notes: Mapping[bytes, bytes] | None = None
) -> tuple[LiveFile, str, bytes]:
    """Rows of `file`, a table a row group, as a file of its own, with its statistics and its bytes; the same bytes for
    the same rows. `notes`: what its footer says beside them."""
    sink: Any = io.BytesIO()
    statistics, ends = RowStatistics(file.path), [0]
    with open_parquet_writer(sink, schema, compression="zstd", is_rewritten=True) as writer:
        for rows in run:
            statistics.add(rows)
            writer.write_table(rows.combine_chunks(), row_group_size=rows.num_rows)
            ends.append(sink.tell())
        if notes:
            writer.add_key_value_metadata(notes)
    data: bytes = sink.getvalue()
    base_offset = run[0].column("offset")[0].as_py()
    described, stats = statistics.describe(
        file.path, len(data), base_offset=base_offset, next_offset=statistics.next_offset
    )
    pieces = [(end - start, sum_of(data[start:end])) for start, end in pairwise(ends)]
    sums = encode_sums(sums_of_pieces(pieces, sum_of(data[ends[-1] :])))
    return replace(described, sums=sums, ages=file.ages, level=file.level), stats, data


_NEVER_NULL = ("offset", "timestamp", "timestamp_type", "leader_epoch")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A sound data file, and the `add` that names it: the log's own, or None if that is not known or not true.
    `is_proved`: its bytes are those that were written, by the checksums that the log has of them."""

    file: LiveFile
    body: Mapping[str, object] | None
    stats: str  # computed from its rows; empty if `body` has them
    source: str = ""  # the key of its bytes, if that is not its name
    data: Callable[[], bytes] | None = None  # they are not in the store yet: makes them from what `source` holds
    is_proved: bool = False


@dataclass(frozen=True, slots=True)
class BadFile:
    """`is_there` False: the store has no such file."""

    path: str
    base_offset: int
    next_offset: int
    reason: str
    is_there: bool


def check_named(reader: DataReader, schema: pa.Schema, named: NamedFile, *, compacted_to: int) -> FoundFile | BadFile:
    """A file that the log names, by all of its rows. One that can be read, though it has other checksums than its entry
    says, is described by its rows."""
    file = named.file

    def bad(reason: str, *, is_there: bool = True) -> BadFile:
        return BadFile(file.path, file.base_offset, file.next_offset, reason, is_there)

    if not file.is_dense and file.base_offset >= compacted_to:
        return bad(
            f"expected an entry of {count_of(file.next_offset - file.base_offset, 'record')}, found {file.record_count}"
        )
    if _is_as_written(reader, file):
        return FoundFile(file, named.body, "", is_proved=True)
    try:
        parquet, size_bytes = reader.open_unnamed(file.path)
        if size_bytes != file.size_bytes:
            return bad(f"expected {file.size_bytes} bytes, found {size_bytes}")
        row_count = 0
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group)
            offsets = rows.column("offset").to_numpy()
            row_count += len(offsets)
            if not np.all((file.base_offset <= offsets) & (offsets < file.next_offset)):
                found = f"{offsets.min()} to {offsets.max()}"
                return bad(f"expected offsets {file.base_offset} to {file.next_offset - 1}, found {found}")
    except KeyNotFound:
        return bad("there is no such file", is_there=False)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        return bad(f"it cannot be read: {first_line(error)}")
    if row_count != file.record_count:
        return bad(f"expected {count_of(file.record_count, 'record')}, found {row_count}")
    if file.sums and encode_sums(parquet.footer.sums) != file.sums:
        described = describe_rows(reader, schema, file.path)
        if described is None:
            return bad("it has other checksums than its entry says, and its rows are no rows of a log")
        return with_entry(described, file)
    return FoundFile(file, named.body, "")


def _is_as_written(reader: DataReader, file: LiveFile) -> bool:
    """Return True if all bytes have the checksums of the file's entry, and its offsets are those that the entry says. A
    file for which this does not hold is tried in another process, which takes many times as long."""
    if not file.sums:
        return False
    try:
        parts = [rows.column("offset").to_numpy() for rows in reader.scan(file, ["offset"])]
    except (StorageDamaged, KeyNotFound):
        return False
    offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
    is_within = bool(np.all((file.base_offset <= offsets) & (offsets < file.next_offset)))
    return is_within and len(offsets) == file.record_count


def with_entry(found: FoundFile, entry: LiveFile) -> FoundFile:
    """Return `found` with what the log says and rows do not: the offsets that the file stands for, and the history of
    its rows."""
    file = replace(
        found.file,
        base_offset=entry.base_offset,
        next_offset=entry.next_offset,
        ages=entry.ages,
        level=entry.level,
        committed_ms=entry.committed_ms,
    )
    return replace(found, file=file)


def describe_rows(reader: DataReader, schema: pa.Schema, path: str, *, compacted_to: int = 0) -> FoundFile | None:
    """A file that the log does not name, or not truly, by all of its rows; None if it holds no sound rows of a log. Its
    rows tell where it begins, its name only where key compaction may have taken the first of them."""
    statistics = RowStatistics(path)
    wanted = pa.schema([schema.field(name) for name in COLUMNS])
    first_offset = -1
    try:
        parquet, size_bytes = reader.open_unnamed(path)
        if parquet.schema_arrow.names != schema.names:
            return None
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group)
            if any(rows.column(name).null_count for name in _NEVER_NULL):
                return None
            if rows.num_rows:
                first_offset = rows.column("offset")[0].as_py() if first_offset < 0 else first_offset
                statistics.add(rows.select(list(COLUMNS)).cast(wanted).combine_chunks())
    except (StorageDamaged, KeyNotFound, pa.ArrowException, OSError, ValueError, KeyError):
        return None
    if not statistics.row_count:
        return None
    base_offset = first_offset
    if is_data_file(path) and first_offset < compacted_to:
        base_offset = min(first_offset, base_offset_of(path))
    file, stats = statistics.describe(path, size_bytes, base_offset=base_offset, next_offset=statistics.next_offset)
    return FoundFile(replace(file, sums=encode_sums(parquet.footer.sums)), None, stats)


def salvage_named(reader: DataReader, schema: pa.Schema, named: NamedFile) -> list[FoundFile]:
    """Return the readable parts of a file that cannot be read as a whole, under new names."""
    try:
        source, trials = reader.open_source(named.file.path)
        parts = salvage(trials, source, named.file, schema)
    except (KeyNotFound, Unprovable):
        return []
    found = (
        FoundFile(replace(file, path=f"found-{file.path}"), None, stats, data=partial(bytes, data))
        for file, stats, data in parts
    )
    return [replace(named_truly(one), source=named.file.path) for one in found]


def rewrite(reader: DataReader, schema: pa.Schema, found: FoundFile) -> FoundFile:
    """The same rows in other bytes, under another name, unless the bytes are proved. What Arrow can decode here, after
    a bit of a footer or of a page header has changed, another reader may refuse: it goes by other fields. So bytes that
    nothing proves do not stay in the table. Raises `StorageFault`."""
    if found.is_proved or found.body is not None or found.data is not None:
        return found
    source = found.source or found.file.path

    def encode() -> tuple[LiveFile, str, bytes]:
        parquet, _ = reader.open_unnamed(source)
        groups = (parquet.read_row_group(index) for index in range(parquet.num_row_groups))
        rows = [_typed(group, schema) for group in groups if group.num_rows]
        return encode_rows(found.file, rows, schema, parquet.metadata.metadata)

    file, stats, _ = encode()
    rewritten = with_entry(FoundFile(file, None, stats, data=lambda: encode()[2]), found.file)
    other_name = replace(rewritten, file=replace(rewritten.file, path=f"found-{source}"))
    return replace(named_truly(other_name), source=source)


def _typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([rows.column(field.name).cast(field.type) for field in schema], schema=schema)


def named_truly(found: FoundFile) -> FoundFile:
    """Under a name that begins with its first offset, as a copy if it has another; the same name for the same bytes."""
    if is_data_file(found.file.path) and base_offset_of(found.file.path) == found.file.base_offset:
        return found
    digest = hashlib.sha256(f"{found.file.size_bytes} {found.file.sums}".encode()).hexdigest()[:32]
    path = data_file_name(found.file.base_offset, digest)
    return replace(found, file=replace(found.file, path=path), source=found.file.path)


def find_misplaced(bad: BadFile, named: NamedFile, others: Iterable[FoundFile]) -> FoundFile | None:
    """The file that the log means by a name under which something else, or nothing, lies now: the one among `others`
    that has its bytes. As a copy under its own name if that is free, else under a new one."""
    wanted = named.file
    for found in others:
        lies_within = wanted.base_offset <= found.file.base_offset and found.file.next_offset <= wanted.next_offset
        if found.file.path == wanted.path or not lies_within:
            continue
        is_same = found.file.size_bytes == wanted.size_bytes and (
            found.file.sums == wanted.sums
            if wanted.sums
            else (found.file.record_count, found.file.base_offset, found.file.next_offset, found.file.producers)
            == (wanted.record_count, wanted.base_offset, wanted.next_offset, wanted.producers)
        )
        if is_same and not bad.is_there:
            return FoundFile(wanted, named.body, "", source=found.file.path, is_proved=bool(wanted.sums))
        if is_same:
            moved = replace(with_entry(found, wanted), is_proved=bool(wanted.sums))
            other_name = replace(moved, file=replace(moved.file, path=f"found-{found.file.path}"))
            return replace(named_truly(other_name), source=found.file.path)
    return None


@dataclass(frozen=True, slots=True)
class Cover:
    """Files in offset order, none over another, and the ranges (first, one past the last) that none of them has."""

    files: Sequence[FoundFile]
    holes: Sequence[tuple[int, int]]


def choose_files(
    named: Sequence[FoundFile],
    others: Iterable[FoundFile],
    *,
    start: int,
    end: int,
    may_go_on: bool,
    may_follow: bool = False,
) -> Cover:
    """Choose the `named` files, which do not overlap, then the parts of the remaining offsets that `others` have, up to
    `end`. Behind it, if they `may_follow`, files that continue without a hole, and if they `may_go_on`, all."""
    chosen = list(named)
    reaches = max([end, *(found.file.next_offset for found in chosen)])
    for found in sorted(others, key=_by_reach):
        base, following = found.file.base_offset, found.file.next_offset
        holes = find_holes([one.file for one in chosen], start=start, end=reaches)
        if any(first <= base and following <= past_last for first, past_last in holes):
            chosen = sorted([*chosen, found], key=lambda one: one.file.base_offset)
        elif (may_go_on and base >= reaches) or (may_follow and base == reaches):
            chosen.append(found)
            reaches = following
    return Cover(chosen, find_holes([one.file for one in chosen], start=start, end=reaches))


def without_overlaps(files: Iterable[FoundFile]) -> list[FoundFile]:
    """Return `files` in offset order, without those that begin below the end of another."""
    chosen: list[FoundFile] = []
    for found in sorted(files, key=_by_reach):
        if not chosen or found.file.base_offset >= chosen[-1].file.next_offset:
            chosen.append(found)
    return chosen


def _by_reach(found: FoundFile) -> tuple[int, int]:
    """Sort key: the first offset; among files that begin together the one with the highest end first."""
    return found.file.base_offset, -found.file.next_offset


def find_holes(files: Iterable[LiveFile], *, start: int, end: int) -> list[tuple[int, int]]:
    """Return the offsets from `start` up to, but not including, `end` that `files`, in offset order, do not cover."""
    holes = []
    at = start
    for file in files:
        if file.base_offset > at:
            holes.append((at, min(file.base_offset, end)))
        at = max(at, file.next_offset)
    if at < end:
        holes.append((at, end))
    return [(first, past_last) for first, past_last in holes if first < past_last]


Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RepairedTable:
    """The contents of the table after the repair."""

    files: Sequence[FoundFile]  # in offset order
    txns: Mapping[str, Txn]
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]


def encode_repair(
    adds: Sequence[FoundFile],
    removes: Iterable[str],
    *,
    known: Collection[str],
    new_from: int,
    txns: Mapping[str, Txn],
    others: Sequence[Action],
    undone_from: int | None,
    leader_epoch: int,
    now_ms: int,
    txn_id: str,
) -> bytes:
    """Encode the version that a repair writes.

    Guards two promises. A Delta reader that applies the version to the table as it knew it gets the repaired table, and
    so does one that begins with the checkpoint (`encode_checkpoint`). And readers of changes see only records as new
    that no version had before. Writes nothing itself.

    `known`: data files that some version has added; `new_from`: records below it were in the table before. `others`:
    protocol and metadata, if they must be repeated. `undone_from`: that version and the following ones no longer count.
    """
    lines = [
        *map(encode_line, others),
        *(_encode_txn(name, txn, now_ms) for name, txn in txns.items()),
        # Records that are lost are a change of data; files that come back in place of others are none.
        *(encode_remove(path, now_ms, is_data_change=not adds) for path in removes),
        *(_encode_add(found, now_ms, is_data_change=_is_new(found, known, new_from)) for found in adds),
    ]
    return encode_version(
        REPAIR,
        lines,
        now_ms=now_ms,
        txn_id=txn_id,
        parameters="{}" if undone_from is None else f'{{"undoneFrom":"{undone_from}"}}',
        author=f'"leaderEpoch":{leader_epoch},',
    )


def encode_checkpoint(table: RepairedTable, *, removed: Iterable[str], now_ms: int) -> bytes:
    """The table as a checkpoint of whatever version; `removed` are data files that are there for older ones. Raises
    `StorageDamaged`."""
    try:
        return checkpoint_files.encode_checkpoint(
            adds=[_body_of(found, now_ms) for found in table.files],
            removes=[{"path": quote(path), "deletionTimestamp": now_ms, "dataChange": False} for path in removed],
            txns={name: replace(txn, updated_ms=txn.updated_ms or now_ms) for name, txn in table.txns.items()},
            metadata=table.metadata,
            protocol=table.protocol,
        )
    except MalformedCheckpoint as error:
        raise StorageDamaged(f"no checkpoint of the repaired table: {error}") from error


def _is_new(found: FoundFile, known: Collection[str], new_from: int) -> bool:
    is_known = found.file.path in known or found.source in known
    return not is_known and found.file.base_offset >= new_from


def _encode_add(found: FoundFile, now_ms: int, *, is_data_change: bool) -> str:
    return encode_line({"add": {**_body_of(found, now_ms), "dataChange": is_data_change}})


def _body_of(found: FoundFile, now_ms: int) -> Mapping[str, Any]:
    body = found.body
    if body is None:
        body = json.loads(encode_add(found.file, found.stats, now_ms, is_data_change=True))["add"]
    return {"partitionValues": {}, "modificationTime": now_ms, **body}  # a damaged log may have lost them


def _encode_txn(name: str, txn: Txn, now_ms: int) -> str:
    """Encode the `txn` of any application; its name may need escaping."""
    return encode_line({"txn": {"appId": name, "version": txn.version, "lastUpdated": txn.updated_ms or now_ms}})
