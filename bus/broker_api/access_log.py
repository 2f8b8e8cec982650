"""Reports what was decided about access: to the logger `bus.authorizer`, with Kafka's line, and to the audit.

Denials at INFO, those that repeat as one line a minute (security/audit_trail.py). Grants, and what a list merely
left out, at DEBUG. The audit, if there is one, gets denials as rows in the same way, and counts what may be read and
written.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bus.broker_api.requests import Caller
from bus.client_texts import shown
from bus.runtime.audit_log import AuditLog
from bus.runtime.logs import request_id
from bus.runtime.loop_shares import run_in_slices
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

_log = logging.getLogger("bus.authorizer")

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
    """The place where every decision about access is reported. `audit` None: to the log only."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self._audit = audit if audit is not None and audit.is_enabled else None
        self._denials: DenialCounts[AccessDecided] = DenialCounts(_merge)  # of one interval, which a timer ends

    @property
    def has_grants(self) -> bool:
        """Whether what was allowed is to be reported; where it is not, a request that is allowed costs less."""
        return self._audit is not None or _log.isEnabledFor(logging.DEBUG)

    def report(self, decided: AccessDecided) -> None:
        if self._audit is not None and not decided.is_filter:
            self._add_to_audit(self._audit, decided)
        if decided.decision.is_allowed or decided.is_filter:
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s", describe_access(decided))
        elif _log.isEnabledFor(logging.INFO):
            self._log_denial(decided)

    def _log_denial(self, decided: AccessDecided) -> None:
        if self._denials.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._log_counts, context=no_request)
        resource = decided.resource
        kind = decided.requester.principal, decided.operation.value, resource.resource_type.value
        if self._denials.add(kind, resource.name, _cut(decided)):
            _log.info("%s", describe_access(decided))

    def _log_counts(self) -> None:
        run_in_slices(self._counts_logged(*self._denials.take()))

    def _counts_logged(self, counted: Sequence[AccessDecided], lost: int) -> Iterator[None]:
        """Log them, with a pause to be made at each `yield`."""
        seconds = DENIAL_INTERVAL_MS // 1000
        for last in counted:
            _log.info(
                "%s; the last of %d within %d s of this principal, operation and resource type that are not shown",
                describe_access(replace(last, count=1)),
                last.count,
                seconds,
            )
            yield
        if lost:
            _log.info("%d denials within %d s are not shown: of more than %d kinds", lost, seconds, DENIAL_KINDS_MAX)

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
    """To be kept: a caller may ask for names of any length."""
    resource = decided.resource
    if len(resource.name) <= TEXT_LENGTH_MAX:
        return decided
    return replace(decided, resource=replace(resource, name=resource.name[:TEXT_LENGTH_MAX]))


def _merge(known: AccessDecided, decided: AccessDecided) -> AccessDecided:
    return replace(decided, count=known.count + decided.count)


def describe_access(decided: AccessDecided) -> str:
    """On one line: control characters in names of clients are escaped."""
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
