"""Groups in memory behind the fake broker: what an administrator asks for, no membership protocol.

A test puts groups and members there by hand. Kafka's refusals that an administrator meets are kept: offsets of a group
with members are its members', a group with members is not deleted, offsets of a subscribed topic stay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bus.errors import ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from tests.support.fake_broker import Cluster, FakeBroker

COMMIT_MS = 1_700_000_000_000


@dataclass
class FakeGroup:
    state: str = "Empty"
    protocol_type: str = "consumer"
    protocol: str = ""
    generation: int = 0
    members: list[pb.DescribedMember] = field(default_factory=list)
    offsets: dict[TopicPartition, pb.CommittedOffset] = field(default_factory=dict)
    pending_offsets: list[pb.PendingOffsets] = field(default_factory=list)

    def topics(self) -> set[str]:
        found = [pb.ConsumerSubscription.FromString(member.metadata).topics for member in self.members]
        return {topic for topics in found for topic in topics}


class FakeGroupBroker(FakeBroker):
    """`group_script`: codes to answer the next calls about groups with, instead of doing them."""

    def __init__(self, cluster: Cluster | None = None, broker_id: int = 0) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.group_script: deque[ErrorCode] = deque()
        self.versions: dict[tuple[TopicPartition, int], int] = {}  # the high watermark that a version left
        super().__init__(cluster, broker_id)

    def commit(self, group_id: str, offsets: dict[TopicPartition, int]) -> None:
        group = self.groups.setdefault(group_id, FakeGroup(protocol_type=""))
        for one, offset in offsets.items():
            group.offsets[one] = pb.CommittedOffset(
                topic=one.topic, partition=one.partition, offset=offset, leader_epoch=-1, commit_ms=COMMIT_MS
            )

    def join(
        self, group_id: str, member_id: str, partitions: list[TopicPartition], instance_id: str | None = None
    ) -> None:
        group = self.groups.setdefault(group_id, FakeGroup())
        group.state, group.protocol, group.generation = "Stable", "range", group.generation + 1
        topics = sorted({one.topic for one in partitions})
        by_topic = [
            pb.TopicPartitions(topic=topic, partitions=[one.partition for one in partitions if one.topic == topic])
            for topic in topics
        ]
        group.members.append(
            pb.DescribedMember(
                member_id=member_id,
                group_instance_id=instance_id,
                client_id=f"client-{member_id}",
                client_host="/127.0.0.1",
                metadata=pb.ConsumerSubscription(topics=topics).SerializeToString(),
                assignment=pb.ConsumerAssignment(partitions=by_topic).SerializeToString(),
                session_timeout_ms=45_000,
                rebalance_timeout_ms=300_000,
            )
        )

    def append_values(self, topic: str, partition: int, count: int) -> None:
        """So many records, in no batch that can be read."""
        log = self.cluster.topics[topic].partitions[partition]
        base = log.high_watermark
        log.batches.append(pb.LogBatch(base_offset=base, next_offset=base + count, timestamp_ms=COMMIT_MS + base))

    # ------------------------------------------------------------ calls

    def FindCoordinator(self, request: pb.FindCoordinatorRequest, context: Any) -> pb.FindCoordinatorResponse:
        self._note("FindCoordinator", context)
        return pb.FindCoordinatorResponse(coordinator=self._me())

    def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:
        self._note("ListGroups", context)
        listed = [
            pb.ListedGroup(group_id=group_id, protocol_type=group.protocol_type, state=group.state)
            for group_id, group in self.groups.items()
            if not request.states or group.state in request.states
        ]
        return pb.ListGroupsResponse(error_code=self._next_code(), groups=listed)

    def DescribeGroups(self, request: pb.DescribeGroupsRequest, context: Any) -> pb.DescribeGroupsResponse:
        self._note("DescribeGroups", context)
        return pb.DescribeGroupsResponse(groups=[self._describe_group(group_id) for group_id in request.group_ids])

    def _describe_group(self, group_id: str) -> pb.DescribedGroup:
        code, group = self._next_code(), self.groups.get(group_id)
        if code or group is None:
            code = code or ErrorCode.GROUP_ID_NOT_FOUND
            return pb.DescribedGroup(
                group_id=group_id, error_code=code, error_message=f"group {group_id!r} does not exist", state="Dead"
            )
        return pb.DescribedGroup(
            group_id=group_id,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            generation=group.generation,
            leader_id=group.members[0].member_id if group.members else "",
            coordinator=self._me(),
            members=group.members,
            pending_offsets=group.pending_offsets,
        )

    def DeleteGroups(self, request: pb.DeleteGroupsRequest, context: Any) -> pb.DeleteGroupsResponse:
        self._note("DeleteGroups", context)
        return pb.DeleteGroupsResponse(groups=[self._delete_group(group_id) for group_id in request.group_ids])

    def _delete_group(self, group_id: str) -> pb.DeletedGroup:
        code, group = self._next_code(), self.groups.get(group_id)
        if not code and group is None:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not code and group is not None and group.members:
            code = ErrorCode.NON_EMPTY_GROUP
        elif not code:
            del self.groups[group_id]
        return pb.DeletedGroup(group_id=group_id, error_code=code, error_message=f"of group {group_id!r}")

    def OffsetCommit(self, request: pb.OffsetCommitRequest, context: Any) -> pb.OffsetCommitResponse:
        self._note("OffsetCommit", context)
        code, group = self._next_code(), self.groups.get(request.group_id)
        if not code and group is not None and group.members and not request.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        results = []
        for one in request.partitions:
            place = TopicPartition(one.topic, one.partition)
            there = one.topic in self.cluster.topics
            result = code or (ErrorCode.NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not result:
                self.commit(request.group_id, {place: one.offset})
                self.groups[request.group_id].offsets[place].metadata = one.metadata
            results.append(_of_partition(place, result))
        return pb.OffsetCommitResponse(partitions=results)

    def OffsetFetch(self, request: pb.OffsetFetchRequest, context: Any) -> pb.OffsetFetchResponse:
        self._note("OffsetFetch", context)
        return pb.OffsetFetchResponse(groups=[self._fetch_offsets(wanted) for wanted in request.groups])

    def _fetch_offsets(self, wanted: pb.OffsetFetchGroup) -> pb.OffsetFetchGroupResponse:
        known = self.groups.get(wanted.group_id, FakeGroup()).offsets
        places = [TopicPartition(one.topic, number) for one in wanted.topics for number in one.partitions]
        chosen = known if wanted.all_partitions else places
        nothing = pb.CommittedOffset(offset=-1, leader_epoch=-1, commit_ms=-1)
        offsets = []
        for place in chosen:
            offset = pb.CommittedOffset()
            offset.CopyFrom(known.get(place, nothing))
            offset.topic, offset.partition = place.topic, place.partition
            offsets.append(offset)
        return pb.OffsetFetchGroupResponse(group_id=wanted.group_id, error_code=self._next_code(), offsets=offsets)

    def OffsetDelete(self, request: pb.OffsetDeleteRequest, context: Any) -> pb.OffsetDeleteResponse:
        self._note("OffsetDelete", context)
        code, group = self._next_code(), self.groups.get(request.group_id)
        if code or group is None:
            code = code or ErrorCode.GROUP_ID_NOT_FOUND
            return pb.OffsetDeleteResponse(error_code=code, error_message=f"group {request.group_id!r}")
        results = []
        for place in [TopicPartition(one.topic, number) for one in request.topics for number in one.partitions]:
            is_subscribed = place.topic in group.topics()
            if not is_subscribed:
                group.offsets.pop(place, None)
            results.append(
                _of_partition(place, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE)
            )
        return pb.OffsetDeleteResponse(partitions=results)

    def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:
        self._note("LeaveGroup", context)
        group = self.groups[request.group_id]
        answers = []
        for leaving in request.members:
            left = [
                one
                for one in group.members
                if one.member_id == leaving.member_id
                or (leaving.group_instance_id and one.group_instance_id == leaving.group_instance_id)
            ]
            group.members = [one for one in group.members if one not in left]
            code = ErrorCode.NONE if left else ErrorCode.UNKNOWN_MEMBER_ID
            answers.append(pb.LeftMember(member_id=leaving.member_id, error_code=code, error_message="no such member"))
        if not group.members:
            group.state, group.protocol = "Empty", ""
        return pb.LeaveGroupResponse(members=answers)

    def _list_offset(self, wanted: pb.ListOffsetsPartition) -> pb.ListOffsetsPartitionResponse:
        if not wanted.HasField("version"):
            return super()._list_offset(wanted)
        offset = self.versions.get((TopicPartition(wanted.topic, wanted.partition), wanted.version), -1)
        return pb.ListOffsetsPartitionResponse(topic=wanted.topic, partition=wanted.partition, offset=offset)

    def _next_code(self) -> int:
        return int(self.group_script.popleft()) if self.group_script else 0

    def _me(self) -> pb.Broker:
        return pb.Broker(broker_id=self.broker_id, host="127.0.0.1", port=self.port)


def _of_partition(place: TopicPartition, code: int) -> pb.OffsetCommitPartitionResponse:
    return pb.OffsetCommitPartitionResponse(
        topic=place.topic, partition=place.partition, error_code=code, error_message=f"of {place}" if code else ""
    )
