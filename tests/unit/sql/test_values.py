from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bus.sql.connection import python_values

YEAR_10000_S = 253_402_300_800
YEAR_10000_D = YEAR_10000_S // 86_400


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([YEAR_10000_S, 0, None], pa.timestamp("s", "UTC"), ["+10000-01-01T00:00:00Z", 0, None]),
        ([YEAR_10000_S * 10**6 + 5], pa.timestamp("us"), ["+10000-01-01T00:00:00.000005"]),
        ([1_000_000_001, 1_000_000_000], pa.timestamp("ns", "UTC"), ["1970-01-01T00:00:01.000000001Z", 1]),
        ([2**63 - 1, -(2**63) + 1], pa.timestamp("us"), ["infinity", "-infinity"]),
        ([-62_135_596_801], pa.timestamp("s"), ["+0000-12-31T23:59:59"]),
        ([YEAR_10000_D, -719_163, 2**31 - 1], pa.date32(), ["+10000-01-01", "+0000-12-31", "infinity"]),
    ],
)
def test_what_python_has_no_moment_for_is_its_text(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    """A number stands for that second of 1970."""
    moments = [datetime.fromtimestamp(one, timezone.utc) if isinstance(one, int) else one for one in expected]
    assert python_values(pa.array(values, pa.int64()).cast(width(kind)).cast(kind)) == moments


def width(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def test_what_python_has_no_moment_for_is_its_text_wherever_it_stands() -> None:
    late = pa.array([YEAR_10000_S, 0, None], pa.int64()).cast(pa.timestamp("s"))
    first = datetime(1970, 1, 1)
    text = "+10000-01-01T00:00:00"
    mask = pa.array([False, False, True])
    struct = pa.StructArray.from_arrays([late, pa.array([1, 2, 3])], ["at", "n"], mask=mask)
    assert python_values(struct) == [{"at": text, "n": 1}, {"at": first, "n": 2}, None]
    assert python_values(pa.ListArray.from_arrays([0, 2, 2, 3], late)) == [[text, first], [], [None]]
    assert python_values(pa.ListArray.from_arrays(pa.array([0, None, 3], pa.int32()), late)) == [
        [text, first, None],
        None,
    ]
    days = pa.array([YEAR_10000_D, 1], pa.int32()).cast(pa.date32())
    mapped = pa.MapArray.from_arrays([0, 1, 2], days, pa.array(["x", "y"]))
    assert python_values(mapped) == [[("+10000-01-01", "x")], [(date(1970, 1, 2), "y")]]


def test_a_whole_number_of_any_width_is_an_int() -> None:
    wide = pa.array([Decimal(10) ** 30, None], pa.decimal128(38, 0))
    assert python_values(wide) == [10**30, None]
    assert python_values(pa.array([Decimal("1.50")], pa.decimal128(10, 2))) == [Decimal("1.50")]
