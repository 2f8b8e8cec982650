"""Announcements of work to those who wait for it."""

from __future__ import annotations

from typing import Any

from bus.client.values import ConsumerRecord
from bus.platform.reentry import is_inside
from bus.processing import parse_settings
from bus.processing.record_flow import RecordFlow
from bus.processing.workers import WorkBoard
from tests.support.processing import record


class Told:
    def __init__(self, count: int = 1, **options: Any) -> None:
        self.wakes = 0
        self.announcements = 0
        self.flow = RecordFlow(parse_settings(options), now_ms=0)
        self.flow.add([record(number) for number in range(count)])
        self.board = WorkBoard(self.flow, self._wake, clock=lambda: 0)
        self.board.announce = self._announce

    def _wake(self) -> None:
        self.wakes += 1

    def _announce(self) -> None:
        self.announcements += 1


def test_the_poll_is_woken_once_until_it_has_looked() -> None:
    told = Told(3, ack="record", order="none")
    works = [told.board.take() for _ in range(3)]
    for work in works[:2]:
        assert work is not None
        told.board.succeed(work)
    assert told.wakes == 1
    told.board.start_round()
    assert works[2] is not None
    told.board.succeed(works[2])
    assert told.wakes == 2


def test_the_poll_is_not_woken_while_nothing_is_due() -> None:
    told = Told(2)
    work = told.board.take()
    assert work is not None
    told.board.succeed(work)
    assert told.wakes == 0


def test_the_poll_is_woken_by_a_failure_that_stops() -> None:
    told = Told()
    work = told.board.take()
    assert work is not None
    told.board.fail(work, ValueError())
    assert told.wakes == 1


def test_on_error_is_asked_while_no_lock_is_held() -> None:
    seen: list[bool] = []

    def on_error(failed: ConsumerRecord, error: BaseException, attempt: int) -> str:
        seen.append(is_inside())
        return "skip"

    told = Told(on_error=on_error, retries=0)
    work = told.board.take()
    assert work is not None
    told.board.fail(work, ValueError())
    assert seen == [False]


def test_workers_that_wait_are_told_of_a_record_to_be_tried_again() -> None:
    told = Told(on_error="retry")
    work = told.board.take()
    assert work is not None
    told.board.fail(work, ValueError())
    assert told.announcements == 1
    assert told.board.seconds_to_retry() == 0.1
