"""The consumer that users get as `bus.Consumer`: the client's, with the processing loop as its method `run`; and
several runs that end together: those of listeners, or of one consumer and its like.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bus.client.arguments import wrong_type
from bus.client.config.parsing import MISSING
from bus.client.config.security import security_settings
from bus.client.config.typed_settings import ConsumerSettings
from bus.client.config.values import conflict
from bus.client.consumer.consumer import Consumer as ReadingConsumer
from bus.client.consumer.misuse import exclusive
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.processing.dead_letters import DeadLetters
from bus.processing.run import ProcessingRun, StopSignals
from bus.processing.settings import ProcessingSettings, numbered, parse_settings
from bus.processing.transactional_output import open_transactions
from bus.processing.work import RunSummary
from bus.processing.workers import DeadLetterSink, check_handler

if TYPE_CHECKING:
    from typing_extensions import Unpack


logger = logger_of(__name__)


class Consumer(ReadingConsumer):
    __doc__ = ReadingConsumer.__doc__

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[ConsumerSettings]) -> None:
        super().__init__(address, **configs)
        self._given = configs

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

        With `partitions` these are read, and no group gives others. With `concurrency` so many consumers like this one
        run, each in a thread of its own, and end together.

        With `transactional_id` the handler gets an `Output` too, `handler(record, output)`: what it sends there, dead
        letters and offsets are committed in transactions, each record counted once. Raises PRODUCER_FENCED when
        another instance has come with the id.
        """
        for name, event in (("stop", stop), ("hurry", hurry)):
            if event is not None and not callable(getattr(event, "is_set", None)):
                raise wrong_type(f"{name} as a threading.Event, or None", event)
        member = self._needed_group("run")
        settings = parse_settings(options)
        check_handler(handler, settings)
        self._choose(settings)
        if settings.concurrency == 1:
            return self._run(handler, settings, stop, hurry)
        stop, hurry = stop or threading.Event(), hurry or threading.Event()
        consumers = [self]
        try:
            for number in range(1, settings.concurrency):
                consumers.append(self._another(number))
            if not self._is_subscribed:
                self._share_out(consumers)
        except BaseException:
            _close_all(consumers)
            raise
        runs = {
            numbered(member.group_id, number): partial(consumer._run_numbered, handler, settings, number)
            for number, consumer in enumerate(consumers)
        }
        together = RunsTogether(runs, stop, hurry, partial(_close_all, consumers), noun="consumer")
        return joined(list(together.run().values()), together.ended_by)

    def _choose(self, settings: ProcessingSettings) -> None:
        """Read `partitions`, if there are any, in the place of a subscription."""
        if settings.partitions is None:
            return
        topics = sorted(self.subscription())
        has_numbers = any(isinstance(one, int) for one in settings.partitions)
        if has_numbers and not topics:
            raise conflict(
                "partitions: expected a subscription to topics by their names beside numbers, or TopicPartitions, "
                f"found {settings.partitions!r} alone"
            )
        chosen = [
            place
            for one in settings.partitions
            for place in ([TopicPartition(topic, one) for topic in topics] if isinstance(one, int) else [one])
        ]
        if self._is_subscribed:
            self.unsubscribe()
        self.assign(chosen)

    def _another(self, number: int) -> Consumer:
        """One more of the same group, which reads nothing yet if this one was assigned its partitions."""
        given = dict(self._given)
        if self._config.group_instance_id is not None:
            given["group_instance_id"] = numbered(self._config.group_instance_id, number)
        another = type(self)(list(self._addresses), **given)  # type: ignore[arg-type]  # as they were given
        group = self._needed_group("run")
        if group.subscription is not None:
            another._needed_group("run").subscribe(group.subscription)
        return another

    def _share_out(self, consumers: list[Consumer]) -> None:
        assigned = sorted(self.assignment())
        if len(assigned) < len(consumers):
            raise conflict(
                f"concurrency: expected at most as many consumers as partitions, {len(assigned)}, found "
                f"{len(consumers)}"
            )
        for number, consumer in enumerate(consumers):
            consumer.assign(assigned[number :: len(consumers)])

    def _run_numbered(
        self,
        handler: Callable[..., Any],
        settings: ProcessingSettings,
        number: int,
        stop: threading.Event,
        hurry: threading.Event,
    ) -> RunSummary:
        if settings.transactional_id is not None:
            settings = replace(settings, transactional_id=settings.transactional_ids[number])
        return self._run(handler, settings, stop, hurry)

    @exclusive
    def _run(
        self,
        handler: Callable[..., Any],
        settings: ProcessingSettings,
        stop: threading.Event | None,
        hurry: threading.Event | None,
    ) -> RunSummary:
        member = self._needed_group("run")
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
            return ProcessingRun(
                self,
                member,
                handler,
                settings,
                sink,
                stop,
                hurry,
                transactions=transactions,
                # Its default suits records: tables of 500 rows are read twenty times as slowly as those of a fetch.
                table_records_max=self._config.max_poll_records if "max_poll_records" in self._origins else None,
            ).run()
        finally:
            dead_letters.close()
            if transactions is not None:
                transactions.close()


def _close_all(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.close()


# How late a signal is seen: the kernel may give it to any thread, and that does not end a wait of the main thread.
_JOIN_S = 0.2

# It ends by the first event, and waits for nobody by the second.
Run = Callable[[threading.Event, threading.Event], RunSummary]


class RunsTogether:
    """Several runs, each in a thread of its own. When one ends by an error, or a signal comes, all of them drain,
    commit and leave their groups before `run` returns; with a second signal none of them waits for its workers any
    longer.

    `runs`: by the name that threads and log lines have. `close_all`: also of those that never ran."""

    def __init__(
        self,
        runs: Mapping[str, Run],
        stop: threading.Event,
        hurry: threading.Event,
        close_all: Callable[[], object],
        *,
        noun: str = "listener",
    ) -> None:
        self.ended_by: str | None = None  # the name of a signal
        self._runs = runs
        self._stop = stop
        self._hurry = hurry
        self._close_all = close_all
        self._noun = noun
        self._summaries: dict[str, RunSummary] = {}
        self._errors: list[BaseException] = []

    def run(self) -> dict[str, RunSummary]:
        """How each went. Raises the first error, after all have ended."""
        threads = [
            threading.Thread(target=self._run, args=entry, name=f"bus-{self._noun}-{entry[0]}")
            for entry in self._runs.items()
        ]
        with StopSignals(self._on_signal):
            try:
                for thread in threads:
                    thread.start()
            except BaseException as error:  # there may be no more threads
                self._errors.append(error)
                self._stop.set()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_JOIN_S)
        if self._errors:
            self._close_all()  # harmless for consumers that ran
            raise self._errors[0]
        return self._summaries

    def _run(self, name: str, run: Run) -> None:
        try:
            self._summaries[name] = run(self._stop, self._hurry)
        except BaseException as error:
            logger.error("%s %s ended, so all end: %s", self._noun, name, error)
            self._errors.append(error)
            self._stop.set()

    def _on_signal(self, name: str) -> None:
        if self.ended_by is None:
            self.ended_by = name
            logger.info("%s: all %ss end", name, self._noun)
            self._stop.set()
        else:
            logger.warning("%s: all %ss end at once, without waiting for records with workers", name, self._noun)
            self._hurry.set()


def joined(summaries: Sequence[RunSummary], ended_by: str | None) -> RunSummary:
    """One of all of them; a partition that moved between them counts with its last offset."""
    committed: dict[TopicPartition, int] = {}
    for summary in summaries:
        for partition, offset in summary.committed.items():
            committed[partition] = max(offset, committed.get(partition, offset))
    return RunSummary(
        handled=sum(each.handled for each in summaries),
        skipped=sum(each.skipped for each in summaries),
        dead_lettered=sum(each.dead_lettered for each in summaries),
        retried=sum(each.retried for each in summaries),
        abandoned=sum(each.abandoned for each in summaries),
        commits=sum(each.commits for each in summaries),
        committed=committed,
        duration_ms=max(each.duration_ms for each in summaries),
        ended_by=ended_by or summaries[0].ended_by,
    )
