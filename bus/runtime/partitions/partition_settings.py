"""A topic's configs as its partitions use them.

Guards one promise: what a config says is decided here, once, for every partition of the topic. Of the bus's own topics
those with state are compacted as a whole, and nothing else is done to them; `__audit` is rolled and retained as any
other, but nobody deletes its records.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.cluster_metadata.configs import is_internal_topic, resolve_topic_config
from bus.partition_log.appends import AppendRules
from bus.partition_log.log_life import (
    INTERNAL_VERSION_COUNT_MAX,
    CompactionRules,
    MaintenanceRules,
    RetentionRules,
    RollingRules,
    VersionRules,
)
from bus.settings.broker import BrokerConfig
from bus.settings.topic import TopicConfig


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    append_rules: AppendRules
    compression: str
    commit_interval_ms: int
    commit_burst: int
    maintenance: MaintenanceRules
    producer_expiration_ms: int  # producer.id.expiration.ms of the broker
    min_insync_replicas: int = 1
    staged_bytes_max: int = 128 << 20  # the limit for one transaction: transaction.staged.max.bytes of the broker


def settings_of(topic: str, config: TopicConfig, broker: BrokerConfig) -> PartitionSettings:
    return PartitionSettings(
        append_rules=AppendRules(
            record_bytes_max=config.max_message_bytes,
            timestamp_type=config.timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            is_key_required="compact" in config.cleanup_policy,
        ),
        compression=config.file_compression,
        commit_interval_ms=config.commit_interval_ms,
        commit_burst=config.commit_burst,
        maintenance=_internal_maintenance(config) if is_internal_topic(topic) else _maintenance(config),
        min_insync_replicas=config.min_insync_replicas,
        producer_expiration_ms=broker.producer_id_expiration_ms,
        staged_bytes_max=broker.transaction_staged_max_bytes,
    )


def metadata_maintenance(broker: BrokerConfig) -> MaintenanceRules:
    """The rules for the log of the cluster's metadata: its snapshots replace retention and compaction."""
    config = resolve_topic_config({}, broker)
    return MaintenanceRules(
        versions=_versions(config, count_max=INTERNAL_VERSION_COUNT_MAX),
        tombstone_retention_ms=config.delete_retention_ms,
        compression=config.file_compression,
        rolling=RollingRules(config.segment_bytes, config.segment_ms),
        may_delete_records=False,
    )


def _internal_maintenance(config: TopicConfig) -> MaintenanceRules:
    is_retained = "delete" in config.cleanup_policy
    return MaintenanceRules(
        versions=_versions(config, count_max=INTERNAL_VERSION_COUNT_MAX),
        tombstone_retention_ms=config.delete_retention_ms,
        compression=config.file_compression,
        rolling=RollingRules(config.segment_bytes, config.segment_ms) if is_retained else None,
        retention=RetentionRules(config.retention_ms, config.retention_bytes) if is_retained else None,
        is_internal="compact" in config.cleanup_policy,
        may_delete_records=False,
    )


def _maintenance(config: TopicConfig) -> MaintenanceRules:
    policy = config.cleanup_policy
    compaction = CompactionRules(
        dirty_ratio_min=config.min_cleanable_dirty_ratio,
        lag_min_ms=config.min_compaction_lag_ms,
        lag_max_ms=config.max_compaction_lag_ms,
    )
    return MaintenanceRules(
        versions=_versions(config, count_max=config.delta_log_versions_max),
        tombstone_retention_ms=config.delete_retention_ms,
        compression=config.file_compression,
        rolling=RollingRules(config.segment_bytes, config.segment_ms),
        retention=RetentionRules(config.retention_ms, config.retention_bytes) if "delete" in policy else None,
        compaction=compaction if "compact" in policy else None,
        may_delete_records="delete" in policy or "compact" not in policy,
        is_managed=not config.delta_foreign_writers_enable,
    )


def _versions(config: TopicConfig, *, count_max: int) -> VersionRules:
    return VersionRules(
        retention_ms=config.delta_log_retention_ms,
        count_max=count_max,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
