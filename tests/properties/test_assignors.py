"""Assignors, on groups that hypothesis makes up: who gets what, how evenly, and what moves when the group changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    encode_claim,
)
from bus.client.sticky_assignment import Claim
from bus.model import TopicPartition

Members = dict[str, MemberSubscription]
EVERY = pytest.mark.parametrize(
    "assignor",
    [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()],
    ids=lambda a: a.name,
)
TOPICS = ["a", "b", "c", "d"]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))
member_ids = st.lists(st.sampled_from("mnopqrs"), unique=True, min_size=1)


@st.composite
def equal_members(draw: st.DrawFn) -> Members:
    topics = draw(st.lists(st.sampled_from(TOPICS), unique=True, min_size=1))
    return {member_id: MemberSubscription(topics) for member_id in draw(member_ids)}


@st.composite
def various_members(draw: st.DrawFn) -> Members:
    topics = st.lists(st.sampled_from([*TOPICS, "gone"]), unique=True)
    return {member_id: MemberSubscription(draw(topics)) for member_id in draw(member_ids)}


def wanted(partitions: Mapping[str, int], members: Members) -> set[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {TopicPartition(topic, n) for topic in topics for n in range(partitions.get(topic, 0))}


def holding(members: Members, owned: Assignment, generation: int = 1) -> Members:
    """Return the members, where those of `owned` bring what they had both ways: as user data and as owned
    partitions."""
    return {
        member_id: replace(
            member,
            user_data=encode_claim(Claim(tuple(owned[member_id]), generation)),
            owned=tuple(owned[member_id]),
            generation=generation,
        )
        if member_id in owned
        else member
        for member_id, member in members.items()
    }


def kept_count(before: Assignment, after: Assignment) -> int:
    return sum(len(set(before.get(member_id, ())) & set(owned)) for member_id, owned in after.items())


def most_that_can_stay(partition_count: int, members: Collection[str], before: Assignment) -> int:
    """Return how many partitions can stay in an assignment balanced within one: members that had more keep the larger
    shares, as far as there are any."""
    each, larger = divmod(partition_count, len(members))
    had = sorted((len(before.get(member_id, ())) for member_id in members), reverse=True)
    return sum(min(count, each + (place < larger)) for place, count in enumerate(had))


def is_balanced(after: Assignment, members: Members) -> bool:
    """Nobody has two more than another one that could take one of them."""
    for giver, owned in after.items():
        for taker in after:
            could_take = any(partition.topic in members[taker].topics for partition in owned)
            if could_take and len(after[giver]) - len(after[taker]) >= 2:
                return False
    return True


@EVERY
@given(partitions=counts, members=st.one_of(equal_members(), various_members()))
def test_every_partition_goes_to_one_subscriber(
    assignor: Assignor, partitions: dict[str, int], members: Members
) -> None:
    assigned = assignor.assign(partitions, members)
    assert set(assigned) == set(members)
    assert Counter(p for owned in assigned.values() for p in owned) == Counter(wanted(partitions, members))
    assert all(p.topic in members[member_id].topics for member_id, owned in assigned.items() for p in owned)


@EVERY
@given(partitions=counts, members=various_members(), seed=st.randoms(use_true_random=False))
def test_the_order_of_members_and_topics_does_not_matter(
    assignor: Assignor, partitions: dict[str, int], members: Members, seed: object
) -> None:
    shuffle = seed.shuffle  # type: ignore[attr-defined]
    member_ids, topics = list(members), list(partitions)
    shuffle(member_ids)
    shuffle(topics)
    again = assignor.assign({t: partitions[t] for t in topics}, {m: members[m] for m in member_ids})
    first = assignor.assign(partitions, members)
    assert {m: sorted(p) for m, p in again.items()} == {m: sorted(p) for m, p in first.items()}


@pytest.mark.parametrize(
    "assignor", [RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()], ids=lambda a: a.name
)
@given(partitions=counts, members=equal_members())
def test_equal_subscriptions_are_balanced_within_one(
    assignor: Assignor, partitions: dict[str, int], members: Members
) -> None:
    sizes = [len(owned) for owned in assignor.assign(partitions, members).values()]
    assert max(sizes) - min(sizes) <= 1


@given(partitions=counts, members=equal_members())
def test_range_balances_each_topic_within_one(partitions: dict[str, int], members: Members) -> None:
    assigned = RangeAssignor().assign(partitions, members)
    for topic in partitions:
        sizes = [sum(p.topic == topic for p in owned) for owned in assigned.values()]
        assert max(sizes) - min(sizes) <= 1


@given(partitions=counts, members=various_members(), later=various_members(), more=counts)
@settings(max_examples=3 * settings.default.max_examples)
def test_sticky_leaves_nothing_that_could_still_be_levelled(
    partitions: dict[str, int], members: Members, later: Members, more: dict[str, int]
) -> None:
    before = StickyAssignor().assign(partitions, members)
    assert is_balanced(before, members)
    after = StickyAssignor().assign({**partitions, **more}, holding(later, before))
    assert is_balanced(after, later)


@given(partitions=counts, members=various_members())
def test_sticky_moves_nothing_in_a_group_that_did_not_change(partitions: dict[str, int], members: Members) -> None:
    before = StickyAssignor().assign(partitions, members)
    after = StickyAssignor().assign(partitions, holding(members, before))
    assert {m: set(p) for m, p in after.items()} == {m: set(p) for m, p in before.items()}


@given(partitions=counts, before=equal_members(), ids=member_ids)
@settings(max_examples=3 * settings.default.max_examples)
def test_sticky_keeps_as_much_as_can_stay_when_members_come_and_go(
    partitions: dict[str, int], before: Members, ids: list[str]
) -> None:
    topics = next(iter(before.values())).topics
    owned = StickyAssignor().assign(partitions, before)
    later = holding({member_id: MemberSubscription(topics) for member_id in ids}, owned)
    after = StickyAssignor().assign(partitions, later)
    assert kept_count(owned, after) == most_that_can_stay(len(wanted(partitions, later)), list(later), owned)


@given(partitions=counts, members=various_members(), data=st.data())
def test_sticky_takes_nothing_from_those_who_stay_when_a_member_leaves_a_balanced_group(
    partitions: dict[str, int], members: Members, data: st.DataObject
) -> None:
    """Unless levels demand it: with one set of topics for all they never do."""
    leaver = data.draw(st.sampled_from(sorted(members)))
    topics = members[leaver].topics
    alike = {member_id: MemberSubscription(topics) for member_id in members}
    before = StickyAssignor().assign(partitions, alike)
    stayed = holding({m: s for m, s in alike.items() if m != leaver}, before)
    after = StickyAssignor().assign(partitions, stayed)
    assert all(set(before[member_id]) <= set(owned) for member_id, owned in after.items())


def rounds_until_settled(partitions: dict[str, int], members: Members) -> int:
    """Each round: the assignment, which takes nothing that another one owns; then all join again with what they got."""
    assignor = CooperativeStickyAssignor()
    for rounds in range(1, 20):
        assigned = assignor.assign(partitions, members)
        for member_id, given_now in assigned.items():
            others = {p for other, had in members.items() if other != member_id for p in had.owned}
            assert not set(given_now) & others
        gave_up = any(set(member.owned) - set(assigned[member_id]) for member_id, member in members.items())
        if not gave_up:
            assert {p for owned in assigned.values() for p in owned} == wanted(partitions, members)
            return rounds
        members = holding(members, assigned, generation=rounds + 1)
    raise AssertionError("expected the group to settle, found that it moves partitions for ever")


@given(partitions=counts, before=equal_members(), ids=member_ids, more=counts)
@settings(max_examples=2 * settings.default.max_examples)
def test_cooperative_settles_in_two_rounds_where_subscriptions_are_equal(
    partitions: dict[str, int], before: Members, ids: list[str], more: dict[str, int]
) -> None:
    topics = next(iter(before.values())).topics
    owned = CooperativeStickyAssignor().assign(partitions, before)
    grown = {topic: max(more.get(topic, 0), partitions.get(topic, 0)) for topic in {*more, *partitions}}
    later = holding({member_id: MemberSubscription(topics) for member_id in ids}, owned)
    assert rounds_until_settled(grown, later) <= 2


@given(partitions=counts, members=various_members(), later=various_members(), more=counts)
@settings(max_examples=2 * settings.default.max_examples)
def test_cooperative_settles_soon_whatever_members_subscribe_to(
    partitions: dict[str, int], members: Members, later: Members, more: dict[str, int]
) -> None:
    owned = CooperativeStickyAssignor().assign(partitions, members)
    grown = {topic: max(more.get(topic, 0), partitions.get(topic, 0)) for topic in {*more, *partitions}}
    assert rounds_until_settled(grown, holding(later, owned)) <= 4


@given(partitions=counts, members=various_members(), data=st.data())
@settings(max_examples=3 * settings.default.max_examples)
def test_contradicting_claims_never_make_two_owners(
    partitions: dict[str, int], members: Members, data: st.DataObject
) -> None:
    every = [TopicPartition(topic, n) for topic in TOPICS for n in range(7)]
    claimed = {
        member_id: replace(
            member,
            owned=tuple(data.draw(st.lists(st.sampled_from(every), unique=True, max_size=6))),
            generation=data.draw(st.integers(-1, 2)),
        )
        for member_id, member in members.items()
    }
    assigned = CooperativeStickyAssignor().assign(partitions, claimed)
    everything = [p for owned in assigned.values() for p in owned]
    assert len(everything) == len(set(everything))
    for member_id, owned in assigned.items():
        for partition in set(owned) - set(claimed[member_id].owned):
            assert not any(partition in other.owned for other in claimed.values())
