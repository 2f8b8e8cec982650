"""Settings of partitions that follow from a topic's configs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.model import AUDIT_TOPIC, CONSUMER_OFFSETS_TOPIC
from bus.partition_log.log_life import (
    INTERNAL_VERSION_COUNT_MAX,
    CompactionRules,
    MaintenanceRules,
    RetentionRules,
    RollingRules,
    VersionRules,
)
from bus.runtime.partitions.partition_settings import settings_of
from bus.settings.broker import BrokerConfig
from bus.settings.topic import TopicConfig

BROKER = BrokerConfig(producer_id_expiration_ms=77)
CONFIG = TopicConfig(
    cleanup_policy=("compact", "delete"),
    retention_ms=1,
    retention_bytes=2,
    segment_bytes=3,
    segment_ms=4,
    delete_retention_ms=5,
    min_cleanable_dirty_ratio=0.6,
    min_compaction_lag_ms=7,
    max_compaction_lag_ms=8,
    file_delete_delay_ms=9,
    delta_log_retention_ms=10,
    delta_log_versions_max=11,
    delta_foreign_writers_enable=True,
    compression_type="zstd",
)


def rules_of(*policy: str, topic: str = "orders") -> MaintenanceRules:
    return settings_of(topic, TopicConfig(cleanup_policy=policy), BROKER).maintenance


def test_every_config_of_maintenance_reaches_its_rule() -> None:
    settings = settings_of("orders", CONFIG, BROKER)
    assert settings.maintenance == MaintenanceRules(
        versions=VersionRules(retention_ms=10, count_max=11, file_delete_delay_ms=9),
        tombstone_retention_ms=5,
        compression="zstd",
        rolling=RollingRules(segment_bytes=3, segment_ms=4),
        retention=RetentionRules(retention_ms=1, retention_bytes=2),
        compaction=CompactionRules(dirty_ratio_min=0.6, lag_min_ms=7, lag_max_ms=8),
        is_internal=False,
        may_delete_records=True,
        is_managed=False,
    )
    assert settings.producer_expiration_ms == 77


@pytest.mark.parametrize(
    ("policy", "retains", "compacts", "may_delete"),
    [
        (("delete",), True, False, True),
        (("compact",), False, True, False),
        (("compact", "delete"), True, True, True),
        ((), False, False, True),
    ],
)
def test_the_policy_says_what_goes_and_every_topic_is_rolled(
    policy: tuple[str, ...], retains: bool, compacts: bool, may_delete: bool
) -> None:
    rules = rules_of(*policy)
    assert (rules.retention is not None, rules.compaction is not None) == (retains, compacts)
    assert (rules.is_compacted, rules.may_delete_records) == (compacts, may_delete)
    assert rules.rolling is not None
    settings = settings_of("orders", TopicConfig(cleanup_policy=policy), BROKER)
    assert settings.append_rules.is_key_required is compacts


def test_the_bus_own_topics_are_compacted_as_a_whole_and_nothing_else() -> None:
    rules = rules_of("compact", topic=CONSUMER_OFFSETS_TOPIC)
    assert (rules.is_internal, rules.is_compacted, rules.may_delete_records) == (True, True, False)
    assert (rules.rolling, rules.retention, rules.compaction) == (None, None, None)
    assert rules.versions.count_max == INTERNAL_VERSION_COUNT_MAX
    assert not rules_of(topic=CONSUMER_OFFSETS_TOPIC).is_compacted


def test_the_audit_is_rolled_and_retained_as_its_configs_say_and_nobody_deletes_its_records() -> None:
    rules = settings_of(AUDIT_TOPIC, replace(CONFIG, cleanup_policy=("delete",)), BROKER).maintenance
    assert rules.retention == RetentionRules(retention_ms=1, retention_bytes=2)
    assert rules.rolling == RollingRules(segment_bytes=3, segment_ms=4)
    assert (rules.is_internal, rules.is_compacted, rules.may_delete_records) == (False, False, False)
