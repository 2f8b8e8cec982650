"""The audit of what a call changes for good: one row for each thing that was changed, or that its caller was refused.

A method of an API that changes something states the names of the things before its first `await`, and reports what
became of them. What a decision about access has refused is a row of that decision (access_log.py), and none of the
change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bus.broker_api.calls import Audited
from bus.broker_api.requests import Caller
from bus.errors import ErrorCode, Refused
from bus.runtime.audit_log import AuditLog
from bus.security.audit_trail import AuditEvent, AuditKind

_log = logging.getLogger(__name__)

NO_ANSWER = "the call ended without an answer: it may be done"
_REPORTED_WITH_ACCESS = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
# What says that a change may be done.
_MAY_BE_DONE = frozenset(
    (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """The outcome of a thing that may be changed. `error`: how its call ended."""

    error: str


@dataclass(frozen=True, slots=True)
class Reporter:
    """The caller of whom a row tells. `call`: by which the change came; `rule`: for whom it was sent on, empty if it
    was not."""

    caller: Caller
    call: str
    rule: str = ""


class ChangeAudit:
    """The audit of one call. Without `audit`, and for a call that changes nothing (`audited` None), nothing is kept."""

    def __init__(self, audit: AuditLog | None, audited: Audited | None, reporter: Reporter) -> None:
        self._audit = audit if audit is not None and audit.is_enabled else None
        self._audited = audited
        self._reporter = reporter
        self._names: Callable[[], Iterable[str]] | None = None
        self.has_begun = False

    @property
    def is_kept(self) -> bool:
        return self._audit is not None and self._audited is not None

    def begin(self, names: Callable[[], Iterable[str]], *, is_change: bool = True) -> None:
        """State what the call is about to change, before its first `await`. `is_change` False: it only validates."""
        self.has_begun = True
        self._names = names if is_change and self.is_kept else None

    def report(self, outcomes: Callable[[], Iterable[tuple[str, object]]]) -> None:
        """Report what became of each thing, by its name: a refusal, or anything else if it is changed. Ends what was
        begun."""
        if self._names is not None:
            self._names = None
            self._add(outcomes)

    def report_in_order(self, outcomes: Iterable[object]) -> None:
        """The same, of the things in the order in which they were stated."""
        names = self._names
        if names is not None:
            self.report(lambda: zip(names(), outcomes, strict=True))

    def report_all(self, outcome: object) -> None:
        """The same, of all things that were stated, with one outcome."""
        names = self._names
        if names is not None:
            self.report(lambda: ((name, outcome) for name in names()))

    def report_part(self, name: str, outcome: object) -> None:
        """Report one thing of a call that goes on."""
        if self._names is not None:
            self._add(lambda: [(name, outcome)])

    def report_unknown(self, error: str) -> None:
        """The call ends without an answer: what it began may go on."""
        self.report_all(_Unknown(error))

    def _add(self, outcomes: Callable[[], Iterable[tuple[str, object]]]) -> None:
        try:
            for name, outcome in outcomes():
                self._add_outcome(name, outcome)
        except Exception as error:  # what was changed is changed: its answer has to go out
            _log.error("the audit has no row of a call %s", self._reporter.call, exc_info=error)

    def _add_outcome(self, name: str, outcome: object) -> None:
        match outcome:
            case Refused() if outcome.code in _REPORTED_WITH_ACCESS:
                return
            case Refused():
                error, is_refused = f"{outcome.code.name}: {outcome.message}", outcome.code not in _MAY_BE_DONE
            case _Unknown():
                error, is_refused = outcome.error, False
            case _:
                error, is_refused = "", False
        assert self._audit is not None, "expected an audit to report to"
        assert self._audited is not None, "expected a call that changes something"
        event = change_event(
            self._reporter.caller,
            self._audit.now_ms(),
            call=self._reporter.call,
            operation=self._audited.operation,
            resource_type=self._audited.resource_type,
            resource=name,
            error=error,
            rule=self._reporter.rule,
        )
        self._audit.add(event, is_refused=is_refused)


class Stated(Exception):
    """Raised by a `StatementProbe`, with the names that a call states."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__("the names of what a call is to change")
        self.names = tuple(names)


class StatementProbe(ChangeAudit):
    """Ends a call where it states what it is about to change, so before it has done anything."""

    def __init__(self) -> None:
        super().__init__(None, None, Reporter(Caller("", "", ""), ""))

    def begin(self, names: Callable[[], Iterable[str]], *, is_change: bool = True) -> None:
        raise Stated(names() if is_change else ())


def change_event(
    caller: Caller,
    now_ms: int,
    *,
    call: str,
    operation: str,
    resource_type: str,
    resource: str,
    error: str = "",
    rule: str = "",
) -> AuditEvent:
    """The change of one thing. `error`: why it was not changed. `rule`: for whom a broker sends it on."""
    return AuditEvent(
        now_ms,
        AuditKind.CHANGE,
        caller.principal,
        caller.host,
        caller.client_id,
        caller.listener,
        call=call,
        operation=operation,
        resource_type=resource_type,
        resource=resource,
        rule=rule,
        request_id=caller.request_id,
        error=error,
    )
