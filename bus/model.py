"""Values that every part of the bus speaks of: partitions, batches of records, brokers.

Nothing here does I/O or knows a library. A batch's `columns` are Arrow data, opaque to the rules: they see counts,
sizes and timestamps only, so the hot path never touches a single record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bus.addresses import format_address

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3

INTERNAL_TOPIC_PREFIX = "__"
CONSUMER_PROTOCOL_TYPE = "consumer"  # of groups whose members share out partitions
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
AUDIT_TOPIC = "__audit"
ROOT_MARKER = "bus-root.json"  # identifies the root of a bus for readers
GROUP_PLACEMENT = "group.placement"  # kept with that topic: how a group's id leads to its partition


class TimestampType(IntEnum):
    """The clock that gave a record its timestamp. The numbers are stored in the column `timestamp_type`."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class TopicPartition(NamedTuple):  # a tuple, as it is made and looked up for each partition of each request
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Sequences of an idempotent producer are 31 bits wide; after the largest comes 0, as in Kafka.
SEQUENCE_MODULUS = 2**31


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records after `sequence`."""
    return (sequence + count) % SEQUENCE_MODULUS


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """The identity of an idempotent producer's batch: the record at position p has the sequence
    `sequence_after(base_sequence, p)`. Unique in a partition: (producer_id, producer_epoch, sequence)."""

    producer_id: int  # >= 0
    producer_epoch: int  # 0 .. 2**15 - 1
    base_sequence: int  # 0 .. 2**31 - 1


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records on their way into one partition, in order; they have no offsets yet.

    `columns` is a `pyarrow.RecordBatch` with `value` and, if given, `key`, `headers`, `timestamp`, each of the
    log's type; a column that is absent is null in every row, but for `timestamp`: absent, every record has
    `timestamp_min_ms` (== `timestamp_max_ms`). Timestamps are never null. Only adapters look into `columns`.

    `producer` None: not of an idempotent producer. A column `sequence`, if there is one, beats its `base_sequence`:
    what is left of a batch of which the table has a part.
    """

    record_count: int  # > 0
    size_bytes: int  # the size of all Arrow buffers
    record_bytes_max: int  # key + value + headers of the largest record
    timestamp_min_ms: int
    timestamp_max_ms: int
    has_timestamps: bool  # the column `timestamp` is in `columns`
    columns: Any
    producer: ProducerStamp | None = None
    keyless_count: int = 0  # records whose key is null


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Records that have their place: offsets `base_offset` up to, but not including, `next_offset`.

    `timestamp_ms`, where it is given, counts for every record, also if `columns` has timestamps. Else `columns` follows
    the rule of the log on the wire: a column of the log that is not there has, for every record, the value given here:
    offset = base_offset + position, `timestamp_type`, `leader_epoch`, those of `producer`; key and headers that are
    absent are null, and so are producer_id, producer_epoch and sequence if `producer` is None. The column `offset` is
    there if the offsets are not dense (compaction).
    """

    base_offset: int
    next_offset: int  # one past the last offset
    record_count: int  # 0 < record_count <= next_offset - base_offset
    size_bytes: int
    leader_epoch: int
    timestamp_type: TimestampType
    timestamp_ms: int | None  # the timestamp of every record, or None: the column `timestamp` is in `columns`
    timestamp_max_ms: int
    columns: Any  # pyarrow.RecordBatch
    producer: ProducerStamp | None = None


SSL = "SSL"  # a protocol
SASL_PLAINTEXT = "SASL_PLAINTEXT"  # a protocol
SASL_SSL = "SASL_SSL"  # a protocol
SASL_PROTOCOLS = (SASL_PLAINTEXT, SASL_SSL)
TLS_PROTOCOLS = (SSL, SASL_SSL)
PLAINTEXT = "PLAINTEXT"  # a protocol, and the name of the listener of a broker that names none


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """The address that clients of one listener of a broker connect to."""

    name: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The address of a broker for other brokers, and for clients if PLAINTEXT is its only listener. Otherwise
    `listeners` has all of them."""

    broker_id: int
    host: str
    port: int
    listeners: tuple[ListenerAddress, ...] = ()

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    def at(self, listener: str) -> BrokerEndpoint | None:
        """Return the endpoint for the clients of that listener; None if the broker has no such listener."""
        if not self.listeners:
            return self if listener == PLAINTEXT else None
        for one in self.listeners:
            if one.name == listener:
                return BrokerEndpoint(self.broker_id, one.host, one.port)
        return None


@dataclass(frozen=True, slots=True)
class InlinePem:
    """PEM that is the value of a setting, in place of a file (KIP-651). `str()` is the name of the setting."""

    setting: str
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.setting


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """`certificate`: the own one and those between it and its authority, in this order. `key`: its private key; it may
    be the same file. `trusted`: certificates of the authorities. `certificate` and `key` come together or are None."""

    certificate: Path | InlinePem | None = None
    key: Path | InlinePem | None = None
    trusted: Path | InlinePem | None = None
    password: str | None = field(default=None, repr=False)  # the password of the key


@dataclass(frozen=True, slots=True)
class NameChanges:
    """The names that may change when another certificate replaces the one in use: the subject, alternative names
    (KIP-978). Alternative names may always be added."""

    of_subject: bool = False
    of_alternatives: bool = False


ANY_NAMES = NameChanges(of_subject=True, of_alternatives=True)


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """The process of a broker, as it names itself in the lock of its id."""

    broker_id: int
    address: str
    pid: int

    def __str__(self) -> str:
        return f"broker {self.broker_id} at {self.address}, pid {self.pid}"

    @staticmethod
    def parse(text: str) -> RunningBroker | None:
        """None for anything that is not the text of one."""
        found = _RUNNING_BROKER.fullmatch(text)
        return None if found is None else RunningBroker(int(found[1]), found[2], int(found[3]))


_RUNNING_BROKER = re.compile(r"broker ([0-9]+) at (.+), pid ([0-9]+)")


# The range of an appended record's timestamp: 1970-01-01 to 9999-12-30, in UTC. Every reader shows these in every time
# zone; years of five digits crash some (Python's datetime), and the log's microseconds wrap beyond the stored ones.
TIMESTAMP_MS_MAX = 253_402_214_399_999
TIMESTAMP_STORED_MS_MIN, TIMESTAMP_STORED_MS_MAX = -(2**63 // 1000) + 1, 2**63 // 1000 - 1


RecordT = TypeVar("RecordT", covariant=True)
ResponseT = TypeVar("ResponseT", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[RecordT, ResponseT]):
    """The result of a decision: `records` have to be durable and applied, in order, before `response` is sent."""

    response: ResponseT
    records: Sequence[RecordT] = ()
