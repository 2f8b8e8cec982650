"""The broker's log of logins: failures at INFO, successes at DEBUG.

A failed login costs its caller `connection.failed.authentication.delay.ms`, which bounds the lines of one client. But
many clients may be configured for a mechanism that their listener lacks, and retry: of those, ten names of each host
and mechanism are logged at once, and the rest of a minute in one line with their count, as denials are
(auditing/denials.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from dataclasses import dataclass, replace

from bus.auditing.denials import DENIAL_INTERVAL_MS, DENIAL_KINDS_MAX, DenialCounts
from bus.broker_api.requests import Caller
from bus.errors import show_names
from bus.sasl import MECHANISMS

_log = logging.getLogger("bus.broker_api.logins")


@dataclass(frozen=True, slots=True)
class LoginReport:
    """`mechanism`, `name`: as the client said it; the name is empty if it did not come to that. `reason`: of a failure,
    for the log alone; None of a success. `count`: how many there were."""

    mechanism: str
    name: str
    caller: Caller
    reason: str | None
    count: int = 1


class LoginLog:
    def __init__(self) -> None:
        self._refused: DenialCounts[LoginReport] = DenialCounts(_merge)  # of one interval, which a timer ends

    def write(self, report: LoginReport) -> None:
        if report.reason is None:
            _log.debug("%r has logged in by %s from %s", report.name, report.mechanism, report.caller.host)
        else:
            _log.info("%s", _describe(report))

    def write_refused_mechanism(self, report: LoginReport) -> None:
        if self._refused.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._write_counts, context=no_request)
        kind = report.caller.listener, report.caller.host, show_names([report.mechanism])
        if self._refused.add(kind, report.name, report):
            self.write(report)

    def _write_counts(self) -> None:
        counted, lost = self._refused.take()
        seconds = DENIAL_INTERVAL_MS // 1000
        for last in counted:
            _log.info(
                "%s; the last of %d by this mechanism within %d s that are not shown",
                _describe(last),
                last.count,
                seconds,
            )
        if lost:
            _log.info(
                "%d failed logins within %d s are not shown: of more than %d kinds", lost, seconds, DENIAL_KINDS_MAX
            )


def _merge(known: LoginReport, report: LoginReport) -> LoginReport:
    return replace(report, count=known.count + report.count)


def _describe(failed: LoginReport) -> str:
    """On one line, and cut."""
    name, mechanism = show_names([failed.name]), show_names([failed.mechanism])
    shown = mechanism if mechanism in MECHANISMS else repr(mechanism)
    return f"failed login of {name!r} by {shown} from {failed.caller.host}: {failed.reason}"
