"""What a caller has to be allowed for each call of the contract: one table for the adapters of all protocols.

It is Kafka's, call by call (its documentation, "Authorization of protocols"); calls that Kafka does not have need what
the nearest of Kafka's calls does. A call without a row is refused by `rule_of`, and a test compares the table with the
contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.authorization.acls import AclOperation, AclResourceType
from bus.errors import ErrorCode


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """To be allowed `operation` on a resource of the type; else the refusal is `code`. There is one object for each
    need, compared by identity."""

    operation: AclOperation
    resource_type: AclResourceType
    code: ErrorCode
    instead: Need | None = None  # is enough: on the cluster, whichever resource is named
    or_on_any: Need | None = None  # is enough: on any resource of that type (KIP-679)


_Op, _Type = AclOperation, AclResourceType


def _on_topic(operation: AclOperation, instead: Need | None = None) -> Need:
    return Need(operation, _Type.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, instead)


def _on_group(operation: AclOperation, instead: Need | None = None) -> Need:
    return Need(operation, _Type.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, instead)


def _on_cluster(operation: AclOperation, or_on_any: Need | None = None) -> Need:
    return Need(operation, _Type.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, or_on_any=or_on_any)


def _on_transactional_id(operation: AclOperation) -> Need:
    return Need(operation, _Type.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


ALTER_CLUSTER = _on_cluster(_Op.ALTER)
ALTER_CONFIGS_OF_CLUSTER = _on_cluster(_Op.ALTER_CONFIGS)
CLUSTER_ACTION = _on_cluster(_Op.CLUSTER_ACTION)
CREATE_ON_CLUSTER = _on_cluster(_Op.CREATE)
DESCRIBE_CLUSTER = _on_cluster(_Op.DESCRIBE)
DESCRIBE_CONFIGS_OF_CLUSTER = _on_cluster(_Op.DESCRIBE_CONFIGS)
ALTER_TOPIC = _on_topic(_Op.ALTER)
ALTER_CONFIGS_OF_TOPIC = _on_topic(_Op.ALTER_CONFIGS)
CREATE_TOPIC = _on_topic(_Op.CREATE, instead=CREATE_ON_CLUSTER)
DELETE_TOPIC = _on_topic(_Op.DELETE)
DESCRIBE_TOPIC = _on_topic(_Op.DESCRIBE)
DESCRIBE_CONFIGS_OF_TOPIC = _on_topic(_Op.DESCRIBE_CONFIGS)
READ_TOPIC = _on_topic(_Op.READ)
WRITE_TOPIC = _on_topic(_Op.WRITE)
IDEMPOTENT_WRITE = _on_cluster(_Op.IDEMPOTENT_WRITE, or_on_any=WRITE_TOPIC)
DELETE_GROUP = _on_group(_Op.DELETE)
DESCRIBE_GROUP = _on_group(_Op.DESCRIBE)
LIST_GROUP = _on_group(_Op.DESCRIBE, instead=DESCRIBE_CLUSTER)
READ_GROUP = _on_group(_Op.READ)
DESCRIBE_TRANSACTIONAL_ID = _on_transactional_id(_Op.DESCRIBE)
WRITE_TRANSACTIONAL_ID = _on_transactional_id(_Op.WRITE)


@dataclass(frozen=True, slots=True)
class CallRule:
    """`request`: of the request as a whole, in this order; each applies only where the request names a resource of its
    type. `items`: of each item that the request names; one that is refused costs itself alone. `shown`: of each item of
    the answer; what may not be seen is left out. `created`: of topics that the call creates by the way."""

    request: tuple[Need, ...] = ()
    items: tuple[Need, ...] = ()
    shown: tuple[Need, ...] = ()
    created: tuple[Need, ...] = ()


_BETWEEN_BROKERS = CallRule(request=(CLUSTER_ACTION,))
_ALTERS_CLUSTER = CallRule(request=(ALTER_CLUSTER,))
_DESCRIBES_CLUSTER = CallRule(request=(DESCRIBE_CLUSTER,))
_OF_MEMBER = CallRule(request=(READ_GROUP,))
_PRODUCE = CallRule(request=(WRITE_TRANSACTIONAL_ID,), items=(WRITE_TOPIC,))
_FETCH = CallRule(items=(READ_TOPIC,))

CALL_RULES: Mapping[str, CallRule] = {
    "Produce": _PRODUCE,
    "ProduceOnce": _PRODUCE,
    # A producer with a name is one with a transactional id as far as it is about the name.
    "InitProducerId": CallRule(request=(WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE)),
    "ResumeProducer": CallRule(items=(WRITE_TOPIC,)),
    "Fetch": _FETCH,
    "FetchOnce": _FETCH,
    "FindCoordinator": CallRule(request=(DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID)),
    "JoinGroup": _OF_MEMBER,
    "SyncGroup": _OF_MEMBER,
    "Heartbeat": _OF_MEMBER,
    "LeaveGroup": _OF_MEMBER,
    "OffsetCommit": CallRule(request=(READ_GROUP,), items=(READ_TOPIC,)),
    "OffsetFetch": CallRule(items=(DESCRIBE_GROUP,), shown=(DESCRIBE_TOPIC,)),
    "OffsetDelete": CallRule(request=(DELETE_GROUP,), items=(READ_TOPIC,)),
    "ListGroups": CallRule(shown=(LIST_GROUP,)),
    "DescribeGroups": CallRule(items=(DESCRIBE_GROUP,)),
    "DeleteGroups": CallRule(items=(DELETE_GROUP,)),
    "GroupSession": CallRule(request=(READ_GROUP,), items=(READ_TOPIC,)),
    "TxnOffsetCommit": CallRule(request=(WRITE_TRANSACTIONAL_ID, READ_GROUP), items=(READ_TOPIC,)),
    "EndTxn": CallRule(request=(WRITE_TRANSACTIONAL_ID,)),
    "ListTransactions": CallRule(shown=(DESCRIBE_TRANSACTIONAL_ID,)),
    # Of a transaction its topics and its groups.
    "DescribeTransactions": CallRule(items=(DESCRIBE_TRANSACTIONAL_ID,), shown=(DESCRIBE_TOPIC, DESCRIBE_GROUP)),
    "DescribeProducers": CallRule(items=(READ_TOPIC,)),
    "AbortTransaction": _ALTERS_CLUSTER,
    "FenceProducers": CallRule(items=(WRITE_TRANSACTIONAL_ID,)),
    "ListOffsets": CallRule(items=(DESCRIBE_TOPIC,)),
    "Metadata": CallRule(items=(DESCRIBE_TOPIC,), shown=(DESCRIBE_TOPIC,), created=(CREATE_TOPIC,)),
    "CreateTopics": CallRule(items=(CREATE_TOPIC,)),
    "DeleteTopics": CallRule(items=(DELETE_TOPIC,)),
    "CreatePartitions": CallRule(items=(ALTER_TOPIC,)),
    "DescribeConfigs": CallRule(items=(DESCRIBE_CONFIGS_OF_TOPIC, DESCRIBE_CONFIGS_OF_CLUSTER)),
    "AlterConfigs": CallRule(items=(ALTER_CONFIGS_OF_TOPIC, ALTER_CONFIGS_OF_CLUSTER)),
    "DeleteRecords": CallRule(items=(DELETE_TOPIC,)),
    "MaintainLog": CallRule(request=(ALTER_TOPIC,)),
    "SwapFiles": CallRule(request=(ALTER_TOPIC, WRITE_TOPIC)),
    "CreateView": CallRule(request=(ALTER_CONFIGS_OF_TOPIC,)),
    "DeleteView": CallRule(request=(ALTER_CONFIGS_OF_TOPIC,)),
    "ListViews": CallRule(shown=(DESCRIBE_TOPIC,)),
    "DescribeCluster": _DESCRIBES_CLUSTER,
    "ElectLeaders": _ALTERS_CLUSTER,
    "AlterPartitionReassignments": _ALTERS_CLUSTER,
    "ListPartitionReassignments": _DESCRIBES_CLUSTER,
    "DescribeUserScramCredentials": _DESCRIBES_CLUSTER,
    "AlterUserScramCredentials": _ALTERS_CLUSTER,
    "DescribeClientQuotas": CallRule(request=(DESCRIBE_CONFIGS_OF_CLUSTER,)),
    "AlterClientQuotas": CallRule(request=(ALTER_CONFIGS_OF_CLUSTER,)),
    "DescribeQuotaUsage": CallRule(request=(DESCRIBE_CONFIGS_OF_CLUSTER,)),
    "CreateAcls": _ALTERS_CLUSTER,
    "DescribeAcls": _DESCRIBES_CLUSTER,
    "DeleteAcls": _ALTERS_CLUSTER,
    "UnregisterBroker": _ALTERS_CLUSTER,
    "UpdateFeatures": _ALTERS_CLUSTER,
    "ServerReflectionInfo": _DESCRIBES_CLUSTER,  # gRPC's own: what the calls are
    "ApiVersions": CallRule(),  # which is the same for all
    "SaslAuthenticate": CallRule(),  # by which a caller comes to have a name
    "IdentifyBroker": _BETWEEN_BROKERS,
    "RegisterBroker": _BETWEEN_BROKERS,
    "BrokerHeartbeat": _BETWEEN_BROKERS,
    "CommittedVersions": _BETWEEN_BROKERS,
    "RaiseLeaderEpoch": _BETWEEN_BROKERS,
    "AddPartitionsToTxn": _BETWEEN_BROKERS,
    "VoteTransaction": _BETWEEN_BROKERS,
    "ApplyTransaction": _BETWEEN_BROKERS,
    "DropTransaction": _BETWEEN_BROKERS,
    "CommitTransaction": _BETWEEN_BROKERS,
    "ResolveTransaction": _BETWEEN_BROKERS,
    "FindNeeded": _BETWEEN_BROKERS,
    "AppendAudit": _BETWEEN_BROKERS,
    "Envelope": _BETWEEN_BROKERS,
}
