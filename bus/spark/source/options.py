"""The options of `format("bus")` for reading, as one value.

Names and meanings are those of Spark's Kafka source (Structured Streaming + Kafka Integration Guide), so that a job
moves by changing format and address; what begins with `bus.` is ours. Guards one promise: a wrong option is refused
here, at load(), by its name, with what was expected and what was found; never later in an executor, never passed over.
Decides only: reaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bus.client.config.consumer import ConsumerConfig
from bus.client.config.parsing import parse_addresses, parse_config
from bus.client.config.security import security_settings
from bus.client.config.sources import PROFILE_SETTINGS, default_addresses, only_settings_of_connections
from bus.errors import BusError, did_you_mean, near_names
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.ports import OFFSET_MAX
from bus.settings.keys import WrongSetting, keys_of
from bus.spark.source.planning import Sharing
from bus.spark.source.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtGroup,
    AtOffsets,
    AtTime,
    AtTimes,
    AtVersions,
    Edge,
    NotOffsets,
    Position,
    parse_assignment,
    parse_partitions,
)

_log = logger_of(__name__)


class OptionError(ValueError):
    """An option that cannot be used. The message names it, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Location:
    """How the log is reached: a broker, or the storage alone."""

    address: str | None = None  # of one broker or several, separated by commas
    root: str | None = None  # a path or URL
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the client, by their Python names

    def __str__(self) -> str:
        return self.root or self.address or "nowhere"


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribedPattern:
    """All topics whose whole name matches, but internal ones."""

    pattern: str


Subscription = Assigned | Subscribed | SubscribedPattern


@dataclass(frozen=True, slots=True)
class SourceOptions:
    location: Location
    subscription: Subscription
    start: Position
    end: Position  # of a batch query
    is_late_start_latest: bool  # no record at or after a starting time: begin at the end, instead of failing
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    splits_partitions: bool  # False: one task reads all that a batch has of a partition, in its order
    pushes_filters: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    retries: int  # of a question that failed for a reason that may pass: so often at least,
    retry_interval_ms: int
    patience_ms: int  # ... and for so long at least, since a broker may be gone for a while
    group_id: str | None  # whose progress the query's is shown as; None: made from `group_id_prefix`
    group_id_prefix: str
    has_progress: bool
    adopts_kafka_offsets: bool

    def sharing(self, cores: int) -> Sharing:
        return Sharing(cores, self.min_partitions, self.max_records_per_partition, self.splits_partitions)


_STREAM_ONLY = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
_BATCH_ONLY = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp", "bus.endingversion")
OPTION_NAMES = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "groupIdPrefix",
    "kafka.bootstrap.servers",
    "kafka.group.id",
    "bus.bootstrap.servers",
    "bus.profile",
    "bus.configFile",
    "bus.root",
    "bus.group.id",
    "bus.progress",
    "bus.splitPartitions",
    "bus.pushFilters",
    "bus.startingGroup",
    "bus.startingVersion",
    "bus.endingVersion",
    "bus.adoptKafkaOffsets",
)
_SPELLINGS = {name.lower(): name for name in OPTION_NAMES}
# Of membership in a consumer group, which a query has not: it assigns partitions to its tasks by itself.
_WITHOUT_MEANING = frozenset(
    {
        "auto.commit.interval.ms",
        "group.instance.id",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
# What Spark's Kafka source refuses, and why; here for the same reasons.
_REFUSED = {
    "group.id": "the query's progress is kept in its checkpoint and shown as a group: see bus.group.id",
    "auto.offset.reset": "use startingOffsets; where a query goes on is in its checkpoint",
    "key.deserializer": "keys are binary columns; use DataFrame operations on them",
    "value.deserializer": "values are binary columns; use DataFrame operations on them",
    "enable.auto.commit": "the query commits its progress by itself: see bus.progress",
    "profile": "use bus.profile",
    "config.file": "use bus.configFile",
    "interceptor.classes": "interceptors would run in Spark's tasks, where nothing can be told of them",
}
_CLIENT_SETTINGS = {
    found.name.replace("_", "."): found.name
    for found in fields(ConsumerConfig)
    if found.name not in ("group_id", "interceptors", *PROFILE_SETTINGS)
}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Raises `OptionError`. Names are told apart without regard to upper and lower case, as Spark does."""
    options = _Options({name.lower(): value for name, value in given.items()})
    options.check_names(is_stream=is_stream)
    start = _position(options, "starting", Edge.LATEST if is_stream else Edge.EARLIEST)
    end = _position(options, "ending", Edge.LATEST)
    _check_edges(options, start, end, is_stream=is_stream)
    group_id = options.text("bus.group.id") or options.text("kafka.group.id")
    return SourceOptions(
        location=_location(options),
        subscription=_subscription(options),
        start=start,
        end=end,
        is_late_start_latest=options.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        include_headers=options.boolean("includeHeaders", False),
        min_partitions=options.number("minPartitions", at_least=1),
        max_records_per_partition=options.number("maxRecordsPerPartition", at_least=1),
        splits_partitions=_splits_partitions(options),
        pushes_filters=options.boolean("bus.pushFilters", False),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", at_least=1),
        min_offsets_per_trigger=options.number("minOffsetsPerTrigger", at_least=1),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        retries=options.number("fetchOffset.numRetries", at_least=0, default=3),
        retry_interval_ms=options.number("fetchOffset.retryIntervalMs", at_least=0, default=1_000),
        patience_ms=options.number("kafkaConsumer.pollTimeoutMs", at_least=1, default=120_000),
        group_id=group_id,
        group_id_prefix=options.text("groupIdPrefix") or "spark-bus-source",
        has_progress=options.boolean("bus.progress", True),
        adopts_kafka_offsets=options.boolean("bus.adoptKafkaOffsets", False),
    )


class _Options:
    """Names in small letters -> texts."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        text = self._texts.get(name.lower())
        if text is not None and not text.strip():
            raise OptionError(f"{name}: expected a value, found {text!r}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        text = self._texts.get(name.lower())
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise OptionError(f"{name}: expected true or false, found {text!r}")
        return text.strip().lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """The first one is the default."""
        text = self._texts.get(name.lower(), choices[0]).strip().lower()
        if text not in choices:
            raise OptionError(f"{name}: expected {' or '.join(choices)}, found {text!r}")
        return text

    def number(self, name: str, *, at_least: int, default: int | None = None) -> Any:
        text = self._texts.get(name.lower())
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise OptionError(f"{name}: expected a whole number, found {text!r}") from None
        if value < at_least:
            raise OptionError(f"{name}: expected a number from {at_least} on, found {value}")
        if value > OFFSET_MAX:
            raise OptionError(f"{name}: expected a number up to {OFFSET_MAX}, found {value}")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        text = self._texts.get(name.lower())
        if text is None:
            return default
        match = _DURATION.fullmatch(text.strip().lower())
        if match is None or match[2] not in _UNITS_MS:
            raise OptionError(f"{name}: expected a time like 500ms, 30s, 15m, 2h or 1d, found {text!r}")
        return int(match[1]) * _UNITS_MS[match[2]]

    def parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        text = self.text(name)
        assert text is not None, f"{name} is not among the options"
        try:
            return parse(text)
        except NotOffsets as error:
            raise OptionError(f"{name}: {error}") from None

    def client_settings(self) -> dict[str, Any]:
        """What `kafka.*` says of the client, by the names of its Python settings, as typed values. How it connects is
        settled here, on the driver: executors have neither its profiles nor its environment."""
        settings: dict[str, Any] = {}
        for name, text in self._texts.items():
            given = name.removeprefix("kafka.")
            setting = _CLIENT_SETTINGS.get(given)
            if name.startswith("kafka.") and setting is not None and given not in _WITHOUT_MEANING:
                settings[setting] = _typed(name, text, setting)
        try:
            with only_settings_of_connections():
                config = parse_config(ConsumerConfig, {**settings, **self.profile()})
        except BusError as error:
            raise OptionError(f"kafka.*: {error.message}") from None
        resolved = security_settings(config)
        return settings if resolved == security_settings(ConsumerConfig()) else {**settings, **resolved}

    def profile(self) -> dict[str, str]:
        """What names a profile of the client."""
        found = {"profile": self.text("bus.profile"), "config_file": self.text("bus.configFile")}
        return {name: text for name, text in found.items() if text is not None}

    def check_names(self, *, is_stream: bool) -> None:
        for name in self._texts:
            self._check_name(name, is_stream=is_stream)

    def _check_name(self, name: str, *, is_stream: bool) -> None:
        if name == "path":
            raise OptionError(f"path: expected load() without a path, found {self._texts[name]!r}; topics: subscribe")
        if name in _SPELLINGS:
            if is_stream and name in _BATCH_ONLY:
                raise OptionError(f"{_SPELLINGS[name]}: a streaming query has no end")
            if not is_stream and name in _STREAM_ONLY:
                _log.warning("%s: a batch query has no triggers; it reads all", _SPELLINGS[name])
            return
        setting = name.removeprefix("kafka.")
        if setting in _REFUSED:
            raise OptionError(f"{name}: {_REFUSED[setting]}")
        if not name.startswith("kafka."):
            hint = did_you_mean(_SPELLINGS[near] for near in near_names(name, _SPELLINGS))
            raise OptionError(f"{name}: expected an option of the bus source, found an unknown one{hint}")
        if setting not in _CLIENT_SETTINGS:
            raise OptionError(f"{name}: {_why_not(setting)}; leave it out")


def _typed(name: str, text: str, setting: str) -> Any:
    """As the consumer would check it, which is made in tasks only."""
    try:
        return keys_of(ConsumerConfig, "_")[setting].parse(text)
    except WrongSetting as wrong:
        raise OptionError(f"{name}: expected {wrong.expected}, found {wrong.found}") from None


def _why_not(setting: str) -> str:
    """Why the consumer has no such setting."""
    try:
        parse_config(ConsumerConfig, {setting.replace(".", "_"): ""})
    except BusError as error:
        return error.message
    raise AssertionError(f"{setting} is a setting of the consumer")


def _location(options: _Options) -> Location:
    addresses = {name: options.text(name) for name in ("bus.bootstrap.servers", "kafka.bootstrap.servers")}
    named = {name: text for name, text in addresses.items() if text is not None}
    root = options.text("bus.root")
    if len(named) == 2 or (named and root is not None):
        found = " and ".join([*named, *(["bus.root"] if root is not None else [])])
        raise OptionError(f"{found}: expected one of them, where the log is")
    if not named and root is None:
        named = _default_address(options)
    for name, text in named.items():
        _check_addresses(name, text)
    return Location(next(iter(named.values()), None), root, options.client_settings())


def _default_address(options: _Options) -> dict[str, str]:
    try:
        found = default_addresses(options.profile())
    except BusError as error:
        raise OptionError(f"bus.profile: {error.message}") from None
    if found is None:
        raise OptionError("expected bus.bootstrap.servers, a broker's address, or bus.root, the storage; found neither")
    return {"bus.profile": found}


def _check_addresses(name: str, text: str) -> None:
    try:
        parse_addresses(text)
    except BusError as error:
        raise OptionError(f"{name}: {error.message}") from None


def _subscription(options: _Options) -> Subscription:
    given = [name for name in ("assign", "subscribe", "subscribePattern") if name in options]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise OptionError(f"expected one of assign, subscribe and subscribePattern, found {found}")
    (name,) = given
    if name == "assign":
        return Assigned(options.parsed(name, parse_assignment))
    text = options.text(name) or ""
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
        if not topics:
            raise OptionError(f"subscribe: expected names of topics, separated by commas, found {text!r}")
        return Subscribed(topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: expected a regular expression, found {text!r}: {error}") from None
    return SubscribedPattern(text)


def _splits_partitions(options: _Options) -> bool:
    """Not unless it is asked for, as in Spark's Kafka source: what tasks write keeps the order of a partition then."""
    is_asked = "minPartitions" in options or "maxRecordsPerPartition" in options
    splits = options.boolean("bus.splitPartitions", is_asked)
    if not splits and "maxRecordsPerPartition" in options:
        raise OptionError("maxRecordsPerPartition: expected bus.splitPartitions=true, found false: it cuts partitions")
    return splits


def _position(options: _Options, edge: str, default: Edge) -> Position:
    """The first of the ways to say it that is there, in the order of Spark's guide."""
    if f"bus.{edge}Group" in options and edge == "starting":
        return AtGroup(options.text(f"bus.{edge}Group") or "")
    if f"bus.{edge}Version" in options:
        name = f"bus.{edge}Version"
        version = options.text(name) or ""
        if version.isascii() and version.isdecimal():
            return AtVersions(options.number(name, at_least=0))
        return AtVersions(options.parsed(name, lambda text: parse_partitions(text, "a version")))
    if f"{edge}Timestamp" in options:
        return AtTime(options.number(f"{edge}Timestamp", at_least=0))
    name = f"{edge}OffsetsByTimestamp"
    if name in options:
        times = options.parsed(name, lambda text: parse_partitions(text, "a timestamp in milliseconds"))
        wrong = next((time for time in times.values() if time < 0), None)
        if wrong is not None:
            raise OptionError(f"{name}: expected timestamps from 0 on, in milliseconds, found {wrong}")
        return AtTimes(times)
    name = f"{edge}Offsets"
    text = options.text(name)
    if text is None:
        return default
    if text.strip().lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(text.strip().lower())
    if not text.strip().startswith("{"):
        raise OptionError(f'{name}: expected earliest, latest or JSON like {{"orders":{{"0":23}}}}, found {text!r}')
    offsets = options.parsed(name, lambda text: parse_partitions(text, "an offset"))
    wrong = next((offset for offset in offsets.values() if offset < EARLIEST_OFFSET), None)
    if wrong is not None:
        raise OptionError(
            f"{name}: expected offsets from 0 on, {LATEST_OFFSET} for latest or {EARLIEST_OFFSET} for earliest, "
            f"found {wrong}"
        )
    return AtOffsets(offsets)


def _check_edges(options: _Options, start: Position, end: Position, *, is_stream: bool) -> None:
    if is_stream:
        least = options.number("minOffsetsPerTrigger", at_least=1, default=0)
        most = options.number("maxOffsetsPerTrigger", at_least=1)
        if most is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger, {most}, found {least}")
        return
    if start is Edge.LATEST or (isinstance(start, AtOffsets) and LATEST_OFFSET in start.offsets.values()):
        raise OptionError("startingOffsets: a batch query cannot begin at the latest offset: it would read nothing")
    if end is Edge.EARLIEST or (isinstance(end, AtOffsets) and EARLIEST_OFFSET in end.offsets.values()):
        raise OptionError("endingOffsets: a batch query cannot end at the earliest offset: it would read nothing")
