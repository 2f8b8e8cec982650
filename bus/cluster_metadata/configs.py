"""The configs of a topic: which keys there are, what they default to, how they are checked, changed and shown.

Guards two promises: a topic never has a config that is unknown or out of range, and what `describe` says of a key is
true, also where nothing acts on the key yet. Names, types, defaults and ranges are Kafka's (org.apache.kafka.storage
.internals.log.LogConfig); `commit.interval.ms`, `commit.burst`, `delta.log.retention.ms`
and `delta.log.versions.max` are the bus's own.
Overrides are what users have set: name -> canonical text. Decides only; never changes the mapping that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from bus.config.broker import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    DAY_MS,
    SEGMENT_BYTES_MIN,
    TIMESTAMP_TYPES,
    BrokerConfig,
)
from bus.config.keys import (
    LONG_MAX,
    AnyOf,
    Between,
    ConfigEntry,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    OneOf,
    Validator,
    describe_key,
    field_name,
    unknown_key_message,
)
from bus.errors import ErrorCode, Refused
from bus.model import GROUP_PLACEMENT, TimestampType


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configs of one topic with all defaults filled in. Kafka's defaults stand here and nowhere else."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    retention_ms: int = 7 * DAY_MS  # -1: for ever
    retention_bytes: int = -1  # -1: without bound
    segment_bytes: int = 1_073_741_824
    segment_ms: int = 7 * DAY_MS
    max_message_bytes: int = 1_048_588
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    delta_log_retention_ms: int = DAY_MS
    delta_log_versions_max: int = 50_000
    commit_interval_ms: int = 10
    commit_burst: int = 10_000

    @property
    def timestamp_type(self) -> TimestampType:
        is_create_time = self.message_timestamp_type == "CreateTime"
        return TimestampType.CREATE_TIME if is_create_time else TimestampType.LOG_APPEND_TIME

    @property
    def file_compression(self) -> str:
        """The codec of the data files: none, gzip, snappy, lz4 or zstd. A producer's own codec ends at the broker,
        which decodes what it stores as columns, so `producer` has nothing to keep and means none."""
        return "none" if self.compression_type in ("producer", "uncompressed") else self.compression_type


_DEFAULTS: Mapping[str, ConfigValue] = {field.name: field.default for field in fields(TopicConfig)}  # type: ignore[misc]

# Topic config -> the broker setting that its default comes from.
_BROKER_DEFAULTS: Mapping[str, str] = {
    "max.message.bytes": "message.max.bytes",
    "compression.type": "compression.type",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "commit.interval.ms": "commit.interval.ms",
    "commit.burst": "commit.burst",
    "cleanup.policy": "log.cleanup.policy",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "delta.log.retention.ms": "delta.log.retention.ms",
    "delta.log.versions.max": "delta.log.versions.max",
}


def _key(name: str, config_type: ConfigType, validator: Validator, documentation: str) -> ConfigKey:
    return ConfigKey(name, config_type, _DEFAULTS[field_name(name)], documentation, validator)


def _idle_key(name: str, config_type: ConfigType, validator: Validator, documentation: str) -> ConfigKey:
    return ConfigKey(name, config_type, _DEFAULTS[field_name(name)], documentation, validator, is_in_effect=False)


_KEYS = (
    _key(
        "cleanup.policy",
        ConfigType.LIST,
        AnyOf(CLEANUP_POLICIES),
        "What happens to old records: delete by age and size, compact to the last one of each key; empty: nothing.",
    ),
    _key("retention.ms", ConfigType.LONG, Between(-1), "Age in ms at which delete may remove a record; -1: never."),
    _key(
        "retention.bytes",
        ConfigType.LONG,
        Between(-1),
        "Size of a partition above which delete removes its oldest records; -1: no bound.",
    ),
    _key("segment.bytes", ConfigType.INT, Between(SEGMENT_BYTES_MIN), "Size that small data files are rolled up to."),
    _key("segment.ms", ConfigType.LONG, Between(1), "Age in ms at which small data files are rolled up, full or not."),
    _key(
        "max.message.bytes",
        ConfigType.INT,
        Between(0),
        "Largest single record, key + value + headers, in bytes; unlike Kafka's it bounds no batch of records.",
    ),
    _idle_key(
        "min.insync.replicas",
        ConfigType.INT,
        Between(1),
        "Brokers that must have followed a commit before acks=all is answered.",
    ),
    _key(
        "compression.type",
        ConfigType.STRING,
        OneOf(COMPRESSION_TYPES),
        "Codec of the data files; producer and uncompressed: none, whatever codec the records were sent with.",
    ),
    _key(
        "message.timestamp.type",
        ConfigType.STRING,
        OneOf(TIMESTAMP_TYPES),
        "Whose clock stamps a record: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    _key(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        Between(0),
        "With CreateTime: how many ms a timestamp may lie behind the broker's clock before its batch is refused.",
    ),
    _key(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        Between(0),
        "With CreateTime: how many ms a timestamp may lie ahead of the broker's clock before its batch is refused.",
    ),
    _key(
        "delete.retention.ms",
        ConfigType.LONG,
        Between(0),
        "How many ms compaction keeps a tombstone for readers to see.",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        Between(0, 1),
        "Share of a partition that must be uncompacted before compaction takes it up.",
    ),
    _key(
        "min.compaction.lag.ms", ConfigType.LONG, Between(0), "Age in ms that a record reaches before it is compacted."
    ),
    _key(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        Between(1),
        "Age in ms at which a record must take part in compaction.",
    ),
    _key(
        "file.delete.delay.ms",
        ConfigType.LONG,
        Between(0),
        "How many ms a data file stays after the table has let go of it, for readers that still use it.",
    ),
    _key(
        "delta.log.retention.ms",
        ConfigType.LONG,
        Between(0),
        "Age in ms at which versions behind a checkpoint leave the Delta log; a native stream idle longer starts anew.",
    ),
    _key(
        "delta.log.versions.max",
        ConfigType.INT,
        Between(1),
        "Versions that the Delta log keeps at most; older ones behind a checkpoint go before their time.",
    ),
    _key(
        "commit.interval.ms",
        ConfigType.INT,
        Between(0),
        "Pace of a busy partition's Delta commits, in ms; longer makes fewer, larger files and later answers.",
    ),
    _key(
        "commit.burst",
        ConfigType.INT,
        Between(1),
        "Commits that a partition may make at once before the pace of commit.interval.ms sets in.",
    ),
)
TOPIC_CONFIGS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _KEYS})
# What the bus itself keeps with an internal topic, beside the configs that users see and set.
KEPT_CONFIGS = frozenset({GROUP_PLACEMENT})


class AlterOperation(IntEnum):
    """Kafka's incremental operations (KIP-339); the numbers are those of the wire."""

    SET = 0
    DELETE = 1  # back to the default
    APPEND = 2  # to a list
    SUBTRACT = 3  # from a list


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    name: str
    operation: AlterOperation
    value: str = ""  # DELETE takes none


def resolve_topic_config(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> TopicConfig:
    """The topic's configs: what is overridden, else the broker's default, else Kafka's. Raises `ConfigError` for an
    override that `check_topic_configs` would refuse: then it was not this version that accepted it."""
    settings: dict[str, Any] = dict(_broker_defaults(broker))
    for name, text in overrides.items():
        if name not in KEPT_CONFIGS:
            settings[field_name(name)] = _known_key(name).parse(text)
    return TopicConfig(**settings)


def check_topic_configs(configs: Mapping[str, str], broker: BrokerConfig | None = None) -> Refused | None:
    """None if a topic may have these overrides; else INVALID_CONFIG with the key, what was expected and found."""
    normal = normalize_topic_configs(configs, broker)
    return normal if isinstance(normal, Refused) else None


def normalize_topic_configs(
    configs: Mapping[str, str], broker: BrokerConfig | None = None
) -> Mapping[str, str] | Refused:
    """The overrides in canonical text, as they are stored, or the first reason to refuse them: also one that only
    appears beside the broker's defaults."""
    try:
        normal = {name: _normal_text(name, text) for name, text in configs.items()}
        config = resolve_topic_config(normal, broker)
    except ConfigError as error:
        return Refused(ErrorCode.INVALID_CONFIG, str(error))
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        return Refused(
            ErrorCode.INVALID_CONFIG,
            f"expected min.compaction.lag.ms of at most max.compaction.lag.ms, {config.max_compaction_lag_ms}, "
            f"found {config.min_compaction_lag_ms}",
        )
    return normal


def find_contradiction(config: TopicConfig) -> str | None:
    """What is allowed, and yet hardly what somebody wanted."""
    if 0 <= config.retention_bytes < config.segment_bytes:
        return (
            f"segment.bytes is {config.segment_bytes}, above retention.bytes, {config.retention_bytes}: a file may "
            "grow beyond what is kept, and then goes as a whole"
        )
    return None


def describe_topic_configs(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> list[ConfigEntry]:
    """Every config of a topic, set or not. A key that nothing acts on yet says so in its documentation."""
    broker_defaults = _broker_defaults(broker)
    return [_describe(key, overrides.get(key.name), broker_defaults) for key in TOPIC_CONFIGS.values()]


def alter_topic_configs(
    overrides: Mapping[str, str], operations: Sequence[ConfigOperation], broker: BrokerConfig | None = None
) -> Mapping[str, str] | Refused:
    """The overrides after all operations, in canonical text, or the reason why none is done.

    A list begins from its default if it has no override. Appending what is there and subtracting what is not change
    nothing, as in Kafka.
    """
    repeated = _first_repeated(operation.name for operation in operations)
    if repeated is not None:
        return Refused(
            ErrorCode.INVALID_REQUEST, f"expected one operation for each config, found several for {repeated}"
        )
    altered = dict(overrides)
    broker_defaults = _broker_defaults(broker)
    for operation in operations:
        try:
            text = _altered_text(altered, operation, broker_defaults)
        except ConfigError as error:
            return Refused(ErrorCode.INVALID_CONFIG, str(error))
        if text is None:
            altered.pop(operation.name, None)
        else:
            altered[operation.name] = text
    return normalize_topic_configs(altered, broker)


def _altered_text(
    overrides: Mapping[str, str], operation: ConfigOperation, broker_defaults: Mapping[str, ConfigValue]
) -> str | None:
    key = _known_key(operation.name)
    match operation.operation:
        case AlterOperation.SET:
            return operation.value
        case AlterOperation.DELETE:
            return None
        case AlterOperation.APPEND | AlterOperation.SUBTRACT:
            if key.type is not ConfigType.LIST:
                raise ConfigError(f"{key.name}: expected a list to {operation.operation.name}, found {key.type.value}")
            given = key.parse(operation.value)
            current = key.parse(overrides[key.name]) if key.name in overrides else _default(key, broker_defaults)
            assert isinstance(given, tuple)
            assert isinstance(current, tuple)
            if operation.operation is AlterOperation.APPEND:
                return key.format((*current, *(item for item in given if item not in current)))
            return key.format(tuple(item for item in current if item not in given))


def _known_key(name: str) -> ConfigKey:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise ConfigError(unknown_key_message(name, TOPIC_CONFIGS))
    return key


def _normal_text(name: str, text: str) -> str:
    key = _known_key(name)
    return key.format(key.parse(text))


def _broker_defaults(broker: BrokerConfig | None) -> Mapping[str, ConfigValue]:
    """Field of `TopicConfig` -> the broker's default for it."""
    if broker is None:
        return {}
    return {field_name(name): getattr(broker, field_name(source)) for name, source in _BROKER_DEFAULTS.items()}


def _default(key: ConfigKey, broker_defaults: Mapping[str, ConfigValue]) -> ConfigValue:
    return broker_defaults.get(field_name(key.name), key.default)


def _describe(key: ConfigKey, override: str | None, broker_defaults: Mapping[str, ConfigValue]) -> ConfigEntry:
    default = key.format(_default(key, broker_defaults))
    return describe_key(
        key,
        value=default if override is None else override,
        default=default,
        is_default=override is None,
        is_read_only=False,
    )


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
