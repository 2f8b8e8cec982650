"""Fetch: records of several partitions, once there are enough of them or the caller has waited as long as it wants.

A consumer that names its rack is also served by followers, and a leader in another rack tells it of one in its own
(KIP-392). It is served all the same: a consumer that the follower has turned away must not be left without records.

What an answer takes in memory counts from when its records are read until the adapter has written it, against a share
of its caller: one that does not read its answers gets smaller ones, and no other caller does.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bus.broker_api.authorization import Access
from bus.broker_api.calls import READ_TOPIC
from bus.broker_api.requests import CurrentLeader, Held, Items, RequestMemory, find_current_leader
from bus.cluster_metadata.cluster_state import choose_read_replica, find_nearby_brokers
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.runtime.cluster import Cluster
from bus.runtime.partitions.fetch_session import FetchPosition, FetchSession, FetchSessions
from bus.runtime.partitions.fetches import FetchResult, FetchTimes, FetchWish, FitBatches, Stopping, fetch
from bus.runtime.tasks import LoopShares
from bus.settings.broker import RACK_SELECTOR

# Of one session, as many as one request may name.
SESSION_POSITIONS_MAX = 20_000
# An answer may have so much, however much the caller has not read yet.
_ANSWER_BYTES_MIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """`bytes_max` 0 stands for the broker's. `turn` grows with each request of a session: the partition that was first
    last time is last now, so that none is starved by `bytes_max`. `rack`: the caller's, if followers may serve it;
    empty if leaders are to answer. With a `session`, what is new in it or has changed, and what is `forgotten`: all
    that it holds then is asked for. `quota_bytes_max`: what the caller's quota allows one answer to have; None: any."""

    positions: Items[FetchPosition]
    bytes_max: int
    bytes_min: int
    wait_ms_max: int
    turn: int
    rack: str = ""
    quota_bytes_max: int | None = None
    session: FetchSession | None = None
    forgotten: Items[TopicPartition] = ()


class FetchedPartition(NamedTuple):  # a tuple: one is made for each partition of each fetch
    """`offset`: from which it was fetched. `read_replica`: the broker that is to be asked from now on."""

    partition: TopicPartition
    offset: int
    result: FetchResult
    leader: CurrentLeader | None = None
    read_replica: int | None = None


class AnswerRoom:
    """The memory of one call's answer, or of one stream's answers, which come one after another."""

    def __init__(self, memory: RequestMemory, client: Hashable) -> None:
        self.client = client
        self.granted_bytes = 0
        self._memory = memory
        self._held: Held | None = None

    def reserve(self, bytes_max: int) -> int:
        self.release()
        self.granted_bytes = min(bytes_max, max(_ANSWER_BYTES_MIN, self._memory.bytes_left(self.client)))
        self._held = self._memory.hold(self.client, self.granted_bytes)
        return self.granted_bytes

    def settle(self, size_bytes: int) -> None:
        """The answer takes so much."""
        self.release()
        self._held = self._memory.hold(self.client, size_bytes)

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.drop()


class FetchApi:
    """`answers` is the memory of all answers. A fetch ends early once `stopping` begins."""

    def __init__(
        self, cluster: Cluster, stopping: Stopping, answers: RequestMemory, shares: LoopShares, *, bytes_max: int
    ) -> None:
        self._cluster = cluster
        self._stopping = stopping
        self._answers = answers
        self._shares = shares
        self._bytes_max = bytes_max
        self._sessions = FetchSessions()

    def begin_session(self) -> FetchSession:
        """Begin a session for requests of one caller that come one after another, each answered before the next one is
        taken up. They are for leaders: what a follower may show also changes with time."""
        return FetchSession(self._sessions)

    def may_go_on(self, session: FetchSession) -> bool:
        """True if another request may be part of the session: it has room, and no request named what it cannot hold."""
        return session.is_as_asked and self._sessions.has_room and len(session) <= SESSION_POSITIONS_MAX

    def room_for(self, client: Hashable) -> AnswerRoom:
        return AnswerRoom(self._answers, client)

    async def fetch(
        self,
        access: Access,
        request: FetchRequest,
        room: AnswerRoom,
        fit: FitBatches,
        times: FetchTimes | None = None,
    ) -> list[FetchedPartition]:
        """An answer for each partition that is named, or in a session for each one of which there is anything to tell.
        `room` holds as much as it may have, which the adapter settles by what it makes of it; `fit` says how much that
        will be. `times` gets where the time went."""
        if request.bytes_max < 0:
            message = f"expected max_bytes from 0 on, found {request.bytes_max}"
            return await self.refuse(request, Refused(ErrorCode.INVALID_FETCH_SIZE, message))
        wish, refused = await self._wish(request, room, fit, access)
        host = self._cluster.host
        find = host.find_replica if request.rack else host.find
        results = await fetch(wish, find, self._cluster.prove_leadership, self._stopping, self._shares, times)
        denied = await _find_denied_meanwhile(results, access)
        if denied and request.session is not None:
            request.session.is_as_asked = False  # it has been told of what is not given
        state, nearby = self._cluster.state, self._find_nearby(request.rack)
        share = self._shares.begin()
        answers = refused
        for position, result in results:
            if share.is_used_up:
                await share.wait()
            name = position.partition
            result = denied.get(name.topic, result)
            replica = self._find_read_replica(name, nearby) if nearby and _is_known(result) else None
            leader = find_current_leader(state, name, result)
            answers.append(FetchedPartition(name, position.offset, result, leader, replica))
        return answers

    def _find_nearby(self, rack: str) -> frozenset[int]:
        config = self._cluster.config
        if not rack or config.replica_selector_class != RACK_SELECTOR:
            return frozenset()
        return find_nearby_brokers(self._cluster.state, leader_id=config.broker_id, rack=rack)

    def _find_read_replica(self, name: TopicPartition, nearby: frozenset[int]) -> int | None:
        """None of a partition that this broker does not lead."""
        in_sync = self._cluster.host.in_sync
        return choose_read_replica(in_sync.find(name), nearby, in_sync.applied_versions(name))

    async def refuse(self, request: FetchRequest, refusal: Refused) -> list[FetchedPartition]:
        """Each partition once."""
        if request.session is not None:
            request.session.is_as_asked = False
        named: list[TopicPartition] = []
        await self._shares.begin().extend(named, (position.partition for position in request.positions))
        return [FetchedPartition(name, 0, refusal) for name in dict.fromkeys(named)]

    async def _wish(
        self, request: FetchRequest, room: AnswerRoom, fit: FitBatches, access: Access
    ) -> tuple[FetchWish, list[FetchedPartition]]:
        """And the answers of partitions that are not fetched: those that the request names twice, and those that the
        caller may not read."""
        asked: list[FetchPosition] = []
        share = self._shares.begin()
        await share.extend(asked, request.positions)
        session = request.session
        topics = [position.partition.topic for position in asked]
        if session is not None:
            for name in request.forgotten:
                session.forget(name)
            topics += session.topics
        denied = await access.refusals(READ_TOPIC, topics)
        counts = Counter(position.partition for position in asked)
        positions: list[FetchPosition] = []
        refused: dict[TopicPartition, Refused] = {}
        for position in asked if session is not None else _in_turn(asked, request.turn):
            if share.is_used_up:
                await share.wait()
            name, times = position.partition, counts[position.partition]
            if name.topic in denied:
                refused[name] = denied[name.topic]
            elif times > 1:
                message = f"expected each partition once in a request, found {name} {times} times"
                refused[name] = Refused(ErrorCode.INVALID_REQUEST, message)
            elif position.bytes_max < 0:
                message = f"{name}: expected partition_max_bytes from 0 on, found {position.bytes_max}"
                refused[name] = Refused(ErrorCode.INVALID_FETCH_SIZE, message)
            else:
                positions.append(position)
        if session is not None:
            for name in session.forget_topics(denied):
                refused[name] = denied[name.topic]
            await session.put_all(positions, share)
            session.is_as_asked = not refused
        asked_bytes_max = sum(position.bytes_max for position in positions) if session is None else session.bytes_max
        bytes_max = min(request.bytes_max or self._bytes_max, self._bytes_max, asked_bytes_max)
        if request.quota_bytes_max is not None:
            bytes_max = min(bytes_max, request.quota_bytes_max)
        wish = FetchWish(
            positions,
            wait_ms_max=0 if refused else max(0, request.wait_ms_max),
            bytes_min=max(0, min(request.bytes_min, bytes_max)),
            reserve=functools.partial(room.reserve, bytes_max),
            release=room.release,
            fit=fit,
            session=session,
        )
        return wish, [FetchedPartition(name, 0, refusal) for name, refusal in refused.items()]


async def _find_denied_meanwhile(
    results: Sequence[tuple[FetchPosition, FetchResult]], access: Access
) -> Mapping[str, Refused]:
    """Return by topic the refusals of what the caller might read when its fetch began to wait, and may not read now
    that there is something to read."""
    if not results or access.is_current:
        return {}
    return await access.refusals(READ_TOPIC, [position.partition.topic for position, _ in results])


def _is_known(result: FetchResult) -> bool:
    return not isinstance(result, Refused) and result.high_watermark >= 0


def _in_turn(asked: Sequence[FetchPosition], turn: int) -> list[FetchPosition]:
    first = turn % len(asked) if asked else 0
    return [*asked[first:], *asked[:first]]
