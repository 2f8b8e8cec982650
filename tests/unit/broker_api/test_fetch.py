from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api import fetch as fetching
from bus.broker_api.fetch import FetchApi, FetchedPartition, FetchRequest
from bus.broker_api.requests import RequestMemory
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    FeatureLevel,
    ReplicasAssigned,
    TopicCreated,
    apply_all,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.runtime.partitions.fetch_session import FetchPosition
from bus.runtime.partitions.fetches import FetchResult, FetchWish, Stopping, fit_by_size
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.tasks import LoopShares
from bus.settings.broker import BrokerConfig
from tests.support.api_bench import open_access
from tests.support.proofs import DeniedTopics, proved

ACCESS = open_access("FetchOnce")
LIMIT = 1_000
FOUND = Refused(ErrorCode.OFFSET_OUT_OF_RANGE, "as good as records here")


class Bench:
    """An API whose fetches are kept, and answered at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wishes: list[FetchWish] = []
        monkeypatch.setattr(fetching, "fetch", self._fetch)
        self.memory = RequestMemory(1 << 20)
        self.found: FetchResult = FOUND
        self.has_followers_asked: list[bool] = []
        self.in_sync: tuple[int, ...] = ()
        in_sync = SimpleNamespace(find=lambda name: self.in_sync, applied_versions=lambda name: {})
        self.host = SimpleNamespace(find=object(), find_replica=object(), in_sync=in_sync)
        self.cluster: Any = SimpleNamespace(
            host=self.host, state=EMPTY_CLUSTER, prove_leadership=proved, config=BrokerConfig(broker_id=1)
        )
        cluster = self.cluster
        self.api = FetchApi(cluster, Stopping(), self.memory, LoopShares(), bytes_max=LIMIT)

    async def _fetch(self, wish: FetchWish, find: object, *_: object) -> list[tuple[FetchPosition, FetchResult]]:
        self.wishes.append(wish)
        self.has_followers_asked.append(find is self.host.find_replica)
        return [(position, self.found) for position in wish.positions]

    def ask(self, positions: Sequence[FetchPosition], **changes: Any) -> list[FetchedPartition]:
        asked: dict[str, Any] = {"bytes_max": 0, "bytes_min": 1, "wait_ms_max": 500, "turn": 0, **changes}
        return asyncio.run(
            self.api.fetch(ACCESS, FetchRequest(positions, **asked), self.api.room_for("client"), fit_by_size)
        )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def position(number: int, *, offset: int = 5, bytes_max: int = 300) -> FetchPosition:
    return FetchPosition(TopicPartition("t", number), "", offset, bytes_max, None)


def codes_of(answers: Sequence[FetchedPartition]) -> dict[int, ErrorCode]:
    return {one.partition.partition: one.result.code for one in answers if isinstance(one.result, Refused)}


def test_partition_that_was_first_is_last_in_the_next_turn(bench: Bench) -> None:
    for turn in (0, 1, 5):
        bench.ask([position(0), position(1), position(2)], turn=turn)
    assert [[one.partition.partition for one in wish.positions] for wish in bench.wishes] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
    ]


def test_partition_that_is_named_twice_is_refused_once_and_holds_up_no_other(bench: Bench) -> None:
    answers = bench.ask([position(0), position(1), position(0)])
    assert codes_of(answers) == {0: ErrorCode.INVALID_REQUEST, 1: FOUND.code}
    assert len(answers) == 2
    assert bench.wishes[0].wait_ms_max == 0, "what is refused is told at once"


def test_sizes_below_zero_are_refused(bench: Bench) -> None:
    answers = bench.ask([position(0, bytes_max=-1), position(1)])
    assert codes_of(answers) == {0: ErrorCode.INVALID_FETCH_SIZE, 1: FOUND.code}
    answers = bench.ask([position(0), position(1), position(1)], bytes_max=-1)
    assert codes_of(answers) == {0: ErrorCode.INVALID_FETCH_SIZE, 1: ErrorCode.INVALID_FETCH_SIZE}


@pytest.mark.parametrize(
    ("asked", "count", "expected"),
    [(0, 2, 600), (0, 9, LIMIT), (400, 2, 400), (10_000, 9, LIMIT)],
)
def test_answer_is_as_large_as_the_request_and_the_broker_allow(
    bench: Bench, asked: int, count: int, expected: int
) -> None:
    bench.ask([position(number) for number in range(count)], bytes_max=asked)
    assert bench.wishes[0].reserve() == expected


def test_room_of_an_answer_counts_until_it_is_released(bench: Bench) -> None:
    before = bench.memory.bytes_left("client")
    room = bench.api.room_for("client")
    assert room.reserve(500) == 500
    assert bench.memory.bytes_left("client") == before - 1_000  # its own, and what is left to all
    room.settle(100)
    room.release()
    room.release()
    assert bench.memory.bytes_left("client") == before


# The partition is led by broker 1, and followed by broker 2.
IN_TWO_RACKS = apply_all(
    EMPTY_CLUSTER,
    [
        *(BrokerRegistered(broker_id, "h", broker_id) for broker_id in (1, 2)),
        FeatureLevel(BUS_VERSION, 1),
        TopicCreated("t", "id", 1, 1),
        ReplicasAssigned("t", "id", 0, 1, "1,2"),
    ],
)
SERVED = ReadResult((), 10, 0, 1)


def in_racks(**racks: str) -> ClusterState:
    """`b1="a"`: broker 1 is in rack a."""
    brokers = {
        broker_id: replace(broker, rack=racks[f"b{broker_id}"]) for broker_id, broker in IN_TWO_RACKS.brokers.items()
    }
    return replace(IN_TWO_RACKS, brokers=brokers)


def test_followers_are_asked_only_for_a_caller_that_names_its_rack(bench: Bench) -> None:
    bench.ask([position(0)])
    bench.ask([position(0)], rack="b")
    assert bench.has_followers_asked == [False, True]


@pytest.mark.parametrize(
    ("selector", "rack", "replica"),
    [("rack", "b", 2), ("rack", "a", None), ("rack", "c", None), ("rack", "", None), ("leader", "b", None)],
)
def test_leader_names_a_replica_in_the_rack_of_the_caller(
    bench: Bench, selector: str, rack: str, replica: int | None
) -> None:
    bench.found, bench.cluster.state, bench.in_sync = SERVED, in_racks(b1="a", b2="b"), (1, 2)
    bench.cluster.config = BrokerConfig(broker_id=1, replica_selector_class=selector)
    (answer,) = bench.ask([position(0)], rack=rack)
    assert answer.read_replica == replica


def test_no_replica_is_named_that_is_not_in_sync_nor_by_a_follower_nor_beside_a_refusal(bench: Bench) -> None:
    bench.cluster.state = in_racks(b1="a", b2="b")
    bench.cluster.config = BrokerConfig(broker_id=1, replica_selector_class="rack")
    for found, in_sync, replica in (
        (SERVED, (1, 2), 2),
        (SERVED, (1,), None),
        (SERVED, (), None),
        (FOUND, (1, 2), None),
    ):
        bench.found, bench.in_sync = found, in_sync
        (answer,) = bench.ask([position(0)], rack="b")
        assert answer.read_replica == replica


def test_session_ends_for_a_caller_that_may_not_read_any_more_what_it_holds(bench: Bench) -> None:
    async def scenario() -> None:
        session, room = bench.api.begin_session(), bench.api.room_for("client")
        for topic in ("t", "u"):
            session.put(FetchPosition(TopicPartition(topic, 0), "", 5, 300, None))
        request = FetchRequest((), 0, 1, 500, turn=0, session=session)
        access: Any = DeniedTopics("u")
        (answer,) = await bench.api.fetch(access, request, room, fit_by_size)
        assert answer.partition == TopicPartition("u", 0)
        assert isinstance(answer.result, Refused)
        assert answer.result.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert bench.wishes[0].wait_ms_max == 0, "what is refused is told at once"
        assert (session.topics, bench.api.may_go_on(session)) == (["t"], False)

    asyncio.run(scenario())
