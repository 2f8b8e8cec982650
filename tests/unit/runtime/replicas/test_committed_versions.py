"""Versions that a leader reports to its followers."""

from __future__ import annotations

import asyncio

import pytest

from bus.model import TopicPartition
from bus.runtime.replicas import followed_tables
from bus.runtime.replicas.followed_tables import CommittedVersion, CommittedVersions, FollowerReport, VersionsRequest

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def committed() -> CommittedVersions:
    found = CommittedVersions("this-life")
    found.note(P0, "id", 3)
    found.note(P1, "id", 7)
    return found


def request(after: int, incarnation: str = "this-life", wait_ms_max: int = 0) -> VersionsRequest:
    return VersionsRequest(incarnation, after, wait_ms_max, FollowerReport(1, 2, []))


def test_follower_is_told_the_last_version_of_each_partition_and_then_what_came_since(
    committed: CommittedVersions,
) -> None:
    first = committed.answer(request(0, ""))
    assert first.versions == [CommittedVersion(P0, "id", 3), CommittedVersion(P1, "id", 7)]
    committed.note(P0, "id", 4)
    committed.note(P0, "id", 5)
    assert committed.answer(request(first.end)).versions == [CommittedVersion(P0, "id", 5)]


def test_answer_that_was_lost_is_given_again(committed: CommittedVersions) -> None:
    assert committed.answer(request(0)) == committed.answer(request(0))


def test_follower_is_told_of_many_versions_in_several_answers(
    committed: CommittedVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no more than some thousands of items at once."""
    monkeypatch.setattr(followed_tables, "ANSWER_VERSIONS_MAX", 2)
    committed.note(P2, "id", 1, is_awaited=True)
    first = committed.answer(request(0, ""))
    assert [found.name for found in first.versions] == [P0, P1]
    assert not first.is_awaited
    committed.note(P0, "id", 4)
    second = committed.answer(request(first.end))
    assert [found.name for found in second.versions] == [P2, P0]
    assert second.is_awaited
    assert committed.answer(request(second.end)).versions == []


def test_follower_of_another_life_begins_anew(committed: CommittedVersions) -> None:
    assert len(committed.answer(request(99, "earlier-life")).versions) == 2


def test_partition_that_is_led_no_more_is_not_told(committed: CommittedVersions) -> None:
    committed.forget(P1)
    assert [found.name for found in committed.answer(request(0)).versions] == [P0]


def test_follower_waits_for_the_next_version_or_until_it_is_woken(committed: CommittedVersions) -> None:
    async def scenario() -> None:
        end = committed.answer(request(0)).end
        waiting = asyncio.ensure_future(committed.wait(request(end, wait_ms_max=60_000), asyncio.Event()))
        await asyncio.sleep(0)
        committed.note(P1, "id", 8)
        assert (await waiting).versions == [CommittedVersion(P1, "id", 8)]
        wake = asyncio.Event()
        waiting = asyncio.ensure_future(committed.wait(request(end + 1, wait_ms_max=60_000), wake))
        await asyncio.sleep(0)
        wake.set()
        assert not (await waiting).versions
        assert not (await committed.wait(request(end + 1, wait_ms_max=1), asyncio.Event())).versions

    asyncio.run(scenario())


def test_answer_says_whether_any_of_its_versions_is_awaited(committed: CommittedVersions) -> None:
    end = committed.answer(request(0)).end
    committed.note(P0, "id", 4, is_awaited=True)
    committed.note(P1, "id", 8)
    assert committed.answer(request(end)).is_awaited
    assert not committed.answer(request(end + 1)).is_awaited
