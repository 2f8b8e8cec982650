"""Names that are not used any more go, and never while they are."""

from __future__ import annotations

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    ProducerExpired,
    ProducerIdsAllocated,
    ProducerNamed,
    ProducerUsed,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.cluster_metadata.producer_decisions import RECORDS_MAX, decide_expire_producers
from bus.cluster_metadata.producer_ids import RetiredIds

EXPIRATION_MS = 8_000  # so that use is told every 500


def cluster(*records: ClusterRecord) -> ClusterState:
    return apply_all(EMPTY_CLUSTER, (ProducerIdsAllocated(0, 100_000), *records))


def decide(state: ClusterState, now_ms: int, seen_ms: dict[int, int] | None = None) -> tuple[ClusterRecord, ...]:
    return tuple(
        decide_expire_producers(state, seen_ms=seen_ms or {}, now_ms=now_ms, expiration_ms=EXPIRATION_MS).records
    )


P = ProducerNamed("p", 3, 0, -1)


def test_name_of_which_nothing_was_said_counts_as_used_when_it_is_looked_at() -> None:
    assert decide(cluster(P), 70_000) == (ProducerUsed("p", 70_000),)
    assert decide(cluster(P), 70_000, {3: 65_000}) == (ProducerUsed("p", 65_000),)


def test_name_goes_when_it_was_neither_seen_nor_said_to_be_used_for_the_whole_time_and_a_little_more() -> None:
    state = cluster(P, ProducerUsed("p", 10_000))
    assert decide(state, 18_999) == ()
    assert decide(state, 19_000) == (ProducerExpired("p", 3),)
    assert decide(state, 19_000, {3: 10_500}) == ()


def test_use_is_said_again_once_in_a_while() -> None:
    state = cluster(P, ProducerUsed("p", 10_000))
    assert decide(state, 10_500, {3: 10_500}) == ()
    assert decide(state, 10_501, {3: 10_501}) == (ProducerUsed("p", 10_501),)


def test_use_of_a_name_is_kept_when_its_next_instance_comes() -> None:
    state = cluster(P, ProducerUsed("p", 10_000), ProducerNamed("p", 3, 1, -1))
    named = state.producers.by_name.get("p")
    assert named is not None
    assert named.used_ms == 10_000


def test_one_decision_is_bounded() -> None:
    many = [ProducerNamed(f"p{number}", number, 0, -1) for number in range(RECORDS_MAX + 5)]
    state = cluster(*many)
    first = decide(state, 1)
    assert len(first) == RECORDS_MAX
    assert len(decide(apply_all(state, first), 1)) == 5


def test_ids_that_retire_together_are_one_range() -> None:
    retired = RetiredIds().with_ranges([(5, 6), (7, 8)]).with_ranges([(6, 7), (20, 30), (25, 26)])
    assert retired.ranges == ((5, 8), (20, 30))
    assert [number in retired for number in (4, 5, 7, 8, 19, 20, 29, 30)] == [
        False, True, True, False, False, True, True, False,
    ]  # fmt: skip
