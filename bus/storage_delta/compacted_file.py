"""A data file that is written in parts, with holes between its offsets.

Guards one promise: what its entry in the log will say (offsets, timestamps, counts, spans of producers) is true of the
rows that were added. One row group, and the encoded file, are in memory at a time. Does no I/O.
"""

from __future__ import annotations

import pyarrow as pa

from bus.storage_delta.actions import LiveFile
from bus.storage_delta.data_files import ROW_GROUP_BYTES, EncodedFile, encode_stats, open_parquet_writer
from bus.storage_delta.producer_columns import PRODUCER_COLUMNS, statistics_of_rows

# Written once, in the background, and read for long: what producers had no time for is worth it here.
_COMPRESSION = "zstd"


class CompactedFile:
    """Rows come in offset order and have all columns of `schema`."""

    def __init__(self, schema: pa.Schema, base_offset: int) -> None:
        self._schema = schema
        self._base_offset = base_offset  # the file covers offsets from here on
        self._sink = pa.BufferOutputStream()
        self._writer = open_parquet_writer(
            self._sink, schema, compression=_COMPRESSION, dictionaries=_dictionaries(schema)
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._producers: list[pa.Table] = []
        self._offsets = (-1, -1)
        self._times_us = (0, 0)
        self._leader_epoch = -1
        self.row_count = 0

    @property
    def size_bytes(self) -> int:
        """So far: what is encoded, and what waits for that as it is."""
        return int(self._sink.tell()) + self._waiting_bytes

    @property
    def next_offset(self) -> int:
        """One past the last record so far."""
        return self._offsets[1] + 1

    def add(self, rows: pa.Table) -> None:
        offsets = rows.column("offset")
        micros = rows.column("timestamp").cast(pa.int64()).to_numpy()
        is_first = self.row_count == 0
        self._offsets = (offsets[0].as_py() if is_first else self._offsets[0], offsets[-1].as_py())
        times_us = (int(micros.min()), int(micros.max()))
        self._times_us = (
            times_us if is_first else (min(self._times_us[0], times_us[0]), max(self._times_us[1], times_us[1]))
        )
        self._leader_epoch = max(self._leader_epoch, int(rows.column("leader_epoch").to_numpy().max()))
        self._producers.append(rows.select(list(PRODUCER_COLUMNS)))
        self.row_count += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(self, *, next_offset: int | None, name_suffix: str) -> EncodedFile:
        """The file covers offsets up to `next_offset`, None: up to its last record."""
        assert self.row_count, f"a file from offset {self._base_offset} on has no record"
        self._write_group()
        self._writer.close()
        data = self._sink.getvalue()
        producers = statistics_of_rows(pa.concat_tables(self._producers).combine_chunks().to_batches()[0])
        file = LiveFile(
            path=f"{self._base_offset:020d}-{name_suffix}.parquet",
            size_bytes=data.size,
            base_offset=self._base_offset,
            next_offset=self.next_offset if next_offset is None else next_offset,
            record_count=self.row_count,
            timestamp_min_ms=self._times_us[0] // 1000,
            timestamp_max_ms=self._times_us[1] // 1000,
            leader_epoch=self._leader_epoch,
            producers=producers.spans,
        )
        return EncodedFile(
            data, file, encode_stats(self.row_count, producers, offsets=self._offsets, times_us=self._times_us)
        )

    def _write_group(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._waiting_bytes = [], 0


def _dictionaries(schema: pa.Schema) -> list[str]:
    """Texts of the bus's own records are names, which repeat."""
    value_type = schema.field("value").type
    texts = (
        [f"value.{field.name}" for field in value_type if field.type == pa.string()]
        if pa.types.is_struct(value_type)
        else []
    )
    return ["timestamp_type", "leader_epoch", "timestamp", *texts]
