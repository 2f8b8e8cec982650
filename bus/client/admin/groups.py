"""The administrator's calls for consumer groups, to the coordinators of the groups: messages to values and back.

Guards two promises: of several items all are tried, and one `BusError` tells of those that failed; and each group is
answered once, by a coordinator that was ready for it. An answer that says nothing was done yet
(COORDINATOR_LOAD_IN_PROGRESS and the like) is no answer: the call is made again, where the coordinator is by then,
until the time is over. What a group's own members may do is the coordinator's to decide; nothing is checked here that
it checks. Safe to use from several threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.connections import NotConnected
from bus.client.connection.group_requests import (
    PROTOCOL_TYPE,
    commit_partitions,
    commit_portions,
    flat,
    topic_partitions,
)
from bus.client.connection.portions import ITEMS_MAX, portions
from bus.client.connection.retrying import monotonic_ms
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


class GroupAdmin:
    """Every method blocks until the coordinator's answer and raises `BusError`."""

    def __init__(self, cluster: Cluster, calls: GroupCalls) -> None:
        self._cluster = cluster
        self._calls = calls

    def list_on(self, address: str, states: Sequence[str], deadline_ms: float) -> list[GroupListing]:
        """Those that the broker at `address` coordinates."""
        request = pb.ListGroupsRequest(states=states)
        response = self._cluster.call("ListGroups", request, address=address, deadline_ms=deadline_ms)
        if response.error_code:
            raise error_of(response.error_code, response.error_message)
        return [GroupListing(group.group_id, group.protocol_type, group.state) for group in response.groups]

    def describe(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        answers = self._calls.ask(
            "DescribeGroups", group_ids, lambda ids: pb.DescribeGroupsRequest(group_ids=ids), _answers_of_groups
        )
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
            topics = [] if wanted is None else topic_partitions(wanted)
            groups = [
                pb.OffsetFetchGroup(group_id=group_id, all_partitions=wanted is None, topics=topics) for group_id in ids
            ]
            return pb.OffsetFetchRequest(groups=groups)

        found: dict[str, dict[TopicPartition, CommittedOffset]] = {group_id: {} for group_id in group_ids}
        for wanted in [None] if partitions is None else portions(sorted(partitions)):
            groups_max = min(GROUPS_MAX, ITEMS_MAX // len(wanted)) if wanted else GROUPS_MAX
            request = functools.partial(request_of, wanted)
            answers = self._calls.ask("OffsetFetch", found, request, _answers_of_groups, groups_max=groups_max)
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
            request = pb.OffsetDeleteRequest(group_id=group_id, topics=topic_partitions(portion))
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

    def _ask_one(self, method: str, group_id: str, request: Any, *, is_repeatable: bool) -> GroupAnswer:
        answers = self._calls.ask(
            method,
            [group_id],
            lambda _: request,
            lambda response: [_answer_of_one(group_id, response)],
            is_repeatable=is_repeatable,
        )
        return answers[group_id]


def _answers_of_groups(response: Any) -> Iterator[GroupAnswer]:
    for group in response.groups:
        yield GroupAnswer(group.group_id, group.error_code, group.error_message, group)


def _answer_of_one(group_id: str, response: Any) -> GroupAnswer:
    """A commit has no error of its own: what the coordinator refuses as a whole it says of every partition."""
    if "error_code" in response.DESCRIPTOR.fields_by_name:
        return GroupAnswer(group_id, response.error_code, response.error_message, response)
    codes = {(result.error_code, result.error_message) for result in response.partitions}
    code, message = codes.pop() if len(codes) == 1 else (ErrorCode.NONE, "")
    return GroupAnswer(group_id, code, message, response)


def _raise_refusals(answers: Mapping[str, GroupAnswer]) -> None:
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
        partitions=tuple(sorted(flat(assignment.partitions))),
    )


def _read_into(message: Any, data: bytes) -> None:
    """Bytes that a member of another client made up are shown as nothing, not as a failure to describe the group."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        message.Clear()


# A broker takes so many, or more, of them in one request.
GROUPS_MAX = 500
MEMBERS_MAX = 1_000
# The coordinator says so before it has done anything.
_NOTHING_DONE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What a response says of one group; `code` is of the group as a whole."""

    group_id: str
    code: int
    message: str
    item: Any


RequestOf = Callable[[Sequence[str]], Any]
AnswersOf = Callable[[Any], Iterable[GroupAnswer]]


class _OutcomeUnknown(BusError):
    """Of a call that changes something and must not be sent a second time."""


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    request_of: RequestOf
    answers_of: AnswersOf
    is_repeatable: bool
    groups_max: int  # in one request
    deadline_ms: float


class GroupCalls:
    def __init__(self, cluster: Cluster, *, timeout_ms: int, retries: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._retries = retries
        self._addresses: dict[str, str] = {}  # by group id

    def ask(
        self,
        method: str,
        group_ids: Iterable[str],
        request_of: RequestOf,
        answers_of: AnswersOf,
        *,
        is_repeatable: bool = True,
        groups_max: int = GROUPS_MAX,
    ) -> dict[str, GroupAnswer]:
        """The answer for each group, refusals included; of the groups of a coordinator, `groups_max` go in one call.

        Raises `BusError` if a group was not answered. What is not `is_repeatable` is not sent again after a call whose
        outcome is not known: the second answer would not be the first one's.
        """
        wanted = list(dict.fromkeys(group_ids))
        answers: dict[str, GroupAnswer] = {}
        deadline_ms = monotonic_ms() + self._timeout_ms
        call = _Call(method, request_of, answers_of, is_repeatable, groups_max, deadline_ms)

        def ask() -> dict[str, GroupAnswer]:
            self._ask_once(call, [group_id for group_id in wanted if group_id not in answers], answers)
            return answers

        return self._cluster.retry(ask, deadline_ms=deadline_ms, retries=self._retries, may_retry=self._may_retry)

    def _may_retry(self, error: BusError) -> bool:
        return not isinstance(error, _OutcomeUnknown) and self._cluster.may_retry(error)

    def _ask_once(self, call: _Call, group_ids: Sequence[str], answers: dict[str, GroupAnswer]) -> None:
        """Add to `answers`. Raises an error that is final, else the last one of those that may pass."""
        by_address: dict[str, list[str]] = {}
        error: BusError | None = None
        for group_id in group_ids:
            try:
                by_address.setdefault(self._find(group_id, call.deadline_ms), []).append(group_id)
            except BusError as failure:
                if not self._cluster.may_retry(failure):
                    raise
                error = failure
        asked = [
            (address, ids) for address, all_ids in by_address.items() for ids in portions(all_ids, call.groups_max)
        ]
        for address, ids in asked:
            try:
                response = self._cluster.call(
                    call.method, call.request_of(ids), address=address, deadline_ms=call.deadline_ms
                )
            except BusError as failure:
                self._forget(ids)
                if not call.is_repeatable and not isinstance(failure, NotConnected):
                    raise _OutcomeUnknown(failure.code, failure.message) from failure
                if not self._cluster.may_retry(failure):
                    raise
                error = failure
                continue
            for answer in call.answers_of(response):
                if answer.code in _NOTHING_DONE:
                    error = error_of(answer.code, answer.message)
                    self._forget([answer.group_id])
                else:
                    answers[answer.group_id] = answer
        if error is not None:
            raise error

    def _find(self, group_id: str, deadline_ms: float) -> str:
        address = self._addresses.get(group_id)
        if address is None:
            request = pb.FindCoordinatorRequest(key=group_id)
            response = self._cluster.call("FindCoordinator", request, deadline_ms=deadline_ms, is_reading=True)
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            address = f"{response.coordinator.host}:{response.coordinator.port}"
            self._addresses[group_id] = address
        return address

    def _forget(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            self._addresses.pop(group_id, None)
