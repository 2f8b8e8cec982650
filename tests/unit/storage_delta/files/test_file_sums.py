from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.storage_delta.files.proved_parquet import (
    BytesSource,
    FileSums,
    decode_sums,
    encode_sums,
    open_proved,
    sum_of,
    sums_of_pieces,
)
from bus.storage_delta.files.trials import whole_sums


def parquet_of(groups: Sequence[Sequence[int]]) -> tuple[bytes, FileSums]:
    sink, pieces, start = io.BytesIO(), [], 0
    with pq.ParquetWriter(sink, pa.schema([pa.field("n", pa.int64())])) as writer:
        for group in groups:
            writer.write_table(pa.table({"n": pa.array(group, pa.int64())}))
            piece = sink.getvalue()[start:]
            pieces.append((len(piece), sum_of(piece)))
            start += len(piece)
    data = sink.getvalue()
    return data, sums_of_pieces(pieces, sum_of(data[start:]))


def test_sums_come_back_as_they_were_written() -> None:
    sums = FileSums(1234, 0, (1, 0xFFFFFFFF))
    assert encode_sums(sums) == "1234 0000000000000001ffffffff"
    assert decode_sums(encode_sums(sums)) == sums


@pytest.mark.parametrize(
    "text", ["", "12", "x 0000000000000001", "12 00000001", "12 000000000000000g", "12 0000000011"]
)
def test_what_is_no_list_of_sums_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected checksums|invalid literal"):
        decode_sums(text)


def test_a_row_group_is_proved_alone() -> None:
    data, sums = parquet_of([[1, 2], [3, 4], [5]])
    sums_start = first_of_second = open_proved(BytesSource(data), sums).footer.starts[1]
    damaged = bytearray(data)
    damaged[first_of_second + 1] ^= 1
    parquet = open_proved(BytesSource(bytes(damaged)), sums)
    assert parquet.read_row_group(0).column("n").to_pylist() == [1, 2]
    assert parquet.read_row_group(2).column("n").to_pylist() == [5]
    with pytest.raises(ValueError, match=f"expected the checksum [0-9a-f]{{8}} of bytes {sums_start} to"):
        parquet.read_row_group(1)


@pytest.mark.parametrize("groups", [[[1, 2, 3]], [[1, 2], [3, 4]]])
def test_every_byte_is_in_a_piece(groups: list[list[int]]) -> None:
    data, sums = parquet_of(groups)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(ValueError, match="expected the checksum"):
            open_proved(BytesSource(bytes(damaged)), sums).read()
    for short in (data[:-1], data[: sums.tail_start], b""):
        with pytest.raises(ValueError, match="expected"):
            open_proved(BytesSource(short), sums).read()


def test_one_sum_may_stand_for_all_row_groups() -> None:
    data, _ = parquet_of([[1, 2], [3]])
    sums = whole_sums(data)
    assert len(sums.groups) == 1
    assert open_proved(BytesSource(data), sums).read().column("n").to_pylist() == [1, 2, 3]


def test_times_of_spark_are_told_with_the_type_that_they_are_read_with() -> None:
    sink = io.BytesIO()
    times = pa.table({"time": pa.array([1, 2], pa.timestamp("us"))})
    pq.write_table(times, sink, use_deprecated_int96_timestamps=True, store_schema=False)
    data = sink.getvalue()
    parquet = open_proved(BytesSource(data), whole_sums(data))
    assert parquet.schema_arrow == parquet.read_row_group(0).schema == times.schema
