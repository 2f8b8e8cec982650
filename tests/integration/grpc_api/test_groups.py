"""Consumer groups through generated stubs against a real broker: the life of a group, and what a crash leaves of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=3)
ASSIGNMENT = pb.ConsumerAssignment(partitions=[pb.TopicPartitions(topic="t", partitions=[0, 1])]).SerializeToString()
SUBSCRIPTION = pb.ConsumerSubscription(topics=["t"], generation=-1).SerializeToString()
NONE = pb.ERROR_CODE_NONE


@dataclass
class Member:
    """Does what a client library does, call by call."""

    stub: Any
    group: str = "g"
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    leader_id: str = ""
    others: list[str] = field(default_factory=list)

    def join(self, **changed: Any) -> pb.JoinGroupResponse:
        """Join, with the second attempt that MEMBER_ID_REQUIRED asks for."""
        answer = self.join_once(**changed)
        if answer.error_code == pb.ERROR_CODE_MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.join_once(**changed)
        if answer.error_code == NONE:
            self.member_id, self.generation, self.leader_id = answer.member_id, answer.generation, answer.leader_id
            self.others = [member.member_id for member in answer.members]
        return answer

    def join_once(self, **changed: Any) -> pb.JoinGroupResponse:
        return self.stub.JoinGroup(self.join_request(**changed), timeout=30)

    def join_request(self, **changed: Any) -> pb.JoinGroupRequest:
        fields = {
            "group_id": self.group,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "client_id": "client",
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": [pb.GroupProtocol(name="range", metadata=SUBSCRIPTION)],
        }
        return pb.JoinGroupRequest(**{**fields, **changed})

    def sync(self) -> pb.SyncGroupResponse:
        """If it leads, with an assignment for everyone."""
        assignments = [pb.MemberAssignment(member_id=name, assignment=ASSIGNMENT) for name in self.others]
        return self.stub.SyncGroup(
            pb.SyncGroupRequest(
                group_id=self.group,
                generation=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance,
                protocol_type="consumer",
                protocol="range",
                assignments=assignments if self.leader_id == self.member_id else [],
            ),
            timeout=30,
        )

    def heartbeat_request(self) -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest(
            group_id=self.group,
            generation=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )

    def heartbeat(self) -> int:
        return self.stub.Heartbeat(self.heartbeat_request(), timeout=30).error_code

    def commit_request(self, *offsets: tuple[str, int, int], **changed: Any) -> pb.OffsetCommitRequest:
        fields = {"group_id": self.group, "generation": self.generation, "member_id": self.member_id}
        partitions = [
            pb.OffsetCommitPartition(topic=topic, partition=number, offset=offset, leader_epoch=-1, metadata="m")
            for topic, number, offset in offsets
        ]
        return pb.OffsetCommitRequest(**{**fields, "partitions": partitions, **changed})

    def commit(self, *offsets: tuple[str, int, int], **changed: Any) -> list[int]:
        answer = self.stub.OffsetCommit(self.commit_request(*offsets, **changed), timeout=30)
        return [item.error_code for item in answer.partitions]

    def leave(self) -> pb.LeaveGroupResponse:
        leaving = pb.LeavingMember(member_id=self.member_id, group_instance_id=self.instance)
        return self.stub.LeaveGroup(pb.LeaveGroupRequest(group_id=self.group, members=[leaving]), timeout=30)


def connect(address: str) -> tuple[grpc.Channel, Any]:
    channel = grpc.insecure_channel(address)
    return channel, bus_pb2_grpc.BusStub(channel)


def committed(stub: Any, group: str = "g") -> dict[tuple[str, int], int]:
    """All offsets that are shown."""
    asked = pb.OffsetFetchGroup(group_id=group, all_partitions=True)
    (answer,) = stub.OffsetFetch(pb.OffsetFetchRequest(groups=[asked]), timeout=30).groups
    assert answer.error_code == NONE, answer
    return {(item.topic, item.partition): item.offset for item in answer.offsets}


def create_topic(stub: Any, name: str = "t", partitions: int = 2) -> None:
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=partitions)])
    assert stub.CreateTopics(request, timeout=30).topics[0].error_code == NONE


def describe(stub: Any, group: str = "g") -> pb.DescribedGroup:
    (answer,) = stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[group]), timeout=30).groups
    return answer


def wait_for(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def form(*members: Member) -> None:
    """One generation of all of them: who is in joins again while the others come."""
    with ThreadPoolExecutor(len(members)) as pool:
        first, *rest = members
        if not rest:
            assert first.join().error_code == NONE
        else:
            joins: list[Future[pb.JoinGroupResponse]] = []
            if first.generation < 0:
                assert first.join().error_code == NONE
                assert first.sync().error_code == NONE
            joins += [pool.submit(member.join) for member in rest]
            wait_for(lambda: first.heartbeat() == pb.ERROR_CODE_REBALANCE_IN_PROGRESS)
            wait_for(lambda: len(describe(first.stub, first.group).members) == len(members))
            assert first.join().error_code == NONE
            assert [join.result().error_code for join in joins] == [NONE] * len(rest)
        syncs = [pool.submit(member.sync) for member in members]
        answers = [sync.result() for sync in syncs]
    assert [answer.error_code for answer in answers] == [NONE] * len(members)
    assert {member.generation for member in members} == {members[0].generation}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "root", config=CONFIG) as broker:
        yield broker


@pytest.fixture
def stub(broker: Broker) -> Iterator[Any]:
    channel, stub = connect(f"127.0.0.1:{broker.port}")
    with channel:
        yield stub


def test_two_members_join_sync_commit_fetch_and_leave(stub: Any) -> None:
    create_topic(stub)
    found = stub.FindCoordinator(pb.FindCoordinatorRequest(key="g"), timeout=30)
    assert found.error_code == NONE
    assert found.coordinator.port > 0
    first, second = Member(stub), Member(stub)
    form(first, second)
    assert first.generation == 2
    assert first.member_id.startswith("client-")
    assert first.sync().assignment == ASSIGNMENT
    assert first.heartbeat() == NONE
    assert first.commit(("t", 0, 5), ("t", 1, 7)) == [NONE, NONE]
    assert second.commit(("t", 1, 8)) == [NONE]
    assert committed(stub) == {("t", 0): 5, ("t", 1): 8}
    group = describe(stub)
    assert (group.state, group.protocol, len(group.members)) == ("Stable", "range", 2)
    assert {member.client_host for member in group.members} == {"/127.0.0.1"}
    assert {member.assignment for member in group.members} == {ASSIGNMENT}
    assert [left.error_code for left in second.leave().members] == [NONE]
    assert first.heartbeat() == pb.ERROR_CODE_REBALANCE_IN_PROGRESS
    assert second.heartbeat() == pb.ERROR_CODE_UNKNOWN_MEMBER_ID
    assert first.leave().members[0].error_code == NONE
    assert describe(stub).state == "Empty"
    assert committed(stub) == {("t", 0): 5, ("t", 1): 8}


def test_zombie_of_an_older_generation_commits_nothing(stub: Any) -> None:
    create_topic(stub)
    zombie, successor = Member(stub), Member(stub)
    form(zombie)
    assert zombie.commit(("t", 0, 1)) == [NONE]
    old = zombie.generation
    form(zombie, successor)
    assert successor.commit(("t", 0, 9)) == [NONE]
    assert zombie.commit(("t", 0, 2), generation=old) == [pb.ERROR_CODE_ILLEGAL_GENERATION]
    zombie.leave()
    assert zombie.commit(("t", 0, 2)) == [pb.ERROR_CODE_UNKNOWN_MEMBER_ID]
    assert Member(stub).commit(("t", 0, 3)) == [pb.ERROR_CODE_UNKNOWN_MEMBER_ID]
    assert committed(stub) == {("t", 0): 9}


def test_fenced_static_twin_is_told_so(stub: Any) -> None:
    create_topic(stub)
    older, younger = Member(stub, instance="i"), Member(stub, instance="i")
    form(older)
    assert older.member_id.startswith("i-")
    assert younger.join().error_code == NONE
    assert younger.generation == older.generation, "a static member comes back without a rebalance"
    assert older.heartbeat() == pb.ERROR_CODE_FENCED_INSTANCE_ID
    assert younger.heartbeat() == NONE


def test_consumer_without_membership_commits_and_its_group_needs_no_member(stub: Any) -> None:
    create_topic(stub)
    simple = Member(stub, group="simple")
    assert simple.commit(("t", 0, 4), ("t", 9, 4), ("none", 0, 4), ("t", 1, -1)) == [
        NONE,
        pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
        pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
        pb.ERROR_CODE_INVALID_REQUEST,
    ]
    asked = pb.OffsetFetchGroup(group_id="simple", topics=[pb.TopicPartitions(topic="t", partitions=[0, 1])])
    unknown = pb.OffsetFetchGroup(group_id="nobody", topics=[pb.TopicPartitions(topic="t", partitions=[0])])
    answers = stub.OffsetFetch(pb.OffsetFetchRequest(groups=[asked, unknown]), timeout=30).groups
    assert [group.group_id for group in answers] == ["simple", "nobody"]
    assert [(item.partition, item.offset, item.metadata) for item in answers[0].offsets] == [(0, 4, "m"), (1, -1, "")]
    assert answers[0].offsets[0].commit_ms > 0
    assert [item.offset for item in answers[1].offsets] == [-1]


def test_groups_are_listed_described_and_deleted(stub: Any) -> None:
    create_topic(stub)
    assert list(stub.ListGroups(pb.ListGroupsRequest(), timeout=30).groups) == []
    member = Member(stub, group="with members")
    form(member)
    assert Member(stub, group="offsets only").commit(("t", 0, 1)) == [NONE]

    def listed(*states: str) -> list[tuple[str, str]]:
        answer = stub.ListGroups(pb.ListGroupsRequest(states=states), timeout=30)
        assert answer.error_code == NONE
        return sorted((group.group_id, group.state) for group in answer.groups)

    assert listed() == [("offsets only", "Empty"), ("with members", "Stable")]
    assert listed("stable") == [("with members", "Stable")]
    nobody = describe(stub, "nobody")
    assert (nobody.error_code, nobody.state) == (pb.ERROR_CODE_GROUP_ID_NOT_FOUND, "Dead")
    names = ["with members", "offsets only", "nobody"]
    deleted = stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=names), timeout=30).groups
    assert [group.error_code for group in deleted] == [
        pb.ERROR_CODE_NON_EMPTY_GROUP,
        NONE,
        pb.ERROR_CODE_GROUP_ID_NOT_FOUND,
    ]
    assert listed() == [("with members", "Stable")]


def test_offsets_in_use_are_not_deleted_and_others_are(stub: Any) -> None:
    create_topic(stub)
    create_topic(stub, "other")
    member = Member(stub)
    form(member)
    assert member.commit(("t", 0, 1), ("other", 0, 2)) == [NONE, NONE]
    topics = [pb.TopicPartitions(topic="t", partitions=[0]), pb.TopicPartitions(topic="other", partitions=[0])]
    answer = stub.OffsetDelete(pb.OffsetDeleteRequest(group_id="g", topics=topics), timeout=30)
    assert [item.error_code for item in answer.partitions] == [pb.ERROR_CODE_GROUP_SUBSCRIBED_TO_TOPIC, NONE]
    assert committed(stub) == {("t", 0): 1}


def test_deleted_topic_takes_its_offsets_along_and_its_namesake_has_none(stub: Any) -> None:
    create_topic(stub)
    create_topic(stub, "kept")
    assert Member(stub).commit(("t", 0, 1), ("kept", 0, 2)) == [NONE, NONE]
    assert stub.DeleteTopics(pb.DeleteTopicsRequest(topics=["t"]), timeout=30).topics[0].error_code == NONE
    assert committed(stub) == {("kept", 0): 2}
    create_topic(stub)
    assert committed(stub) == {("kept", 0): 2}
    assert Member(stub).commit(("t", 0, 3)) == [NONE]
    assert committed(stub) == {("kept", 0): 2, ("t", 0): 3}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"group_id": ""}, pb.ERROR_CODE_INVALID_GROUP_ID),
        ({"member_id": "unknown"}, pb.ERROR_CODE_UNKNOWN_MEMBER_ID),
        ({"session_timeout_ms": 5_999}, pb.ERROR_CODE_INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, pb.ERROR_CODE_INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, pb.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [pb.GroupProtocol(name="range", metadata=b"\xff\xff not a subscription")]},
            pb.ERROR_CODE_INVALID_REQUEST,
        ),
    ],
)
def test_bad_join_is_refused(stub: Any, changed: dict[str, Any], code: int) -> None:
    answer = Member(stub).join_once(**changed)
    assert answer.error_code == code
    assert answer.generation == -1
    assert answer.error_message


def test_assignment_that_is_none_is_refused_also_where_the_request_names_no_protocol_type(stub: Any) -> None:
    member = Member(stub)
    assert member.join().error_code == NONE
    bad = pb.MemberAssignment(member_id=member.member_id, assignment=b"\xff\xff")
    request = pb.SyncGroupRequest(
        group_id="g", generation=member.generation, member_id=member.member_id, assignments=[bad]
    )
    assert stub.SyncGroup(request, timeout=30).error_code == pb.ERROR_CODE_INVALID_REQUEST


def test_offsets_topic_belongs_to_the_bus(stub: Any) -> None:
    create_topic(stub)
    assert Member(stub).commit(("t", 0, 1)) == [NONE]
    name = "__consumer_offsets"
    metadata = stub.Metadata(pb.MetadataRequest(topics=[name]), timeout=30).topics[0]
    assert (metadata.is_internal, len(metadata.partitions)) == (True, CONFIG.offsets_topic_num_partitions)
    resource = pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=name)
    configs = stub.DescribeConfigs(pb.DescribeConfigsRequest(resources=[resource]), timeout=30).resources[0]
    assert {entry.name: entry.value for entry in configs.entries}["cleanup.policy"] == "compact"
    refused = [
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=1)]), timeout=30).topics[0],
        stub.DeleteTopics(pb.DeleteTopicsRequest(topics=[name]), timeout=30).topics[0],
        stub.CreatePartitions(
            pb.CreatePartitionsRequest(topics=[pb.NewPartitions(name=name, partitions=9)]), timeout=30
        ).topics[0],
        stub.AlterConfigs(
            pb.AlterConfigsRequest(
                resources=[
                    pb.AlterConfigsResource(
                        resource=resource, operations=[pb.AlterConfigOp(name="retention.ms", value="1")]
                    )
                ]
            ),
            timeout=30,
        ).resources[0],
        stub.ProduceOnce(
            pb.ProduceRequest(
                partitions=[
                    pb.PartitionProduceData(
                        topic=name, partition=0, records=pb.RecordList(records=[pb.Record(value=b"v")])
                    )
                ]
            ),
            timeout=30,
        ).partitions[0],
    ]
    assert [answer.error_code for answer in refused] == [pb.ERROR_CODE_INVALID_TOPIC_EXCEPTION] * 5


def commit_when_open(stub: Any, group: str, offset: int) -> list[int]:
    """Commit again for as long as the partition of the group is being opened."""
    is_opened_now = [pb.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS]
    while (answer := Member(stub, group=group).commit(("t", 0, offset))) == is_opened_now:
        time.sleep(0.01)
    return answer


def test_many_first_calls_create_the_offsets_topic_once(stub: Any) -> None:
    create_topic(stub)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: commit_when_open(stub, f"g{number}", number), range(20)))
    assert answers == [[NONE]] * 20
    assert [committed(stub, f"g{number}") for number in range(20)] == [{("t", 0): number} for number in range(20)]


def test_offset_of_a_delta_version_is_where_the_log_ended_then(stub: Any) -> None:
    create_topic(stub)
    data = pb.PartitionProduceData(topic="t", partition=0, records=pb.RecordList(records=[pb.Record(value=b"v")] * 3))
    for _ in range(2):
        stub.ProduceOnce(pb.ProduceRequest(partitions=[data]), timeout=30)
    asked = [pb.ListOffsetsPartition(topic="t", partition=0, version=version) for version in (0, 1, 2, 3)]
    answers = stub.ListOffsets(pb.ListOffsetsRequest(partitions=asked), timeout=30).partitions
    assert [answer.offset for answer in answers] == [0, 3, 6, -1]
    assert [answer.error_code for answer in answers] == [NONE] * 4


# ---------------------------------------------------------------- sessions


class Session:
    """A GroupSession whose requests a test gives one by one."""

    def __init__(self, stub: Any) -> None:
        self._requests: list[pb.GroupSessionRequest] = []
        self._has_more = threading.Condition()
        self._is_ended = False
        self._responses = stub.GroupSession(self._iterate(), timeout=50)
        self.answers: dict[int, pb.GroupSessionResponse] = {}
        self.notices: list[int] = []

    def _iterate(self) -> Iterator[pb.GroupSessionRequest]:
        while True:
            with self._has_more:
                self._has_more.wait_for(lambda: self._requests or self._is_ended)
                if not self._requests:
                    return
                request = self._requests.pop(0)
            yield request

    def send(self, request: pb.GroupSessionRequest) -> None:
        with self._has_more:
            self._requests.append(request)
            self._has_more.notify()

    def end(self) -> None:
        with self._has_more:
            self._is_ended = True
            self._has_more.notify()

    def next(self) -> pb.GroupSessionResponse:
        return next(self._responses)

    def rest(self) -> list[pb.GroupSessionResponse]:
        return list(self._responses)


def heartbeat_of(member: Member, correlation_id: int) -> pb.GroupSessionRequest:
    return pb.GroupSessionRequest(correlation_id=correlation_id, heartbeat=member.heartbeat_request())


def test_session_answers_by_correlation_id_and_tells_of_the_rebalance_unasked(stub: Any) -> None:
    create_topic(stub)
    member, newcomer = Member(stub), Member(stub)
    form(member)
    session = Session(stub)
    session.send(heartbeat_of(member, 1))
    answer = session.next()
    assert (answer.correlation_id, answer.heartbeat.error_code) == (1, NONE)
    session.send(
        pb.GroupSessionRequest(correlation_id=2, offset_commit=member.commit_request(("t", 0, 6), ("none", 0, 1)))
    )
    answer = session.next()
    assert answer.correlation_id == 2
    assert [item.error_code for item in answer.offset_commit.partitions] == [
        NONE,
        pb.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert committed(stub) == {("t", 0): 6}
    with ThreadPoolExecutor(1) as pool:
        join = pool.submit(newcomer.join)
        notice = session.next()
        assert notice.correlation_id == 0
        assert notice.heartbeat.error_code == pb.ERROR_CODE_REBALANCE_IN_PROGRESS
        member.leave()
        assert join.result(30).error_code == NONE
    session.end()
    assert [response.heartbeat.error_code for response in session.rest()] == [pb.ERROR_CODE_UNKNOWN_MEMBER_ID]


def test_session_with_an_unreadable_request_ends_with_invalid_argument(stub: Any) -> None:
    session = Session(stub)
    session.send(pb.GroupSessionRequest(correlation_id=1))
    with pytest.raises(grpc.RpcError) as caught:
        session.next()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---------------------------------------------------------------- ends and crashes


def test_join_that_waits_is_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        with running_broker(tmp_path / "root", config=CONFIG) as broker:
            channel, stub = connect(f"127.0.0.1:{broker.port}")
            create_topic(stub)
            member, newcomer = Member(stub), Member(stub)
            form(member)
            session = Session(stub)
            session.send(heartbeat_of(member, 1))
            assert session.next().heartbeat.error_code == NONE
            join = pool.submit(newcomer.join)
            wait_for(lambda: len(describe(stub).members) == 2)
        assert join.result(50).error_code == pb.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
        assert all(not response.correlation_id for response in session.rest())
        channel.close()


def test_cancelled_join_leaves_the_group_usable(stub: Any) -> None:
    create_topic(stub)
    member, newcomer = Member(stub), Member(stub)
    form(member)
    newcomer.member_id = newcomer.join_once().member_id
    call = stub.JoinGroup.future(newcomer.join_request(), timeout=30)
    wait_for(lambda: len(describe(stub).members) == 2)
    call.cancel()
    newcomer.leave()
    assert member.join().error_code == NONE
    assert member.sync().error_code == NONE
    assert len(describe(stub).members) == 1


def test_killed_broker_comes_back_with_group_generation_and_offsets(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("offsets.topic.num.partitions = 3\ngroup.initial.rebalance.delay.ms = 0\n")
    with BrokerProcess(tmp_path / "root", "--config", str(config)) as process:
        channel, stub = connect(process.address)
        create_topic(stub)
        first, second = Member(stub), Member(stub)
        form(first, second)
        assert first.commit(("t", 0, 5)) == [NONE]
        process.kill()
        channel.close()
        process.start()
        channel, stub = connect(process.address)
        first.stub = second.stub = stub
        wait_for(lambda: stub.ListGroups(pb.ListGroupsRequest(), timeout=30).error_code == NONE)
        group = describe(stub)
        assert (group.state, group.generation, len(group.members)) == ("Stable", first.generation, 2)
        assert {member.assignment for member in group.members} == {ASSIGNMENT}
        assert [first.heartbeat(), second.heartbeat()] == [NONE, NONE]
        assert second.commit(("t", 1, 6)) == [NONE]
        assert committed(stub) == {("t", 0): 5, ("t", 1): 6}
        assert first.commit(("t", 0, 1), generation=first.generation - 1) == [pb.ERROR_CODE_ILLEGAL_GENERATION]
        channel.close()
