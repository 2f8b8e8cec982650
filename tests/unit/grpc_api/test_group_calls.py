from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster import EMPTY_CLUSTER, ClusterState, apply
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated
from bus.consumer_groups import requests as rq
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.server.consumer_protocol import decode_assignment, decode_protocol
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint, TopicPartition


def cluster(topic_id: str = "id") -> ClusterState:
    state = apply(EMPTY_CLUSTER, BrokerRegistered(0, "h", 1))
    return apply(state, TopicCreated("t", topic_id, 2, 0))


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
    assert calls.client_host(peer) == host


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
    join = calls.decode_join(pb.JoinGroupRequest(session_timeout_ms=7_000), "ipv4:1.2.3.4:5")
    assert isinstance(join, rq.JoinGroup)
    assert (join.rebalance_timeout_ms, join.group_instance_id, join.client_host) == (7_000, None, "/1.2.3.4")


def test_commit_is_taken_for_partitions_that_exist_under_the_id_of_their_topic() -> None:
    request = pb.OffsetCommitRequest(
        partitions=[
            pb.OffsetCommitPartition(topic="t", partition=2, offset=1),
            pb.OffsetCommitPartition(topic="t", partition=1, offset=5),
            pb.OffsetCommitPartition(topic="none", partition=0, offset=1),
        ]
    )
    decoded = calls.decode_commit(request, cluster())
    assert [(one.partition, one.topic_id, one.offset) for one in decoded.command.offsets] == [
        (TopicPartition("t", 1), "id", 5)
    ]
    too_large = Refused(ErrorCode.OFFSET_METADATA_TOO_LARGE, "too large")
    response = calls.encode_commit(request, decoded, rq.OffsetsCommitted((too_large,)))
    assert [item.error_code for item in response.partitions] == [
        pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
        pb.ERROR_CODE_OFFSET_METADATA_TOO_LARGE,
        pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
    ]


@pytest.mark.parametrize(("is_all", "expected"), [(True, []), (False, [("t", -1)])])
def test_offset_of_a_deleted_topic_is_not_shown_for_its_namesake(is_all: bool, expected: list[tuple[str, int]]) -> None:
    asked = pb.OffsetFetchGroup(group_id="g", all_partitions=is_all)
    answer = rq.OffsetsFetched((rq.CommittedOffset(TopicPartition("t", 0), "id of the deleted one", 5),))
    response = calls.encode_offset_fetch(asked, answer, cluster())
    assert [(item.topic, item.offset) for item in response.offsets] == expected


def test_generation_of_an_offset_fetch_counts_only_with_a_member() -> None:
    assert calls.decode_offset_fetch(pb.OffsetFetchGroup(group_id="g")).generation == rq.NO_GENERATION
    asked = calls.decode_offset_fetch(pb.OffsetFetchGroup(group_id="g", member_id="m", generation=3))
    assert (asked.member_id, asked.generation) == ("m", 3)


def test_unknown_group_is_described_as_dead_and_a_loading_one_is_not() -> None:
    endpoint = BrokerEndpoint(0, "h", 1)
    unknown = calls.encode_describe("g", Refused(ErrorCode.GROUP_ID_NOT_FOUND, "none"), endpoint)
    loading = calls.encode_describe("g", Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "wait"), endpoint)
    assert (unknown.state, loading.state) == ("Dead", "")


@pytest.mark.parametrize(("counts", "found"), [([], 0), ([0, 0], 2), ([3, 1], 4), ([1] * 20_000, 10_001)])
def test_partitions_that_a_request_names_are_counted_as_far_as_it_may_name_them(counts: list[int], found: int) -> None:
    topics = [pb.TopicPartitions(topic="t", partitions=[0] * count) for count in counts]
    assert calls.count_partitions(topics) == found
