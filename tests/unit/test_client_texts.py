from __future__ import annotations

import pytest

from bus.client_texts import shown


@pytest.mark.parametrize(
    ("said", "repeated"), [("leaves", "leaves"), ("two\nlines", "two lines"), ("r" * 256, "r" * 255)]
)
def test_reason_is_repeated_in_one_short_line(said: str, repeated: str) -> None:
    assert shown(said) == repeated
