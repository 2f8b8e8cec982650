"""Hostile requests about groups against a real broker: after a restart every group is as it was, for every reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

import bus.sql
from bus import Admin
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.hostile_group_requests import PARTITIONS, TOPIC, group_requests

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=2)
SUBSCRIPTION = pb.ConsumerSubscription(topics=[TOPIC], generation=-1).SerializeToString()
ASSIGNMENT = pb.ConsumerAssignment(
    partitions=[pb.TopicPartitions(topic=TOPIC, partitions=range(PARTITIONS))]
).SerializeToString()
JOIN_TIMEOUT_S = 0.1  # of a join that waits for others: the client goes away


@contextmanager
def connected(root: Path) -> Iterator[tuple[str, bus_pb2_grpc.BusStub]]:
    with running_broker(root, config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with grpc.insecure_channel(address) as channel:
            yield address, bus_pb2_grpc.BusStub(channel)


class Group:
    """A group as one client learns of it."""

    def __init__(self, stub: bus_pb2_grpc.BusStub, group_id: str) -> None:
        self.stub = stub
        self.group_id = group_id
        self.members: list[tuple[str, str | None]] = []
        self.generation = -1

    def begin(self) -> None:
        request = pb.JoinGroupRequest(
            group_id=self.group_id,
            group_instance_id="desk",
            client_id="client",
            session_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[pb.GroupProtocol(name="range", metadata=SUBSCRIPTION)],
        )
        joined = self.stub.JoinGroup(request, timeout=30)
        while joined.error_code == pb.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS:  # the first group creates the topic
            joined = self.stub.JoinGroup(request, timeout=30)
        assert joined.error_code == pb.ERROR_CODE_NONE, joined
        self.hear(joined, "desk")
        synced = self.stub.SyncGroup(
            pb.SyncGroupRequest(
                group_id=self.group_id,
                generation=joined.generation,
                member_id=joined.member_id,
                assignments=[pb.MemberAssignment(member_id=joined.member_id, assignment=ASSIGNMENT)],
            ),
            timeout=30,
        )
        assert synced.error_code == pb.ERROR_CODE_NONE, synced
        committed = self.stub.OffsetCommit(
            pb.OffsetCommitRequest(
                group_id=self.group_id,
                generation=joined.generation,
                member_id=joined.member_id,
                partitions=[pb.OffsetCommitPartition(topic=TOPIC, partition=1, offset=3, leader_epoch=-1)],
            ),
            timeout=30,
        )
        assert [one.error_code for one in committed.partitions] == [pb.ERROR_CODE_NONE]

    def hear(self, answer: Any, instance_id: str | None) -> None:
        if isinstance(answer, pb.JoinGroupResponse) and answer.member_id:
            self.members = [(answer.member_id, instance_id), *self.members]
            self.generation = max(self.generation, answer.generation)

    def ask(self, kind: str, request: Any) -> None:
        try:
            self.hear(self.call(kind, request), getattr(request, "group_instance_id", None) or None)
        except grpc.RpcError as error:
            is_refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            if not is_refused and not (kind == "join" and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                raise AssertionError(f"{kind} {request}") from error

    def call(self, kind: str, request: Any) -> Any:
        stub = self.stub
        match kind:
            case "join":
                return stub.JoinGroup(request, timeout=JOIN_TIMEOUT_S)
            case "sync":
                return stub.SyncGroup(request, timeout=30)
            case "heartbeat":
                asked = pb.GroupSessionRequest(correlation_id=1, heartbeat=request)
                return next(stub.GroupSession(iter([asked]), timeout=30))
            case "leave":
                return stub.LeaveGroup(request, timeout=30)
            case "commit":
                asked = pb.GroupSessionRequest(correlation_id=1, offset_commit=request)
                return next(stub.GroupSession(iter([asked]), timeout=30))
            case "fetch":
                return stub.OffsetFetch(pb.OffsetFetchRequest(groups=[request]), timeout=30)
            case "forget":
                return stub.OffsetDelete(request, timeout=30)
            case "describe":
                return stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[request.group_id]), timeout=30)
            case _:
                return stub.DeleteGroups(pb.DeleteGroupsRequest(group_ids=[request.group_id]), timeout=30)


def described(address: str, names: list[str]) -> dict[str, Any]:
    """Return what an administrator sees of the groups that are in no rebalance, and the offsets of all groups."""
    with Admin(address) as admin:
        there = {group.group_id: group for group in admin.list_groups() if group.group_id in names}
        quiet = [name for name, group in there.items() if group.state in ("Stable", "Empty")]
        groups = admin.describe_groups(quiet)
        shown = {
            name: (group.state, group.generation, group.protocol, group.leader_id, group.members)
            for name, group in groups.items()
            if group.protocol_type
        }
        offsets = admin.list_group_offsets(sorted(there))
        return {"groups": shown, "offsets": {name: found for name, found in offsets.items() if found}}


def test_every_group_is_after_a_restart_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names: list[str] = []
    with connected(root) as (address, stub):
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name=TOPIC, partitions=PARTITIONS)]), timeout=30)

        @settings(max_examples=40, derandomize=True, database=None)
        @given(st.data())
        def ask(data: st.DataObject) -> None:
            group = Group(stub, f"group-{len(names)}")
            names.append(group.group_id)
            if data.draw(st.booleans()):
                group.begin()
            for _ in range(data.draw(st.integers(1, 4))):
                group.ask(*data.draw(group_requests(group.group_id, group.members, group.generation)))

        ask()
        before = described(address, names)
    with bus.sql.connect(str(root)) as sql:
        members = sql.sql("SELECT group_id, member_id FROM group_members").fetchall()
        offsets = sql.sql("SELECT group_id, partition, committed_offset FROM group_offsets").fetchall()
        assert len(sql.sql("SELECT * FROM lag").fetchall()) >= len(offsets)
    shown = {
        (name, partition.partition, one.offset)
        for name, found in before["offsets"].items()
        for partition, one in found.items()
    }
    assert set(offsets) == shown
    assert {(name, one.member_id) for name, group in before["groups"].items() for one in group[-1]} <= set(members)
    with connected(root) as (address, _):
        after = described(address, names)
    assert after["offsets"] == before["offsets"]
    assert {name: after["groups"].get(name) for name in before["groups"]} == before["groups"]
    assert len(before["groups"]) > 5
    assert len(before["offsets"]) > 5
