from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bus.cli.sql.sql_rows import cell_text, json_text, unique_names


@pytest.mark.parametrize(
    ("value", "text", "cell"),
    [
        (True, "true", "true"),
        (170141183460469231731687303715884105727, "170141183460469231731687303715884105727", None),
        (0.1, "0.1", None),
        (float("nan"), '"NaN"', "NaN"),
        (float("inf"), '"Infinity"', "Infinity"),
        (float("-inf"), '"-Infinity"', "-Infinity"),
        (Decimal("1.50"), "1.50", None),
        (Decimal("0E-10"), "0.0000000000", None),
        (Decimal("12345678901234567890.12"), "12345678901234567890.12", None),
        ('é "x"\n', '"é \\"x\\"\\n"', 'é "x"\n'),
        (b"a\xff", '"a\\\\xff"', "a\\xff"),
        (date(2020, 2, 29), '"2020-02-29"', "2020-02-29"),
        (time(12), '"12:00:00"', "12:00:00"),
        (datetime(2020, 1, 1, tzinfo=timezone.utc), '"2020-01-01T00:00:00Z"', "2020-01-01T00:00:00Z"),
        (timedelta(days=1, seconds=3), '"1 day 00:00:03"', "1 day 00:00:03"),
        (pa.MonthDayNano([14, 2, 3_500_000_000]), '"1 year 2 months 2 days 00:00:03.5"', None),
        (pa.MonthDayNano([-14, 0, -90_000_000_000_000]), '"-1 year -2 months -25:00:00"', None),
        (pa.MonthDayNano([0, 0, 0]), '"00:00:00"', "00:00:00"),
        ({"a": [1, None, {"b": "x"}], "c": Decimal("1.0")}, '{"a": [1, null, {"b": "x"}], "c": 1.0}', None),
        ([("k", float("nan"))], '[["k", "NaN"]]', None),
    ],
)
def test_a_value_is_json_with_all_its_digits_and_readable_in_a_cell(value: Any, text: str, cell: str | None) -> None:
    assert json_text(value) == text
    json.loads(text)
    assert cell_text(value) == (text.strip('"') if cell is None else cell)


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a", "a_1"], ["a", "a_2", "a_1"]),
        (["a_1", "a", "a"], ["a_1", "a", "a_2"]),
    ],
)
def test_columns_of_one_name_get_names_of_their_own(names: list[str], unique: list[str]) -> None:
    assert unique_names(names) == unique
