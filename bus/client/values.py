"""Values that the SDK returns to its users: small and immutable, no behaviour, no connection to a broker.

Times are milliseconds since the epoch. `ConsumerRecord` is a named tuple because a consumer builds hundreds of
thousands of them a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bus.client.arguments import (
    INT_64_MAX,
    check_configs,
    check_integer,
    check_items,
    check_text,
    check_topic,
    wrong_type,
)
from bus.model import TimestampType, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]
NO_HEADERS: Headers = ()


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The place of a record in its partition. With acks=all it is a row of the partition's Delta table from `version`
    on.

    `offset` is -1 with acks=0, and where a producer learnt only after a failure that the record is in the log;
    `version` is -1 unless acks=all.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    version: int


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """The place of a run of records: offsets `base_offset` up to, but not including, `base_offset + record_count`.

    `timestamp_ms` is the timestamp of all of them, or -1 if each brought its own.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    timestamp_ms: int
    version: int

    def with_timestamp(self, timestamp_ms: int) -> BatchMetadata:
        return replace(self, timestamp_ms=timestamp_ms)


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: Any  # bytes or None, unless there is a key_deserializer
    value: Any
    headers: Headers
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: that of the next record to read. `leader_epoch` of the last record read; -1: not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def check_committed(name: str, value: Any) -> OffsetAndMetadata:
    """An offset to commit, bare or with metadata."""
    committed = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    check_integer(name, committed.offset, 0, INT_64_MAX)
    check_text(f"the metadata of {name}", committed.metadata)
    check_integer(f"the leader epoch of {name}", committed.leader_epoch, -1)
    return committed


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The identity of a consumer in its group; `generation` -1 and no `member_id`: it is no member."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """The place of a transaction's rows in a partition: in one version of its table, from `base_offset` on, dense."""

    version: int
    base_offset: int


# Names of other clients for arguments of NewTopic, and arguments that do not exist here.
_NOT_OF_NEW_TOPIC = {
    "num_partitions": "the argument is partitions",
    "partition_count": "the argument is partitions",
    "replica_assignments": "the argument is replica_assignment",
    "topic_configs": "the argument is configs",
    "config": "the argument is configs",
    "topic": "the argument is name",
}


@dataclass(frozen=True, slots=True, init=False)
class NewTopic:
    """`partitions` None: the broker's `num.partitions`. Config values are written as Kafka writes them; True is
    "true", numbers are decimal. Raises `BusError` INVALID_REQUEST for what is no topic at all.

    `replication_factor`: how many brokers follow each partition; None: `default.replication.factor`, or all if there
    are fewer. `replica_assignment`, instead of both numbers: the broker ids of each partition, in the order of their
    numbers, the preferred leader first."""

    name: str
    partitions: int | None
    configs: Mapping[str, object]
    replication_factor: int | None
    replica_assignment: Sequence[Sequence[int]]

    def __init__(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, object] | None = None,
        replication_factor: int | None = None,
        replica_assignment: Sequence[Sequence[int]] = (),
        **others: object,
    ) -> None:
        for other, value in others.items():
            hint = _NOT_OF_NEW_TOPIC.get(other, "there is no such argument")
            raise wrong_type(f"name, partitions, configs and replicas of a NewTopic, not {other}", value, hint)
        configs = {} if configs is None else configs
        object.__setattr__(self, "name", check_topic(name))
        object.__setattr__(self, "partitions", None if partitions is None else check_integer("partitions", partitions))
        check_configs("configs", configs)
        object.__setattr__(self, "configs", configs)
        if replication_factor is not None:
            check_integer("replication_factor", replication_factor, 1)
        object.__setattr__(self, "replication_factor", replication_factor)
        assigned = check_items("replica_assignment", replica_assignment, check_broker_ids, "lists of broker ids")
        object.__setattr__(self, "replica_assignment", tuple(assigned))


def check_broker_ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(check_items(name, value, check_integer, "broker ids"))


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
    """`error` is None unless the partition cannot be served; then it says why. `replicas`: the brokers that are to
    lead it, the preferred one first. `isr`: those of them that are in sync: they are not fenced and keep up.
    `is_offline`: the broker that leads it is fenced."""

    partition: int
    leader_id: int
    leader_epoch: int
    error: str | None = None
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


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The entity of a quota (KIP-546): a user, a client id, or both; `DEFAULT_NAME` for all without a quota of their
    own."""

    user: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """The use of a quota at one broker by all that share it, per second."""

    broker_id: int
    entity: QuotaEntity
    quota: str
    limit: float
    rate: float
    throttle_time_ms: int  # the time until the next request is accepted without delay


DEFAULT_NAME = "<default>"
ANY_NAME = "<any>"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`protocol_type` is empty for a group of which only offsets are kept."""

    group_id: str
    protocol_type: str
    state: str  # PreparingRebalance, CompletingRebalance, Stable or Empty


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`topics` and `partitions` are known for members of the protocol type "consumer" alone."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]  # that it subscribes to
    partitions: tuple[TopicPartition, ...]  # that it is given, sorted


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


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A partition on a broker that leads or follows it. All brokers share the root, so only the leader's has bytes: of
    all files in the folder of the table, and of those that the last version does not have and cleaning will delete.
    None: not known, since the leader cannot open the table. `error`: its folder cannot be read."""

    is_leader: bool
    size_bytes: int
    file_count: int
    reclaimable_bytes: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """The root, as a broker sees it (KIP-113, KIP-827): how large its volume is, and what the broker may still write
    there; None: not known. `error`: the volume does not answer."""

    total_bytes: int | None
    usable_bytes: int | None
    replica_infos: Mapping[TopicPartition, ReplicaInfo]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """`mechanism`: SCRAM-SHA-256 or SCRAM-SHA-512."""

    mechanism: str
    iterations: int = 4_096


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A user's new password for one mechanism. It is salted here, and does not leave the client. `salt`: random, unless
    one is given."""

    user: str
    credential: ScramCredentialInfo
    password: str = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    user: str
    mechanism: str
