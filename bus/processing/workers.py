"""The user's handler, and what calls it: threads for functions, tasks on one event loop for coroutines. And the board
from which they and the polling thread take work.

A handler takes the record, in the manual ack modes also its acknowledgement; one that could not be called is refused
before the first record is fetched. Guards that each record taken from the board is settled, however its handler ends,
and that a dead letter is acknowledged by the broker before its record counts as done.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bus.client.config.values import conflict
from bus.client.interceptors import ProducerRecord
from bus.model import TopicPartition
from bus.platform.reentry import OwnCondition, OwnLock, logger_of
from bus.processing.record_flow import RecordFlow
from bus.processing.running_consumer import RunningConsumer
from bus.processing.settings import ProcessingSettings
from bus.processing.transactional_output import Outcome, Output
from bus.processing.work import FailureDecision, Pass, Stop, TryAgain, Work

logger = logger_of(__name__)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class WorkBoard:
    """The one place where the thread that polls and the workers meet: a lock around the flow of records.

    Guards that no worker waits in vain: workers are told when records came or one has to wait for its next attempt, the
    polling thread when it has something to commit, to resume or to end. A worker that settles a record frees one lane
    at most, and looks for work itself, so no other one has to be told. The lock is never held while a handler or
    `on_error` runs or the consumer is called.

    `wake`: ends the poll that is under way, from any thread. `announce`, set by the workers: look for work."""

    def __init__(self, flow: RecordFlow, wake: Callable[[], None], clock: Callable[[], int] = now_ms) -> None:
        self.announce: Callable[[], None] = lambda: None
        self.clock = clock
        self._flow = flow
        self._wake = wake
        self._is_awoken = False
        self._has_left = OwnCondition(OwnLock())

    @contextmanager
    def locked(self) -> Iterator[RecordFlow]:
        """Lock the flow, for the polling thread."""
        with self._has_left:
            yield self._flow

    def start_round(self) -> None:
        """The polling thread is about to look what there is to do."""
        with self._has_left:
            self._is_awoken = False

    # ------------------------------------------------------------ for workers

    def take(self) -> Work | None:
        with self._has_left:
            return self._flow.take(self.clock())

    def seconds_to_retry(self) -> float | None:
        """Return the time until the next retry is due; None: nothing waits."""
        with self._has_left:
            at_ms = self._flow.next_retry_ms()
        return None if at_ms is None else max(0, at_ms - self.clock()) / 1000

    def succeed(self, work: Work, outcome: Outcome | None = None) -> None:
        with self._settling() as flow:
            flow.succeed(work, outcome)

    def fail(self, work: Work, error: BaseException) -> FailureDecision:
        decision = self._flow.decide(work, error)
        with self._settling() as flow:
            decision = flow.fail(work, decision, self.clock())
        if isinstance(decision, TryAgain):
            self.announce()  # workers that wait have to look at the clock
        return decision

    def pass_over_dead_letter(self, work: Work, letter: Outcome | None = None) -> None:
        with self._settling() as flow:
            flow.pass_over(work, is_dead_letter=True, letter=letter)

    def stop_for(self, work: Work, error: BaseException) -> None:
        with self._settling() as flow:
            flow.stop_for(work, error)

    def acknowledge(self, work: Work) -> bool:
        with self._settling() as flow:
            return flow.acknowledge(work)

    @contextmanager
    def _settling(self) -> Iterator[RecordFlow]:
        with self._has_left:
            yield self._flow
            self._has_left.notify_all()
            must_wake = not self._is_awoken and self._flow.needs_attention(self.clock())
            self._is_awoken = self._is_awoken or must_wake
        if must_wake:
            self._wake()

    # ------------------------------------------------------------ for the thread that polls

    def wait_until_left(
        self,
        partitions: Iterable[TopicPartition] | None,
        timeout_ms: int,
        is_hurried: Callable[[], bool],
        serve: Callable[[], object] = lambda: None,
    ) -> int:
        """Wait until no worker has a record of these partitions, or of all; return how many they have when the time is
        over. Stops waiting when `is_hurried`, which is called now and then, returns True. Calls `serve` meanwhile,
        which does what workers wait for."""
        wanted = None if partitions is None else list(partitions)
        deadline_ms = self.clock() + timeout_ms
        while True:
            serve()
            with self._has_left:
                count = self._flow.running_count(wanted)
                left_ms = deadline_ms - self.clock()
                if not count or is_hurried() or left_ms <= 0:
                    return count
                self._has_left.wait(min(left_ms, 100) / 1000)


class Acknowledgement:
    """Says that a record is done. From any thread, in any order, also after the handler has returned; the offset is
    committed when all records below it are done too."""

    __slots__ = ("_board", "_work")

    def __init__(self, board: WorkBoard, work: Work) -> None:
        self._board = board
        self._work = work

    def acknowledge(self) -> bool:
        """Acknowledge the record; False if it was acknowledged before, or if the partition belongs to another member
        now."""
        return self._board.acknowledge(self._work)


def is_coroutine_handler(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  an object with an async __call__


_CONTENT = {None: "record", "list": "records", "arrow": "table"}
_CONSUMER = "consumer"


def wants_consumer(handler: Any) -> bool:
    """Return True if it has a parameter `consumer`."""
    try:
        parameters = inspect.signature(handler).parameters
    except ValueError:
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return _CONSUMER in parameters and parameters[_CONSUMER].kind in kinds


def check_handler(handler: Any, settings: ProcessingSettings) -> None:
    """Raises `BusError` INVALID_CONFIG."""
    arguments, reason = [_CONTENT[settings.batch]], f"ack={settings.ack!r}"
    if settings.is_manual:
        arguments.append("acknowledgement")
    elif settings.transactional_id is not None:
        arguments.append("output")
        reason = "a transactional_id"
    expected = f"expected a handler of ({', '.join(arguments)}) with {reason}"
    if not callable(handler):
        raise conflict(f"{expected}, found {type(handler).__name__}")
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return  # built in; it cannot be asked
    named = {_CONSUMER: None} if wants_consumer(handler) else {}
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        raise conflict(f"{expected}, found {getattr(handler, '__name__', handler)!s}{signature}") from None


class Outputs(Protocol):
    """The collectors of what handlers send."""

    def new_output(self) -> Output: ...

    def has_checked(self, records: Sequence[ProducerRecord]) -> bool:
        """True if `check` would not have to wait."""
        ...

    def check(self, records: Sequence[ProducerRecord]) -> None:
        """Raises `BusError` for a topic that is not there."""
        ...


Call = Callable[[Work], Outcome | None]
AsyncCall = Callable[[Work], Coroutine[Any, Any, Outcome | None]]


def calling(
    handler: Callable[..., Any],
    board: WorkBoard,
    settings: ProcessingSettings,
    outputs: Outputs | None,
    consumer: RunningConsumer,
) -> Any:
    """A `Call`; an `AsyncCall`, if the handler is a coroutine. `consumer`: for one that has a parameter for it."""
    if wants_consumer(handler):
        is_async = is_coroutine_handler(handler)
        handler = functools.partial(handler, **{_CONSUMER: consumer})
        if is_async and not inspect.iscoroutinefunction(handler):  # an object with an async __call__
            handler = _awaiting(handler)
    if outputs is not None:
        return (_collecting_async if is_coroutine_handler(handler) else _collecting)(handler, outputs)

    def arguments(work: Work) -> tuple[Any, ...]:
        return (work.content, Acknowledgement(board, work)) if settings.is_manual else (work.content,)

    async def call_async(work: Work) -> None:
        await handler(*arguments(work))

    def call(work: Work) -> None:
        handler(*arguments(work))

    return call_async if is_coroutine_handler(handler) else call


def _awaiting(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*arguments: Any) -> None:
        await handler(*arguments)

    return call


def _collecting(handler: Callable[..., Any], outputs: Outputs) -> Call:
    def call(work: Work) -> Outcome | None:
        output = outputs.new_output()
        handler(work.content, output)
        records = output.close()
        outputs.check(records)
        return Outcome(work, (records,)) if records else None

    return call


def _collecting_async(handler: Callable[..., Any], outputs: Outputs) -> AsyncCall:
    async def call(work: Work) -> Outcome | None:
        output = outputs.new_output()
        await handler(work.content, output)
        records = output.close()
        if not outputs.has_checked(records):
            await asyncio.to_thread(outputs.check, records)
        return Outcome(work, (records,)) if records else None

    return call


# Returns when the broker has the letter, or the outcome to be committed with the record's offset; raises if it cannot
# be sent.
DeadLetterSink = Callable[[Work, BaseException], Outcome | None]


class Workers(Protocol):
    def start(self) -> None: ...

    def end(self) -> None:
        """No new record is begun. Does not wait: a worker that handles a record ends after it."""
        ...


def report(work: Work, error: BaseException, decision: FailureDecision) -> None:
    place = f"{work.partition} offset {work.record.offset}"
    match decision:
        case TryAgain(after_ms):
            logger.warning("%s: attempt %d failed, the next in %d ms: %r", place, work.attempt, after_ms, error)
        case Stop(raised):
            logger.error("%s: attempt %d failed, processing ends: %r", place, work.attempt, raised, exc_info=error)
        case Pass.SKIP:
            logger.warning("%s: attempt %d failed, the record is skipped", place, work.attempt, exc_info=error)
        case Pass.DEAD_LETTER:
            logger.warning("%s: attempt %d failed, a dead letter is sent: %r", place, work.attempt, error)


def _send_dead_letter(board: WorkBoard, sink: DeadLetterSink, work: Work, error: BaseException) -> None:
    try:
        letter = sink(work, error)
    except BaseException as failed:
        logger.error("%s offset %d: its dead letter failed, processing ends", work.partition, work.record.offset)
        board.stop_for(work, failed)
    else:
        board.pass_over_dead_letter(work, letter)


class ThreadWorkers:
    def __init__(self, board: WorkBoard, call: Call, sink: DeadLetterSink, *, count: int) -> None:
        self._board = board
        self._call = call
        self._sink = sink
        self._may_have_work = OwnCondition(OwnLock())
        # a worker compares it before it waits: if it has changed, the worker looks for work again
        self._announcements = 0
        self._is_ended = False
        self._threads = [
            threading.Thread(target=self._work, name=f"bus-worker-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        self._board.announce = self._announce
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        with self._may_have_work:
            self._is_ended = True
            self._may_have_work.notify_all()

    def _announce(self) -> None:
        with self._may_have_work:
            self._announcements += 1
            self._may_have_work.notify_all()

    def _work(self) -> None:
        while not self._is_ended:
            seen = self._announcements
            work = self._board.take()
            if work is not None:
                self._handle(work)
                continue
            timeout_s = self._board.seconds_to_retry()
            with self._may_have_work:
                if seen == self._announcements and not self._is_ended:
                    self._may_have_work.wait(timeout_s)

    def _handle(self, work: Work) -> None:
        try:
            if work.failure is not None:
                raise work.failure
            outcome = self._call(work)
        except BaseException as error:
            decision = self._board.fail(work, error)
            report(work, error, decision)
            if decision is Pass.DEAD_LETTER:
                _send_dead_letter(self._board, self._sink, work, error)
        else:
            self._board.succeed(work, outcome)


class AsyncWorkers:
    """`count` records at most are handled at once, on one event loop with a thread of its own."""

    def __init__(
        self,
        board: WorkBoard,
        call: AsyncCall,
        sink: DeadLetterSink,
        *,
        count: int,
    ) -> None:
        self._board = board
        self._call = call
        self._sink = sink
        self._free = count
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="bus-worker-loop", daemon=True)

    def start(self) -> None:
        self._board.announce = self._announce
        self._thread.start()

    def end(self) -> None:
        self._is_ended = True
        self._announce()

    def _announce(self) -> None:
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._take_what_there_is)
            except RuntimeError:
                assert self._loop.is_closed(), "an open loop takes calls"

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _take_what_there_is(self) -> None:
        while self._free and not self._is_ended and (work := self._board.take()) is not None:
            self._free -= 1
            task = self._loop.create_task(self._handle(work))
            self._tasks.add(task)
            task.add_done_callback(self._note_end)
        if self._is_ended and not self._tasks:
            self._loop.stop()
        elif self._retry is None and (delay_s := self._board.seconds_to_retry()) is not None:
            self._retry = self._loop.call_later(delay_s, self._look_again)

    def _look_again(self) -> None:
        self._retry = None
        self._take_what_there_is()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free += 1
        self._take_what_there_is()

    async def _handle(self, work: Work) -> None:
        try:
            if work.failure is not None:
                raise work.failure
            outcome = await self._call(work)
        except BaseException as error:
            decision = self._board.fail(work, error)
            report(work, error, decision)
            if decision is Pass.DEAD_LETTER:
                await asyncio.to_thread(_send_dead_letter, self._board, self._sink, work, error)
        else:
            self._board.succeed(work, outcome)
