"""Files prepared to take the place of others, until the writer commits them or they are given up.

Guards one promise: what was written for a swap that does not happen does not stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bus.errors import StorageFault
from bus.storage_delta.actions import LiveFile
from bus.storage_delta.store import ObjectStore
from bus.storage_delta.tombstone_ages import Ages, encode_ages


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """`adds`, each with its statistics, follow each other and stand for the offsets of what they replace."""

    adds: Sequence[tuple[LiveFile, str]]
    operation: str  # as the version will name it
    compacted_to: int | None  # offsets below it may be missing from then on; None: no row is
    txn_id: str


def with_history(file: LiveFile, ages: Ages, *, level: int) -> LiveFile:
    """`file` with what its rows bring along from those that it replaces; `ages` are of all of these."""
    return replace(
        file, level=level, ages=encode_ages(ages, base_offset=file.base_offset, next_offset=file.next_offset)
    )


def discard(store: ObjectStore, folder: str, paths: Iterable[str]) -> None:
    """Delete data files of `folder` that no version will name. What cannot be deleted now is found as an orphan."""
    for path in paths:
        with contextlib.suppress(StorageFault):
            store.delete(f"{folder}/{path}")
