"""Group calls of the fake broker: groups in a dictionary, no timers, faults as scripted.

A rebalance ends when every member has joined again; only a test lets a session or a rebalance time run out
(`expire`). Who is told to rebalance learns it at once, on its session stream.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

NO_ERROR = int(ErrorCode.NONE)


@dataclass
class FakeMember:
    request: pb.JoinGroupRequest
    instance_id: str | None
    has_joined: bool = False
    assignment: bytes | None = None


@dataclass
class FakeGroup:
    members: dict[str, FakeMember] = field(default_factory=dict)
    generation: int = 0
    state: str = "Empty"
    protocol: str = ""
    leader_id: str = ""
    offsets: dict[tuple[str, int], pb.OffsetCommitPartition] = field(default_factory=dict)
    unstable: set[tuple[str, int]] = field(default_factory=set)  # an open transaction may commit an offset
    rebalances: int = 0


class FakeCoordinator:
    """`script[method]` holds the codes with which the next calls of that method are refused; NONE lets one through."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.groups: defaultdict[str, FakeGroup] = defaultdict(FakeGroup)
        self.script: defaultdict[str, deque[ErrorCode]] = defaultdict(deque)
        self.commits: list[pb.OffsetCommitRequest] = []
        self.joins: list[pb.JoinGroupRequest] = []
        self.heartbeats = 0
        self.left: list[str] = []
        self.is_stopping = False
        self._numbers = itertools.count(1)
        self._sessions: dict[str, queue.SimpleQueue[Any]] = {}

    # ------------------------------------------------------------ what tests do

    def expire(self, group_id: str, member_id: str) -> None:
        """The session of a member is over."""
        with self.changed:
            self._remove(group_id, member_id)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        with self.changed:
            return {place: found.offset for place, found in self.groups[group_id].offsets.items()}

    def wait_for_state(self, group_id: str, state: str, members: int, timeout_s: float = 20.0) -> None:
        with self.changed:
            group = self.groups[group_id]
            done = self.changed.wait_for(lambda: group.state == state and len(group.members) == members, timeout_s)
            assert done, f"expected {state} with {members} members, found {group.state} with {len(group.members)}"

    # ------------------------------------------------------------ calls; the condition is held

    def refusal(self, method: str) -> int:
        return int(self.script[method].popleft()) if self.script[method] else NO_ERROR

    def join(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:
        self.joins.append(request)
        refused = self.refusal("JoinGroup")
        group = self.groups[request.group_id]
        member_id = request.member_id
        instance_id = request.group_instance_id if request.HasField("group_instance_id") else None
        if refused:
            return pb.JoinGroupResponse(error_code=refused, error_message="as the test wants it", generation=-1)
        if not member_id:
            member_id = f"{instance_id or request.client_id}-{next(self._numbers)}"
            if instance_id is None:
                return pb.JoinGroupResponse(
                    error_code=pb.ERROR_CODE_MEMBER_ID_REQUIRED, member_id=member_id, generation=-1
                )
            for other, member in list(group.members.items()):
                if member.instance_id == instance_id:
                    del group.members[other]
                    self._notify(other)
        group.members[member_id] = member = FakeMember(request, instance_id, has_joined=True)
        self._rebalance(request.group_id)
        self._end_join(group)
        generation = group.generation
        while member.has_joined and not self.is_stopping and context.is_active():
            if group.state != "PreparingRebalance" and group.generation >= generation:
                break
            self.changed.wait(0.5)
        if group.members.get(member_id) is not member:
            return pb.JoinGroupResponse(error_code=pb.ERROR_CODE_UNKNOWN_MEMBER_ID, generation=-1)
        is_leader = group.leader_id == member_id
        return pb.JoinGroupResponse(
            generation=group.generation,
            protocol_type="consumer",
            protocol=group.protocol,
            leader_id=group.leader_id,
            member_id=member_id,
            members=[_joined(key, other, group.protocol) for key, other in group.members.items()] if is_leader else [],
        )

    def _end_join(self, group: FakeGroup) -> None:
        if group.members and all(member.has_joined for member in group.members.values()):
            group.generation += 1
            group.rebalances += 1
            group.state = "CompletingRebalance"
            group.leader_id = next(iter(group.members))
            offered = [[p.name for p in member.request.protocols] for member in group.members.values()]
            group.protocol = next(name for name in offered[0] if all(name in names for names in offered))
            for member in group.members.values():
                member.has_joined, member.assignment = False, None
        self.changed.notify_all()

    def _rebalance(self, group_id: str) -> None:
        group = self.groups[group_id]
        if group.state != "PreparingRebalance":
            group.state = "PreparingRebalance"
            for member_id in group.members:
                self._notify(member_id)

    def _remove(self, group_id: str, member_id: str) -> bool:
        group = self.groups[group_id]
        if group.members.pop(member_id, None) is None:
            return False
        self._notify(member_id)
        if group.members:
            self._rebalance(group_id)
            self._end_join(group)
        else:
            group.state = "Empty"
            group.generation += 1
        self.changed.notify_all()
        return True

    def _notify(self, member_id: str) -> None:
        session = self._sessions.get(member_id)
        if session is not None:
            session.put(pb.GroupSessionResponse(heartbeat=pb.HeartbeatResponse(error_code=NO_ERROR)))

    def sync(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:
        refused = self.refusal("SyncGroup") or self._check(request)
        group = self.groups[request.group_id]
        if not refused and group.state == "PreparingRebalance":
            refused = pb.ERROR_CODE_REBALANCE_IN_PROGRESS
        if refused:
            return pb.SyncGroupResponse(error_code=refused, error_message="refused")
        if request.member_id == group.leader_id and group.state == "CompletingRebalance":
            given = {share.member_id: share.assignment for share in request.assignments}
            for member_id, member in group.members.items():
                member.assignment = given.get(member_id, b"")
            group.state = "Stable"
            self.changed.notify_all()
        while group.state == "CompletingRebalance" and group.generation == request.generation:
            if self.is_stopping or not context.is_active():
                break
            self.changed.wait(0.5)
        member = group.members.get(request.member_id)
        if member is None:
            return pb.SyncGroupResponse(error_code=pb.ERROR_CODE_UNKNOWN_MEMBER_ID)
        if member.assignment is None or group.generation != request.generation:
            return pb.SyncGroupResponse(error_code=pb.ERROR_CODE_REBALANCE_IN_PROGRESS)
        return pb.SyncGroupResponse(protocol_type="consumer", protocol=group.protocol, assignment=member.assignment)

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        self.heartbeats += 1
        self.changed.notify_all()
        code = self.refusal("Heartbeat") or self._check(request)
        if not code and self.groups[request.group_id].state == "PreparingRebalance":
            code = pb.ERROR_CODE_REBALANCE_IN_PROGRESS
        return pb.HeartbeatResponse(error_code=code, error_message="refused" if code else "")

    def _check(self, request: Any) -> int:
        group = self.groups[request.group_id]
        member = group.members.get(request.member_id)
        if member is None:
            is_twin = request.HasField("group_instance_id") and any(
                other.instance_id == request.group_instance_id for other in group.members.values()
            )
            return int(pb.ERROR_CODE_FENCED_INSTANCE_ID if is_twin else pb.ERROR_CODE_UNKNOWN_MEMBER_ID)
        return NO_ERROR if request.generation == group.generation else int(pb.ERROR_CODE_ILLEGAL_GENERATION)

    def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        left = []
        for member in request.members:
            is_there = self._remove(request.group_id, member.member_id)
            self.left.append(member.reason)
            code = NO_ERROR if is_there else pb.ERROR_CODE_UNKNOWN_MEMBER_ID
            left.append(pb.LeftMember(member_id=member.member_id, error_code=code))
        return pb.LeaveGroupResponse(members=left)

    def commit(self, request: pb.OffsetCommitRequest) -> pb.OffsetCommitResponse:
        self.commits.append(request)
        group = self.groups[request.group_id]
        code = self.refusal("OffsetCommit")
        if not code and request.generation >= 0:
            code = self._check(request)
            if not code and group.state == "CompletingRebalance":
                code = pb.ERROR_CODE_REBALANCE_IN_PROGRESS
        elif not code and group.members:
            code = pb.ERROR_CODE_UNKNOWN_MEMBER_ID
        if not code:
            for share in request.partitions:
                group.offsets[share.topic, share.partition] = share
        self.changed.notify_all()
        return pb.OffsetCommitResponse(
            partitions=[
                pb.OffsetCommitPartitionResponse(topic=share.topic, partition=share.partition, error_code=code)
                for share in request.partitions
            ]
        )

    def fetch_offsets(self, request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
        answers = []
        for asked in request.groups:
            group = self.groups[asked.group_id]
            answer = pb.OffsetFetchGroupResponse(group_id=asked.group_id, error_code=self.refusal("OffsetFetch"))
            for topic in asked.topics:
                for number in topic.partitions:
                    found = group.offsets.get((topic.topic, number))
                    if request.require_stable and (topic.topic, number) in group.unstable:
                        code: Any = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
                        answer.offsets.add(topic=topic.topic, partition=number, offset=-1, error_code=code)
                        continue
                    answer.offsets.add(
                        topic=topic.topic,
                        partition=number,
                        offset=found.offset if found is not None else -1,
                        metadata=found.metadata if found is not None else "",
                        leader_epoch=found.leader_epoch if found is not None else -1,
                    )
            answers.append(answer)
        return pb.OffsetFetchResponse(groups=answers)

    # ------------------------------------------------------------ the session stream

    def session(self, requests: Iterator[pb.GroupSessionRequest], context: Any) -> Iterator[pb.GroupSessionResponse]:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        context.add_callback(lambda: answers.put(None))
        reader = threading.Thread(target=self._read_session, args=(requests, answers), daemon=True)
        reader.start()
        while (answer := answers.get()) is not None:
            yield answer

    def _read_session(self, requests: Iterator[pb.GroupSessionRequest], answers: queue.SimpleQueue[Any]) -> None:
        try:
            for request in requests:
                answer = pb.GroupSessionResponse(correlation_id=request.correlation_id)
                with self.changed:
                    if request.HasField("heartbeat"):
                        self._sessions[request.heartbeat.member_id] = answers
                        answer.heartbeat.CopyFrom(self.heartbeat(request.heartbeat))
                    else:
                        answer.offset_commit.CopyFrom(self.commit(request.offset_commit))
                answers.put(answer)
        except Exception:  # the client is gone; gRPC says so in several ways
            pass
        answers.put(None)


def _joined(member_id: str, member: FakeMember, protocol: str) -> pb.JoinedMember:
    metadata = next(p.metadata for p in member.request.protocols if p.name == protocol)
    return pb.JoinedMember(member_id=member_id, group_instance_id=member.instance_id, metadata=metadata)
