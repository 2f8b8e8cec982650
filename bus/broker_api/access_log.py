"""What was decided about access, told in one place: the logger `bus.authorizer`, with Kafka's line.

Denials at INFO. Grants, and what a list merely left out, at DEBUG.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bus.authorization.acls import AclBinding, AclOperation, AclResource, PatternType
from bus.authorization.decisions import Decision, Requester, Rule
from bus.client_texts import shown

_log = logging.getLogger("bus.authorizer")


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


class AccessLog:
    """The place where every decision about access is reported."""

    @property
    def has_grants(self) -> bool:
        """Whether what was allowed is to be reported; where it is not, a request that is allowed costs less."""
        return _log.isEnabledFor(logging.DEBUG)

    def report(self, decided: AccessDecided) -> None:
        level = logging.DEBUG if decided.decision.is_allowed or decided.is_filter else logging.INFO
        if _log.isEnabledFor(level):
            _log.log(level, "%s", describe_access(decided))


def describe_access(decided: AccessDecided) -> str:
    """In one line, whatever names clients choose."""
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
