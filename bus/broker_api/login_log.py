"""The broker's log of logins: failures at INFO, successes at DEBUG.

A failed login costs its caller `connection.failed.authentication.delay.ms`, but a caller may have thousands under way,
and many clients may be configured for a mechanism that their listener lacks, and retry. So of each listener, address
and mechanism ten names are told at once, and the rest of a minute in one line with how many there were of each name, as
denials are (auditing/denials.py). Guards one promise: every address is told, and a thousand names of it in a minute;
what is beyond is counted.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from bus.auditing.denials import DENIAL_INTERVAL_MS, DENIAL_KINDS_MAX, DenialCounts
from bus.broker_api.requests import Caller
from bus.errors import show_names
from bus.sasl import MECHANISMS

NAMES_COUNTED_MAX = 1_000  # of a listener, an address and a mechanism, in an interval
OTHER_NAMES = "<other names>"

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


@dataclass(slots=True)
class _Counted:
    """Failures of a listener, an address and a mechanism beyond those that were told at once."""

    last: LoginReport
    names: dict[str, int]  # how many there were of each


class LoginLog:
    """`tell`: what is called with each success, and with failures as they are logged; they may have a count."""

    def __init__(self, tell: Callable[[LoginReport], None]) -> None:
        self._tell = tell
        self._failed: DenialCounts[_Counted] = DenialCounts(_merge)  # of one interval, which a timer ends

    def write(self, report: LoginReport) -> None:
        if report.reason is None:
            _log.debug("%r has logged in by %s from %s", report.name, report.mechanism, report.caller.host)
            self._tell(report)
            return
        if self._failed.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._write_counts, context=no_request)
        kind = report.caller.listener, report.caller.host, show_names([report.mechanism])
        if self._failed.add(kind, report.name, _Counted(report, {show_names([report.name]): 1})):
            _log.info("%s", _describe(report))
            self._tell(report)

    def _write_counts(self) -> None:
        counted, lost = self._failed.take()
        seconds = DENIAL_INTERVAL_MS // 1000
        for one in counted:
            _log.info(
                "%s; the last of %d by this mechanism from there within %d s that are not shown: of %s",
                _describe(one.last),
                sum(one.names.values()),
                seconds,
                ", ".join(f"{name!r} ({count})" for name, count in one.names.items()),
            )
            for name, count in one.names.items():
                self._tell(replace(one.last, name=name, count=count))
        if lost:
            _log.info(
                "%d failed logins within %d s are not shown: of more than %d kinds", lost, seconds, DENIAL_KINDS_MAX
            )


def _merge(known: _Counted, new: _Counted) -> _Counted:
    for name, count in new.names.items():
        shown = name if name in known.names or len(known.names) < NAMES_COUNTED_MAX else OTHER_NAMES
        known.names[shown] = known.names.get(shown, 0) + count
    known.last = new.last
    return known


def _describe(failed: LoginReport) -> str:
    """On one line, and cut."""
    name, mechanism = show_names([failed.name]), show_names([failed.mechanism])
    shown = mechanism if mechanism in MECHANISMS else repr(mechanism)
    return f"failed login of {name!r} by {shown} from {failed.caller.host}: {failed.reason}"
