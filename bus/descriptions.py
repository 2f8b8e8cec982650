"""Descriptions of a cluster that brokers and clients share: brokers, topics, groups, transactions, quotas, users.

Small immutable values. A broker fills them in, `bus.grpc_api.value_messages` carries them, and `Admin` hands them to
its callers: each is one value on both sides. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bus.errors import Refused
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A fenced broker leads nothing, unless no broker is unfenced. `broker_epoch` and `incarnation_id` tell the lives
    of a broker apart; `feature_levels`: from and to which level of `bus.version` it can work."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    broker_epoch: int
    incarnation_id: str
    leader_count: int
    replica_count: int
    feature_levels: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`root_url`: where the tables are, for readers that open them without a broker. `controller_id` is -1 while there
    is none. `feature_level`: of `bus.version`; 0: a root of one broker. The last two are numbers of partitions, see
    `PartitionDescription`."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerDescription, ...]  # ordered by id
    root_url: str
    controller_epoch: int
    feature_level: int
    under_replicated_partitions: int
    offline_partitions: int


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """One that is under way: `replicas` with those that come and those that go."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`error`: why the partition cannot be used, None if it can. `replicas`: the brokers that are to
    lead it, the preferred one first. `isr`: those of them that are in sync: they are not fenced and keep up.
    `is_offline`: the broker that leads it is fenced."""

    partition: int
    leader_id: int
    leader_epoch: int
    error: Refused | None = None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    is_offline: bool = False

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    name: str
    value: str
    default_value: str
    is_default: bool
    is_read_only: bool
    type: str
    valid_values: str
    documentation: str


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The answer to a question for an offset: -1 if there is no such record. `version` is the Delta version at which
    it was answered."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    version: int


class NoName(Enum):
    """A stand-in for a name in the entity of a quota. A user may be named "<default>", so no name equals one of
    these."""

    DEFAULT = "<default>"
    ANY = "<any>"

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__


DEFAULT_NAME: Final = NoName.DEFAULT  # all names that have no quota of their own
ANY_NAME: Final = NoName.ANY  # in a filter: every name, and the default
EntityName = str | NoName | None  # None: the entity has no such part


def show_entity_name(name: EntityName) -> str | None:
    """Write the name where a listing has a column for it."""
    return name.value if isinstance(name, NoName) else name


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The entity of a quota (KIP-546): a user, a client id, or both, each by its name or by `DEFAULT_NAME`."""

    user: EntityName = None
    client_id: EntityName = None

    def __str__(self) -> str:
        """Format the entity as Kafka's command prints it."""
        return ", ".join(
            f"the default {what}" if name is DEFAULT_NAME else f"{what} '{name}'"
            for what, name in (("user-principal", self.user), ("client-id", self.client_id))
            if name is not None
        )


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """The use of a quota at one broker by all that share it, per second. `entity` has names only."""

    broker_id: int
    entity: QuotaEntity
    quota: str
    limit: float
    rate: float
    throttle_time_ms: int  # the time until the next request is accepted without delay


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`protocol_type` is empty for a group of which only offsets are kept."""

    group_id: str
    protocol_type: str
    state: str  # PreparingRebalance, CompletingRebalance, Stable or Empty


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`metadata` and `assignment`: the bytes of the member and of the group's leader, as they sent them. What they say,
    `topics` and `partitions`, is known for members of the protocol type "consumer" alone."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]  # that it subscribes to
    partitions: tuple[TopicPartition, ...]  # that it is given; clients have them sorted
    metadata: bytes = field(default=b"", repr=False)
    assignment: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets that an open transaction has committed; they count once the transaction is committed."""

    producer_id: int
    producer_epoch: int
    offset_count: int
    commit_ms: int  # the time of the last commit


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol: str  # the assignor; empty while there is no member
    generation: int
    leader_id: str
    coordinator: BrokerInfo
    members: tuple[MemberDescription, ...]
    pending_offsets: tuple[PendingOffsets, ...] = ()

    @property
    def is_active(self) -> bool:
        """It has members, or is waiting for some: only they may commit."""
        return self.state not in ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """`state`: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort; Unreadable: the record of
    the id cannot be read, and only fencing it gives it up."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, and its transaction if one is open: then `start_ms` says since when, else it is -1, and there
    are no partitions and groups. `producer_epoch`: of the producer's next transaction once one is decided."""

    transactional_id: str
    coordinator: BrokerInfo
    coordinator_partition: int  # the partition of __transaction_state
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    update_ms: int
    number: int  # grows by one with each transaction of the id
    partitions: tuple[TopicPartition, ...]  # sorted
    group_ids: tuple[str, ...]

    @property
    def open_epoch(self) -> int:
        """The epoch in the rows of the open transaction, -1 if none is open. The decision raises the epoch."""
        match self.state:
            case "Ongoing":
                return self.producer_epoch
            case "PrepareCommit" | "PrepareAbort":
                return self.producer_epoch - 1
            case _:
                return -1


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a producer id and epoch in a partition. `coordinator_partition`: the partition of
    `__transaction_state`, if it describes staged batches that are no rows yet; None: the records are in the log.
    `last_timestamp_ms`: when the last of them arrived."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_partition: int | None
    staged_bytes: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """Batches that are staged in a partition, or offsets that are pending in a group, for a transaction that is not
    open; `staged_bytes` and `offset_count` say how many."""

    producer_id: int
    producer_epoch: int
    partition: TopicPartition | None  # None: offsets of a group
    group_id: str | None
    last_timestamp_ms: int  # when the last of it came
    staged_bytes: int = 0
    offset_count: int = 0


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The identity that the next instance would have; what has a lower epoch is refused."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of the next record to read. `leader_epoch` is that of the last record read; -1: not known."""

    offset: int
    metadata: str
    leader_epoch: int
    commit_ms: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """`low_watermark` is the log start now: no reader of the bus sees a record below it. `version` is the Delta version
    that says so."""

    low_watermark: int
    version: int


@dataclass(frozen=True, slots=True)
class MaintainedLog:
    """The result of manual maintenance of one partition, also if there was nothing to do."""

    partition: int
    version: int  # the version of the table afterwards
    files_before: int  # live data files
    files_after: int
    bytes_before: int  # their size
    bytes_after: int
    rewritten_bytes: int  # that were rewritten
    log_start: int
    dropped_versions: int
    deleted_files: int  # data files that are gone from the storage
    deleted_bytes: int
    is_managed: bool = False  # no other Delta engine may write to the table


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A partition on a broker that leads or follows it. All brokers share the root, so only the leader's has bytes: of
    all files in the folder of the table, and of those that the last version does not have and cleaning will delete.
    None: not known, since the leader cannot open the table. `error`: why its folder cannot be read."""

    is_leader: bool
    size_bytes: int
    file_count: int
    reclaimable_bytes: int | None
    error: Refused | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """The root, as a broker sees it (KIP-113, KIP-827): how large its volume is, and what the broker may still write
    there; None: not known. `error`: why the volume does not answer."""

    total_bytes: int | None
    usable_bytes: int | None
    replica_infos: Mapping[TopicPartition, ReplicaInfo]
    error: Refused | None = None


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """`mechanism`: SCRAM-SHA-256 or SCRAM-SHA-512."""

    mechanism: str
    iterations: int = 4_096
