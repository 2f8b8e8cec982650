"""Data files opened for looking at what is in them.

Guards one promise: looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bus.errors import StorageDamaged, first_line
from bus.storage_delta.files.proved_parquet import ProvedFile, StoreFile, decode_sums, has_sums, open_proved
from bus.storage_delta.files.trials import TRIALS
from bus.storage_delta.stores.store import KeyNotFound, ObjectStore


class UnreadableFile(ValueError):
    """No Parquet file that can be decoded."""


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
