"""The settings of the processing loop: how many workers, in which order, when to commit, what to do about errors.

Guards one promise: what contradicts itself is refused before the first record is fetched. Names of `ack` are those of
Spring's AckMode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bus.client.config.clients import ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.config.sources import only_settings_of_connections
from bus.client.config.values import ANY_MILLISECONDS, SOME_MILLISECONDS, choice, conflict, identity, integer, setting
from bus.client.values import ConsumerRecord
from bus.errors import did_you_mean, near_names
from bus.model import TopicPartition
from bus.settings.keys import Check, Key, WrongSetting, keys_of

Order = Literal["partition", "key", "none"]
AckMode = Literal["record", "batch", "time", "count", "count_time", "manual", "manual_immediate"]
ErrorPolicy = Literal["stop", "skip", "retry", "dead_letter"]
BatchForm = Literal["list", "arrow"]
LargeLetterPolicy = Literal["without_value", "skip", "stop"]
ErrorCallback = Callable[[ConsumerRecord, BaseException, int], ErrorPolicy]

ORDERS: tuple[Order, ...] = ("partition", "key", "none")
ACK_MODES: tuple[AckMode, ...] = ("record", "batch", "time", "count", "count_time", "manual", "manual_immediate")
ERROR_POLICIES: tuple[ErrorPolicy, ...] = ("stop", "skip", "retry", "dead_letter")
LARGE_LETTER_POLICIES: tuple[LargeLetterPolicy, ...] = ("without_value", "skip", "stop")
BATCH_FORMS: tuple[BatchForm, ...] = ("list", "arrow")
RETRIES_MAX = 2**31 - 1


def _one_of(names: tuple[Any, ...]) -> Check:
    return choice({name: name for name in names})


def _error_policy(value: Any) -> Any:
    if value in ERROR_POLICIES or (callable(value) and not isinstance(value, type)):
        return value
    expected = ", ".join(map(repr, ERROR_POLICIES))
    raise ValueError(f"one of {expected}, or a function of (record, error, attempt) that gives one of them")


def _partitions(value: Any) -> Any:
    expected = "None, or a list of numbers of partitions, or of TopicPartitions, each once"
    if value is None:
        return None
    if not isinstance(value, (list, tuple, range, set, frozenset)) or not value:
        raise ValueError(expected)
    found = list(value)
    is_each = all(
        isinstance(one, TopicPartition) or (isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**31)
        for one in found
    )
    if not is_each or len(set(found)) < len(found):
        raise ValueError(expected)
    return tuple(found)


def _batch_form(value: Any) -> Any:
    if value is None or value in BATCH_FORMS:
        return value
    raise ValueError("None, 'list' (of records) or 'arrow' (a table)")


def _retries(value: Any) -> Any:
    return None if value is None else integer(0, RETRIES_MAX)(value)


def _dead_letter_topic(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and value):
        return value
    raise ValueError("the name of a topic, with {topic} for that of the record if you like, or a function of it")


def _producer_configs(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return dict(value)
    raise ValueError('settings of a producer by their names, as in {"compression_type": "zstd"}')


# Settings of a producer may hold passwords.
_PRODUCER_CONFIGS = {"key": Key("", _producer_configs, {}, is_secret=True)}


@dataclass(frozen=True, slots=True)
class ProcessingSettings:
    """`ack_count` and `ack_time_ms` count for the ack modes that have them in their names. `retries` None: as often as
    it takes with on_error="retry", else none."""

    workers: int = setting(8, integer(1, 10_000))
    concurrency: int = setting(1, integer(1, 1_000))  # consumers, each with workers of its own
    # Those that are read, without a group's say: numbers, of the topics of the subscription, or with their topics.
    partitions: Sequence[int | TopicPartition] | None = setting(None, _partitions)
    order: Order = setting("partition", _one_of(ORDERS))
    ack: AckMode = setting("batch", _one_of(ACK_MODES))
    # A call gets what one poll gave of one partition: a list of records, or a table of Arrow.
    batch: BatchForm | None = setting(None, _batch_form)
    ack_count: int = setting(100, integer(1))
    ack_time_ms: int = setting(5_000, SOME_MILLISECONDS)
    on_error: ErrorPolicy | ErrorCallback = setting("stop", _error_policy)
    retries: int | None = setting(None, _retries)
    retry_backoff_ms: int = setting(100, ANY_MILLISECONDS)
    retry_backoff_max_ms: int = setting(10_000, ANY_MILLISECONDS)
    dead_letter_topic: str | Callable[[str], str] = setting("{topic}.dlq", _dead_letter_topic)
    # When a letter without any added header is larger than its topic takes.
    dead_letter_too_large: LargeLetterPolicy = setting("without_value", _one_of(LARGE_LETTER_POLICIES))
    drain_timeout_ms: int = setting(30_000, ANY_MILLISECONDS)
    # For one partition: records that wait, are with a worker, or are finished behind one that is not.
    queued_records_max: int = setting(1_000, integer(1))
    # Transactions with this id commit what handlers send, dead letters and offsets.
    transactional_id: str | None = setting(None, identity)
    producer_configs: Mapping[str, Any] = field(default_factory=dict, repr=False, metadata=_PRODUCER_CONFIGS)

    @property
    def is_manual(self) -> bool:
        return self.ack in ("manual", "manual_immediate")

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        """One of each consumer."""
        if self.transactional_id is None:
            return ()
        return tuple(numbered(self.transactional_id, number) for number in range(self.concurrency))

    @property
    def first_retries(self) -> int:
        """How often a record that failed is tried again before `on_error` is asked."""
        if self.retries is not None:
            return self.retries
        return RETRIES_MAX if self.on_error == "retry" else 0

    def dead_letter_topic_of(self, topic: str) -> str:
        if callable(self.dead_letter_topic):
            return self.dead_letter_topic(topic)
        return self.dead_letter_topic.replace("{topic}", topic)


SETTING_NAMES = keys_of(ProcessingSettings, "_").keys()

# The names of the settings in other listeners.
_OTHER_WORDS = {
    "ack_mode": "ack",
    "batch_listener": "batch",
    "containers": "concurrency",
    "dlq": "dead_letter_topic",
    "dead_letter_queue": "dead_letter_topic",
    "error_handler": "on_error",
    "max_workers": "workers",
    "topic_partitions": "partitions",
    "threads": "workers",
}


def numbered(name: str, number: int) -> str:
    """The name of the first, second and so on of several consumers, counted from 0, that have one `name`."""
    return f"{name}-{number + 1}" if number else name


def unknown_option(name: str, of_what: str, configs: Collection[str] = ()) -> str | None:
    """Why there is no option `name`, with the one that was probably meant; None if one of `configs` was, or nothing."""
    near = near_names(name, {*SETTING_NAMES, *_OTHER_WORDS, *configs})
    meant = _OTHER_WORDS.get(name) or (_OTHER_WORDS.get(near[0], near[0]) if near else None)
    if meant is None or meant in configs:
        return None
    return f"expected a known option of {of_what}, found {name!r}{did_you_mean([repr(meant)])}"


def parse_settings(given: Mapping[str, Any]) -> ProcessingSettings:
    """`given` over the defaults. Raises `BusError` INVALID_CONFIG."""
    keys = keys_of(ProcessingSettings, "_")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in keys:
            raise conflict(_unknown_option_of_run(name))
        try:
            checked[name] = keys[name].check(value)
        except WrongSetting as wrong:
            raise conflict(str(wrong)) from None
    settings = ProcessingSettings(**checked)
    for name, modes in (("ack_count", ("count", "count_time")), ("ack_time_ms", ("time", "count_time"))):
        if name in given and settings.ack not in modes:
            raise conflict(f"{name}: expected ack to be one of {', '.join(modes)} beside it, found {settings.ack!r}")
    if settings.batch is not None and settings.order == "key":
        raise conflict(
            f"batch={settings.batch!r}: expected order 'partition' or 'none' beside it, found 'key': a batch is of one "
            "partition, and has many keys"
        )
    _check_transactions(settings, given)
    return settings


def _unknown_option_of_run(name: str) -> str:
    configs = keys_of(ConsumerConfig, "_")
    near = near_names(name, configs, likeness_min=0.8)
    if name in configs:
        return f"{name}: expected it in Consumer(..., {name}=...), it is a config of the consumer; found it in run()"
    reason = unknown_option(name, "run()", configs)
    if reason is not None:
        return reason
    if near:
        return f"expected a known option of run(), found {name!r}; {near[0]} is a config of the consumer"
    return f"expected one of the options of run(), {', '.join(sorted(SETTING_NAMES))}, found {name!r}"


def _check_transactions(settings: ProcessingSettings, given: Mapping[str, Any]) -> None:
    if settings.transactional_id is None:
        if "producer_configs" in given:
            raise conflict("producer_configs: expected a transactional_id beside them, found none")
        return
    if settings.is_manual:
        raise conflict(
            f"transactional_id: expected an ack without acknowledgements beside it, found {settings.ack!r}: a record's "
            "output is whole when its handler has returned"
        )
    own = sorted({"transactional_id", "name"} & settings.producer_configs.keys())
    if own:
        raise conflict(
            f"producer_configs: expected no {own[0]}, found one: the argument transactional_id identifies the producer"
        )
    with only_settings_of_connections():
        parse_config(ProducerConfig, {**settings.producer_configs, "transactional_id": settings.transactional_id})
