"""Entries of access control lists, as tests write them: of one principal, on a topic, unless they say otherwise."""

from __future__ import annotations

from dataclasses import replace

from bus.security.acls import AclBinding, AclOperation, AclPermission, AclResourceType, PatternType


def allow(
    operation: AclOperation = AclOperation.READ,
    name: str = "orders",
    of: AclResourceType = AclResourceType.TOPIC,
    *,
    principal: str = "User:alice",
    host: str = "*",
) -> AclBinding:
    return AclBinding(of, name, PatternType.LITERAL, principal, host, operation, AclPermission.ALLOW)


def deny(
    operation: AclOperation = AclOperation.READ,
    name: str = "orders",
    of: AclResourceType = AclResourceType.TOPIC,
    *,
    principal: str = "User:alice",
    host: str = "*",
) -> AclBinding:
    return replace(allow(operation, name, of, principal=principal, host=host), permission=AclPermission.DENY)


def prefixed(acl: AclBinding) -> AclBinding:
    return replace(acl, pattern_type=PatternType.PREFIXED)
