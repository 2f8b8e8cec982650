"""Failed logins in the log: the first ones, then a count."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import pairwise

import pytest

from bus.broker_api.logins import NAMES_COUNTED_MAX, OTHER_MECHANISMS, OTHER_NAMES, LoginLog, LoginReport
from bus.broker_api.requests import Caller
from bus.runtime import tasks
from bus.security.audit_trail import DENIAL_INTERVAL_MS, NAMES_REPORTED_MAX
from tests.support.virtual_time import run_virtually

CALLER = Caller("connection", "/10.0.0.1", "request", listener="STAFF")


def refused(name: str, mechanism: str = "PLAIN") -> LoginReport:
    return LoginReport(mechanism, name, CALLER, "not enabled")


def test_repeated_logins_by_a_mechanism_that_is_missing_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    reports: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog([reports.append])
        for number in range(1000):
            log.write(refused(f"user-{number % 20}"))
        assert len(caplog.messages) == NAMES_REPORTED_MAX
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)
        log.write(refused("alice"))

    run_virtually(flood())
    assert caplog.messages[0] == "failed login of 'user-0' by PLAIN from /10.0.0.1: not enabled"
    counts, last = caplog.messages[NAMES_REPORTED_MAX:]
    assert counts.startswith(
        "failed login of 'user-19' by PLAIN from /10.0.0.1: not enabled; the last of 990 by PLAIN from there within "
        "60 s that are not shown: of 'user-10' (50), "
    )
    names, more = counts.partition("shown: of ")[2].split(" and ")
    assert names.split(", ")[9] == "'user-19' (50)"
    assert more == "10 more names"
    assert last == "failed login of 'alice' by PLAIN from /10.0.0.1: not enabled"
    assert len(reports) == NAMES_REPORTED_MAX + 20 + 1
    assert {(one.name, one.count) for one in reports[NAMES_REPORTED_MAX:-1]} == {
        (f"user-{number}", 49 if number < NAMES_REPORTED_MAX else 50) for number in range(20)
    }


def test_failures_from_other_addresses_of_one_ipv6_network_are_counted_together() -> None:
    reports: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog([reports.append])
        for number in range(1000):
            log.write(replace(refused(f"user-{number}"), caller=replace(CALLER, host=f"/2001:db8::{number:x}")))
        log.write(replace(refused("alice"), caller=replace(CALLER, host="/2001:db8:0:1::1")))

    run_virtually(flood())
    assert len(reports) == NAMES_REPORTED_MAX + 1


def test_names_beyond_a_thousand_are_counted_together_and_successes_are_reported_one_by_one() -> None:
    reports: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog([reports.append])
        for number in range(5_000):
            log.write(refused(f"user-{number}"))
        for _ in range(30):
            log.write(LoginReport("PLAIN", "alice", CALLER, None))
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)

    run_virtually(flood())
    failed = [report for report in reports if report.reason is not None]
    assert len(reports) - len(failed) == 30
    assert len(failed) == NAMES_REPORTED_MAX + NAMES_COUNTED_MAX + 1
    assert sum(report.count for report in failed) == 5_000
    assert failed[-1].name == OTHER_NAMES


def test_mechanisms_that_a_client_makes_up_are_one_kind_and_leave_room_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    reports: list[LoginReport] = []

    async def flood() -> None:
        log = LoginLog([reports.append])
        for number in range(20_000):
            log.write(refused("", f"MECHANISM-{number}"))
        log.write(refused("alice", "GSSAPI"))
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000 + 1)

    run_virtually(flood())
    assert [(one.mechanism, one.name, one.count) for one in reports] == [
        ("'MECHANISM-0'", "", 1),
        ("GSSAPI", "alice", 1),
        (OTHER_MECHANISMS, "", 19_999),
    ]
    assert len(caplog.messages) == 3
    assert caplog.messages[2] == (
        "failed login of '' by 'MECHANISM-19999' from /10.0.0.1: not enabled; the last of 19999 by <other mechanisms> "
        "from there within 60 s that are not shown: of '' (19999)"
    )


def test_counts_of_a_minute_are_reported_in_slices_and_the_line_names_ten(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tasks, "SLICE_S", 0.0)
    reports: list[LoginReport] = []
    reported_counts: list[int] = []  # in each round of the loop

    async def flood() -> None:
        log = LoginLog([reports.append])
        for number in range(2_000):
            log.write(refused(f"user-{number}"))
        await asyncio.sleep(DENIAL_INTERVAL_MS / 1000)
        while sum(one.count for one in reports) < 2_000:
            reported_counts.append(len(reports))
            await asyncio.sleep(0)

    run_virtually(flood())
    assert max(after - before for before, after in pairwise(reported_counts)) == 1
    assert len(caplog.messages[-1]) < 500
    assert caplog.messages[-1].endswith(f"'user-19' (1) and {NAMES_COUNTED_MAX + 1 - 10} more names")


def test_a_mechanism_that_a_client_made_up_is_quoted_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    reports: list[LoginReport] = []

    async def write() -> None:
        LoginLog([reports.append]).write(refused("", "PLAIN from /10.9.9.9\n" + "x" * 10_000))

    run_virtually(write())
    assert reports[0].mechanism.startswith(r"'PLAIN from /10.9.9.9\nxxx")
    assert len(reports[0].mechanism) < 200
    assert caplog.messages[0].startswith(r"failed login of '' by 'PLAIN from /10.9.9.9\n")
    assert len(caplog.messages[0]) < 400
