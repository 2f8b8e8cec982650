"""A login has a thread of its own: whom it serves, and what becomes of one that is interrupted."""

from __future__ import annotations

import threading

import pytest

from bus.client.config.security import ClientLogin
from bus.client.connection.connections import Connections
from bus.client.connection.logins import Headers, Logins, _Place, _Session
from bus.client.connection.retrying import monotonic_ms
from bus.errors import BusError, ErrorCode
from tests.support.member_processes import wait_until

ADDRESS = "127.0.0.1:1"
SHOWN = (("authorization", "Session one"),)


class HeldLogins(Logins):
    """Logs in once `may_end` is set."""

    def __init__(self) -> None:
        super().__init__(ClientLogin("SCRAM-SHA-256", "alice", "secret"), (), Connections, 60_000)  # type: ignore[arg-type]
        self.may_end = threading.Event()
        self.count = 0

    def _log_in(self, address: str, place: _Place, held: Headers, timeout_ms: float) -> _Session:
        self.count += 1
        assert self.may_end.wait(60)
        place.session = session = _Session(SHOWN, monotonic_ms() + 1e9)
        return session


def test_session_of_a_login_that_outlives_its_callers_is_renewed_in_time() -> None:
    logins = HeldLogins()
    with pytest.raises(BusError) as caught:
        logins.headers(ADDRESS, 1)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    logins.may_end.set()
    wait_until(lambda: logins.ready_headers(ADDRESS) == SHOWN, "the login ends")
    wait_until(lambda: logins._renewing is not None, "the thread that renews sessions is there")
    logins.close()


@pytest.mark.parametrize("has_started", [False, True])
def test_interrupt_of_a_thread_that_begins_a_login_ends_that_thread_alone(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    logins = HeldLogins()
    start = threading.Thread.start
    found: list[Headers] = []
    waiting = threading.Thread(target=lambda: found.append(logins.headers(ADDRESS, 60_000)))

    def interrupt(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        if has_started:
            start(thread)
        start(waiting)
        attempt = place.attempt
        assert attempt is not None
        wait_until(lambda: bool(attempt.ended._waiters), "another thread waits for the login")
        raise KeyboardInterrupt

    place = logins._place(ADDRESS)
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        logins.headers(ADDRESS, 60_000)
    logins.may_end.set()
    waiting.join(60)
    assert found == [SHOWN]
    assert logins.headers(ADDRESS, 60_000) == SHOWN
    assert logins.count == 1
    assert place.attempt is None
    logins.close()


def test_each_thread_that_waits_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = HeldLogins()

    def refuse(*_: object) -> _Session:
        assert logins.may_end.wait(60)
        raise BusError(ErrorCode.SASL_AUTHENTICATION_FAILED, "no")

    monkeypatch.setattr(logins, "_log_in", refuse)
    errors: list[BusError] = []

    def ask() -> None:
        try:
            logins.headers(ADDRESS, 60_000)
        except BusError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    logins.may_end.set()
    for thread in threads:
        thread.join(60)
    assert [error.code for error in errors] == [ErrorCode.SASL_AUTHENTICATION_FAILED] * 2
    assert errors[0] is not errors[1]
