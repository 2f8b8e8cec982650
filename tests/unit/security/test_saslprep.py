"""RFC 4013's examples, and what is left as it is."""

from __future__ import annotations

import pytest

from bus.security.scram import CHARACTERS_MAX, SCRAM_SHA_256, prepared, salt_password
from bus.security.users import NAME_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u3000b", "a b"),
        ("e\u0301", "\u00e9"),
        ("\uff41lice", "alice"),
        ("alice\u200b\ufe0f", "alice"),
        ("\u0627\u0644", "\u0627\u0644"),  # from right to left as a whole
        ("\U0001f600", "\U0001f600"),  # younger than the profile
    ],
)
def test_what_looks_the_same_has_one_form(text: str, expected: str) -> None:
    assert prepared(text) == prepared(prepared(text)) == expected


@pytest.mark.parametrize("text", ["\u0007\u00e9", "\u0627\u0031", "\u200b", "a\u202e\u00e9", "\ue000", ""])
def test_what_cannot_be_prepared_is_taken_as_it_is(text: str) -> None:
    assert prepared(text) == text


def test_a_password_is_the_same_in_both_forms_of_its_letters() -> None:
    composed, decomposed = (salt_password(SCRAM_SHA_256, one, b"salt", 4096) for one in ("caf\u00e9", "cafe\u0301"))
    assert composed == decomposed != salt_password(SCRAM_SHA_256, "cafe", b"salt", 4096)


def test_a_text_that_is_longer_than_any_password_is_taken_as_it_is() -> None:
    """Callers need not be logged in, and marks in the wrong order take quadratic time."""
    accented = "e\u0301"
    assert prepared(accented * (CHARACTERS_MAX // 2)) == "é" * (CHARACTERS_MAX // 2)
    for text in (accented * (CHARACTERS_MAX // 2 + 1), "\u0316\u0301" * 3_000, "\ufdfa" * 4_000):
        assert prepared(text) == text


def test_each_name_that_a_user_can_have_is_prepared() -> None:
    assert NAME_BYTES_MAX <= CHARACTERS_MAX
