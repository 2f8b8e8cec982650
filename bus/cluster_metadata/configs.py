"""Configs of a topic: their keys, defaults, checks, changes and descriptions.

Guards two promises: a topic never has a config that is unknown or out of range, and what `describe` says of a key is
true, also where nothing acts on the key yet. Names, types, defaults and ranges are Kafka's (org.apache.kafka.storage
.internals.log.LogConfig); `commit.interval.ms`, `commit.burst` and those that begin with `delta.` are the bus's own.
Overrides are what users have set: name -> canonical text. Decides only; never changes the mapping that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bus.descriptions import ConfigDescription
from bus.errors import ErrorCode, Refused
from bus.model import GROUP_PLACEMENT, INTERNAL_TOPIC_PREFIX
from bus.settings.broker import (
    TOPIC_DEFAULTS,
    BrokerConfig,
)
from bus.settings.keys import (
    ConfigError,
    ConfigType,
    ConfigValue,
    Key,
    describe_key,
    field_name,
    unknown_key_message,
)
from bus.settings.topic import TOPIC_CONFIGS, TopicConfig

# Configs that the bus itself stores with an internal topic, beside those that users see and set.
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
    """Return the topic's configs: the override, else the broker's default, else Kafka's. Raises `ConfigError` for an
    override that `check_topic_configs` would refuse, which another version must have accepted."""
    settings: dict[str, Any] = dict(_broker_defaults(broker))
    for name, text in overrides.items():
        if name not in KEPT_CONFIGS:
            settings[field_name(name)] = _known_key(name).parse(text)
    return TopicConfig(**settings)


def check_topic_configs(configs: Mapping[str, str], broker: BrokerConfig | None = None) -> Refused | None:
    """Return None if a topic may have these overrides; otherwise INVALID_CONFIG with the key and what was expected and
    found."""
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
    """Return a warning about configs that are allowed and hardly intended."""
    if 0 <= config.retention_bytes < config.segment_bytes:
        return (
            f"segment.bytes is {config.segment_bytes}, above retention.bytes, {config.retention_bytes}: a file may "
            "grow beyond what is kept, and then goes as a whole"
        )
    return None


def describe_topic_configs(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> list[ConfigDescription]:
    """Every config of a topic, set or not. A key that nothing acts on yet says so in its documentation."""
    broker_defaults = _broker_defaults(broker)
    return [_describe(key, overrides.get(key.name), broker_defaults) for key in TOPIC_CONFIGS.values()]


def alter_topic_configs(
    overrides: Mapping[str, str], operations: Sequence[ConfigOperation], broker: BrokerConfig | None = None
) -> Mapping[str, str] | Refused:
    """Return the overrides after all operations, in canonical text, or the reason why none is done.

    A list begins from its default if it has no override. As in Kafka, appending an existing element, or subtracting a
    missing one, changes nothing.
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


def _known_key(name: str) -> Key:
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
    return {field_name(name): getattr(broker, source) for name, source in TOPIC_DEFAULTS.items()}


def _default(key: Key, broker_defaults: Mapping[str, ConfigValue]) -> ConfigValue:
    return broker_defaults.get(field_name(key.name), key.default)


def _describe(key: Key, override: str | None, broker_defaults: Mapping[str, ConfigValue]) -> ConfigDescription:
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


TOPIC_NAME_LENGTH_MAX = 249  # Kafka's: with a partition's suffix it is still a file name
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> Refused | None:
    """None if the name is legal by Kafka's rules (org.apache.kafka.common.internals.Topic): 1 to 249 of the characters
    a-z A-Z 0-9 . _ - and neither "." nor "..", so that it is safe as a folder and in every client."""
    if not name:
        return _invalid("expected a topic name, found an empty one")
    if name in (".", ".."):
        return _invalid(f"expected a topic name other than . and .., found {name}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return _invalid(f"expected a topic name of at most {TOPIC_NAME_LENGTH_MAX} characters, found {len(name)}")
    if _LEGAL_NAME.fullmatch(name) is None:
        return _invalid(f"expected a topic name of a-z, A-Z, 0-9, '.', '_' and '-', found {name!r}")
    return None


def is_internal_topic(name: str) -> bool:
    return name.startswith(INTERNAL_TOPIC_PREFIX)


def check_not_internal(name: str) -> Refused | None:
    """None if users may create, change and delete a topic of this name."""
    if is_internal_topic(name):
        return _invalid(f"topics that begin with {INTERNAL_TOPIC_PREFIX} belong to the bus itself, found {name!r}")
    return None


def collision_key(name: str) -> str:
    """Two names with one key collide: metric names turn '.' into '_', and such topics could not be told apart there."""
    return name.replace(".", "_")


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
