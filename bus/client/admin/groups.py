"""The administrator's calls for consumer groups, to the coordinators of the groups: messages to values and back.

Guards one promise: of several items all are tried, and one `BusError` tells of those that failed. What a group's own
members may do is the coordinator's to decide; nothing is checked here that it checks. Safe to use from several threads.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bus.addresses import format_address
from bus.client.admin.broker_calls import KEYS_MAX, CoordinatorAnswer, CoordinatorCalls, raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.group_requests import (
    PROTOCOL_TYPE,
    commit_partitions,
    commit_portions,
    decode_partitions,
    encode_partitions,
)
from bus.client.connection.retrying import ITEMS_MAX, portions
from bus.client.values import (
    BrokerInfo,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetAndMetadata,
    PendingOffsets,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

ItemT = TypeVar("ItemT")

_NO_GENERATION = -1
MEMBERS_MAX = 1_000  # a broker takes so many, or more, in one request


class GroupAdmin:
    """Every method blocks until the coordinator's answer and raises `BusError`."""

    def __init__(self, cluster: Cluster, calls: CoordinatorCalls) -> None:
        self._cluster = cluster
        self._calls = calls

    def list_on(self, broker: pb.Broker, states: Sequence[str], deadline_ms: float) -> list[GroupListing]:
        """Those that this broker coordinates."""
        request = pb.ListGroupsRequest(states=states)
        address = format_address(broker.host, broker.port)
        response = self._cluster.call("ListGroups", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return [GroupListing(group.group_id, group.protocol_type, group.state) for group in response.groups]

    def describe(self, group_ids: Iterable[str], *, may_be_gone: bool = False) -> dict[str, GroupDescription]:
        """`may_be_gone`: one that does not exist is left out."""
        answers = self._calls.ask(
            "DescribeGroups", group_ids, lambda ids: pb.DescribeGroupsRequest(group_ids=ids), _answers_of_groups
        )
        if may_be_gone:
            answers = {name: one for name, one in answers.items() if one.code != ErrorCode.GROUP_ID_NOT_FOUND}
        _raise_refusals(answers)
        return {group_id: _description(answer.item) for group_id, answer in answers.items()}

    def delete(self, group_ids: Iterable[str]) -> None:
        _raise_refusals(
            self._calls.ask(
                "DeleteGroups",
                group_ids,
                lambda ids: pb.DeleteGroupsRequest(group_ids=ids),
                _answers_of_groups,
                is_repeatable=False,
            )
        )

    def fetch_offsets(
        self, group_ids: Iterable[str], partitions: Collection[TopicPartition] | None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        def request_of(wanted: Sequence[TopicPartition] | None, ids: Sequence[str]) -> pb.OffsetFetchRequest:
            topics = [] if wanted is None else encode_partitions(wanted)
            groups = [
                pb.OffsetFetchGroup(group_id=group_id, all_partitions=wanted is None, topics=topics) for group_id in ids
            ]
            return pb.OffsetFetchRequest(groups=groups)

        found: dict[str, dict[TopicPartition, CommittedOffset]] = {group_id: {} for group_id in group_ids}
        for wanted in [None] if partitions is None else portions(sorted(partitions)):
            groups_max = min(KEYS_MAX, ITEMS_MAX // len(wanted)) if wanted else KEYS_MAX
            request = functools.partial(request_of, wanted)
            answers = self._calls.ask("OffsetFetch", found, request, _answers_of_groups, keys_max=groups_max)
            _raise_refusals(answers)
            for group_id, answer in answers.items():
                found[group_id].update(_committed(answer.item))
        return found

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """As a consumer that is no member, which the coordinator takes while the group is empty."""
        for portion in commit_portions(offsets):
            self._commit_portion(group_id, portion)

    def _commit_portion(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        request = pb.OffsetCommitRequest(
            group_id=group_id,
            generation=_NO_GENERATION,
            partitions=commit_partitions(offsets),
        )
        answer = self._ask_one("OffsetCommit", group_id, request, is_repeatable=True)
        if any(result.error_code == ErrorCode.UNKNOWN_MEMBER_ID for result in answer.item.partitions):
            raise BusError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group_id!r} has members, and only they may commit its offsets; stop them first",
            )
        _raise_partition_failures(answer.item)

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        for portion in portions(sorted(partitions)):
            request = pb.OffsetDeleteRequest(group_id=group_id, topics=encode_partitions(portion))
            answer = self._ask_one("OffsetDelete", group_id, request, is_repeatable=True)
            _raise_refusals({group_id: answer})
            _raise_partition_failures(answer.item)

    def remove_members(self, group_id: str, members: Sequence[pb.LeavingMember]) -> None:
        failures: list[tuple[str, int, str]] = []
        for portion in portions(members, MEMBERS_MAX):
            request = pb.LeaveGroupRequest(group_id=group_id, members=portion)
            answer = self._ask_one("LeaveGroup", group_id, request, is_repeatable=False)
            _raise_refusals({group_id: answer})
            failures += [
                (member.member_id or member.group_instance_id, member.error_code, member.error_message)
                for member in answer.item.members
            ]
        raise_failures(failures)

    def _ask_one(self, method: str, group_id: str, request: Any, *, is_repeatable: bool) -> CoordinatorAnswer:
        answers = self._calls.ask(
            method,
            [group_id],
            lambda _: request,
            lambda response: [_answer_of_one(group_id, response)],
            is_repeatable=is_repeatable,
        )
        return answers[group_id]


def _answers_of_groups(response: Any) -> Iterator[CoordinatorAnswer]:
    for group in response.groups:
        yield CoordinatorAnswer(group.group_id, group.error_code, group.error_message, group)


def _answer_of_one(group_id: str, response: Any) -> CoordinatorAnswer:
    """A commit has no error of its own: what the coordinator refuses as a whole it says of every partition."""
    if "error_code" in response.DESCRIPTOR.fields_by_name:
        return CoordinatorAnswer(group_id, response.error_code, response.error_message, response)
    codes = {(result.error_code, result.error_message) for result in response.partitions}
    code, message = codes.pop() if len(codes) == 1 else (ErrorCode.NONE, "")
    return CoordinatorAnswer(group_id, code, message, response)


def _raise_refusals(answers: Mapping[str, CoordinatorAnswer]) -> None:
    raise_failures([(group_id, answer.code, answer.message) for group_id, answer in answers.items()])


def _raise_partition_failures(response: Any) -> None:
    """What is refused of all of them for one reason is said once."""
    reasons = {(result.error_code, result.error_message) for result in response.partitions}
    if len(reasons) == 1:
        raise_failures([("", *reasons.pop())])
    raise_failures(
        [
            (f"{result.topic}-{result.partition}", result.error_code, result.error_message)
            for result in response.partitions
        ]
    )


def _committed(group: pb.OffsetFetchGroupResponse) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
    for offset in group.offsets:
        if offset.offset >= 0:
            yield (
                TopicPartition(offset.topic, offset.partition),
                CommittedOffset(offset.offset, offset.metadata, offset.leader_epoch, offset.commit_ms),
            )


def _description(group: pb.DescribedGroup) -> GroupDescription:
    is_consumer = group.protocol_type == PROTOCOL_TYPE
    coordinator = group.coordinator
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        leader_id=group.leader_id,
        coordinator=BrokerInfo(coordinator.broker_id, coordinator.host, coordinator.port),
        members=tuple(_member(member, is_consumer=is_consumer) for member in group.members),
        pending_offsets=tuple(
            PendingOffsets(one.producer_id, one.producer_epoch, one.offset_count, one.commit_ms)
            for one in group.pending_offsets
        ),
    )


def _member(member: pb.DescribedMember, *, is_consumer: bool) -> MemberDescription:
    subscription, assignment = pb.ConsumerSubscription(), pb.ConsumerAssignment()
    if is_consumer:
        _read_into(subscription, member.metadata)
        _read_into(assignment, member.assignment)
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id if member.HasField("group_instance_id") else None,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=tuple(subscription.topics),
        partitions=tuple(sorted(decode_partitions(assignment.partitions))),
    )


def _read_into(message: Any, data: bytes) -> None:
    """Bytes that a member of another client made up are shown as nothing, not as a failure to describe the group."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        message.Clear()
