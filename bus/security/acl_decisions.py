"""The decision whether a caller may do an operation on a resource: Kafka's rule (KIP-11, StandardAuthorizer).

A super user may do everything. Else any binding that denies it decides, then any that allows it. If none names the
resource, `allow.everyone.if.no.acl.found` does; else it is denied. To be allowed to read, write, delete or alter
includes to describe; to alter configs includes to describe them. To be denied something implies nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bus.security.acl_index import AclIndex
from bus.security.acls import (
    ANY_HOST,
    ANY_NAME,
    OPERATIONS,
    AclBinding,
    AclOperation,
    AclPermission,
    AclResource,
    AclResourceType,
    PatternType,
)

_Op = AclOperation

# To be allowed the second implies that the first is allowed.
_IMPLIED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    _Op.DESCRIBE: frozenset({_Op.DESCRIBE, _Op.READ, _Op.WRITE, _Op.DELETE, _Op.ALTER, _Op.ALL}),
    _Op.DESCRIBE_CONFIGS: frozenset({_Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS, _Op.ALL}),
}
_ALLOWING = {operation: _IMPLIED_BY.get(operation, frozenset({operation, _Op.ALL})) for operation in _Op}


@dataclass(frozen=True, slots=True)
class Requester:
    """The caller that asks for access: `principal` is "User:<name>", `host` an IP address."""

    principal: str
    host: str


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """The broker's configuration beside the bindings."""

    super_users: frozenset[str] = frozenset()  # principals
    allows_unnamed: bool = False  # allow.everyone.if.no.acl.found


class DefaultRule(Enum):
    """The rule that decides if no binding does; the value is Kafka's name for it."""

    SUPER_USER = "SuperUser"
    ALLOW = "DefaultAllow"  # nothing names the resource
    DENY = "DefaultDeny"


Rule = AclBinding | DefaultRule


@dataclass(frozen=True, slots=True)
class Decision:
    is_allowed: bool
    rule: Rule  # that decided; of several bindings the one with the nearest name


def decide_access(
    index: AclIndex,
    requester: Requester,
    operation: AclOperation,
    resource: AclResource,
    policy: AclPolicy = AclPolicy(),  # immutable
) -> Decision:
    if requester.principal in policy.super_users:
        return Decision(True, DefaultRule.SUPER_USER)
    allowed: AclBinding | None = None
    for acl in index.find(resource, requester.principal):
        if acl.host not in (ANY_HOST, requester.host):
            continue
        if acl.permission is AclPermission.DENY:
            if acl.operation in (operation, _Op.ALL):
                return Decision(False, acl)
        elif allowed is None and acl.operation in _ALLOWING[operation]:
            allowed = acl
    if allowed is not None:
        return Decision(True, allowed)
    if policy.allows_unnamed and not index.is_named(resource):
        return Decision(True, DefaultRule.ALLOW)
    return Decision(False, DefaultRule.DENY)


def decide_access_to_any(
    index: AclIndex,
    requester: Requester,
    operation: AclOperation,
    resource_type: AclResourceType,
    policy: AclPolicy = AclPolicy(),  # immutable
) -> Decision:
    """Decide whether there may be a resource of the type on which the requester may do the operation (KIP-679): one
    that a binding allows and no other binding denies as a whole. Looks at all bindings about the operation that apply
    to the requester."""
    if requester.principal in policy.super_users:
        return Decision(True, DefaultRule.SUPER_USER)
    operations = [one for one in _Op if one in _ALLOWING[operation]]
    found = index.find_all(resource_type, requester.principal, operations)
    about = [acl for acl in found if _is_about(acl, requester, operation)]
    denying = [acl for acl in about if acl.permission is AclPermission.DENY]
    for acl in denying:
        if acl.pattern_type is PatternType.LITERAL and acl.resource_name == ANY_NAME:
            return Decision(False, acl)
    if policy.allows_unnamed:
        return Decision(True, DefaultRule.ALLOW)
    literals = {acl.resource_name for acl in denying if acl.pattern_type is PatternType.LITERAL}
    prefixes = tuple(acl.resource_name for acl in denying if acl.pattern_type is PatternType.PREFIXED)
    for acl in about:
        if acl.permission is AclPermission.DENY:
            continue
        is_all = acl.pattern_type is PatternType.LITERAL and acl.resource_name == ANY_NAME
        is_denied = acl.pattern_type is PatternType.LITERAL and acl.resource_name in literals
        if is_all or not (is_denied or acl.resource_name.startswith(prefixes)):
            return Decision(True, acl)
    return Decision(False, DefaultRule.DENY)


def _is_about(acl: AclBinding, requester: Requester, operation: AclOperation) -> bool:
    operations = _ALLOWING[operation] if acl.permission is AclPermission.ALLOW else (operation, _Op.ALL)
    return acl.host in (ANY_HOST, requester.host) and acl.operation in operations


def allowed_operations(
    index: AclIndex, requester: Requester, resource: AclResource, policy: AclPolicy
) -> list[AclOperation]:
    """Return the operations on the resource that the requester may do (KIP-430)."""
    return [
        operation
        for operation in OPERATIONS[resource.resource_type]
        if decide_access(index, requester, operation, resource, policy).is_allowed
    ]
