"""Kafka's published examples of the sticky assignor, what user data does, and whose claim counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from bus.client.assignors import MemberSubscription, StickyAssignor, decode_claim, encode_claim
from bus.client.sticky_assignment import Claim
from tests.support.assignments import all_subscribed, named, partitions, subscribed

FOUR_TOPICS = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
UNEVEN_TOPICS = {"t0": 1, "t1": 2, "t2": 3}


def claiming(topics: str, owned: str, generation: int = 1) -> MemberSubscription:
    return MemberSubscription(topics.split(), user_data=encode_claim(Claim(partitions(owned), generation)))


def assigned(counts: Mapping[str, int], members: Mapping[str, MemberSubscription]) -> dict[str, str]:
    return named(StickyAssignor().assign(counts, members))


def test_a_fresh_group_is_dealt_to_in_turn_as_kafka_documents() -> None:
    assert assigned(FOUR_TOPICS, all_subscribed("C0 C1 C2", list(FOUR_TOPICS))) == {
        "C0": "t0p0 t1p1 t3p0",
        "C1": "t0p1 t2p0 t3p1",
        "C2": "t1p0 t2p1",
    }


def test_only_the_partitions_of_a_member_that_left_move_as_kafka_documents() -> None:
    topics = "t0 t1 t2 t3"
    members = {"C0": claiming(topics, "t0p0 t1p1 t3p0"), "C2": claiming(topics, "t1p0 t2p1")}
    assert assigned(FOUR_TOPICS, members) == {"C0": "t0p0 t1p1 t2p0 t3p0", "C2": "t0p1 t1p0 t2p1 t3p1"}


def test_uneven_subscriptions_are_balanced_as_kafka_documents() -> None:
    members = subscribed({"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"})
    assert assigned(UNEVEN_TOPICS, members) == {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}


def test_with_uneven_subscriptions_the_others_keep_theirs_when_a_member_leaves_as_kafka_documents() -> None:
    members = {"C1": claiming("t0 t1", "t1p0 t1p1"), "C2": claiming("t0 t1 t2", "t2p0 t2p1 t2p2")}
    assert assigned(UNEVEN_TOPICS, members) == {"C1": "t0p0 t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}


def test_of_three_runs_those_of_the_dead_member_are_spread_and_the_others_stay() -> None:
    members = {"consumer1": claiming("t", "tp0 tp1 tp2"), "consumer2": claiming("t", "tp3 tp4 tp5")}
    after = StickyAssignor().assign({"t": 9}, members)
    assert set(partitions("tp0 tp1 tp2")) < set(after["consumer1"])
    assert set(partitions("tp3 tp4 tp5")) < set(after["consumer2"])
    assert sorted(map(len, after.values())) == [4, 5]


def test_a_new_member_gets_its_share_and_nothing_moves_between_the_others() -> None:
    members = {"a": claiming("t", "tp0 tp1 tp2"), "b": claiming("t", "tp3 tp4 tp5"), "c": MemberSubscription(["t"])}
    assert assigned({"t": 6}, members) == {"a": "tp0 tp1", "b": "tp3 tp4", "c": "tp2 tp5"}


def test_the_one_partition_too_many_stays_with_who_has_it() -> None:
    members = {"a": claiming("t", "tp0"), "b": claiming("t", "tp1 tp2")}
    assert assigned({"t": 3}, members) == {"a": "tp0", "b": "tp1 tp2"}


def test_a_claim_of_an_older_generation_gives_way() -> None:
    members = {"a": claiming("t", "tp0 tp1", generation=3), "b": claiming("t", "tp1 tp2", generation=4)}
    assert assigned({"t": 4}, members) == {"a": "tp0 tp3", "b": "tp1 tp2"}


def test_a_claim_of_an_older_generation_counts_where_nobody_else_claims() -> None:
    members = {"a": claiming("t", "tp1", generation=3), "b": claiming("t", "tp0", generation=9)}
    assert assigned({"t": 2}, members) == {"a": "tp1", "b": "tp0"}


def test_two_claims_of_one_generation_both_fall() -> None:
    members = {"a": claiming("t", "tp1"), "b": claiming("t", "tp0 tp1 tp2")}
    assert assigned({"t": 4}, members) == {"a": "tp1 tp3", "b": "tp0 tp2"}


def test_two_equal_claims_give_way_to_a_later_one() -> None:
    members = {"a": claiming("t", "tp1", 5), "b": claiming("t", "tp1", 5), "c": claiming("t", "tp1", 6)}
    assert assigned({"t": 3}, members) == {"a": "tp0", "b": "tp2", "c": "tp1"}


def test_what_a_member_claims_of_topics_it_left_or_that_are_gone_or_shrank_does_not_count() -> None:
    members = {"a": claiming("t", "tp1 tp7 otherp0 gonep0"), "b": claiming("t other", "tp0")}
    assert assigned({"t": 2, "other": 1}, members) == {"a": "tp1", "b": "otherp0 tp0"}


def test_what_a_member_got_is_what_it_claims_next() -> None:
    assignor = StickyAssignor()
    assignor.on_assignment(partitions("tp4 up0"), 7)
    claim = decode_claim(assignor.subscription_user_data(["t", "u"]))
    assert claim == Claim(partitions("tp4 up0"), 7)


@pytest.mark.parametrize(
    "user_data", [b"\xff", b"[]", b"{}", b'{"partitions":{"t":["0"]}}', b'{"partitions":{"t":3}}', b'{"partitions":7}']
)
def test_user_data_that_cannot_be_read_is_no_claim_and_is_said(
    user_data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    members = {"a": MemberSubscription(["t"], user_data=user_data), "b": claiming("t", "tp0")}
    with caplog.at_level(logging.WARNING):
        assert assigned({"t": 2}, members) == {"a": "tp1", "b": "tp0"}
    assert "member a" in caplog.text


def test_new_partitions_go_to_those_with_the_least() -> None:
    members = {"a": claiming("t", "tp0 tp1"), "b": claiming("t", "tp2")}
    assert assigned({"t": 4}, members) == {"a": "tp0 tp1", "b": "tp2 tp3"}


def test_a_topic_that_only_the_busiest_member_reads_pushes_shared_topics_to_the_others() -> None:
    members = {"a": claiming("shared own", "sharedp0 sharedp1"), "b": claiming("shared", "sharedp2")}
    assert assigned({"shared": 3, "own": 2}, members) == {"a": "ownp0 ownp1 sharedp0", "b": "sharedp1 sharedp2"}


def test_a_group_without_members_has_an_empty_assignment() -> None:
    assert assigned({"t": 2}, {}) == {}
