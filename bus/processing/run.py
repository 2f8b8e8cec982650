"""The loop itself: polls, gives records to workers, commits what is done, gives partitions up in order, ends in order.

Guards the contract of `run()`: when it ends, for any reason, no new record is begun, those with workers are waited for
up to drain.timeout.ms, what is done is committed, the consumer goes on, should it be used, behind what was committed
and not behind what was polled, and the group is left. All calls of the consumer are made on the thread that called
`run()`; the loop knows it as a `ProcessedConsumer`, which a fake is as well.

SIGTERM and SIGINT end a run: the first one in order, the second one at once. The handlers that were there before are
there again afterwards; and a signal handler here takes no lock, which the code that it interrupts might hold: a thread
beside it does what has to be done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Protocol

import pyarrow as pa

from bus.client.consumer.records import RecordDeserializationError
from bus.client.values import ConsumerRecord
from bus.errors import BusError, ErrorCode, count_of
from bus.model import TopicPartition
from bus.platform.reentry import logger_of
from bus.processing.dead_letters import TOO_LARGE
from bus.processing.record_flow import RecordFlow
from bus.processing.running_consumer import CalledConsumer, HandlerCalls, RunningConsumer
from bus.processing.settings import ProcessingSettings
from bus.processing.transactional_output import (
    Outcome,
    OutputInDoubt,
    OutputRefused,
    OutputTransactions,
    TransactionPutOff,
)
from bus.processing.work import Pass, RecordFailed, RunSummary, batches_of, batches_of_table
from bus.processing.workers import (
    AsyncWorkers,
    DeadLetterSink,
    ThreadWorkers,
    WorkBoard,
    Workers,
    calling,
    check_handler,
    is_coroutine_handler,
    now_ms,
    report,
)

logger = logger_of(__name__)

_POLL_MS = 200  # how late a stop event is seen; everything else wakes the poll
_COMMIT_RETRY_MS = 500

# The group continues without this commit: it rebalances, or has forgotten this member; the next poll finds out.
_COMMITS_LATER = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})

OnPartitions = Callable[[list[TopicPartition]], None]


class GroupMember(Protocol):
    def start_processing(self, on_assigned: OnPartitions, on_revoked: OnPartitions, on_lost: OnPartitions) -> None:
        """From now on these are called inside of `poll`, before the functions that were given to `subscribe`, and
        nothing is committed but by `commit`."""
        ...


class ProcessedConsumer(CalledConsumer, Protocol):
    """A consumer like `bus.Consumer`; only one thread may use it, except for `wakeup`."""

    def poll(self, timeout_ms: int = 500) -> list[ConsumerRecord]:
        """Raises `RecordDeserializationError`; the position stays at its record."""
        ...

    def poll_arrow(self, timeout_ms: int = 500, max_records: int | None = None) -> pa.Table: ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Any: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def wakeup(self) -> None: ...

    def close(self) -> None: ...


class ProcessingRun:
    """One call of `run()`."""

    def __init__(
        self,
        consumer: ProcessedConsumer,
        member: GroupMember,
        handler: Callable[..., Any],
        settings: ProcessingSettings,
        dead_letters: DeadLetterSink,
        stop: threading.Event | None = None,
        hurry: threading.Event | None = None,
        clock: Callable[[], int] = now_ms,
        *,
        transactions: OutputTransactions | None = None,
        table_records_max: int | None = None,
    ) -> None:
        """`stop` ends the run in order; with `hurry` the end waits for no worker. With `transactions` only these
        commit. `table_records_max` bounds the tables of one poll together; None: the bytes of the fetch bound them.
        Raises `BusError` INVALID_CONFIG for a handler that does not fit."""
        check_handler(handler, settings)
        self._consumer = consumer
        self._member = member
        self._settings = settings
        self._dead_letters = dead_letters
        self._transactions = transactions
        self._table_records_max = table_records_max
        self._stop = stop or threading.Event()
        self._ended_by: str | None = None
        self._hurry = hurry or threading.Event()
        self._is_hurried = False  # set by a second signal
        self._clock = clock
        self._started_ms = clock()
        self._commit_again_ms = self._started_ms
        self._committed: dict[TopicPartition, int] = {}
        self._flow = RecordFlow(settings, self._started_ms)
        self._board = WorkBoard(self._flow, consumer.wakeup, clock)
        self._paused_by_handlers: set[TopicPartition] = set()
        self._calls = HandlerCalls(consumer.wakeup)
        called = RunningConsumer(self._calls, consumer, self)
        call = calling(handler, self._board, settings, transactions, called)
        workers = AsyncWorkers if is_coroutine_handler(handler) else ThreadWorkers
        self._workers: Workers = workers(self._board, call, dead_letters, count=settings.workers)

    def run(self) -> RunSummary:
        """Run until the end. Raises `RecordFailed`, and `BusError` if the consumer cannot continue; after the same
        orderly end."""
        self._calls.begin()
        self._member.start_processing(self._on_assigned, self._on_revoked, self._on_lost)
        settings = self._settings
        logger.info(
            "processing with %s, order %s, ack %s", count_of(settings.workers, "worker"), settings.order, settings.ack
        )
        with StopSignals(self._on_signal):
            try:
                if self._transactions is not None:
                    self._initialize(self._transactions)
                self._workers.start()
                while not self._is_over():
                    self._do_round()
            except BaseException:
                self._ended_by = "error"
                raise
            finally:
                summary = self._end()
        if self._flow.failure is not None:
            record, error = self._flow.failure
            raise RecordFailed(record, error, summary) from error
        return summary

    def _initialize(self, transactions: OutputTransactions) -> None:
        try:
            transactions.initialize(self._is_over)
        except BusError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT or not self._is_over():
                raise
            logger.warning("ended before an earlier instance was: %s", error)

    # ------------------------------------------------------------ the rounds

    def _is_over(self) -> bool:
        if self._ended_by is None:
            with self._board.locked() as flow:
                self._ended_by = "error" if flow.is_stopped else "stop" if self._stop.is_set() else None
        return self._ended_by is not None

    def _do_round(self) -> None:
        self._board.start_round()
        self._calls.serve()
        self._commit_what_is_due()
        self._apply_pauses()
        try:
            has_come = self._poll()
        except RecordDeserializationError as error:
            self._add_undeserializable(error)
            return
        if has_come:
            self._board.announce()
            self._apply_pauses()

    def _poll(self) -> bool:
        """Ask for records once; return False if there are none."""
        if self._settings.batch == "arrow":
            batches = batches_of_table(self._consumer.poll_arrow(self._poll_ms(), self._table_records_max))
        else:
            records = self._consumer.poll(timeout_ms=self._poll_ms())
            if self._settings.batch is None:
                with self._board.locked() as flow:
                    flow.add(records)
                return bool(records)
            batches = batches_of(records)
        with self._board.locked() as flow:
            flow.add_batches(batches)
        return bool(batches)

    def _poll_ms(self) -> int:
        now = self._clock()
        with self._board.locked() as flow:
            due_ms = flow.next_commit_ms()
        if due_ms is None or due_ms <= now:
            # An overdue commit was postponed, or has no offset yet: then the next finished record wakes the poll.
            due_ms = self._commit_again_ms if self._commit_again_ms > now else now + _POLL_MS
        return min(_POLL_MS, due_ms - now)

    def _add_undeserializable(self, error: RecordDeserializationError) -> None:
        """Add the record of the error in its place among the others, so that it is also handled in order."""
        with self._board.locked() as flow:
            flow.add([error.record], failure=error)
        self._consumer.seek(error.partition, error.offset + 1)
        self._board.announce()

    def _apply_pauses(self) -> None:
        with self._board.locked() as flow:
            full, freed = flow.changed_pauses()
        if full:
            logger.debug("paused, %d records or more are queued: %s", self._settings.queued_records_max, _names(full))
            self._consumer.pause(full)
        freed = [partition for partition in freed if partition not in self._paused_by_handlers]
        if freed:
            self._consumer.resume(freed)

    # ------------------------------------------------------------ pauses of handlers; called on the thread that polls

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        self._consumer.pause(wanted)
        self._paused_by_handlers.update(wanted)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        with self._board.locked() as flow:
            full = flow.paused
        self._consumer.resume([partition for partition in wanted if partition not in full])
        self._paused_by_handlers.difference_update(wanted)

    def paused(self) -> set[TopicPartition]:
        return set(self._paused_by_handlers)

    # ------------------------------------------------------------ commits

    def _commit_what_is_due(self) -> None:
        now = self._clock()
        if now < self._commit_again_ms:
            return
        with self._board.locked() as flow:
            offsets = flow.due_offsets(now)
        self._commit(offsets)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets. If they cannot be committed now, they are tried again later, unless the partitions are
        given up before."""
        if not offsets:
            return
        if self._transactions is not None:
            self._commit_in_transactions(self._transactions, offsets)
            return
        try:
            self._consumer.commit(offsets)
        except BusError as error:
            if error.code not in _COMMITS_LATER and not error.retriable:
                raise
            self._put_off(offsets, error)
            return
        self._note_committed(offsets)

    def _commit_in_transactions(self, transactions: OutputTransactions, offsets: Mapping[TopicPartition, int]) -> None:
        """One, unless that would be too large, or has output that a topic refuses."""
        left = dict(offsets)
        while left:
            with self._board.locked() as flow:
                cut = flow.cut(left, transactions.bytes_max)
            try:
                transactions.commit(cut.outcomes, cut.offsets, self._is_over)
            except TransactionPutOff as error:
                self._put_off(offsets, error)
                return
            except OutputInDoubt:
                continue
            except OutputRefused as refused:
                self._settle_refused(refused)
                with self._board.locked() as flow:
                    left = flow.all_offsets(left)
                continue
            self._note_committed(cut.offsets)
            left = {partition: end for partition, end in left.items() if cut.offsets.get(partition) != end}

    def _settle_refused(self, refused: OutputRefused) -> None:
        """`on_error` decides, as if the handler had failed; but it is not called again."""
        outcome, error = refused.outcome, refused.error
        work = replace(outcome.work, is_output_refused=True)
        is_too_large = isinstance(error, BusError) and error.code in TOO_LARGE
        with self._board.locked() as flow:
            is_smaller = is_too_large and flow.make_smaller(outcome)
        if is_smaller:
            found = "made smaller" if outcome.forms[1] else "left out"
            logger.warning("%s offset %d: its dead letter is %s: %s", *_place(outcome), found, error)
            return
        decision = flow.decide_refused(outcome, error)
        with self._board.locked() as flow:
            decision = flow.refuse(outcome, decision)
        report(work, error, decision)
        if decision is not Pass.DEAD_LETTER:
            return
        try:
            letter = self._dead_letters(work, error)
        except Exception as failed:
            logger.error("%s offset %d: its dead letter failed, processing ends", *_place(outcome))
            with self._board.locked() as flow:
                flow.stop_for_output(outcome, failed)
        else:
            assert letter is not None, "with transactions a letter is committed with the offset"
            with self._board.locked() as flow:
                flow.replace_by_letter(letter)

    def _put_off(self, offsets: Mapping[TopicPartition, int], error: Exception) -> None:
        self._commit_again_ms = self._clock() + _COMMIT_RETRY_MS
        logger.warning("a commit of %s is put off: %s", count_of(len(offsets), "partition"), error)

    def _note_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._committed.update(offsets)
        with self._board.locked() as flow:
            flow.note_committed(offsets, self._clock())

    # ------------------------------------------------------------ rebalances; called inside of poll

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        logger.info("assigned: %s", _names(partitions))

    def _on_revoked(self, revoked: list[TopicPartition]) -> None:
        """Wait for what workers have of them, commit, give them up."""
        with self._board.locked() as flow:
            flow.let_go(revoked)
        left = self._drain(revoked)
        with self._board.locked() as flow:
            offsets = flow.all_offsets(revoked)
        try:
            self._commit(offsets)
        except BusError as error:
            logger.warning("revoked partitions are given up without a last commit: %s", error)
        self._forget(revoked)
        logger.info("drained and given up, %s still with workers: %s", count_of(left, "record"), _names(revoked))

    def _on_lost(self, lost: list[TopicPartition]) -> None:
        with self._board.locked() as flow:
            flow.let_go(lost)
        self._forget(lost)
        logger.warning("lost, nothing is committed any more: %s", _names(lost))

    def _forget(self, partitions: list[TopicPartition]) -> None:
        self._paused_by_handlers.difference_update(partitions)
        with self._board.locked() as flow:
            flow.forget(partitions)

    def _drain(self, partitions: Iterable[TopicPartition] | None) -> int:
        left = self._board.wait_until_left(
            partitions, self._settings.drain_timeout_ms, self._is_ending_at_once, self._calls.serve
        )
        if left:
            over = f"{self._settings.drain_timeout_ms} ms are over"
            reason = "ended without waiting" if self._is_ending_at_once() else over
            logger.warning("%s still with workers, %s; what was not done comes again", count_of(left, "record"), reason)
        return left

    def _is_ending_at_once(self) -> bool:
        return self._is_hurried or self._hurry.is_set()

    # ------------------------------------------------------------ the end

    def _on_signal(self, name: str) -> None:
        if self._ended_by is None:
            logger.info("%s: ending, records with workers have %d ms", name, self._settings.drain_timeout_ms)
            self._ended_by = name
            self._consumer.wakeup()
        else:
            logger.warning("%s: ending at once, without waiting for records with workers", name)
            self._is_hurried = True

    def _end(self) -> RunSummary:
        with self._board.locked() as flow:
            flow.stop()
        self._workers.end()
        left = self._drain(None)
        with self._board.locked() as flow:
            offsets, positions = flow.all_offsets(), flow.positions()
        try:
            self._commit(offsets)
            for partition in positions.keys() & self._consumer.assignment():
                self._consumer.seek(partition, positions[partition])
        except BusError as error:
            logger.warning("the last commit failed, what is not committed comes again: %s", error)
        finally:
            self._calls.end()
            self._consumer.close()
        summary = self._summary(left)
        logger.info("ended by %s: %s", summary.ended_by, summary)
        return summary

    def _summary(self, left: int) -> RunSummary:
        with self._board.locked() as flow:
            counts = flow.counts
            return RunSummary(
                handled=counts.handled,
                skipped=counts.skipped,
                dead_lettered=counts.dead_lettered,
                retried=counts.retried,
                abandoned=counts.abandoned + left,
                commits=counts.commits,
                committed=dict(self._committed),
                duration_ms=self._clock() - self._started_ms,
                ended_by=self._ended_by or "error",
            )


def _place(outcome: Outcome) -> tuple[TopicPartition, int]:
    return outcome.work.partition, outcome.work.record.offset


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handles SIGINT and SIGTERM within its block. Outside of the main thread, whose signals they are, it does
    nothing. `has_hangup`: SIGHUP is one of them, unless the process was started to ignore it (`nohup`)."""

    def __init__(self, on_signal: Callable[[str], None], *, has_hangup: bool = False) -> None:
        self._numbers = (*_SIGNALS, signal.SIGHUP) if has_hangup else _SIGNALS
        self._on_signal = on_signal  # called with the signal's name, on a thread of its own
        self._before: dict[signal.Signals, Any] = {}
        self._came: SimpleQueue[str | None] = SimpleQueue()  # its put is safe in signal handlers
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.Thread(target=self._pass_on, name="bus-signals", daemon=True)
            self._thread.start()
            wanted = [
                number
                for number in self._numbers
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ]
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._came.put(None)
        if self._thread is not None:
            self._thread.join()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.put(signal.Signals(number).name)

    def _pass_on(self) -> None:
        while (name := self._came.get()) is not None:
            self._on_signal(name)
