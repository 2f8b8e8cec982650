"""When a compacted partition is cleaned, and what may go.

Guards a bound on the work: compaction reads and rewrites all that is live, so it waits until there is enough to gain.
Of every byte that was appended it rewrites at most two where the backlog has outgrown what was compacted before. Where
it has not, files alone make it due, since every reader opens them all: then a commit costs a `FILES_MAX`-th of the
compacted bytes, beside its own.
"""

from __future__ import annotations

from dataclasses import dataclass

# Below this there is little to gain, however small the table.
FILES_MIN = 20
# So many files are too many for readers, whatever they hold.
FILES_MAX = 200


# The bus's own topics get a version for every few records, which say more of the past than anybody asks for.
INTERNAL_VERSION_COUNT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """Of a compacted topic."""

    tombstone_retention_ms: int  # delete.retention.ms
    file_delete_delay_ms: int  # file.delete.delay.ms
    version_retention_ms: int  # delta.log.retention.ms
    version_count_max: int  # versions behind a checkpoint beyond this go before their time


@dataclass(frozen=True, slots=True)
class Backlog:
    """What compaction has not seen, beside what it has."""

    file_count: int
    size_bytes: int
    compacted_bytes: int


def decide_compaction(backlog: Backlog, *, failed_file_count: int = 0) -> bool:
    """Whether to compact now. `failed_file_count`, if not 0, is how many files the last try had, which failed: the next
    one waits until it is worth another."""
    if failed_file_count and backlog.file_count < failed_file_count + FILES_MIN:
        return False
    if backlog.file_count >= FILES_MAX:
        return True
    return backlog.file_count >= FILES_MIN and backlog.size_bytes > backlog.compacted_bytes
