"""The consumer for programs of asyncio.

It is the blocking consumer on one thread of its own. Guards three promises: the event loop never waits; a record counts
as read when the program has it: what a cancelled `poll` had taken, or iteration has read ahead, is given by the next
call, and neither `position` nor `commit` nor `close` goes past it before; and it counts as done when the program comes
back for more: who leaves `async with` by an exception, a cancellation too, commits nothing of what was in hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from bus.client.arguments import check_integer, check_milliseconds, check_timeout, check_topic_partitions
from bus.client.config.parsing import MISSING, EffectiveSetting
from bus.client.connection.processes import Home
from bus.client.consumer.consumer import CLOSE_TIMEOUT_S, ToCommit, offsets_to_commit
from bus.client.consumer.consumer import Consumer as BlockingConsumer
from bus.client.consumer.record_reader import InHand
from bus.client.group.group_topics import RebalanceCallback
from bus.client.group.offset_commits import CommitCallback
from bus.client.values import ConsumerRecord, GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import OwnLock, logger_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import ConsumerSettings

ResultT = TypeVar("ResultT")


_Calls = queue.SimpleQueue["_Call | None"]


class _Inner:
    """The calls of one callback, and of the tasks that it starts, until it is over."""

    __slots__ = ("calls", "is_over")

    def __init__(self) -> None:
        self.calls: _Calls = queue.SimpleQueue()
        self.is_over = False


_inside: ContextVar[_Inner | None] = ContextVar("bus_consumer_callback", default=None)


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]

    def run(self) -> None:
        try:
            result = self.function()
        except BaseException as error:
            self._tell(self.future.set_exception, error)
        else:
            self._tell(self.future.set_result, result)

    def _tell(self, settle: Callable[[Any], None], outcome: Any) -> None:
        def tell() -> None:
            if not self.future.done():
                settle(outcome)

        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits
            self.future.get_loop().call_soon_threadsafe(tell)


class ConsumerThread:
    """The thread on which the consumer of an event loop lives; it begins with the first call, and belongs to the event
    loop of that call.

    Guards two promises. Calls run one after another, in the order in which they were made, so the consumer never sees
    two threads. And while the thread waits for a rebalance callback that is a coroutine, it serves the calls of this
    coroutine and no others, so that the callback can commit and does not wait for itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        self.home = Home("consumer")

    def call(self, function: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Run it when its turn comes. Cancelling the future does not stop what runs already."""
        self.home.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._serve, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        if self._loop is not loop:
            raise RuntimeError("expected the event loop of this consumer's first call, found another one")
        inner = _inside.get()
        is_inside = inner is not None and not inner.is_over
        if self._is_ending and not is_inside:
            raise BusError(ErrorCode.INVALID_REQUEST, "this consumer is closed")
        future: asyncio.Future[ResultT] = loop.create_future()
        (inner.calls if inner is not None and is_inside else self._calls).put(_Call(function, future))
        return future

    def end(self) -> None:
        """After the calls that wait already."""
        self._is_ending = True
        self._calls.put(None)

    def _serve(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            call.run()
            del call  # while nothing is to do, a consumer that was forgotten must not be kept

    # ------------------------------------------------------------ on the thread

    def await_here(self, start: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on the loop and wait for it; its own calls are served meanwhile."""
        assert self._loop is not None, "the thread began with a loop"
        inner = _Inner()

        async def marked() -> Any:
            _inside.set(inner)
            try:
                return await start()
            finally:
                inner.is_over = True

        done = asyncio.run_coroutine_threadsafe(marked(), self._loop)
        done.add_done_callback(lambda _: inner.calls.put(None))
        self._serve(inner.calls)
        return done.result()


logger = logger_of(__name__)

_Place = tuple[str, int]  # a partition, as the first fields of a record have it

_ITERATION_POLL_MS = 500  # other calls wait for so long behind an iteration that was cancelled


class Consumer:
    """`bus.Consumer` for one event loop: the same configs, calls and guarantees.

        async with Consumer("127.0.0.1:9094", group_id="billing") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    Tasks of the loop may share it: their calls take turns. Rebalance callbacks may be coroutines; they run while a
    `poll` waits for them, and may await calls of this consumer. Raises `BusError` INVALID_CONFIG. No connection is made
    before the first call.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[ConsumerSettings]) -> None:
        self._blocking = BlockingConsumer(address, **configs)
        self._thread = ConsumerThread("bus-aio-consumer")
        weakref.finalize(self, self._thread.end).atexit = False
        self._lock = OwnLock()
        self._ahead: deque[ConsumerRecord] = deque()  # taken from the blocking consumer, not yet given to the caller
        self._table_ahead: pa.Table | None = None  # the same, of poll_arrow
        self._in_hand: InHand[_Place] = InHand()
        self._closing: asyncio.Future[None] | None = None

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """Return what `bus.Consumer.describe_settings` does; asks nobody."""
        return self._blocking.describe_settings()

    async def _run(self, function: Callable[[], ResultT]) -> ResultT:
        return await self._thread.call(function)

    # ------------------------------------------------------------ what to read

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe like `bus.Consumer.subscribe`. Functions among the callbacks run on the consumer's thread,
        coroutines on the loop."""
        callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        bridged: Any = {name: self._bridge(callback) for name, callback in callbacks.items()}
        await self._run(partial(self._blocking.subscribe, topics, pattern=pattern, **bridged))

    def _bridge(self, callback: Any) -> Any:
        if not inspect.iscoroutinefunction(callback):
            return callback
        thread = self._thread  # the callback must not refer to this consumer: it may be forgotten
        return lambda partitions: thread.await_here(lambda: callback(partitions))

    def unsubscribe(self) -> Coroutine[Any, Any, None]:
        """Unsubscribe like `bus.Consumer.unsubscribe`; a pending exception is looked for as in `close`."""
        return self._run(partial(self._unsubscribe, is_done=not _is_exception_on_its_way()))

    def _unsubscribe(self, *, is_done: bool) -> None:
        """On the thread."""
        self._give_back()
        if not is_done:
            self._go_back(self._in_hand.first())
        self._blocking.unsubscribe()

    def subscription(self) -> set[str]:
        return self._blocking.subscription()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        await self._run(partial(self._after_giving_back, self._blocking.assign, partitions))

    def assignment(self) -> set[TopicPartition]:
        return self._blocking.assignment()

    async def enforce_rebalance(self, reason: str = "enforce_rebalance() was called") -> None:
        await self._run(partial(self._blocking.enforce_rebalance, reason))

    def group_metadata(self) -> GroupMetadata:
        return self._blocking.group_metadata()

    # ------------------------------------------------------------ records

    async def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[ConsumerRecord]:
        """Poll like `bus.Consumer.poll`."""
        check_milliseconds("timeout_ms", timeout_ms)
        if max_records is not None:
            check_integer("max_records", max_records, 1, sys.maxsize)
        self._come_back()
        await self._run(partial(self._read_ahead, timeout_ms, max_records))
        with self._lock:
            count = min(len(self._ahead), self._blocking.max_poll_records if max_records is None else max_records)
            records = [self._ahead.popleft() for _ in range(count)]
            self._note_given(records)
            return records

    async def poll_arrow(self, timeout_ms: int = 500, max_records: int | None = None) -> pa.Table:
        """Poll like `bus.Consumer.poll_arrow`."""
        self._come_back()
        await self._run(partial(self._poll_arrow, timeout_ms, max_records))
        with self._lock:
            table, self._table_ahead = self._table_ahead, None
            assert table is not None, "the thread has put it there"
            for place, (first, last) in _offsets_in(table).items():
                self._in_hand.give(place, first, last + 1)
            return table

    def __aiter__(self) -> Consumer:
        """Records for ever, waiting for new ones; ends after `wakeup` or `close`. Rebalances and automatic commits take
        place when a batch that was read ahead is used up, as with `poll`."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        self._come_back()
        while True:
            with self._lock:
                if self._ahead:
                    record = self._ahead.popleft()
                    self._in_hand.give(record[:2], record.offset, record.offset + 1)
                    return record
            if self._closing is not None or await self._run(partial(self._read_ahead, _ITERATION_POLL_MS, None)):
                raise StopAsyncIteration

    def _come_back(self) -> None:
        """The program asks for more: what it was given counts as done."""
        with self._lock:
            self._in_hand.come_back()

    def _note_given(self, records: list[ConsumerRecord]) -> None:
        """The lock is held."""
        for place, run in groupby(records, itemgetter(0, 1)):
            offsets = [record.offset for record in run]
            self._in_hand.give(place, offsets[0], offsets[-1] + 1)

    def _read_ahead(self, timeout_ms: int, max_records: int | None) -> bool:
        """On the thread: True after a wake-up that came before any record."""
        if self._ahead:
            return False
        self._give_back()  # a table of a cancelled poll_arrow
        records = self._blocking.poll(timeout_ms, max_records)
        with self._lock:
            self._ahead += records
        return not records and self._blocking.was_awoken

    def _poll_arrow(self, timeout_ms: int, max_records: int | None) -> None:
        self._give_back()
        table = self._blocking.poll_arrow(timeout_ms, max_records)
        with self._lock:
            self._table_ahead = table

    def _give_back(self) -> None:
        """On the thread: nothing is read ahead any more."""
        self._go_back(self._first_ahead())
        with self._lock:
            self._ahead.clear()
            self._table_ahead = None

    def _go_back(self, offsets: Mapping[_Place, int]) -> None:
        for place, offset in offsets.items():
            partition = TopicPartition(*place)
            if partition in self._blocking.assignment():
                self._blocking.seek(partition, offset)

    def _first_ahead(self) -> dict[_Place, int]:
        """On the thread: what was not given to the program yet begins here."""
        with self._lock:
            found = {place: first for place, (first, _) in _offsets_in(self._table_ahead).items()}
            return found | {record[:2]: record.offset for record in reversed(self._ahead)}

    def _after_giving_back(self, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
        self._give_back()
        return function(*arguments)

    def wakeup(self) -> None:
        """Wake the consumer up like `bus.Consumer.wakeup`."""
        self._blocking.wakeup()

    # ------------------------------------------------------------ positions and offsets

    async def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        await self._run(partial(self._after_giving_back, self._blocking.seek, partition, offset))
        self._drop_from_hand([partition])

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        wanted = check_topic_partitions("partitions", partitions)
        await self._run(partial(self._after_giving_back, self._blocking.seek_to_beginning, wanted))
        self._drop_from_hand(wanted or self._blocking.assignment())

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        wanted = check_topic_partitions("partitions", partitions)
        await self._run(partial(self._after_giving_back, self._blocking.seek_to_end, wanted))
        self._drop_from_hand(wanted or self._blocking.assignment())

    def _drop_from_hand(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                self._in_hand.drop((partition.topic, partition.partition))

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        return await self._run(partial(self._position, partition, timeout_ms))

    def _position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        position = self._blocking.position(partition, timeout_ms)
        return self._first_ahead().get((partition.topic, partition.partition), position)

    async def lag(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        return await self._run(partial(self._lag, partition, timeout_ms))

    def _lag(self, partition: TopicPartition, timeout_ms: int | None) -> int:
        lag = self._blocking.lag(partition, timeout_ms)
        return lag + self._blocking.position(partition) - self._position(partition)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        await self._run(partial(self._after_giving_back, self._blocking.pause, partitions))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        await self._run(partial(self._blocking.resume, partitions))

    def paused(self) -> set[TopicPartition]:
        return self._blocking.paused()

    async def commit(
        self,
        offsets: ToCommit | None = None,
        *,
        asynchronous: bool = False,
        callback: CommitCallback | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit like `bus.Consumer.commit`; `callback` runs on the consumer's thread."""
        how = {"asynchronous": asynchronous, "callback": callback, "timeout_ms": timeout_ms}
        await self._run(partial(self._commit, offsets, how))

    def _commit(self, offsets: ToCommit | None, how: Mapping[str, Any]) -> None:
        wanted = self._given() if offsets is None else offsets_to_commit(offsets)
        with self._lock:
            for partition, committed in wanted.items():
                self._in_hand.settle((partition.topic, partition.partition), committed.offset)
        self._blocking.commit(wanted, **how)

    def _given(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """On the thread: what the program was given, as offsets to commit."""
        first_ahead = self._first_ahead()
        return {
            partition: replace(
                consumed, offset=first_ahead.get((partition.topic, partition.partition), consumed.offset)
            )
            for partition, consumed in self._blocking.consumed().items()
        }

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._run(partial(self._blocking.committed, partitions, timeout_ms))

    # ------------------------------------------------------------ questions

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        return await self._run(partial(self._blocking.beginning_offsets, partitions, timeout_ms))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        return await self._run(partial(self._blocking.end_offsets, partitions, timeout_ms))

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._run(partial(self._blocking.offsets_for_times, timestamps_ms, timeout_ms))

    async def partitions_for(self, topic: str, timeout_ms: int | None = None) -> set[TopicPartition]:
        return await self._run(partial(self._blocking.partitions_for, topic, timeout_ms))

    async def topics(self, timeout_ms: int | None = None) -> set[str]:
        return await self._run(partial(self._blocking.topics, timeout_ms))

    def metrics(self) -> Mapping[str, float]:
        return self._blocking.metrics()

    def topic_metrics(self) -> Mapping[str, Mapping[str, float]]:
        return self._blocking.topic_metrics()

    def partition_metrics(self) -> Mapping[TopicPartition, Mapping[str, float]]:
        return self._blocking.partition_metrics()

    # ------------------------------------------------------------ the end

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> Coroutine[Any, Any, None]:
        """Close like `bus.Consumer.close`, after the calls before it: a waiting poll ends at once, other calls when
        `timeout` is over. Safe to repeat; continues if the task that awaits it is cancelled.

        A pending exception is looked for here, when `close` is called: `wait_for` and `shield` may await the result in
        a task of its own, which does not see the exception.
        """
        check_timeout(timeout)
        return self._end(timeout, is_done=not _is_exception_on_its_way())

    async def _end(self, timeout: float | None, *, is_done: bool) -> None:
        if not self._thread.home.is_here():
            return
        if self._closing is None:
            self._blocking.wakeup()
            deadline = None if timeout is None else time.monotonic() + timeout
            self._closing = self._thread.call(partial(self._close, deadline, is_done))
            self._thread.end()
            await asyncio.wait({self._closing}, timeout=timeout)
            if not self._closing.done():
                self._blocking.disconnect()
        await asyncio.shield(self._closing)

    def _close(self, deadline: float | None, is_done: bool) -> None:
        """On the thread."""
        self._give_back()
        if not is_done:
            self._go_back(self._in_hand.first())
        self._blocking.close(None if deadline is None else max(0.0, deadline - time.monotonic()))

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._end(CLOSE_TIMEOUT_S, is_done=True)
            return
        try:
            await self._end(CLOSE_TIMEOUT_S, is_done=False)
        except Exception:  # the error that ends the block is the one to raise
            logger.exception("closing the consumer failed")


def _is_exception_on_its_way() -> bool:
    return sys.exc_info()[1] is not None


def _offsets_in(table: pa.Table | None) -> dict[_Place, tuple[int, int]]:
    """The first and the last offset of each partition."""
    found: dict[_Place, tuple[int, int]] = {}
    for rows in table.to_batches() if table is not None else ():
        if rows.num_rows:
            place = (rows.column("topic")[0].as_py(), rows.column("partition")[0].as_py())
            offsets = rows.column("offset")
            first = found[place][0] if place in found else offsets[0].as_py()
            found[place] = (first, offsets[-1].as_py())
    return found
