"""Calls that come while their thread is inside of a client: locks that know their thread, waits that refuse to hold
one, and a thread for work that is done later.

Theory of operation. A signal handler runs in the main thread between any two steps, and a finalizer wherever memory is
collected, so a program's own code can come at any time, also while its thread holds a lock of a client. With a plain
lock it would wait for itself for good. An `OwnLock` refuses its own thread by name instead, and what waits (`Flag`)
refuses to do so while its thread holds any of them. What is called by name, a logging handler above all, never runs
under one: lines go through `logger_of`, which hands them over to the thread of `later` while a lock is held. So do the
lines of the clients' own threads: a handler may wait for what such a thread has still to do. Guards one promise: no
foreign code is called under a lock of ours, and what comes in spite of that is refused or done later, but never hangs.

A turn that is held while a broker or a user's function is asked is a `Turn`: others wait for it, bounded by their own
time, and its own thread is refused.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from bus.client_texts import escape_controls, one_line
from bus.errors import BusError, ErrorCode

_THREAD_PREFIX = "bus-"
_LINES_MAX = 10_000  # lines that wait for a handler; more are dropped, and counted
_EXIT_TIMEOUT_S = 1.0


class CalledInside(BusError):
    """The call came while its thread was inside of a client, and would have waited for itself."""


def _called_inside() -> CalledInside:
    return CalledInside(
        ErrorCode.INVALID_REQUEST,
        "this thread is inside of another call of this client, from which a signal handler, a finalizer or a callback "
        "called again: it would wait for itself; expected the call after that one, or from another thread",
    )


if TYPE_CHECKING:

    class _KnowsItsThread:
        """Declares the methods of `_thread.RLock` to subclasses, which typeshed does not allow."""

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def __enter__(self) -> bool: ...
        def __exit__(self, *error: object) -> None: ...
        def _is_owned(self) -> bool: ...
        def _at_fork_reinit(self) -> None: ...

else:
    _KnowsItsThread = _thread.RLock
_acquire = _KnowsItsThread.acquire


_all: dict[int, weakref.ref[Turn]] = {}  # a dict, and no WeakSet: it may be looked at while another thread adds to it


def _forget(key: int, _: object) -> None:
    _all.pop(key, None)


class Turn(_KnowsItsThread):
    """A lock that refuses the thread which has it already. Held as long as a question takes."""

    def __init__(self) -> None:
        _all[id(self)] = weakref.ref(self, partial(_forget, id(self)))

    def __enter__(self) -> bool:
        if self._is_owned():
            raise _called_inside()
        try:
            return _acquire(self)
        except BaseException:  # a signal handler's, which came once the lock was there
            if self._is_owned():
                self.release()
            raise

    def is_held_here(self) -> bool:
        """Return True if this thread has it."""
        return self._is_owned()

    def refuse_here(self) -> None:
        """Raises `CalledInside` for the thread that has it."""
        if self._is_owned():
            raise _called_inside()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Raises `CalledInside` for the thread that has it; False, if that does not want to wait."""
        if self._is_owned():
            if not blocking:
                return False
            raise _called_inside()
        return _acquire(self, blocking, timeout)


class OwnLock(Turn):
    """A `Turn` for a few steps, under which no foreign code is called, no line is logged and nothing is waited for."""


def is_inside() -> bool:
    """Return True if this thread holds an `OwnLock`."""
    return any(isinstance(lock, OwnLock) for lock in _held())


def check_outside() -> None:
    """Raise `CalledInside` if this thread holds an `OwnLock`, and so must not wait."""
    if is_inside():
        raise _called_inside()


def _held() -> list[Turn]:
    """List the locks that this thread holds. Looks at all there are: lines and waits pay for it, and taking a lock
    costs no more."""
    return [lock for found in _all_there_are() if (lock := found()) is not None and lock._is_owned()]


def _all_there_are() -> Sequence[weakref.ref[Turn]]:
    while True:
        try:
            return tuple(_all.values())
        except RuntimeError:  # another thread made a lock meanwhile, or a collection has ended one
            continue


class OwnCondition(threading.Condition):
    """A condition on an `OwnLock`, the only one that its thread may hold when it waits."""

    def __init__(self, lock: OwnLock) -> None:
        super().__init__(lock)  # type: ignore[arg-type]  # typeshed knows the locks of `threading` alone

    def wait(self, timeout: float | None = None) -> bool:
        """Raises `CalledInside`."""
        if len(_held()) > 1:
            raise _called_inside()
        return super().wait(timeout)


class Flag:
    """An event that a signal handler and a finalizer may set, and wait for: it has no lock of its own."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: deque[Any] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            try:
                self._waiters.popleft().release()
            except IndexError:  # another one was faster
                return

    def clear(self) -> None:
        """Unset it again. Only the one thread that waits may do so."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """False if it is not set within `timeout` seconds. Raises `CalledInside`."""
        if self._is_set:
            return True
        check_outside()
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if not self._is_set:  # else it was set before it knew of this one
            waiter.acquire(True, -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))
        with contextlib.suppress(ValueError):
            self._waiters.remove(waiter)
        return self._is_set


# ------------------------------------------------------------ later


class _Later:
    """Does one thing after another, on a thread that lives while there are any. Takes no lock that it waits for, so
    anything may be handed over anywhere."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._turn = _thread.allocate_lock()  # held by the thread that runs the waiting calls
        self._dropped = 0

    def add_line(self, line: Callable[[], object]) -> None:
        if len(self._waiting) >= _LINES_MAX:
            self._dropped += 1
        else:
            self.add(line)

    def add(self, do: Callable[[], object]) -> None:
        self._waiting.append(do)
        if self._turn.acquire(False):
            # The interrupted code may be starting a thread and hold the lock of that module, so another thread starts
            # this one.
            try:
                _thread.start_new_thread(self._start, ())
            except (RuntimeError, MemoryError):  # no thread can start: the next `add` tries again, or `drain` does it
                self._turn.release()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._do_all, name="bus-later", daemon=True).start()
        except BaseException:  # as above: the turn must be given back
            self._turn.release()

    def _do_all(self) -> None:
        while True:
            try:
                while self._waiting:
                    self._do(self._waiting.popleft())
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._do(partial(_tell_dropped, dropped))
            finally:
                self._turn.release()
            if not self._waiting or not self._turn.acquire(False):
                return

    def _do(self, do: Callable[[], object]) -> None:
        try:
            do()
        except BaseException as error:  # the thread's edge: a user's handler, which may want to end its thread
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user does not want to wait for `drain`
            with contextlib.suppress(BaseException):  # the hook is a program's too
                sys.excepthook(*sys.exc_info())

    def drain(self, timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while (left_s := ends_at - time.monotonic()) > 0 and self._turn.acquire(True, left_s):
            if not self._waiting:
                self._turn.release()
                return
            self._do_all()

    def begin_in_child(self) -> None:
        """Forget the parent's work, and its thread, which a child does not have."""
        self._waiting.clear()
        self._turn = _thread.allocate_lock()
        self._dropped = 0


_later = _Later()


def later(do: Callable[..., object], *arguments: object) -> None:
    """Have the call made soon, behind earlier ones, on a thread that holds no lock: for calls that may wait for other
    threads of a client, and for callers that must not wait at all."""
    _later.add(partial(do, *arguments))


def drain(timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Wait until the earlier calls are done."""
    _later.drain(timeout_s)


# ------------------------------------------------------------ lines of the log


class Logger:
    """A logger as that of `logging`, but that no handler runs under a lock of ours, nor on a thread that others wait
    for. Takes values that do not change: a line may be formatted later. A line of which others have chosen a part, a
    broker's words or a name, is one line, and controls no terminal."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, *values: object) -> None:
        self.log(logging.DEBUG, message, *values)

    def info(self, message: str, *values: object) -> None:
        self.log(logging.INFO, message, *values)

    def warning(self, message: str, *values: object, exc_info: object = None) -> None:
        self.log(logging.WARNING, message, *values, exc_info=exc_info)

    def error(self, message: str, *values: object, exc_info: object = None) -> None:
        self.log(logging.ERROR, message, *values, exc_info=exc_info)

    def exception(self, message: str, *values: object) -> None:
        self.log(logging.ERROR, message, *values, exc_info=True)

    def log(self, level: int, message: str, *values: object, exc_info: object = None) -> None:
        if _is_off(self._logger, level):
            return
        where = _caller()
        thread = threading.current_thread()
        if isinstance(exc_info, BaseException):
            error: Any = (type(exc_info), exc_info, exc_info.__traceback__)
        else:
            error = sys.exc_info() if exc_info else None
        line = partial(_emit, self._logger, level, message, values, error, where, time.time(), thread)
        # A line that a handler logs while it handles one of ours would come back to it without end.
        if _held() or thread.name.startswith(_THREAD_PREFIX) or thread.ident in _emitting:
            _later.add_line(line)
        else:
            line()


def logger_of(name: str) -> Logger:
    return Logger(name)


_emitting: dict[int | None, None] = {}  # threads that are in a handler with a line of ours


def _is_off(logger: logging.Logger, level: int) -> bool:
    """Return True if nobody sees lines of this level: such a line starts no thread, and takes the place of no other.
    Calls no `isEnabledFor`, which waits for the lock of `logging`, nor what a class of a program overrides."""
    return logger.disabled or level <= logger.manager.disable or level < logging.Logger.getEffectiveLevel(logger)


def _caller() -> tuple[CodeType, int]:
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def _emit(
    logger: logging.Logger,
    level: int,
    message: str,
    values: tuple[object, ...],
    error: Any,
    where: tuple[CodeType, int],
    time_s: float,
    thread: threading.Thread,
) -> None:
    if not logger.isEnabledFor(level):
        return
    code, number = where
    record = logger.makeRecord(
        logger.name, level, code.co_filename, number, message, _arguments(values), error, code.co_name
    )
    record.relativeCreated += (time_s - record.created) * 1_000
    record.created, record.msecs = time_s, time_s % 1 * 1_000
    record.thread, record.threadName = thread.ident, thread.name
    _escape(record)
    here = threading.get_ident()
    _emitting[here] = None
    try:
        logger.handle(record)
    finally:
        _emitting.pop(here, None)


def _escape(record: logging.LogRecord) -> None:
    """Escape everything that could control a terminal; a record without such characters stays as it is, with its values
    beside it."""
    try:
        text = record.getMessage()
        escaped = one_line(text)
        if escaped != text:
            record.msg, record.args = escaped, ()
        if record.exc_info and record.exc_info[1] is not None:
            traceback = logging.Formatter().formatException(record.exc_info)
            escaped = escape_controls(traceback)
            if escaped != traceback:
                record.exc_text = escaped  # formatters use it instead of formatting their own
    except Exception:  # values that cannot be shown: the handler says so, as for every line
        return


def _arguments(values: tuple[object, ...]) -> Any:
    """Return them as `logging` takes them: one mapping stands for its items."""
    return values[0] if len(values) == 1 and isinstance(values[0], Mapping) and values[0] else values


def _tell_dropped(count: int) -> None:
    logging.getLogger(__name__).warning("%d lines were dropped: the handlers of the log are too slow for them", count)


def _begin_in_child() -> None:
    _later.begin_in_child()
    _emitting.clear()
    for found in _all_there_are():
        if (lock := found()) is not None:
            lock._at_fork_reinit()  # another thread of the parent may have held it


atexit.register(drain)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
