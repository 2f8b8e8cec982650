"""What the log is told of logins by mechanisms that a listener does not have: the first ones, then a count."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bus.auditing.denials import DENIAL_INTERVAL_MS, NAMES_REPORTED_MAX
from bus.broker_api.login_log import NAMES_COUNTED_MAX, OTHER_NAMES, LoginLog, LoginReport
from bus.broker_api.requests import Caller
from tests.support.virtual_time import run_virtually

CALLER = Caller("connection", "/10.0.0.1", "request", listener="STAFF")


def refused(name: str, mechanism: str = "PLAIN") -> LoginReport:
    return LoginReport(mechanism, name, CALLER, "not enabled")


def test_repeated_logins_by_a_mechanism_that_is_missing_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog(told.append)
        for number in range(1000):
            log.write(refused(f"user-{number % 20}"))
        assert len(caplog.messages) == NAMES_REPORTED_MAX
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)
        log.write(refused("alice"))

    run_virtually(flood())
    assert caplog.messages[0] == "failed login of 'user-0' by PLAIN from /10.0.0.1: not enabled"
    counts, last = caplog.messages[NAMES_REPORTED_MAX:]
    assert counts.startswith(
        "failed login of 'user-19' by PLAIN from /10.0.0.1: not enabled; the last of 990 by this mechanism from there "
        "within 60 s that are not shown: of "
    )
    assert {f"'user-{number}' ({49 if number < 10 else 50})" for number in range(20)} == set(
        counts.partition("shown: of ")[2].split(", ")
    )
    assert last == "failed login of 'alice' by PLAIN from /10.0.0.1: not enabled"
    assert len(told) == NAMES_REPORTED_MAX + 20 + 1
    assert sum(report.count for report in told) == 1_001


def test_names_beyond_a_thousand_are_counted_together_and_successes_are_told_one_by_one() -> None:
    told: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog(told.append)
        for number in range(5_000):
            log.write(refused(f"user-{number}"))
        for _ in range(30):
            log.write(LoginReport("PLAIN", "alice", CALLER, None))
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)

    run_virtually(flood())
    failed = [report for report in told if report.reason is not None]
    assert len(told) - len(failed) == 30
    assert len(failed) == NAMES_REPORTED_MAX + NAMES_COUNTED_MAX + 1
    assert sum(report.count for report in failed) == 5_000
    assert failed[-1].name == OTHER_NAMES


def test_a_mechanism_that_a_client_made_up_is_quoted_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def write() -> None:
        LoginLog(lambda report: None).write(refused("", "PLAIN from /10.9.9.9\n" + "x" * 10_000))

    run_virtually(write())
    assert caplog.messages[0].startswith(r"failed login of '' by 'PLAIN from /10.9.9.9\n")
    assert len(caplog.messages[0]) < 400
