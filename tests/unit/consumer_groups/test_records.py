from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.consumer_groups.records import (
    GroupStored,
    GroupTombstone,
    LoggedRecord,
    OffsetCommitted,
    OffsetTombstone,
    StoredMember,
    TxnOffsetsEnded,
    TxnOffsetsPending,
    decode_record,
    encode_record,
)
from bus.consumer_groups.requests import Assignment, OffsetToCommit, TransactionKey
from bus.model import TopicPartition
from bus.ports import KeyedRow
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE, GROUP_MEMBER_TYPE, PENDING_OFFSET_TYPE

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
PARTITIONS = st.builds(TopicPartition, TEXTS, st.integers(0, 2**31 - 1))
INTS, LONGS = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
MEMBERS = st.builds(
    StoredMember,
    TEXTS,
    st.none() | TEXTS,
    TEXTS,
    TEXTS,
    INTS,
    INTS,
    st.binary(max_size=9),
    st.lists(TEXTS, max_size=3).map(tuple),
    st.builds(Assignment, st.binary(max_size=9), st.lists(PARTITIONS, max_size=3).map(tuple)),
)
OFFSETS = st.builds(
    OffsetCommitted, TEXTS, PARTITIONS, TEXTS, LONGS, st.integers(-1, 9), TEXTS, LONGS, st.none() | LONGS
)
TRANSACTIONS = st.builds(TransactionKey, LONGS, st.integers(0, 2**15 - 1))
PENDING = st.builds(
    TxnOffsetsPending,
    TEXTS,
    TRANSACTIONS,
    INTS,
    LONGS,
    st.lists(
        st.builds(OffsetToCommit, PARTITIONS, TEXTS, LONGS, st.integers(-1, 9), TEXTS),
        max_size=3,
        unique_by=lambda offset: offset.partition,
    ).map(tuple),
)
MEMBER = StoredMember("m-1", "desk", "client", "/h", 10, 20, b"s", ("orders",), Assignment(b"a"))
STORED = GroupStored("billing", "consumer", "range", 3, "m-1", "Stable", 99, (MEMBER,))
EMPTY = GroupStored("billing", "consumer", None, 4, None, "Empty", 99, ())
WAITING = TxnOffsetsPending(
    "billing", TransactionKey(7, 3), 1, 99, (OffsetToCommit(TopicPartition("orders", 7), "id", 5, 2, "why"),)
)
COMMITTED = OffsetCommitted("billing", TopicPartition("orders", 7), "id", 5, 2, "why", 99)


@st.composite
def stored_groups(draw: st.DrawFn) -> GroupStored:
    members = draw(
        st.lists(MEMBERS, max_size=3, unique_by=(lambda m: m.member_id, lambda m: m.group_instance_id or m.member_id))
    )
    instance_ids = [m.group_instance_id for m in members if m.group_instance_id is not None]
    if not members or len(set(instance_ids)) < len(instance_ids):
        return GroupStored(draw(TEXTS), draw(TEXTS), None, draw(INTS), None, "Empty", draw(LONGS), ())
    leader = draw(st.sampled_from(members)).member_id
    protocol = draw(TEXTS.filter(bool))
    return GroupStored(draw(TEXTS), draw(TEXTS), protocol, draw(INTS), leader, "Stable", draw(LONGS), tuple(members))


RECORDS = (
    OFFSETS
    | stored_groups()
    | PENDING
    | st.builds(OffsetTombstone, TEXTS, PARTITIONS)
    | st.builds(GroupTombstone, TEXTS)
    | st.builds(TxnOffsetsEnded, TEXTS, TRANSACTIONS)
)


@given(RECORDS)
def test_what_is_written_is_what_is_read(record: LoggedRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(RECORDS)
def test_a_value_has_the_fields_of_its_column_and_no_other(record: LoggedRecord) -> None:
    value = encode_record(record).value
    if value is None:
        return
    assert set(value) <= {field.name for field in CONSUMER_OFFSETS_VALUE_TYPE}
    for member in value.get("members", []):
        assert set(member) == {field.name for field in GROUP_MEMBER_TYPE}
    for offset in value.get("pending_offsets", []):
        assert set(offset) == {field.name for field in PENDING_OFFSET_TYPE}


def test_a_tombstone_has_the_key_of_what_it_deletes() -> None:
    assert encode_record(OffsetTombstone("billing", COMMITTED.partition)) == KeyedRow(
        encode_record(COMMITTED).key, None
    )
    assert encode_record(GroupTombstone("billing")) == KeyedRow(encode_record(STORED).key, None)
    ended = encode_record(TxnOffsetsEnded("billing", TransactionKey(7, 3)))
    assert ended == KeyedRow(encode_record(WAITING).key, None)


def test_keys_are_json_texts() -> None:
    assert encode_record(COMMITTED).key == b'["offset","billing","orders",7]'
    assert (
        encode_record(OffsetTombstone("größe", TopicPartition('a"b', 0))).key == '["offset","größe","a\\"b",0]'.encode()
    )
    assert json.loads(encode_record(STORED).key) == ["group", "billing"]
    assert encode_record(WAITING).key == b'["pending","billing",7,3]'


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"billing",
        b'["offset","g","t"]',
        b'["offset","g","t",-1]',
        b'["group",1]',
        b"\xff",
        b'["group","\\ud800"]',
        b'["pending","g",7]',
        b'["pending","g",-1,3]',
        b'["pending","g",7,32768]',
        b"[" * 99_999,
    ],
)
def test_key_that_cannot_be_read_is_an_error(key: bytes) -> None:
    with pytest.raises(ValueError, match="found"):
        decode_record(KeyedRow(key, None))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "OffsetPromised"},
        {"group_id": "other"},
        {"topic": "other"},
        {"partition": 8},
        {"committed_offset": -1},
        {"committed_offset": None},
        {"committed_offset": True},
        {"leader_epoch": -2},
        {"leader_epoch": 2**31},
        {"committed_offset": 2**63},
        {"metadata": None},
        {"commit_ms": "soon"},
        {"expire_ms": -1},
    ],
)
def test_offset_that_makes_no_sense_is_an_error(change: dict[str, Any]) -> None:
    row = encode_record(COMMITTED)
    assert row.value is not None
    with pytest.raises(ValueError, match="found"):
        decode_record(KeyedRow(row.key, {**row.value, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"group_id": "other"},
        {"producer_id": 8},
        {"producer_epoch": 4},
        {"sequence": -1},
        {"commit_ms": None},
        {"pending_offsets": None},
        {"pending_offsets": [None]},
        {"pending_offsets": [{"topic": "orders", "partition": 7}]},
    ],
)
def test_pending_offsets_that_make_no_sense_are_an_error(change: dict[str, Any]) -> None:
    row = encode_record(WAITING)
    assert row.value is not None
    with pytest.raises(ValueError, match="found"):
        decode_record(KeyedRow(row.key, {**row.value, **change}))


def test_partition_is_pending_once_in_a_transaction() -> None:
    row = encode_record(WAITING)
    assert row.value is not None
    twice = {**row.value, "pending_offsets": row.value["pending_offsets"] * 2}
    with pytest.raises(ValueError, match="each partition once"):
        decode_record(KeyedRow(row.key, twice))


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (STORED, {"type": "GroupPromised"}),
        (STORED, {"group_id": "other"}),
        (STORED, {"state": "Dead"}),
        (STORED, {"state": "Empty"}),
        (STORED, {"protocol": None}),
        (STORED, {"leader_id": "m-2"}),
        (STORED, {"leader_id": None}),
        (STORED, {"members": []}),
        (STORED, {"members": None}),
        (STORED, {"generation": -1}),
        (STORED, {"generation": 2**31}),
        (STORED, {"protocol": ""}),
        (STORED, {"members": [None]}),
        (EMPTY, {"state": "Stable"}),
        (EMPTY, {"protocol": "range"}),
        (EMPTY, {"leader_id": "m-1"}),
    ],
)
def test_group_that_makes_no_sense_is_an_error(record: GroupStored, change: dict[str, Any]) -> None:
    row = encode_record(record)
    assert row.value is not None
    with pytest.raises(ValueError, match="found"):
        decode_record(KeyedRow(row.key, {**row.value, **change}))


@pytest.mark.parametrize(
    "change",
    [
        {"member_id": None},
        {"subscription": "text"},
        {"topics": None},
        {"topics": ["orders", None]},
        {"partitions": [{"topic": "orders"}]},
        {"partitions": [{"topic": "orders", "partition": -1}]},
        {"partitions": [None]},
        {"session_timeout_ms": 2**31},
    ],
)
def test_member_that_makes_no_sense_is_an_error(change: dict[str, Any]) -> None:
    row = encode_record(STORED)
    assert row.value is not None
    members = [{**row.value["members"][0], **change}]
    with pytest.raises(ValueError, match="found"):
        decode_record(KeyedRow(row.key, {**row.value, "members": members}))


def test_member_twice_is_an_error() -> None:
    row = encode_record(STORED)
    assert row.value is not None
    with pytest.raises(ValueError, match="every member once"):
        decode_record(KeyedRow(row.key, {**row.value, "members": row.value["members"] * 2}))
