"""The search for a group's coordinator, under a clock of its own."""

from __future__ import annotations

import math

from bus.client.connection.retrying import SILENT_AFTER_MS
from bus.client.group.link import CoordinatorFinder, GroupRequest
from bus.descriptions import BrokerInfo
from bus.errors import BusError, ErrorCode

BACKOFF_MS = 100.0


def finder_of(sent: list[GroupRequest]) -> CoordinatorFinder:
    return CoordinatorFinder(
        "g", 1_000, send=sent.append, backoff_ms=lambda failures: BACKOFF_MS, may_retry=lambda error: error.retriable
    )


def test_search_that_nobody_has_begun_though_it_is_due_wakes_nobody_again_and_again() -> None:
    sent: list[GroupRequest] = []
    finder = finder_of(sent)
    finder.find(5.0)
    finder.on_answer(sent.pop(), BrokerInfo(1, "c", 1), 5.0)
    assert finder.next_event_after(6.0) == math.inf
    finder.mark_unknown("c:1", "it is gone", 6.0)
    assert finder.next_event_after(6.0) == 6.0 + BACKOFF_MS
    assert finder.next_event_after(6.0 + BACKOFF_MS) == math.inf
    assert finder.next_event() == 6.0 + BACKOFF_MS


def test_failed_search_is_repeated_after_a_pause_and_one_at_a_time() -> None:
    sent: list[GroupRequest] = []
    finder = finder_of(sent)
    finder.find(5.0)
    finder.find(5.0)
    (request,) = sent
    finder.on_answer(request, BusError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "none"), 5.0)
    finder.find(5.0)
    assert sent == [request]
    assert finder.next_event_after(5.0) == 5.0 + BACKOFF_MS
    finder.find(5.0 + BACKOFF_MS)
    assert len(sent) == 2


def test_search_without_an_answer_for_a_second_is_begun_at_another_broker_too() -> None:
    sent: list[GroupRequest] = []
    finder = finder_of(sent)
    finder.find(5.0)
    assert finder.next_event_after(5.0) == 5.0 + SILENT_AFTER_MS
    finder.find(4.0 + SILENT_AFTER_MS)
    assert len(sent) == 1
    finder.find(5.0 + SILENT_AFTER_MS)
    finder.find(90_000.0)
    assert len(sent) == 2
    assert finder.next_event() == math.inf
    first, second = sent
    finder.on_answer(second, BrokerInfo(1, "c", 1), 90_000.0)
    finder.on_answer(first, BrokerInfo(2, "d", 2), 90_000.0)
    assert finder.address == "c:1", "the answer that came first counts"


def test_search_has_failed_when_both_brokers_have() -> None:
    sent: list[GroupRequest] = []
    finder = finder_of(sent)
    finder.find(5.0)
    finder.find(5.0 + SILENT_AFTER_MS)
    first, second = sent
    finder.on_answer(first, BusError(ErrorCode.NETWORK_EXCEPTION, "away"), 2_000.0)
    finder.on_answer(second, BusError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "none"), 3_000.0)
    assert finder.next_event() == 3_000.0 + BACKOFF_MS
    finder.find(3_000.0 + BACKOFF_MS)
    assert len(sent) == 3
