"""The administrator's calls about consumer groups, to the coordinators of the groups.

Guards one promise: of several items all are tried, and one `BusError` tells of those that failed. What a group's own
members may do is the coordinator's to decide; nothing is checked here that it checks.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from bus.client.admin import offset_targets as targets
from bus.client.admin.broker_calls import KEYS_MAX, CoordinatorAnswer, answered_items, raise_failures
from bus.client.admin.topics import TopicAdmin
from bus.client.arguments import (
    check_items,
    check_text,
    check_texts,
    check_topic_partition,
    check_topic_partitions,
    offsets_by_partition,
)
from bus.client.connection.group_requests import (
    commit_partitions,
    commit_portions,
)
from bus.client.connection.retrying import ITEMS_MAX, portions
from bus.client.values import OffsetAndMetadata, check_committed
from bus.descriptions import (
    CommittedOffset,
    GroupDescription,
    GroupListing,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import (
    COMMITTED_OFFSET,
    GROUP,
    GROUP_LISTING,
    encode_partitions,
)
from bus.model import TopicPartition
from bus.tables.point_in_time import Bound

_NO_GENERATION = -1
MEMBERS_MAX = 1_000  # a broker takes so many, or more, in one request


class GroupAdmin(TopicAdmin):
    """Groups stand on topics: a new group is given offsets of partitions that there are."""

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """All groups, or those in one of `states`, sorted by id."""
        request = pb.ListGroupsRequest(states=check_texts("states", states))
        found = self._calls.ask_each(
            "ListGroups", request, lambda _, response: map(GROUP_LISTING.decode, response.groups)
        )
        by_id = {group.group_id: group for group in found}
        return [by_id[group_id] for group_id in sorted(by_id)]

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return them by id, in the order of `group_ids`. Raises GROUP_ID_NOT_FOUND for an id that is no group's."""
        answers = self._ask_to_describe_groups(check_texts("group_ids", group_ids))
        return {group_id: GROUP.decode(group) for group_id, group in answered_items(answers).items()}

    def _ask_to_describe_groups(self, group_ids: Iterable[str]) -> dict[str, CoordinatorAnswer]:
        return self._calls.groups.ask(
            "DescribeGroups", group_ids, lambda ids: pb.DescribeGroupsRequest(group_ids=ids), _answers_of_groups
        )

    def _describe_all_groups(self) -> Iterable[GroupDescription]:
        """Those that are still there when they are described."""
        answers = self._ask_to_describe_groups([one.group_id for one in self.list_groups()])
        there = {name: one for name, one in answers.items() if one.code != ErrorCode.GROUP_ID_NOT_FOUND}
        return map(GROUP.decode, answered_items(there).values())

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete them with their offsets. Raises NON_EMPTY_GROUP for a group that has members."""
        named = check_texts("group_ids", group_ids)
        answers = self._calls.groups.ask(
            "DeleteGroups",
            named,
            lambda ids: pb.DeleteGroupsRequest(group_ids=ids),
            _answers_of_groups,
            is_repeatable=False,
        )
        answered_items(answers)

    # ------------------------------------------------------------ offsets

    @overload
    def list_group_offsets(
        self, group_ids: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]: ...

    @overload
    def list_group_offsets(
        self, group_ids: list[str] | tuple[str, ...], partitions: Collection[TopicPartition] | None = None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]: ...

    def list_group_offsets(
        self, group_ids: str | list[str] | tuple[str, ...], partitions: Collection[TopicPartition] | None = None
    ) -> Any:
        """Return the offsets that one group has committed, or several, by id: of these partitions, or of all. A
        partition of which nothing is committed is not in the answer, nor is any of a group that does not exist."""
        if partitions is not None:
            partitions = check_topic_partitions("partitions", partitions)
        if isinstance(group_ids, str):
            return self._fetch_offsets([group_ids], partitions)[group_ids]
        return self._fetch_offsets(check_texts("group_ids", group_ids), partitions)

    def _fetch_offsets(
        self, group_ids: Iterable[str], partitions: Collection[TopicPartition] | None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        found: dict[str, dict[TopicPartition, CommittedOffset]] = {group_id: {} for group_id in group_ids}
        for wanted in [None] if partitions is None else portions(sorted(partitions)):
            groups_max = min(KEYS_MAX, ITEMS_MAX // len(wanted)) if wanted else KEYS_MAX
            request_of = functools.partial(_encode_offset_fetch, wanted)
            answers = self._calls.groups.ask("OffsetFetch", found, request_of, _answers_of_groups, keys_max=groups_max)
            for group_id, group in answered_items(answers).items():
                found[group_id].update(_decode_offsets(group))
        return found

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commit for a group that has no member; one that does not exist comes to be. Raises UNKNOWN_MEMBER_ID if it
        has members."""
        committed = offsets_by_partition("offsets", offsets, check_committed)
        if not committed:
            return
        check_text("group_id", group_id)
        for portion in commit_portions(committed):
            # As a consumer that is no member, which the coordinator takes while the group is empty.
            request = pb.OffsetCommitRequest(
                group_id=group_id, generation=_NO_GENERATION, partitions=commit_partitions(portion)
            )
            answer = self._ask_group("OffsetCommit", group_id, request, is_repeatable=True)
            if any(result.error_code == ErrorCode.UNKNOWN_MEMBER_ID for result in answer.item.partitions):
                raise BusError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"group {group_id!r} has members, and only they may commit its offsets; stop them first",
                )
            _raise_partition_failures(answer.item)

    def delete_group_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Forget what the group committed there. Raises GROUP_SUBSCRIBED_TO_TOPIC where a member subscribes."""
        named = check_topic_partitions("partitions", partitions)
        check_text("group_id", group_id)
        for portion in portions(sorted(named)):
            request = pb.OffsetDeleteRequest(group_id=group_id, topics=encode_partitions(portion))
            answer = self._ask_group("OffsetDelete", group_id, request, is_repeatable=True)
            _raise_partition_failures(answered_items({group_id: answer})[group_id])

    def create_group(
        self,
        group_id: str,
        topics: Iterable[str | TopicPartition] | None = None,
        start: str | None = None,
        *,
        offsets_of: str | None = None,
        timestamp_ms: int | None = None,
        at_version: Bound | None = None,
    ) -> dict[TopicPartition, int]:
        """Give a group its first offsets before its first member starts, in whole topics or in single partitions; what
        was committed, by partition.

        One of these says where: `start` "earliest" or "latest"; `offsets_of` another group (all its partitions, if no
        topics are named); `timestamp_ms`, the first record at or after it; `at_version`, the high watermark at that
        Delta version of the partition, one number or a mapping from topic or `TopicPartition`. A partition of which the
        other group has no offset, or no version is named, stays without one.

        Raises INVALID_REQUEST if the group exists; if two callers create it at the same time, the later offsets count.
        """
        target = targets.starting_point(start, offsets_of, timestamp_ms, at_version)
        if topics is not None:
            topics = check_items("topics", topics, _check_topic_or_partition, "text or TopicPartition")
        self._check_no_group(check_text("group_id", group_id))
        partitions = targets.partitions_to_start(
            topics, offsets_of, list_group_offsets=self.list_group_offsets, describe_topics=self.describe_topics
        )
        planned = targets.plan_offsets(self, group_id, partitions, target)
        if not planned:
            raise BusError(ErrorCode.INVALID_REQUEST, f"group {group_id!r}: expected at least one offset, found none")
        offsets = {partition: plan.offset for partition, plan in planned.items()}
        self.alter_group_offsets(group_id, offsets)
        return offsets

    def _check_no_group(self, group_id: str) -> None:
        try:
            state = self.describe_groups([group_id])[group_id].state
        except BusError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return
        raise BusError(
            ErrorCode.INVALID_REQUEST, f"group {group_id!r} exists, its state is {state}; its offsets can be altered"
        )

    # ------------------------------------------------------------ members

    def remove_members(
        self,
        group_id: str,
        *,
        member_ids: Iterable[str] = (),
        group_instance_ids: Iterable[str] = (),
        reason: str = "removed by an administrator",
    ) -> None:
        """Put these members out of the group, or all if none is named. One that lives joins again by itself."""
        check_text("group_id", group_id)
        check_text("reason", reason)
        leaving = [pb.LeavingMember(member_id=one, reason=reason) for one in check_texts("member_ids", member_ids)]
        static = check_texts("group_instance_ids", group_instance_ids)
        leaving += [pb.LeavingMember(group_instance_id=one, reason=reason) for one in static]
        if not leaving:
            members = self.describe_groups([group_id])[group_id].members
            leaving = [
                pb.LeavingMember(member_id=one.member_id, group_instance_id=one.group_instance_id, reason=reason)
                for one in members
            ]
        results: list[Any] = []
        for portion in portions(leaving, MEMBERS_MAX) if leaving else ():
            request = pb.LeaveGroupRequest(group_id=group_id, members=portion)
            answer = self._ask_group("LeaveGroup", group_id, request, is_repeatable=False)
            results += answered_items({group_id: answer})[group_id].members
        raise_failures([(one.member_id or one.group_instance_id, one.error_code, one.error_message) for one in results])

    def _ask_group(self, method: str, group_id: str, request: Any, *, is_repeatable: bool) -> CoordinatorAnswer:
        answers = self._calls.groups.ask(
            method,
            [group_id],
            lambda _: request,
            lambda response: [_answer_of_one(group_id, response)],
            is_repeatable=is_repeatable,
        )
        return answers[group_id]


def _check_topic_or_partition(name: str, value: Any) -> str | TopicPartition:
    return check_topic_partition(name, value) if isinstance(value, TopicPartition) else check_text(name, value)


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


def _raise_partition_failures(response: Any) -> None:
    """Raise what is refused of all of them for one reason once."""
    reasons = {(result.error_code, result.error_message) for result in response.partitions}
    if len(reasons) == 1:
        raise_failures([("", *reasons.pop())])
    raise_failures(
        [
            (f"{result.topic}-{result.partition}", result.error_code, result.error_message)
            for result in response.partitions
        ]
    )


def _encode_offset_fetch(wanted: Sequence[TopicPartition] | None, group_ids: Sequence[str]) -> pb.OffsetFetchRequest:
    topics = [] if wanted is None else encode_partitions(wanted)
    groups = [pb.OffsetFetchGroup(group_id=one, all_partitions=wanted is None, topics=topics) for one in group_ids]
    return pb.OffsetFetchRequest(groups=groups)


def _decode_offsets(group: pb.OffsetFetchGroupResponse) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
    for offset in group.offsets:
        if offset.offset >= 0:
            yield TopicPartition(offset.topic, offset.partition), COMMITTED_OFFSET.decode(offset)
