"""The options of `format("bus")` for reading, as one value.

Names and meanings are those of Spark's Kafka source (Structured Streaming + Kafka Integration Guide), so that a job
moves by changing format and address; what begins with `bus.` is ours. Guards one promise: a wrong option is refused
here, at load(), by its name, with what was expected and what was found; never later in an executor, never passed over.
Decides only: reaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import parse_config
from bus.client.config.security import security_settings
from bus.client.config.sources import PROFILE_SETTINGS, only_settings_of_connections
from bus.errors import BusError
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.settings.keys import keys_of
from bus.spark.options import (
    BROKERS,
    OptionError,
    Options,
    checked_addresses,
    choice,
    duration_ms,
    flag,
    number,
    option,
    options_of,
    text,
)
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
    splits_partitions: bool  # False: one task reads all that a batch has of a partition, in its order
    group_id: str | None  # whose progress the query's is shown as; None: made from `group_id_prefix`
    group_id_prefix: str = option(text("groupIdPrefix", "spark-bus-source"))
    fail_on_data_loss: bool = option(flag("failOnDataLoss", True))
    include_headers: bool = option(flag("includeHeaders", False))
    min_partitions: int | None = option(number("minPartitions", 1))
    max_records_per_partition: int | None = option(number("maxRecordsPerPartition", 1))
    pushes_filters: bool = option(flag("bus.pushFilters", False))
    max_offsets_per_trigger: int | None = option(number("maxOffsetsPerTrigger", 1))
    min_offsets_per_trigger: int | None = option(number("minOffsetsPerTrigger", 1))
    max_trigger_delay_ms: int = option(duration_ms("maxTriggerDelay", 15 * 60_000))
    # A question that failed for a reason that may pass is asked again, so often at least ...
    retries: int = option(number("fetchOffset.numRetries", 0, 3))
    retry_interval_ms: int = option(number("fetchOffset.retryIntervalMs", 0, 1_000))
    # ... and for so long at least, since a broker may be gone for a while.
    patience_ms: int = option(number("kafkaConsumer.pollTimeoutMs", 1, 120_000))
    has_progress: bool = option(flag("bus.progress", True))
    adopts_kafka_offsets: bool = option(flag("bus.adoptKafkaOffsets", False))

    def sharing(self, cores: int) -> Sharing:
        return Sharing(cores, self.min_partitions, self.max_records_per_partition, self.splits_partitions)


_STREAM_ONLY = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
_BATCH_ONLY = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp", "bus.endingversion")
_VALUES = options_of(SourceOptions)
_KEYS = (
    *_VALUES.values(),
    *BROKERS,
    text("bus.root"),
    text("assign"),
    text("subscribe"),
    text("subscribePattern"),
    number("startingTimestamp", 0),
    text("startingOffsetsByTimestamp"),
    text("startingOffsets"),
    choice("startingOffsetsByTimestampStrategy", "error", "latest"),
    text("bus.startingGroup"),
    text("bus.startingVersion"),
    number("endingTimestamp", 0),
    text("endingOffsetsByTimestamp"),
    text("endingOffsets"),
    text("bus.endingVersion"),
    text("kafka.group.id"),
    text("bus.group.id"),
    flag("bus.splitPartitions"),
)
OPTION_NAMES = tuple(key.name for key in _KEYS)
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
_CLIENT_KEYS = {
    name: key
    for name, key in keys_of(ConsumerConfig).items()
    if name not in ("group.id", "interceptors", *(name.replace("_", ".") for name in PROFILE_SETTINGS))
}


def parse_source_options(given: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Raises `OptionError`. Names are told apart without regard to upper and lower case, as Spark does."""
    options = Options(_KEYS, given, "the bus source")
    for name in options.texts:
        _check_name(options, name, is_stream=is_stream)
    start = _position(options, "starting", Edge.LATEST if is_stream else Edge.EARLIEST)
    end = _position(options, "ending", Edge.LATEST)
    _check_edges(options, start, end, is_stream=is_stream)
    return SourceOptions(
        location=_location(options),
        subscription=_subscription(options),
        start=start,
        end=end,
        is_late_start_latest=options["startingOffsetsByTimestampStrategy"] == "latest",
        splits_partitions=_splits_partitions(options),
        group_id=options["bus.group.id"] or options["kafka.group.id"],
        **{name: options[key.name] for name, key in _VALUES.items()},
    )


def _check_name(options: Options, name: str, *, is_stream: bool) -> None:
    spelling, setting = options.spelling(name), name.removeprefix("kafka.")
    if name == "path":
        raise OptionError(f"path: expected load() without a path, found {options.texts[name]!r}; topics: subscribe")
    if spelling is not None:
        if is_stream and name in _BATCH_ONLY:
            raise OptionError(f"{spelling}: a streaming query has no end")
        if not is_stream and name in _STREAM_ONLY:
            _log.warning("%s: a batch query has no triggers; it reads all", spelling)
    elif setting in _REFUSED:
        raise OptionError(f"{name}: {_REFUSED[setting]}")
    elif not name.startswith("kafka."):
        raise options.unknown(name)
    elif setting not in _CLIENT_KEYS:
        raise OptionError(f"{name}: {_why_not(setting)}; leave it out")


def _client_settings(options: Options) -> dict[str, Any]:
    """The settings of the client in `kafka.*`, by their Python names, as typed values. How it connects is
    settled here, on the driver: executors have neither its profiles nor its environment."""
    settings = {
        setting: options.client_value(name, _CLIENT_KEYS[name.removeprefix("kafka.")])
        for name, setting in options.client_settings().items()
        if name.removeprefix("kafka.") not in _WITHOUT_MEANING
    }
    try:
        with only_settings_of_connections():
            config = parse_config(ConsumerConfig, {**settings, **options.profile()})
    except BusError as error:
        raise OptionError(f"kafka.*: {error.message}") from None
    resolved = security_settings(config)
    return settings if resolved == security_settings(ConsumerConfig()) else {**settings, **resolved}


def _parsed(options: Options, name: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(options[name])
    except NotOffsets as error:
        raise OptionError(f"{name}: {error}") from None


def _why_not(setting: str) -> str:
    """Why the consumer has no such setting."""
    try:
        parse_config(ConsumerConfig, {setting.replace(".", "_"): ""})
    except BusError as error:
        return error.message
    raise AssertionError(f"{setting} is a setting of the consumer")


def _location(options: Options) -> Location:
    named, root = options.addresses(), options["bus.root"]
    if len(named) == 2 or (named and root is not None):
        found = " and ".join([*named, *(["bus.root"] if root is not None else [])])
        raise OptionError(f"{found}: expected one of them, where the log is")
    if not named and root is None:
        named = options.default_address()
        if not named:
            raise OptionError(
                "expected bus.bootstrap.servers, a broker's address, or bus.root, the storage; found neither"
            )
    for name, address in named.items():
        checked_addresses(name, address)
    return Location(next(iter(named.values()), None), root, _client_settings(options))


def _subscription(options: Options) -> Subscription:
    given = [name for name in ("assign", "subscribe", "subscribePattern") if name in options]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise OptionError(f"expected one of assign, subscribe and subscribePattern, found {found}")
    (name,) = given
    if name == "assign":
        return Assigned(_parsed(options, name, parse_assignment))
    named = options[name]
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in named.split(",") if topic.strip()}))
        if not topics:
            raise OptionError(f"subscribe: expected names of topics, separated by commas, found {named!r}")
        return Subscribed(topics)
    try:
        re.compile(named)
    except re.error as error:
        raise OptionError(f"subscribePattern: expected a regular expression, found {named!r}: {error}") from None
    return SubscribedPattern(named)


def _splits_partitions(options: Options) -> bool:
    """Not unless it is asked for, as in Spark's Kafka source: what tasks write keeps the order of a partition then."""
    is_asked = "minPartitions" in options or "maxRecordsPerPartition" in options
    splits = bool(options["bus.splitPartitions"]) if "bus.splitPartitions" in options else is_asked
    if not splits and "maxRecordsPerPartition" in options:
        raise OptionError("maxRecordsPerPartition: expected bus.splitPartitions=true, found false: it cuts partitions")
    return splits


def _position(options: Options, edge: str, default: Edge) -> Position:
    """The first of the ways to say it that is there, in the order of Spark's guide."""
    if f"bus.{edge}Group" in options and edge == "starting":
        return AtGroup(options[f"bus.{edge}Group"])
    if f"bus.{edge}Version" in options:
        name = f"bus.{edge}Version"
        version = options[name]
        if version.isascii() and version.isdecimal():
            return AtVersions(options.value(number(name, 0)))
        return AtVersions(_parsed(options, name, lambda text: parse_partitions(text, "a version")))
    if f"{edge}Timestamp" in options:
        return AtTime(options[f"{edge}Timestamp"])
    name = f"{edge}OffsetsByTimestamp"
    if name in options:
        times = _parsed(options, name, lambda text: parse_partitions(text, "a timestamp in milliseconds"))
        wrong = next((time for time in times.values() if time < 0), None)
        if wrong is not None:
            raise OptionError(f"{name}: expected timestamps from 0 on, in milliseconds, found {wrong}")
        return AtTimes(times)
    name = f"{edge}Offsets"
    given = options[name]
    if given is None:
        return default
    if given.strip().lower() in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(given.strip().lower())
    if not given.strip().startswith("{"):
        raise OptionError(f'{name}: expected earliest, latest or JSON like {{"orders":{{"0":23}}}}, found {given!r}')
    offsets = _parsed(options, name, lambda text: parse_partitions(text, "an offset"))
    wrong = next((offset for offset in offsets.values() if offset < EARLIEST_OFFSET), None)
    if wrong is not None:
        raise OptionError(
            f"{name}: expected offsets from 0 on, {LATEST_OFFSET} for latest or {EARLIEST_OFFSET} for earliest, "
            f"found {wrong}"
        )
    return AtOffsets(offsets)


def _check_edges(options: Options, start: Position, end: Position, *, is_stream: bool) -> None:
    if is_stream:
        least, most = options["minOffsetsPerTrigger"] or 0, options["maxOffsetsPerTrigger"]
        if most is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger, {most}, found {least}")
        return
    if start is Edge.LATEST or (isinstance(start, AtOffsets) and LATEST_OFFSET in start.offsets.values()):
        raise OptionError("startingOffsets: a batch query cannot begin at the latest offset: it would read nothing")
    if end is Edge.EARLIEST or (isinstance(end, AtOffsets) and EARLIEST_OFFSET in end.offsets.values()):
        raise OptionError("endingOffsets: a batch query cannot end at the earliest offset: it would read nothing")
