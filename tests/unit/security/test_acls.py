from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.errors import ErrorCode
from bus.security.acls import (
    ANY_PRINCIPAL,
    CLUSTER,
    CLUSTER_NAME,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResource,
    AclResourceType,
    PatternMatch,
    PatternType,
    check_acl,
)
from tests.support.acls import allow, prefixed

READ_ORDERS = allow(AclOperation.READ, "orders")
READ_ORD = prefixed(allow(AclOperation.READ, "ord"))
READ_ALL = replace(READ_ORDERS, resource_name="*")


@pytest.mark.parametrize(
    "acl",
    [
        READ_ORDERS,
        READ_ORD,
        replace(READ_ORDERS, principal=ANY_PRINCIPAL),
        replace(READ_ORDERS, principal="User:CN=alice,O=Example"),
        replace(READ_ORDERS, principal="User:CN=blank\\ "),
        replace(READ_ORDERS, host="10.0.0.1"),
        replace(READ_ORDERS, host="::1"),
        replace(READ_ORDERS, operation=AclOperation.ALL),
        replace(
            READ_ORDERS,
            resource_type=AclResourceType.CLUSTER,
            resource_name=CLUSTER_NAME,
            operation=AclOperation.CLUSTER_ACTION,
        ),
    ],
)
def test_there_can_be_such_a_binding(acl: AclBinding) -> None:
    assert check_acl(acl) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_name": ""}, "expected the name of a Topic, found an empty one"),
        (
            {"resource_name": "a\nb"},
            "expected the name of a Topic without control characters, found '\\n' at position 1",
        ),
        ({"resource_name": "a" * 1025}, "expected the name of a Topic of at most 1024 bytes, found 1025"),
        ({"principal": "alice"}, "expected a principal User:<name>, found 'alice'"),
        ({"principal": "user:alice"}, "expected a principal User:<name>, found 'user:alice'"),
        ({"principal": "User:"}, "expected a principal User:<name>, found 'User:'"),
        (
            {"principal": "User:a\nprincipal=User:root"},
            "expected a principal without control characters, found '\\n' at position 6",
        ),
        *(
            (
                {"principal": f"User:{name}"},
                f"expected a principal without characters that are not seen and blanks around the name, found {name!a}",
            )
            for name in ("alice ", " alice", "alice\u200b", "al\u00adice", "alice\ufe0f", "alice\ufeff")
        ),
        (
            {"principal": "User:\u202eecila"},
            "expected a principal without control characters, found '\\u202e' at position 5",
        ),
        ({"host": "example.com"}, "expected * or an address of IP as host, found 'example.com'"),
        ({"host": "10.0.0.0/8"}, "expected * or an address of IP as host, found '10.0.0.0/8'"),
        ({"host": "0:0::1"}, "expected the host '0:0::1' as '::1'"),
        (
            {"operation": AclOperation.CLUSTER_ACTION},
            "expected an operation on a resource of type Topic, All or one of Read, Write, Create, Delete, Alter, "
            "Describe, DescribeConfigs, AlterConfigs, found ClusterAction",
        ),
        (
            {"resource_type": AclResourceType.GROUP, "operation": AclOperation.WRITE},
            "expected an operation on a resource of type Group, All or one of Read, Delete, Describe, found Write",
        ),
        (
            {"resource_type": AclResourceType.CLUSTER, "operation": AclOperation.ALTER},
            "expected the name kafka-cluster (literal) of a resource of type Cluster, found 'orders' (literal)",
        ),
        (
            {
                "resource_type": AclResourceType.CLUSTER,
                "resource_name": CLUSTER_NAME,
                "pattern_type": PatternType.PREFIXED,
                "operation": AclOperation.ALTER,
            },
            "expected the name kafka-cluster (literal) of a resource of type Cluster, found 'kafka-cluster' (prefixed)",
        ),
    ],
)
def test_there_can_be_no_such_binding(changes: dict[str, Any], message: str) -> None:
    refused = check_acl(replace(READ_ORDERS, **changes))
    assert refused is not None
    assert (refused.code, refused.message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (PatternMatch.LITERAL, "orders", [READ_ORDERS]),
        (PatternMatch.LITERAL, "ord", []),
        (PatternMatch.LITERAL, "*", [READ_ALL]),
        (PatternMatch.PREFIXED, "ord", [READ_ORD]),
        (PatternMatch.PREFIXED, "orders", []),
        (PatternMatch.ANY, "ord", [READ_ORD]),
        (PatternMatch.ANY, None, [READ_ORDERS, READ_ORD, READ_ALL]),
        (PatternMatch.MATCH, "orders", [READ_ORDERS, READ_ORD, READ_ALL]),
        (PatternMatch.MATCH, "ordinary", [READ_ORD, READ_ALL]),
        (PatternMatch.MATCH, "payments", [READ_ALL]),
    ],
)
def test_a_filter_finds_patterns_as_its_type_says(
    pattern_type: PatternMatch, name: str | None, found: list[AclBinding]
) -> None:
    wanted = AclBindingFilter(AclResourceType.TOPIC, name, pattern_type)
    assert [acl for acl in (READ_ORDERS, READ_ORD, READ_ALL) if wanted.matches(acl)] == found


@pytest.mark.parametrize(
    "other",
    [
        {"resource_type": AclResourceType.GROUP},
        {"principal": "User:bob"},
        {"host": "10.0.0.1"},
        {"operation": AclOperation.ALL},
        {"permission": AclPermission.DENY},
    ],
)
def test_a_filter_finds_what_is_like_it_in_all_that_it_says(other: dict[str, Any]) -> None:
    ((name, value),) = other.items()
    wanted = AclBindingFilter(**{name: getattr(READ_ORDERS, name)})
    assert wanted.matches(READ_ORDERS)
    assert not wanted.matches(replace(READ_ORDERS, **other))
    assert AclBindingFilter().matches(replace(READ_ORDERS, **{name: value}))


def test_a_resource_is_named_for_people_in_one_line() -> None:
    assert str(AclResource(AclResourceType.TOPIC, "a\nb")) == "topic a b"
    assert str(AclResource(AclResourceType.TRANSACTIONAL_ID, "loader")) == "transactional id loader"
    assert str(CLUSTER) == "the cluster"
