from __future__ import annotations

import pytest

from bus.broker_api.requests import Caller
from bus.consumer_groups import requests as rq
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.server.conversions import client_host
from bus.grpc_api.server.group_calls import decode_assignment, decode_protocol
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:5000", "/127.0.0.1"),
        ("ipv6:[::1]:5000", "/::1"),
        ("ipv6:%5B::1%5D:5000", "/::1"),
        ("unix:/run/bus", "//run/bus"),
    ],
)
def test_host_of_a_client_is_shown_as_kafka_does(peer: str, host: str) -> None:
    assert client_host(peer) == host


def test_topics_of_a_consumer_are_read_and_its_bytes_kept() -> None:
    data = pb.ConsumerSubscription(topics=["a", "b"], user_data=b"u").SerializeToString()
    assert decode_protocol("consumer", "range", data) == rq.GroupProtocol("range", data, ("a", "b"))


def test_partitions_of_an_assignment_are_read_and_its_bytes_kept() -> None:
    data = pb.ConsumerAssignment(partitions=[pb.TopicPartitions(topic="a", partitions=[0, 3])]).SerializeToString()
    expected = rq.Assignment(data, (TopicPartition("a", 0), TopicPartition("a", 3)))
    assert decode_assignment("consumer", "m", data) == expected


def test_bytes_of_the_consumer_protocol_that_are_none_are_refused_and_those_of_others_are_their_own() -> None:
    for decoded in (decode_protocol("consumer", "range", b"\xff\xff"), decode_assignment("consumer", "m", b"\xff\xff")):
        assert isinstance(decoded, Refused)
        assert decoded.code is ErrorCode.INVALID_REQUEST
    assert decode_protocol("connect", "range", b"\xff\xff") == rq.GroupProtocol("range", b"\xff\xff")
    assert decode_assignment("connect", "m", b"\xff\xff") == rq.Assignment(b"\xff\xff")


def test_rebalance_timeout_that_is_not_given_is_the_session_timeout() -> None:
    join = calls.decode_join(pb.JoinGroupRequest(session_timeout_ms=7_000), Caller("c", "/1.2.3.4", "r"))
    assert isinstance(join, rq.JoinGroup)
    assert (join.rebalance_timeout_ms, join.group_instance_id, join.client_host) == (7_000, None, "/1.2.3.4")


def test_generation_of_an_offset_fetch_counts_only_with_a_member() -> None:
    assert calls.decode_offset_fetch(pb.OffsetFetchGroup(group_id="g")).generation == rq.NO_GENERATION
    asked = calls.decode_offset_fetch(pb.OffsetFetchGroup(group_id="g", member_id="m", generation=3))
    assert (asked.member_id, asked.generation) == ("m", 3)


def test_unknown_group_is_described_as_dead_and_a_loading_one_is_not() -> None:
    unknown = calls.encode_undescribed("g", Refused(ErrorCode.GROUP_ID_NOT_FOUND, "none"))
    loading = calls.encode_undescribed("g", Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "wait"))
    assert (unknown.state, loading.state) == ("Dead", "")


@pytest.mark.parametrize(("counts", "found"), [([], 0), ([0, 0], 2), ([3, 1], 4), ([1] * 20_000, 10_001)])
def test_partitions_that_a_request_names_are_counted_as_far_as_it_may_name_them(counts: list[int], found: int) -> None:
    topics = [pb.TopicPartitions(topic="t", partitions=[0] * count) for count in counts]
    assert calls.count_partitions(topics) == found


def test_unstable_offset_is_an_error_in_its_place_and_stability_is_asked_for_by_the_request() -> None:
    request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(group_id="g")], require_stable=True)
    assert [question.require_stable for question in calls.questions_of(request)] == [True]
    refused = Refused(ErrorCode.UNSTABLE_OFFSET_COMMIT, "wait")
    answer = calls.encode_committed(rq.CommittedOffset(TopicPartition("t", 1), "", rq.NO_OFFSET, refused=refused))
    assert (answer.error_code, answer.error_message, answer.offset) == (88, "wait", -1)
