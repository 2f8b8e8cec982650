"""Silence and what another broker says about it, under a clock of its own."""

from __future__ import annotations

import math

from bus.client.connection.broker_watch import SilentBrokers
from bus.client.connection.retrying import SILENT_AFTER_MS

A, B = "a:1", "b:1"
FENCED_A = {A: True, B: False}
NONE_FENCED = {A: False, B: False}


def silent_at(now_ms: float) -> SilentBrokers:
    """One that is asking about A, to which something was sent a second before."""
    brokers = SilentBrokers()
    brokers.note_sent(A, now_ms - SILENT_AFTER_MS)
    assert brokers.tick(now_ms)
    return brokers


def test_broker_without_an_answer_for_a_second_is_asked_about_and_not_before() -> None:
    brokers = SilentBrokers()
    assert brokers.next_event() == math.inf
    brokers.note_sent(A, 100)
    assert brokers.next_event() == 100 + SILENT_AFTER_MS
    assert not brokers.tick(99 + SILENT_AFTER_MS)
    assert not brokers.is_avoided(A, 99 + SILENT_AFTER_MS)
    assert brokers.tick(100 + SILENT_AFTER_MS)
    assert brokers.is_avoided(A, 100 + SILENT_AFTER_MS)
    assert not brokers.is_avoided(B, 100 + SILENT_AFTER_MS)


def test_one_question_is_under_way_at_a_time() -> None:
    brokers = silent_at(5_000)
    assert brokers.next_event() == math.inf
    assert not brokers.tick(50_000)
    brokers.note_no_standing(50_000)
    assert brokers.tick(60_000)


def test_sign_of_life_ends_the_silence_though_an_older_request_is_still_waiting() -> None:
    brokers = silent_at(5_000)
    brokers.note_heard(A, 5_001)
    assert brokers.note_standing(FENCED_A, 5_002) == []
    assert brokers.next_event() == 5_001 + SILENT_AFTER_MS


def test_broker_that_owes_nothing_is_not_silent() -> None:
    brokers = SilentBrokers()
    brokers.note_sent(A, 0)
    brokers.note_sent(A, 1)
    brokers.note_settled(A)
    assert brokers.next_event() == SILENT_AFTER_MS
    brokers.note_settled(A)
    assert brokers.next_event() == math.inf
    assert not brokers.is_avoided(A, 10_000)


def test_second_begins_with_the_first_request_that_waits() -> None:
    brokers = SilentBrokers()
    brokers.note_sent(A, 0)
    brokers.note_settled(A)
    brokers.note_sent(A, 900)
    assert brokers.next_event() == 900 + SILENT_AFTER_MS


def test_slow_broker_is_never_given_up_and_asked_about_less_and_less_often() -> None:
    brokers = silent_at(1_000)
    pauses, now_ms = [], 1_000.0
    while now_ms < 300_000:
        assert brokers.note_standing(NONE_FENCED, now_ms) == []
        pauses.append(brokers.next_event() - now_ms)
        now_ms = brokers.next_event()
        assert brokers.tick(now_ms)
    assert pauses[0] == 250
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10_000


def test_fenced_broker_is_given_up_once_and_avoided_until_it_is_heard_of() -> None:
    brokers = silent_at(5_000)
    assert brokers.note_standing(FENCED_A, 5_000) == [A]
    assert brokers.is_avoided(A, 5_000)
    brokers.note_settled(A)  # what was under way there has failed
    assert brokers.next_event() == math.inf
    assert brokers.is_avoided(A, 90_000)
    brokers.note_live([A])
    assert not brokers.is_avoided(A, 90_000)


def test_what_is_sent_to_a_fenced_broker_again_has_a_second_of_its_own() -> None:
    brokers = silent_at(5_000)
    brokers.note_sent(A, 5_000)
    assert brokers.note_standing(FENCED_A, 5_000) == [A]
    brokers.note_settled(A)
    assert brokers.next_event() == 5_000 + SILENT_AFTER_MS
    assert brokers.tick(6_000)
    assert brokers.note_standing(FENCED_A, 6_000) == [A]


def test_broker_that_is_not_of_the_cluster_is_not_given_up() -> None:
    """The address may be one by which a client finds the brokers, behind which any of them may be."""
    assert silent_at(5_000).note_standing({B: False}, 5_000) == []


def test_broker_that_answers_after_all_is_asked_like_any_other() -> None:
    brokers = silent_at(5_000)
    brokers.note_standing(FENCED_A, 5_000)
    brokers.note_heard(A, 5_001)
    assert not brokers.is_avoided(A, 5_002)
