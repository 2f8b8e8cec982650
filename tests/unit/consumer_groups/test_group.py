from __future__ import annotations

from dataclasses import replace

import pytest

from bus.consumer_groups.group import TRANSITIONS, Group, GroupState, Member, new_group
from bus.consumer_groups.requests import GroupProtocol
from bus.persistent_map import PersistentMap


def member(member_id: str, *names: str, rebalance_timeout_ms: int = 1, instance_id: str | None = None) -> Member:
    protocols = tuple(GroupProtocol(name, b"", (f"{name}-topic",)) for name in names)
    return Member(member_id, instance_id, "client", "/h", 1, rebalance_timeout_ms, protocols)


def group_of(*members: Member) -> Group:
    group = replace(new_group("billing"), state=GroupState.PREPARING_REBALANCE)
    for each in members:
        group = group.put_members([each])
    return group


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("before", GroupState)
def test_state_follows_only_those_of_the_table(before: GroupState, state: GroupState) -> None:
    group = replace(new_group("billing"), state=before)
    if before in TRANSITIONS[state]:
        assert group.at_state(state, now_ms=7).state is state
        assert group.at_state(state, now_ms=7).state_ms == 7
    else:
        with pytest.raises(AssertionError, match=f"{state.value} after {before.value}"):
            group.at_state(state, now_ms=7)


def test_every_state_but_the_last_leads_on_and_all_are_reached() -> None:
    reached, last = {GroupState.EMPTY}, None
    while reached != last:
        last = set(reached)
        reached |= {state for state, before in TRANSITIONS.items() if before.keys() & reached}
    assert reached == set(GroupState)
    assert set().union(*TRANSITIONS.values()) == set(GroupState) - {GroupState.DEAD}


def test_protocol_with_most_votes_among_the_common_ones_is_selected() -> None:
    a, b, c = member("a", "x", "y", "z"), member("b", "y", "x"), member("c", "y", "x", "w")
    assert group_of(a, b, c).selected_protocol() == "y"
    assert group_of(a, a, b).selected_protocol() == "x"  # a tie: the one that the first member wants
    assert group_of(a, b).has_common_protocol([GroupProtocol("y", b"")])
    assert not group_of(a, b).has_common_protocol([GroupProtocol("z", b"")])


def test_member_with_other_protocols_counts_with_those() -> None:
    group = group_of(member("a", "x", "y"), member("b", "x")).put_members([member("a", "x", "z")])
    group.check()
    assert group.supporters == {"x": 2, "z": 1}
    assert group.remove_members(["b"]).supporters == {"x": 1, "z": 1}


def test_first_member_leads_and_the_next_one_after_it() -> None:
    group = group_of(member("a", "x"), member("b", "x"), member("c", "x"))
    assert group.leader_id == "a"
    assert group.remove_members(["b"]).leader_id == "a"
    assert group.remove_members(["a"]).leader_id == "b"
    assert group.remove_members(["a"]).remove_members(["b"]).remove_members(["c"]).leader_id is None


def test_successor_of_a_static_leader_leads() -> None:
    group = group_of(member("a", "x", instance_id="desk"), member("b", "x"))
    changed = group.replace_static("a", member("a2", "x", instance_id="desk"))
    changed.check()
    assert (changed.leader_id, changed.instance_ids) == ("a2", {"desk": "a2"})
    assert group.put_members([member("b", "x")]).leader_id == "a"


def test_rebalance_timeout_is_the_largest_of_the_members() -> None:
    group = group_of(member("a", "x", rebalance_timeout_ms=5), member("b", "x", rebalance_timeout_ms=9))
    assert group.rebalance_timeout_ms == 9
    assert new_group("billing").rebalance_timeout_ms == 0


def test_subscribed_topics_are_those_of_the_protocol_once_it_is_chosen() -> None:
    group = group_of(member("a", "x", "y"), member("b", "x", "w"))
    assert group.subscribed_topics() == {"x-topic", "y-topic", "w-topic"}
    assert replace(group, state=GroupState.STABLE, protocol="x").subscribed_topics() == {"x-topic"}


def test_all_have_joined_only_if_nobody_is_expected_with_a_new_id() -> None:
    waiting = group_of(replace(member("a", "x"), awaiting_join=1))
    assert waiting.has_all_joined
    assert not replace(waiting, pending_members=PersistentMap({"b": True})).has_all_joined
    assert not waiting.put_members([member("c", "x")]).has_all_joined
