"""The brokers of a root as tables: who is registered, who leads and follows what, who led it before and why. And its
quotas and access control lists.

Read from `__cluster_metadata`, so a broker need not be up. Guards one promise: what that log has forgotten is null. A
snapshot in the log keeps what holds, and neither when it came to be nor what was before. What a broker's configuration
adds to the ACLs (`super.users`, `allow.everyone.if.no.acl.found`) is in no table of the root, and does not count here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bus.cluster_metadata.cluster_history import BrokerHistory, LogPlace, Term
from bus.cluster_metadata.cluster_state import Broker, ClusterState, replica_state
from bus.descriptions import show_entity_name
from bus.records.log_schema import TIMESTAMP_TYPE
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

BROKERS = pa.schema(
    [
        ("broker_id", pa.int32()),
        ("host", pa.string()),
        ("port", pa.int32()),
        ("rack", pa.string()),
        ("is_controller", pa.bool_()),
        ("is_fenced", pa.bool_()),
        ("state_time", TIMESTAMP_TYPE),  # since when it is fenced, or is not
        ("leaders", pa.int32()),  # partitions that it leads
        ("replicas", pa.int32()),  # partitions that it is a replica of
        ("broker_epoch", pa.int64()),  # null for one that registered at feature level 0
        ("incarnation", pa.string()),
        ("registered_offset", pa.int64()),  # the first record of this incarnation in __cluster_metadata
        ("registered_time", TIMESTAMP_TYPE),
        ("feature_level_min", pa.int32()),
        ("feature_level_max", pa.int32()),
    ]
)
REPLICAS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int32()),  # the position in the assignment, from 0 on
        ("broker_id", pa.int32()),
        ("is_preferred", pa.bool_()),
        ("is_leader", pa.bool_()),
        ("is_fenced", pa.bool_()),
        ("is_in_sync", pa.bool_()),
    ]
)
ELECTIONS = pa.schema(
    [
        ("topic", pa.string()),  # __cluster_metadata: of the controller
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("leader_id", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("reason", pa.string()),
        ("since_offset", pa.int64()),  # the record in __cluster_metadata
        ("since_time", TIMESTAMP_TYPE),
        ("until_offset", pa.int64()),  # null: it leads now
        ("until_time", TIMESTAMP_TYPE),
    ]
)
QUOTAS = pa.schema(
    [
        ("user", pa.string()),  # null: the quota applies to every user; <default>: to those without one of their own
        ("client_id", pa.string()),
        ("quota", pa.string()),
        ("value", pa.float64()),  # per second
    ]
)
_BROKER_IDS = pa.list_(pa.int32())
REASSIGNMENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),  # the record in __cluster_metadata
        ("time", TIMESTAMP_TYPE),
        ("replicas_before", _BROKER_IDS),
        ("replicas", _BROKER_IDS),
        ("adding_replicas", _BROKER_IDS),
        ("removing_replicas", _BROKER_IDS),
    ]
)


def brokers(tables: TopicTables) -> pa.Table:
    history = tables.cluster_history()
    state = history.state
    counts = Counter(
        broker_id
        for topic in state.topics.values()
        for number in range(len(topic.partitions))
        for broker_id in topic.replicas(number)
    )
    rows = [
        _broker_row(state, broker, history.brokers[broker_id], counts[broker_id])
        for broker_id, broker in sorted(state.brokers.items())
    ]
    return pa.Table.from_pylist(rows, BROKERS)


def _broker_row(state: ClusterState, broker: Broker, history: BrokerHistory, replica_count: int) -> dict[str, object]:
    controller, broker_id = state.controller, broker.broker_id
    return {
        "broker_id": broker_id,
        "host": broker.endpoint.host,
        "port": broker.endpoint.port,
        "rack": broker.rack,
        # Without an election there is one broker.
        "is_controller": controller is None or controller.broker_id == broker_id,
        "is_fenced": broker.is_fenced,
        "state_time": _time(history.fencing_changed),
        "leaders": state.leader_counts.get(broker_id, 0),
        "replicas": replica_count,
        "broker_epoch": broker.broker_epoch or None,
        "incarnation": broker.incarnation or None,
        "registered_offset": _offset(history.registered),
        "registered_time": _time(history.registered),
        "feature_level_min": broker.level_min,
        "feature_level_max": broker.level_max,
    }


def replicas(tables: TopicTables) -> pa.Table:
    state = tables.cluster()
    in_sync = frozenset(state.unfenced_brokers)
    rows = [
        {
            "topic": name,
            "partition": number,
            "position": position,
            "broker_id": broker_id,
            "is_preferred": position == 0,
            "is_leader": topic.partitions[number].leader_id == broker_id,
            "is_fenced": state.brokers[broker_id].is_fenced,
            "is_in_sync": broker_id in found.in_sync,
        }
        for name, topic in sorted(state.topics.items())
        for number in range(len(topic.partitions))
        for found in [replica_state(topic, number, in_sync)]
        for position, broker_id in enumerate(found.replicas)
    ]
    return pa.Table.from_pylist(rows, REPLICAS)


def elections(tables: TopicTables) -> pa.Table:
    """The elections by topic and partition, each in the order of its terms."""
    terms = sorted(tables.cluster_history().terms, key=lambda term: (term.topic, term.partition))
    return pa.Table.from_pylist(list(map(_election_row, terms)), ELECTIONS)


def _election_row(term: Term) -> dict[str, object]:
    return {
        "topic": term.topic,
        "topic_id": term.topic_id,
        "partition": term.partition,
        "leader_id": term.leader_id,
        "leader_epoch": term.leader_epoch,
        "reason": None if term.reason is None else term.reason.value,
        "since_offset": _offset(term.begin),
        "since_time": _time(term.begin),
        "until_offset": _offset(term.end),
        "until_time": _time(term.end),
    }


def reassignments(tables: TopicTables) -> pa.Table:
    """The reassignments in the order in which they were made."""
    rows = [
        {
            "topic": one.topic,
            "topic_id": one.topic_id,
            "partition": one.partition,
            "offset": one.place.offset,
            "time": _time(one.place),
            "replicas_before": one.before,
            "replicas": one.after,
            "adding_replicas": one.adding,
            "removing_replicas": one.removing,
        }
        for one in tables.cluster_history().reassignments
    ]
    return pa.Table.from_pylist(rows, REASSIGNMENTS)


def quotas(tables: TopicTables) -> pa.Table:
    rows = [
        {
            "user": show_entity_name(entity.user),
            "client_id": show_entity_name(entity.client_id),
            "quota": name,
            "value": limit,
        }
        for entity, limits in tables.cluster().quotas.items()
        for name, limit in sorted(limits.items())
    ]
    return pa.Table.from_pylist(rows, QUOTAS)


def _offset(place: LogPlace | None) -> int | None:
    return None if place is None else place.offset


def _time(place: LogPlace | None) -> int | None:
    """Return the time in microseconds."""
    return None if place is None else place.timestamp_ms * 1_000


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
