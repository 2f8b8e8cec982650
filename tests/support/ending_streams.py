"""Streams that end at any point of what their owner does, played one point after another.

A step of the owner runs in the test's thread. At its k-th line of code, for each k, the stream ends, and the step goes
on once the thread that reads the stream has told the owner, or waits for a lock of its. So each order in which an end
may meet a request is played once, and none depends on how fast a machine is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import grpc
import pytest

from bus.client.connection.connections import UNKNOWN_CONTRACT
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnLock

_PATIENCE_S = 60.0


class StreamBroke(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "as the test wants it"


class FakeCall:
    """A bidirectional call: a broker reads all requests, and answers those for which `answer` has a response."""

    def __init__(self, readers: Readers, requests: Iterable[bytes], answer: Callable[[bytes], Any] | None) -> None:
        self._readers = readers
        self._requests = requests
        self._answer = answer
        self._responses: deque[Any] = deque()
        self._has_come = threading.Condition()
        threading.Thread(target=self._serve, name="fake-broker", daemon=True).start()

    def _serve(self) -> None:
        for request in self._requests:
            response = None if self._answer is None else self._answer(request)
            if response is not None:
                self._give(response)

    def _give(self, response: Any) -> None:
        with self._has_come:
            self._responses.append(response)
            self._has_come.notify_all()

    def end(self, error: type[BaseException] | None) -> None:
        """None: as a broker ends a stream that has no more requests."""
        self._give((error or StopIteration)())

    def cancel(self) -> None:
        self.end(StreamBroke)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._readers.idle(while_=lambda: not self._responses), self._has_come:
            self._has_come.wait_for(lambda: self._responses)
        # Taken only now: a reader that has taken a response has something to do, so it must not count as idle.
        response = self._responses[0]
        if isinstance(response, BaseException):
            raise response
        return self._responses.popleft()


class Readers:
    """The threads that read streams, and whether one of them can do nothing by itself: it waits for a lock, or for an
    answer."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self._idle: dict[threading.Thread, Callable[[], bool]] = {}

    @contextmanager
    def idle(self, while_: Callable[[], bool]) -> Iterator[None]:
        thread = threading.current_thread()
        self._idle[thread] = while_
        try:
            yield
        finally:
            del self._idle[thread]

    def settle(self) -> None:
        """Wait until each is over, or idle."""
        for thread in list(self.threads):
            while thread.is_alive() and not self._is_idle(thread):
                thread.join(0.0005)

    def _is_idle(self, thread: threading.Thread) -> bool:
        is_so = self._idle.get(thread)
        return is_so is not None and is_so()

    def watched(self) -> Any:
        """Make what takes the place of the module `threading`, for the module of a stream or of its owner."""
        readers = self

        class Reader(threading.Thread):
            def start(self) -> None:
                super().start()
                if self.name.startswith("bus-"):
                    readers.threads.append(self)

        return SimpleNamespace(**{**vars(threading), "Thread": Reader})

    def new_lock(self) -> WatchedLock:
        return WatchedLock(self)


class WatchedLock(OwnLock):
    """A lock whose waiters are idle while the thread has it that asks: that of the test, which plays the step."""

    def __init__(self, readers: Readers) -> None:
        super().__init__()
        self._readers = readers

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if super().acquire(False):
            return True
        if not blocking or self.is_held_here():
            return super().acquire(blocking)
        with self._readers.idle(while_=self.is_held_here):
            return super().acquire(True, timeout)

    def __enter__(self) -> bool:
        return self.acquire()


class FakeCluster:
    """The first stream gives no answers, unless `is_first_answered`, until it ends; later ones answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, modules: Iterable[ModuleType], *, has_login: bool) -> None:
        self.readers = Readers()
        self.threading = self.readers.watched()
        for module in modules:
            monkeypatch.setattr(module, "threading", self.threading, raising=False)
            monkeypatch.setattr(module, "OwnLock", self.readers.new_lock, raising=False)
        self.calls: list[FakeCall] = []
        self.answer: Callable[[bytes], Any]
        self.is_first_answered = False
        self._has_login = has_login
        self._is_first_over = False
        self._first_end: type[BaseException] | None = None
        self.open_failure: Exception | None = None  # of the first stream
        self.was_reached = True
        self.watch = SimpleNamespace(
            **dict.fromkeys(("note_sent", "note_answer", "note_heard", "note_settled"), lambda *note: None)
        )
        self.backoff = SimpleNamespace(ms=lambda attempt: 100.0)
        self.metadata: Any = SimpleNamespace()

    def known(self, address: str) -> Any:
        """Nothing with a login: streams are then opened by the threads that read them."""
        return None if self._has_login else self.introduce(address)

    def introduce(self, address: str) -> Any:
        return (), UNKNOWN_CONTRACT

    def open_stream(
        self, address: str, method: str, requests: Iterable[bytes], known: Any, refuse: Any
    ) -> tuple[Any, FakeCall]:
        is_first = not self.calls
        call = FakeCall(self.readers, requests, None if is_first and not self.is_first_answered else self.answer)
        self.calls.append(call)
        if is_first:
            if self.open_failure is not None:
                raise self.open_failure
            if self._is_first_over:
                call.end(self._first_end)
        return SimpleNamespace(address=address, note_sent=lambda: None, note_heard=lambda: None), call

    def join(self, connection: Any, stream: Any) -> None: ...

    def part(self, connection: Any, stream: Any) -> None: ...

    def end_first(self, error: type[BaseException] | None) -> None:
        """The first stream, or the first one to come, which is then dead on arrival."""
        self._is_first_over, self._first_end = True, error
        if self.calls:
            self.calls[0].end(error)
        self.readers.settle()

    def failure(self, connection: Any, failure: Any, what: str) -> BusError:
        return BusError(ErrorCode.NETWORK_EXCEPTION, f"{what} at {connection.address}: {failure.details()}")

    def note_late(self, connection: Any) -> None: ...


class Scenario(Protocol):
    """`step` is what the owner does, and `check` what holds afterwards, however it ended."""

    cluster: FakeCluster

    def step(self) -> None: ...

    def check(self) -> None: ...


def play_ends_at_each_line(
    scenario: Callable[[], Scenario], modules: Iterable[ModuleType], error: type[BaseException] | None
) -> int:
    """How many points there were: lines of these modules that the step comes to."""
    files = {module.__file__ for module in modules}
    point = 0
    while True:
        one = scenario()
        was_reached = _run(one.step, files, point, lambda one=one: one.cluster.end_first(error))  # type: ignore[misc]
        if not was_reached:
            return point
        one.cluster.readers.settle()
        try:
            one.check()
        except AssertionError as failure:
            raise AssertionError(f"the stream ended at line {point} of the step: {failure}") from failure
        point += 1


def _run(step: Callable[[], None], files: set[str | None], point: int, meanwhile: Callable[[], None]) -> bool:
    left = point

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                meanwhile()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return left < 0


def wait_until(is_so: Callable[[], bool]) -> None:
    ends_at_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_at_s, "expected an answer to everything, found requests without one"
        time.sleep(0.0005)
