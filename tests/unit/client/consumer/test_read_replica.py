from __future__ import annotations

from bus.client.consumer.assigned_partition import AT_LEADER, ReadReplica, note_failed, note_named, note_served

AGE_MS = 300_000


def named(state: ReadReplica, broker_id: int, now_ms: float) -> ReadReplica:
    return note_named(state, broker_id, now_ms, age_ms_max=AGE_MS)


def test_leader_is_asked_until_it_names_a_replica_and_again_when_that_is_long_ago() -> None:
    assert AT_LEADER.at(0) is None
    state = named(AT_LEADER, 2, 1_000)
    assert state.at(1_000) == state.at(1_000 + AGE_MS - 1) == 2
    assert state.at(1_000 + AGE_MS) is None
    assert named(state, 3, 1_000 + AGE_MS).at(1_000 + AGE_MS) == 3


def test_replica_that_failed_is_left_and_not_taken_again_for_a_while() -> None:
    state = note_failed(named(AT_LEADER, 2, 0), 2, 10)
    assert state.at(10) is None
    assert named(state, 2, 1_009).at(1_009) is None, "the leader does not know that it failed"
    assert named(state, 2, 1_010).at(1_010) == 2
    assert named(state, 3, 11).at(11) == 3, "another one is as good as ever"


def test_replica_that_fails_again_and_again_is_asked_ever_more_rarely() -> None:
    state, now_ms, pauses = AT_LEADER, 0.0, []
    for _ in range(9):
        state = note_failed(named(state, 2, now_ms), 2, now_ms)
        pauses.append(state.shunned_until_ms - now_ms)
        now_ms = state.shunned_until_ms
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_records_of_a_replica_make_up_for_its_failures() -> None:
    state = note_failed(named(AT_LEADER, 2, 0), 2, 0)
    state = note_failed(named(state, 2, 1_000), 2, 1_000)
    state = note_failed(note_served(named(state, 2, 3_000)), 2, 3_000)
    assert state.shunned_until_ms == 4_000
    assert note_served(AT_LEADER) is AT_LEADER
