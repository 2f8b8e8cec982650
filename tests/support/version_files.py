"""Version files that a test changes."""

from __future__ import annotations

import re


def without_sum(data: bytes) -> bytes:
    """As an earlier bus or another engine writes it: what is changed in it has to be found by what it says."""
    return re.sub(rb'"fileCrc32":"[0-9a-f]{8}",', b"", data)
