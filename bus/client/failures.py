"""Several failures of one call as one error: the code of the first, the messages of all."""

from __future__ import annotations

from collections.abc import Sequence

from bus.client.cluster import error_of
from bus.errors import BusError


def raise_failures(results: Sequence[tuple[str, int, str]]) -> None:
    """`results`: name of the item, its error code, its message. Raises `BusError` if any has an error."""
    failures = [(name, error_of(code, message)) for name, code, message in results if code]
    if not failures:
        return
    first = failures[0][1]
    if len(failures) == 1:
        raise first
    raise BusError(
        first.code,
        f"{len(failures)} of {len(results)} failed: " + "; ".join(f"{name!r}: {error}" for name, error in failures),
    )
