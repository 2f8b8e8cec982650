"""The records of `__transaction_state`, and their form as keyed rows of that log.

Guards two promises: what was written is what is read back, for ever; and all records of a transactional id have one
key, so that key compaction keeps its last one, which tells all that is durable of it. Rows come from disk, so decoding
checks and never asserts. The key is the transactional id in UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from bus.ports import KeyedRow
from bus.records.struct_fields import StructFields
from bus.settings.keys import INT_MAX, LONG_MAX
from bus.transactions.state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIME,
    PRODUCER_EPOCH_MAX,
    AbortCause,
    AppliedRows,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)

EnumT = TypeVar("EnumT", bound=Enum)

_TYPE = "TransactionLogged"
_NO_ROWS = AppliedRows(-1, -1)
_ROW_BYTES = 200  # fields of a fixed size and short names
_ITEM_BYTES = 120  # a topic's name and id, or a group's id, and numbers
_KEY_BYTES_IN_ERROR = 200  # the length of an unreadable key in an error


@dataclass(frozen=True, slots=True)
class TransactionLogged:
    """The durable part of a transactional id after a change; the fields are those of `Transaction`."""

    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    update_ms: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    partitions: Mapping[TransactionPartition, int] = field(default_factory=dict)
    groups: tuple[TransactionGroup, ...] = ()
    start_ms: int = NO_TIME
    abort_cause: AbortCause | None = None
    results: Mapping[TransactionPartition, AppliedRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionExpired:
    """A tombstone: the id is forgotten."""

    transactional_id: str


LoggedRecord = TransactionLogged | TransactionExpired
LOGGED = (TransactionLogged, TransactionExpired)  # for isinstance


def encode_record(record: LoggedRecord) -> KeyedRow:
    key = record.transactional_id.encode()
    return KeyedRow(key, None if isinstance(record, TransactionExpired) else _encode(record))


def decode_record(row: KeyedRow) -> LoggedRecord:
    """Raises `ValueError`, which says what was found, for a row that this version cannot read."""
    transactional_id = decode_key(row.key)
    if row.value is None:
        return TransactionExpired(transactional_id)
    record = _decode(StructFields(row.value, _TYPE))
    if record.transactional_id != transactional_id:
        raise ValueError(
            f"{_TYPE}: expected transactional id {transactional_id}, as its key says, found {record.transactional_id}"
        )
    _check(record)
    return record


def decode_key(key: bytes) -> str:
    """The transactional id. Raises `ValueError` as `decode_record` does."""
    try:
        transactional_id = key.decode()
    except UnicodeDecodeError:
        transactional_id = ""
    if not transactional_id:
        raise ValueError(f"expected a transactional id as the key, found {key[:_KEY_BYTES_IN_ERROR]!r}")
    return transactional_id


def approximate_bytes(record: LoggedRecord) -> int:
    """About what the record takes in memory and in a commit, without encoding it."""
    if isinstance(record, TransactionExpired):
        return _ROW_BYTES
    return _ROW_BYTES + (len(record.partitions) + len(record.groups)) * _ITEM_BYTES


def _encode(record: TransactionLogged) -> dict[str, Any]:
    """Encode a record. Absent numbers are -1 and not null: the record of a transaction that ends is as large as its
    record before, so a transaction that has begun is not stopped by a bound on the size of records."""
    return {
        "type": _TYPE,
        "transactional_id": record.transactional_id,
        "number": record.number,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "last_producer_epoch": record.last_producer_epoch,
        "previous_producer_id": record.previous_producer_id,
        "timeout_ms": record.timeout_ms,
        "state": record.state.value,
        "abort_cause": None if record.abort_cause is None else record.abort_cause.value,
        "partitions": [
            _encode_partition(partition, last_sequence, record.results.get(partition, _NO_ROWS))
            for partition, last_sequence in record.partitions.items()
        ],
        "groups": [
            {"group_id": group.group_id, "offsets_partition": group.offsets_partition} for group in record.groups
        ],
        "start_ms": record.start_ms,
        "update_ms": record.update_ms,
    }


def _encode_partition(partition: TransactionPartition, last_sequence: int, rows: AppliedRows) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "last_sequence": last_sequence,
        "version": rows.version,
        "base_offset": rows.base_offset,
    }


def _decode(fields: StructFields) -> TransactionLogged:
    items = [_decode_partition(item) for item in fields.structs("partitions", "a partition")]
    cause = fields.text_or_none("abort_cause")
    return TransactionLogged(
        fields.text("transactional_id"),
        fields.long("number"),
        fields.long("producer_id"),
        fields.integer("producer_epoch", high=PRODUCER_EPOCH_MAX + 1),
        fields.integer("timeout_ms"),
        _named(TransactionState, "state", fields.text("state")),
        fields.long("update_ms"),
        fields.integer("last_producer_epoch", low=NO_PRODUCER_EPOCH, high=PRODUCER_EPOCH_MAX),
        fields.integer("previous_producer_id", low=NO_PRODUCER_ID, high=LONG_MAX),
        {partition: last_sequence for partition, last_sequence, _ in items},
        tuple(
            TransactionGroup(group.text("group_id"), group.integer("offsets_partition"))
            for group in fields.structs("groups", "a group")
        ),
        fields.integer("start_ms", low=NO_TIME, high=LONG_MAX),
        None if cause is None else _named(AbortCause, "abort_cause", cause),
        {partition: rows for partition, _, rows in items if rows != _NO_ROWS},
    )


def _decode_partition(fields: StructFields) -> tuple[TransactionPartition, int, AppliedRows]:
    return (
        TransactionPartition(fields.text("topic"), fields.text("topic_id"), fields.integer("partition")),
        fields.integer("last_sequence", low=NO_SEQUENCE, high=INT_MAX),
        AppliedRows(
            fields.integer("version", low=-1, high=LONG_MAX), fields.integer("base_offset", low=-1, high=LONG_MAX)
        ),
    )


def _named(names: type[EnumT], field_name: str, found: str) -> EnumT:
    for member in names:
        if member.value == found:
            return member
    known = ", ".join(str(member.value) for member in names)
    raise ValueError(
        f"{_TYPE}: expected one of {known} in the field {field_name}, found {found!r}: of a newer version?"
    )


def _check(record: TransactionLogged) -> None:
    """Check conditions between several fields."""
    has_cause = record.abort_cause is not None
    if has_cause != (record.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)):
        raise ValueError(
            f"{_TYPE}: expected a cause exactly of an abort, found {record.abort_cause} with {record.state.value}"
        )
    if record.producer_epoch > PRODUCER_EPOCH_MAX and not record.state.is_decided:
        raise ValueError(
            f"{_TYPE}: expected a producer epoch of at most {PRODUCER_EPOCH_MAX} in {record.state.value}, "
            f"found {record.producer_epoch}"
        )
    if record.state.is_decided and record.producer_epoch == 0:
        raise ValueError(f"{_TYPE}: expected a producer epoch of 1 or more in {record.state.value}, found 0")
