"""What a topic's configs ask of the maintenance of its partitions.

A value that the rules beside it read; it decides nothing itself. What is None is not done.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.partition_log.compaction import CompactionRules
from bus.partition_log.retention import RetentionRules
from bus.partition_log.rolling import RollingRules

# The bus's own topics get a version for every few records, which say more of the past than anybody asks for.
INTERNAL_VERSION_COUNT_MAX = 250


@dataclass(frozen=True, slots=True)
class VersionRules:
    """How long the past of a table stays."""

    retention_ms: int  # delta.log.retention.ms
    count_max: int  # delta.log.versions.max
    file_delete_delay_ms: int  # file.delete.delay.ms


@dataclass(frozen=True, slots=True)
class MaintenanceRules:
    versions: VersionRules
    tombstone_retention_ms: int  # delete.retention.ms
    compression: str  # of rolled files
    rolling: RollingRules | None = None
    retention: RetentionRules | None = None
    compaction: CompactionRules | None = None
    is_internal: bool = False  # a topic of the bus's own: compacted as a whole, by a rule of its own
    may_delete_records: bool = True  # cleanup.policy is not compact alone

    @property
    def is_compacted(self) -> bool:
        return self.is_internal or self.compaction is not None
