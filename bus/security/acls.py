"""Access control lists as values: which principal may do what to which resource, and which lists are valid.

The words and their meaning are Kafka's (KIP-11, KIP-290): a binding says that a principal, from a host, may or may not
do an operation on the resources that a pattern names. Guards one promise: a binding that is in the cluster metadata
can have an effect, and its texts cannot forge a line of a log.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bus.client_texts import check_text, check_user, shown
from bus.errors import ErrorCode, Refused

CLUSTER_NAME = "kafka-cluster"  # the one resource of the type Cluster has Kafka's name
ANY_NAME = "*"  # a literal name that stands for every resource of the type
ANY_HOST = "*"
PRINCIPAL_TYPE = "User"
ANY_PRINCIPAL = f"{PRINCIPAL_TYPE}:*"
RESERVED_NAMES = ("ANONYMOUS", "*")  # principals that stand for no single user, so no login may prove to be one
NAME_BYTES_MAX = 1_024
PRINCIPAL_BYTES_MAX = 1_024


class AclResourceType(Enum):
    """The value is how people read it, in options, messages and logs."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


class PatternType(Enum):
    LITERAL = "literal"
    PREFIXED = "prefixed"  # every name that begins so; no character is a separator


class AclOperation(Enum):
    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"  # the calls between brokers
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class AclPermission(Enum):
    ALLOW = "Allow"
    DENY = "Deny"


_Type, _Op = AclResourceType, AclOperation

# The operations on a type of resource; `ALL` stands for all of them.
OPERATIONS: Mapping[AclResourceType, tuple[AclOperation, ...]] = {
    _Type.TOPIC: (
        _Op.READ,
        _Op.WRITE,
        _Op.CREATE,
        _Op.DELETE,
        _Op.ALTER,
        _Op.DESCRIBE,
        _Op.DESCRIBE_CONFIGS,
        _Op.ALTER_CONFIGS,
    ),
    _Type.GROUP: (_Op.READ, _Op.DELETE, _Op.DESCRIBE),
    _Type.CLUSTER: (
        _Op.CREATE,
        _Op.ALTER,
        _Op.DESCRIBE,
        _Op.CLUSTER_ACTION,
        _Op.DESCRIBE_CONFIGS,
        _Op.ALTER_CONFIGS,
        _Op.IDEMPOTENT_WRITE,
    ),
    _Type.TRANSACTIONAL_ID: (_Op.WRITE, _Op.DESCRIBE),
}


@dataclass(frozen=True, slots=True)
class AclResource:
    """One that is asked about; its name is no pattern."""

    resource_type: AclResourceType
    name: str

    def __str__(self) -> str:
        """Name the resource in a message: "topic orders"."""
        if self.resource_type is AclResourceType.CLUSTER:
            return "the cluster"
        kind = "transactional id" if self.resource_type is AclResourceType.TRANSACTIONAL_ID else self.resource_type.name
        return f"{kind.lower()} {shown(self.name)}"


CLUSTER = AclResource(AclResourceType.CLUSTER, CLUSTER_NAME)


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One entry of an access control list."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str  # "User:<name>", or ANY_PRINCIPAL
    host: str  # an address of IP, or ANY_HOST
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        return (
            f"{self.permission.value} {self.principal} {self.operation.value} on {self.resource_type.value} "
            f"{self.resource_name} ({self.pattern_type.value}) from {self.host}"
        )


def check_acl(acl: AclBinding) -> Refused | None:
    """Why there can be no such binding: INVALID_REQUEST."""
    return (
        _check_name(acl)
        or check_principal(acl.principal)
        or check_host(acl.host)
        or check_operation(acl.resource_type, acl.operation)
    )


def _check_name(acl: AclBinding) -> Refused | None:
    name, what = acl.resource_name, f"the name of a {acl.resource_type.value}"
    if not name:
        return _invalid(f"expected {what}, found an empty one")
    if acl.resource_type is AclResourceType.CLUSTER and (name, acl.pattern_type) != (CLUSTER_NAME, PatternType.LITERAL):
        pattern = f"{shown(name)!r} ({acl.pattern_type.value})"
        return _invalid(f"expected the name {CLUSTER_NAME} (literal) of a resource of type Cluster, found {pattern}")
    return check_text(what, name, NAME_BYTES_MAX)


def check_principal(principal: str) -> Refused | None:
    kind, _, name = principal.partition(":")
    if kind != PRINCIPAL_TYPE or not name:
        return _invalid(f"expected a principal {PRINCIPAL_TYPE}:<name>, found {shown(principal)!r}")
    return check_text("a principal", principal, PRINCIPAL_BYTES_MAX) or check_user("a principal", name)


def check_host(host: str) -> Refused | None:
    """Check the host of an ACL. Addresses are compared as texts, so only their usual form is valid: the one in which a
    broker sees a caller's address."""
    if host == ANY_HOST:
        return None
    try:
        usual = str(ipaddress.ip_address(host))
    except ValueError:
        return _invalid(f"expected {ANY_HOST} or an address of IP as host, found {shown(host)!r}")
    return None if usual == host else _invalid(f"expected the host {host!r} as {usual!r}")


def check_operation(resource_type: AclResourceType, operation: AclOperation) -> Refused | None:
    if operation is AclOperation.ALL or operation in OPERATIONS[resource_type]:
        return None
    known = ", ".join(one.value for one in OPERATIONS[resource_type])
    return _invalid(
        f"expected an operation on a resource of type {resource_type.value}, All or one of {known}, "
        f"found {operation.value}"
    )


class PatternMatch(Enum):
    """The way in which a filter matches the names of patterns."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"  # patterns of any type with exactly this name
    MATCH = "match"  # those that name the resource of this name: literally, as `*`, or by a prefix of it


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """A filter of bindings: a binding matches if it equals the filter in every field that is not None."""

    resource_type: AclResourceType | None = None
    resource_name: str | None = None
    pattern_type: PatternMatch = PatternMatch.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation | None = None
    permission: AclPermission | None = None

    @property
    def exact(self) -> AclBinding | None:
        """The one binding that it can find, if it says all of one."""
        of_type = {PatternMatch.LITERAL: PatternType.LITERAL, PatternMatch.PREFIXED: PatternType.PREFIXED}
        pattern_type = of_type.get(self.pattern_type)
        if (
            self.resource_type is None
            or self.resource_name is None
            or pattern_type is None
            or self.principal is None
            or self.host is None
            or self.operation is None
            or self.permission is None
        ):
            return None
        return AclBinding(
            self.resource_type,
            self.resource_name,
            pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.resource_type in (None, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (None, acl.operation)
            and self.permission in (None, acl.permission)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        name = self.resource_name
        if self.pattern_type is PatternMatch.MATCH:
            return name is None or is_named(name, acl)
        is_of_type = self.pattern_type is PatternMatch.ANY or self.pattern_type.value == acl.pattern_type.value
        return is_of_type and name in (None, acl.resource_name)


def is_named(name: str, acl: AclBinding) -> bool:
    """True if the pattern is about the resource of this name, of the same type."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, ANY_NAME)


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, message)
