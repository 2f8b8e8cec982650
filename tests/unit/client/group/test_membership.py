"""The membership machine under a clock of its own: what it sends, what it hands out, after which answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bus.client.assignors import MemberSubscription, assignors_of
from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.group_requests import Joined, MemberIdRequired
from bus.client.group.link import CoordinatorFinder, GroupRequest
from bus.client.group.membership import Assign, Generation, Lead, Lose, Membership, Phase, Revoke
from bus.client.values import GroupMetadata
from bus.descriptions import BrokerInfo
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
BACKOFF_MS = 100.0


class Member:
    """A machine, its requests, and a coordinator's answers as a test gives them."""

    def __init__(self, strategy: str = "range", **configs: Any) -> None:
        config = parse_config(ConsumerConfig, {"group_id": "g", **configs})
        self.sent: list[GroupRequest] = []
        self.now_ms = 100_000.0
        self.finder = CoordinatorFinder(
            "g",
            config.request_timeout_ms,
            send=self.sent.append,
            backoff_ms=lambda failures: BACKOFF_MS,
            may_retry=lambda error: error.retriable,
        )
        self.machine = Membership(
            config,
            assignors_of(strategy),
            self.finder,
            send=self.sent.append,
            backoff_ms=lambda failures: BACKOFF_MS,
        )
        self.machine.subscribe(["t"])
        self.machine.note_poll(self.now_ms)

    def take(self, method: str) -> Any:
        """The only request that was sent since the last time."""
        request = self.sent.pop()
        assert (request.method, self.sent) == (method, []), self.sent
        return request

    def work(self) -> Any:
        return self.machine.next_work(self.now_ms)

    def find(self) -> Member:
        assert self.work() is None
        self.finder.on_answer(self.take("FindCoordinator"), BrokerInfo(1, "c", 1), self.now_ms)
        return self

    def answer(self, request: GroupRequest, answer: Any) -> None:
        self.machine.on_answer(request, answer, self.now_ms)

    def refuse(self, request: GroupRequest, code: ErrorCode) -> None:
        self.answer(request, BusError(code, "no"))

    def join(self, generation: int = 1, *, protocol: str = "range") -> Any:
        """Join as a follower, up to its SyncGroup."""
        assert self.work() is None
        self.answer(self.take("JoinGroup"), followed(generation, protocol))
        return self.take("SyncGroup")

    def sync(self, request: GroupRequest, *partitions: TopicPartition) -> None:
        self.answer(request, frozenset(partitions))

    def settle(self, *partitions: TopicPartition, generation: int = 1, protocol: str = "range") -> Assign:
        """Join and take over what is assigned."""
        self.sync(self.join(generation, protocol=protocol), *partitions)
        work = self.work()
        assert isinstance(work, Assign)
        self.beat()
        return work

    def beat(self) -> None:
        self.machine.tick(self.now_ms)
        self.answer(self.take("Heartbeat"), None)

    def pass_time(self, ms: float, *, polled: bool = True) -> float:
        self.now_ms += ms
        if polled:
            self.machine.note_poll(self.now_ms)
        return self.machine.tick(self.now_ms)


def followed(generation: int, assignor: str = "range") -> Joined:
    return Joined(generation, "m", "l", assignor, {})


def led(generation: int, assignor: str, subscription: MemberSubscription, *members: str, **kept: Any) -> Joined:
    return Joined(generation, "m", "m", assignor, dict.fromkeys(members, subscription), **kept)


def said(join: Any) -> MemberSubscription:
    """To the first assignor that a join offers."""
    subscription: MemberSubscription = next(iter(join.call.subscriptions.values()))
    return subscription


def stable(*partitions: TopicPartition, **configs: Any) -> Member:
    member = Member(**configs).find()
    protocol = configs.get("strategy", "range")
    member.settle(*partitions, protocol=protocol)
    return member


# ---------------------------------------------------------------- joining


def test_first_join_is_repeated_at_once_with_the_member_id_that_was_given() -> None:
    member = Member().find()
    member.work()
    first = member.take("JoinGroup")
    assert (first.call.member.member_id, first.call.rebalance_timeout_ms) == ("", 300_000)
    member.answer(first, MemberIdRequired("m-1"))
    member.work()
    assert member.take("JoinGroup").call.member.member_id == "m-1"


def test_follower_syncs_without_a_poll_and_is_assigned_in_the_next_one() -> None:
    member = Member().find()
    sync = member.join(generation=3)
    assert (sync.call.member, sync.call.assignment) == (GroupMetadata("g", 3, "m"), {})
    assert not member.machine.has_work()
    member.sync(sync, P0, P1)
    assert member.machine.has_work()
    work = member.work()
    assert (work.assigned, work.added, work.generation) == (frozenset({P0, P1}), frozenset({P0, P1}), 3)
    assert member.work() is None
    assert member.machine.commit_stamp() == GroupMetadata("g", 3, "m", None)


def test_leader_hands_its_assignment_to_the_coordinator() -> None:
    member = Member().find()
    member.work()
    join = member.take("JoinGroup")
    member.answer(join, led(1, "range", said(join), "m", "other"))
    work = member.work()
    assert isinstance(work, Lead)
    assert (work.topics, sorted(work.members), work.is_kept) == (frozenset({"t"}), ["m", "other"], False)
    member.machine.lead(work, {"t": 2}, {"m": [P0], "other": [P1]}, member.now_ms)
    assert member.take("SyncGroup").call.assignment == {"m": [P0], "other": [P1]}


def test_leader_rebalances_when_partitions_come_to_topics_of_the_group() -> None:
    member = Member().find()
    member.work()
    join = member.take("JoinGroup")
    member.answer(join, led(1, "range", said(join), "m"))
    member.machine.lead(member.work(), {"t": 1}, {"m": [P0]}, member.now_ms)
    member.sync(member.take("SyncGroup"), P0)
    member.work()
    member.machine.note_partitions({"t": 1, "u": 5})
    assert not member.machine.is_rejoining()
    member.machine.note_partitions({"t": 2})
    assert member.machine.is_rejoining()


@pytest.mark.parametrize(("owned", "is_rebalanced"), [([P1], True), ([], False)])
def test_leader_rebalances_by_itself_if_what_a_member_was_to_give_up_is_still_nobodys(
    owned: list[TopicPartition], is_rebalanced: bool
) -> None:
    member = Member("cooperative-sticky").find()
    member.work()
    subscription = MemberSubscription(["t"], owned=tuple(owned), generation=1)
    member.answer(member.take("JoinGroup"), led(2, "cooperative-sticky", subscription, "m", "other"))
    member.machine.lead(member.work(), {"t": 2}, {"m": [P0], "other": []}, member.now_ms)
    member.sync(member.take("SyncGroup"), P0)
    member.work()
    member.machine.note_partitions({"t": 2})
    assert member.machine.is_rejoining() is is_rebalanced


@pytest.mark.parametrize(("kept", "is_rebalanced"), [([P0, P1], False), ([P0], True)])
def test_static_leader_that_restarts_rebalances_only_for_partitions_that_nobody_has(
    kept: list[TopicPartition], is_rebalanced: bool
) -> None:
    member = Member(group_instance_id="desk").find()
    member.work()
    join = member.take("JoinGroup")
    member.answer(join, led(1, "range", said(join), "m", "other", is_kept=True, kept=frozenset(kept)))
    member.machine.lead(member.work(), {"t": 2}, {}, member.now_ms)
    member.sync(member.take("SyncGroup"), P0)
    member.work()
    member.machine.note_partitions({"t": 2})
    assert member.machine.is_rejoining() is is_rebalanced


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT])
def test_join_that_may_succeed_later_is_repeated_after_a_pause(code: ErrorCode) -> None:
    member = Member().find()
    member.work()
    member.refuse(member.take("JoinGroup"), code)
    member.work()
    assert not [request for request in member.sent if request.method == "JoinGroup"]
    member.sent.clear()
    assert member.machine.next_event(member.now_ms) > member.now_ms
    member.finder.address = "c:1"
    member.now_ms += BACKOFF_MS
    member.work()
    member.take("JoinGroup")


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_join_at_the_wrong_broker_looks_for_the_coordinator_first(code: ErrorCode) -> None:
    member = Member().find()
    member.work()
    member.refuse(member.take("JoinGroup"), code)
    member.now_ms += BACKOFF_MS
    member.work()
    member.take("FindCoordinator")


def test_answer_to_a_join_that_was_given_up_counts_no_more() -> None:
    member = Member().find()
    member.work()
    join = member.take("JoinGroup")
    member.machine.leave("unsubscribed", member.now_ms)
    member.answer(join, followed(1))
    assert (member.machine.phase, member.sent) == (Phase.UNJOINED, [])


def test_assignment_of_topics_that_are_subscribed_no_longer_is_not_taken_over() -> None:
    member = Member().find()
    sync = member.join()
    member.machine.subscribe(["u"])
    member.sync(sync, P0)
    work = member.work()
    assert isinstance(work, Revoke), "it prepares to join anew"
    member.machine.done(work)
    member.work()
    assert said(member.take("JoinGroup")).topics == ("u",)


def lose_sync(member: Member) -> Any:
    """Lose the sync of a follower in generation 1; return the sync that had no answer."""
    sync = member.join()
    member.refuse(sync, ErrorCode.REQUEST_TIMED_OUT)
    member.machine.tick(member.now_ms)
    member.sent.clear()
    return sync


def test_sync_without_an_answer_is_sent_again_in_its_generation_by_another_connection() -> None:
    member = Member().find()
    sync = lose_sync(member)
    assert member.finder.address is None
    assert member.machine.next_event(member.now_ms) > member.now_ms
    member.now_ms += BACKOFF_MS
    assert member.work() is None
    member.finder.on_answer(member.take("FindCoordinator"), BrokerInfo(1, "c", 1), member.now_ms)
    assert member.work() is None
    again = member.take("SyncGroup")
    assert again.call == sync.call, "a join could begin a rebalance"
    member.sync(sync, P2)  # what was given up counts no more
    assert not member.machine.has_work()
    member.sync(again, P0)
    assert isinstance(member.work(), Assign)


def test_member_whose_sync_had_no_answer_stays_alive_meanwhile() -> None:
    member = Member().find()
    lose_sync(member)
    member.finder.address = "c:1"
    member.pass_time(3_000)
    member.take("Heartbeat")


def test_member_whose_sync_had_no_answer_joins_again_at_another_coordinator() -> None:
    member = Member().find()
    lose_sync(member)
    member.finder.address = "d:1"
    member.now_ms += BACKOFF_MS
    member.work()
    join = member.take("JoinGroup")
    assert (join.address, join.call.member.member_id) == ("d:1", "m")


def test_member_that_is_out_does_not_send_its_sync_again() -> None:
    member = Member().find()
    lose_sync(member)
    member.finder.address = "c:1"
    member.pass_time(3_000)
    member.refuse(member.take("Heartbeat"), ErrorCode.UNKNOWN_MEMBER_ID)
    member.work()
    assert member.take("JoinGroup").call.member.member_id == ""


@pytest.mark.parametrize(("request_timeout_ms", "patience_ms"), [(300_000, 15_000), (5_000, 5_000)])
def test_join_and_sync_are_given_up_in_time_for_another_connection_before_the_session_is_over(
    request_timeout_ms: int, patience_ms: int
) -> None:
    member = Member(request_timeout_ms=request_timeout_ms).find()
    member.work()
    join = member.take("JoinGroup")
    assert (join.patience_ms, join.timeout_ms) == (patience_ms, 305_000)
    member.answer(join, followed(1))
    assert member.take("SyncGroup").patience_ms == patience_ms


# ---------------------------------------------------------------- rebalances


def test_eager_member_gives_up_everything_before_it_joins_again() -> None:
    member = stable(P0, P1)
    member.machine.request_rejoin("as the test wants it")
    work = member.work()
    assert isinstance(work, Revoke)
    assert work.partitions == {P0, P1}
    assert member.sent == [], "the join waits until the callbacks have run"
    member.machine.done(work)
    assert member.work() is None
    assert said(member.take("JoinGroup")).owned == ()


def test_cooperative_member_keeps_what_it_has_gives_up_what_moves_and_joins_once_more() -> None:
    member = stable(P0, P1, strategy="cooperative-sticky")
    member.machine.request_rejoin("as the test wants it")
    assert member.work() is None
    join = member.take("JoinGroup")
    assert (said(join).owned, said(join).generation) == ((P0, P1), 1)
    member.answer(join, followed(2, "cooperative-sticky"))
    member.sync(member.take("SyncGroup"), P0, P2)
    revoke = member.work()
    assert isinstance(revoke, Revoke)
    assert revoke.partitions == {P1}
    assert member.machine.commit_stamp() == GroupMetadata("g", 2, "m", None), "what was consumed can be committed"
    member.machine.done(revoke)
    assign = member.work()
    assert (assign.assigned, assign.added) == ({P0, P2}, {P2})
    assert member.work() is None
    member.take("JoinGroup")


def test_heartbeat_says_that_the_group_rebalances() -> None:
    member = stable(P0)
    member.pass_time(3_000)
    member.refuse(member.take("Heartbeat"), ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.machine.has_news()
    assert isinstance(member.work(), Revoke)


def test_notice_has_the_coordinator_asked_at_once() -> None:
    member = stable(P0)
    member.pass_time(500)
    assert member.sent == []
    member.machine.heartbeat_now()
    member.pass_time(0)
    member.take("Heartbeat")


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_member_that_is_out_loses_its_partitions_before_it_joins_again(code: ErrorCode) -> None:
    member = stable(P0, strategy="cooperative-sticky")
    member.pass_time(3_000)
    member.refuse(member.take("Heartbeat"), code)
    stamp = member.machine.commit_stamp()
    assert isinstance(stamp, BusError)
    assert stamp.code is ErrorCode.UNKNOWN_MEMBER_ID
    work = member.work()
    assert isinstance(work, Lose)
    assert work.partitions == {P0}
    member.machine.done(work)
    member.work()
    keeps_id = code is ErrorCode.ILLEGAL_GENERATION
    assert member.take("JoinGroup").call.member.member_id == ("m" if keeps_id else "")


def test_being_put_out_while_callbacks_of_a_revocation_run_is_noticed_after_them() -> None:
    member = stable(P0, P1, strategy="cooperative-sticky")
    member.machine.subscribe(["u"])
    revoke = member.work()
    assert revoke.partitions == {P0, P1}
    member.pass_time(3_000)
    member.refuse(member.take("Heartbeat"), ErrorCode.UNKNOWN_MEMBER_ID)
    member.machine.done(revoke)
    member.work()
    assert member.take("JoinGroup").call.member.member_id == ""


def test_refusal_of_an_earlier_generation_is_of_no_account() -> None:
    member = stable(P0)
    refused = BusError(ErrorCode.ILLEGAL_GENERATION, "late")
    member.machine.note_refusal(refused, Generation(0, "m"))
    assert not member.machine.is_rejoining()
    member.machine.note_refusal(refused, Generation(1, "m"))
    assert member.machine.is_rejoining()


def test_fenced_instance_says_so_in_every_poll() -> None:
    member = stable(P0, group_instance_id="i")
    member.pass_time(3_000)
    member.refuse(member.take("Heartbeat"), ErrorCode.FENCED_INSTANCE_ID)
    lose = member.work()
    assert isinstance(lose, Lose)
    member.machine.done(lose)
    for _ in range(2):
        with pytest.raises(BusError) as caught:
            member.work()
        assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
    assert member.sent == []


# ---------------------------------------------------------------- time


def test_heartbeats_go_out_in_their_interval_one_at_a_time() -> None:
    member = stable(P0)
    assert member.pass_time(2_900) == pytest.approx(member.now_ms + 100)
    assert member.sent == []
    member.pass_time(100)
    request = member.take("Heartbeat")
    member.pass_time(10_000)
    assert member.sent == []
    member.answer(request, None)
    assert member.pass_time(0) == pytest.approx(member.now_ms + 3_000)


@pytest.mark.parametrize(("request_timeout_ms", "late_ms"), [(300_000, 15_000), (5_000, 5_000)])
def test_coordinator_that_does_not_answer_a_heartbeat_in_time_is_looked_for_again(
    request_timeout_ms: int, late_ms: int
) -> None:
    member = stable(P0, request_timeout_ms=request_timeout_ms)
    member.pass_time(3_000)
    heartbeat = member.take("Heartbeat")
    assert heartbeat.timeout_ms == late_ms
    member.pass_time(late_ms - 100)
    assert member.finder.address is not None
    member.pass_time(200)
    assert member.finder.address is None
    assert member.machine.phase is Phase.STABLE, "it may be a member still"
    member.pass_time(BACKOFF_MS)
    member.take("FindCoordinator")


def test_coordinator_that_refuses_heartbeats_for_a_session_is_looked_for_again() -> None:
    member = stable(P0)
    for _ in range(14):
        member.pass_time(3_000)
        member.answer(member.take("Heartbeat"), BusError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading"))
    assert member.finder.address is not None
    member.pass_time(3_100)
    assert member.finder.address is None


def test_member_that_polls_too_seldom_leaves() -> None:
    member = stable(P0, max_poll_interval_ms=10_000)
    member.pass_time(9_900, polled=False)
    member.sent.clear()
    assert member.pass_time(100, polled=False) == math.inf
    leaving = member.take("LeaveGroup").call
    assert (leaving.member.member_id, leaving.reason) == ("m", "max.poll.interval.ms is over")
    assert isinstance(member.work(), Lose)


def test_member_whose_program_ended_with_an_error_leaves_after_a_session() -> None:
    member = stable(P0, max_poll_interval_ms=300_000, session_timeout_ms=10_000)
    member.machine.note_left_behind(member.now_ms)
    member.pass_time(9_900, polled=False)
    member.machine.note_left_behind(member.now_ms)  # as is seen at each tick
    member.sent.clear()
    assert member.pass_time(100, polled=False) == math.inf
    assert member.take("LeaveGroup").call.reason == "the program that polled ended with an error"
    assert isinstance(member.work(), Lose)


def test_program_that_polls_again_after_an_error_stays_a_member() -> None:
    member = stable(P0, max_poll_interval_ms=300_000, session_timeout_ms=10_000)
    member.machine.note_left_behind(member.now_ms)
    member.pass_time(9_900)
    member.pass_time(9_900, polled=False)
    assert member.machine.phase is Phase.STABLE


def test_static_member_leaves_without_a_word() -> None:
    member = stable(P0, group_instance_id="i")
    assert member.machine.leave("closed", member.now_ms) is None
    assert (member.sent, member.machine.generation.id) == ([], -1)


@pytest.mark.parametrize(
    "code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.ILLEGAL_GENERATION]
)
def test_member_that_is_about_to_join_again_leaves(code: ErrorCode) -> None:
    member = Member().find()
    member.refuse(member.join(), code)
    assert member.machine.phase is Phase.UNJOINED
    member.sent.clear()
    member.machine.leave("closed", member.now_ms)
    assert member.take("LeaveGroup").call.member.member_id == "m"


def test_member_that_the_coordinator_does_not_know_leaves_without_a_word() -> None:
    member = Member().find()
    assert member.machine.leave("closed", member.now_ms) is None
    member.refuse(member.join(), ErrorCode.UNKNOWN_MEMBER_ID)
    member.sent.clear()
    assert member.machine.leave("closed", member.now_ms) is None
    assert member.sent == []


def test_nobody_sends_heartbeats_before_there_is_a_generation() -> None:
    member = Member().find()
    member.work()
    member.take("JoinGroup")
    assert member.pass_time(1_000_000, polled=False) == math.inf
    assert member.sent == []


def test_unreadable_assignment_is_the_users_to_see() -> None:
    member = Member().find()
    member.refuse(member.join(), ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    with pytest.raises(BusError) as caught:
        member.work()
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_protocols_are_offered_in_the_order_of_preference() -> None:
    member = Member("range,cooperative-sticky").find()
    member.work()
    assert list(member.take("JoinGroup").call.subscriptions) == ["range", "cooperative-sticky"]
