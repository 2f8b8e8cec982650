"""What was decided about access, told in one place: the logger `bus.authorizer`, with Kafka's line.

Denials at INFO. Grants, and what a list merely left out, at DEBUG. The audit, if there is one, gets a row for each
denial, and counts what may be read and written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bus.auditing.events import ALLOWED, DENIED, AuditEvent, AuditKind
from bus.authorization.acls import AclBinding, AclOperation, AclResource, PatternType
from bus.authorization.decisions import Decision, Requester, Rule
from bus.broker_api.requests import Caller
from bus.client_texts import shown
from bus.runtime.audit_log import AuditLog
from bus.runtime.logs import request_id

_log = logging.getLogger("bus.authorizer")

# What is done so often that it is told once a minute; of other operations that were allowed the audit tells what they
# changed.
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

    @property
    def has_grants(self) -> bool:
        """Whether what was allowed is to be reported; where it is not, a request that is allowed costs less."""
        return self._audit is not None or _log.isEnabledFor(logging.DEBUG)

    def report(self, decided: AccessDecided) -> None:
        if self._audit is not None and not decided.is_filter:
            self._tell(self._audit, decided)
        level = logging.DEBUG if decided.decision.is_allowed or decided.is_filter else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s", describe_access(decided))

    def _tell(self, audit: AuditLog, decided: AccessDecided) -> None:
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
            audit.add(event)


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
