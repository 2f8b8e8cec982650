"""What a reader leaves with a partition, to be woken by it."""

from __future__ import annotations

from typing import Protocol


class Wakeable(Protocol):
    """An `asyncio.Event`, or what notes beside which partition it was that woke it."""

    def set(self) -> None:
        """There may be more to read. Returns at once."""
        ...
