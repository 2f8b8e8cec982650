"""Replicas in sync, and the state of a partition that follows from them."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.cluster_state import Leadership, Topic, replica_state


def topic(leader_id: int, *replicas: int) -> Topic:
    return Topic("t", "id-1", (Leadership(leader_id, 0),), assignments=(replicas,) if replicas else ())


@pytest.mark.parametrize(
    ("found", "unfenced_brokers", "in_sync", "is_under_replicated", "is_offline"),
    [
        (topic(1, 1, 0, 2), {0, 1, 2, 3}, (1, 0, 2), False, False),
        (topic(1, 1, 0, 2), {2, 1}, (1, 2), True, False),
        (topic(1, 1, 0, 2), {0, 2}, (0, 2), True, True),
        (topic(1, 1), set(), (), True, True),
        (topic(3, 1, 0), {3}, (), True, False),  # all replicas are fenced, so another broker leads
        (topic(0), {0}, (0,), False, False),  # without an assignment the leader is the only replica
        (topic(0), {1}, (), True, True),
    ],
)
def test_replicas_are_in_sync_as_their_brokers_are(
    found: Topic, unfenced_brokers: set[int], in_sync: tuple[int, ...], is_under_replicated: bool, is_offline: bool
) -> None:
    state = replica_state(found, 0, unfenced_brokers)
    assert state.replicas == found.replicas(0)
    assert (state.in_sync, state.is_under_replicated, state.is_offline) == (in_sync, is_under_replicated, is_offline)


def test_replica_that_does_not_keep_up_is_not_in_sync() -> None:
    state = replica_state(topic(1, 1, 0, 2), 0, {0, 1, 2}, lagging=[0])
    assert (state.in_sync, state.is_under_replicated, state.is_offline) == ((1, 2), True, False)
