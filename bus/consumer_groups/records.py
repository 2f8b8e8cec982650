"""The records of `__consumer_offsets`, and their form as keyed rows of that log.

Guards two promises: what was written is what is read back, for ever; and two records have one key exactly if the later
one replaces the earlier one, so that key compaction keeps the state. Rows come from disk, so decoding checks and never
asserts. The key is a JSON text: ["offset", group, topic, partition], ["group", group], or ["pending", group, producer
id, producer epoch].
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bus.consumer_groups import requests as rq
from bus.model import TopicPartition
from bus.ports import KeyedRow
from bus.records.json_text import parse_json
from bus.records.struct_fields import StructFields
from bus.settings.keys import INT_MAX, LONG_MAX

_ROW_BYTES = 200  # fields of a fixed size and short names
_ITEM_BYTES = 50  # a topic's name, with or without the number of a partition
_KEY_BYTES_IN_ERROR = 200  # the length of an unreadable key in an error


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    group_id: str
    partition: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None  # None: offsets.retention.minutes decides


@dataclass(frozen=True, slots=True)
class OffsetTombstone:
    group_id: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes  # the member's metadata for the group's protocol
    topics: tuple[str, ...]
    assignment: rq.Assignment


@dataclass(frozen=True, slots=True)
class GroupStored:
    """A group after a rebalance, or after its last member has left."""

    group_id: str
    protocol_type: str
    protocol: str | None  # None: no member
    generation: int
    leader_id: str | None
    state: str  # Stable or Empty
    state_ms: int
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupTombstone:
    group_id: str


@dataclass(frozen=True, slots=True)
class TxnOffsetsPending:
    """All offsets that the transaction will commit in this group, as it stands; each partition once. It may have none
    left, and still is known here until it ends."""

    group_id: str
    transaction: rq.TransactionKey
    sequence: int  # the sequence of the last offset commit that was accepted
    commit_ms: int  # the time of the same commit
    offsets: tuple[rq.OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class TxnOffsetsEnded:
    """The tombstone of the former: committed, together with the records of its offsets, or dropped."""

    group_id: str
    transaction: rq.TransactionKey


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The subject of a record: an offset, a transaction, or, with neither, the group itself."""

    group_id: str
    partition: TopicPartition | None = None
    transaction: rq.TransactionKey | None = None


LoggedRecord = OffsetCommitted | OffsetTombstone | GroupStored | GroupTombstone | TxnOffsetsPending | TxnOffsetsEnded
# For isinstance.
LOGGED = (OffsetCommitted, OffsetTombstone, GroupStored, GroupTombstone, TxnOffsetsPending, TxnOffsetsEnded)


def encode_record(record: LoggedRecord) -> KeyedRow:
    match record:
        case OffsetCommitted():
            return KeyedRow(_offset_key(record.group_id, record.partition), _encode_offset(record))
        case OffsetTombstone():
            return KeyedRow(_offset_key(record.group_id, record.partition), None)
        case GroupStored():
            return KeyedRow(_key("group", record.group_id), _encode_group(record))
        case GroupTombstone():
            return KeyedRow(_key("group", record.group_id), None)
        case TxnOffsetsPending():
            return KeyedRow(_pending_key(record), _encode_pending(record))
        case TxnOffsetsEnded():
            return KeyedRow(_pending_key(record), None)


def decode_record(row: KeyedRow) -> LoggedRecord:
    """Raises `ValueError`, which says what was found, for a row that this version cannot read."""
    key, value = decode_key(row.key), row.value
    if key.partition is not None:
        if value is None:
            return OffsetTombstone(key.group_id, key.partition)
        return _decode_offset(StructFields(value, "OffsetCommitted"), key.group_id, key.partition)
    if key.transaction is not None:
        if value is None:
            return TxnOffsetsEnded(key.group_id, key.transaction)
        return _decode_pending(StructFields(value, "TxnOffsetsPending"), key.group_id, key.transaction)
    if value is None:
        return GroupTombstone(key.group_id)
    return _decode_group(StructFields(value, "GroupStored"), key.group_id)


def decode_key(key: bytes) -> RecordKey:
    """Raises `ValueError` as `decode_record` does."""
    match _parse_key(key):
        case ["offset", str(group_id), str(topic), int(partition)] if 0 <= partition <= INT_MAX and _is_text(
            group_id, topic
        ):
            return RecordKey(group_id, TopicPartition(topic, partition))
        case ["group", str(group_id)] if _is_text(group_id):
            return RecordKey(group_id)
        case ["pending", str(group_id), int(producer_id), int(epoch)] if (
            _is_text(group_id) and 0 <= producer_id <= LONG_MAX and 0 <= epoch <= rq.PRODUCER_EPOCH_MAX
        ):
            return RecordKey(group_id, transaction=rq.TransactionKey(producer_id, epoch))
        case _:
            found = key[:_KEY_BYTES_IN_ERROR]
            expected = "the key of an offset, of a group, or of offsets of a transaction"
            raise ValueError(f"expected {expected}, found {found!r}: of a newer version?")


def approximate_bytes(record: LoggedRecord) -> int:
    """About what the record takes in memory and in a commit, without encoding it."""
    match record:
        case OffsetCommitted():
            return _ROW_BYTES + 2 * len(record.group_id) + len(record.metadata)
        case GroupStored():
            return _ROW_BYTES + 2 * len(record.group_id) + sum(map(_member_bytes, record.members))
        case TxnOffsetsPending():
            offsets = sum(_ROW_BYTES + len(offset.metadata) for offset in record.offsets)
            return _ROW_BYTES + 2 * len(record.group_id) + offsets
        case OffsetTombstone() | GroupTombstone() | TxnOffsetsEnded():
            return _ROW_BYTES


def _member_bytes(member: StoredMember) -> int:
    items = len(member.topics) + len(member.assignment.partitions)
    return _ROW_BYTES + len(member.subscription) + len(member.assignment.data) + items * _ITEM_BYTES


def _key(*parts: str | int) -> bytes:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    return _key("offset", group_id, partition.topic, partition.partition)


def _pending_key(record: TxnOffsetsPending | TxnOffsetsEnded) -> bytes:
    transaction = record.transaction
    return _key("pending", record.group_id, transaction.producer_id, transaction.producer_epoch)


def _parse_key(key: bytes) -> Any:
    try:
        return parse_json(key)
    except ValueError:
        raise ValueError(f"expected a JSON text as the key, found {key[:_KEY_BYTES_IN_ERROR]!r}") from None


def _is_text(*texts: str) -> bool:
    """JSON can spell half a character, which no answer and no column can hold."""
    try:
        return all(text.isascii() or text.encode() for text in texts)
    except UnicodeEncodeError:
        return False


def _encode_offset(record: OffsetCommitted) -> dict[str, Any]:
    return {
        "type": "OffsetCommitted",
        "group_id": record.group_id,
        "topic": record.partition.topic,
        "topic_id": record.topic_id,
        "partition": record.partition.partition,
        "committed_offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "metadata": record.metadata,
        "commit_ms": record.commit_ms,
        "expire_ms": record.expire_ms,
    }


def _encode_pending(record: TxnOffsetsPending) -> dict[str, Any]:
    return {
        "type": "TxnOffsetsPending",
        "group_id": record.group_id,
        "producer_id": record.transaction.producer_id,
        "producer_epoch": record.transaction.producer_epoch,
        "sequence": record.sequence,
        "commit_ms": record.commit_ms,
        "pending_offsets": [
            {
                "topic": offset.partition.topic,
                "topic_id": offset.topic_id,
                "partition": offset.partition.partition,
                "committed_offset": offset.offset,
                "leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata,
            }
            for offset in record.offsets
        ],
    }


def _encode_group(record: GroupStored) -> dict[str, Any]:
    return {
        "type": "GroupStored",
        "group_id": record.group_id,
        "protocol_type": record.protocol_type,
        "protocol": record.protocol,
        "generation": record.generation,
        "leader_id": record.leader_id,
        "state": record.state,
        "state_ms": record.state_ms,
        "members": [_encode_member(member) for member in record.members],
    }


def _encode_member(member: StoredMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "subscription": member.subscription,
        "topics": list(member.topics),
        "assignment": member.assignment.data,
        "partitions": [{"topic": of.topic, "partition": of.partition} for of in member.assignment.partitions],
    }


def _decode_offset(fields: StructFields, group_id: str, partition: TopicPartition) -> OffsetCommitted:
    found = (fields.text("group_id"), fields.text("topic"), fields.integer("partition"))
    if found != (group_id, partition.topic, partition.partition):
        raise ValueError(f"OffsetCommitted: expected group {group_id} and {partition}, as its key says, found {found}")
    return OffsetCommitted(
        group_id,
        partition,
        fields.text("topic_id"),
        fields.long("committed_offset"),
        fields.integer("leader_epoch", low=-1),
        fields.text("metadata"),
        fields.long("commit_ms"),
        fields.long_or_none("expire_ms"),
    )


def _decode_pending(fields: StructFields, group_id: str, transaction: rq.TransactionKey) -> TxnOffsetsPending:
    named = rq.TransactionKey(fields.long("producer_id"), fields.integer("producer_epoch", high=rq.PRODUCER_EPOCH_MAX))
    if (fields.text("group_id"), named) != (group_id, transaction):
        found = f"{fields.text('group_id')} and {named}"
        raise ValueError(
            f"TxnOffsetsPending: expected group {group_id} and {transaction}, as its key says, found {found}"
        )
    offsets = tuple(_decode_pending_offset(one) for one in fields.structs("pending_offsets", "an offset"))
    if len({offset.partition for offset in offsets}) < len(offsets):
        raise ValueError(f"TxnOffsetsPending: expected each partition once, found {offsets}")
    return TxnOffsetsPending(group_id, transaction, fields.integer("sequence"), fields.long("commit_ms"), offsets)


def _decode_pending_offset(fields: StructFields) -> rq.OffsetToCommit:
    return rq.OffsetToCommit(
        TopicPartition(fields.text("topic"), fields.integer("partition")),
        fields.text("topic_id"),
        fields.long("committed_offset"),
        fields.integer("leader_epoch", low=-1),
        fields.text("metadata"),
    )


def _decode_group(fields: StructFields, group_id: str) -> GroupStored:
    if fields.text("group_id") != group_id:
        raise ValueError(f"GroupStored: expected group {group_id}, as its key says, found {fields.text('group_id')}")
    members = tuple(_decode_member(member) for member in fields.structs("members", "a member"))
    record = GroupStored(
        group_id,
        fields.text("protocol_type"),
        fields.text_or_none("protocol"),
        fields.integer("generation"),
        fields.text_or_none("leader_id"),
        fields.text("state"),
        fields.long("state_ms"),
        members,
    )
    _check_group(record)
    return record


def _decode_member(fields: StructFields) -> StoredMember:
    partitions = tuple(
        TopicPartition(of.text("topic"), of.integer("partition")) for of in fields.structs("partitions", "a partition")
    )
    return StoredMember(
        fields.text("member_id"),
        fields.text_or_none("group_instance_id"),
        fields.text("client_id"),
        fields.text("client_host"),
        fields.integer("session_timeout_ms"),
        fields.integer("rebalance_timeout_ms"),
        fields.data("subscription"),
        fields.texts("topics"),
        rq.Assignment(fields.data("assignment"), partitions),
    )


def _check_group(record: GroupStored) -> None:
    """A group is stable with members, one of which leads, and a protocol; or it is empty."""
    member_ids = [member.member_id for member in record.members]
    instance_ids = [member.group_instance_id for member in record.members if member.group_instance_id is not None]
    is_stable = record.state == "Stable" and bool(record.protocol) and record.leader_id in member_ids
    is_empty = record.state == "Empty" and record.protocol is None and record.leader_id is None and not member_ids
    if not is_stable and not is_empty:
        raise ValueError(
            f"group {record.group_id}: expected Stable with protocol and leader, or Empty, found {record.state} with "
            f"protocol {record.protocol}, leader {record.leader_id} and members {member_ids}"
        )
    for ids in (member_ids, instance_ids):
        if len(set(ids)) < len(ids):
            raise ValueError(f"group {record.group_id}: expected every member once, found {ids}")
