"""Spark's errors as `bus sql --engine spark` reports them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bus.cli.sql.sql_spark import _plain


class FieldOfText(Exception):
    """Stands for Spark's, which only a session makes."""

    def __init__(self, base: str) -> None:
        super().__init__(f"[INVALID_EXTRACT_BASE_FIELD_TYPE] Can't extract a value from {base}.")
        self.base = base

    def getCondition(self) -> str:
        return "INVALID_EXTRACT_BASE_FIELD_TYPE"

    def getMessageParameters(self) -> dict[str, str]:
        return {"base": self.base, "other": '"STRING"'}


@pytest.mark.parametrize(
    ("base", "hint"),
    [('"value"', "value"), ('"orders.value"', "value"), ("`o`.`key`", "key"), ('"partition"', None)],
)
def test_field_of_text_is_answered_with_the_function_for_json(base: str, hint: str | None) -> None:
    said = _plain(cast(Any, FieldOfText(base)), {})
    assert said.endswith(f"write get_json_object({hint}, '$.NAME')") is (hint is not None)
