"""The options of `format("bus")` for writing, as one value.

Names and meanings are those of Spark's Kafka sink, so that a job moves by changing format and address; what begins with
`bus.` is ours. Guards one promise: a wrong option is refused here, when the query starts, by its name, with what was
expected and what was found; what would break exactly once is refused with the reason. Decides only: reaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.config.sources import only_settings_of_connections
from bus.errors import BusError
from bus.settings.keys import keys_of
from bus.spark.options import BROKERS, OptionError, Options, checked_addresses, choice, flag, number, text


class RowOrder(Enum):
    """How the rows of a task are ordered before they are numbered. A task that runs again must number them the same."""

    KEY = "key"  # by partition and key; rows of one key, and rows without one, as they come
    CONTENT = "content"  # by partition, key, value and headers
    ROWS = "rows"  # as they come


@dataclass(frozen=True, slots=True)
class Application:
    """The name and version of a batch write, so that it may run twice: Delta's txnAppId and txnVersion."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    addresses: tuple[str, ...]
    config: ProducerConfig
    part_bytes: int  # of one partition, in one request
    topic: str | None  # of all rows; None: the column says it
    order: RowOrder
    include_headers: bool
    keeps_timestamps: bool  # records have the times of the column timestamp; else those of their writing
    application: Application | None  # of a batch write
    is_transactional: bool = False  # all rows of a batch in one transaction, which the driver writes


_APPLICATION_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def _application_name(value: str) -> str:
    if _APPLICATION_NAME.fullmatch(value.strip()) is None:
        raise ValueError("1 to 200 of the characters a-z A-Z 0-9 . _ -" if value.strip() else "a value")
    return value.strip()


_KEYS = (
    text("topic"),
    flag("includeHeaders", True),
    *BROKERS,
    choice("bus.order", *(order.value for order in RowOrder)),
    # By default as with Spark's Kafka sink: retention may be over at once for records of the past.
    choice("bus.timestamps", "now", "keep"),
    text("bus.txnAppId", takes=_application_name),
    number("bus.txnVersion", 0),
    flag("bus.transactional", False),
)
_BATCH_ONLY = ("bus.txnappid", "bus.txnversion")
# What Spark hands on to every sink: queryName() is an option to it.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

_PRODUCER_KEYS = keys_of(ProducerConfig, "_")
_SAME_PLACE = "a row goes where its column partition says, else where Kafka's default partitioner puts its key"
_CUT_BY_SIZE = "a task sends what it has in requests of kafka.max.request.size; nothing lingers"
_BINARY = "keys and values are columns of text or binary; use DataFrame operations on them"
_REFUSED = {
    "profile": "use bus.profile",
    "config_file": "use bus.configFile",
    "key_serializer": _BINARY,
    "value_serializer": _BINARY,
    "interceptors": "interceptors would run in Spark's tasks, where nothing can be told of them",
    "interceptor_classes": "interceptors would run in Spark's tasks, where nothing can be told of them",
    "partitioner": _SAME_PLACE,
    "partitioner_class": _SAME_PLACE,
    "partitioner_ignore_keys": _SAME_PLACE,
    "partitioner_adaptive_partitioning_enable": _SAME_PLACE,
    "partitioner_availability_timeout_ms": _SAME_PLACE,
    "linger_ms": _CUT_BY_SIZE,
    "batch_size": _CUT_BY_SIZE,
    "max_block_ms": "how long a task waits for a broker is kafka.delivery.timeout.ms",
    "retries": "what may pass is tried again for kafka.delivery.timeout.ms",
    "name": "a task is a producer with a name of its own, made of the query and its number",
    "transactional_id": "a task is a producer with a name of its own, made of the query and its number; for "
    "transactions there is bus.transactional",
    "metrics_sample_window_ms": "tasks keep no metrics",
    "metrics_num_samples": "tasks keep no metrics",
}
_CHECKED = ("acks", "enable_idempotence")  # these have one value, which is the default
# A larger request than a single producer's: a task has many rows at once, and each part of a request is a commit.
_PART_BYTES = 4 * 1024 * 1024
_CLIENT_ID = "bus-spark-sink"


def parse_sink_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Raises `OptionError`. Names are told apart without regard to upper and lower case, as Spark does."""
    options = Options(_KEYS, given, "the bus sink")
    for name in options.texts:
        _check_name(options, name, is_stream=is_stream)
    is_transactional = options["bus.transactional"]
    application = _application(options)
    if is_transactional:
        _check_transactional(options, application, is_stream=is_stream)
    config = _config(options, is_transactional=is_transactional)
    has_part_size = "kafka.max.request.size" in options
    topic = options["topic"]
    return SinkOptions(
        addresses=_addresses(options),
        config=config,
        part_bytes=config.max_request_size if has_part_size else min(_PART_BYTES, config.buffer_memory),
        topic=None if topic is None else topic.strip(),
        order=RowOrder.ROWS if is_transactional else RowOrder(options["bus.order"]),
        include_headers=options["includeHeaders"],
        keeps_timestamps=options["bus.timestamps"] == "keep",
        application=application,
        is_transactional=is_transactional,
    )


def _check_transactional(options: Options, application: Application | None, *, is_stream: bool) -> None:
    if not is_stream and application is None:
        raise OptionError(
            "bus.transactional: expected bus.txnAppId and bus.txnVersion with it in a batch write, found none: the "
            "transactional id is made of the name, and the version tells a write that runs again"
        )
    if "bus.order" in options:
        raise OptionError(
            f"bus.order: expected none with bus.transactional, found {options.texts['bus.order']!r}: rows are written "
            "as they come, and a batch that runs again needs no order that it can repeat"
        )


def _check_name(options: Options, name: str, *, is_stream: bool) -> None:
    spelling, given = options.spelling(name), options.texts[name]
    if spelling is not None:
        if is_stream and name in _BATCH_ONLY:
            raise OptionError(f"{spelling}: a streaming query has its id and the numbers of its batches")
    elif name == "path":
        raise OptionError(f"path: expected save() or start() without a path, found {given!r}; the option is topic")
    elif name == "bus.root":
        raise OptionError("bus.root: expected bus.bootstrap.servers, since a broker takes the records")
    elif name == "truncate":
        raise OptionError("truncate: a topic is never overwritten, only appended to")
    elif name.startswith("kafka."):
        _check_setting(options, name)
    elif name not in _SPARKS_OWN:
        raise options.unknown(name)


def _check_setting(options: Options, name: str) -> None:
    setting, given = options.client_settings()[name], options.texts[name]
    if setting in _REFUSED:
        raise OptionError(f"{name}: {_REFUSED[setting]}")
    if setting == "acks" and given.strip().lower() not in ("all", "-1"):
        raise OptionError(f"{name}: expected all, found {given!r}: a batch is done when its records are committed")
    if setting == "enable_idempotence" and not options.value(flag(name)):
        raise OptionError(f"{name}: expected true, found {given!r}: a task that runs again would append twice")


def _config(options: Options, *, is_transactional: bool) -> ProducerConfig:
    settings: dict[str, Any] = {"client_id": _CLIENT_ID}
    if is_transactional:
        settings["transactional_id"] = _CLIENT_ID  # the query's own takes its place
    for name, setting in options.client_settings().items():
        if setting in _CHECKED:
            continue
        if setting == "transaction_timeout_ms" and not is_transactional:
            raise OptionError(f"{name}: expected bus.transactional=true with it, found no transaction")
        settings[setting] = _typed(options, name, setting)
    try:
        with only_settings_of_connections():
            return parse_config(ProducerConfig, {**settings, **options.profile()})
    except BusError as error:
        raise OptionError(f"kafka.*, of the producer that a task is: {error.message}") from None


def _typed(options: Options, name: str, setting: str) -> Any:
    """Read a text, a number or a truth value; whether the producer takes it, the producer says."""
    default = _PRODUCER_KEYS[setting].default if setting in _PRODUCER_KEYS else None
    if isinstance(default, bool):
        return options.value(flag(name))
    return options.value(number(name)) if isinstance(default, int) else options.texts[name].strip()


def _addresses(options: Options) -> tuple[str, ...]:
    named = options.addresses() or options.default_address()
    if len(named) != 1:
        found = " and ".join(named) or "neither it nor kafka.bootstrap.servers"
        raise OptionError(f"expected bus.bootstrap.servers, a broker's address, found {found}")
    ((name, address),) = named.items()
    return checked_addresses(name, address)


def _application(options: Options) -> Application | None:
    name, version = options["bus.txnAppId"], options["bus.txnVersion"]
    if (name is None) != (version is None):
        given, missing = ("bus.txnAppId", "bus.txnVersion") if version is None else ("bus.txnVersion", "bus.txnAppId")
        raise OptionError(f"{given}: expected {missing} with it, found none")
    return None if name is None else Application(name, version)
