"""One thread at a time, also after a call that was interrupted."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from bus.client.consumer.misuse import OneThread, exclusive
from bus.errors import BusError, ErrorCode

MODULE = "/bus/client/consumer/misuse.py"


class Client(OneThread):
    @exclusive
    def outer(self) -> str:
        return self.inner()

    @exclusive
    def inner(self) -> str:
        return "done"

    @exclusive
    def occupy(self, entered: threading.Event, leave: threading.Event) -> None:
        entered.set()
        leave.wait(20)


def interrupted_at(step: int, client: Client) -> bool:
    """Interrupt a call at that step in the guard; True if it had so many steps."""
    left = step

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(MODULE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        client.outer()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_second_thread_is_refused_while_the_first_is_inside() -> None:
    client = Client()
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=client.occupy, args=(entered, leave), name="first")
    thread.start()
    assert entered.wait(20)
    with pytest.raises(BusError, match="which is in a call") as refused:
        client.outer()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert "'first'" in refused.value.message
    leave.set()
    thread.join()
    assert client.outer() == "done"


def test_client_is_open_to_the_thread_whose_call_was_interrupted() -> None:
    step = 0
    while True:
        step += 1
        client = Client()
        was_interrupted = interrupted_at(step, client)
        assert client.outer() == "done"
        if not was_interrupted:
            break
    assert step > 8, "the guard was not traced"
