"""Visible state of a log at a follower."""

from __future__ import annotations

import asyncio

from bus.ports import LogState
from bus.runtime.replicas.followed_tables import FollowedLog


def found(version: int) -> LogState:
    return LogState(version, 0, 10 * version, 1, file_count=1, size_bytes=1)


def test_version_is_shown_once_its_leader_has_called_it_committed() -> None:
    log = FollowedLog()
    log.take(found(3))
    assert log.settled is None
    log.tell(2)
    assert log.settled is None, "what was found may be a commit whose outcome is not known"
    log.tell(3)
    assert log.settled == found(3)


def test_version_that_is_found_late_is_shown_at_once() -> None:
    log = FollowedLog()
    log.tell(5)
    log.take(found(3))
    assert log.settled == found(3)
    log.take(found(6))
    assert log.settled == found(3)
    log.tell(7)
    assert log.settled == found(6)


def test_what_is_shown_never_goes_back() -> None:
    log = FollowedLog()
    log.tell(9)
    log.take(found(5))
    log.take(found(4))  # as of a table that was opened again
    log.tell(3)  # by a leader of before
    assert log.settled == found(5)
    log.take(found(6))
    assert log.settled == found(6)


def test_readers_are_woken_when_more_is_shown_and_only_then() -> None:
    log, wake, gone = FollowedLog(), asyncio.Event(), asyncio.Event()
    log.add_reader(wake)
    log.add_reader(gone)
    log.remove_reader(gone)
    log.take(found(3))
    assert not wake.is_set()
    log.tell(3)
    assert wake.is_set()
    assert not gone.is_set()
    wake.clear()
    log.tell(4)
    log.take(found(3))
    assert not wake.is_set()
