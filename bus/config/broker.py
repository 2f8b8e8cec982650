"""The settings of a broker: what each key means, and how they are read.

Guards one promise: every key here has an effect, and a wrong setting stops the start with the key, what was expected
and what was found, never later. Reads nothing but the one file that `load_broker_config` is asked to read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bus.config.kafka_keys import reason_of_absence
from bus.config.keys import (
    INT_MAX,
    LONG_MAX,
    AnyOf,
    Between,
    ConfigEntry,
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    NotEmpty,
    OneOf,
    Validator,
    describe_key,
    field_name,
    unknown_key_message,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PARTITIONS_MAX = 10_000  # of one topic; every partition is a table, so a typing error must not create millions
SEGMENT_BYTES_MIN = 1_048_576
DAY_MS = 86_400_000
CLEANUP_POLICIES = ("delete", "compact")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int  # 0: any free one

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, an IPv6 host in brackets. Raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) is None or int(port) > 65535:
        raise ConfigError(f"expected HOST:PORT with a port from 0 to 65535, found {text!r}")
    return Address(host, int(port))


@dataclass(frozen=True, slots=True)
class HostPort:
    is_optional: bool = False

    def accepts(self, value: Any) -> bool:
        if self.is_optional and value == "":
            return True
        try:
            parse_address(value)
        except ConfigError:
            return False
        return True

    def __str__(self) -> str:
        return "empty or HOST:PORT" if self.is_optional else "HOST:PORT"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker: Kafka's names with underscores for dots. The defaults stand here and nowhere else.

    Made by `load_broker_config`, values are checked; made by hand, they are taken as they are.
    """

    root: str = "./bus-data"
    broker_id: int = 0
    listen: str = "127.0.0.1:9094"
    advertise: str = ""
    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    message_max_bytes: int = 1048588
    compression_type: str = "producer"
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_before_max_ms: int = LONG_MAX
    log_message_timestamp_after_max_ms: int = 3_600_000
    commit_interval_ms: int = 10
    commit_burst: int = 10_000
    log_cleanup_policy: tuple[str, ...] = ("delete",)
    log_retention_ms: int = 7 * DAY_MS
    log_retention_bytes: int = -1
    log_segment_bytes: int = 1_073_741_824
    log_roll_ms: int = 7 * DAY_MS
    log_segment_delete_delay_ms: int = 60_000
    log_cleaner_delete_retention_ms: int = DAY_MS
    log_cleaner_min_cleanable_ratio: float = 0.5
    log_cleaner_min_compaction_lag_ms: int = 0
    log_cleaner_max_compaction_lag_ms: int = LONG_MAX
    delta_log_retention_ms: int = DAY_MS
    delta_log_versions_max: int = 50_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_io_max_bytes_per_second: float = sys.float_info.max
    socket_request_max_bytes: int = 104_857_600
    fetch_max_bytes: int = 57_671_680
    request_timeout_ms: int = 30_000
    queued_max_bytes: int = 67_108_864
    queued_max_request_bytes: int = 268_435_456
    producer_id_expiration_ms: int = 86_400_000
    transactional_id_expiration_ms: int = 604_800_000
    offsets_topic_num_partitions: int = 50
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4_096
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = INT_MAX
    group_members_count_max: int = 100_000
    group_members_bytes_max: int = 268_435_456
    group_members_per_client_max: int = 20_000
    group_offsets_count_max: int = 5_000_000
    log_cache_bytes: int = 134_217_728
    num_io_threads: int = 8
    controlled_shutdown_timeout_ms: int = 30_000

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)

    def advertised_address(self, bound_port: int) -> Address:
        """Where clients find this broker. Port 0 stands for the port that the broker was given when it bound."""
        address = parse_address(self.advertise or self.listen)
        return Address(address.host, address.port or bound_port)


_DEFAULTS: Mapping[str, ConfigValue] = {field.name: field.default for field in fields(BrokerConfig)}  # type: ignore[misc]


def _key(name: str, config_type: ConfigType, documentation: str, validator: Validator | None = None) -> ConfigKey:
    return ConfigKey(name, config_type, _DEFAULTS[field_name(name)], documentation, validator)


_BROKER_KEYS = (
    _key("root", ConfigType.STRING, "Where topics and cluster metadata are kept: a local folder.", NotEmpty()),
    _key("broker.id", ConfigType.INT, "Number of this broker in the cluster.", Between(0)),
    _key("listen", ConfigType.STRING, "Address to serve on; port 0 takes a free one.", HostPort()),
    _key(
        "advertise",
        ConfigType.STRING,
        "Address that clients are told to connect to; empty: that of listen.",
        HostPort(is_optional=True),
    ),
    _key(
        "num.partitions",
        ConfigType.INT,
        "Partitions of a new topic whose creator names no number.",
        Between(1, PARTITIONS_MAX),
    ),
    _key(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "Whether a topic is created when a producer or a consumer that may create it asks for it by name.",
    ),
    _key(
        "message.max.bytes",
        ConfigType.INT,
        "Default of the topic config max.message.bytes: the largest single record, key + value + headers.",
        Between(0),
    ),
    _key(
        "compression.type",
        ConfigType.STRING,
        "Default of the topic config compression.type: the codec of the data files.",
        OneOf(COMPRESSION_TYPES),
    ),
    _key(
        "log.message.timestamp.type",
        ConfigType.STRING,
        "Default of the topic config message.timestamp.type.",
        OneOf(TIMESTAMP_TYPES),
    ),
    _key(
        "log.message.timestamp.before.max.ms",
        ConfigType.LONG,
        "Default of the topic config message.timestamp.before.max.ms.",
        Between(0),
    ),
    _key(
        "log.message.timestamp.after.max.ms",
        ConfigType.LONG,
        "Default of the topic config message.timestamp.after.max.ms.",
        Between(0),
    ),
    _key("commit.interval.ms", ConfigType.INT, "Default of the topic config commit.interval.ms.", Between(0)),
    _key("commit.burst", ConfigType.INT, "Default of the topic config commit.burst.", Between(1)),
    _key("log.cleanup.policy", ConfigType.LIST, "Default of the topic config cleanup.policy.", AnyOf(CLEANUP_POLICIES)),
    _key("log.retention.ms", ConfigType.LONG, "Default of the topic config retention.ms.", Between(-1)),
    _key("log.retention.bytes", ConfigType.LONG, "Default of the topic config retention.bytes.", Between(-1)),
    _key("log.segment.bytes", ConfigType.INT, "Default of the topic config segment.bytes.", Between(SEGMENT_BYTES_MIN)),
    _key("log.roll.ms", ConfigType.LONG, "Default of the topic config segment.ms.", Between(1)),
    _key(
        "log.segment.delete.delay.ms",
        ConfigType.LONG,
        "Default of the topic config file.delete.delay.ms.",
        Between(0),
    ),
    _key(
        "log.cleaner.delete.retention.ms",
        ConfigType.LONG,
        "Default of the topic config delete.retention.ms.",
        Between(0),
    ),
    _key(
        "log.cleaner.min.cleanable.ratio",
        ConfigType.DOUBLE,
        "Default of the topic config min.cleanable.dirty.ratio.",
        Between(0, 1),
    ),
    _key(
        "log.cleaner.min.compaction.lag.ms",
        ConfigType.LONG,
        "Default of the topic config min.compaction.lag.ms.",
        Between(0),
    ),
    _key(
        "log.cleaner.max.compaction.lag.ms",
        ConfigType.LONG,
        "Default of the topic config max.compaction.lag.ms.",
        Between(1),
    ),
    _key("delta.log.retention.ms", ConfigType.LONG, "Default of the topic config delta.log.retention.ms.", Between(0)),
    _key("delta.log.versions.max", ConfigType.INT, "Default of the topic config delta.log.versions.max.", Between(1)),
    _key(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        "How often every partition is looked at for what its age makes due: retention, rolling, compaction, cleaning.",
        Between(1),
    ),
    _key(
        "log.cleaner.threads",
        ConfigType.INT,
        "Threads that roll, compact and clean partitions; one partition never takes two.",
        Between(1),
    ),
    _key(
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        "How long maintenance of a partition rests after it failed.",
        Between(0),
    ),
    _key(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "Most bytes that maintenance of all partitions together reads and writes in a second.",
        Between(1),
    ),
    _key("socket.request.max.bytes", ConfigType.INT, "Largest request of records that the broker takes.", Between(1)),
    _key(
        "fetch.max.bytes",
        ConfigType.INT,
        "Most bytes of one fetch response, whatever the client asks for; one batch is always given.",
        Between(1024),
    ),
    _key(
        "request.timeout.ms",
        ConfigType.INT,
        "How long a produce request waits for its commit if the client names no timeout.",
        Between(1),
    ),
    _key(
        "queued.max.bytes",
        ConfigType.LONG,
        "Bytes that may wait for a commit in one partition; more is refused until there is room.",
        Between(1),
    ),
    _key(
        "queued.max.request.bytes",
        ConfigType.LONG,
        "Bytes of requests that may wait for their answers or commits, of all clients; each has a share of them.",
        Between(1),
    ),
    _key(
        "producer.id.expiration.ms",
        ConfigType.INT,
        "How long a partition keeps an idle idempotent producer in memory and in checkpoints; later, its rows decide "
        "about its repeats.",
        Between(1),
    ),
    _key(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        "How long the name of an unused producer is kept; later it begins again, with another producer id.",
        Between(1),
    ),
    _key(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        "Partitions of __consumer_offsets when it is created; later it has no effect.",
        Between(1, PARTITIONS_MAX),
    ),
    _key(
        "offsets.retention.minutes",
        ConfigType.INT,
        "How long committed offsets stay after their group has become empty, or after the commit if it has no members.",
        Between(1),
    ),
    _key(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        "How often committed offsets are looked through for those to forget.",
        Between(1),
    ),
    _key(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        "Largest text that may be committed with an offset, in bytes.",
        Between(0),
    ),
    _key(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        "How long the first rebalance of an empty group waits for more members, again for each that comes.",
        Between(0),
    ),
    _key(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        "Shortest session timeout that a member of a group may ask for.",
        Between(0),
    ),
    _key(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        "Longest session timeout that a member of a group may ask for.",
        Between(0),
    ),
    _key("group.max.size", ConfigType.INT, "Most members of one group.", Between(1)),
    _key(
        "group.members.count.max",
        ConfigType.INT,
        "Members of all groups that the broker coordinates, those included that have an id and have not joined yet.",
        Between(1),
    ),
    _key(
        "group.members.bytes.max",
        ConfigType.LONG,
        "Bytes of what members of all groups say when they join, and of what they are assigned.",
        Between(1),
    ),
    _key(
        "group.members.per.client.max",
        ConfigType.INT,
        "New members that one client's address may have within the session timeout that they ask for.",
        Between(1),
    ),
    _key(
        "group.offsets.count.max",
        ConfigType.INT,
        "Committed offsets of all groups that the broker coordinates, one for each group and partition.",
        Between(1),
    ),
    _key(
        "log.cache.bytes",
        ConfigType.LONG,
        "Memory for the newest batches of all partitions, so that readers at the tail touch no file; 0: none.",
        Between(0),
    ),
    _key("num.io.threads", ConfigType.INT, "Threads that read and write the storage.", Between(1)),
    _key(
        "controlled.shutdown.timeout.ms",
        ConfigType.INT,
        "How long a shutdown waits for the commits in flight and their answers.",
        Between(0),
    ),
)
BROKER_CONFIGS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _BROKER_KEYS})


def load_broker_config(path: str | Path | None = None, overrides: Mapping[str, object] | None = None) -> BrokerConfig:
    """The settings in the TOML file at `path` if one is given, changed by `overrides`, the rest at their defaults.

    Both use the names of `BROKER_CONFIGS`. An override that is a text is parsed, as command lines and environments have
    only texts; any other must have the key's type. Raises `ConfigError` for a file that cannot be read or is no TOML
    (with line and column), an unknown key (with the nearest known one), a wrong value.
    """
    values: dict[str, ConfigValue] = {}
    if path is not None:
        for name, value in _read_toml(Path(path)).items():
            try:
                values[name] = _broker_key(name).check(value)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
    for name, value in (overrides or {}).items():
        key = _broker_key(name)
        values[name] = key.parse(value) if isinstance(value, str) else key.check(value)
    settings: dict[str, Any] = {field_name(name): value for name, value in values.items()}
    config = BrokerConfig(**settings)
    _check_reachable(config)
    _check_session_timeouts(config)
    _check_compaction_lags(config)
    return config


def describe_broker_config(config: BrokerConfig) -> list[ConfigEntry]:
    """Every setting of the broker. They are read once, at its start, so all of them are read-only."""
    entries = []
    for key in BROKER_CONFIGS.values():
        value = getattr(config, field_name(key.name))
        entries.append(
            describe_key(
                key,
                value=key.format(value),
                default=key.format(key.default),
                is_default=value == key.default,
                is_read_only=True,
            )
        )
    return entries


def _broker_key(name: str) -> ConfigKey:
    key = BROKER_CONFIGS.get(name)
    if key is None:
        reason = reason_of_absence(name)
        raise ConfigError(
            unknown_key_message(name, BROKER_CONFIGS) if reason is None else f"{name}: no key of the bus: {reason}"
        )
    return key


def _check_reachable(config: BrokerConfig) -> None:
    """Clients connect to what they are told, and an address that means "all interfaces" leads nowhere."""
    name = "advertise" if config.advertise else "listen"
    host = parse_address(config.advertise or config.listen).host
    if host in ("0.0.0.0", "::"):
        raise ConfigError(f"{name} is {host}: expected advertise to name an address that clients can connect to")


def _check_session_timeouts(config: BrokerConfig) -> None:
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if shortest > longest:
        raise ConfigError(
            f"expected group.min.session.timeout.ms of at most group.max.session.timeout.ms, {longest}, "
            f"found {shortest}"
        )


def _check_compaction_lags(config: BrokerConfig) -> None:
    shortest, longest = config.log_cleaner_min_compaction_lag_ms, config.log_cleaner_max_compaction_lag_ms
    if shortest > longest:
        raise ConfigError(
            f"expected log.cleaner.min.compaction.lag.ms of at most log.cleaner.max.compaction.lag.ms, {longest}, "
            f"found {shortest}"
        )


def _read_toml(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, found other bytes at position {error.start}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML, found: {error}") from error
    try:
        return _flatten(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Dotted keys are nested tables in TOML; here they are names again."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        inner = _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        twice = flat.keys() & inner.keys()
        if twice:
            raise ConfigError(f"expected {min(twice)} once, found it twice")
        flat.update(inner)
    return flat
