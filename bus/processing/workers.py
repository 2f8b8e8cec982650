"""The user's handler, and what calls it: threads for functions, tasks on one event loop for coroutines.

A handler takes the record, in the manual ack modes also its acknowledgement; one that could not be called is refused
before the first record is fetched. Guards that each record taken from the board is settled, however its handler ends,
and that a dead letter is acknowledged by the broker before its record counts as done.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from bus.client.config.values import conflict
from bus.client.interceptors import ProducerRecord
from bus.platform.reentry import OwnCondition, OwnLock, logger_of
from bus.processing.error_decisions import FailureDecision, Pass, Stop, TryAgain
from bus.processing.running_consumer import RunningConsumer
from bus.processing.settings import ProcessingSettings
from bus.processing.transactional_output import Outcome, Output
from bus.processing.work import Work
from bus.processing.work_board import WorkBoard


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


logger = logger_of(__name__)

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
