"""Version files that a test changes."""

from __future__ import annotations

import re


def without_sum(data: bytes) -> bytes:
    """Return the version as an earlier bus or another engine writes it: damage in it must be found by its content."""
    return re.sub(rb'"fileCrc32":"[0-9a-f]{8}",', b"", data)
