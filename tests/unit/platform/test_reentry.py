"""Locks that know their thread, waits that hold none, and what is done later."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bus.errors import BusError, ErrorCode
from bus.platform import reentry
from bus.platform.reentry import (
    CalledInside,
    Flag,
    OwnCondition,
    OwnLock,
    Turn,
    _Later,
    drain,
    is_inside,
    later,
    logger_of,
)

WAIT_S = 20.0


def in_thread(do: Callable[[], object], name: str | None = None) -> None:
    thread = threading.Thread(target=do, name=name, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


class Lines(logging.Handler):
    """A program's handler, which may do something with each line."""

    def __init__(self, do: Callable[[logging.LogRecord], object] = lambda record: None) -> None:
        super().__init__()
        self.do = do
        self.records: list[logging.LogRecord] = []
        self.threads: list[str] = []
        self.were_inside: list[bool] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.threads.append(threading.current_thread().name)
        self.were_inside.append(is_inside())
        self.do(record)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger("a.client").addHandler(handler)
    yield handler
    logging.getLogger("a.client").removeHandler(handler)


# ---------------------------------------------------------------- locks


@pytest.mark.parametrize("kind", [OwnLock, Turn])
def test_lock_refuses_its_own_thread_by_name_and_is_as_it_was(kind: type[Turn]) -> None:
    lock = kind()
    with lock:
        with pytest.raises(CalledInside, match="would wait for itself"), lock:
            pass
        with pytest.raises(CalledInside):
            lock.acquire()
        assert not lock.acquire(blocking=False)
        assert lock.is_held_here()
    assert not lock.is_held_here()
    with lock:
        pass


def test_lock_that_one_thread_has_is_waited_for_by_another() -> None:
    lock, came = OwnLock(), threading.Event()

    def take() -> None:
        with lock:
            came.set()

    with lock:
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        assert not came.is_set()
    assert came.wait(WAIT_S)
    thread.join(WAIT_S)


def test_thread_is_inside_for_as_long_as_it_has_a_lock_and_others_are_not() -> None:
    first, second = OwnLock(), OwnLock()
    seen: list[bool] = []
    with first:
        with second:
            in_thread(lambda: seen.append(is_inside()))
        assert is_inside()
    assert (seen, is_inside()) == ([False], False)


def test_turn_hides_nothing_so_its_thread_may_wait() -> None:
    with Turn():
        assert not is_inside()
        assert not Flag().wait(0)


def test_locks_that_are_gone_are_forgotten() -> None:
    lock = OwnLock()
    key = id(lock)
    assert key in reentry._all
    del lock
    assert key not in reentry._all


def test_child_of_a_fork_finds_the_locks_free_that_other_threads_of_its_parent_had() -> None:
    lock, taken, leave = OwnLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            leave.wait(WAIT_S)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert taken.wait(WAIT_S)
    child = os.fork()
    if child == 0:
        os._exit(7 if lock.acquire(blocking=False) else 1)
    leave.set()
    thread.join(WAIT_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---------------------------------------------------------------- waiting


def test_waiting_is_refused_while_the_thread_has_a_lock() -> None:
    flag = Flag()
    with OwnLock():
        with pytest.raises(CalledInside):
            flag.wait(WAIT_S)
        flag.set()
        assert flag.wait(WAIT_S), "there is nothing to wait for"


def test_condition_waits_with_its_own_lock_and_no_other() -> None:
    condition = OwnCondition(OwnLock())
    with condition:
        assert not condition.wait(0)
        with OwnLock(), pytest.raises(CalledInside):
            condition.wait(WAIT_S)


def test_flag_lets_all_go_who_wait_and_those_who_come_later() -> None:
    flag, seen = Flag(), []
    threads = [threading.Thread(target=lambda: seen.append(flag.wait(WAIT_S)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.wait(0)
    flag.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert (seen, flag.wait(0)) == ([True] * 3, True)
    flag.clear()
    assert not flag.wait(0)


# ---------------------------------------------------------------- lines


def test_line_under_a_lock_is_handled_by_a_thread_without_one(lines: Lines) -> None:
    lock = OwnLock()

    def call_back(record: logging.LogRecord) -> None:
        with lock:  # as a handler that sends each line
            pass

    lines.do = call_back
    with lock:
        logger_of("a.client").warning("%s failed", "it")
    drain(WAIT_S)
    (record,) = lines.records
    assert (record.getMessage(), lines.were_inside, lines.threads) == ("it failed", [False], ["bus-later"])
    here = (record.threadName, record.funcName, record.filename)
    assert here == ("MainThread", "test_line_under_a_lock_is_handled_by_a_thread_without_one", "test_reentry.py")


def test_line_without_a_lock_is_handled_at_once_by_its_own_thread(lines: Lines) -> None:
    logger_of("a.client").warning("it failed")
    assert lines.threads == ["MainThread"]


def test_line_of_a_thread_that_others_wait_for_is_handled_by_another(lines: Lines) -> None:
    in_thread(lambda: logger_of("a.client").warning("it failed"), name="bus-produce-stream")
    drain(WAIT_S)
    assert (lines.threads, lines.records[0].threadName) == (["bus-later"], "bus-produce-stream")


def test_what_a_handler_logs_of_a_line_does_not_come_back_to_it_inside_of_itself(lines: Lines) -> None:
    depths: list[int] = []
    inside: list[None] = []

    def log_again(record: logging.LogRecord) -> None:
        inside.append(None)
        depths.append(len(inside))
        if len(depths) < 5:
            logger_of("a.client").warning("again")
        inside.pop()

    lines.do = log_again
    logger_of("a.client").warning("first")
    drain(WAIT_S)
    assert depths == [1] * 5


def test_line_tells_of_the_exception_that_was_on_its_way(lines: Lines) -> None:
    with OwnLock():
        try:
            raise ValueError("why")
        except ValueError:
            logger_of("a.client").exception("it failed")
    drain(WAIT_S)
    assert lines.records[0].exc_info is not None
    assert str(lines.records[0].exc_info[1]) == "why"


HOSTILE = "a\n\x1b[31mb\x9b2J\x7f\u202ec\u2066"
ESCAPED = r"a\n\x1b[31mb\x9b2J\x7f\u202ec\u2066"


def test_line_that_others_have_chosen_a_part_of_controls_no_terminal(lines: Lines) -> None:
    try:
        raise BusError(ErrorCode.UNKNOWN_SERVER_ERROR, HOSTILE)
    except BusError as error:
        logger_of("a.client").warning("group %s: %s, 100%%", HOSTILE, error, exc_info=True)
    logger_of("a.client").warning("group %s", "orders")
    hostile, usual = lines.records
    text = logging.Formatter("%(message)s").format(hostile)
    assert text.startswith(f"group {ESCAPED}: ")
    assert ", 100%\nTraceback" in text
    assert not set(HOSTILE) - set("a\n[31mb2Jc") & set(text)
    assert (usual.msg, usual.args) == ("group %s", ("orders",)), "a program may group its lines by that"


def test_line_whose_values_do_not_fit_is_left_to_the_handler(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("a.client"), "propagate", False)  # pytest's handler raises
    logger_of("a.client").warning("%d", HOSTILE)
    assert lines.records[0].args == (HOSTILE,)


def test_line_below_the_level_reaches_no_handler(lines: Lines) -> None:
    logger_of("a.client").debug("nothing")
    with OwnLock():
        logger_of("a.client").debug("nothing")
    drain(WAIT_S)
    assert lines.records == []


@pytest.mark.parametrize("off", ["level", "disabled", "manager"])
def test_line_that_nobody_sees_is_not_handed_over_and_waits_for_no_lock_of_logging(
    monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    logger, ours = logging.getLogger("a.client"), logger_of("a.client")
    waiting: list[object] = []
    monkeypatch.setattr(reentry._later, "add_line", waiting.append)
    monkeypatch.setattr(logger, "disabled", off == "disabled")
    try:
        logger.setLevel(logging.ERROR if off == "level" else logging.DEBUG)
        logging.disable(logging.WARNING if off == "manager" else logging.NOTSET)
        gc.collect()
        gc.disable()  # a collection in the thread that ends a handler of another test would wait for the lock
        with logging._lock:  # type: ignore[attr-defined]
            in_thread(lambda: ours.warning("nothing"), name="bus-produce-stream")
    finally:
        gc.enable()
        logger.setLevel(logging.NOTSET)
        logging.disable(logging.NOTSET)
    assert waiting == []


# ---------------------------------------------------------------- later


def test_what_is_handed_over_is_done_in_order_and_what_it_raises_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.excepthook", lambda kind, error, trace: raised.append(kind))
    done: list[int] = []
    for number in range(3):
        later(done.append, number)
        later(int, "no number")
    drain(WAIT_S)
    assert (done, raised) == ([0, 1, 2], [ValueError] * 3)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_hook_broken", [False, True])
def test_callback_that_wants_to_end_its_thread_keeps_the_next_one_from_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], is_hook_broken: bool
) -> None:
    reported: list[Any] = []

    def report(kind: type[BaseException], value: BaseException, trace: object) -> None:
        reported.append(kind)
        if is_hook_broken:
            raise value

    def fail() -> None:
        raise error

    monkeypatch.setattr("sys.excepthook", report)
    waiting, done = _Later(), threading.Event()
    waiting.add(fail)
    waiting.add(done.set)
    assert done.wait(WAIT_S)
    assert reported == [error]


def test_interrupt_of_the_user_ends_the_waiting_at_the_exit_and_the_rest_is_done_later() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    waiting, done = _Later(), threading.Event()
    waiting._waiting.extend([interrupt, int])
    with pytest.raises(KeyboardInterrupt):
        waiting.drain(WAIT_S)
    waiting.add(done.set)
    assert done.wait(WAIT_S)


def test_what_was_handed_over_while_no_thread_could_start_is_done_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        was_refused.set()
        raise RuntimeError("can't start new thread")

    waiting, was_refused, done = _Later(), threading.Event(), threading.Event()
    numbers: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        waiting.add(lambda: numbers.append(1))
        assert was_refused.wait(WAIT_S)
        assert waiting._turn.acquire(timeout=WAIT_S), "the turn was given back"
        waiting._turn.release()
    waiting.add(lambda: numbers.append(2))
    waiting.add(done.set)
    assert done.wait(WAIT_S)
    assert numbers == [1, 2]


def test_lines_that_a_slow_handler_keeps_waiting_are_dropped_beyond_a_bound_and_counted(
    monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    monkeypatch.setattr(reentry, "_LINES_MAX", 2)
    go_on, entered = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        go_on.wait(WAIT_S)

    later(block)
    assert entered.wait(WAIT_S)  # so it is no longer in line itself
    drops = logging.getLogger(reentry.__name__)
    drops.addHandler(lines)
    with OwnLock():
        for number in range(20):
            logger_of("a.client").warning("line %d", number)
    go_on.set()
    drain(WAIT_S)
    drops.removeHandler(lines)
    told = [record.getMessage() for record in lines.records]
    assert told[:-1] == ["line 0", "line 1"]
    assert told[-1].startswith("18 lines were dropped")


class ChangingOnce(dict[int, Any]):
    """Changes while it is looked at, as when a collection ends a lock."""

    is_changed = False

    def values(self) -> Any:
        if not self.is_changed:
            self.is_changed = True
            raise RuntimeError("dictionary changed size during iteration")
        return super().values()


def test_locks_that_come_and_go_while_they_are_looked_at_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = reentry.OwnLock()
    monkeypatch.setattr(reentry, "_all", ChangingOnce(reentry._all))
    with lock:
        assert is_inside()
