"""The broker's log of logins: failures at INFO, successes at DEBUG.

A failed login costs its caller `connection.failed.authentication.delay.ms`, but a caller may have hundreds under way,
and many clients may be configured for a mechanism that their listener lacks, and retry. So of each listener, host
and mechanism ten names are reported at once. The rest of a minute is one line, and a report for each name with how many
there were, as with denials (auditing/denials.py). All mechanisms that nobody has heard of count as one, since a caller
can make up any number. Guards two promises: every host is reported, and a thousand names of it in a minute, what is
beyond being counted; and reports of a minute hold the event loop for one slice at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from bus.addresses import counted_host
from bus.auditing.denials import DENIAL_INTERVAL_MS, DENIAL_KINDS_MAX, DenialCounts
from bus.broker_api.requests import Caller
from bus.errors import show_names
from bus.runtime.loop_shares import run_in_slices
from bus.sasl import ABSENT_MECHANISMS, MECHANISMS

NAMES_COUNTED_MAX = 1_000  # of a listener, a host and a mechanism, in an interval
OTHER_NAMES = "<other names>"
OTHER_MECHANISMS = "<other mechanisms>"
_NAMES_IN_LINE_MAX = 10
_KNOWN_MECHANISMS = frozenset((*MECHANISMS, *ABSENT_MECHANISMS))

_log = logging.getLogger("bus.broker_api.logins")


@dataclass(frozen=True, slots=True)
class LoginReport:
    """One login, or `count` failed ones. `mechanism`, `name`: as the client said it; the name is empty if it did not
    come to that. `reason`: why it failed, which the client must not learn; None: it did not fail."""

    mechanism: str
    name: str
    caller: Caller
    reason: str | None
    count: int = 1


@dataclass(slots=True)
class _Counted:
    """Failures of a listener, a host and a mechanism beyond those that were reported at once."""

    last: LoginReport
    mechanism: str  # of the kind
    names: dict[str, int]  # how many there were of each


class LoginLog:
    """Calls each of `reports` with every success, and with failures as they are logged: some with a count. A mechanism
    that is not known is cut and quoted there."""

    def __init__(self, reports: Sequence[Callable[[LoginReport], None]]) -> None:
        self._reports = reports
        self._failed: DenialCounts[_Counted] = DenialCounts(_merge)  # of one interval, which a timer ends

    def write(self, report: LoginReport) -> None:
        if report.reason is None:
            _log.debug("%r has logged in by %s from %s", report.name, report.mechanism, report.caller.host)
            self._report(report)
            return
        if self._failed.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._write_counts, context=no_request)
        mechanism, name = report.mechanism, show_names([report.name])
        if mechanism not in _KNOWN_MECHANISMS:
            mechanism, report = OTHER_MECHANISMS, replace(report, mechanism=repr(show_names([mechanism])))
        counted = _Counted(replace(report, name=name), mechanism, {name: 1})
        kind = report.caller.listener, counted_host(report.caller.host), mechanism
        if self._failed.add(kind, report.name, counted):
            _log.info("%s", _describe(report))
            self._report(report)

    def _report(self, report: LoginReport) -> None:
        for call in self._reports:
            call(report)

    def _write_counts(self) -> None:
        run_in_slices(self._counts_written(*self._failed.take()))

    def _counts_written(self, counted: Sequence[_Counted], lost: int) -> Iterator[None]:
        """Write them, with a pause to be made at each `yield`."""
        seconds = DENIAL_INTERVAL_MS // 1000
        for one in counted:
            _log.info(
                "%s; the last of %d by %s from there within %d s that are not shown: of %s",
                _describe(one.last),
                sum(one.names.values()),
                one.mechanism,
                seconds,
                _describe_names(one.names),
            )
            yield
            for name, count in one.names.items():
                self._report(replace(one.last, mechanism=one.mechanism, name=name, count=count))
                yield
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
    """A text of one line, with the name cut."""
    name = show_names([failed.name])
    return f"failed login of {name!r} by {failed.mechanism} from {failed.caller.host}: {failed.reason}"


def _describe_names(names: Mapping[str, int]) -> str:
    first = ", ".join(f"{name!r} ({count})" for name, count in islice(names.items(), _NAMES_IN_LINE_MAX))
    more = len(names) - _NAMES_IN_LINE_MAX
    return f"{first} and {more} more names" if more > 0 else first
