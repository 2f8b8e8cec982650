from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.groups import GroupApi, GroupMember, PartitionOffset
from bus.broker_api.requests import InvalidArgument
from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, apply
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import GROUPS_MAX, PARTITIONS_MAX
from bus.descriptions import BrokerInfo, GroupDescription, MemberDescription
from bus.errors import ErrorCode, Refused
from bus.grpc_api import value_messages
from bus.grpc_api.server.group_calls import GroupHandler
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime import tasks
from bus.runtime.tasks import LoopShares, answered
from tests.support.api_bench import open_access
from tests.support.proofs import proved, unproved

COMMIT, FETCH, LIST, DESCRIBE, DELETE = map(
    open_access, ("OffsetCommit", "OffsetFetch", "ListGroups", "DescribeGroups", "DeleteGroups")
)
MEMBER_OF = value_messages.MEMBER.encode
MEMBER = GroupMember("g", 1, "m", None)


class FakeCoordinator:
    """Gives each command the same answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.listen = self.unlisten = lambda *_: None

    def submit(self, command: Any) -> asyncio.Future[Any]:
        self.asked.append(command)
        return answered(self.answer)

    async def begin(self, command: Any) -> asyncio.Future[Any]:
        return self.submit(command)


def api_on(coordinator: FakeCoordinator, prove: Callable[..., Awaitable[Refused | None]] = proved) -> GroupApi:
    """Return an API with topic t of two partitions, whose id is "id"."""
    state = apply(apply(EMPTY_CLUSTER, BrokerRegistered(0, "h", 1)), TopicCreated("t", "id", 2, 0))
    cluster: Any = SimpleNamespace(state=state, prove_leadership=prove, endpoint=BrokerEndpoint(0, "h", 1))
    return GroupApi(cluster, coordinator, LoopShares())  # type: ignore[arg-type]


def offset_of(topic: str, partition: int, offset: int) -> PartitionOffset:
    return PartitionOffset(TopicPartition(topic, partition), offset, -1, "")


def test_commit_is_taken_for_partitions_that_exist_under_the_id_of_their_topic() -> None:
    too_large = Refused(ErrorCode.OFFSET_METADATA_TOO_LARGE, "too large")
    coordinator = FakeCoordinator(rq.OffsetsCommitted((too_large, None)))
    offsets = [offset_of("t", 2, 1), offset_of("t", 1, 5), offset_of("none", 0, 1), offset_of("t", 0, 6)]
    outcomes = asyncio.run(api_on(coordinator).commit(COMMIT, MEMBER, offsets))
    assert [outcome and outcome.code for outcome in outcomes] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        None,
    ]
    (command,) = coordinator.asked
    assert [(one.partition, one.topic_id, one.offset) for one in command.offsets] == [
        (TopicPartition("t", 1), "id", 5),
        (TopicPartition("t", 0), "id", 6),
    ]


def test_coordinator_that_refuses_a_commit_refuses_what_it_was_asked_about() -> None:
    coordinator = FakeCoordinator(Refused(ErrorCode.UNKNOWN_MEMBER_ID, "who?"))
    outcomes = asyncio.run(api_on(coordinator).commit(COMMIT, MEMBER, [offset_of("none", 0, 1), offset_of("t", 1, 5)]))
    assert [outcome and outcome.code for outcome in outcomes] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def test_commit_of_partitions_that_do_not_exist_asks_no_coordinator() -> None:
    coordinator = FakeCoordinator(None)
    outcomes = asyncio.run(api_on(coordinator).commit(COMMIT, MEMBER, [offset_of("none", 0, 1)]))
    assert [outcome and outcome.code for outcome in outcomes] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert coordinator.asked == []


@pytest.mark.parametrize(
    ("partitions", "expected"), [(None, []), ((TopicPartition("t", 0),), [(TopicPartition("t", 0), rq.NO_OFFSET)])]
)
def test_offset_of_a_deleted_topic_is_not_shown_for_its_namesake(partitions: Any, expected: list[Any]) -> None:
    deleted = rq.CommittedOffset(TopicPartition("t", 0), "id of the deleted one", 5)
    there = rq.CommittedOffset(TopicPartition("t", 1), "id", 7)
    api = api_on(FakeCoordinator(rq.OffsetsFetched((deleted, there))))
    ((answer),) = asyncio.run(api.fetch_offsets(FETCH, [rq.OffsetFetch("g", partitions)]))
    assert not isinstance(answer, Refused)
    assert [(one.partition, one.offset) for one in answer] == [*expected, (TopicPartition("t", 1), 7)]


def test_group_that_is_named_twice_is_asked_once() -> None:
    coordinator = FakeCoordinator(Refused(ErrorCode.GROUP_ID_NOT_FOUND, "none"))
    answers = asyncio.run(api_on(coordinator).delete_groups(DELETE, ["a", "b", "a"]))
    assert [answer and answer.code for answer in answers] == [
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]
    assert coordinator.asked == [rq.DeleteGroup("a"), rq.DeleteGroup("b")]


def test_requests_with_too_many_items_are_refused_before_any_is_looked_at() -> None:
    class TooMany:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __iter__(self) -> Any:
            raise AssertionError("looked at")

    api = api_on(FakeCoordinator(None))
    for call in (
        api.commit(COMMIT, MEMBER, TooMany(PARTITIONS_MAX + 1)),
        api.fetch_offsets(FETCH, TooMany(GROUPS_MAX + 1)),
        api.describe_groups(DESCRIBE, TooMany(GROUPS_MAX + 1), "PLAINTEXT"),
        api.delete_groups(DELETE, TooMany(GROUPS_MAX + 1)),
    ):
        with pytest.raises(InvalidArgument, match="expected at most"):
            asyncio.run(call)


def test_questions_about_offsets_are_converted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    events: list[str] = []

    class Questions:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[rq.OffsetFetch]:
            for number in range(3):
                events.append("question")
                yield rq.OffsetFetch(f"g{number}", (), "", rq.NO_GENERATION)

    async def scenario() -> None:
        async def others() -> None:
            while True:
                events.append("other")
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        await api_on(FakeCoordinator(rq.OffsetsFetched(()))).fetch_offsets(FETCH, Questions())
        other.cancel()

    asyncio.run(scenario())
    questions = [number for number, event in enumerate(events) if event == "question"]
    assert len(questions) == 3
    assert all("other" in events[begin:end] for begin, end in pairwise(questions))


def test_members_of_a_group_are_described_and_encoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE_S", 0)
    events: list[str] = []
    members = [MemberDescription(f"m{number}", None, "c", "/h", 1, 1, (), ()) for number in range(3)]

    def described() -> Iterator[MemberDescription]:
        for member in members:
            events.append("member")
            yield member

    async def scenario() -> pb.DescribeGroupsResponse:
        async def others() -> None:
            while True:
                events.append("other")
                await asyncio.sleep(0)

        blocking: Any = None
        answer = rq.DescribedGroup("g", "Stable", "consumer", "range", 1, "m0", described())
        handler = GroupHandler(api_on(FakeCoordinator(answer)), blocking, LoopShares(), "PLAINTEXT")
        other = asyncio.create_task(others())
        monkeypatch.setattr(value_messages.MEMBER, "encode", lambda one: events.append("message") or MEMBER_OF(one))
        response = await handler.describe_groups(DESCRIBE, pb.DescribeGroupsRequest(group_ids=["g"]))
        other.cancel()
        return response

    (found,) = asyncio.run(scenario()).groups
    assert value_messages.GROUP.decode(found) == GroupDescription(
        "g", "Stable", "consumer", "range", 1, "m0", BrokerInfo(0, "h", 1), tuple(members)
    )
    for event in ("member", "message"):
        places = [number for number, name in enumerate(events) if name == event]
        assert len(places) == 3
        assert all("other" in events[begin:end] for begin, end in pairwise(places))


def test_group_that_is_described_by_no_description_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="DescribeGroup"):
        asyncio.run(api_on(FakeCoordinator(rq.OffsetsCommitted(()))).describe_groups(DESCRIBE, ["g"], "PLAINTEXT"))


def test_coordinator_that_may_have_been_replaced_shows_no_offsets_and_no_groups() -> None:
    coordinator = FakeCoordinator(rq.OffsetsFetched(()))
    api = api_on(coordinator, unproved)
    (answer,) = asyncio.run(api.fetch_offsets(FETCH, [rq.OffsetFetch("g", None)]))
    assert isinstance(answer, Refused)
    assert answer.code is ErrorCode.NOT_COORDINATOR
    listed, refused = asyncio.run(api.list_groups(LIST, []))
    assert (listed, refused and refused.code) == ([], ErrorCode.NOT_COORDINATOR)
    assert coordinator.asked == []


def test_committed_offsets_rest_on_a_look_at_the_metadata_that_began_after_the_question() -> None:
    looks: list[bool] = []

    async def prove(*, by_new_look: bool = False) -> Refused | None:
        looks.append(by_new_look)
        return None

    api = api_on(FakeCoordinator(rq.OffsetsFetched(())), prove)
    assert asyncio.run(api.fetch_offsets(FETCH, [rq.OffsetFetch("g", None), rq.OffsetFetch("h", None)])) == [[], []]
    assert looks == [True]


def test_unstable_offset_is_answered_as_it_is_also_if_it_was_not_asked_for_by_name() -> None:
    refused = Refused(ErrorCode.UNSTABLE_OFFSET_COMMIT, "wait")
    unstable = rq.CommittedOffset(TopicPartition("t", 0), "", rq.NO_OFFSET, refused=refused)
    api = api_on(FakeCoordinator(rq.OffsetsFetched((unstable,))))
    (answer,) = asyncio.run(api.fetch_offsets(FETCH, [rq.OffsetFetch("g", None, require_stable=True)]))
    assert answer == [unstable]
