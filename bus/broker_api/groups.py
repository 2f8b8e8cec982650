"""Consumer groups: the calls of members and of administrators. Joins and syncs wait as long as the group needs.

What can be said of a request without its group is said here: how many items it may have, and that it names each group
once. Guards two promises: an offset is committed for a partition that exists, under the id of its topic, and what was
committed for another topic of the same name is never shown; and no call holds the loop for long, of any size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bus.broker_api.authorization import Access
from bus.broker_api.requests import InvalidArgument, Items, info_at
from bus.client_texts import shown
from bus.cluster_metadata.cluster_state import ClusterState
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import GROUPS_MAX, PARTITIONS_MAX, STATES_MAX, check_count
from bus.consumer_groups.requests import GroupAnswer, GroupCommand
from bus.descriptions import BrokerInfo, GroupDescription, GroupListing, MemberDescription
from bus.errors import ErrorCode, Refused
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.group_coordinator import GroupCoordinator
from bus.runtime.tasks import LoopShare, LoopShares, answered
from bus.security.acls import AclOperation, AclResource, AclResourceType

MemberCommand = rq.JoinGroup | rq.SyncGroup | rq.LeaveGroup


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The member that commits, as the request names it."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class LookedUpCommit:
    """`command` is about the partitions that exist; `refused` has, for each partition, why it is none of these."""

    command: rq.OffsetCommit
    refused: Sequence[Refused | None]

    def outcomes(self, answer: GroupAnswer) -> list[Refused | None]:
        """`answer`: to the command. For each partition why its offset was not committed, None if it was."""
        return outcomes_of(self.refused, answer)


@dataclass(frozen=True, slots=True)
class OffsetCommitting:
    """A commit under way."""

    looked_up: LookedUpCommit
    answer: asyncio.Future[GroupAnswer]

    def outcomes(self) -> list[Refused | None]:
        """Once `answer` is there."""
        return self.looked_up.outcomes(self.answer.result())


@dataclass(frozen=True, slots=True)
class GroupWithOperations:
    """`operations`: what the caller may do with the group, as far as it was asked for."""

    group: GroupDescription
    operations: Sequence[AclOperation] = ()


class GroupApi:
    def __init__(self, cluster: Cluster, coordinator: GroupCoordinator, shares: LoopShares) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._shares = shares
        self.listen = coordinator.listen
        self.unlisten = coordinator.unlisten

    async def find_coordinator(self, access: Access, group_id: str) -> BrokerEndpoint | Refused:
        return await access.refusal_of_request([group_id], []) or await self._coordinator.find(group_id)

    # ------------------------------------------------------------------ members

    async def call(
        self, access: Access, group_id: str, decode: Callable[[], Awaitable[MemberCommand | Refused]]
    ) -> GroupAnswer:
        """`decode`: the command, which may be large, of a caller that has the right to it."""
        command = await access.refusal_of_request([group_id]) or await decode()
        return command if isinstance(command, Refused) else await self._coordinator.call(command)

    async def heartbeat(self, access: Access, command: rq.Heartbeat) -> rq.HeartbeatTaken | Refused:
        return await access.refusal_of_request([command.group_id]) or self._coordinator.heartbeat(command)

    def protocol_type(self, group_id: str) -> str | None:
        """That of the group as it is; None if there is none, or nothing is known of it for now."""
        return self._coordinator.protocol_type(group_id)

    # ------------------------------------------------------------------ offsets

    async def begin_commit(
        self, access: Access, member: GroupMember, offsets: Items[PartitionOffset]
    ) -> OffsetCommitting:
        """Raises `InvalidArgument` for more partitions than a request may name."""
        require_count(len(offsets), PARTITIONS_MAX, "partitions")
        refused = await access.refusal_of_request([member.group_id])
        found = await find_partitions(access, offsets, self._cluster, self._shares, refused)
        looked_up = commit_of(member, found)
        if not looked_up.command.offsets:
            return OffsetCommitting(looked_up, answered(rq.OffsetsCommitted(())))
        return OffsetCommitting(looked_up, await self._coordinator.begin(looked_up.command))

    async def commit(
        self, access: Access, member: GroupMember, offsets: Items[PartitionOffset]
    ) -> list[Refused | None]:
        """Raises as `begin_commit` does."""
        committing = await self.begin_commit(access, member, offsets)
        await committing.answer
        return committing.outcomes()

    async def fetch_offsets(
        self, access: Access, questions: Items[rq.OffsetFetch]
    ) -> list[list[rq.CommittedOffset] | Refused]:
        """An answer for each group. A partition that was asked for by name and has no offset has NO_OFFSET; those of
        topics that the caller may not describe are refused, behind the others. Of all partitions of a group the caller
        gets those that it may describe. Raises `InvalidArgument` for too many groups."""
        require_count(len(questions), GROUPS_MAX, "groups")
        (describe_topic,) = access.call.view_needs
        asked: list[rq.OffsetFetch] = await self._shares.begin().extend([], questions)
        named = [one.topic for question in asked for one in question.partitions or ()]
        denied = await access.refusals(describe_topic, named)
        permitted = asked
        if denied:
            permitted = [
                question
                if question.partitions is None
                else replace(question, partitions=tuple(one for one in question.partitions if one.topic not in denied))
                for question in asked
            ]
        answers = await access.answer_items(permitted, lambda question: question.group_id, self._fetch_offsets)
        for question, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Refused):
                continue
            if question.partitions is None:
                answer[:] = await access.filter_visible(answer, lambda one: one.partition.topic)
            else:
                answer += [
                    rq.CommittedOffset(one, "", rq.NO_OFFSET, refused=denied[one.topic])
                    for one in question.partitions
                    if one.topic in denied
                ]
        return answers

    async def _fetch_offsets(self, asked: Sequence[rq.OffsetFetch]) -> list[list[rq.CommittedOffset] | Refused]:
        found = await self._ask(asked)
        share = self._shares.begin()
        answers: list[list[rq.CommittedOffset] | Refused] = []
        for question, answer in zip(asked, found, strict=True):
            if not isinstance(answer, rq.OffsetsFetched):
                assert isinstance(answer, Refused), f"expected the answer to an OffsetFetch, found {answer}"
                answers.append(answer)
                continue
            offsets: list[rq.CommittedOffset] = []
            for committed in answer.offsets:
                if share.is_used_up:
                    await share.wait()
                seen = as_seen(committed, question, self._cluster.state)
                if seen is not None:
                    offsets.append(seen)
            answers.append(offsets)
        return answers

    async def delete_offsets(
        self, access: Access, group_id: str, partitions: Sequence[TopicPartition] | Refused
    ) -> Sequence[Refused | None] | Refused:
        """`partitions`: a refusal where the request names too many."""

        async def delete() -> Sequence[Refused | None] | Refused:
            if isinstance(partitions, Refused):
                return partitions
            return await self._delete_offsets(access, group_id, partitions)

        return await access.change(group_id, delete, [group_id])

    async def _delete_offsets(
        self, access: Access, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[Refused | None] | Refused:
        denied = await access.refused_places(partitions, lambda one: one.topic)
        permitted = tuple(one for place, one in enumerate(partitions) if place not in denied)
        deleted: GroupAnswer = rq.OffsetsDeleted(())
        if permitted or not partitions:
            deleted = await self._coordinator.call(rq.OffsetDelete(group_id, permitted))
        if isinstance(deleted, Refused):
            return deleted
        assert isinstance(deleted, rq.OffsetsDeleted), f"expected the answer to an OffsetDelete, found {deleted}"
        outcomes = iter(deleted.partitions)
        return [denied.get(place) or next(outcomes) for place in range(len(partitions))]

    # ------------------------------------------------------------------ administration

    async def list_groups(self, access: Access, states: Items[str]) -> tuple[Sequence[GroupListing], Refused | None]:
        """Return the groups that this broker leads and the caller may see; and why some may be missing, if they may. No
        `states`: in any; their names count in any case of letters, as in Kafka."""
        too_many = check_count(len(states), STATES_MAX, "states")
        if too_many is not None:
            return [], too_many
        wanted = {state.lower() for state in states}
        unproved = await self._prove()
        if unproved is not None:
            return [], unproved
        there, refused = self._coordinator.list_groups()
        listed, share = [], self._shares.begin()
        for group in there:
            if share.is_used_up:
                await share.wait()
            if not wanted or group.state.lower() in wanted:
                listed.append(group)
        return await access.filter_visible(listed, lambda group: group.group_id), refused

    async def describe_groups(
        self, access: Access, group_ids: Items[str], listener: str, *, with_operations: bool = False
    ) -> list[GroupWithOperations | Refused]:
        """Describe each group, with the coordinator's address for clients of the listener. Raises `InvalidArgument` for
        too many groups, as `delete_groups` does."""
        require_count(len(group_ids), GROUPS_MAX, "groups")
        coordinator, share = info_at(listener, self._cluster.endpoint), self._shares.begin()
        answers: list[GroupWithOperations | Refused] = []
        for found in await access.answer_items(group_ids, str, self._describe_groups):
            if share.is_used_up:
                await share.wait()
            if isinstance(found, Refused):
                answers.append(found)
                continue
            resource = AclResource(AclResourceType.GROUP, found.group_id)
            operations = access.operations(resource) if with_operations else ()
            answers.append(GroupWithOperations(await _described(found, coordinator, share), operations))
        return answers

    async def _describe_groups(self, group_ids: Sequence[str]) -> list[rq.DescribedGroup | Refused]:
        described: list[rq.DescribedGroup | Refused] = []
        for answer in await self._ask([rq.DescribeGroup(group_id) for group_id in group_ids]):
            assert isinstance(answer, (rq.DescribedGroup, Refused)), (
                f"expected the answer to a DescribeGroup, found {answer}"
            )
            described.append(answer)
        return described

    async def delete_groups(self, access: Access, group_ids: Items[str]) -> list[Refused | None]:
        require_count(len(group_ids), GROUPS_MAX, "groups")
        return await access.change_items(group_ids, str, self._delete_groups)

    async def _delete_groups(self, group_ids: Sequence[str]) -> list[Refused | None]:
        answers = await self._ask([rq.DeleteGroup(group_id) for group_id in group_ids])
        return [answer if isinstance(answer, Refused) else None for answer in answers]

    async def _prove(self) -> Refused | None:
        """Look at the metadata once more: a coordinator that was replaced a moment ago must not answer with offsets
        that its successor has replaced by newer ones."""
        refused = await self._cluster.prove_leadership(by_new_look=True)
        return None if refused is None else Refused(ErrorCode.NOT_COORDINATOR, refused.message)

    async def _ask(self, commands: Iterable[GroupCommand]) -> list[GroupAnswer]:
        """Each group is asked once: what names it again is refused."""
        unproved = await self._prove()
        asked: set[str] = set()
        answers: list[asyncio.Future[GroupAnswer] | Refused] = []
        share = self._shares.begin()
        for command in commands:
            if share.is_used_up:
                await share.wait()
            is_again = command.group_id in asked
            refused = _named_twice(command.group_id) if is_again else unproved
            answers.append(refused or self._coordinator.submit(command))
            asked.add(command.group_id)
        return [answer if isinstance(answer, Refused) else await answer for answer in answers]


async def _described(found: rq.DescribedGroup, coordinator: BrokerInfo, share: LoopShare) -> GroupDescription:
    members: list[MemberDescription] = await share.extend([], found.members)
    return GroupDescription(
        group_id=found.group_id,
        state=found.state,
        protocol_type=found.protocol_type,
        protocol=found.protocol,
        generation=found.generation,
        leader_id=found.leader_id,
        coordinator=coordinator,
        members=tuple(members),
        pending_offsets=found.pending_offsets,
    )


async def find_partitions(
    access: Access, offsets: Items[PartitionOffset], cluster: Cluster, shares: LoopShares, refused: Refused | None
) -> list[rq.OffsetToCommit | Refused]:
    """Return what is to be committed for each partition, or why it may not be. `refused`: why none may."""
    share = shares.begin()
    asked: list[PartitionOffset] = await share.extend([], offsets)
    if refused is not None:
        return [refused] * len(asked)
    denied, state = await access.refused_places(asked, lambda item: item.partition.topic), cluster.state
    found = (denied.get(place) or with_topic_id(item, state) for place, item in enumerate(asked))
    return await share.extend([], found)


def with_topic_id(item: PartitionOffset, state: ClusterState) -> rq.OffsetToCommit | Refused:
    name = item.partition
    if state.leadership(name) is None:
        found = f"{shown(name.topic)}-{name.partition}"
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing partition, found {found}")
    topic_id = state.topics[name.topic].topic_id
    return rq.OffsetToCommit(name, topic_id, item.offset, item.leader_epoch, item.metadata)


def commit_of(member: GroupMember, found: Sequence[rq.OffsetToCommit | Refused]) -> LookedUpCommit:
    """`found`: what `with_topic_id` says of each partition."""
    known = tuple(item for item in found if not isinstance(item, Refused))
    command = rq.OffsetCommit(member.group_id, member.generation, member.member_id, member.group_instance_id, known)
    return LookedUpCommit(command, [item if isinstance(item, Refused) else None for item in found])


def outcomes_of(found: Sequence[object], answer: GroupAnswer) -> list[Refused | None]:
    """Return for each of `found` why its offset was not committed, None if it was. `answer`: to the commit of those
    that are no refusals."""
    taken = iter(answer.partitions if isinstance(answer, rq.OffsetsCommitted) else ())
    return [
        one if isinstance(one, Refused) else (answer if isinstance(answer, Refused) else next(taken)) for one in found
    ]


def as_seen(committed: rq.CommittedOffset, question: rq.OffsetFetch, state: ClusterState) -> rq.CommittedOffset | None:
    """None: it is of a topic that is gone, and was not asked for by name. A refusal is passed on."""
    topic = state.topics.get(committed.partition.topic)
    if committed.refused is not None:
        return committed
    if committed.offset >= 0 and topic is not None and topic.topic_id == committed.topic_id:
        return committed
    return None if question.partitions is None else rq.CommittedOffset(committed.partition, "", rq.NO_OFFSET)


def require_count(count: int, count_max: int, what: str) -> None:
    """Raises `InvalidArgument`: an answer to so many has no place for a refusal of the whole."""
    refused = check_count(count, count_max, what)
    if refused is not None:
        raise InvalidArgument(refused.message)


def _named_twice(group_id: str) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST, f"expected each group once in a request, found {shown(group_id)!r} more than once"
    )
