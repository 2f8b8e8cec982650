"""Uses of named producers come to the controller in time, once in an interval, and to the next controller again."""

from __future__ import annotations

import pytest

from bus.runtime.metadata.producers import REPORTED_MAX, ProducerUses

INTERVAL_MS = 100


def tell(uses: ProducerUses, controller: str, now_ms: float) -> list[int]:
    """One heartbeat that is answered."""
    due = uses.find_due(controller, now_ms)
    uses.note_reported(due)
    return sorted(due)


@pytest.fixture
def uses() -> ProducerUses:
    uses = ProducerUses(INTERVAL_MS)
    uses.note(1)
    uses.note(2)
    uses.note(1)
    return uses


def test_use_is_told_once_in_an_interval(uses: ProducerUses) -> None:
    assert tell(uses, "c", 99) == []
    assert tell(uses, "c", 100) == [1, 2]
    uses.note(1)
    assert tell(uses, "c", 199) == []
    assert tell(uses, "c", 200) == [1]
    assert tell(uses, "c", 300) == []


def test_use_is_told_until_the_heartbeat_is_answered(uses: ProducerUses) -> None:
    assert sorted(uses.find_due("c", 100)) == [1, 2]
    uses.note(3)
    assert sorted(uses.find_due("c", 101)) == [1, 2]
    assert tell(uses, "c", 102) == [1, 2]
    assert tell(uses, "c", 200) == [3]


def test_heartbeat_is_bounded_and_the_next_ones_have_the_rest() -> None:
    uses = ProducerUses(INTERVAL_MS)
    for producer_id in range(2 * REPORTED_MAX + 1):
        uses.note(producer_id)
    told = [tell(uses, "c", 100 + number) for number in range(4)]
    assert [len(one) for one in told] == [REPORTED_MAX, REPORTED_MAX, 1, 0]
    assert {one for some in told for one in some} == set(range(2 * REPORTED_MAX + 1))


def test_next_controller_is_told_again_what_the_one_before_may_not_have_said(uses: ProducerUses) -> None:
    assert tell(uses, "c", 100) == [1, 2]
    uses.note(3)
    assert tell(uses, "c", 200) == [3]
    assert tell(uses, "d", 201) == [1, 2, 3]
    assert tell(uses, "d", 301) == []
    assert tell(uses, "d", 401) == []
    assert tell(uses, "e", 501) == []


def test_controller_takes_what_was_used_here_and_what_it_told_another_one(uses: ProducerUses) -> None:
    tell(uses, "c", 100)
    uses.note(3)
    assert uses.take_all() == {1, 2, 3}
    assert uses.take_all() == set()
    assert tell(uses, "d", 300) == []
