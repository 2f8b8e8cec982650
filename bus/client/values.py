"""Values that the SDK returns to its users: small and immutable, no behaviour, no connection to a broker. What
both sides show of a cluster is in `bus/descriptions.py`.

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
from bus.descriptions import ScramCredentialInfo
from bus.model import TimestampType

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
