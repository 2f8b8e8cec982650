"""Calls and answers of a group as messages: what the coordinator and other members get to read, and what is made of
answers that are incomplete or of another version."""

from __future__ import annotations

from typing import Any

import pytest

from bus.client.assignors import MemberSubscription
from bus.client.connection.group_requests import (
    FindCoordinator,
    GroupCall,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    MemberIdRequired,
    OffsetCommit,
    OffsetFetch,
    SyncGroup,
    decode_group_answer,
    encode_assignment,
    encode_group_call,
    encode_session_call,
)
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.descriptions import BrokerInfo
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

P0, P1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ME = GroupMetadata("g", 4, "m", "desk")
SUBSCRIPTION = MemberSubscription(("t", "u"), b"data", (P0, P1, U0), 3, "desk", "rack")
JOIN = JoinGroup(ME, 10, 20, {"range": SUBSCRIPTION, "sticky": MemberSubscription(("t",))}, "client", "reason")


def joined_by(join: Any, **others: Any) -> pb.JoinGroupResponse:
    """The leader's answer to a join of two members who said the same."""
    metadata = join.protocols[0].metadata
    members = [
        pb.JoinedMember(member_id="m", group_instance_id="desk", metadata=metadata, assignment=encode_assignment([P0])),
        pb.JoinedMember(member_id="n", metadata=metadata, assignment=encode_assignment([U0])),
    ]
    return pb.JoinGroupResponse(
        generation=5, protocol="range", leader_id="m", member_id="m", members=members, skip_assignment=True, **others
    )


def test_join_says_who_joins_and_what_each_assignor_is_to_know_in_the_order_of_preference() -> None:
    message: Any = encode_group_call(JOIN)
    assert (message.group_id, message.member_id, message.group_instance_id) == ("g", "m", "desk")
    assert (message.session_timeout_ms, message.rebalance_timeout_ms) == (10, 20)
    assert (message.protocol_type, message.client_id, message.reason) == ("consumer", "client", "reason")
    assert [protocol.name for protocol in message.protocols] == ["range", "sticky"]


def test_leader_reads_what_the_members_wrote_and_what_they_keep() -> None:
    joined = decode_group_answer(JOIN, joined_by(encode_group_call(JOIN)))
    other = MemberSubscription(("t", "u"), b"data", (P0, P1, U0), 3, None, "rack")
    subscriptions = {"m": SUBSCRIPTION, "n": other}
    assert joined == Joined(5, "m", "m", "range", subscriptions, is_kept=True, kept=frozenset({P0, U0}))


@pytest.mark.parametrize("field", ["metadata", "assignment"])
def test_member_that_the_leader_cannot_read_is_told_with_the_generation_that_it_joined(field: str) -> None:
    response = joined_by(encode_group_call(JOIN))
    setattr(response.members[1], field, b"\xff\xff")
    joined = decode_group_answer(JOIN, response)
    assert joined.generation == 5
    assert joined.unreadable.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_member_without_an_id_is_told_the_one_to_join_with() -> None:
    response = pb.JoinGroupResponse(error_code=int(ErrorCode.MEMBER_ID_REQUIRED), member_id="m-1")
    assert decode_group_answer(JOIN, response) == MemberIdRequired("m-1")


def test_leader_brings_the_assignment_and_each_member_reads_its_own() -> None:
    sync = SyncGroup(ME, "range", {"m": [P1, P0], "n": []})
    message: Any = encode_group_call(sync)
    assert (message.generation, message.member_id, message.group_instance_id) == (4, "m", "desk")
    assert (message.protocol_type, message.protocol) == ("consumer", "range")
    shares = {share.member_id: share.assignment for share in message.assignments}
    assert decode_group_answer(sync, pb.SyncGroupResponse(assignment=shares["m"])) == {P0, P1}
    assert decode_group_answer(sync, pb.SyncGroupResponse(assignment=shares["n"])) == frozenset()
    unreadable = decode_group_answer(sync, pb.SyncGroupResponse(assignment=b"\xff\xff"))
    assert unreadable.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_partition_that_the_answer_leaves_out_is_not_committed() -> None:
    commit = OffsetCommit(ME, {P0: OffsetAndMetadata(1), P1: OffsetAndMetadata(2, "text", 7), U0: OffsetAndMetadata(3)})
    shares = {(one.topic, one.partition): one for one in encode_group_call(commit).partitions}  # type: ignore[attr-defined]
    assert (shares["t", 1].offset, shares["t", 1].metadata, shares["t", 1].leader_epoch) == (2, "text", 7)
    answers = [
        pb.OffsetCommitPartitionResponse(topic="t", partition=0),
        pb.OffsetCommitPartitionResponse(topic="t", partition=1, error_code=int(ErrorCode.ILLEGAL_GENERATION)),
    ]
    errors = decode_group_answer(commit, pb.OffsetCommitResponse(partitions=answers))
    assert {partition: error.code for partition, error in errors.items()} == {
        P1: ErrorCode.ILLEGAL_GENERATION,
        U0: ErrorCode.UNKNOWN_SERVER_ERROR,
    }


def test_offsets_that_are_not_committed_are_no_answer() -> None:
    fetch = OffsetFetch("g", [P0, P1])
    message: Any = encode_group_call(fetch)
    assert [(topic.topic, list(topic.partitions)) for topic in message.groups[0].topics] == [("t", [0, 1])]
    offsets = [
        pb.CommittedOffset(topic="t", partition=0, offset=7, metadata="text", leader_epoch=2),
        pb.CommittedOffset(topic="t", partition=1, offset=-1),
    ]
    response = pb.OffsetFetchResponse(groups=[pb.OffsetFetchGroupResponse(offsets=offsets)])
    assert decode_group_answer(fetch, response) == {P0: OffsetAndMetadata(7, "text", 2)}


def test_offset_that_may_yet_be_replaced_is_an_error_in_its_place() -> None:
    fetch = OffsetFetch("g", [P0, P1], require_stable=True)
    message: Any = encode_group_call(fetch)
    assert message.require_stable
    code: Any = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    offsets = [
        pb.CommittedOffset(topic="t", partition=0, offset=7),
        pb.CommittedOffset(topic="t", partition=1, offset=-1, error_code=code, error_message="wait"),
    ]
    response = pb.OffsetFetchResponse(groups=[pb.OffsetFetchGroupResponse(offsets=offsets)])
    found = decode_group_answer(fetch, response)
    assert found[P0] == OffsetAndMetadata(7, "", 0)
    assert isinstance(found[P1], BusError)
    assert found[P1].retriable


def test_coordinator_is_a_broker() -> None:
    response = pb.FindCoordinatorResponse(coordinator=pb.Broker(broker_id=1, host="h", port=2))
    assert decode_group_answer(FindCoordinator("g"), response) == BrokerInfo(1, "h", 2)


@pytest.mark.parametrize(
    ("call", "response"),
    [
        (FindCoordinator("g"), pb.FindCoordinatorResponse),
        (JOIN, pb.JoinGroupResponse),
        (SyncGroup(ME, "range", {}), pb.SyncGroupResponse),
        (Heartbeat(ME), pb.HeartbeatResponse),
        (LeaveGroup(ME, "closed"), pb.LeaveGroupResponse),
    ],
)
def test_refusal_is_the_answer(call: GroupCall, response: Any) -> None:
    refused = decode_group_answer(call, response(error_code=int(ErrorCode.NOT_COORDINATOR), error_message="no"))
    assert isinstance(refused, BusError)
    assert (refused.code, refused.message) == (ErrorCode.NOT_COORDINATOR, "no")


def test_session_carries_heartbeats_and_commits_with_their_number() -> None:
    beat = pb.GroupSessionRequest.FromString(encode_session_call(7, Heartbeat(ME)))
    assert (beat.correlation_id, beat.heartbeat) == (7, encode_group_call(Heartbeat(ME)))
    commit = OffsetCommit(GroupMetadata("g"), {P0: OffsetAndMetadata(1)})
    sent = pb.GroupSessionRequest.FromString(encode_session_call(8, commit))
    assert (sent.correlation_id, sent.offset_commit) == (8, encode_group_call(commit))
