from __future__ import annotations

import threading

import pytest

from bus.client.connection.retrying import Lookup


def wait_for_answer(lookup: Lookup[int], changed: threading.Condition) -> None:
    with changed:
        assert changed.wait_for(lambda: lookup.has_answer, 20)


def test_answer_is_there_for_a_later_look_and_is_taken_once() -> None:
    changed, release = threading.Condition(), threading.Event()
    lookup: Lookup[int] = Lookup("numbers", changed)
    lookup.start(lambda: int(release.wait(20)) + 41)
    assert (lookup.is_under_way, lookup.has_answer) == (True, False)
    release.set()
    wait_for_answer(lookup, changed)
    assert not lookup.is_under_way
    assert lookup.take() == 42
    assert not lookup.has_answer


def test_error_is_raised_in_the_thread_that_takes_it() -> None:
    changed = threading.Condition()
    lookup: Lookup[int] = Lookup("numbers", changed)
    lookup.start(lambda: 1 // 0)
    wait_for_answer(lookup, changed)
    with pytest.raises(ZeroDivisionError):
        lookup.take()
    lookup.start(lambda: 7)
    wait_for_answer(lookup, changed)
    assert lookup.take() == 7


def test_question_that_no_thread_could_be_started_for_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    changed = threading.Condition()
    lookup: Lookup[int] = Lookup("numbers", changed)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            lookup.start(lambda: 1)
    lookup.start(lambda: 7)
    wait_for_answer(lookup, changed)
    assert lookup.take() == 7
