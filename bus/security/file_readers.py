"""Permissions to read the files of topics, derived from the ACLs, for storage that asks no broker.

Files know no host, and what is granted on them is granted for as long as nothing takes it back. Guards one promise:
nothing is granted here that a broker would deny from any host; and each ACL about reading that this cannot express is
listed, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bus.security.acl_decisions import AclPolicy, Requester, decide_access
from bus.security.acl_index import AclIndex
from bus.security.acls import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    AclBinding,
    AclOperation,
    AclPermission,
    AclResource,
    AclResourceType,
    PatternType,
    is_named,
)

_NO_HOST = ""  # one that no ACL names


@dataclass(frozen=True, slots=True)
class TopicReaders:
    """Principals, sorted. `allowed` may have ANY_PRINCIPAL; `denied` are those that it covers and that may not
    read."""

    topic: str
    allowed: Sequence[str]
    denied: Sequence[str]


@dataclass(frozen=True, slots=True)
class NotExpressed:
    acl: AclBinding
    reason: str


@dataclass(frozen=True, slots=True)
class FileReaders:
    topics: Sequence[TopicReaders]
    not_expressed: Sequence[NotExpressed]


def plan_file_readers(index: AclIndex, topics: Iterable[str], policy: AclPolicy) -> FileReaders:
    """Plan the readers of existing topics. Super users are left out: they are administrators, not readers."""
    acls = [acl for acl in index if _is_about_reading(acl)]
    named = {acl.principal for acl in acls} - policy.super_users
    if policy.allows_unnamed:
        named.add(ANY_PRINCIPAL)
    readers = [_readers_of(topic, sorted(named), acls, index, policy) for topic in sorted(topics)]
    return FileReaders(readers, list(_not_expressed(acls)))


def _is_about_reading(acl: AclBinding) -> bool:
    return acl.resource_type is AclResourceType.TOPIC and acl.operation in (AclOperation.READ, AclOperation.ALL)


def _readers_of(
    topic: str, principals: Sequence[str], acls: Sequence[AclBinding], index: AclIndex, policy: AclPolicy
) -> TopicReaders:
    resource = AclResource(AclResourceType.TOPIC, topic)
    # Principals that may not read it from some host.
    kept_out = {
        acl.principal
        for acl in acls
        if acl.permission is AclPermission.DENY and acl.host != ANY_HOST and is_named(topic, acl)
    }

    def may_read(principal: str) -> bool:
        if principal in kept_out or ANY_PRINCIPAL in kept_out:
            return False
        return decide_access(index, Requester(principal, _NO_HOST), AclOperation.READ, resource, policy).is_allowed

    allowed = [principal for principal in principals if may_read(principal)]
    others = [] if ANY_PRINCIPAL not in allowed else [one for one in principals if one not in allowed]
    return TopicReaders(topic, allowed, others)


def _not_expressed(acls: Iterable[AclBinding]) -> Iterator[NotExpressed]:
    for acl in acls:
        is_allowing = acl.permission is AclPermission.ALLOW
        if acl.host != ANY_HOST:
            meaning = "it grants nothing" if is_allowing else "it denies reading from everywhere"
            yield NotExpressed(acl, f"files know no host, so {meaning}")
        elif is_allowing and (acl.pattern_type is PatternType.PREFIXED or acl.resource_name == ANY_NAME):
            yield NotExpressed(acl, "topics that are created later are not in it: export again")
