"""The producer for programs of asyncio.

Guards three promises: the event loop never waits, neither for memory nor for the network; the records of a topic keep
the order of the calls; and every future whose loop still runs is resolved, on the loop's own thread. A call that would
have to wait goes to a thread, in line; as long as a call of its topic stands there, all later ones line up behind. One
call into the loop carries all outcomes that gathered before it ran: waking a loop costs far more than an outcome does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from bus.client.arguments import check_timeout, check_topic
from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import MISSING, EffectiveSetting, parse_config
from bus.client.connection.processes import Home
from bus.client.producer.producer import Producer as BlockingProducer
from bus.client.values import BatchMetadata, CommittedRows, GroupMetadata, OffsetAndMetadata, RecordMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import ProducerSettings

ResultT = TypeVar("ResultT")


logger = logger_of(__name__)

Call = Callable[[], object]


class WaitingLine:
    """Calls that one thread makes one after another."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bus-aio-producer")
        self._waiting: deque[tuple[Call, Call]] = deque()
        self._is_called = False  # the thread was asked to look, and has not yet
        # How many so far. Each is written under the hand of one thread only; who was abandoned is never served.
        self.joined = 0
        self.served = 0

    @property
    def length(self) -> int:
        """How many wait, the one whose call is being made included."""
        return self.joined - self.served

    def join(self, call: Call, abandon: Call) -> None:
        """`call` is made on the line's thread, or `abandon` by `end`. Neither may raise."""
        self.joined += 1
        # First join, then ask: a caller that finds `_is_called` set knows that the thread looks afterwards.
        self._waiting.append((call, abandon))
        if not self._is_called:
            self._is_called = True
            self._thread.submit(self._serve)

    def mark(self) -> Future[None]:
        """Done when everybody who is in line now was served or abandoned."""
        marker: Future[None] = Future()
        if self.length == 0:
            marker.set_result(None)
        else:
            self.join(lambda: marker.set_result(None), lambda: marker.set_result(None))
        return marker

    def _serve(self) -> None:
        self._is_called = False
        while self._waiting:
            try:
                call, _ = self._waiting.popleft()
            except IndexError:  # abandoned in between
                return
            try:
                call()
            except BaseException:  # the thread's edge: the others must have their turn
                logger.exception("a call in line failed")
            finally:
                self.served += 1

    def end(self) -> None:
        """Abandon the callers that wait; none may join any more. A call that is being made goes on. From any thread."""
        while self._waiting:
            try:
                _, abandon = self._waiting.popleft()
            except IndexError:  # its turn came in between
                break
            abandon()
        self._thread.shutdown(wait=False)


_LINES_MAX = 16  # each is a thread, once a call has waited in it


class WaitingLines:
    """The calls of a producer that have to wait, in lines by topic, so that the event loop need not wait.

    Guards two promises. Calls of one topic are made in the order in which they joined, each once, or abandoned. And a
    topic that does not exist yet, and is waited for, holds up no other topic as long as there are enough lines. Only
    one thread, the event loop's, may join; `length` is never too small there.
    """

    def __init__(self, lines_max: int = _LINES_MAX) -> None:
        self._lines_max = lines_max
        self._lines: list[WaitingLine] = []
        self._last: dict[str, tuple[WaitingLine, int]] = {}  # topic -> its line, and the number of its last call there

    @property
    def length(self) -> int:
        """How many wait, those whose calls are being made included."""
        return sum(line.length for line in self._lines)

    def has(self, topic: str) -> bool:
        """A call of this topic waits."""
        return self._line_of(topic) is not None

    def _line_of(self, topic: str) -> WaitingLine | None:
        found = self._last.get(topic)
        if found is None:
            return None
        line, number = found
        if line.served >= number:
            del self._last[topic]
            return None
        return line

    def join(self, topic: str, call: Callable[[], object], abandon: Callable[[], object]) -> None:
        """Put the call into the line that its topic is in, or else into the shortest one. See `WaitingLine.join`."""
        line = self._line_of(topic) or self._shortest()
        line.join(call, abandon)
        self._last[topic] = line, line.joined

    def _shortest(self) -> WaitingLine:
        if all(line.length for line in self._lines) and len(self._lines) < self._lines_max:
            self._lines.append(WaitingLine())
        return min(self._lines, key=lambda line: line.length)

    def mark(self) -> list[Future[None]]:
        """Done when everybody who is in line now was served or abandoned."""
        return [line.mark() for line in self._lines]

    def end(self) -> None:
        """Abandon the calls that still wait; no other may join. Calls that are being made go on. From any thread."""
        for line in self._lines:
            line.end()


Headers = Sequence[tuple[str, bytes | None]]

# Calls in line. A caller that awaits what it sends, even thousands at a time, never gets there.
_LINE_MAX = 100_000

# After the end: for the threads to tell the loop. A call in line that cannot be interrupted may take longer.
_LAST_OUTCOMES_S = 2.0


class PendingOutcome(Protocol):
    """A future of the blocking producer."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...


class Producer:
    """`bus.Producer` for one event loop: the same configs, calls and guarantees.

        async with Producer("127.0.0.1:9094") as producer:
            metadata = await producer.send("orders", b"..")                     # waits for the acknowledgement
            futures = [producer.send("orders", value) for value in values]      # does not, and keeps the order
            await asyncio.gather(*futures)

    Cancelling who awaits a future gives up its outcome, not the record: what was accepted is sent. Raises `BusError`
    INVALID_CONFIG. No connection is made before the first call.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[ProducerSettings]) -> None:
        config = parse_config(ProducerConfig, configs)
        self._begin(BlockingProducer(address, **configs), config.max_block_ms / 1000, time.monotonic, _LINE_MAX)

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """Return what `bus.Producer.describe_settings` does; asks nobody."""
        described: dict[str, EffectiveSetting] = self._blocking.describe_settings()
        return described

    @classmethod
    def _over(
        cls, blocking: Any, *, max_block_s: float, clock: Callable[[], float], line_max: int = _LINE_MAX
    ) -> Producer:
        """Over a producer that is there already; closing closes it."""
        producer = cls.__new__(cls)
        producer._begin(blocking, max_block_s, clock, line_max)
        return producer

    def _begin(self, blocking: Any, max_block_s: float, clock: Callable[[], float], line_max: int) -> None:
        self._blocking = blocking
        self._home = Home("producer")
        self._max_block_s = max_block_s
        self._clock = clock
        self._line_max = line_max
        self._lines = WaitingLines()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: Outcomes | None = None
        self._closing: asyncio.Future[None] | None = None

    # ------------------------------------------------------------ sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept one record, as `bus.Producer.send`; the future gives its `RecordMetadata`.

        Returns at once, and never raises for the record: what is wrong with it comes through the future, as everything
        later does. While buffer.memory is full or the topic is not known yet, calls wait in line, for max.block.ms; the
        future of one that finds the line full fails with THROTTLING_QUOTA_EXCEEDED.
        """
        call = (topic, value, key, headers, partition, timestamp_ms)
        _, outcomes = self._here()
        future = outcomes.new_future()
        if not isinstance(topic, str) or not self._lines.has(topic):
            try:
                pending = self._blocking._send_now(*call)
            except Exception as error:
                outcomes.refuse(future, error)
                return future
            if pending is not None:
                pending.add_done_callback(outcomes.callback_for(future))
                return future
        self._line_up(topic, outcomes, future, partial(self._send_in_turn, call, self._clock() + self._max_block_s))
        return future

    def send_batch(
        self, topic: str, table: pa.Table | pa.RecordBatch, partition: int | None = None
    ) -> asyncio.Future[list[BatchMetadata]]:
        """Accept many records, as `bus.Producer.send_batch`, in a thread, which encodes them; otherwise as `send`."""
        _, outcomes = self._here()
        future = outcomes.new_future()
        try:
            check_topic(topic)
        except BusError as error:
            outcomes.refuse(future, error)
            return future
        self._line_up(topic, outcomes, future, partial(self._blocking.send_batch, topic, table, partition))
        return future

    def _here(self) -> tuple[asyncio.AbstractEventLoop, Outcomes]:
        """The running loop, the first one that this producer was used in. Raises `RuntimeError` for another."""
        self._home.check()
        loop = asyncio.get_running_loop()
        if self._outcomes is None:
            self._loop, self._outcomes = loop, Outcomes(loop)
        if self._loop is not loop:
            raise RuntimeError("expected the event loop of this producer's first call, found another one")
        return loop, self._outcomes

    def _line_up(
        self, topic: str, outcomes: Outcomes, future: asyncio.Future[Any], hand_over: Callable[[], PendingOutcome]
    ) -> None:
        if self._closing is not None:
            outcomes.refuse(future, BusError(ErrorCode.INVALID_REQUEST, "this producer is closed"))
        elif self._lines.length >= self._line_max:
            full = f"expected fewer than {self._line_max} calls that wait for buffer.memory or metadata, found as many"
            full += ": await some of the futures first"
            outcomes.refuse(future, BusError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, full))
        else:
            self._lines.join(topic, partial(self._let_in, future, hand_over), partial(self._turn_away, future))

    # ------------------------------------------------------------ on the line's thread

    def _let_in(self, future: asyncio.Future[Any], hand_over: Callable[[], PendingOutcome]) -> None:
        assert self._outcomes is not None, "expected a call before anything waits in line"
        try:
            pending = hand_over()
        except Exception as error:
            self._outcomes.fail(future, error)
        else:
            pending.add_done_callback(self._outcomes.callback_for(future))

    def _send_in_turn(self, call: tuple[Any, ...], deadline: float) -> PendingOutcome:
        """Send, without waiting for max.block.ms again after a call has waited that long in line."""
        pending: PendingOutcome | None
        pending = self._blocking.send(*call) if self._clock() < deadline else self._blocking._send_now(*call)
        if pending is None:
            raise BusError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"waited {self._max_block_s:g} s (max.block.ms) in line for buffer.memory or metadata of {call[0]!r}",
            )
        return pending

    def _turn_away(self, future: asyncio.Future[Any]) -> None:
        assert self._outcomes is not None, "expected a call before anything waits in line"
        closed = "the producer was closed before this record had memory or metadata: it was not sent"
        self._outcomes.fail(future, BusError(ErrorCode.REQUEST_TIMED_OUT, closed))

    # ------------------------------------------------------------ transactions

    async def init_transactions(self) -> None:
        """Initialise transactions like `bus.Producer.init_transactions`."""
        await self._in_thread(self._blocking.init_transactions)

    async def begin_transaction(self) -> None:
        """Begin a transaction like `bus.Producer.begin_transaction`."""
        self._here()
        self._blocking.begin_transaction()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group_metadata: GroupMetadata
    ) -> None:
        """Send offsets like `bus.Producer.send_offsets_to_transaction`."""
        await self._in_thread(partial(self._blocking.send_offsets_to_transaction, offsets, group_metadata))

    async def commit_transaction(self) -> dict[TopicPartition, CommittedRows]:
        """Commit like `bus.Producer.commit_transaction`, with everything that was sent before this call. The commit
        continues if the awaiting task is cancelled; its outcome is then open, and the same call returns it."""
        return await self._end_transaction(self._blocking.commit_transaction)

    async def abort_transaction(self) -> None:
        """Abort like `bus.Producer.abort_transaction`."""
        await self._end_transaction(self._blocking.abort_transaction)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Producer]:
        """Run a transaction like `bus.Producer.transaction`, for `async with`."""
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            await self._end_transaction(self._blocking._abort_after_failure)
            raise
        self._blocking._check_block_is_open()
        try:
            await self.commit_transaction()
        except BusError:
            await self._end_transaction(self._blocking._abort_after_failure)
            raise

    async def _end_transaction(self, end: Callable[[], ResultT]) -> ResultT:
        """End the transaction behind the calls that wait in line, which belong to it and not to the next one."""
        loop, _ = self._here()
        markers = self._lines.mark()

        def end_behind_them() -> ResultT:
            _are_reached(markers, None)
            return end()

        return await asyncio.shield(loop.run_in_executor(None, end_behind_them))

    # ------------------------------------------------------------ the rest

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before this call has its outcome; errors stay in the futures.

        Raises `TimeoutError` after `timeout` seconds.
        """
        loop, outcomes = self._here()
        timeout = check_timeout(timeout)
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        sent = outcomes.unresolved()
        await loop.run_in_executor(None, self._flush, self._lines.mark(), timeout)
        # The outcomes are there; that the loop has been told of them may take a moment more.
        await _wait_for_those_not_done(sent, None)

    def _flush(self, markers: Sequence[concurrent.futures.Future[None]], timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        if not _are_reached(markers, timeout):
            raise TimeoutError(f"expected all records to be let in within {timeout} s, found some in line")
        self._blocking.flush(self._left(deadline))

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then end. What is not acknowledged within `timeout` seconds fails with REQUEST_TIMED_OUT. Safe to
        repeat; goes on if who awaits it is cancelled."""
        if not self._home.is_here():
            return
        loop, outcomes = self._here()
        timeout = check_timeout(timeout)
        if self._closing is None:
            self._closing = loop.run_in_executor(None, self._close, self._lines.mark(), timeout)
        await asyncio.shield(self._closing)
        await _wait_for_those_not_done(outcomes.unresolved(), _LAST_OUTCOMES_S)

    def _close(self, markers: Sequence[concurrent.futures.Future[None]], timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        _are_reached(markers, timeout)
        try:
            self._blocking.close(self._left(deadline))
        finally:
            self._lines.end()

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock() + timeout

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock())

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def partitions_for(self, topic: str) -> list[int]:
        """The partition numbers of `topic`. Raises `BusError`."""
        return await self._in_thread(partial(self._blocking.partitions_for, topic))

    async def last_sequence(self, topic: str, partition: int) -> int | None:
        """The last sequence of this named producer, as in `bus.Producer.last_sequence`."""
        return await self._in_thread(partial(self._blocking.last_sequence, topic, partition))

    async def _in_thread(self, call: Callable[[], ResultT]) -> ResultT:
        loop, _ = self._here()
        return await loop.run_in_executor(None, call)

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics like `bus.Producer.metrics`. Never waits."""
        found: Mapping[str, float] = self._blocking.metrics()
        return found

    def topic_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Return the metrics like `bus.Producer.topic_metrics`. Never waits."""
        found: Mapping[str, Mapping[str, float]] = self._blocking.topic_metrics()
        return found


async def _wait_for_those_not_done(futures: Sequence[asyncio.Future[Any]], timeout_s: float | None) -> None:
    left = [future for future in futures if not future.done()]
    if left:
        await asyncio.wait(left, timeout=timeout_s)


def _are_reached(markers: Sequence[concurrent.futures.Future[None]], timeout: float | None) -> bool:
    return not concurrent.futures.wait(markers, timeout).not_done


class Settled(Protocol):
    """A future of the producer that is done."""

    def result(self) -> Any: ...

    def exception(self) -> BaseException | None: ...


class Outcomes:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[asyncio.Future[Any], Settled | BaseException]] = deque()
        self._is_called = False  # the loop was asked to look, and has not yet
        self._unresolved: set[asyncio.Future[Any]] = set()

    def new_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._unresolved.add(future)
        return future

    def unresolved(self) -> list[asyncio.Future[Any]]:
        """Those whose outcome has not arrived, cancelled ones too. On the loop's thread."""
        return list(self._unresolved)

    def refuse(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Fail it at once. On the loop's thread."""
        self._unresolved.discard(future)
        future.set_exception(error)

    def callback_for(self, future: asyncio.Future[Any]) -> Callable[[Settled], None]:
        """Return a callback for the `add_done_callback` of the producer's future. Safe from any thread."""

        def on_done(settled: Settled) -> None:
            self._put(future, settled)

        return on_done

    def fail(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Safe from any thread."""
        self._put(future, error)

    def _put(self, future: asyncio.Future[Any], outcome: Settled | BaseException) -> None:
        # First the outcome, then the question: if `_is_called` is found set, the loop looks afterwards.
        self._arrived.append((future, outcome))
        if self._is_called:
            return
        self._is_called = True
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: no coroutine waits any more
            self._arrived.clear()

    def _resolve(self) -> None:
        self._is_called = False
        while self._arrived:
            future, outcome = self._arrived.popleft()
            self._unresolved.discard(future)
            if future.done():  # the waiting task was cancelled; the record was not
                continue
            error = outcome if isinstance(outcome, BaseException) else outcome.exception()
            if error is not None:
                future.set_exception(error)
            else:
                assert not isinstance(outcome, BaseException)
                future.set_result(outcome.result())
