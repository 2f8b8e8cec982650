"""Whatever a client says of a group: it is refused by name, or it can be read back by the next coordinator and by every
other client. No request breaks an assertion."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.broker_api.groups import commit_of, with_topic_id
from bus.broker_api.requests import Caller
from bus.client.connection.group_requests import decode_assignment, decode_subscription
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, apply
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.consumer_groups import requests as rq
from bus.consumer_groups.decisions import decide
from bus.consumer_groups.group import GroupRules, GroupState
from bus.consumer_groups.loading import read_groups
from bus.errors import Refused
from bus.grpc_api.server import group_calls as calls
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import decode_partitions
from bus.model import CONSUMER_OFFSETS_TOPIC
from bus.records.log_schema import CONSUMER_OFFSETS_VALUE_TYPE
from bus.storage_delta.typed_log import DeltaKeyedRows
from tests.support.group_rules_bench import GROUP_ID, GroupBench, load_groups
from tests.support.hostile_group_requests import PARTITIONS, TOPIC, group_requests

STATE = apply(apply(EMPTY_CLUSTER, BrokerRegistered(0, "h", 1)), TopicCreated(TOPIC, "id", PARTITIONS, 0))
CALLER = Caller("ipv4:127.0.0.1:5000", "/127.0.0.1", "request")
ROWS = DeltaKeyedRows(CONSUMER_OFFSETS_TOPIC, CONSUMER_OFFSETS_VALUE_TYPE)


class Door:
    """A group, asked by messages as the servicer is; `GroupBench` holds it to its promises after every step."""

    def __init__(self) -> None:
        self.bench = GroupBench(GroupRules(initial_rebalance_delay_ms=0))
        self.member_ids: list[str] = []

    def ask(self, kind: str, request: Any) -> None:
        command = self.decode(kind, request)
        if isinstance(command, Refused):
            self.check_refused(command)
        elif command.group_id != GROUP_ID:
            step = decide(None, command, request_id=1, rules=self.bench.rules, now_ms=1)
            assert not step.records
            for reply in step.replies:
                self.check_refused(reply.answer)
        else:
            before = len(self.bench.answers)
            self.bench.ask(command, name=f"{request.client_id}" if kind == "join" else "m")
            for answer in list(self.bench.answers.values())[before:]:
                self.hear(answer)

    def decode(self, kind: str, request: Any) -> Any:
        group = self.bench.group
        match kind:
            case "join":
                return calls.decode_join(request, CALLER)
            case "sync":
                return calls.decode_sync(request, None if group is None else group.protocol_type)
            case "heartbeat":
                return calls.decode_heartbeat(request)
            case "leave":
                return calls.decode_leave(request)
            case "commit":
                found = [with_topic_id(item, STATE) for item in calls.offsets_of(request)]
                return commit_of(calls.member_of(request), found).command
            case "fetch":
                return calls.decode_offset_fetch(request)
            case "forget":
                return rq.OffsetDelete(request.group_id, decode_partitions(request.topics))
            case "describe":
                return rq.DescribeGroup(request.group_id)
            case _:
                return rq.DeleteGroup(request.group_id)

    def hear(self, answer: Any) -> None:
        match answer:
            case rq.Joined() if answer.protocol_type == "consumer":
                for member in answer.members:
                    decode_subscription(pb.JoinedMember(member_id=member.member_id, metadata=member.metadata))
            case rq.Synced() if answer.protocol_type == "consumer":
                assert all(one.partition >= 0 for one in decode_assignment(answer.assignment))
            case rq.JoinRefused() | Refused():
                self.check_refused(answer)
            case rq.MembersRemoved(refusals) | rq.OffsetsCommitted(refusals) | rq.OffsetsDeleted(refusals):
                for refused in refusals:
                    assert refused is None or self.check_refused(refused)

    def check_refused(self, answer: Any) -> bool:
        """It has a message of one short line, whatever the client said."""
        refused = answer.refused if isinstance(answer, rq.JoinRefused) else answer
        assert isinstance(refused, Refused), answer
        assert 0 < len(refused.message) < 10_000
        assert not any(character in refused.message for character in "\n\r\x00\x1b\x7f\u0085\u2028")
        return True

    def check_next_coordinator(self) -> None:
        """Through the columns of the log, as they are stored."""
        if self.bench.rows:
            last = {row.key: row for row in ROWS.decode_again(ROWS.encode(self.bench.rows, now_ms=1))}
            loaded = read_groups((row for row in last.values() if row.value is not None), now_ms=1)
            assert loaded.faults == ()
            assert loaded.states == load_groups(self.bench.records)

    def become_stable(self) -> None:
        """Bring the group to Stable, with two static members that have a partition each."""
        self.ask("join", join_of("desk"))
        self.ask("join", join_of("till"))
        self.bench.wait(1)
        group = self.bench.group
        assert group is not None
        data = pb.ConsumerAssignment(partitions=[pb.TopicPartitions(topic=TOPIC, partitions=[0])]).SerializeToString()
        for member in list(group.members.values()):
            assigned = [pb.MemberAssignment(member_id=one, assignment=data) for one in group.members]
            self.ask(
                "sync",
                pb.SyncGroupRequest(
                    group_id=GROUP_ID,
                    generation=group.generation,
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    assignments=assigned,
                ),
            )
        assert self.bench.group is not None
        assert self.bench.group.state is GroupState.STABLE


def join_of(instance_id: str) -> pb.JoinGroupRequest:
    subscription = pb.ConsumerSubscription(topics=[TOPIC], generation=-1).SerializeToString()
    return pb.JoinGroupRequest(
        group_id=GROUP_ID,
        group_instance_id=instance_id,
        session_timeout_ms=100_000,
        rebalance_timeout_ms=20_000,
        protocol_type="consumer",
        protocols=[pb.GroupProtocol(name="range", metadata=subscription)],
        client_id="client",
    )


@settings(max_examples=settings.default.max_examples * 5 // 2)
@given(st.data(), st.booleans())
def test_what_is_accepted_can_be_read_back_and_what_is_refused_says_why(data: st.DataObject, is_stable: bool) -> None:
    door = Door()
    if is_stable:
        door.become_stable()
    for _ in range(data.draw(st.integers(1, 6))):
        group = door.bench.group
        known: list[tuple[str, str | None]] = []
        if group is not None:
            known += [(member.member_id, member.group_instance_id) for member in group.members.values()]
            known += [(member_id, None) for member_id in group.pending_members]
        generation = -1 if group is None else group.generation
        door.ask(*data.draw(group_requests(GROUP_ID, known, generation)))
        if data.draw(st.integers(0, 4)) == 0:
            door.bench.wait(data.draw(st.sampled_from([1_000, 70_000])))
    door.check_next_coordinator()
    door.bench.crash()
