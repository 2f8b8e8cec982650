"""The consumer of a run as its handlers see it: calls from any thread, each made by the thread that polls.

A consumer is for one thread, and that one polls while handlers run in others. Guards two promises: a call of a handler
is carried out between two polls, also while the run waits for that very handler, and each call is answered exactly
once: by its result, its error, or the end of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import Flag

ResultT = TypeVar("ResultT")


class _Call:
    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_answered = Flag()

    def carry_out(self) -> None:
        try:
            self.result = self._do()
        except Exception as error:
            self.error = error
        except BaseException as error:  # meant for the polling thread; the handler gets it all the same
            self.error = error
            raise
        finally:
            self.is_answered.set()

    def refuse(self) -> None:
        self.error = BusError(
            ErrorCode.INVALID_REQUEST, "expected a call of the consumer while its run goes on, found it ended"
        )
        self.is_answered.set()


class HandlerCalls:
    """The calls of all handlers of a run. `wake`: end the poll that is under way."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._is_over = False
        self._polling = threading.get_ident()

    def begin(self) -> None:
        """The thread that calls this one carries out the calls."""
        self._polling = threading.get_ident()

    def ask(self, do: Callable[[], ResultT]) -> ResultT:
        if threading.get_ident() == self._polling:
            return do()
        call = _Call(do)
        self._calls.put(call)
        if self._is_over:  # read behind the put, as `end` looks behind having set it: one of the two sees the call
            self._refuse_all()
        self._wake()
        call.is_answered.wait()
        if call.error is not None:
            raise call.error
        return cast(ResultT, call.result)

    def serve(self) -> None:
        while (call := self._next()) is not None:
            call.carry_out()

    def end(self) -> None:
        """Whoever still waits, and whoever comes later, is refused."""
        self._is_over = True
        self._refuse_all()

    def _refuse_all(self) -> None:
        while (call := self._next()) is not None:
            call.refuse()

    def _next(self) -> _Call | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            return None


class CalledConsumer(Protocol):
    """The calls of `bus.Consumer` that handlers may make."""

    def assignment(self) -> set[TopicPartition]: ...

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int: ...

    def lag(self, partition: TopicPartition, timeout_ms: int | None = None) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def metrics(self) -> Mapping[str, float]: ...


class Pauses(Protocol):
    """Partitions that handlers want no records of; the run has reasons of its own to pause one."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def paused(self) -> set[TopicPartition]: ...


class RunningConsumer:
    """The consumer of a run, for a handler that has a parameter `consumer`. From any thread; a call waits for the
    moment until the polling thread has made it. Only the run commits, so there is no commit here. Raises what the
    consumer's own method raises, and `BusError` INVALID_REQUEST when the run has ended."""

    __slots__ = ("_calls", "_consumer", "_pauses")

    def __init__(self, calls: HandlerCalls, consumer: CalledConsumer, pauses: Pauses) -> None:
        self._calls = calls
        self._consumer = consumer
        self._pauses = pauses

    def assignment(self) -> set[TopicPartition]:
        return self._calls.ask(self._consumer.assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Records that are queued already are handled."""
        self._calls.ask(lambda: self._pauses.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._calls.ask(lambda: self._pauses.resume(partitions))

    def paused(self) -> set[TopicPartition]:
        """Those that handlers have paused."""
        return self._calls.ask(self._pauses.paused)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll returns, ahead of the records that handlers have."""
        return self._calls.ask(lambda: self._consumer.position(partition))

    def lag(self, partition: TopicPartition) -> int:
        return self._calls.ask(lambda: self._consumer.lag(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on at `offset`. If it lies before the polled records, the partition's waiting records are forgotten, and
        come again if they lie behind `offset`."""
        self._calls.ask(lambda: self._consumer.seek(partition, offset))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._calls.ask(lambda: self._consumer.end_offsets(partitions))

    def metrics(self) -> Mapping[str, float]:
        return self._calls.ask(self._consumer.metrics)
