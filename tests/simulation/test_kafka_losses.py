"""The orders of events in which Kafka lost acknowledged records, or let two logs differ, played on three brokers.

Each scenario is Kafka's own, as its KIP tells it, with what stands here for each part: the table is what all replicas
share, and a follower's memory of it is what a follower had fetched. A second test of each breaks the rule that protects
and sees a record lost, or a table that contradicts itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.client.connection.metadata_cache import TopicInfo
from bus.model import TopicPartition
from bus.ports import Committed, Unknown
from bus.storage_delta.log import writer
from bus.storage_delta.log.listing import LOG_FOLDER, list_log, partition_folder, version_name
from bus.storage_delta.stores.store import Data, Stamp, Written
from bus.storage_delta.table import DeltaPartitionTable
from tests.simulation.broker_faults import NO_FAULTS, Disk
from tests.simulation.broker_programs import Consumer, Producer, Sent, create_topic
from tests.simulation.broker_world import BrokerWorld, SimulatedBroker, simulate
from tests.simulation.test_broker import SEEDS, check_seen, new_calm_cluster

pytestmark = pytest.mark.timeout(300)
PARTITION = TopicPartition("t", 0)
FOLDER = partition_folder(PARTITION)
_DOWN_S = 30.0


async def begin(world: BrokerWorld) -> TopicInfo:
    world.start()
    await world.wait_until_whole(10.0)
    topic = await create_topic(world, "t", 1, {})
    world.live_topics.add(topic.topic_id)
    world.spawn(Consumer(world, "c", topic).run())
    await world.wait_until_whole(10.0)
    return topic


def leader_of(world: BrokerWorld) -> SimulatedBroker:
    leadership = world.journal.state.leadership(PARTITION)
    assert leadership is not None
    return world.brokers[leadership.leader_id]


def others_of(world: BrokerWorld, broker: SimulatedBroker) -> list[SimulatedBroker]:
    return [one for one in world.brokers if one is not broker]


async def wait_until(world: BrokerWorld, is_so: Callable[[], bool], seconds_max: float = 20.0) -> None:
    deadline = world.now + seconds_max
    while not is_so():
        assert world.now < deadline, f"EverythingEnds: not so after {seconds_max:.0f} s"
        await asyncio.sleep(0.01)


async def send(world: BrokerWorld, producer: Producer, count: int = 1) -> None:
    """Each one acknowledged before the next."""
    for _ in range(count):
        sent: Sent = producer.send(0)
        await wait_until(world, sent.future.done)
        assert sent.future.exception(0) is None


def end_sending(*producers: Producer) -> None:
    for producer in producers:
        producer.is_sending = False


# ---------------------------------------------------------------- truncation to the high watermark


async def truncate_to_the_high_watermark(world: BrokerWorld) -> None:
    """Kafka before 0.11 (KAFKA-3410; the first scenario of KIP-101). A follower has the last acknowledged record, but
    does not know yet that it is below the high watermark, which it learns one fetch later. It restarts, truncates its
    log to the high watermark that it knew, and the leader dies before it has fetched the record again: as the new
    leader it does not have it, and the old one truncates it too when it comes back.

    Here a high watermark is nothing that a replica keeps: it is the end of the last version. A follower restarts while
    the last records are acknowledged, and then leads: it reads the table to its end and commits its fence there, so it
    begins behind every version that there is. Nothing is truncated by any replica."""
    topic = await begin(world)
    producer = Producer(world, "p", topic)
    await send(world, producer, 3)
    leader = leader_of(world)
    for follower in others_of(world, leader):
        follower.crash()
    await send(world, producer, 2)
    assert leader.life is not None
    leader.life.crash(_DOWN_S)
    await send(world, producer, 2)
    end_sending(producer)
    await world.settle()


def broken_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader begins before the last version."""
    lead = DeltaPartitionTable.lead

    def lead_from_before(self: DeltaPartitionTable, leader_epoch: int, now_ms: int, *, fence: bool) -> Any:
        listing = list_log(self._store, self._folder)
        if self._folder == FOLDER and fence and not self._leadership.is_led and max(listing.versions) > 3:
            self._store.delete(f"{self._folder}/{LOG_FOLDER}/{version_name(max(listing.versions))}")
            self._following.load()
        return lead(self, leader_epoch, now_ms, fence=fence)

    monkeypatch.setattr(DeltaPartitionTable, "lead", lead_from_before)


# ---------------------------------------------------------------- KIP-101


async def diverge_after_hard_failures(world: BrokerWorld) -> None:
    """KIP-101, the second scenario. All replicas lose power, and the leader's last record was only in the page cache of
    its follower. The follower comes back first, leads, and appends another record at that offset. The old leader comes
    back with its own record there and the same high watermark, so it truncates nothing: the logs differ for ever.

    Here there is one log. A version whose sync has no answer is *Unknown*, and acknowledged by nobody; all brokers lose
    power, and it may be there afterwards or not. Whoever leads first decides by its fence, which takes the next number
    behind what is there, and the former leader reads that log. Leader epochs, which KIP-101 added, are in each
    version, and no offset is truncated by them."""
    topic = await begin(world)
    producer = Producer(world, "p", topic)
    await send(world, producer, 3)
    leader = leader_of(world)
    world.faults = replace(NO_FAULTS, unknown_outcome=2)
    for _ in range(4):
        producer.send(0)
        await asyncio.sleep(world.random.uniform(0, 0.2))
    world.faults = NO_FAULTS
    for broker in world.brokers:
        if broker.life is not None:
            broker.life.crash(_DOWN_S if broker is leader else world.random.uniform(0.1, 3.0))
    await wait_until(world, lambda: leader_of(world) is not leader)
    await send(world, producer, 3)
    end_sending(producer)
    await world.settle()


def broken_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that may not be on the disk is taken for committed."""
    commit = writer.commit_version

    def commit_version(store: Any, log_folder: str, *, version: int, high_watermark: int, **options: Any) -> Any:
        outcome = commit(store, log_folder, version=version, high_watermark=high_watermark, **options)
        is_taken = isinstance(outcome, Unknown) and log_folder.startswith(FOLDER)
        return Committed(version, high_watermark) if is_taken else outcome

    monkeypatch.setattr(writer, "commit_version", commit_version)


# ---------------------------------------------------------------- KIP-279


async def fail_over_fast(world: BrokerWorld) -> None:
    """KIP-279: a leader is replaced by one that writes nothing under its epoch and is replaced at once. With a leader
    epoch that is in no log, a follower of the third leader truncates to an offset of the wrong epoch, and keeps records
    that the leader does not have.

    Here the first leader stands still with commits under way. The second one dies as soon as it leads, the third one
    writes. When the first one goes on, its commit asks for a number that the fence of the second or the third one has:
    put-if-absent refuses it, and the log tells that it is deposed. Its file is named by no version, and the producer
    sends again. An epoch under which nothing was written is a fence in the log all the same."""
    topic = await begin(world)
    producer = Producer(world, "p", topic)
    await send(world, producer, 3)
    first = leader_of(world)
    assert first.life is not None
    (partition,) = (one for one in first.life.core.cluster.host.partitions if one.name == PARTITION)
    sent = producer.send(0)
    while partition.state.log_end == partition.state.high_watermark:  # no commit is seen under way
        await asyncio.sleep(0.0001)
        if sent.future.done():
            sent = producer.send(0)
    first.pause(12.0)
    await wait_until(world, lambda: leader_of(world) is not first)
    second = leader_of(world)
    assert second.life is not None
    second.life.crash(_DOWN_S)
    await wait_until(world, lambda: leader_of(world) not in (first, second))
    other = Producer(world, "q", topic)
    await send(world, other, 3)
    await asyncio.sleep(10.0)
    await send(world, other, 2)
    end_sending(producer, other)
    await world.settle()


def broken_put_if_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is there is written over, as a store does that renames."""
    create = Disk.create

    def put(self: Disk, key: str, data: Data, *, after: Written | None, is_confirmed: bool) -> Stamp:
        if key.startswith(f"{FOLDER}/{LOG_FOLDER}/"):
            self.files.put(key, data)
            return self.files.stamp(key)
        return create(self, key, data, after=after, is_confirmed=is_confirmed)

    monkeypatch.setattr(Disk, "create", put)


# ---------------------------------------------------------------- KIP-966


async def leave_the_last_replica_standing(world: BrokerWorld) -> None:
    """KIP-966, the last replica standing. Followers fall out of the in-sync set one by one; the last replica goes on
    alone, and dies so that it loses what it had not flushed. It is the only one that may be elected, so it leads
    without those records; or, if it does not come back, an unclean election gives the lead to one that never had them.
    Kafka's eligible leader replicas and min.insync.replicas bound that.

    Here the in-sync set has no say. The last broker acknowledges alone, each record synced before, and does not come
    back for long. One that was gone all that time, and was in sync with nothing, leads with every record."""
    topic = await begin(world)
    producer = Producer(world, "p", topic)
    await send(world, producer, 2)
    last = leader_of(world)
    for follower in others_of(world, last):
        assert follower.life is not None
        follower.life.crash(10.0)
        await send(world, producer, 2)
    await wait_until(world, lambda: world.journal.state.unfenced_brokers == [last.config.broker_id])
    await send(world, producer, 3)
    assert last.life is not None
    last.life.crash(_DOWN_S)
    await wait_until(world, lambda: leader_of(world) is not last)
    await send(world, producer, 2)
    end_sending(producer)
    await world.settle()


def broken_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is acknowledged before it is on the disk. Whoever led finds that it is gone, and serves no more."""
    create = Disk.create

    def create_unsynced(self: Disk, key: str, data: Data, *, after: Written | None, is_confirmed: bool) -> Stamp:
        is_version = key.startswith(f"{FOLDER}/{LOG_FOLDER}/")
        return create(self, key, data, after=after, is_confirmed=is_confirmed and not is_version)

    monkeypatch.setattr(Disk, "create", create_unsynced)


SCENARIOS = [
    (truncate_to_the_high_watermark, broken_beginning, "AcknowledgedIsInTheTable"),
    (diverge_after_hard_failures, broken_doubt, "AcknowledgedIsInTheTable"),
    (fail_over_fast, broken_put_if_absent, "TablesAreSound"),
    (leave_the_last_replica_standing, broken_flush, "EverythingEnds"),
]


@pytest.mark.parametrize("scenario", [scenario for scenario, _, _ in SCENARIOS])
def test_what_kafka_lost_is_not_lost(scenario: Callable[[BrokerWorld], Any]) -> None:
    for seed in SEEDS:
        simulate(seed, new_calm_cluster, scenario)


@pytest.mark.parametrize(("scenario", "break_it", "promise"), SCENARIOS)
def test_without_its_rule_it_is_lost(
    scenario: Callable[[BrokerWorld], Any],
    break_it: Callable[[pytest.MonkeyPatch], None],
    promise: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(monkeypatch)
    check_seen(promise, scenario, new_calm_cluster)
