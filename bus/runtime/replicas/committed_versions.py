"""The versions that this broker has committed as a leader, for the brokers that follow its partitions.

A list of the last version of each partition, in the order of their commits. A follower says up to which place it has
the list, and is answered with what came behind it; so an answer that is lost, doubled or late does no harm. Places are
those of one life of the leader: a follower that knows another life begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.errors import Refused
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.time_limits import time_limit


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The last version of a partition's table, as its leader knows it."""

    name: TopicPartition
    topic_id: str
    version: int


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """What a follower has applied of the partitions that the leader leads, since its last report or at all."""

    broker_id: int
    broker_epoch: int
    applied: Sequence[CommittedVersion]


@dataclass(frozen=True, slots=True)
class VersionsRequest:
    """`after` is the `end` of the last answer, which came from the leader's life `incarnation`; 0 and "" if there was
    none. The answer waits so long, at most, for a version to tell of."""

    incarnation: str
    after: int
    wait_ms_max: int
    report: FollowerReport


@dataclass(frozen=True, slots=True)
class VersionsAnswer:
    """`is_awaited`: somebody waits until followers have one of the versions, so they are to report at once."""

    incarnation: str
    end: int
    versions: Sequence[CommittedVersion]
    is_awaited: bool = False


class Leaders(Protocol):
    """The other brokers, as leaders of what this one follows."""

    async def committed_versions(
        self, leader: BrokerEndpoint, request: VersionsRequest, *, timeout_s: float
    ) -> VersionsAnswer | Refused: ...


class CommittedVersions:
    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        # With its place, and whether it is awaited; in the order of places.
        self._last: dict[TopicPartition, tuple[int, CommittedVersion, bool]] = {}
        self._end = 0
        self._waiting: dict[asyncio.Event, None] = {}

    def note(self, name: TopicPartition, topic_id: str, version: int, *, is_awaited: bool = False) -> None:
        """To be called when this broker begins to lead a partition, and after each commit. `is_awaited`: somebody waits
        until followers have that version."""
        self._end += 1
        self._last.pop(name, None)
        self._last[name] = self._end, CommittedVersion(name, topic_id, version), is_awaited
        for wake in self._waiting:
            wake.set()

    def last(self, name: TopicPartition) -> CommittedVersion | None:
        """None: this broker does not lead that partition."""
        found = self._last.get(name)
        return None if found is None else found[1]

    def forget(self, name: TopicPartition) -> None:
        """Another broker leads it."""
        self._last.pop(name, None)

    def answer(self, request: VersionsRequest) -> VersionsAnswer:
        """Without waiting."""
        after = request.after if request.incarnation == self._incarnation else 0
        found: list[CommittedVersion] = []
        is_any_awaited = False
        for place, version, is_awaited in reversed(self._last.values()):
            if place <= after:
                break
            found.append(version)
            is_any_awaited |= is_awaited
        return VersionsAnswer(self._incarnation, self._end, found[::-1], is_any_awaited)

    async def wait(self, request: VersionsRequest, wake: asyncio.Event) -> VersionsAnswer:
        """As soon as there is a version to tell of; without any once `wake` is set, or the time is over."""
        answer = self.answer(request)
        if not answer.versions:
            self._waiting[wake] = None
            try:
                async with time_limit(request.wait_ms_max / 1000):
                    await wake.wait()
            except asyncio.TimeoutError:
                pass
            finally:
                del self._waiting[wake]
            answer = self.answer(request)
        return answer
