"""Bounds of requests about groups: each is refused by name, and what is within it can be read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.consumer_groups import bounds
from bus.consumer_groups.decisions import decide
from bus.consumer_groups.group import Group, GroupRules, GroupStep
from bus.consumer_groups.requests import (
    ApplyOffsets,
    Assignment,
    DeleteGroup,
    DescribeGroup,
    DropOffsets,
    GroupProtocol,
    Heartbeat,
    JoinGroup,
    JoinRefused,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetToCommit,
    SyncGroup,
    TransactionKey,
    TxnOffsetCommit,
    VoteOffsets,
)
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, join, stable_bench

ORDERS = TopicPartition("orders", 0)
OFFSET = OffsetToCommit(ORDERS, "id", 5)
JOIN = join()
TRANSACTION = TransactionKey(7, 3)
COMMANDS = (
    JOIN,
    SyncGroup("g", 1, "m", None, None, None),
    Heartbeat("g", 1, "m"),
    LeaveGroup("g", (LeavingMember("m"),)),
    OffsetCommit("g", -1, "", None, (OFFSET,)),
    OffsetFetch("g", (ORDERS,)),
    OffsetDelete("g", (ORDERS,)),
    TxnOffsetCommit("g", TRANSACTION, 0, -1, "", None, (OFFSET,)),
    VoteOffsets("g", TRANSACTION),
    ApplyOffsets("g", TRANSACTION),
    DropOffsets("g", TRANSACTION),
    DescribeGroup("g"),
    DeleteGroup("g"),
)
BAD_NAMES = ["n" * 2_049, "ü" * 1_025, "two\nlines", "tab\t", "\x1b[31m", "\x7f", "\x85", "\u2028", "\x00"]


def step_of(command: Any, group: Group | None = None) -> GroupStep:
    if isinstance(command, JoinGroup):
        command = replace(command, new_member_id="new-1")
    return decide(group, command, request_id=1, rules=GroupRules(), now_ms=5)


def refused(command: Any, group: Group | None = None) -> Refused:
    """Also: nothing is recorded."""
    step = step_of(command, group)
    assert not step.records
    (reply,) = step.replies
    answer = reply.answer.refused if isinstance(reply.answer, JoinRefused) else reply.answer
    assert isinstance(answer, Refused), answer
    assert len(answer.message) < 1_000
    assert answer.message.isprintable()
    return answer


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("name", ["", *BAD_NAMES], ids=ascii)
def test_group_id_is_bounded_in_every_request(command: Any, name: str) -> None:
    answer = refused(replace(command, group_id=name))
    assert answer.code is ErrorCode.INVALID_GROUP_ID
    assert "expected a group id" in answer.message


def test_group_that_has_a_long_id_from_before_can_still_be_asked_for_and_deleted() -> None:
    group = replace(stable_bench().group or pytest.fail("no group"), group_id="two\nlines")
    (reply,) = step_of(DescribeGroup("two\nlines"), group).replies
    assert not isinstance(reply.answer, Refused)


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
@pytest.mark.parametrize(
    "command",
    [
        Heartbeat(GROUP_ID, 1, "NAME"),
        SyncGroup(GROUP_ID, 1, "NAME", None, None, None),
        LeaveGroup(GROUP_ID, (LeavingMember("NAME"),)),
        LeaveGroup(GROUP_ID, (LeavingMember("", "NAME"),)),
        OffsetCommit(GROUP_ID, 1, "NAME", None, (OFFSET,)),
        OffsetCommit(GROUP_ID, 1, "m-1", "NAME", (OFFSET,)),
        TxnOffsetCommit(GROUP_ID, TRANSACTION, 0, 1, "NAME", None, (OFFSET,)),
        TxnOffsetCommit(GROUP_ID, TRANSACTION, 0, 1, "m-1", "NAME", (OFFSET,)),
        OffsetFetch(GROUP_ID, (ORDERS,), "NAME"),
        replace(JOIN, member_id="NAME"),
        replace(JOIN, group_instance_id="NAME"),
        replace(JOIN, client_id="NAME"),
        replace(JOIN, protocol_type="NAME"),
        replace(JOIN, protocols=(GroupProtocol("NAME", b""),)),
        replace(JOIN, protocols=(GroupProtocol("range", b"", ("NAME",)),)),
        SyncGroup(GROUP_ID, 1, "m-1", None, None, None, {"m-1": Assignment(b"", (TopicPartition("NAME", 0),))}),
        OffsetFetch(GROUP_ID, (TopicPartition("NAME", 0),)),
        OffsetDelete(GROUP_ID, (TopicPartition("NAME", 0),)),
    ],
    ids=lambda command: type(command).__name__,
)
def test_names_are_bounded_and_have_no_control_characters(command: Any, name: str) -> None:
    answer = refused(_with_name(command, name), stable_bench().group)
    assert answer.code in (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert "expected" in answer.message
    assert "found" in answer.message


def _with_name(value: Any, name: str) -> Any:
    if value == "NAME":
        return name
    if isinstance(value, TopicPartition):
        return TopicPartition(_with_name(value.topic, name), value.partition)
    if isinstance(value, tuple):
        return tuple(_with_name(item, name) for item in value)
    if isinstance(value, dict):
        return {key: _with_name(item, name) for key, item in value.items()}
    fields = getattr(value, "__dataclass_fields__", {})
    return replace(value, **{field: _with_name(getattr(value, field), name) for field in fields}) if fields else value


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (replace(JOIN, group_instance_id=""), ErrorCode.INVALID_REQUEST),
        (replace(JOIN, protocols=(GroupProtocol("", b""),)), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (replace(JOIN, protocols=(GroupProtocol("range", b"", ("",)),)), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (replace(JOIN, protocols=(GroupProtocol("r", b""),) * 101), ErrorCode.INVALID_REQUEST),
        (replace(JOIN, protocols=(GroupProtocol("r", b"m" * (1 << 19)),) * 3), ErrorCode.INVALID_REQUEST),
        (replace(JOIN, protocols=(GroupProtocol("r", b"", ("t",) * 10_001),)), ErrorCode.INVALID_REQUEST),
        (OffsetCommit(GROUP_ID, -1, "", None, (OFFSET,) * 10_001), ErrorCode.INVALID_REQUEST),
        (TxnOffsetCommit(GROUP_ID, TRANSACTION, 0, -1, "", None, (OFFSET,) * 10_001), ErrorCode.INVALID_REQUEST),
        (TxnOffsetCommit(GROUP_ID, TRANSACTION, -1, -1, "", None, (OFFSET,)), ErrorCode.INVALID_REQUEST),
        (TxnOffsetCommit(GROUP_ID, TRANSACTION, 2**31, -1, "", None, (OFFSET,)), ErrorCode.INVALID_REQUEST),
        (TxnOffsetCommit(GROUP_ID, TransactionKey(-1, 0), 0, -1, "", None, (OFFSET,)), ErrorCode.INVALID_REQUEST),
        (VoteOffsets(GROUP_ID, TransactionKey(2**63, 0)), ErrorCode.INVALID_REQUEST),
        (ApplyOffsets(GROUP_ID, TransactionKey(7, -1)), ErrorCode.INVALID_REQUEST),
        (DropOffsets(GROUP_ID, TransactionKey(7, 2**15)), ErrorCode.INVALID_REQUEST),
        (OffsetFetch(GROUP_ID, (ORDERS,) * 10_001), ErrorCode.INVALID_REQUEST),
        (OffsetDelete(GROUP_ID, (ORDERS,) * 10_001), ErrorCode.INVALID_REQUEST),
        (LeaveGroup(GROUP_ID, (LeavingMember("m"),) * 1_001), ErrorCode.INVALID_REQUEST),
    ],
)
def test_counts_and_bytes_are_bounded(command: Any, code: ErrorCode) -> None:
    assert refused(command).code is code


@pytest.mark.parametrize(
    "assignment",
    [
        Assignment(b"", (TopicPartition("t", -1),)),
        Assignment(b"", (TopicPartition("", 0),)),
        Assignment(b"", (ORDERS,) * 30_001),
        Assignment(b"a" * ((1 << 20) + 1)),
    ],
)
def test_assignment_that_no_client_could_use_is_refused(assignment: Assignment) -> None:
    command = SyncGroup(GROUP_ID, 1, "m-1", None, None, None, {"m-1": assignment})
    assert refused(command, stable_bench().group).code in (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    )


@pytest.mark.parametrize(
    "offset",
    [
        replace(OFFSET, leader_epoch=-5),
        replace(OFFSET, leader_epoch=2**31),
        replace(OFFSET, offset=-1),
        replace(OFFSET, offset=2**63),
        replace(OFFSET, partition=TopicPartition("orders", -1)),
        replace(OFFSET, partition=TopicPartition("two\nlines", 0)),
    ],
)
def test_offset_that_could_not_be_read_back_is_refused_and_its_neighbour_taken(offset: OffsetToCommit) -> None:
    good = replace(OFFSET, partition=TopicPartition("orders", 9))
    step = step_of(OffsetCommit("g", -1, "", None, (offset, good)))
    (reply,) = step.replies
    assert isinstance(reply.answer, OffsetsCommitted)
    bad, taken = reply.answer.partitions
    assert isinstance(bad, Refused)
    assert bad.message.isprintable()
    assert taken is None
    assert len(step.records) == 1


def test_what_is_at_the_bounds_is_taken() -> None:
    topics = tuple(f"topic-{number}" for number in range(bounds.TOPICS_MAX))
    protocols = (GroupProtocol("p" * bounds.NAME_BYTES_MAX, b"m" * bounds.MEMBER_DATA_BYTES_MAX, topics),)
    command: JoinGroup = replace(
        JOIN,
        group_id="g" * bounds.ID_BYTES_MAX,
        client_id="ü" * (bounds.ID_BYTES_MAX // 2),
        group_instance_id="i" * bounds.NAME_BYTES_MAX,
        protocols=protocols,
    )
    (reply,) = step_of(command).replies or (None,)
    assert reply is None, "it waits for the group's initial delay"
