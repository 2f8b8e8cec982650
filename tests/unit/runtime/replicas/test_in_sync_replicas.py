"""Followers that keep up with this broker."""

from __future__ import annotations

import asyncio

import pytest

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    BrokerFenced,
    BrokerStarted,
    BrokerUnfenced,
    FeatureLevel,
    ReplicasAssigned,
    TopicCreated,
    apply_all,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER, ClusterState
from bus.errors import ErrorCode, Refused
from bus.model import TopicPartition
from bus.runtime.replicas.followed_tables import CommittedVersion, CommittedVersions, FollowerReport
from bus.runtime.replicas.in_sync_replicas import InSyncReplicas, find_unreplicated
from tests.support.fake_table import ManualClock

LAG_MS = 30_000
P0 = TopicPartition("t", 0)
BROKERS: list[ClusterRecord] = [
    record
    for broker_id in range(3)
    for record in (
        BrokerStarted(broker_id, "h", 1 + broker_id, None, f"life-{broker_id}", 10 + broker_id, 0, 1),
        BrokerUnfenced(broker_id, 10 + broker_id),
    )
]
TOPIC = (TopicCreated("t", "id", 1, 0), ReplicasAssigned("t", "id", 0, 1, "1,0,2"))


class Bench:
    """Broker 0 leads t-0, whose last version is 5."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.committed = CommittedVersions("life-0")
        self.replicas = InSyncReplicas(0, self.committed, lag_ms_max=LAG_MS, clock=self.clock)
        self.cluster: ClusterState = EMPTY_CLUSTER
        self.apply(FeatureLevel(BUS_VERSION, 1), *BROKERS, *TOPIC)
        self.replicas.begin(P0)
        self.commit(5)

    def apply(self, *records: ClusterRecord) -> None:
        self.cluster = apply_all(self.cluster, records)
        self.replicas.follow(self.cluster)

    def commit(self, version: int) -> None:
        self.committed.note(P0, "id", version)

    def report(self, broker_id: int, version: int, *, epoch: int | None = None, topic_id: str = "id") -> Refused | None:
        applied = [CommittedVersion(P0, topic_id, version)]
        return self.replicas.take(FollowerReport(broker_id, 10 + broker_id if epoch is None else epoch, applied))

    @property
    def in_sync(self) -> tuple[int, ...]:
        return self.replicas.find(P0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_new_leader_has_all_replicas_in_sync_until_the_lag_is_over(bench: Bench) -> None:
    assert bench.in_sync == (1, 0, 2)
    bench.clock.advance(LAG_MS + 1)
    assert bench.in_sync == (0,)


def test_follower_that_has_the_last_version_stays_in_sync_for_as_long_as_nothing_is_committed(bench: Bench) -> None:
    bench.report(1, 5)
    bench.clock.advance(100 * LAG_MS)
    assert bench.in_sync == (1, 0)
    bench.commit(6)
    assert bench.in_sync == (0,)
    bench.report(1, 6)
    assert bench.in_sync == (1, 0)


def test_follower_that_always_has_what_was_last_at_its_report_before_is_in_sync_though_it_never_has_the_last(
    bench: Bench,
) -> None:
    version = 5
    bench.report(1, 5)
    for _ in range(10):
        bench.commit(version := version + 1)
        bench.clock.advance(LAG_MS // 2)
        bench.report(1, version - 1)
        assert bench.in_sync[0] == 1
    for _ in range(4):  # it stands still
        bench.commit(version := version + 1)
        bench.clock.advance(LAG_MS // 2)
    assert bench.in_sync == (0,)


def test_fenced_broker_is_not_in_sync_and_comes_back_with_what_its_next_life_reports(bench: Bench) -> None:
    bench.report(1, 5)
    bench.apply(BrokerFenced(1, 11))
    assert bench.in_sync == (0, 2)
    bench.apply(BrokerStarted(1, "h", 2, None, "next-life", 21, 0, 1), BrokerUnfenced(1, 21))
    bench.clock.advance(LAG_MS + 1)
    bench.report(2, 5)
    assert bench.in_sync == (0, 2)
    refused = bench.report(1, 5)
    assert refused is not None
    assert refused.code is ErrorCode.STALE_BROKER_EPOCH
    assert "expected broker 1 to be registered at broker epoch 11, found broker epoch 21" in refused.message
    assert bench.in_sync == (0, 2)
    assert bench.report(1, 5, epoch=21) is None
    assert bench.in_sync == (1, 0, 2)


def test_what_is_reported_of_another_topic_or_by_a_broker_that_nobody_knows_is_nothing(bench: Bench) -> None:
    bench.clock.advance(LAG_MS + 1)
    bench.report(1, 9, topic_id="another")
    assert bench.in_sync == (0,)
    refused = bench.report(7, 9)
    assert refused is not None
    assert "found no such broker" in refused.message


def test_lagging_replicas_are_those_that_are_not_fenced(bench: Bench) -> None:
    assert bench.replicas.lagging() == {}
    bench.apply(BrokerFenced(2, 12))
    bench.clock.advance(LAG_MS + 1)
    assert bench.replicas.lagging() == {P0: (1,)}


def test_wait_ends_when_enough_replicas_have_the_version_and_not_before(bench: Bench) -> None:
    async def scenario() -> None:
        waiting = asyncio.ensure_future(bench.replicas.wait(P0, 5, count=3, timeout_s=60))
        await asyncio.sleep(0)
        bench.report(1, 5)
        bench.report(2, 4)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        bench.report(2, 5)
        assert await waiting
        assert not await bench.replicas.wait(P0, 6, count=2, timeout_s=0.001)

    asyncio.run(scenario())


def test_wait_ends_when_another_broker_leads(bench: Bench) -> None:
    async def scenario() -> None:
        waiting = asyncio.ensure_future(bench.replicas.wait(P0, 5, count=2, timeout_s=60))
        await asyncio.sleep(0)
        bench.replicas.forget(P0)
        assert not await waiting

    asyncio.run(scenario())


def test_refusal_names_what_was_expected_and_who_is_in_sync() -> None:
    assert find_unreplicated((0, 2), 2) is None
    assert find_unreplicated((0, 2), 3) == ("expected 3 replicas in sync (min.insync.replicas), found 2: 0, 2")


def test_report_that_is_overtaken_by_a_later_one_takes_nothing_back(bench: Bench) -> None:
    bench.report(1, 5)
    bench.report(1, 4)
    assert bench.replicas.applied_versions(P0) == {1: 5}
    bench.clock.advance(LAG_MS + 1)
    assert bench.in_sync == (1, 0)


def test_what_is_reported_under_the_id_of_the_leader_counts_for_no_other_replica(bench: Bench) -> None:
    bench.report(0, 5)
    assert bench.replicas.has_applied(P0, 5) == 1
