"""Runs of rows written by Spark's tasks as data files that the bus could have written itself.

Guards two promises: a file has the columns, types, encodings and row groups of the log, and its rows in offset order;
and it is whole and synced before anybody hears of it. Until then, and until the job puts it in its place, it has a
temporary name in the table's folder: no reader looks at it, and what a killed job leaves goes when the broker opens the
partition the next time. A task holds one row group.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.log_schema import LOG_COLUMNS, log_schema
from bus.storage_delta.data_files import ROW_GROUP_BYTES, open_parquet_writer
from bus.storage_delta.local_store import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITTEN = "run int, path string, size_bytes long, record_count long, first_offset long, last_offset long"
_WRITTEN_BATCH = pa.schema(
    [
        ("run", pa.int32()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("record_count", pa.int64()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """All rows of one run, on disk under a temporary name."""

    run: int
    path: str
    size_bytes: int
    record_count: int
    first_offset: int
    last_offset: int


def write_runs(rows: DataFrame, folder: str, *, run_count: int, compression: str) -> list[WrittenFile]:
    """Write each run as one file, in the order of the runs.

    `rows` have the columns of the log and `run`, a number below `run_count`. The folder is the table's, reachable by
    every executor under this very path. If a task fails, the files of all are removed. A run without a row has no file.
    """
    from pyspark.sql import functions as sql

    job_id = uuid.uuid4().hex
    try:
        written = (
            rows.select(*LOG_COLUMNS, sql.col("run").cast("int"))
            .repartitionById(run_count, sql.col("run").cast("int"))
            .sortWithinPartitions("run", "offset")
            .mapInArrow(_write_task(folder, job_id, compression), _WRITTEN)
            .collect()
        )
    except BaseException:
        remove_written(folder, job_id)
        raise
    files = sorted((WrittenFile(*row) for row in written), key=lambda file: file.run)
    # A task that Spark started twice has left what its slower attempt wrote.
    remove_written(folder, job_id, keep={file.path for file in files})
    return files


def remove_written(folder: str, job_id: str, keep: Iterable[str] = ()) -> None:
    """Delete what the tasks of a job wrote."""
    kept = set(keep)
    for path in Path(folder).glob(f"{TEMPORARY_PREFIX}{job_id}-*"):
        if str(path) not in kept:
            path.unlink(missing_ok=True)


def _write_task(
    folder: str, job_id: str, compression: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in write_files(batches, folder, job_id=job_id, compression=compression):
            yield pa.RecordBatch.from_pylist([file], schema=_WRITTEN_BATCH)

    return write


def write_files(
    batches: Iterable[pa.RecordBatch], folder: str, *, job_id: str, compression: str
) -> Iterator[dict[str, Any]]:
    """What one task does: `batches` are sorted by run and offset, and a file ends where its run does."""
    writing: _RunFile | None = None
    try:
        for run, rows in _by_run(batches):
            if writing is not None and writing.run != run:
                yield writing.finish()
                writing = None
            if writing is None:
                path = f"{folder}/{TEMPORARY_PREFIX}{job_id}-{uuid.uuid4().hex}"
                writing = _RunFile(path, run, rows.schema, compression)
            writing.add(rows)
        if writing is not None:
            yield writing.finish()
            writing = None
    finally:
        if writing is not None:
            writing.abandon()


def _by_run(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    for batch in batches:
        if not batch.num_rows:
            continue
        runs = batch.column("run").to_numpy()
        rows = _as_log(batch)
        bounds = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), batch.num_rows]
        for begin, end in itertools.pairwise(bounds):
            yield int(runs[begin]), rows.slice(begin, end - begin)


def _as_log(batch: pa.RecordBatch) -> pa.Table:
    """Spark calls every column nullable, the log does not."""
    value_type = batch.schema.field("value").type
    schema = log_schema(None if pa.types.is_binary(value_type) else value_type)
    return pa.Table.from_batches([batch.select(schema.names)]).cast(schema)


class _RunFile:
    def __init__(self, path: str, run: int, schema: pa.Schema, compression: str) -> None:
        self.run = run
        self._path = path
        self._file = open(path, "xb")  # noqa: SIM115 - closed by finish and abandon
        self._writer = open_parquet_writer(self._file, schema, compression=compression, has_page_index=True)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._record_count = 0
        self._first_offset = self._last_offset = -1

    def add(self, rows: pa.Table) -> None:
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        is_growing = pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() is not False
        if first <= self._last_offset or not is_growing:
            raise ValueError(f"expected offsets above {self._last_offset} that grow, found {first} to {last}")
        self._first_offset = first if self._record_count == 0 else self._first_offset
        self._last_offset = last
        self._record_count += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_groups()

    def finish(self) -> dict[str, Any]:
        self._write_groups()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self._file.tell()
        self._file.close()
        return {
            "run": self.run,
            "path": self._path,
            "size_bytes": size_bytes,
            "record_count": self._record_count,
            "first_offset": self._first_offset,
            "last_offset": self._last_offset,
        }

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _write_groups(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            group_rows = max(1, ROW_GROUP_BYTES * rows.num_rows // max(ROW_GROUP_BYTES, self._waiting_bytes))
            self._writer.write_table(rows, row_group_size=group_rows)
        self._waiting, self._waiting_bytes = [], 0
