"""Brokers that a controller reaches at their addresses, and those that it fences because nobody seems to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bus.cluster_metadata.broker_liveness import BrokerReach
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    apply,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState

SESSION_MS = 2_000
FENCED_BY_MS = SESSION_MS * 3 // 2 + 200  # the pause between two questions, and the session that begins with one
STEP_MS = 100


def cluster_of(count: int) -> ClusterState:
    started = [BrokerStarted(one, "h", 1, None, f"life-{one}", one + 1, 0, 1) for one in range(count)]
    unfenced = [BrokerUnfenced(one, one + 1) for one in range(count)]
    return apply_all(EMPTY_CLUSTER, [FeatureLevel("bus.version", 1), *started, *unfenced])


STATE = cluster_of(3)
# When an answer comes to a question of that time, if one does; another one is noticed at its time-out.
Answers = Callable[[int, float], float | None]


class Controller:
    """Broker 0, which asks when it is due, and is on time but for its stalls."""

    def __init__(self, answers: Answers, state: ClusterState = STATE) -> None:
        self.state = state
        self.answers = answers
        self.now_ms = 0.0
        self.reach = BrokerReach(SESSION_MS, tick_ms=500, controller_id=0, now_ms=0)
        self.asked_at: dict[int, list[float]] = {}
        self._outcomes: list[tuple[float, int, bool]] = []

    def run(self, until_ms: float, heard: Iterable[int] | None = None) -> dict[int, int]:
        """Return whom it would have fenced in the end."""
        everyone = set(self.state.brokers) if heard is None else {*heard}
        found: dict[int, int] = {}
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            found = self.look(everyone)
        return found

    def look(self, heard: Iterable[int]) -> dict[int, int]:
        for outcome in sorted(self._outcomes):
            at_ms, broker_id, is_answer = outcome
            if at_ms <= self.now_ms:
                self._outcomes.remove(outcome)
                self.reach.note(self.state.brokers[broker_id], is_answer=is_answer)
        for broker in self.reach.find_due(self.state, self.now_ms):
            self.asked_at.setdefault(broker.broker_id, []).append(self.now_ms)
            delay_ms = self.answers(broker.broker_id, self.now_ms)
            is_late = delay_ms is None or delay_ms > self.reach.timeout_ms
            end_ms = self.now_ms + (self.reach.timeout_ms if delay_ms is None or is_late else delay_ms)
            self._outcomes.append((end_ms, broker.broker_id, not is_late))
        return self.reach.find_unreached(self.state, set(heard), self.now_ms)


def at_once(broker_id: int, at_ms: float) -> float | None:
    return 0


def all_but(*cut: int, since_ms: float = 0, until_ms: float = 1e9) -> Answers:
    return lambda one, at_ms: None if one in cut and since_ms <= at_ms < until_ms else 0


def test_broker_that_is_heard_and_answers_nothing_is_named_a_session_after_the_first_question() -> None:
    controller = Controller(all_but(2, since_ms=5_000))
    assert controller.run(5_000 + SESSION_MS - STEP_MS) == {}
    assert controller.run(5_000 + FENCED_BY_MS) == {2: 3}
    assert controller.run(20_000) == {2: 3}, "until it is fenced"
    controller.state = apply(STATE, BrokerFenced(2, 3))
    assert controller.run(21_000) == {}


def test_brokers_are_asked_about_once_a_second_and_again_at_once_while_they_do_not_answer() -> None:
    controller = Controller(at_once)
    controller.run(10_000)
    assert len(controller.asked_at[1]) == 10
    assert 0 not in controller.asked_at


def test_controller_that_is_answered_by_none_holds_it_against_none() -> None:
    controller = Controller(all_but(1, 2))
    assert controller.run(60_000) == {}
    assert not controller.reach.is_reached(STATE, 1)


def test_of_two_brokers_nobody_can_tell_which_one_is_cut_off() -> None:
    controller = Controller(all_but(1, since_ms=5_000), cluster_of(2))
    assert controller.run(60_000) == {}
    controller = Controller(all_but(1, since_ms=5_000))
    assert controller.run(60_000, heard=[0, 1]) == {}, "broker 2 has died"


def test_two_of_five_are_named_and_three_are_not() -> None:
    five = cluster_of(5)
    assert Controller(all_but(3, 4, since_ms=5_000), five).run(60_000) == {3: 4, 4: 5}
    assert Controller(all_but(2, 3, 4, since_ms=5_000), five).run(60_000) == {}


def test_new_controller_names_nobody_before_it_has_asked_for_a_session() -> None:
    controller = Controller(all_but(2))
    assert controller.look([0, 1, 2]) == {}
    assert not controller.reach.is_reached(STATE, 1), "nor does it take anybody for reached"
    assert controller.run(SESSION_MS - STEP_MS) == {}
    assert controller.run(SESSION_MS + FENCED_BY_MS) == {2: 3}


def test_broker_that_answers_once_in_a_session_is_not_named() -> None:
    """Its link comes and goes, and what was sent meanwhile arrives once it is back."""
    controller = Controller(lambda one, at_ms: max(0, 1_800 - at_ms % 2_400) if one == 2 else 0)
    for until_ms in range(0, 60_000, STEP_MS):
        assert controller.run(until_ms) == {}


def test_connection_that_is_swallowed_is_not_held_against_a_broker_that_the_next_one_reaches() -> None:
    swallowed: list[float] = []

    def answers(one: int, at_ms: float) -> float | None:
        if one == 2 and at_ms >= 5_000 and not swallowed:
            swallowed.append(at_ms)
            return None
        return 0

    controller = Controller(answers)
    for until_ms in range(0, 20_000, STEP_MS):
        assert controller.run(until_ms) == {}
    assert swallowed


def test_slow_address_is_an_address() -> None:
    controller = Controller(lambda one, at_ms: 1_400 if one == 2 else 0)
    for until_ms in range(0, 60_000, STEP_MS):
        assert controller.run(until_ms) == {}
    assert controller.reach.is_reached(STATE, 2)


def test_stall_of_the_controller_is_no_silence_of_a_broker() -> None:
    controller = Controller(all_but(2, since_ms=5_000, until_ms=6_200))
    controller.run(5_900)
    controller.now_ms += 60_000
    assert controller.look([0, 1, 2]) == {}
    assert controller.run(controller.now_ms + 5_000) == {}


def test_fenced_broker_is_reached_again_once_it_answers() -> None:
    controller = Controller(all_but(2, since_ms=5_000, until_ms=12_000))
    controller.run(5_000 + FENCED_BY_MS)
    controller.state = apply(STATE, BrokerFenced(2, 3))
    controller.run(12_000)
    assert not controller.reach.is_reached(controller.state, 2)
    controller.run(12_000 + SESSION_MS)
    assert controller.reach.is_reached(controller.state, 2)


def test_answer_of_an_earlier_life_says_nothing_of_the_present_one() -> None:
    controller = Controller(at_once)
    controller.run(5_000)
    next_life = apply(STATE, BrokerStarted(2, "h", 1, None, "next", 9, 0, 1))
    assert not controller.reach.is_reached(next_life, 2)
    assert 2 in [one.broker_id for one in controller.reach.find_due(next_life, 5_100)]
    controller.reach.note(STATE.brokers[2], is_answer=True)
    assert not controller.reach.is_reached(next_life, 2)
    controller.reach.note(next_life.brokers[2], is_answer=True)
    assert controller.reach.is_reached(next_life, 2)


def test_broker_that_has_just_registered_is_reached() -> None:
    controller = Controller(all_but(2))
    controller.reach.note_registered(2, ("life-2", 3), 0)
    assert controller.reach.is_reached(STATE, 2)
    assert controller.run(SESSION_MS + FENCED_BY_MS) == {2: 3}
