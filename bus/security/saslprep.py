"""SASLprep (RFC 4013): one form of what looks the same in Unicode, however a keyboard or a system writes it.

Guards one promise: clients, administrators and brokers salt the same text of a password. What the profile prohibits is
taken as it is, as in PostgreSQL. So is a text of more than `CHARACTERS_MAX`: brokers prepare what callers show before
they are logged in, and the time that it takes may grow with the square of the length. Kafka prepares nothing; of ASCII
nothing changes.
"""

from __future__ import annotations

import stringprep
from collections.abc import Callable
from unicodedata import ucd_3_2_0

CHARACTERS_MAX = 256

_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared(text: str) -> str:
    """Prepare a text for a login, where code points that Unicode 3.2 has not assigned are allowed."""
    if text.isascii() or len(text) > CHARACTERS_MAX:
        return text
    spaced = "".join(" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    found = ucd_3_2_0.normalize("NFKC", spaced)
    is_allowed = not any(is_in(one) for one in set(found) for is_in in _PROHIBITED) and _is_of_one_direction(found)
    return found if found and is_allowed else text


def _is_of_one_direction(text: str) -> bool:
    """RFC 3454, section 6."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    is_mixed = any(map(stringprep.in_table_d2, text))
    return not is_mixed and stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
