from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bus.client.producer.accumulator import BufferPool
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnLock

CLOSED = BusError(ErrorCode.INVALID_REQUEST, "closed")
FOREVER = 10**6
WAIT_S = 20


def use() -> None: ...


class Pool:
    """A pool, and threads that wait in it: `join` returns only once the thread is known to be in line."""

    def __init__(self, total_bytes: int, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.lock = OwnLock()
        self.pool = BufferPool(total_bytes, self.lock, clock)
        self.granted: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.waits: list[float] = []
        self.threads: dict[str, threading.Thread] = {}

    def take(self, size_bytes: int) -> bool:
        with self.lock:
            return self.pool.try_take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        with self.lock:
            self.pool.give_back(size_bytes)

    def line_up(self, name: str, size_bytes: int, deadline_ms: float = FOREVER) -> None:
        entered = threading.Event()

        def wait() -> None:
            try:
                with self.lock:
                    entered.set()  # the lock comes free when the thread waits, and not before
                    self.pool.wait(size_bytes, deadline_ms, self.waits.append, use)
                    self.granted.append(name)
            except BaseException as error:
                self.errors[name] = error

        self.threads[name] = threading.Thread(target=wait, daemon=True)
        self.threads[name].start()
        assert entered.wait(WAIT_S)
        with self.lock:
            pass

    def finish(self, *names: str) -> None:
        for name in names:
            self.threads[name].join(WAIT_S)
            assert not self.threads[name].is_alive(), f"{name} still waits"


def test_bytes_are_taken_and_given_back_and_never_more_are_out_than_there_are() -> None:
    pool = Pool(100)
    assert pool.take(60)
    assert not pool.take(41)
    assert pool.take(40)
    pool.give_back(60)
    assert pool.pool.available_bytes == 60
    with pytest.raises(AssertionError, match="110 of 100"):
        pool.give_back(50)


def test_who_wants_little_does_not_pass_by_who_has_waited_longer_for_more() -> None:
    pool = Pool(100)
    assert pool.take(100)
    pool.line_up("large", 80)
    pool.line_up("small", 10)
    pool.give_back(50)
    assert not pool.take(10), "there is room, but others came before"
    assert pool.granted == []
    pool.give_back(30)
    pool.finish("large")
    assert pool.granted == ["large"]
    pool.give_back(20)
    pool.finish("small")
    assert pool.granted == ["large", "small"]
    assert pool.pool.available_bytes == 10


def test_what_comes_back_serves_as_many_as_it_is_enough_for_in_their_order() -> None:
    pool = Pool(100)
    assert pool.take(100)
    for name in ("first", "second", "third"):
        pool.line_up(name, 40)
    pool.give_back(90)
    pool.finish("first", "second")
    assert sorted(pool.granted) == ["first", "second"]
    assert pool.pool.waiting_count == 1
    pool.give_back(30)
    pool.finish("third")


def test_waiting_too_long_says_what_is_out_and_lets_the_next_one_forward() -> None:
    pool = Pool(100)
    assert pool.take(50)
    pool.line_up("second", 60)
    pool.line_up("third", 10)
    with pool.lock, pytest.raises(BusError, match=r"buffer\.memory=100: 50 are free, 50 are not") as caught:
        pool.pool.wait(5, deadline_ms=0, on_wait=pool.waits.append, use=use)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert pool.waits == [0.0]
    assert pool.pool.waiting_count == 2
    pool.give_back(50)
    pool.finish("second", "third")
    assert pool.pool.available_bytes == 30


def test_first_in_line_that_gives_up_lets_those_behind_have_what_is_there() -> None:
    pool = Pool(100)
    assert pool.take(50)
    pool.line_up("second", 60)
    pool.line_up("third", 40)
    waiter = pool.pool._waiters[0]
    with pool.lock:
        pool.pool._give_up(waiter)  # its time is up
    pool.finish("third")
    assert pool.granted == ["third"]
    assert pool.pool.available_bytes == 10
    pool.pool.close(CLOSED)


def test_more_than_there_will_ever_be_is_refused_at_once() -> None:
    pool = Pool(100)
    with pool.lock, pytest.raises(BusError, match=r"buffer\.memory=100 bytes at once, found 101") as caught:
        pool.pool.wait(101, deadline_ms=FOREVER, on_wait=pool.waits.append, use=use)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_closing_wakes_all_who_wait_and_refuses_who_comes_later() -> None:
    pool = Pool(100)
    assert pool.take(100)
    pool.line_up("first", 10)
    pool.line_up("second", 10)
    with pool.lock:
        pool.pool.close(CLOSED)
        pool.pool.close(BusError(ErrorCode.UNKNOWN_SERVER_ERROR, "the first reason stays"))
    pool.finish("first", "second")
    assert pool.errors == {"first": CLOSED, "second": CLOSED}
    with pool.lock, pytest.raises(BusError, match="closed"):
        pool.pool.wait(10, deadline_ms=FOREVER, on_wait=pool.waits.append, use=use)
    pool.give_back(100)
    assert pool.pool.available_bytes == 100


class Interrupt(BaseException):
    pass


class InterruptedEvent:
    """The event of a waiter whose thread is interrupted while it waits; `before` happens first."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def wait(self, timeout: float) -> None:
        self._before()
        raise Interrupt

    def set(self) -> None: ...


@pytest.mark.parametrize("is_granted", [True, False])
def test_interrupt_gives_everything_back_and_keeps_the_lock(monkeypatch: Any, is_granted: bool) -> None:
    pool = Pool(100)
    assert pool.take(100)
    before = (lambda: pool.give_back(100)) if is_granted else (lambda: None)
    monkeypatch.setattr("bus.client.producer.accumulator.Flag", lambda: InterruptedEvent(before))
    with pytest.raises(Interrupt), pool.lock:
        pool.pool.wait(60, deadline_ms=FOREVER, on_wait=pool.waits.append, use=use)
    assert not pool.lock.is_held_here()
    assert pool.pool.waiting_count == 0
    assert pool.pool.available_bytes == (100 if is_granted else 0)


def test_interrupt_of_the_first_in_line_lets_the_next_one_forward(monkeypatch: Any) -> None:
    pool = Pool(100)
    assert pool.take(50)
    with monkeypatch.context() as patch:
        patch.setattr("bus.client.producer.accumulator.Flag", lambda: InterruptedEvent(line_up_another))

        def line_up_another() -> None:
            patch.undo()
            pool.line_up("second", 40)

        with pytest.raises(Interrupt), pool.lock:
            pool.pool.wait(60, deadline_ms=FOREVER, on_wait=pool.waits.append, use=use)
    pool.finish("second")
    assert pool.pool.available_bytes == 10


def test_interrupt_while_getting_in_line_leaves_nobody_there() -> None:
    def clock() -> float:
        raise Interrupt

    pool = Pool(100, clock)
    assert pool.take(100)
    with pytest.raises(Interrupt), pool.lock:
        pool.pool.wait(60, deadline_ms=FOREVER, on_wait=pool.waits.append, use=use)
    assert pool.pool.waiting_count == 0


class InterruptedLock:
    """Ctrl-C comes while the waiter gives the lock away, or waits to have it back."""

    def __init__(self, at: str) -> None:
        self._lock = OwnLock()
        self._at = at

    def release(self) -> None:
        self._lock.release()
        if self._at == "release":
            signal.raise_signal(signal.SIGINT)

    def acquire(self) -> bool:
        if self._at == "acquire":
            signal.raise_signal(signal.SIGINT)
        return self._lock.acquire()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("at", ["release", "acquire"])
def test_waiter_that_is_interrupted_around_its_wait_has_the_lock_all_the_same(at: str) -> None:
    lock: Any = InterruptedLock(at)
    pool = BufferPool(100, lock, lambda: 0.0)

    def wait() -> None:
        with lock:  # to release it unless it is held is an error
            assert pool.try_take(60)
            pool.wait(50, 0.0, lambda ms: None, use)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert pool.available_bytes == 40
    assert pool.waiting_count == 0
