"""Records of a data file of which parts cannot be read: those whose key, value, headers and time can.

Guards one promise: a damaged page costs the records that need it and no others. Row groups are looked at one by one,
and where one is damaged its columns one by one, in another process (trials.py). What the bus adds to a record is made
again where the rest of the file tells it: offsets of a file without holes, columns that a proved footer knows to be
constant, sequences of one producer. Never writes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from bus.errors import StorageDamaged
from bus.storage_delta.files.data_files import open_parquet_writer
from bus.storage_delta.files.file_sums import decode_sums, encode_sums, sum_of, sums_of_pieces
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.proved_parquet import Source
from bus.storage_delta.files.row_statistics import RowStatistics
from bus.storage_delta.files.trials import SoundGroup, Trials

_NEEDED = ("key", "value", "headers")
_STAMP = ("producer_id", "producer_epoch", "sequence")


def salvage(trials: Trials, source: Source, file: LiveFile, schema: pa.Schema) -> list[tuple[LiveFile, str, bytes]]:
    """Files with the records of `file` that can be read, each with its statistics and its bytes; row groups that follow
    each other are one file. None of them if its footer cannot be read. Raises `StorageFault`."""
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
