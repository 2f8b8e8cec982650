"""Puts the sender to work: its lock, its time, who waits for memory, and who is told of outcomes.

One lock guards all state of the sender. Its instructions are carried out by the thread that made them possible, before
the lock is released, so that requests leave in the order in which they were made: the caller's, if the window is open,
else the one that reads the answers. What moves records from one place to the next is not interrupted by Ctrl-C
(`uninterrupted`), and waits for nothing. Futures and callbacks are never touched while the lock is held: what settles
chunks calls `announce` after releasing it. A record that comes while its own thread has the lock, from a signal handler
or a finalizer, is set aside (`add_late`) for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from bus.client.config.clients import ProducerConfig
from bus.client.connection.produce_requests import Produced
from bus.client.producer.accumulator import BufferPool
from bus.client.producer.batch import Record, RecordBatchBuilder, RecordFuture
from bus.client.producer.connections import Connection, Cut, Errand, Metadata, Open, Request, Resume, Send, Wake
from bus.client.producer.queue import Chunk
from bus.client.producer.sender import Sender
from bus.client.producer.transaction_manager import Call, TransactionEnd, TransactionManager, Verdict
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnCondition, OwnLock, logger_of
from bus.platform.signals import uninterrupted

logger = logger_of(__name__)

ResultT = TypeVar("ResultT")


class Stream(Protocol):
    """To one broker, in order. Its owner calls `on_answer` for each request and `on_end` once."""

    address: str

    def send(self, request: Request) -> None: ...

    def cut(self, reason: str, *, is_late: bool = False) -> None: ...

    def finish(self) -> None: ...

    def join(self, timeout: float | None) -> None: ...


class _Step:
    """A step of the sender: uninterrupted, with its instructions carried out. The lock is held."""

    __slots__ = ("_carry_out",)

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self._carry_out = carry_out

    def __enter__(self) -> None:
        uninterrupted.__enter__()

    def __exit__(self, *error: object) -> None:
        try:
            self._carry_out()
        finally:
            uninterrupted.__exit__(*error)


class Engine:
    def __init__(
        self,
        metadata: Metadata,
        config: ProducerConfig,
        *,
        clock: Callable[[], float],
        backoff_ms: Callable[[int], float],
        open_stream: Callable[[str], Stream],
        run_errand: Callable[[Errand], None],
        wake: Callable[[], None],
    ) -> None:
        """`run_errand` starts a remote call elsewhere and returns at once, as `wake` does, which asks for a `tick`."""
        self.lock = OwnLock()
        self._config = config
        self._clock = clock
        self._open_stream = open_stream
        self._run_errand = run_errand
        self._wake = wake
        self.pool = BufferPool(config.buffer_memory, self.lock, clock)
        self.sender = Sender(metadata, config, self.pool, backoff_ms=backoff_ms)
        self.accumulator, self.metrics, self.split = self.sender.accumulator, self.sender.metrics, self.sender.split
        self._agenda, self._settled = self.sender.agenda, self.sender.queues.settled
        self._step = _Step(self._carry_out)
        self._streams: dict[Connection, Stream] = {}
        self.callback_threads = self.accumulator.callback_threads
        self._announcing: set[Chunk] = set()  # being announced
        self._announced = OwnCondition(self.lock)

    # ------------------------------------------------------------ instructions; the lock is held

    def _carry_out(self) -> None:
        instructions = self._agenda.instructions
        while instructions:
            match instructions.popleft():
                case Send(connection, request):
                    self._send(connection, request)
                case Wake():
                    self._wake()
                case Open(address):
                    self._open(address)
                case Cut(connection, reason):
                    self._streams[connection].cut(reason, is_late=True)
                case errand:
                    self._begin(errand)

    def _begin(self, errand: Errand) -> None:
        try:
            self._run_errand(errand)
        # the sender waits for an answer, and the caller of this step has no part in the failure
        except Exception as failure:
            logger.exception("a call of the producer could not be begun")
            error = BusError(ErrorCode.NETWORK_EXCEPTION, f"the call could not be begun: {failure!r}")
            self.sender.on_no_answer(errand, error, self._clock())

    def _open(self, address: str) -> None:
        try:
            stream = self._open_stream(address)
        except BaseException as failure:
            self.sender.on_not_opened(address, self._clock())
            if not isinstance(failure, Exception):
                raise
            # The requests for this stream were accepted, maybe in another call than this one: they are tried again
            # until their time-outs.
            logger.exception("a stream to %s could not be opened", address)
        else:
            self._streams[self.sender.on_opened(address, self._clock())] = stream

    def _send(self, connection: Connection, request: Request) -> None:
        stream = self._streams[connection]
        try:
            stream.send(request)
        except Exception:  # accepted records must not be forgotten: they are sent again until their time-outs
            logger.exception("a request to %s could not be sent", stream.address)
            stream.cut("a request could not be sent")
        else:
            self.metrics.record_request(request.parts, request.sent_at_ms)

    # ------------------------------------------------------------ taking in; the caller holds the lock, then announces

    def add(
        self, topic: str, record: Record, partition_count: int, *, deadline_ms: float | None
    ) -> RecordFuture | None:
        """Add one record to its topic's open batch. Waits for buffer.memory until `deadline_ms`; with None it does not
        wait but returns None, and nothing was done. Raises `BusError`."""
        sender = self.sender
        size_bytes = record[-1]
        batch: RecordBatchBuilder | None = self.accumulator.open.get(topic)  # a producer that has ended has none
        if batch is None or batch.size_bytes + size_bytes > batch.limit_bytes:
            return self._make_room_and_add(topic, record, partition_count, deadline_ms)
        future = batch.add(*record)
        if batch.due_at_ms <= self._agenda.wakes_at_ms or batch.is_filled or self.pool.waiting_count > 0:
            now_ms = self._clock()
            if sender.has_to_follow_up(batch, now_ms):
                with self._step:
                    sender.follow_up(batch, now_ms)
        return future

    def add_late(self, topic: str, record: Record, partition_count: int) -> RecordFuture:
        """Add a record as `add` does, for a thread that has the lock already and was interrupted. Never waits. Raises
        `BusError`."""
        future = self.sender.add_late(topic, record, partition_count, self._clock())
        self._wake()
        return future

    def _make_room_and_add(
        self, topic: str, record: Record, partition_count: int, deadline_ms: float | None
    ) -> RecordFuture | None:
        """The record is added in the step that makes room for it: what is carried out at the end of a step may close
        any open batch, and an empty one would leave without its record."""
        sender = self.sender
        _, key, *_, size_bytes = record
        limit = self.accumulator.limit_for(size_bytes, partition_count, has_key=key is not None)
        least = max(size_bytes, self._config.batch_size)
        while True:
            sender.check_usable()
            with self._step:
                now_ms = self._clock()
                batch = sender.make_room(
                    topic, size_bytes, partition_count, now_ms, limit_bytes=limit, least_bytes=least
                )
                if batch is not None:
                    return self._add_first(batch, record, now_ms)
            if deadline_ms is None:
                return None
            future = self._wait_for_memory(
                least, deadline_ms, lambda: self._open_and_add(topic, record, partition_count, least)
            )
            if future is not None:
                return future

    def _open_and_add(self, topic: str, record: Record, partition_count: int, taken_bytes: int) -> RecordFuture | None:
        if not self.sender.is_usable or topic in self.accumulator.open:
            self.pool.give_back(taken_bytes)  # it is too late, or another thread was faster
            return None
        with self._step:
            now_ms = self._clock()
            return self._add_first(
                self.accumulator.open_batch(topic, taken_bytes, partition_count, now_ms), record, now_ms
            )

    def _add_first(self, batch: RecordBatchBuilder, record: Record, now_ms: float) -> RecordFuture:
        future = batch.add(*record)
        self.sender.follow_up(batch, now_ms)
        return future

    def add_chunks(
        self, topic: str, chunks: Sequence[tuple[int, Chunk]], *, size_bytes: int, deadline_ms: float
    ) -> None:
        """Runs of a batch with their partitions, in order. Waits for buffer.memory until `deadline_ms`."""
        sender = self.sender
        sender.check_usable()
        with self._step:
            if self.pool.try_take(size_bytes):
                sender.take_in(topic, chunks, self._clock())
                return
            sender.hurry(self._clock())
        self._wait_for_memory(size_bytes, deadline_ms, lambda: self._take_in(topic, chunks, size_bytes))

    def _take_in(self, topic: str, chunks: Sequence[tuple[int, Chunk]], taken_bytes: int) -> None:
        if not self.sender.is_usable:
            self.pool.give_back(taken_bytes)
        self.sender.check_usable()
        with self._step:
            self.sender.take_in(topic, chunks, self._clock())

    def _wait_for_memory(self, size_bytes: int, deadline_ms: float, use: Callable[[], ResultT]) -> ResultT:
        if self.is_in_callback:
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                f"expected {size_bytes} bytes of buffer.memory={self._config.buffer_memory} to be free for what a "
                f"callback of this producer sends, found {self.pool.available_bytes}: it may not wait for more, since "
                "answers wait behind it",
            )
        self.metrics.waiting_threads += 1
        try:
            return self.pool.wait(size_bytes, deadline_ms, self.metrics.record_pool_wait, use)
        except BusError as error:
            if error.code is ErrorCode.REQUEST_TIMED_OUT:
                self.metrics.record_exhausted(self._clock())
            raise
        finally:
            self.metrics.waiting_threads -= 1

    def has_room(self) -> bool:
        """No thread waits for memory, and there is enough for an ordinary batch."""
        return self.pool.waiting_count == 0 and self.pool.available_bytes >= self._config.batch_size

    def check_open(self) -> None:
        self.sender.check_open()

    def check_usable(self) -> None:
        self.sender.check_usable()

    # ------------------------------------------------------------ outcomes; the lock is not held

    def announce(self) -> None:
        """Tell the futures of what was settled, and run their callbacks: those of one partition in the order of its
        records. What is behind a callback that another thread runs is left to that thread."""
        while self._settled:
            with self.lock:
                chunk = self._take_unannounced()
            if chunk is None:
                return
            self.callback_threads.enter()
            try:
                chunk.announce()
            except BaseException:  # an interrupt; the others are told by another thread
                self._wake()
                raise
            finally:
                self.callback_threads.leave()
                with self.lock:
                    self._announcing.discard(chunk)
                    self._announced.notify_all()

    def _take_unannounced(self) -> Chunk | None:
        busy = {chunk.partition for chunk in self._announcing}
        for number, chunk in enumerate(self._settled):
            if chunk.partition not in busy:
                del self._settled[number]
                self._announcing.add(chunk)
                return chunk
        return None

    def wait_until_announced(self, timeout: float | None) -> None:
        """Wait until the callbacks of everything that is settled have run. Raises `TimeoutError`. Not to be called by a
        callback."""
        with self.lock:
            unannounced = {*self._settled, *self._announcing}
            self._wake()
            is_announced = self._announced.wait_for(
                lambda: unannounced.isdisjoint(self._announcing) and unannounced.isdisjoint(self._settled), timeout
            )
        if not is_announced:
            raise TimeoutError(f"expected callbacks to end within {timeout} s, found some that run or wait")

    @property
    def is_in_callback(self) -> bool:
        """This thread runs callbacks: what waits for outcomes here would wait for itself."""
        return self.callback_threads.is_here()

    def announce_soon(self) -> None:
        """Announce soon, for a user's thread, which may hold locks that callbacks wait for. The next tick announces."""
        if self._settled:
            self._wake()

    # ------------------------------------------------------------ events

    def _connection_of(self, stream: Stream) -> Connection | None:
        """None: it was given up."""
        connection = self.sender.connections.by_address.get(stream.address)
        return connection if connection is not None and self._streams.get(connection) is stream else None

    def on_answer(
        self, stream: Stream, correlation_id: int, throttle_time_ms: int, answers: Sequence[Produced]
    ) -> None:
        """Raises `ValueError` if `answers` do not fit the oldest request."""
        with self.lock, self._step:
            connection = self._connection_of(stream)
            if connection is not None:
                self.sender.on_answer(connection, correlation_id, throttle_time_ms, answers, self._clock())
        self.announce()

    def on_end(self, stream: Stream, error: BusError) -> None:
        """The stream is gone."""
        with self.lock, self._step:
            connection = self._connection_of(stream)
            if connection is not None:
                del self._streams[connection]
                self.sender.on_end(connection, error, self._clock())
        self.announce()

    @property
    def identity(self) -> tuple[int, int] | None:
        return self.sender.identity.current

    def on_identity(self, producer_id: int, producer_epoch: int) -> None:
        with self.lock, self._step:
            self.sender.on_identity(producer_id, producer_epoch, self._clock())
        self.announce()

    def on_no_identity(self, error: BusError) -> None:
        with self.lock, self._step:
            self.sender.on_no_identity(error, self._clock())
        self.announce()

    def on_resumed(self, errand: Resume, *, last_epoch: int, last_sequence: int, version: int) -> None:
        with self.lock, self._step:
            self.sender.on_resumed(
                errand, self._clock(), last_epoch=last_epoch, last_sequence=last_sequence, version=version
            )
        self.announce()

    def on_not_resumed(self, errand: Resume, error: BusError) -> None:
        with self.lock, self._step:
            self.sender.on_not_resumed(errand, error, self._clock())
        self.announce()

    def on_refreshed(self, results: Mapping[str, BusError | None]) -> None:
        """Each topic that was asked for: None, or why nothing is known of it."""
        with self.lock, self._step:
            self.sender.on_refreshed(results, self._clock())
        self.announce()

    def on_no_answer(self, errand: Errand, error: BusError) -> None:
        with self.lock, self._step:
            self.sender.on_no_answer(errand, error, self._clock())
        self.announce()

    def tick(self) -> float:
        """Do what is due; the clock's time of the next tick, unless `wake` asks for an earlier one."""
        with self.lock, self._step:
            self.sender.tick(self._clock())
        self.announce()
        return self._agenda.wakes_at_ms

    # ------------------------------------------------------------ transactions

    @property
    def transactions(self) -> TransactionManager | None:
        """To be called with `lock` held."""
        return self.sender.transactions

    def start_commit(self) -> list[Any]:
        """Begin to flush for a commit, like `start_flush`; nothing more is accepted. Raises `BusError` if there is
        nothing to commit."""
        with self.lock, self._step:
            unsettled = self.sender.start_commit(self._clock())
        return self._to_wait_for(unsettled)

    def start_abort(self) -> None:
        """Fail what is not acknowledged, and take nothing more in. Raises `BusError` if there is nothing to abort."""
        with self.lock, self._step:
            self.sender.start_abort(self._clock())
        self.announce_soon()

    def end_transaction(self) -> TransactionEnd | None:
        with self.lock:
            return self.sender.end_transaction()

    def on_initialized(self, producer_id: int, producer_epoch: int) -> None:
        with self.lock:
            self.sender.on_initialized(producer_id, producer_epoch)

    def on_transaction_ended(self, producer_id: int, producer_epoch: int) -> None:
        with self.lock:
            self.sender.on_transaction_ended(producer_id, producer_epoch)

    def on_transaction_failed(self, call: Call, error: BusError) -> Verdict:
        with self.lock, self._step:
            verdict = self.sender.on_transaction_failed(call, error, self._clock())
        self.announce_soon()
        return verdict

    def on_transaction_timed_out(self, call: Call, error: BusError) -> None:
        with self.lock:
            self.sender.on_transaction_timed_out(call, error)

    # ------------------------------------------------------------ flushing, closing

    def start_flush(self) -> list[Any]:
        """Send everything without waiting for company; returns what is to be waited for: batches and futures of runs,
        each with `wait(timeout)`. `end_flush` follows."""
        with self.lock, self._step:
            unsettled = self.sender.start_flush(self._clock())
        return self._to_wait_for(unsettled)

    def _to_wait_for(self, unsettled: Sequence[Chunk]) -> list[Any]:
        self.announce_soon()
        return list({id(chunk.batch): chunk.batch for chunk in unsettled}.values())  # type: ignore[attr-defined]

    def end_flush(self) -> None:
        with self.lock:
            self.sender.end_flush()

    def close(self, error: BusError) -> tuple[int, list[Stream]]:
        """Fail what is not settled with `error` and take nothing more. Returns how many records failed and the streams
        to be ended by the caller: those without a request are finished already, the others cut."""
        with self.lock, self._step:
            failed, connections = self.sender.close(error, self._clock())
            streams = [self._streams.pop(connection) for connection in connections]
        self.announce()
        for connection, stream in zip(connections, streams, strict=True):
            if connection.requests:
                stream.cut("the producer was closed")
            else:
                stream.finish()
        return failed, streams
