"""Several failures of one call as one error: the code of the first, the messages of all."""

from __future__ import annotations

from collections.abc import Sequence

from bus.client.connection.cluster import error_of
from bus.errors import BusError

_NAMES_MAX = 4  # of those that failed for one reason


def raise_failures(results: Sequence[tuple[str, int, str]]) -> None:
    """`results`: name of the item, its error code, its message. Raises `BusError` if any has an error."""
    failures = [(name, error_of(code, message)) for name, code, message in results if code]
    if not failures:
        return
    first = failures[0][1]
    if len(failures) == 1:
        raise first
    raise BusError(first.code, f"{len(failures)} of {len(results)} failed: {_told(failures)}")


def _told(failures: Sequence[tuple[str, BusError]]) -> str:
    """Each with its name; what all have in common is said once."""
    reasons = {(error.code, error.message.removeprefix(f"{name}: ")) for name, error in failures}
    if len(reasons) > 1:
        return "; ".join(f"{name!r}: {error}" for name, error in failures)
    names = [repr(name) for name, _ in failures]
    shown = ", ".join(names[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    ((code, message),) = reasons
    return f"{shown}{more}: {code.name}: {message}"
