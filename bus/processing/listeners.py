"""Listeners: functions that say by a decorator which topics they handle, for which group; one call runs them all.

    @bus.listener("orders", group_id="billing", on_error="dead_letter")
    def bill(order): ...

    bus.run_listeners("127.0.0.1:9094")

Each listener has a consumer and a thread of its own. Guards one promise: they end together. When one ends by an error,
or a signal comes, all of them drain, commit and leave their groups before `run_listeners` returns; with a second signal
none of them waits for its workers any more.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import MISSING, parse_config
from bus.client.config.values import conflict
from bus.client.group.group_topics import compiled
from bus.processing import RunSummary, parse_settings
from bus.processing.consumer import Consumer, RunsTogether
from bus.processing.settings import SETTING_NAMES, unknown_option
from bus.processing.workers import check_handler
from bus.settings.keys import keys_of

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Listener:
    handler: Callable[..., Any]
    topics: tuple[str, ...]
    pattern: str | re.Pattern[str] | None
    configs: Mapping[str, Any]  # configs of its consumer
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of `Consumer.run`

    @property
    def name(self) -> str:
        return getattr(self.handler, "__qualname__", None) or type(self.handler).__qualname__


_listeners: list[Listener] = []


def listener(
    *topics: str, group_id: str = MISSING, pattern: str | re.Pattern[str] | None = None, **settings: Any
) -> Callable[[HandlerT], HandlerT]:
    """The function or coroutine below handles the records of these topics. `settings` are those of `Consumer.run` and
    of the consumer itself. It stays what it is: it can be called, and tested, as if this were not there. All that can
    be said without a broker is checked here. Raises `BusError` INVALID_CONFIG."""
    _check_topics(topics, pattern)
    options = {name: value for name, value in settings.items() if name in SETTING_NAMES}
    configs = {name: value for name, value in settings.items() if name not in options}
    if group_id is not None:
        configs["group_id"] = group_id
    _check_names(configs)
    if parse_config(ConsumerConfig, configs).group_id is None:
        raise conflict('expected a group_id, as in @bus.listener("orders", group_id="billing"), found none')
    parsed = parse_settings(options)
    if pattern is not None and parsed.partitions is not None:
        raise conflict("partitions: expected topics by their names beside them, found a pattern")

    def register(handler: HandlerT) -> HandlerT:
        check_handler(handler, parsed)
        _listeners.append(Listener(handler, topics, pattern, configs, options))
        return handler

    return register


def _check_topics(topics: Sequence[Any], pattern: Any) -> None:
    if len(topics) == 1 and callable(topics[0]):
        raise conflict(
            'expected the topics and the group of a listener, as in @bus.listener("orders", group_id="billing"), '
            "found @bus.listener alone"
        )
    if bool(topics) == (pattern is not None):
        raise conflict("expected either topics or a pattern to listen to, found " + ("both" if topics else "neither"))
    for topic in topics:
        if not isinstance(topic, str) or not topic.strip():
            raise conflict(f"expected the names of topics to listen to, one by one, found {topic!r}")
    if pattern is not None:
        compiled(pattern)


def _check_names(configs: Mapping[str, Any]) -> None:
    """A name that is neither a setting of the consumer nor of `run` is refused with whichever is nearer."""
    known = keys_of(ConsumerConfig, "_").keys()
    for name in sorted(configs.keys() - known):
        reason = unknown_option(name, "a listener", known)
        if reason is not None:
            raise conflict(reason)


def run_listeners(
    address: str | list[str],
    listeners: Iterable[Callable[..., Any]] | None = None,
    *,
    stop: threading.Event | None = None,
    **configs: Any,
) -> dict[str, RunSummary]:
    """Run these handlers, or all that there are, until SIGTERM or SIGINT (in the main thread), until `stop` is set, or
    until one ends by an error. Returns how each went, by the name of its function (and its number, where several have
    one name: "bill", "bill-2"). `configs` are of all consumers; those of a listener count more. Raises the first error,
    after all have ended."""
    if listeners is not None and (callable(listeners) or not isinstance(listeners, Iterable)):
        raise conflict(f"expected listeners as a list of functions, found {listeners!r}")
    for name in sorted(configs.keys() & SETTING_NAMES - keys_of(ConsumerConfig, "_").keys()):
        raise conflict(
            f"{name}: expected this option of a listener in its @bus.listener(...), found it in run_listeners"
        )
    wanted = None if listeners is None else list(listeners)
    chosen = [each for each in _listeners if wanted is None or each.handler in wanted]
    missing = [handler for handler in wanted or () if handler not in [each.handler for each in chosen]]
    if missing or not chosen:
        raise conflict(f"expected functions with @bus.listener, found {missing or 'none'}")
    return _Listening(address, chosen, configs, stop or threading.Event()).run()


def _check_ids(listeners: Sequence[Listener]) -> None:
    """Two with one transactional id would fence each other for ever."""
    of_id: dict[str, Listener] = {}
    for each in listeners:
        for transactional_id in parse_settings(each.options).transactional_ids:
            other = of_id.setdefault(transactional_id, each)
            if other is not each:
                raise conflict(
                    f"expected a transactional_id of its own for each listener, found {transactional_id!r} of "
                    f"{other.name} and {each.name}"
                )


class _Listening:
    def __init__(
        self, address: str | list[str], listeners: list[Listener], configs: Mapping[str, Any], stop: threading.Event
    ) -> None:
        self._stop = stop
        self._runs: list[tuple[str, Listener, Consumer]] = []
        _check_ids(listeners)
        try:
            for each in listeners:
                consumer = Consumer(address, **{**configs, **each.configs})
                self._runs.append((self._name(each), each, consumer))
                consumer.subscribe(each.topics or None, pattern=each.pattern)
        except BaseException:
            self._close_all()
            raise

    def run(self) -> dict[str, RunSummary]:
        runs = {name: partial(_run, each, consumer) for name, each, consumer in self._runs}
        return RunsTogether(runs, self._stop, threading.Event(), self._close_all).run()

    def _name(self, each: Listener) -> str:
        count = sum(other.name == each.name for _, other, _ in self._runs)
        return f"{each.name}-{count + 1}" if count else each.name

    def _close_all(self) -> None:
        for _, _, consumer in self._runs:
            consumer.close()


def _run(each: Listener, consumer: Consumer, stop: threading.Event, hurry: threading.Event) -> RunSummary:
    return consumer.run(each.handler, stop=stop, hurry=hurry, **each.options)
