"""Leases decide who is silent, who is cut off, who may be elected, and who cannot write."""

from __future__ import annotations

import pytest

from bus.cluster_metadata.broker_liveness import (
    Lease,
    LeaseWatch,
    WriteSession,
    decode_lease,
    election_rank,
    encode_lease,
    is_cut_off,
    is_left_by_majority,
    may_replace,
    may_resign,
)
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    ControllerElected,
    FeatureLevel,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER

SESSION_MS = 2_000


@pytest.mark.parametrize("lease", [Lease(1), Lease(2**40, "life-7")])
def test_lease_is_read_as_it_was_written_and_takes_the_room_of_a_small_commit(lease: Lease) -> None:
    data = encode_lease(lease)
    assert decode_lease(data) == lease
    assert len(data) == 4_096


@pytest.mark.parametrize("data", [b"", b"x", b"\xff\xfe 1", b"-1 life", b"1" * 10_000])
def test_what_is_no_lease_says_nothing(data: bytes) -> None:
    assert decode_lease(data).unreached == ""


def test_lease_is_silent_when_it_has_not_changed_for_a_session() -> None:
    watch = LeaseWatch(SESSION_MS)
    watch.note(1, b"1 ", 0)
    assert not watch.is_silent(1, 2_000)
    assert watch.is_silent(1, 2_001)
    watch.note(1, b"2 ", 2_500)
    assert not watch.is_silent(1, 4_500)
    assert not watch.is_silent(9, 1e9), "nobody has looked at it"


def test_lease_that_is_away_while_it_is_written_anew_neither_changes_nor_says_otherwise() -> None:
    watch = LeaseWatch(SESSION_MS)
    watch.note(1, encode_lease(Lease(1, "life-0")), 0)
    watch.note(1, b"", 500)
    assert watch.find_working(600) == {1: Lease(1, "life-0")}
    assert watch.is_silent(1, 2_001), "one that cannot be made again is silent as any other"


def test_broker_without_a_lease_is_not_silent_and_no_proof_of_a_majority_that_reaches_the_controller() -> None:
    watch = LeaseWatch(SESSION_MS)
    for now_ms in (0, 1_000, 60_000):
        watch.note(1, b"", now_ms)
        assert not watch.is_silent(1, now_ms)
    assert watch.find_working(60_000) == {}, "heartbeats alone decide"
    watch.note(1, b"1 ", 61_000)
    assert watch.is_silent(1, 63_001)


def test_change_of_the_lock_is_one_of_the_lease() -> None:
    watch = LeaseWatch(SESSION_MS)
    watch.note(1, b"1 life-0", 0, lock=b"a")
    watch.note(1, b"1 life-0", 1_500, lock=b"b")
    assert not watch.is_silent(1, 3_500)
    watch.note(1, b"", 3_600, lock=b"")  # it is written anew
    assert watch.is_silent(1, 3_600)
    assert watch.find_working(3_500) == {1: Lease(1, "life-0")}


def test_broker_is_seen_to_work_only_while_it_is_watched() -> None:
    watch = LeaseWatch(SESSION_MS)
    watch.note(1, b"1 ", 0)
    assert not watch.was_seen_to_work(1, 100)
    watch.note(1, b"2 ", 500)
    assert watch.was_seen_to_work(1, 2_500)
    assert not watch.was_seen_to_work(1, 2_501)
    watch.note(1, b"3 ", 60_000)  # it may have stood still since it wrote that
    assert not watch.was_seen_to_work(1, 60_000)
    watch.note_ended(1)
    assert watch.find_working(60_000) == {}


@pytest.mark.parametrize(
    ("heard", "working", "expected"),
    [
        ({0}, {0, 1, 2}, True),
        ({0, 1}, {0, 1, 2}, False),
        ({0}, {0, 1}, False),  # of two nobody can tell which one is cut off
        ({0}, {0}, False),  # the others do not work
        ({0, 1}, {0, 1, 2, 3}, False),
        ({0}, {0, 1, 2, 3}, True),
        ({0, 1}, {0, 1, 2, 3, 4}, True),
    ],
)
def test_controller_is_cut_off_if_it_hears_less_than_half_of_those_that_work(
    heard: set[int], working: set[int], expected: bool
) -> None:
    assert is_cut_off(heard, working) == expected


@pytest.mark.parametrize(
    ("unreached", "expected"),
    [
        (["", "life-0", "life-0"], True),
        (["", "", "life-0"], False),
        (["", "life-0"], False),
        (["", "earlier", "earlier"], False),
        (["", "", "life-0", "life-0"], False),
    ],
)
def test_controller_is_left_if_more_than_half_do_not_reach_that_life_of_it(
    unreached: list[str], expected: bool
) -> None:
    leases = {broker_id: Lease(1, life) for broker_id, life in enumerate(unreached)}
    assert is_left_by_majority(leases, "life-0") == expected


def test_candidate_reaches_more_than_half_of_those_that_work() -> None:
    leases = {broker_id: Lease(1) for broker_id in range(3)}
    assert may_replace({1, 2}, leases, controller_id=0, incarnation="life-0")
    assert not may_replace({1}, leases, controller_id=0, incarnation="life-0"), "it would be left in turn"
    assert not may_replace({1, 7, 8}, leases, controller_id=0, incarnation="life-0")


def test_controller_that_has_resigned_is_none_of_those_that_a_candidate_has_to_reach() -> None:
    leases = {0: Lease(1, "life-0"), 1: Lease(1, "life-0")}
    assert is_left_by_majority(leases, "life-0")
    assert may_replace({1}, leases, controller_id=0, incarnation="life-0")
    assert not may_replace({1}, {**leases, 0: Lease(1, "earlier")}, controller_id=0, incarnation="life-0")


@pytest.mark.parametrize(
    ("reached", "unreached", "expected"),
    [
        ({1}, {1: "life-0"}, True),
        (set(), {1: "life-0"}, False),  # nobody can tell which side is cut off
        ({1}, {1: ""}, False),
        ({1}, {1: "earlier"}, False),
        ({1, 2}, {1: "life-0", 2: ""}, False),
        ({1}, {1: "life-0", 2: "life-0"}, False),
        ({1, 2}, {1: "life-0", 2: "life-0", 3: ""}, True),
        (set(), {}, False),
    ],
)
def test_controller_resigns_if_more_than_half_of_the_others_are_reached_and_do_not_reach_it(
    reached: set[int], unreached: dict[int, str], expected: bool
) -> None:
    leases = {broker_id: Lease(1, life) for broker_id, life in unreached.items()}
    assert may_resign(reached, leases, "life-0") == expected


def test_fenced_brokers_try_after_the_others_and_the_controller_until_now_is_the_last() -> None:
    state = apply_all(
        EMPTY_CLUSTER,
        [
            FeatureLevel("bus.version", 1),
            ControllerElected(1, "life-1"),
            *(BrokerStarted(one, "h", 1, None, f"life-{one}", one + 1, 0, 1) for one in range(5)),
            *(BrokerUnfenced(one, one + 1) for one in range(5)),
            BrokerFenced(0, 1),
        ],
    )
    assert [election_rank(state, one) for one in range(5)] == [3, 4, 0, 1, 2]
    assert election_rank(state, 0, gone_broker_ids={2, 3, 1}) == 1
    assert election_rank(EMPTY_CLUSTER, 0) == 0


def begun() -> WriteSession:
    return WriteSession(SESSION_MS, tick_ms=200, now_ms=0)


def tick_until(writes: WriteSession, begin_ms: int, end_ms: int) -> None:
    for now_ms in range(begin_ms, end_ms + 1, 200):
        writes.tick(now_ms)


def test_broker_that_has_not_written_for_a_session_cannot_write_until_it_does() -> None:
    writes = begun()
    tick_until(writes, 200, 2_000)
    assert not writes.cannot_write
    tick_until(writes, 2_200, 2_200)
    assert writes.cannot_write
    writes.note_success(2_300)
    assert not writes.cannot_write


def test_time_in_which_the_broker_stood_still_is_no_fault_of_the_storage() -> None:
    writes = begun()
    tick_until(writes, 200, 1_000)
    tick_until(writes, 61_000, 61_600)
    assert not writes.cannot_write
    tick_until(writes, 61_800, 61_800)
    assert writes.cannot_write


def test_broker_is_well_a_session_after_its_last_failure() -> None:
    writes = begun()
    assert writes.is_well(0)
    writes.note_failure(500)
    writes.note_success(600)
    assert not writes.is_well(2_500)
    assert writes.is_well(2_501)
