"""When a partition is compacted by key, and up to where.

Guards a bound on the work: compaction reads and rewrites all that is live, so it waits until there is enough to gain.
Of every byte that was appended it rewrites at most two where the backlog has outgrown what was compacted before (a
dirty ratio of a half). In the bus's own topics files alone make it due too, since every reader opens them all: then a
commit costs a `FILES_MAX`-th of the compacted bytes, beside its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bus.ports import LogFile

# Below this there is little to gain, however small the table.
FILES_MIN = 20
# From this size on compaction pays, however few the files.
BYTES_MIN = 1024 * 1024
# From this number on readers suffer, however small the files.
FILES_MAX = 200


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules for a topic of users."""

    dirty_ratio_min: float  # min.cleanable.dirty.ratio
    lag_min_ms: int  # min.compaction.lag.ms
    lag_max_ms: int  # max.compaction.lag.ms


def decide_key_compaction(
    files: Sequence[LogFile], *, unseen_count: int, rules: CompactionRules, now_ms: int, is_requested: bool = False
) -> int | None:
    """Return the offset up to which to compact now; None: not now. The last `unseen_count` of the live `files` were not
    compacted yet. The newest file, and files younger than the smallest lag, are not touched. `is_requested`: an
    operator wants it, however little there is to gain."""
    seen = files[: len(files) - unseen_count]
    dirty: list[LogFile] = []
    for file in files[len(seen) : -1]:
        if now_ms - file.appended_ms < rules.lag_min_ms:
            break
        dirty.append(file)
    if not dirty:
        return None
    dirty_bytes = sum(file.size_bytes for file in dirty)
    all_bytes = dirty_bytes + sum(file.size_bytes for file in seen)
    is_worth_it = len(dirty) >= FILES_MIN or dirty_bytes >= BYTES_MIN
    is_dirty = is_worth_it and dirty_bytes > rules.dirty_ratio_min * all_bytes
    is_late = now_ms - dirty[0].appended_ms > rules.lag_max_ms
    return dirty[-1].next_offset if is_requested or is_dirty or is_late else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The files that compaction has not processed yet, and the size of those that it has."""

    file_count: int
    size_bytes: int
    compacted_bytes: int


def decide_internal_compaction(backlog: Backlog) -> bool:
    """True if one of the bus's own topics is to be compacted now, as a whole."""
    if backlog.file_count >= FILES_MAX:
        return True
    return backlog.file_count >= FILES_MIN and backlog.size_bytes > backlog.compacted_bytes
