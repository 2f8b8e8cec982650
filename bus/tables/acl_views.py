"""Access control lists as tables: as they were added, and what follows from them.

Read from `__cluster_metadata`, so a broker need not be up. What a broker's configuration adds (`super.users`,
`allow.everyone.if.no.acl.found`) is in no table of the root, and does not count here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bus.cluster_metadata.cluster_state import ClusterState
from bus.security.acl_decisions import Requester, decide_access
from bus.security.acls import (
    ANY_NAME,
    ANY_PRINCIPAL,
    CLUSTER,
    OPERATIONS,
    AclBinding,
    AclResource,
    AclResourceType,
    PatternType,
)
from bus.tables.topics import TopicTables

ACLS = pa.schema(
    [
        ("resource_type", pa.string()),
        ("resource_name", pa.string()),
        ("pattern_type", pa.string()),
        ("principal", pa.string()),
        ("host", pa.string()),
        ("operation", pa.string()),
        ("permission", pa.string()),
    ]
)
EFFECTIVE_ACLS = pa.schema(
    [
        ("principal", pa.string()),  # that an ACL names; User:* stands for those that none names
        ("resource_type", pa.string()),
        ("name", pa.string()),  # an existing topic, the cluster, or a resource that an ACL names literally
        ("operation", pa.string()),
        ("permission", pa.string()),  # Allow or Deny, from a host that no ACL names
        ("rule", pa.string()),  # the ACL that decides; what none decides has no row: it is denied
    ]
)


def acls(tables: TopicTables) -> pa.Table:
    """The ACLs in the order in which they were added."""
    return pa.Table.from_pylist([_row(acl) for acl in tables.cluster().acls], ACLS)


def _row(acl: AclBinding) -> dict[str, str]:
    return {
        "resource_type": acl.resource_type.value,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.value,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.value,
        "permission": acl.permission.value,
    }


def effective_acls(tables: TopicTables) -> pa.Table:
    """The decisions by principal, resource and operation."""
    state = tables.cluster()
    principals, resources = sorted({acl.principal for acl in state.acls}), _resources(state)
    rows = [row for principal in principals for resource in resources for row in _decided(state, principal, resource)]
    return pa.Table.from_pylist(rows, EFFECTIVE_ACLS)


def _resources(state: ClusterState) -> list[AclResource]:
    named = {
        AclResource(acl.resource_type, acl.resource_name)
        for acl in state.acls
        if acl.pattern_type is PatternType.LITERAL and acl.resource_name != ANY_NAME
    }
    existing = {AclResource(AclResourceType.TOPIC, name) for name in state.topics} | {CLUSTER}
    return sorted(named | existing, key=lambda one: (one.resource_type.value, one.name))


def _decided(state: ClusterState, principal: str, resource: AclResource) -> Iterator[dict[str, Any]]:
    requester = Requester(principal if principal != ANY_PRINCIPAL else "", "")
    for operation in OPERATIONS[resource.resource_type]:
        rule = decide_access(state.acls, requester, operation, resource).rule
        if isinstance(rule, AclBinding):
            yield {
                "principal": principal,
                "resource_type": resource.resource_type.value,
                "name": resource.name,
                "operation": operation.value,
                "permission": rule.permission.value,
                "rule": str(rule),
            }
