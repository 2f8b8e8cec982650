"""Moves between members that keep reading the rest: a partition is given up before it is given."""

from __future__ import annotations

from bus.client.assignors import CooperativeStickyAssignor, MemberSubscription
from tests.support.assignments import all_subscribed, named, partitions


def owning(owned: str, generation: int = 1, topics: str = "t") -> MemberSubscription:
    return MemberSubscription(topics.split(), owned=partitions(owned), generation=generation)


def assigned(count: int, members: dict[str, MemberSubscription]) -> dict[str, str]:
    return named(CooperativeStickyAssignor().assign({"t": count}, members))


def test_a_fresh_group_gets_everything_at_once() -> None:
    assert assigned(4, all_subscribed("a b", ["t"])) == {"a": "tp0 tp2", "b": "tp1 tp3"}


def test_what_moves_to_a_new_member_is_in_no_assignment_until_its_owner_gave_it_up() -> None:
    first = {"a": owning("tp0 tp1 tp2"), "b": MemberSubscription(["t"])}
    assert assigned(3, first) == {"a": "tp0 tp1", "b": ""}
    second = {"a": owning("tp0 tp1", generation=2), "b": owning("", generation=2)}
    assert assigned(3, second) == {"a": "tp0 tp1", "b": "tp2"}


def test_what_nobody_owns_is_given_at_once_while_the_rest_waits() -> None:
    members = {"a": owning("tp0 tp1 tp2"), "b": MemberSubscription(["t"])}
    assert assigned(5, members) == {"a": "tp0 tp1 tp2", "b": "tp3 tp4"}


def test_what_a_member_that_left_owned_is_given_at_once() -> None:
    assert assigned(4, {"b": owning("tp2 tp3")}) == {"b": "tp0 tp1 tp2 tp3"}


def test_what_a_member_owns_of_a_topic_it_left_waits_until_it_gave_it_up() -> None:
    members = {"a": owning("tp0 tp1", topics="u"), "b": MemberSubscription(["t"])}
    assert assigned(2, members) == {"a": "", "b": ""}


def test_what_two_members_own_in_one_generation_waits_until_both_gave_it_up() -> None:
    members = {"a": owning("tp1 tp0"), "b": owning("tp1 tp2"), "c": owning("")}
    assert assigned(3, members) == {"a": "tp0", "b": "tp2", "c": ""}


def test_a_zombies_claim_does_not_bring_it_the_partition_of_its_younger_owner() -> None:
    members = {"a": owning("tp0 tp1", generation=4), "b": owning("tp1", generation=2)}
    assert assigned(2, members) == {"a": "tp0", "b": ""}


def test_what_a_zombie_claims_too_stays_with_its_younger_owner() -> None:
    members = {"a": owning("tp1", generation=4), "b": owning("tp1 tp0", generation=2)}
    assert assigned(2, members) == {"a": "tp1", "b": "tp0"}


def test_user_data_is_not_needed() -> None:
    assert CooperativeStickyAssignor().subscription_user_data(["t"]) == b""
