"""The audit of calls: what was decided about the access of their callers, and what they change for good.

A method of an API that changes something states the names of the things before its first `await`, and reports what
became of them: one row for each thing that was changed, or that its caller was refused. What a decision about access
has refused is a row of that decision (`AccessLog`), and none of the change.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bus.broker_api.calls import Audited
from bus.broker_api.requests import Caller, InvalidArgument
from bus.client_texts import shown
from bus.errors import ErrorCode, Refused
from bus.runtime.audit_log import AuditLog
from bus.runtime.logs import request_id
from bus.runtime.tasks import run_in_slices
from bus.security.acl_decisions import Decision, Requester, Rule
from bus.security.acls import AclBinding, AclOperation, AclResource, PatternType
from bus.security.audit_trail import (
    ALLOWED,
    DENIAL_INTERVAL_MS,
    DENIAL_KINDS_MAX,
    DENIED,
    TEXT_LENGTH_MAX,
    AuditEvent,
    AuditKind,
    DenialCounts,
)

_log = logging.getLogger(__name__)
_access_log = logging.getLogger("bus.authorizer")  # its lines have the form of Kafka's kafka.authorizer.logger

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
    """The outcome of a thing that may be changed. `error`: how its call ended; `is_permitted`: its caller was permitted
    to change it before, so it may be done."""

    error: str
    is_permitted: bool


@dataclass(frozen=True, slots=True)
class Reporter:
    """The caller that a row names. `call`: by which the change came; `rule`: for whom it was sent on, empty if it was
    not."""

    caller: Caller
    call: str
    rule: str = ""


class ChangeAudit:
    """The audit of one call. Without `audit`, and for a call that changes nothing (`audited` None), nothing is kept."""

    def __init__(self, audit: AuditLog | None, audited: Audited | None, reporter: Reporter) -> None:
        self._audit = audit if audit is not None and audit.is_enabled else None
        self._audited = audited
        self.reporter = reporter
        self._names: Callable[[], Iterable[str]] | None = None
        self._permitted_names: Callable[[], Iterable[str]] | None = None  # None: all
        self._is_permitted = False
        self.has_begun = False

    @property
    def is_kept(self) -> bool:
        return self._audit is not None and self._audited is not None

    def begin(self, names: Callable[[], Iterable[str]], *, is_change: bool = True) -> None:
        """State what the call is about to change, before its first `await`. `is_change` False: it only validates."""
        self.has_begun = True
        self._is_permitted, self._permitted_names = False, None
        self._names = names if is_change and self.is_kept else None

    def permit(self, names: Callable[[], Iterable[str]] | None = None) -> None:
        """State that the caller may change what was stated, or of it only the things of these names: from here on they
        may be done, and no others are."""
        self._is_permitted, self._permitted_names = True, names

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
        """The call ends without an answer: what it began may go on. Where it was not permitted yet nothing is done, so
        its rows take no room that is kept for changes."""
        names, outcome = self._permitted_names or self._names, _Unknown(error, self._is_permitted)
        if names is not None:
            self.report(lambda: ((name, outcome) for name in names()))

    def _add(self, outcomes: Callable[[], Iterable[tuple[str, object]]]) -> None:
        run_in_slices(self._added(outcomes))

    def _added(self, outcomes: Callable[[], Iterable[tuple[str, object]]]) -> Iterator[None]:
        """Add the rows, with a pause to be made at each `yield`."""
        try:
            for name, outcome in outcomes():
                self._add_outcome(name, outcome)
                yield
        except InvalidArgument as error:  # the request names nothing that could be changed, as any caller's may
            _log.debug("the audit has no row of a call %s: %s", self.reporter.call, error)
        except Exception as error:  # what was changed is changed: its answer has to go out
            _log.error("the audit has no row of a call %s", self.reporter.call, exc_info=error)

    def _add_outcome(self, name: str, outcome: object) -> None:
        match outcome:
            case Refused() if outcome.code in _REPORTED_WITH_ACCESS:
                return
            case Refused():
                error, is_refused = f"{outcome.code.name}: {outcome.message}", outcome.code not in _MAY_BE_DONE
            case _Unknown():
                error, is_refused = outcome.error, not outcome.is_permitted
            case _:
                error, is_refused = "", False
        assert self._audit is not None, "expected an audit to report to"
        assert self._audited is not None, "expected a call that changes something"
        event = change_event(
            self.reporter.caller,
            self._audit.now_ms(),
            call=self.reporter.call,
            operation=self._audited.operation,
            resource_type=self._audited.resource_type,
            resource=name,
            error=error,
            rule=self.reporter.rule,
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


# What is done so often that it is reported once a minute. Of other operations that were allowed, the audit has what
# they changed.
_COUNTED = (AclOperation.READ, AclOperation.WRITE)


@dataclass(frozen=True, slots=True)
class AccessDecided:
    """`count`: how often the request names the resource. `is_filter`: nothing was asked for by name, the answer just
    shows what may be seen."""

    requester: Requester
    operation: AclOperation
    resource: AclResource
    call: str
    count: int
    decision: Decision
    is_filter: bool = False
    caller: Caller | None = None


class AccessLog:
    """The place where every decision about access is reported: to the logger `bus.authorizer`, with Kafka's line, and
    to the audit, if there is one.

    Denials go out at INFO, those that repeat as one line a minute (security/audit_trail.py). Grants, and what a list
    merely left out, go out at DEBUG. The audit gets denials as rows in the same way, and counts what may be read and
    written. `audit` None: to the log only."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit if audit is not None and audit.is_enabled else None
        self._denials: DenialCounts[AccessDecided] = DenialCounts(_merge)  # of one interval, which a timer ends

    @property
    def has_grants(self) -> bool:
        """True if what was allowed is to be reported; where it is not, a request that is allowed costs less."""
        return self._audit is not None or _access_log.isEnabledFor(logging.DEBUG)

    def report(self, decided: AccessDecided) -> None:
        if self._audit is not None and not decided.is_filter:
            self._add_to_audit(self._audit, decided)
        if decided.decision.is_allowed or decided.is_filter:
            if _access_log.isEnabledFor(logging.DEBUG):
                _access_log.debug("%s", describe_access(decided))
        elif _access_log.isEnabledFor(logging.INFO):
            self._log_denial(decided)

    def _log_denial(self, decided: AccessDecided) -> None:
        if self._denials.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._log_counts, context=no_request)
        resource = decided.resource
        kind = decided.requester.principal, decided.operation.value, resource.resource_type.value
        if self._denials.add(kind, resource.name, _cut(decided)):
            _access_log.info("%s", describe_access(decided))

    def _log_counts(self) -> None:
        run_in_slices(self._counts_logged(*self._denials.take()))

    def _counts_logged(self, counted: Sequence[AccessDecided], lost: int) -> Iterator[None]:
        """Log them, with a pause to be made at each `yield`."""
        seconds = DENIAL_INTERVAL_MS // 1000
        for last in counted:
            _access_log.info(
                "%s; the last of %d within %d s of this principal, operation and resource type that are not shown",
                describe_access(replace(last, count=1)),
                last.count,
                seconds,
            )
            yield
        if lost:
            _access_log.info(
                "%d denials within %d s are not shown: of more than %d kinds", lost, seconds, DENIAL_KINDS_MAX
            )

    def _add_to_audit(self, audit: AuditLog, decided: AccessDecided) -> None:
        is_allowed, caller = decided.decision.is_allowed, decided.caller
        if is_allowed and decided.operation not in _COUNTED:
            return
        event = AuditEvent(
            audit.now_ms(),
            AuditKind.DECISION,
            decided.requester.principal,
            "" if caller is None else caller.host,
            "" if caller is None else caller.client_id,
            "" if caller is None else caller.listener,
            call=decided.call,
            operation=decided.operation.value,
            resource_type=decided.resource.resource_type.value,
            resource=decided.resource.name,
            decision=ALLOWED if is_allowed else DENIED,
            rule=_show_rule(decided.decision.rule),
            count=decided.count,
            request_id=request_id.get(),
        )
        if is_allowed:
            audit.add_grant(event)
        else:
            audit.add_denial(event)


def _cut(decided: AccessDecided) -> AccessDecided:
    """Return the decision with its name cut to what is kept: a caller may ask for names of any length."""
    resource = decided.resource
    if len(resource.name) <= TEXT_LENGTH_MAX:
        return decided
    return replace(decided, resource=replace(resource, name=resource.name[:TEXT_LENGTH_MAX]))


def _merge(known: AccessDecided, decided: AccessDecided) -> AccessDecided:
    return replace(decided, count=known.count + decided.count)


def describe_access(decided: AccessDecided) -> str:
    """Write the decision on one line: control characters in names of clients are escaped."""
    outcome = "Allowed" if decided.decision.is_allowed else "Denied"
    pattern = PatternType.LITERAL.name
    return (
        f"Principal = {shown(decided.requester.principal)} is {outcome} operation = {decided.operation.value} "
        f"from host = {shown(decided.requester.host)} "
        f"on resource = {decided.resource.resource_type.value}:{pattern}:{shown(decided.resource.name)} "
        f"for request = {decided.call} with resourceRefCount = {decided.count} "
        f"based on rule {_show_rule(decided.decision.rule)}"
    )


def _show_rule(rule: Rule) -> str:
    if not isinstance(rule, AclBinding):
        return rule.value
    return (
        f"MatchingAcl(acl=StandardAcl(resourceType={rule.resource_type.name}, resourceName={rule.resource_name}, "
        f"patternType={rule.pattern_type.name}, principal={rule.principal}, host={rule.host}, "
        f"operation={rule.operation.name}, permissionType={rule.permission.name}))"
    )
