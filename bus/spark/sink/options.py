"""The options of `format("bus")` for writing, as one value.

Names and meanings are those of Spark's Kafka sink, so that a job moves by changing format and address; what begins with
`bus.` is ours. Guards one promise: a wrong option is refused here, when the query starts, by its name, with what was
expected and what was found; what would break exactly once is refused with the reason. Decides only: reaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from bus.client.config.parsing import ProducerConfig, parse_addresses, parse_config
from bus.client.config.sources import default_addresses, only_settings_of_connections
from bus.errors import BusError, did_you_mean, near_names
from bus.spark.source.options import OptionError


class RowOrder(Enum):
    """How the rows of a task are ordered before they are numbered. A task that runs again must number them the same."""

    KEY = "key"  # by partition and key; rows of one key, and rows without one, as they come
    CONTENT = "content"  # by partition, key, value and headers
    ROWS = "rows"  # as they come


@dataclass(frozen=True, slots=True)
class Application:
    """Who writes which version, so that a batch write may run twice: Delta's txnAppId and txnVersion."""

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


_NAMES = (
    "topic",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "bus.bootstrap.servers",
    "bus.profile",
    "bus.configFile",
    "bus.order",
    "bus.timestamps",
    "bus.txnAppId",
    "bus.txnVersion",
    "bus.transactional",
)
_SPELLINGS = {name.lower(): name for name in _NAMES}
_BATCH_ONLY = ("bus.txnappid", "bus.txnversion")
# What Spark hands on to every sink: queryName() is an option to it.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_APPLICATION_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")

_SETTINGS = {found.name: found for found in fields(ProducerConfig)}
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
    texts = {name.lower(): text for name, text in given.items()}
    for name, text in texts.items():
        _check_name(name, text, is_stream=is_stream)
    is_transactional = _boolean("bus.transactional", texts.get("bus.transactional", "false"))
    application = _application(texts)
    if is_transactional:
        _check_transactional(texts, application, is_stream=is_stream)
    config = _config(texts, is_transactional=is_transactional)
    has_part_size = "kafka.max.request.size" in texts
    return SinkOptions(
        addresses=_addresses(texts),
        config=config,
        part_bytes=config.max_request_size if has_part_size else min(_PART_BYTES, config.buffer_memory),
        topic=_text(texts, "topic"),
        order=RowOrder.ROWS if is_transactional else _order(texts),
        include_headers=_boolean("includeHeaders", texts.get("includeheaders", "true")),
        keeps_timestamps=_keeps_timestamps(texts),
        application=application,
        is_transactional=is_transactional,
    )


def _check_transactional(texts: Mapping[str, str], application: Application | None, *, is_stream: bool) -> None:
    if not is_stream and application is None:
        raise OptionError(
            "bus.transactional: expected bus.txnAppId and bus.txnVersion with it in a batch write, found none: the "
            "transactional id is made of the name, and the version tells a write that runs again"
        )
    if "bus.order" in texts:
        raise OptionError(
            f"bus.order: expected none with bus.transactional, found {texts['bus.order']!r}: rows are written as they "
            "come, and a batch that runs again needs no order that it can repeat"
        )


def _check_name(name: str, text: str, *, is_stream: bool) -> None:
    if name in _SPELLINGS:
        if is_stream and name in _BATCH_ONLY:
            raise OptionError(f"{_SPELLINGS[name]}: a streaming query has its id and the numbers of its batches")
        return
    if name == "path":
        raise OptionError(f"path: expected save() or start() without a path, found {text!r}; the option is topic")
    if name in ("bus.root", "truncate"):
        raise OptionError(
            "bus.root: expected bus.bootstrap.servers, since a broker takes the records"
            if name == "bus.root"
            else "truncate: a topic is never overwritten, only appended to"
        )
    if name.startswith("kafka."):
        _check_setting(name, text)
    elif name not in _SPARKS_OWN:
        hint = did_you_mean(_SPELLINGS[near] for near in near_names(name, _SPELLINGS))
        raise OptionError(f"{name}: expected an option of the bus sink, found an unknown one{hint}")


def _check_setting(name: str, text: str) -> None:
    setting = name.removeprefix("kafka.").replace(".", "_")
    if setting in _REFUSED:
        raise OptionError(f"{name}: {_REFUSED[setting]}")
    if setting == "acks" and text.strip().lower() not in ("all", "-1"):
        raise OptionError(f"{name}: expected all, found {text!r}: a batch is done when its records are committed")
    if setting == "enable_idempotence" and not _boolean(name, text):
        raise OptionError(f"{name}: expected true, found {text!r}: a task that runs again would append twice")


def _config(texts: Mapping[str, str], *, is_transactional: bool) -> ProducerConfig:
    settings: dict[str, Any] = {"client_id": _CLIENT_ID}
    if is_transactional:
        settings["transactional_id"] = _CLIENT_ID  # the query's own takes its place
    for name, text in texts.items():
        setting = name.removeprefix("kafka.").replace(".", "_")
        if not name.startswith("kafka.") or name in _SPELLINGS:
            continue
        if setting in _CHECKED:
            continue
        if setting == "transaction_timeout_ms" and not is_transactional:
            raise OptionError(f"{name}: expected bus.transactional=true with it, found no transaction")
        settings[setting] = _typed(name, text, setting)
    try:
        with only_settings_of_connections():
            return parse_config(ProducerConfig, {**settings, **_profile(texts)})
    except BusError as error:
        raise OptionError(f"kafka.*, of the producer that a task is: {error.message}") from None


def _typed(name: str, text: str, setting: str) -> Any:
    default = _SETTINGS[setting].default if setting in _SETTINGS else None
    if isinstance(default, bool):
        return _boolean(name, text)
    if isinstance(default, int):
        return _number(name, text)
    return text.strip()


def _addresses(texts: Mapping[str, str]) -> tuple[str, ...]:
    named = {name: texts[name] for name in ("bus.bootstrap.servers", "kafka.bootstrap.servers") if name in texts}
    default = None if named else _default_address(texts)
    if default is not None:
        named["bus.profile"] = default
    if len(named) != 1:
        found = " and ".join(named) or "neither it nor kafka.bootstrap.servers"
        raise OptionError(f"expected bus.bootstrap.servers, a broker's address, found {found}")
    ((name, text),) = named.items()
    try:
        return parse_addresses(text)
    except BusError as error:
        raise OptionError(f"{name}: {error.message}") from None


def _default_address(texts: Mapping[str, str]) -> str | None:
    try:
        return default_addresses(_profile(texts))
    except BusError as error:
        raise OptionError(f"bus.profile: {error.message}") from None


def _profile(texts: Mapping[str, str]) -> dict[str, str]:
    found = {"profile": _text(texts, "bus.profile"), "config_file": _text(texts, "bus.configFile")}
    return {name: text for name, text in found.items() if text is not None}


def _order(texts: Mapping[str, str]) -> RowOrder:
    text = texts.get("bus.order", RowOrder.KEY.value).strip().lower()
    try:
        return RowOrder(text)
    except ValueError:
        raise OptionError(f"bus.order: expected key, content or rows, found {text!r}") from None


def _keeps_timestamps(texts: Mapping[str, str]) -> bool:
    """By default not: as with Spark's Kafka sink, and retention may be over at once for records of the past."""
    text = texts.get("bus.timestamps", "now").strip().lower()
    if text not in ("now", "keep"):
        raise OptionError(f"bus.timestamps: expected now or keep, found {text!r}")
    return text == "keep"


def _application(texts: Mapping[str, str]) -> Application | None:
    name, version = _text(texts, "bus.txnAppId"), _text(texts, "bus.txnVersion")
    if (name is None) != (version is None):
        given, missing = ("bus.txnAppId", "bus.txnVersion") if version is None else ("bus.txnVersion", "bus.txnAppId")
        raise OptionError(f"{given}: expected {missing} with it, found none")
    if name is None or version is None:
        return None
    if _APPLICATION_NAME.fullmatch(name) is None:
        raise OptionError(f"bus.txnAppId: expected 1 to 200 of the characters a-z A-Z 0-9 . _ -, found {name!r}")
    number: int = _number("bus.txnVersion", version)
    if number < 0:
        raise OptionError(f"bus.txnVersion: expected a number from 0 on, found {number}")
    return Application(name, number)


def _text(texts: Mapping[str, str], name: str) -> str | None:
    text = texts.get(name.lower())
    if text is not None and not text.strip():
        raise OptionError(f"{name}: expected a value, found {text!r}")
    return None if text is None else text.strip()


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, found {text!r}")
    return text.strip().lower() == "true"


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name}: expected a whole number, found {text!r}") from None
