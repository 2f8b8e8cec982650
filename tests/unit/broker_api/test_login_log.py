"""What the log is told of logins by mechanisms that a listener does not have: the first ones, then a count."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bus.auditing.denials import DENIAL_INTERVAL_MS, NAMES_REPORTED_MAX
from bus.broker_api.login_log import LoginLog, LoginReport
from bus.broker_api.requests import Caller
from tests.support.virtual_time import run_virtually

CALLER = Caller("connection", "/10.0.0.1", "request", listener="STAFF")


def refused(name: str, mechanism: str = "PLAIN") -> LoginReport:
    return LoginReport(mechanism, name, CALLER, "not enabled")


def test_repeated_logins_by_a_mechanism_that_is_missing_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def flood() -> None:
        log = LoginLog()
        for number in range(1000):
            log.write_refused_mechanism(refused(f"user-{number % 20}"))
        assert len(caplog.messages) == NAMES_REPORTED_MAX
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)
        log.write_refused_mechanism(refused("alice"))

    run_virtually(flood())
    assert caplog.messages[0] == "failed login of 'user-0' by PLAIN from /10.0.0.1: not enabled"
    assert caplog.messages[NAMES_REPORTED_MAX:] == [
        "failed login of 'user-19' by PLAIN from /10.0.0.1: not enabled; the last of 990 by this mechanism within 60 s "
        "that are not shown",
        "failed login of 'alice' by PLAIN from /10.0.0.1: not enabled",
    ]


def test_a_mechanism_that_a_client_made_up_is_quoted_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def write() -> None:
        LoginLog().write_refused_mechanism(refused("", "PLAIN from /10.9.9.9\n" + "x" * 10_000))

    run_virtually(write())
    assert caplog.messages[0].startswith(r"failed login of '' by 'PLAIN from /10.9.9.9\n")
    assert len(caplog.messages[0]) < 400
