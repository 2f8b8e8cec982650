"""Batches are checked at the call, for what they are made of."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bus.client.producer.checks import one_batch
from bus.errors import BusError, ErrorCode


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()], ids=str)
def test_column_of_numbers_is_not_taken_for_times(kind: pa.DataType) -> None:
    table = pa.table({"value": [b"v"], "timestamp": pa.array([1_700_000_000_000]).cast(kind)})
    with pytest.raises(BusError, match=r"a unit, found .*: for milliseconds cast it to pa\.timestamp") as raised:
        one_batch(table)
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_are_sent(unit: str) -> None:
    times = pa.array([1_700_000_000]).cast(pa.timestamp("s")).cast(pa.timestamp(unit, "UTC"))
    assert one_batch(pa.table({"value": [b"v"], "timestamp": times})).num_rows == 1
