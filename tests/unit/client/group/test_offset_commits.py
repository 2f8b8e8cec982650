from __future__ import annotations

from typing import Any

from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.group_requests import OffsetCommit, encode_group_call
from bus.client.group.link import CoordinatorFinder, GroupRequest
from bus.client.group.membership import Generation
from bus.client.group.offset_commits import Commit, OffsetCommits
from bus.client.values import GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BACKOFF_MS = 100.0


class World:
    """A member, its coordinator, and a clock."""

    def __init__(self, **configs: Any) -> None:
        config = parse_config(ConsumerConfig, {"group_id": "g", **configs})
        self.sent: list[GroupRequest] = []
        self.now_ms = 100_000.0
        self.stamp: GroupMetadata | BusError = GroupMetadata("g", 4, "m")
        self.owned = {P0, P1}
        self.refusals: list[tuple[ErrorCode, Generation]] = []
        self.finder = CoordinatorFinder(
            "g",
            config.request_timeout_ms,
            send=self.sent.append,
            backoff_ms=lambda failures: BACKOFF_MS,
            may_retry=lambda error: error.retriable,
        )
        self.finder.address = "c:1"
        self.commits = OffsetCommits(
            config, self.finder, self, send=self.sent.append, backoff_ms=lambda failures: BACKOFF_MS
        )

    def commit_stamp(self) -> GroupMetadata | BusError:
        return self.stamp

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self.owned

    def note_refusal(self, error: BusError, generation: Generation) -> None:
        self.refusals.append((error.code, generation))

    def ask(
        self, offsets: dict[TopicPartition, int], *, is_repeated: bool = False, within_ms: float = 60_000
    ) -> Commit:
        commit = Commit(
            {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()},
            asked_at_ms=self.now_ms,
            deadline_ms=self.now_ms + within_ms,
            is_repeated=is_repeated,
            callback=None,
        )
        self.commits.add(commit, self.now_ms)
        return commit

    def take(self) -> tuple[GroupRequest, dict[TopicPartition, int]]:
        """The only request that was sent since the last time."""
        request = self.sent.pop()
        assert self.sent == []
        assert isinstance(request.call, OffsetCommit)
        return request, {partition: found.offset for partition, found in request.call.offsets.items()}

    def answer(self, request: GroupRequest, code: ErrorCode = ErrorCode.NONE) -> None:
        assert isinstance(request.call, OffsetCommit)
        refused = {} if code is ErrorCode.NONE else dict.fromkeys(request.call.offsets, BusError(code, "no"))
        self.commits.on_answer(request, refused, self.now_ms)

    def outcomes(self) -> list[ErrorCode | None]:
        return [commit.error.code if commit.error else None for commit in self.commits.take_done()]


def test_commit_is_in_the_name_of_the_generation() -> None:
    world = World(group_instance_id="i")
    world.stamp = GroupMetadata("g", 4, "m", "i")
    commit = world.ask({P0: 5})
    request, offsets = world.take()
    assert isinstance(request.call, OffsetCommit)
    assert request.call.member == GroupMetadata("g", 4, "m", "i")
    assert offsets == {P0: 5}
    world.answer(request)
    assert (commit.is_done, commit.error, world.commits.committed) == (True, None, {P0: 5})


def test_what_is_asked_for_meanwhile_goes_as_one_request_with_the_last_offsets() -> None:
    world = World()
    world.ask({P0: 1})
    first, _ = world.take()
    world.ask({P0: 2, P1: 7})
    world.ask({P0: 3})
    assert world.sent == []
    world.answer(first)
    second, offsets = world.take()
    assert offsets == {P0: 3, P1: 7}
    assert world.outcomes() == [None]
    world.answer(second)
    assert world.outcomes() == [None, None]
    assert world.commits.is_idle()


def test_repeated_commit_is_tried_again_before_later_ones_and_the_other_kind_fails() -> None:
    world = World()
    world.ask({P0: 1})
    world.ask({P0: 2}, is_repeated=True)
    first, _ = world.take()
    world.answer(first, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert world.outcomes() == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    second, _ = world.take()
    world.answer(second, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    world.ask({P1: 9})
    assert (world.sent, world.outcomes()) == ([], [])
    world.now_ms += BACKOFF_MS
    world.commits.advance(world.now_ms)
    third, offsets = world.take()
    assert list(offsets.items()) == [(P0, 2), (P1, 9)]
    world.answer(third)
    assert world.outcomes() == [None, None]


def test_repeated_commit_does_not_overtake_what_was_asked_for_after_it() -> None:
    world = World()
    world.ask({P0: 1}, is_repeated=True)
    first, _ = world.take()
    world.ask({P0: 2})
    world.answer(first, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    world.now_ms += BACKOFF_MS
    world.commits.advance(world.now_ms)
    _, offsets = world.take()
    assert offsets == {P0: 2}


def test_repeated_commit_takes_nothing_back_that_went_with_it_and_was_asked_for_later() -> None:
    world = World()
    under_way = world.ask({P0: 1})
    repeated = world.ask({P0: 10, P1: 5}, is_repeated=True)
    world.ask({P0: 20})
    world.answer(world.take()[0])
    assert under_way.is_done
    request, offsets = world.take()
    assert offsets == {P0: 20, P1: 5}
    refused = BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no")
    world.commits.on_answer(request, {P1: refused}, world.now_ms)
    assert world.commits.committed == {P0: 20}
    world.now_ms += BACKOFF_MS
    world.owned = {P1}
    world.commits.advance(world.now_ms)
    request, offsets = world.take()
    assert offsets == {P1: 5}
    world.answer(request)
    assert (repeated.error, world.commits.committed) == (None, {P0: 20, P1: 5})


def test_partition_of_another_member_is_not_sent_even_if_it_was_ours_when_asked() -> None:
    world = World()
    world.ask({P0: 1})
    first, _ = world.take()
    world.ask({P1: 2})
    world.ask({P0: 3})
    world.owned = {P0}
    world.answer(first)
    _, offsets = world.take()
    assert offsets == {P0: 3}
    assert world.outcomes() == [None, ErrorCode.ILLEGAL_GENERATION]


def test_who_is_no_member_commits_nothing() -> None:
    world = World()
    world.stamp = BusError(ErrorCode.UNKNOWN_MEMBER_ID, "out")
    world.ask({P0: 1}, is_repeated=True)
    assert (world.sent, world.outcomes()) == ([], [ErrorCode.UNKNOWN_MEMBER_ID])


def test_membership_hears_of_a_refusal_and_of_the_generation_that_was_refused() -> None:
    world = World()
    commit = world.ask({P0: 1}, is_repeated=True)
    request, _ = world.take()
    world.stamp = GroupMetadata("g", 5, "m")
    world.answer(request, ErrorCode.ILLEGAL_GENERATION)
    assert world.refusals == [(ErrorCode.ILLEGAL_GENERATION, Generation(4, "m"))]
    assert commit.error is not None
    assert commit.error.code is ErrorCode.ILLEGAL_GENERATION


def test_commit_waits_for_a_coordinator_and_no_longer_than_its_time() -> None:
    world = World()
    world.finder.address = None
    commit = world.ask({P0: 1}, is_repeated=True, within_ms=2_000)
    assert [request.method for request in world.sent] == ["FindCoordinator"]
    assert world.commits.next_event(world.now_ms) == world.now_ms + 1_000
    world.now_ms += 1_000
    world.commits.advance(world.now_ms)
    assert [request.method for request in world.sent] == ["FindCoordinator"] * 2, "another broker is asked, too"
    assert world.commits.next_event(world.now_ms) == world.now_ms + 1_000
    world.now_ms += 1_000
    world.commits.advance(world.now_ms)
    assert commit.error is not None
    assert commit.error.code is ErrorCode.REQUEST_TIMED_OUT


def test_request_without_an_answer_is_given_up_and_the_coordinator_looked_for() -> None:
    world = World(request_timeout_ms=1_000)
    world.ask({P0: 1})
    request, _ = world.take()
    world.now_ms += 1_000
    world.commits.advance(world.now_ms)
    assert world.finder.address is None
    assert world.outcomes() == [ErrorCode.REQUEST_TIMED_OUT]
    world.answer(request)
    assert world.outcomes() == [], "the late answer counts no more"


def test_automatic_commit_is_due_once_an_interval() -> None:
    world = World(auto_commit_interval_ms=5_000)
    assert not world.commits.take_auto_due(world.now_ms)
    world.commits.start_auto(world.now_ms)
    assert not world.commits.take_auto_due(world.now_ms + 4_900)
    assert world.commits.take_auto_due(world.now_ms + 5_000)
    assert not world.commits.take_auto_due(world.now_ms + 9_900)
    world.commits.hurry_auto(world.now_ms + 5_000)
    assert world.commits.take_auto_due(world.now_ms + 5_000 + BACKOFF_MS)


MANY = {TopicPartition("t", number): number for number in range(12_000)}


def many_world() -> World:
    world = World()
    world.owned = set(MANY)
    return world


def test_commit_of_many_partitions_is_one_outcome_of_several_requests() -> None:
    world = many_world()
    commit = world.ask(MANY)
    later = world.ask({P0: 77})
    found: dict[TopicPartition, int] = {}
    for _ in range(3):
        assert not commit.is_done
        request, offsets = world.take()
        assert 0 < len(offsets) <= 5_000
        assert not found.keys() & offsets.keys()
        found |= offsets
        world.answer(request)
    assert found == MANY
    assert (commit.is_done, commit.error, world.commits.committed) == (True, None, MANY)
    world.answer(world.take()[0])  # what was asked for meanwhile comes after it
    assert later.is_done
    assert world.commits.committed[P0] == 77


def test_offsets_with_long_metadata_fit_requests_of_a_few_megabytes() -> None:
    world = many_world()
    offsets = {partition: OffsetAndMetadata(1, "x" * 4_096) for partition in MANY}
    commit = Commit(offsets, asked_at_ms=0, deadline_ms=1e9, is_repeated=False, callback=None)
    world.commits.add(commit, world.now_ms)
    while not commit.is_done:
        request, _ = world.take()
        assert encode_group_call(request.call).ByteSize() < 3 * 1024 * 1024
        world.answer(request)
    assert commit.error is None


def test_error_of_one_of_several_requests_is_the_outcome_and_the_others_are_committed() -> None:
    world = many_world()
    commit = world.ask(MANY)
    first, refused = world.take()
    world.answer(first, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for _ in range(2):
        world.answer(world.take()[0])
    assert commit.error is not None
    assert commit.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.commits.committed == {one: offset for one, offset in MANY.items() if one not in refused}


def test_partitions_that_are_lost_between_two_requests_are_not_committed() -> None:
    world = many_world()
    commit = world.ask(MANY)
    first, offsets = world.take()
    world.owned = set(offsets)
    world.answer(first)
    assert (world.sent, commit.is_done) == ([], True)
    assert commit.error is not None
    assert commit.error.code is ErrorCode.ILLEGAL_GENERATION
    assert world.commits.committed == offsets


def test_requests_behind_one_that_was_not_answered_are_not_sent() -> None:
    world = many_world()
    commit = world.ask(MANY)
    first, _ = world.take()
    world.commits.on_answer(first, BusError(ErrorCode.NETWORK_EXCEPTION, "gone"), world.now_ms)
    assert (world.sent, commit.is_done, world.commits.committed) == ([], True, {})


def test_partition_that_the_coordinator_does_not_know_is_not_asked_for_until_the_time_is_over() -> None:
    """Its topic was deleted: what waits for this commit, a rebalance for example, goes on."""
    world = World()
    commit = world.ask({P0: 1, P1: 2}, is_repeated=True)
    asked_for = []
    while not commit.is_done:
        request, offsets = world.take()
        asked_for.append(offsets)
        refused = BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no")
        world.commits.on_answer(request, {P1: refused}, world.now_ms)
        world.now_ms += BACKOFF_MS
        world.commits.advance(world.now_ms)
    assert asked_for == [{P0: 1, P1: 2}, *[{P1: 2}] * 20]  # for two seconds: it may be news to the coordinator
    assert commit.error is not None
    assert commit.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.commits.committed == {P0: 1}
