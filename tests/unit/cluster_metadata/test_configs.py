"""Topic configs: Kafka's keys, and what is refused, resolved, changed and shown."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.configs import (
    AlterOperation,
    ConfigOperation,
    alter_topic_configs,
    check_topic_configs,
    describe_topic_configs,
    find_contradiction,
    normalize_topic_configs,
    resolve_topic_config,
)
from bus.errors import ErrorCode, Refused
from bus.model import TimestampType
from bus.settings.broker import BrokerConfig
from bus.settings.keys import NO_EFFECT_YET, ConfigError, field_name
from bus.settings.topic import TOPIC_CONFIGS, TopicConfig

SET, DELETE, APPEND, SUBTRACT = AlterOperation


def test_every_config_has_a_field_and_a_valid_default() -> None:
    assert {field_name(name) for name in TOPIC_CONFIGS} == set(TopicConfig.__dataclass_fields__)
    for key in TOPIC_CONFIGS.values():
        assert key.check(key.default) == key.default
        assert key.parse(key.format(key.default)) == key.default


# Kafka 4's documented defaults; delta.log.*, commit.interval.ms and commit.burst are the bus's own.
@pytest.mark.parametrize(
    ("name", "default", "config_type", "valid_values"),
    [
        ("cleanup.policy", "delete", "list", "any of delete, compact"),
        ("retention.ms", "604800000", "long", "[-1,...]"),
        ("retention.bytes", "-1", "long", "[-1,...]"),
        ("segment.bytes", "1073741824", "int", "[1048576,...]"),
        ("segment.ms", "604800000", "long", "[1,...]"),
        ("max.message.bytes", "1048588", "int", "[0,...]"),
        ("min.insync.replicas", "1", "int", "[1,...]"),
        ("compression.type", "producer", "string", "one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("message.timestamp.type", "CreateTime", "string", "one of CreateTime, LogAppendTime"),
        ("message.timestamp.before.max.ms", "9223372036854775807", "long", "[0,...]"),
        ("message.timestamp.after.max.ms", "3600000", "long", "[0,...]"),
        ("delete.retention.ms", "86400000", "long", "[0,...]"),
        ("min.cleanable.dirty.ratio", "0.5", "double", "[0,...,1]"),
        ("min.compaction.lag.ms", "0", "long", "[0,...]"),
        ("max.compaction.lag.ms", "9223372036854775807", "long", "[1,...]"),
        ("file.delete.delay.ms", "60000", "long", "[0,...]"),
        ("delta.log.retention.ms", "86400000", "long", "[0,...]"),
        ("delta.log.versions.max", "50000", "int", "[1,...]"),
        ("commit.interval.ms", "10", "int", "[0,...]"),
        ("commit.burst", "10000", "int", "[1,...]"),
    ],
)
def test_described_defaults_types_and_ranges(name: str, default: str, config_type: str, valid_values: str) -> None:
    entry = {entry.name: entry for entry in describe_topic_configs({})}[name]
    assert (entry.value, entry.default_value, entry.is_default, entry.is_read_only) == (default, default, True, False)
    assert (entry.type, entry.valid_values) == (config_type, valid_values)


def test_description_is_one_line_and_says_what_has_no_effect_yet() -> None:
    entries = describe_topic_configs({})
    assert all("\n" not in entry.documentation and entry.documentation.endswith(".") for entry in entries)
    assert [entry.name for entry in entries if entry.documentation.endswith(NO_EFFECT_YET)] == []


def test_override_wins_over_the_broker_and_the_broker_over_the_default() -> None:
    broker = BrokerConfig(message_max_bytes=10, log_message_timestamp_type="LogAppendTime", commit_burst=3)
    config = resolve_topic_config({"max.message.bytes": "20", "cleanup.policy": "compact,delete"}, broker)
    assert config == TopicConfig(
        max_message_bytes=20,
        message_timestamp_type="LogAppendTime",
        commit_burst=3,
        cleanup_policy=("compact", "delete"),
    )
    assert resolve_topic_config({}) == TopicConfig()
    assert resolve_topic_config({}, BrokerConfig()) == TopicConfig()


def test_every_broker_default_of_a_topic_config_is_used() -> None:
    broker = BrokerConfig(
        message_max_bytes=1,
        compression_type="zstd",
        log_message_timestamp_type="LogAppendTime",
        log_message_timestamp_before_max_ms=2,
        log_message_timestamp_after_max_ms=3,
        commit_interval_ms=4,
        commit_burst=5,
        log_cleanup_policy=("compact",),
        log_retention_ms=6,
        log_retention_bytes=7,
        log_segment_bytes=8,
        log_roll_ms=9,
        log_segment_delete_delay_ms=10,
        log_cleaner_delete_retention_ms=11,
        log_cleaner_min_cleanable_ratio=0.12,
        log_cleaner_min_compaction_lag_ms=13,
        log_cleaner_max_compaction_lag_ms=14,
        delta_log_retention_ms=15,
        delta_log_versions_max=16,
    )
    assert resolve_topic_config({}, broker) == TopicConfig(
        max_message_bytes=1,
        compression_type="zstd",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=2,
        message_timestamp_after_max_ms=3,
        commit_interval_ms=4,
        commit_burst=5,
        cleanup_policy=("compact",),
        retention_ms=6,
        retention_bytes=7,
        segment_bytes=8,
        segment_ms=9,
        file_delete_delay_ms=10,
        delete_retention_ms=11,
        min_cleanable_dirty_ratio=0.12,
        min_compaction_lag_ms=13,
        max_compaction_lag_ms=14,
        delta_log_retention_ms=15,
        delta_log_versions_max=16,
    )


def test_description_shows_the_broker_default_and_the_override() -> None:
    broker = BrokerConfig(message_max_bytes=10, commit_burst=3)
    entries = {entry.name: entry for entry in describe_topic_configs({"max.message.bytes": "20"}, broker)}
    size, burst = entries["max.message.bytes"], entries["commit.burst"]
    assert (size.value, size.default_value, size.is_default) == ("20", "10", False)
    assert (burst.value, burst.default_value, burst.is_default) == ("3", "3", True)


def test_override_that_this_version_would_not_have_accepted_is_no_silent_default() -> None:
    with pytest.raises(ConfigError, match=r"unknown configuration key 'from\.the\.future'"):
        resolve_topic_config({"from.the.future": "1"})
    with pytest.raises(ConfigError, match=r"commit\.burst: expected int"):
        resolve_topic_config({"commit.burst": "0"})


@pytest.mark.parametrize(
    ("text", "timestamp_type"),
    [("CreateTime", TimestampType.CREATE_TIME), ("LogAppendTime", TimestampType.LOG_APPEND_TIME)],
)
def test_timestamp_type_as_the_log_stores_it(text: str, timestamp_type: TimestampType) -> None:
    assert resolve_topic_config({"message.timestamp.type": text}).timestamp_type is timestamp_type


@pytest.mark.parametrize(
    ("text", "codec"),
    [("producer", "none"), ("uncompressed", "none"), ("gzip", "gzip"), ("snappy", "snappy"), ("lz4", "lz4")],
)
def test_codec_of_the_data_files(text: str, codec: str) -> None:
    assert resolve_topic_config({"compression.type": text}).file_compression == codec


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention.mss": "1"}, "unknown configuration key 'retention.mss'; did you mean retention.ms?"),
        ({"retention_ms": "1"}, "unknown configuration key 'retention_ms'; did you mean retention.ms?"),
        ({"retention.ms": "-2"}, "retention.ms: expected long ([-1,...]), found '-2'"),
        ({"segment.bytes": "1024"}, "segment.bytes: expected int ([1048576,...]), found '1024'"),
        (
            {"compression.type": "rar"},
            "compression.type: expected string (one of producer, uncompressed, gzip, snappy, lz4, zstd), found 'rar'",
        ),
        ({"cleanup.policy": "drop"}, "cleanup.policy: expected list (any of delete, compact), found 'drop'"),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            "expected min.compaction.lag.ms of at most max.compaction.lag.ms, 5, found 6",
        ),
    ],
)
def test_wrong_config_is_refused_with_what_was_expected_and_found(configs: dict[str, str], message: str) -> None:
    assert check_topic_configs(configs) == Refused(ErrorCode.INVALID_CONFIG, message)


def test_right_configs_are_taken_and_stored_in_canonical_text() -> None:
    configs = {"retention.ms": " +60000 ", "cleanup.policy": "compact , delete", "min.cleanable.dirty.ratio": ".5"}
    assert check_topic_configs(configs) is None
    assert normalize_topic_configs(configs) == {
        "retention.ms": "60000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.5",
    }


@pytest.mark.parametrize(
    ("overrides", "operation", "expected"),
    [
        ({}, ConfigOperation("retention.ms", SET, " 5"), {"retention.ms": "5"}),
        ({"retention.ms": "5"}, ConfigOperation("retention.ms", SET, "604800000"), {"retention.ms": "604800000"}),
        ({"retention.ms": "5", "commit.burst": "2"}, ConfigOperation("retention.ms", DELETE), {"commit.burst": "2"}),
        ({}, ConfigOperation("retention.ms", DELETE), {}),
        ({}, ConfigOperation("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        ({}, ConfigOperation("cleanup.policy", APPEND, "delete"), {"cleanup.policy": "delete"}),
        (
            {"cleanup.policy": "compact"},
            ConfigOperation("cleanup.policy", APPEND, "delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        ({}, ConfigOperation("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": ""}),
        (
            {"cleanup.policy": "compact,delete"},
            ConfigOperation("cleanup.policy", SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
    ],
)
def test_operation_gives_the_overrides_after_it(
    overrides: dict[str, str], operation: ConfigOperation, expected: dict[str, str]
) -> None:
    before = dict(overrides)
    assert alter_topic_configs(overrides, [operation]) == expected
    assert overrides == before


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (
            ConfigOperation("retention.m", SET, "5"),
            "unknown configuration key 'retention.m'; did you mean retention.ms?",
        ),
        (ConfigOperation("retention.m", DELETE), "unknown configuration key 'retention.m'; did you mean retention.ms?"),
        (ConfigOperation("commit.burst", SET, ""), "commit.burst: expected int ([1,...]), found ''"),
        (ConfigOperation("commit.burst", APPEND, "1"), "commit.burst: expected a list to APPEND, found int"),
        (
            ConfigOperation("cleanup.policy", SUBTRACT, "drop"),
            "cleanup.policy: expected list (any of delete, compact), found 'drop'",
        ),
    ],
)
def test_wrong_operation_is_refused(operation: ConfigOperation, message: str) -> None:
    assert alter_topic_configs({}, [operation]) == Refused(ErrorCode.INVALID_CONFIG, message)


def test_operations_are_checked_together_and_none_is_done_if_one_is_wrong() -> None:
    overrides = {"max.compaction.lag.ms": "5"}
    raised = [ConfigOperation("min.compaction.lag.ms", SET, "6"), ConfigOperation("max.compaction.lag.ms", SET, "7")]
    assert alter_topic_configs(overrides, raised) == {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "7"}
    refused = alter_topic_configs(overrides, raised[:1])
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.INVALID_CONFIG


def test_override_that_contradicts_the_broker_default_is_refused() -> None:
    broker = BrokerConfig(log_cleaner_max_compaction_lag_ms=5)
    assert check_topic_configs({"min.compaction.lag.ms": "6"}) is None
    refused = check_topic_configs({"min.compaction.lag.ms": "6"}, broker)
    assert refused == Refused(
        ErrorCode.INVALID_CONFIG, "expected min.compaction.lag.ms of at most max.compaction.lag.ms, 5, found 6"
    )


def test_appending_to_a_list_that_nobody_set_begins_from_the_broker_default() -> None:
    broker = BrokerConfig(log_cleanup_policy=("compact",))
    altered = alter_topic_configs({}, [ConfigOperation("cleanup.policy", APPEND, "delete")], broker)
    assert altered == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("config", "is_told"),
    [
        (TopicConfig(retention_bytes=2_000_000, segment_bytes=2_000_001), True),
        (TopicConfig(retention_bytes=0), True),
        (TopicConfig(retention_bytes=2_000_000, segment_bytes=2_000_000), False),
        (TopicConfig(retention_bytes=-1), False),
    ],
)
def test_segments_above_what_is_retained_are_allowed_and_told(config: TopicConfig, is_told: bool) -> None:
    told = find_contradiction(config)
    assert (told is not None) is is_told
    assert told is None or (str(config.segment_bytes) in told and str(config.retention_bytes) in told)


def test_config_named_twice_in_one_request_is_refused() -> None:
    twice = [ConfigOperation("commit.burst", SET, "1"), ConfigOperation("commit.burst", DELETE)]
    assert alter_topic_configs({}, twice) == Refused(
        ErrorCode.INVALID_REQUEST, "expected one operation for each config, found several for commit.burst"
    )
