from __future__ import annotations

import pytest

from bus.client_texts import check_text, shown


@pytest.mark.parametrize(
    ("said", "repeated"),
    [("leaves", "leaves"), ("two\nlines", "two lines"), ("r" * 256, "r" * 255), ("to\u202eeno", "to eno")],
)
def test_reason_is_repeated_in_one_short_line(said: str, repeated: str) -> None:
    assert shown(said) == repeated


def test_a_name_that_turns_the_direction_of_a_line_is_refused() -> None:
    refused = check_text("a group id", "a\u202eb", 255)
    assert refused is not None
    assert refused.message == "expected a group id without control characters, found '\\u202e' at position 1"
    assert check_text("a group id", "\u05d0\u05d1", 255) is None
