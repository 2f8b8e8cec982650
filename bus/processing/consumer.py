"""The consumer that users get as `bus.Consumer`: the client's, with the processing loop as its method `run`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bus.client.arguments import wrong_type
from bus.client.config.security import security_settings
from bus.client.config.values import conflict
from bus.client.consumer.consumer import Consumer as ReadingConsumer
from bus.client.consumer.misuse import exclusive
from bus.processing.dead_letters import DeadLetters
from bus.processing.run import ProcessingRun
from bus.processing.settings import parse_settings
from bus.processing.transactions import open_transactions
from bus.processing.work import RunSummary
from bus.processing.workers import DeadLetterSink


class Consumer(ReadingConsumer):
    __doc__ = ReadingConsumer.__doc__

    @exclusive
    def run(
        self,
        /,
        handler: Callable[..., Any],
        *,
        stop: threading.Event | None = None,
        hurry: threading.Event | None = None,
        **options: Any,
    ) -> RunSummary:
        """Call `handler` with each record, by `workers` threads, or tasks if it is a coroutine, in the order that
        `order` asks for; commit as `ack` says, and never before everything below is done; `on_error` says what becomes
        of a record that fails. The options are those of `ProcessingSettings`; docs/processing.md has the promises.

        Ends with SIGTERM or SIGINT (in the main thread), when `stop` is set, or by an error: then workers are waited
        for up to `drain_timeout_ms`, what is done is committed, and this consumer is closed. A second signal, or
        `hurry`, set beside `stop`, waits for no worker. Auto-commit is off. Raises `RecordFailed`, and `BusError` as
        `poll` and `commit` do.

        With `transactional_id` the handler gets an `Output` too, `handler(record, output)`: what it sends there, dead
        letters and offsets are committed in transactions, each record counted once. Raises PRODUCER_FENCED when
        another instance has come with the id.
        """
        for name, event in (("stop", stop), ("hurry", hurry)):
            if event is not None and not callable(getattr(event, "is_set", None)):
                raise wrong_type(f"{name} as a threading.Event, or None", event)
        member = self._needed_group("run")
        settings = parse_settings(options)
        is_deserialized = self._config.key_deserializer is not None or self._config.value_deserializer is not None
        if settings.batch == "arrow" and is_deserialized:
            raise conflict("batch='arrow': expected no deserializers beside it, a table has the bytes; found one")
        dead_letters = DeadLetters(
            self._addresses,
            settings,
            security_settings(self._config),
            group_id=member.group_id,
            is_deserialized=is_deserialized,
        )
        transactions = None
        sink: DeadLetterSink = dead_letters.send
        if settings.transactional_id is not None:
            transactions, sink = (
                open_transactions(self._addresses, settings, self._config, member),
                dead_letters.compose,
            )
        try:
            return ProcessingRun(self, member, handler, settings, sink, stop, hurry, transactions=transactions).run()
        finally:
            dead_letters.close()
            if transactions is not None:
                transactions.close()
