"""Files prepared to take the place of others, until the writer commits them or they are given up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bus.ports import PreparedFiles, SwapKind
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.files.tombstone_ages import Ages, encode_ages


@dataclass(frozen=True, slots=True)
class PreparedSwap(PreparedFiles):
    """`adds`, each with its statistics, follow each other and stand for the offsets of what they replace."""

    adds: Sequence[tuple[LiveFile, str]]
    operation: str  # the name of the operation in the version
    compacted_to: int | None  # offsets below it may be missing from then on; None: no row is
    txn_id: str
    # How often the table had read its log again when the files were begun; a swap is void once it does so again.
    reloads: int = 0
    is_adopted: bool = False  # another program wrote the files


def since_reload(prepared: PreparedSwap, reloads: int, *, is_adopted: bool = False) -> PreparedSwap:
    """To be committed only if the log was read `reloads` times by then."""
    return replace(prepared, reloads=reloads, is_adopted=is_adopted)


def prepared_swap(
    files: Sequence[LiveFile], adds: Sequence[tuple[LiveFile, str]], kind: SwapKind, *, txn_id: str
) -> PreparedSwap:
    """`adds`, which are in the store, in place of `files`."""
    is_same = kind is SwapKind.SAME_ROWS
    return PreparedSwap(
        removes=[file.path for file in files],
        added_count=len(adds),
        rewritten_bytes=sum(file.size_bytes for file, _ in adds),
        adds=adds,
        operation="OPTIMIZE" if is_same else "COMPACT",
        compacted_to=None if is_same else files[-1].next_offset,
        txn_id=txn_id,
    )


def level_above(files: Iterable[LiveFile]) -> int:
    """The level of files that are made of the rows of `files`."""
    return 1 + max(file.level for file in files)


def with_history(file: LiveFile, ages: Ages, *, level: int) -> LiveFile:
    """`file` with what its rows bring along from those that it replaces; `ages` are of all of these."""
    return replace(
        file, level=level, ages=encode_ages(ages, base_offset=file.base_offset, next_offset=file.next_offset)
    )
