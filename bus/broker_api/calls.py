"""Every call of the contract as one row: what it needs, where it is done, how it is audited, how large it may be.

The adapters of all protocols derive from this table what they do around a handler, and tests compare it with the
contract. What a call needs is Kafka's, call by call (its documentation, "Authorization of protocols"); a call that
Kafka does not have needs what the nearest of Kafka's calls does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.errors import ErrorCode
from bus.security.acls import AclOperation, AclResourceType

ITEMS_MAX = 20_000  # in one request, or in what another broker answers, at every depth
_SMALL, _USUAL, _LARGE = 64 * 1024, 4 * 1024 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """The permission to do `operation` on a resource of the type; without it the refusal is `code`. There is one object
    for each need, compared by identity."""

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
class Audited:
    """The row of the audit about each thing that a call changes: Kafka's operation, and the type of the thing."""

    operation: str
    resource_type: str


@dataclass(frozen=True, slots=True)
class Call:
    """Four kinds of needs. `needs`: of the request as a whole, in this order; each applies only where the request names
    a resource of its type. `item_needs`: of each item that the request names, all of them unless the API gives
    `need_of`, which chooses one; a refused item costs itself alone.
    `view_needs`: of each item of the answer; the answer leaves out what the caller may not see. `creation_needs`: of
    topics that the call creates on its way."""

    name: str
    handler: str  # a method of the adapter's handlers, as `subject.method`
    needs: tuple[Need, ...] = ()
    item_needs: tuple[Need, ...] = ()
    view_needs: tuple[Need, ...] = ()
    creation_needs: tuple[Need, ...] = ()
    is_forwarded: bool = False  # what only the controller can do of it, any broker sends there
    is_reading: bool = False  # it changes nothing that a restarted broker would have to find again
    audited: Audited | None = None  # None: it changes nothing for good, or only records and offsets
    items_max: int = ITEMS_MAX  # fewer where each item is a decision about the cluster, or has a long answer
    # What a broker takes for an answer of another one, who may be somebody else.
    answer_items_max: int = ITEMS_MAX
    answer_bytes_max: int = _USUAL


_CREATES_TOPICS, _DELETES_TOPICS, _ALTERS_TOPICS = (Audited(op, "Topic") for op in ("Create", "Delete", "Alter"))
_ALTERS_VIEWS = Audited("AlterConfigs", "View")
_DELETES_GROUPS = Audited("Delete", "Group")
_ALTERS_CLUSTER, _ALTERS_ACLS, _ALTERS_USERS = (Audited("Alter", kind) for kind in ("Cluster", "Acl", "User"))
_ALTERS_TRANSACTIONS = Audited("Alter", "TransactionalId")

_ROWS = (
    # ---------------------------------------------------------------- records
    Call(
        "Produce",
        "produce.stream",
        needs=(WRITE_TRANSACTIONAL_ID,),
        item_needs=(WRITE_TOPIC,),
    ),
    Call(
        "ProduceOnce",
        "produce.once",
        needs=(WRITE_TRANSACTIONAL_ID,),
        item_needs=(WRITE_TOPIC,),
    ),
    # A producer with a name is one with a transactional id as far as it is about the name.
    Call("InitProducerId", "producers.init", needs=(WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE), is_forwarded=True),
    Call("ResumeProducer", "producers.resume", item_needs=(WRITE_TOPIC,)),
    Call("Fetch", "fetch.stream", item_needs=(READ_TOPIC,), is_reading=True),
    Call("FetchOnce", "fetch.once", item_needs=(READ_TOPIC,), is_reading=True),
    Call("ListOffsets", "metadata.list_offsets", item_needs=(DESCRIBE_TOPIC,), is_reading=True),
    Call("DeleteRecords", "maintenance.delete_records", item_needs=(DELETE_TOPIC,), audited=_DELETES_TOPICS),
    Call("MaintainLog", "maintenance.maintain", needs=(ALTER_TOPIC,), audited=_ALTERS_TOPICS),
    Call("SwapFiles", "maintenance.swap_files", needs=(ALTER_TOPIC, WRITE_TOPIC), audited=_ALTERS_TOPICS),
    Call("DescribeLogDirs", "maintenance.describe_log_dirs", needs=(DESCRIBE_CLUSTER,), is_reading=True),
    # ---------------------------------------------------------------- groups
    Call("FindCoordinator", "find_coordinator", needs=(DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID), is_forwarded=True),
    Call("JoinGroup", "groups.join", needs=(READ_GROUP,)),
    Call("SyncGroup", "groups.sync", needs=(READ_GROUP,)),
    Call("Heartbeat", "groups.heartbeat", needs=(READ_GROUP,), is_reading=True),
    Call("LeaveGroup", "groups.leave", needs=(READ_GROUP,)),
    Call(
        "GroupSession",
        "group_sessions.stream",
        needs=(READ_GROUP,),
        item_needs=(READ_TOPIC,),
    ),
    Call("OffsetCommit", "groups.commit", needs=(READ_GROUP,), item_needs=(READ_TOPIC,)),
    Call(
        "OffsetFetch",
        "groups.fetch_offsets",
        item_needs=(DESCRIBE_GROUP,),
        view_needs=(DESCRIBE_TOPIC,),
        is_reading=True,
    ),
    Call(
        "OffsetDelete",
        "groups.delete_offsets",
        needs=(DELETE_GROUP,),
        item_needs=(READ_TOPIC,),
        audited=_DELETES_GROUPS,
    ),
    Call("ListGroups", "groups.list_groups", view_needs=(LIST_GROUP,), is_reading=True),
    Call("DescribeGroups", "groups.describe_groups", item_needs=(DESCRIBE_GROUP,), is_reading=True, items_max=1_000),
    Call("DeleteGroups", "groups.delete_groups", item_needs=(DELETE_GROUP,), audited=_DELETES_GROUPS, items_max=1_000),
    # ---------------------------------------------------------------- transactions
    Call(
        "TxnOffsetCommit",
        "transactions.commit_offsets",
        needs=(WRITE_TRANSACTIONAL_ID, READ_GROUP),
        item_needs=(READ_TOPIC,),
    ),
    Call("EndTxn", "transactions.end", needs=(WRITE_TRANSACTIONAL_ID,)),
    Call(
        "ListTransactions", "transactions.list_transactions", view_needs=(DESCRIBE_TRANSACTIONAL_ID,), is_reading=True
    ),
    # The view needs are of the topics and of the groups of each transaction.
    Call(
        "DescribeTransactions",
        "transactions.describe_transactions",
        item_needs=(DESCRIBE_TRANSACTIONAL_ID,),
        view_needs=(DESCRIBE_TOPIC, DESCRIBE_GROUP),
        is_reading=True,
    ),
    Call("DescribeProducers", "transactions.describe_producers", item_needs=(READ_TOPIC,), is_reading=True),
    Call("AbortTransaction", "transactions.abort", needs=(ALTER_CLUSTER,), audited=_ALTERS_TRANSACTIONS),
    Call("FenceProducers", "transactions.fence", item_needs=(WRITE_TRANSACTIONAL_ID,), audited=_ALTERS_TRANSACTIONS),
    # ---------------------------------------------------------------- topics, configs, views
    Call(
        "Metadata",
        "metadata.metadata",
        item_needs=(DESCRIBE_TOPIC,),
        view_needs=(DESCRIBE_TOPIC,),
        creation_needs=(CREATE_TOPIC,),
        is_forwarded=True,
        answer_items_max=300_000,  # replicas of all partitions
    ),
    Call(
        "CreateTopics",
        "metadata.create_topics",
        item_needs=(CREATE_TOPIC,),
        is_forwarded=True,
        audited=_CREATES_TOPICS,
        items_max=2_000,
    ),
    Call(
        "DeleteTopics",
        "metadata.delete_topics",
        item_needs=(DELETE_TOPIC,),
        is_forwarded=True,
        audited=_DELETES_TOPICS,
        items_max=1_000,
    ),
    Call(
        "CreatePartitions",
        "metadata.create_partitions",
        item_needs=(ALTER_TOPIC,),
        is_forwarded=True,
        audited=_ALTERS_TOPICS,
        items_max=1_000,
    ),
    Call(
        "DescribeConfigs",
        "metadata.describe_configs",
        item_needs=(DESCRIBE_CONFIGS_OF_TOPIC, DESCRIBE_CONFIGS_OF_CLUSTER),
        is_reading=True,
        items_max=1_000,
    ),
    Call(
        "AlterConfigs",
        "metadata.alter_configs",
        item_needs=(ALTER_CONFIGS_OF_TOPIC, ALTER_CONFIGS_OF_CLUSTER),
        is_forwarded=True,
        audited=Audited("AlterConfigs", "Topic"),
        items_max=2_000,
    ),
    Call(
        "CreateView", "metadata.create_view", needs=(ALTER_CONFIGS_OF_TOPIC,), is_forwarded=True, audited=_ALTERS_VIEWS
    ),
    Call(
        "DeleteView", "metadata.delete_view", needs=(ALTER_CONFIGS_OF_TOPIC,), is_forwarded=True, audited=_ALTERS_VIEWS
    ),
    Call("ListViews", "metadata.list_views", view_needs=(DESCRIBE_TOPIC,), is_reading=True),
    # ---------------------------------------------------------------- the cluster
    # The answer is the same for all.
    Call("ApiVersions", "cluster_admin.api_versions", is_reading=True),
    Call("DescribeCluster", "cluster_admin.describe", needs=(DESCRIBE_CLUSTER,), is_reading=True),
    Call(
        "ElectLeaders",
        "cluster_admin.elect_leaders",
        needs=(ALTER_CLUSTER,),
        is_forwarded=True,
        audited=_ALTERS_TOPICS,
        items_max=1_000,
    ),
    Call(
        "AlterPartitionReassignments",
        "cluster_admin.alter_reassignments",
        needs=(ALTER_CLUSTER,),
        is_forwarded=True,
        audited=_ALTERS_TOPICS,
        items_max=2_000,
    ),
    Call("ListPartitionReassignments", "cluster_admin.list_reassignments", needs=(DESCRIBE_CLUSTER,), is_reading=True),
    Call(
        "UnregisterBroker",
        "cluster_admin.unregister_broker",
        needs=(ALTER_CLUSTER,),
        is_forwarded=True,
        audited=_ALTERS_CLUSTER,
    ),
    Call(
        "UpdateFeatures",
        "cluster_admin.update_features",
        needs=(ALTER_CLUSTER,),
        is_forwarded=True,
        audited=_ALTERS_CLUSTER,
    ),
    # This one is gRPC's own: it describes the calls.
    Call("ServerReflectionInfo", "reflection", needs=(DESCRIBE_CLUSTER,), is_reading=True),
    # ---------------------------------------------------------------- users, quotas, ACLs
    # A caller gets its name by it.
    Call("SaslAuthenticate", "logins.authenticate", is_reading=True, answer_bytes_max=_SMALL),
    Call("DescribeUserScramCredentials", "users.describe", needs=(DESCRIBE_CLUSTER,), is_reading=True, items_max=1_000),
    Call("AlterUserScramCredentials", "users.alter", needs=(ALTER_CLUSTER,), audited=_ALTERS_USERS, items_max=1_000),
    Call("DescribeClientQuotas", "quotas.describe", needs=(DESCRIBE_CONFIGS_OF_CLUSTER,), is_reading=True),
    Call(
        "AlterClientQuotas",
        "quotas.alter",
        needs=(ALTER_CONFIGS_OF_CLUSTER,),
        is_forwarded=True,
        audited=Audited("AlterConfigs", "ClientQuota"),
        items_max=2_000,
    ),
    Call("DescribeQuotaUsage", "quotas.usage", needs=(DESCRIBE_CONFIGS_OF_CLUSTER,), is_reading=True),
    Call("CreateAcls", "acls.create", needs=(ALTER_CLUSTER,), is_forwarded=True, audited=_ALTERS_ACLS, items_max=1_000),
    Call("DescribeAcls", "acls.describe", needs=(DESCRIBE_CLUSTER,), is_reading=True),
    Call("DeleteAcls", "acls.delete", needs=(ALTER_CLUSTER,), is_forwarded=True, audited=_ALTERS_ACLS, items_max=100),
    # ---------------------------------------------------------------- between brokers
    Call("IdentifyBroker", "cluster.identify", needs=(CLUSTER_ACTION,), is_reading=True, answer_bytes_max=_SMALL),
    Call("RegisterBroker", "cluster.register", needs=(CLUSTER_ACTION,), answer_bytes_max=_SMALL),
    Call("BrokerHeartbeat", "cluster.heartbeat", needs=(CLUSTER_ACTION,)),
    Call("CommittedVersions", "cluster.committed_versions", needs=(CLUSTER_ACTION,), is_reading=True),
    Call("RaiseLeaderEpoch", "cluster.raise_leader_epoch", needs=(CLUSTER_ACTION,), answer_bytes_max=_SMALL),
    Call("AddPartitionsToTxn", "transactions.add", needs=(CLUSTER_ACTION,), answer_bytes_max=_SMALL),
    Call("VoteTransaction", "transactions.vote", needs=(CLUSTER_ACTION,)),
    Call("ApplyTransaction", "transactions.apply", needs=(CLUSTER_ACTION,)),
    Call("DropTransaction", "transactions.drop", needs=(CLUSTER_ACTION,)),
    Call("CommitTransaction", "transactions.commit", needs=(CLUSTER_ACTION,)),
    Call("ResolveTransaction", "transactions.resolve", needs=(CLUSTER_ACTION,)),
    Call("FindNeeded", "transactions.find_needed", needs=(CLUSTER_ACTION,), is_reading=True),
    Call("AppendAudit", "cluster.append_audit", needs=(CLUSTER_ACTION,), answer_bytes_max=_SMALL),
    Call("Envelope", "cluster.envelope", needs=(CLUSTER_ACTION,), answer_bytes_max=_LARGE),
)

CALLS: Mapping[str, Call] = {call.name: call for call in _ROWS}
assert len(CALLS) == len(_ROWS), "expected one row for each call"
