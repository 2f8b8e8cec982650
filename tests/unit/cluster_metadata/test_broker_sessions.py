"""Brokers that a controller considers alive: sessions that are extended, end, or survive the controller's stall."""

from __future__ import annotations

from bus.cluster_metadata.broker_decisions import BrokerSessions
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    BrokerUnregistered,
    FeatureLevel,
    apply,
    apply_all,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.settings.broker import BrokerConfig

CONFIG = BrokerConfig(broker_heartbeat_interval_ms=500, broker_session_timeout_ms=2_000)
STATE = apply_all(
    EMPTY_CLUSTER,
    [
        FeatureLevel("bus.version", 1),
        *(BrokerStarted(one, "h", 1, None, f"life-{one}", one + 1, 0, 1) for one in range(3)),
        *(BrokerUnfenced(one, one + 1) for one in range(3)),
    ],
)


def begun(state: ClusterState = STATE, *, gone: tuple[int, ...] = (), now_ms: float = 0) -> BrokerSessions:
    return BrokerSessions(state, CONFIG, controller_id=0, end_offset=100, now_ms=now_ms, gone_broker_ids=gone)


def beat(
    sessions: BrokerSessions,
    broker_id: int,
    now_ms: float,
    *,
    state: ClusterState = STATE,
    epoch: int | None = None,
    life: str | None = None,
    applied: int = 0,
    wants_fence: bool = False,
    is_unanswered: bool = False,
) -> Refused | None:
    return sessions.heartbeat(
        state,
        broker_id,
        broker_id + 1 if epoch is None else epoch,
        life or f"life-{broker_id}",
        applied_offset=applied,
        end_offset=200,
        now_ms=now_ms,
        wants_fence=wants_fence,
        is_unanswered=is_unanswered,
    )


def check_until(sessions: BrokerSessions, begin_ms: int, end_ms: int, state: ClusterState = STATE) -> dict[int, int]:
    """Check like a controller that is on time."""
    found: dict[int, int] = {}
    for now_ms in range(begin_ms, end_ms + 1, 500):
        found = sessions.check(state, now_ms)
    return found


def test_new_controller_gives_all_others_a_fresh_session_and_needs_none_itself() -> None:
    sessions = begun()
    assert check_until(sessions, 500, 1_500) == {}
    assert check_until(sessions, 2_000, 2_000) == {1: 2, 2: 3}
    assert sessions.is_live(STATE, 0, 1e9)


def test_brokers_that_are_known_to_be_gone_have_no_session() -> None:
    sessions = begun(gone=(2,))
    assert sessions.check(STATE, 1) == {2: 3}
    assert not sessions.is_live(STATE, 2, 1)


def test_heartbeat_extends_the_session_and_a_silent_broker_is_named_until_it_is_fenced() -> None:
    sessions = begun()
    assert check_until(sessions, 500, 1_000) == {}
    assert beat(sessions, 1, 1_400) is None
    assert check_until(sessions, 1_500, 2_500) == {2: 3}
    assert check_until(sessions, 3_000, 3_000) == {2: 3}
    fenced = apply(STATE, BrokerFenced(2, 3))
    assert check_until(sessions, 3_500, 3_500, fenced) == {1: 2}


def test_stall_of_the_controller_counts_against_no_broker() -> None:
    sessions = begun()
    assert beat(sessions, 1, 400) is None
    assert sessions.check(STATE, 500) == {}
    assert beat(sessions, 2, 60_400) is None  # the first thing that is seen after a minute
    assert sessions.check(STATE, 60_500) == {}
    assert check_until(sessions, 61_000, 62_000) == {1: 2}
    assert check_until(sessions, 62_500, 62_500) == {1: 2, 2: 3}


def test_controller_hears_nobody_a_session_after_the_last_arrival_and_its_own_stall_counts_for_nothing() -> None:
    sessions = begun()
    sessions.note_arrival(400)
    check_until(sessions, 500, 2_000)
    assert not sessions.hears_nobody(2_400)
    assert sessions.hears_nobody(2_401)
    assert beat(sessions, 1, 2_450, epoch=9) is not None  # refused, and heard all the same
    sessions.check(STATE, 60_000)
    assert not sessions.hears_nobody(60_000)
    check_until(sessions, 60_500, 63_000)
    assert sessions.hears_nobody(63_000)


def test_heartbeat_of_an_earlier_life_extends_nothing() -> None:
    sessions = begun()
    state = apply(STATE, BrokerStarted(1, "h", 1, None, "next", 9, 0, 1))
    for epoch, life in ((2, "life-1"), (9, "life-1"), (2, "next"), (10, "next")):
        refused = beat(sessions, 1, 1_000, state=state, epoch=epoch, life=life)
        assert isinstance(refused, Refused)
        assert refused.code is ErrorCode.STALE_BROKER_EPOCH
    assert refused.message == "broker 1: expected broker epoch 9 of next, found 10 of next"
    assert not sessions.is_live(state, 1, 1_000)
    assert beat(sessions, 1, 1_000, state=state, epoch=9, life="next") is None
    assert sessions.is_live(state, 1, 2_999)
    assert not sessions.is_live(state, 1, 3_000)


def test_broker_that_is_not_registered_has_to_register() -> None:
    sessions = begun()
    state = apply(STATE, BrokerUnregistered(1))
    refused = beat(sessions, 1, 0, state=state)
    assert refused == Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, "expected a registered broker, found broker 1")
    assert sessions.check(state, 1) == {}
    assert not sessions.is_live(state, 1, 1)


def test_broker_may_be_unfenced_once_it_has_applied_its_registration() -> None:
    sessions = begun()
    state = apply(STATE, BrokerStarted(3, "h", 1, None, "life-3", 4, 0, 1))
    sessions.begin(3, 4, end_offset=120, now_ms=1_000)
    beat(sessions, 3, 1_100, state=state, applied=119)
    assert not sessions.may_unfence(state, 3, 1_100)
    beat(sessions, 3, 1_200, state=state, applied=120)  # the log is at 200 by now
    assert sessions.may_unfence(state, 3, 1_200)
    beat(sessions, 3, 1_300, state=state, applied=0)  # an old message
    assert sessions.may_unfence(state, 3, 1_300)
    assert not sessions.may_unfence(state, 3, 3_300)
    assert not sessions.may_unfence(apply(state, BrokerUnfenced(3, 4)), 3, 1_300)
    assert not sessions.may_unfence(state, 9, 1_300)


def test_fenced_broker_that_is_heard_again_under_a_new_controller_follows_to_where_that_began() -> None:
    state = apply(STATE, BrokerFenced(2, 3))
    sessions = begun(state, gone=(2,))
    assert sessions.check(state, 500) == {}
    beat(sessions, 2, 600, state=state, applied=199)
    assert not sessions.may_unfence(state, 2, 600)
    beat(sessions, 2, 700, state=state, applied=200)
    assert sessions.may_unfence(state, 2, 700)


def test_registration_again_keeps_what_the_life_has_applied() -> None:
    sessions = begun()
    beat(sessions, 1, 0, applied=150)
    sessions.begin(1, 2, end_offset=300, now_ms=1_000)
    assert sessions.is_live(STATE, 1, 2_500)
    assert sessions.may_unfence(apply(STATE, BrokerFenced(1, 2)), 1, 2_500)


def test_records_hold_everywhere_once_each_unfenced_broker_has_applied_them() -> None:
    sessions = begun()
    beat(sessions, 1, 0, applied=150)
    assert not sessions.have_applied(STATE, 150)
    assert sessions.have_applied(apply(STATE, BrokerFenced(2, 3)), 150)
    beat(sessions, 2, 0, applied=150)
    assert sessions.have_applied(STATE, 150)
    assert not sessions.have_applied(STATE, 151)


def test_broker_that_says_to_have_applied_what_is_not_in_the_log_is_not_believed() -> None:
    """Else it would count for records that are not decided yet, for good: 200 is the end."""
    sessions = begun()
    for broker_id in (1, 2):
        beat(sessions, broker_id, 0, applied=2**62)
    assert sessions.have_applied(STATE, 200)
    assert not sessions.have_applied(STATE, 201)


def test_controller_that_hears_nobody_spares_those_that_are_at_work() -> None:
    sessions = begun()
    assert check_until(sessions, 500, 1_500) == {}
    assert sessions.check(STATE, 2_000, working={1, 2}) == {}
    assert sessions.is_cut_off
    assert sessions.check(STATE, 2_500, working={1}) == {1: 2, 2: 3}, "one of two: it may be the other that is cut off"
    assert not sessions.is_cut_off


def test_controller_that_hears_the_others_fences_one_that_is_at_work() -> None:
    sessions = begun()
    beat(sessions, 1, 1_500)
    assert check_until(sessions, 500, 1_500) == {}
    assert sessions.check(STATE, 2_000, working={2}) == {2: 3}


def test_session_of_a_broker_that_answers_do_not_reach_ends_soon() -> None:
    sessions = begun()
    for now_ms in range(500, 3_001, 500):
        beat(sessions, 1, now_ms)
        beat(sessions, 2, now_ms, is_unanswered=now_ms >= 2_000)
        lost = sessions.check(STATE, now_ms)
        assert lost == ({2: 3} if now_ms >= 3_000 else {})
    assert sessions.find_late(STATE, 3_000) == [2]
    beat(sessions, 2, 3_100)
    assert sessions.check(STATE, 3_500) == {}


def test_broker_that_answers_do_not_reach_is_not_unfenced() -> None:
    sessions = begun(gone=(2,))
    fenced = apply(STATE, BrokerFenced(2, 3))
    beat(sessions, 2, 400, state=fenced, applied=200, is_unanswered=True)
    assert not sessions.may_unfence(fenced, 2, 450)
    beat(sessions, 2, 900, state=fenced, applied=200)
    assert sessions.may_unfence(fenced, 2, 950)


def test_late_brokers_matter_while_one_of_them_is_unfenced() -> None:
    sessions = begun(gone=(2,))
    fenced = apply(STATE, BrokerFenced(2, 3))
    beat(sessions, 1, 400)
    assert sessions.find_late(fenced, 1_400) == []
    assert sessions.find_late(fenced, 1_401) == [1, 2]


def test_broker_that_asks_for_it_is_fenced_and_stays_so_until_it_does_not() -> None:
    sessions = begun()
    beat(sessions, 1, 400, applied=150, wants_fence=True)
    assert sessions.find_failing(STATE) == {1: 2}
    fenced = apply(STATE, BrokerFenced(1, 2))
    assert sessions.find_failing(fenced) == {}
    assert not sessions.may_unfence(fenced, 1, 500)
    beat(sessions, 1, 600, applied=150)
    assert sessions.may_unfence(fenced, 1, 600)
