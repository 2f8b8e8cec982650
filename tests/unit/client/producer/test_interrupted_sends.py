"""Ctrl-C at every line that a sending, flushing or closing thread runs in the producer's engine.

What was accepted before is settled, exactly once and in order, as if nothing had happened; the record whose call was
interrupted may be in the log or not; and the producer goes on.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bus.client.producer import accumulator
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import Flag
from tests.unit.client.producer.test_sender import OK, Bench

ENGINE = ("engine", "sender", "connections", "queues", "queue", "accumulator", "batch", "partitioning")
CLOSED = BusError(ErrorCode.REQUEST_TIMED_OUT, "closed")
FILES = tuple(f"/bus/client/producer/{name}.py" for name in ENGINE)


class Interrupt:
    """SIGINT at the `at`-th line of the engine that runs while it is on, in this thread."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.place = ""

    def __call__(self, call: Callable[[], Any]) -> bool:
        """Make the call; True if it was interrupted."""
        before, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGINT, handler)
        return False

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        lines = _lines_of(frame.f_code.co_filename)
        if not lines:
            return None
        if event == "line" and frame.f_lineno in lines:
            self.left -= 1
            if self.left == 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace


@cache
def _lines_of(path: str) -> frozenset[int]:
    """Return the lines of a file of the engine. Tracing reports a `with` once more behind its block, where no signal is
    looked for."""
    if not path.endswith(FILES):
        return frozenset()
    lines = Path(path).read_text().splitlines()
    return frozenset(number for number, line in enumerate(lines, 1) if not line.lstrip().startswith("with "))


class Call:
    """One call of a user's thread, in the middle of a producer's work."""

    def __init__(self, name: str, before: int, **configs: Any) -> None:
        """`before`: records that were sent before it; eight fill a batch."""
        self.name = name
        self.before = before
        self.configs = {"batch_size": 200, "linger_ms": 1_000, "buffer_memory": 100_000, **configs}

    def begin(self) -> tuple[Bench, list[Any]]:
        bench = Bench("a", "a", **self.configs)
        futures = [bench.send(b"%d" % number, number % 2) for number in range(self.before)]
        return bench, futures

    def __call__(self, bench: Bench, futures: list[Any]) -> None:
        match self.name:
            case "send":
                for number in range(self.before, self.before + 4):
                    futures.append(bench.send(b"%d" % number, number % 2))
            case "send_keyless":
                for number in range(self.before, self.before + 4):
                    futures.append(bench.send(b"%d" % number, None))  # type: ignore[arg-type]
            case "send_run":
                futures.append(bench.send_run(b"run"))
            case "flush":
                bench.engine.start_flush()
            case "close":
                bench.engine.close(CLOSED)


class AnsweredEvent(Flag):
    """An event that waits for memory until the broker has answered everything."""

    bench: Bench
    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        before = sys.gettrace()
        sys.settrace(None)
        AnsweredEvent.waits += 1
        while self.bench.engine.sender.connections.by_address["a"].requests:
            self.bench.answer()
        sys.settrace(before)
        return self.is_set()


@pytest.mark.parametrize("is_run", [False, True])
def test_interrupt_of_a_thread_that_waits_for_memory_loses_none(is_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "Flag", AnsweredEvent)
    AnsweredEvent.waits = 0
    wrong: list[str] = []
    at = 0
    while True:
        at += 1
        bench = AnsweredEvent.bench = Bench("a", batch_size=400, linger_ms=1_000, buffer_memory=1_024)
        for _ in range(8):
            bench.send(bytes(90))
        interrupt = Interrupt(at)
        send = partial(bench.send_run, bytes(900)) if is_run else partial(bench.send, bytes(390))
        if not interrupt(send):
            break
        bench.engine.start_flush()
        settle_all(bench, [])
        bench.pass_time(1_000)
        while bench.engine.sender.connections.by_address["a"].requests:
            bench.answer()
        if bench.used_bytes:
            wrong.append(f"{interrupt.place}: {bench.used_bytes} bytes are lost")
    assert not wrong, "\n".join(wrong)
    assert AnsweredEvent.waits > 10


def settle_all(bench: Bench, futures: list[Any]) -> None:
    """Do the work of the broker and of time: answer what was sent, end streams that were cut, wake what is due."""
    for _ in range(200):
        for number, stream in enumerate(bench.streams):
            connection = bench.engine.sender.connections.by_address.get(stream.address)
            if connection is None or bench.engine._connection_of(stream) is None:
                continue
            if stream.cut_for:
                bench.end(stream=number)
            while connection.requests and connection.requests[0] in stream.requests:
                bench.answer(OK, *[OK] * (len(connection.requests[0].parts) - 1), stream=number)
        for errand in list(bench.errands):
            bench.errands.remove(errand)
            if type(errand).__name__ == "Resume":
                bench.engine.on_resumed(errand, last_epoch=-1, last_sequence=-1, version=1)
        bench.pass_time(1_000)
        if all(future.done() for future in futures):
            return


@pytest.mark.parametrize(
    "call",
    [
        Call("send", 6),
        Call("send", 2, linger_ms=0),
        Call("send_keyless", 6, enable_idempotence=False),
        Call("send_run", 12),
        Call("flush", 12),
        Call("close", 12),
    ],
    ids=lambda call: f"{call.name}-{call.before}",
)
def test_interrupt_loses_no_record_that_was_accepted(call: Call) -> None:
    wrong: list[str] = []
    at = 0
    while True:
        at += 1
        bench, futures = call.begin()
        interrupt = Interrupt(at)
        if not interrupt(partial(call, bench, futures)):
            break
        assert bench.engine.lock.acquire(blocking=False), interrupt.place
        bench.engine.lock.release()
        try:
            if call.name == "close":
                bench.engine.close(CLOSED)  # as the finally of whoever closes
            else:
                futures.append(bench.send(b"after", 0))
                settle_all(bench, futures)
        except Exception as error:
            wrong.append(f"{interrupt.place}: {error!r}")
            continue
        lost = [number for number, future in enumerate(futures) if not future.done()]
        if lost:
            wrong.append(f"{interrupt.place}: {lost} of {len(futures)} have no outcome")
    assert not wrong, "\n".join(wrong)
    assert at > 50
