"""Promises of a whole broker, through everything that its disk, its threads, its process and a network may do to it.

BUS_SEEDS says how many seeds every test plays, BUS_SEED the first one of them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bus.client.connection.metadata_cache import TopicInfo
from bus.cluster_metadata import broker_decisions, partition_placement
from bus.cluster_metadata.broker_decisions import BrokerSessions
from bus.cluster_metadata.broker_liveness import BrokerReach, WriteSession
from bus.cluster_metadata.cluster_records import RECORD_TYPES, BrokerStarted, ControllerElected
from bus.cluster_metadata.cluster_state import ClusterState, Lead
from bus.cluster_metadata.producer_ids import ProducerIdentity
from bus.consumer_groups import loading
from bus.consumer_groups.records import OffsetCommitted
from bus.errors import BusError, ErrorCode, Refused, StorageFault
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import CLUSTER_METADATA_TOPIC, ProducerStamp
from bus.partition_log import appends
from bus.partition_log.producers import InOrder
from bus.partition_log.reads import Readable
from bus.partition_log.state import PartitionState
from bus.ports import Committed, Unknown
from bus.runtime.coordinators.log import CoordinatorLog
from bus.runtime.metadata import broker_lifecycle
from bus.runtime.metadata.broker_heartbeats import BrokerHeartbeats
from bus.runtime.metadata.metadata_log import MetadataLog
from bus.runtime.partitions import partition
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_host import FollowedPartition, PartitionHost
from bus.storage_delta import table
from bus.storage_delta.log import writer
from bus.storage_delta.log.actions import Signature
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.verify.verification import load_cluster
from tests.simulation.broker_faults import NO_FAULTS, Faults, some_faults
from tests.simulation.broker_invariants import Invariant
from tests.simulation.broker_programs import (
    Admin,
    Committer,
    Consumer,
    Maintainer,
    Producer,
    ask,
    ask_until_answered,
    create_topic,
)
from tests.simulation.broker_world import DISK_FAULTS, BrokerWorld, SimulatedBroker, simulate
from tests.simulation.cluster_invariants import LeadersAreBackSoon
from tests.simulation.metadata_journal import METADATA_FOLDER, Change
from tests.support.seeds import seeds

pytestmark = pytest.mark.timeout(300)  # many seeds, on a machine that may be busy
SEEDS = seeds(6)
JUDGED_S = LeadersAreBackSoon.SERVED_S + 0.5  # after the fault; the invariants have judged it by then
# How one broker is cut off. The first three cut links between brokers, for all that is sent that way, a request or an
# answer; by the last one nobody can open a connection to it, no client either, and those that it opens work.
WAYS = ("to it", "from it", "both ways", "connections to it")


def new_world(seed: int) -> BrokerWorld:
    return BrokerWorld(seed, some_faults(Random(seed)))


def new_cluster(seed: int) -> BrokerWorld:
    """Three brokers ask the store much more often than one does."""
    return BrokerWorld(seed, some_faults(Random(seed), rarer=4), broker_count=3)


async def disturb(world: BrokerWorld, seconds: float) -> None:
    until = world.now + seconds
    while world.now < until:
        await asyncio.sleep(world.random.uniform(0, 4.0))
        match world.random.randrange(5 if len(world.brokers) == 1 else 10):
            case 0:
                world.any_broker().crash()
            case 1:
                world.any_broker().stop()
            case 2:
                world.set_wall_clock(world.random.choice((0, world.random.randrange(-1_200_000, 1_200_000))))
            case 5 | 6:
                world.any_broker().pause(world.random.uniform(0.5, 8.0))
            case 7:
                world.cut(random_links(world), world.random.uniform(0, 8))
            case 8:
                how = world.random.choice(DISK_FAULTS)
                world.fail_disk(world.any_broker().config.broker_id, how, world.random.uniform(0, 8))
            case 9:
                world.close_address(world.any_broker().config.broker_id, world.random.uniform(0, 8))


async def disturb_if_any(world: BrokerWorld) -> None:
    if world.faults != NO_FAULTS:
        await disturb(world, 20.0)
    elif len(world.brokers) > 1:
        await world.wait_until_whole(10.0)
        world.is_well = True
        await asyncio.sleep(20.0)


async def produce_and_fetch(world: BrokerWorld) -> None:
    world.start()
    topic = await create_topic(world, "t", 2, {})
    world.live_topics.add(topic.topic_id)
    for number in range(2):
        world.spawn(Producer(world, f"p{number}", topic).send_bursts(40))
    for number in range(2):
        world.spawn(Consumer(world, f"c{number}", topic).run())
    await disturb_if_any(world)
    await world.settle()


async def maintain(world: BrokerWorld) -> None:
    """Topics whose logs are rolled, compacted, retained and cleaned all the time."""
    world.start()
    common = {
        "file.delete.delay.ms": "500",
        "delta.log.retention.ms": world.random.choice(("1000", "5000")),
        "delta.log.versions.max": world.random.choice(("3", "10")),
        "segment.ms": world.random.choice(("1000", "4000")),
        "delete.retention.ms": "1000",
        "min.cleanable.dirty.ratio": "0.1",
    }
    policies = {
        "rolled": {"cleanup.policy": "delete"},
        "compacted": {"cleanup.policy": "compact"},
        "retained": {"cleanup.policy": "delete", "retention.ms": "4000"},
    }
    world.compacted_topics.add("compacted")
    world.lossy_topics.add("retained")
    for name, configs in policies.items():
        topic = await create_topic(world, name, 1, {**common, **configs})
        world.live_topics.add(topic.topic_id)
        world.spawn(Producer(world, f"p-{name}", topic, is_keyed=name == "compacted").send_bursts(40))
        world.spawn(Consumer(world, f"c-{name}", topic).run())
        world.spawn(Maintainer(world, f"m-{name}", topic, may_delete=name == "retained").run())
    await disturb_if_any(world)
    await world.settle()


async def administrate(world: BrokerWorld) -> None:
    """Topics that come and go, and offsets that are committed."""
    world.start()
    topic = await create_topic(world, "t", 1, {})
    world.live_topics.add(topic.topic_id)
    world.spawn(Producer(world, "p", topic).send_bursts(10))
    for number in range(2):
        world.spawn(Admin(world, f"a{number}").run())
        world.spawn(Committer(world, f"g{number}", topic).run())
    await disturb_if_any(world)
    await world.settle()


@pytest.mark.parametrize("scenario", [produce_and_fetch, maintain, administrate])
def test_every_promise_is_kept_whatever_fails(scenario: Callable[[BrokerWorld], Any]) -> None:
    for seed in SEEDS:
        simulate(seed, new_world, scenario)


@pytest.mark.parametrize("scenario", [produce_and_fetch, maintain, administrate])
def test_every_promise_is_kept_where_nothing_fails(scenario: Callable[[BrokerWorld], Any]) -> None:
    simulate(1, lambda seed: BrokerWorld(seed, NO_FAULTS), scenario)


@pytest.mark.parametrize("scenario", [produce_and_fetch, maintain, administrate])
def test_every_promise_is_kept_by_three_brokers(scenario: Callable[[BrokerWorld], Any]) -> None:
    for seed in SEEDS:
        simulate(seed, new_cluster, scenario)


async def read_nearby(world: BrokerWorld) -> None:
    """Two consumers are served by followers as well as by leaders."""
    world.start()
    topic = await create_topic(world, "t", 2, {})
    world.live_topics.add(topic.topic_id)
    for number in range(2):
        world.spawn(Producer(world, f"p{number}", topic).send_bursts(40))
        world.spawn(Consumer(world, f"c{number}", topic, rack="b").run())
    await disturb(world, 20.0)
    await world.settle()


def views_of_a_cluster(seed: int) -> BrokerWorld:
    world = new_cluster(seed)
    world.invariants = [found for found in world.invariants if type(found).__name__ == "ViewsNeverGoBack"]
    return world


def test_no_view_of_a_consumer_that_followers_serve_goes_back() -> None:
    """The other promises are judged where leaders alone serve."""
    for seed in SEEDS:
        simulate(seed, views_of_a_cluster, read_nearby)


def test_view_of_a_consumer_that_goes_back_at_a_follower_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower goes by what it knew before."""
    read = FollowedPartition.read

    async def lower(self: FollowedPartition, readable: Readable, max_bytes: int) -> Any:
        found = await read(self, readable, max_bytes)
        is_short = not isinstance(found, Refused) and readable.offset == readable.end_offset > 3
        return found._replace(high_watermark=found.high_watermark - 2) if is_short else found  # type: ignore[union-attr]

    def play() -> None:
        for seed in range(20):
            simulate(seed, views_of_a_cluster, read_nearby)

    monkeypatch.setattr(FollowedPartition, "read", lower)
    with pytest.raises(AssertionError, match="ViewsNeverGoBack"):
        play()


@pytest.mark.parametrize("scenario", [produce_and_fetch, maintain, administrate])
def test_three_brokers_where_nothing_fails(scenario: Callable[[BrokerWorld], Any]) -> None:
    simulate(1, new_calm_cluster, scenario)


async def fail_over(world: BrokerWorld) -> None:
    """Brokers die, stand still, lose each other or their disk, one at a time, and have time to come back."""
    topic = await begin_together(world)
    world.spawn(Producer(world, "p", topic).send_bursts(120))
    world.spawn(Consumer(world, "c", topic).run())
    world.spawn(Committer(world, "g", topic).run())
    world.spawn(world.tick())
    for _ in range(4):
        own = choose_victim(world)
        match world.random.randrange(6):
            case 0:
                world.brokers[own].crash()
            case 1:
                world.brokers[own].pause(world.random.uniform(1.0, 8.0))
            case 2:
                for one in world.random.sample(world.brokers, 2):
                    one.crash()
            case 3:
                cut_broker_off(world, own, world.random.choice(WAYS), 8.0)
            case 4:
                world.fail_disk(own, world.random.choice(DISK_FAULTS), 8.0)
            case 5:
                world.cut(random_links(world), 8.0)
        await asyncio.sleep(12.0)
        await world.wait_until_whole(20.0)
    await world.settle()


def choose_victim(world: BrokerWorld) -> int:
    """Choose the controller as often as any other broker."""
    elected = world.journal.state.controller
    is_controller = elected is not None and world.random.random() < 0.5
    return elected.broker_id if is_controller and elected is not None else world.any_broker().config.broker_id


def cut_broker_off(world: BrokerWorld, own: int, way: str, seconds: float) -> None:
    if way == "connections to it":
        world.close_address(own, seconds)
    else:
        world.cut(links_of(world, own, way), seconds)


def links_of(world: BrokerWorld, own: int, way: str) -> set[tuple[int, int]]:
    others = [broker.config.broker_id for broker in world.brokers if broker.config.broker_id != own]
    to, back = {(other, own) for other in others}, {(own, other) for other in others}
    return {"to it": to, "from it": back, "both ways": to | back}[way]


def random_links(world: BrokerWorld) -> list[tuple[int, int]]:
    links = list(itertools.permutations(range(len(world.brokers)), 2))
    return world.random.sample(links, world.random.randrange(1, len(links)))


async def roll(world: BrokerWorld) -> None:
    """Each broker leaves in order and comes back, the next one when all is well again."""
    topic = await begin_together(world)
    world.spawn(Producer(world, "p", topic).send_bursts(120))
    world.spawn(Consumer(world, "c", topic).run())
    world.spawn(Committer(world, "g", topic).run())
    world.is_rolling = True
    for broker in world.random.sample(world.brokers, 3):
        broker.stop()
        await asyncio.sleep(1.0)
        await world.wait_until_whole(30.0)
    await world.settle()


async def begin_together(world: BrokerWorld) -> TopicInfo:
    """A topic that all brokers lead something of."""
    world.start()
    await world.wait_until_whole(10.0)
    topic = await create_topic(world, "t", 6, {})
    world.live_topics.add(topic.topic_id)
    await world.wait_until_whole(10.0)
    return topic


def new_calm_cluster(seed: int) -> BrokerWorld:
    return BrokerWorld(seed, NO_FAULTS, broker_count=3)


async def cut_one_off(world: BrokerWorld, *, way: str, is_controller: bool) -> None:
    """All links of one broker; the storage stays."""
    victim = await begin_with_victim(world, is_controller=is_controller)
    controller = world.journal.state.controller
    cut_broker_off(world, victim, way, 12.0)
    await asyncio.sleep(JUDGED_S)
    check_out_of_office(world, victim)
    assert is_controller or world.journal.state.controller == controller, "one that the others reach was replaced"
    await asyncio.sleep(6.0)
    await world.settle()


async def fail_one_disk(world: BrokerWorld, *, how: str, is_controller: bool) -> None:
    """The disk of one broker; its links stay."""
    victim = await begin_with_victim(world, is_controller=is_controller)
    world.fail_disk(victim, how, 12.0)
    await asyncio.sleep(JUDGED_S)
    check_out_of_office(world, victim)
    await asyncio.sleep(6.0)
    await world.settle()


async def close_address_of_controller(world: BrokerWorld) -> None:
    """Nobody reaches the controller, and the others are as many as they are."""
    victim = await begin_with_victim(world, is_controller=True)
    world.close_address(victim, 12.0)
    await asyncio.sleep(JUDGED_S)
    check_out_of_office(world, victim)
    await asyncio.sleep(6.0)
    assert world.journal.state.controller is not None
    assert world.journal.state.controller.broker_id != victim, "it was elected again while nobody reached it"
    await world.settle()


async def fail_disk_beside_unreached(world: BrokerWorld, *, how: str) -> None:
    """The disk of the controller fails; of the others, nobody reaches the one that tries to be elected first."""
    controller = await begin_with_victim(world, is_controller=True)
    unreached, other = sorted({0, 1, 2} - {controller})
    world.close_address(unreached, 16.0)
    world.fail_disk(controller, how, 16.0)
    await asyncio.sleep(2 * JUDGED_S)
    elected = world.journal.state.controller
    assert elected is not None
    assert elected.broker_id == other
    await asyncio.sleep(6.0)
    await world.settle()


async def begin_with_victim(world: BrokerWorld, *, is_controller: bool) -> int:
    topic = await begin_together(world)
    world.spawn(Producer(world, "p", topic).send_bursts(60))
    world.spawn(world.tick())
    await asyncio.sleep(world.random.uniform(0, 1))
    elected = world.journal.state.controller
    assert elected is not None
    return elected.broker_id if is_controller else (elected.broker_id + 1) % len(world.brokers)


def check_out_of_office(world: BrokerWorld, broker_id: int) -> None:
    """All that it led and leads is served elsewhere, and the others are as they were."""
    state = world.journal.state
    assert state.controller is not None
    assert state.controller.broker_id != broker_id
    assert state.unfenced_brokers == [one for one in range(len(world.brokers)) if one != broker_id]
    assert not state.leader_counts.get(broker_id)


@pytest.mark.parametrize("is_controller", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_broker_that_is_cut_off_is_replaced_and_no_other_one_is_fenced(way: str, is_controller: bool) -> None:
    """A controller, too: it hears nobody, and all others are alive."""
    simulate(SEEDS.start, new_calm_cluster, functools.partial(cut_one_off, way=way, is_controller=is_controller))


@pytest.mark.parametrize("is_controller", [True, False])
@pytest.mark.parametrize("how", DISK_FAULTS)
def test_broker_whose_disk_fails_is_replaced_and_no_other_one_is_fenced(how: str, is_controller: bool) -> None:
    simulate(SEEDS.start, new_calm_cluster, functools.partial(fail_one_disk, how=how, is_controller=is_controller))


def test_controller_that_nobody_reaches_is_replaced_where_no_majority_can_say_so() -> None:
    """One of two brokers is no majority."""
    for seed in SEEDS:
        simulate(seed, lambda seed: BrokerWorld(seed, NO_FAULTS, broker_count=2), close_address_of_controller)


@pytest.mark.parametrize("how", DISK_FAULTS)
def test_controller_whose_disk_fails_is_not_replaced_for_long_by_one_that_nobody_reaches(how: str) -> None:
    for seed in SEEDS:
        simulate(seed, new_calm_cluster, functools.partial(fail_disk_beside_unreached, how=how))


@pytest.mark.parametrize("scenario", [fail_over, roll])
def test_partitions_are_led_again_soon(scenario: Callable[[BrokerWorld], Any]) -> None:
    for seed in SEEDS:
        simulate(seed, new_calm_cluster, scenario)


async def cut_off(world: BrokerWorld) -> None:
    """No broker reaches another one, then the controller alone stands still."""
    world.start()
    await create_topic(world, "t", 3, {})
    await world.settle()
    elected = metadata_of(world).controller
    assert elected is not None
    everyone = range(len(world.brokers))
    world.cut_links = set(itertools.permutations(everyone, 2))
    await asyncio.sleep(20.0)
    assert metadata_of(world).controller == elected, "a broker was elected because it did not reach the controller"
    world.brokers[elected.broker_id].pause(20.0)
    await asyncio.sleep(10.0)
    assert metadata_of(world).controller != elected, "no broker was elected, though the controller is silent"
    world.cut_links.clear()
    await world.settle()


def metadata_of(world: BrokerWorld) -> ClusterState:
    return load_cluster(world.disk.files)


def test_broker_is_elected_only_if_the_controller_is_silent() -> None:
    for seed in SEEDS:
        simulate(seed, new_calm_cluster, cut_off)


class _TakesBackTheFirstElection(Invariant):
    """The broker dies as it commits its election, and the power with it."""

    is_done = False

    def on_metadata(self, change: Change) -> None:
        if not self.is_done and any(isinstance(record, ControllerElected) for record in change.records):
            self.is_done = True
            self.world.broker.crash()
            key = f"{METADATA_FOLDER}/_delta_log/{change.number:020}.json"
            self.world.disk.lose(key)


async def elect_again(world: BrokerWorld) -> None:
    world.invariants.append(_TakesBackTheFirstElection(world))
    world.start()
    await create_topic(world, "t", 1, {})
    await world.settle()


def test_epoch_of_an_election_that_was_lost_with_the_power_is_free_again() -> None:
    simulate(0, lambda seed: BrokerWorld(seed, NO_FAULTS), elect_again)


class _SlowsRegistrations(Invariant):
    """The controller hears late that the registration of broker 2's second life is in the log."""

    def on_metadata(self, change: Change) -> None:
        lives = [record for record in change.records if isinstance(record, BrokerStarted) and record.broker_id == 2]
        before = change.before.brokers.get(2)
        if lives and before is not None:
            self.world.call_delay = lambda: 2.0  # type: ignore[method-assign]
            heartbeat = pb.BrokerHeartbeatRequest(
                broker_id=2, broker_epoch=before.broker_epoch, incarnation_id=before.incarnation
            )
            self.world.spawn(self._say(heartbeat))

    async def _say(self, heartbeat: Any) -> None:
        """Once more what the first life has said."""
        await asyncio.sleep(0.1)
        controller = self.world.journal.state.controller
        assert controller is not None
        await ask(self.world, "late", "BrokerHeartbeat", heartbeat, broker=self.world.brokers[controller.broker_id])
        del self.world.call_delay


async def register_slowly(world: BrokerWorld) -> None:
    world.start()
    await world.wait_until_whole(10.0)
    world.invariants.append(_SlowsRegistrations(world))
    world.brokers[2].crash()
    await world.settle()


def test_heartbeat_of_the_life_that_the_controller_knows_is_taken_while_another_one_registers() -> None:
    simulate(0, new_calm_cluster, register_slowly)


async def use_names(world: BrokerWorld) -> None:
    """One name is used at a broker that is not the controller, another one nowhere. The controller dies; in the end no
    name is used."""
    world.start()
    await create_topic(world, "t", 3, {})
    await world.settle()
    elected = metadata_of(world).controller
    assert elected is not None
    other = world.brokers[(elected.broker_id + 1) % 3]
    used, idle = [await name_producer(world.brokers[elected.broker_id], name) for name in ("used", "idle")]

    async def go_on(seconds: int) -> set[str]:
        for _ in range(2 * seconds):
            assert other.life is not None
            other.life.core.cluster.producers.check(ProducerStamp(used, 0, 0))
            await asyncio.sleep(0.5)
        by_id = metadata_of(world).producers.by_id
        return {named.name for producer_id in (used, idle) if (named := by_id.get(producer_id)) is not None}

    assert await go_on(4) == {"used", "idle"}
    assert await go_on(16) == {"used"}, "a name expires when it is not used, and no other does"
    world.brokers[elected.broker_id].crash()
    assert await go_on(20) == {"used"}, "a name that is in use expired after an election"
    await asyncio.sleep(20.0)
    assert await go_on(0) == set()


async def name_producer(broker: SimulatedBroker, name: str) -> int:
    assert broker.life is not None
    identity = await broker.life.run(broker.life.core.cluster.producers.init(name), "init")
    assert isinstance(identity, ProducerIdentity)
    return identity.producer_id


def test_names_expire_by_their_last_use_at_any_broker() -> None:
    for seed in SEEDS:
        simulate(
            seed,
            lambda seed: BrokerWorld(seed, NO_FAULTS, broker_count=3, transactional_id_expiration_ms=8_000),
            use_names,
        )


async def hang_controller(world: BrokerWorld) -> None:
    world.start()
    await create_topic(world, "t", 3, {})
    await world.settle()
    await asyncio.sleep(world.random.uniform(0, 1))
    elected = metadata_of(world).controller
    assert elected is not None
    broker = world.brokers[elected.broker_id]
    broker.pause(20.0)
    await asyncio.sleep(broker.config.broker_session_timeout_ms / 1000 + 1.5)
    assert metadata_of(world).controller != elected
    await world.settle()


def test_controller_that_hangs_is_replaced_a_session_after_its_last_sign_of_life() -> None:
    """Not a session after its heartbeats have timed out, which is twice as long."""
    for seed in SEEDS:
        simulate(seed, lambda seed: BrokerWorld(seed, NO_FAULTS, broker_count=3), hang_controller)


async def begin_to_write_while_controller_hangs(world: BrokerWorld) -> None:
    """Each broker coordinates some of the transactional ids, which need producer ids of the controller."""
    world.start()
    await create_topic(world, "t", 3, {})
    await world.wait_until_whole(10.0)
    ids = [f"new-{number}" for number in range(12)]
    for transactional_id in ids:
        await ask_until_answered(world, "p", "FindCoordinator", find_coordinator_of(transactional_id))
    await world.wait_until_whole(10.0)
    elected = metadata_of(world).controller
    assert elected is not None
    others = [broker for broker in world.brokers if broker.config.broker_id != elected.broker_id]
    world.brokers[elected.broker_id].pause(30.0)
    began = world.now
    asked = [
        ask(world, "p", "InitProducerId", pb.InitProducerIdRequest(transactional_id=one), broker=broker)
        for one, broker in itertools.product(ids, others)
    ]
    answers = await asyncio.gather(*asked)
    took_s = world.now - began
    codes = {answer.code if isinstance(answer, BusError) else ErrorCode(answer.error_code) for answer in answers}
    assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}, "they wait, and may try again"
    assert took_s < 4.0, f"the answers took {took_s:.1f} s"
    await world.settle()


def find_coordinator_of(transactional_id: str) -> pb.FindCoordinatorRequest:
    return pb.FindCoordinatorRequest(key=transactional_id, key_type=pb.COORDINATOR_TYPE_TRANSACTION)


def test_producer_waits_for_no_controller_that_hangs_once_that_is_fenced() -> None:
    """It is answered that it may try again, long before its own time is over."""
    for seed in SEEDS:
        simulate(seed, new_patient_cluster, begin_to_write_while_controller_hangs)


def new_patient_cluster(seed: int) -> BrokerWorld:
    return BrokerWorld(seed, NO_FAULTS, broker_count=3, transaction_state_log_num_partitions=6)


def test_seed_decides_everything() -> None:
    first, again = (simulate(3, new_world, maintain) for _ in range(2))
    assert first.trace() == again.trace()


# ---------------------------------------------------------------- each check fails where its promise is broken


def broken_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of records whose fate is unknown is taken for committed."""
    commit = writer.commit_version

    def commit_version(store: Any, log_folder: str, *, version: int, high_watermark: int, **options: Any) -> Any:
        outcome = commit(store, log_folder, version=version, high_watermark=high_watermark, **options)
        is_taken = isinstance(outcome, Unknown) and CLUSTER_METADATA_TOPIC not in log_folder
        return Committed(version, high_watermark) if is_taken else outcome

    monkeypatch.setattr(writer, "commit_version", commit_version)


def broken_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed files go before the versions that have them."""
    drop = Cleanup.drop_old_versions

    def drop_too_much(self: Cleanup, **options: Any) -> Any:
        for path in list(self._removed):
            self._store.delete(f"{self._folder}/{path}")
        return drop(self, **options)

    monkeypatch.setattr(Cleanup, "drop_old_versions", drop_too_much)


def broken_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes a lower epoch."""
    encode = table.encode_append

    def encode_append(*args: Any, signature: Signature, **options: Any) -> bytes:
        lower = replace(signature, leader_epoch=100 - signature.leader_epoch)
        return encode(*args, signature=lower, **options)

    monkeypatch.setattr(table, "encode_append", encode_append)


def broken_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start leads under the epoch of the one before it."""
    encode = table.encode_append

    def encode_append(*args: Any, signature: Signature, **options: Any) -> bytes:
        return encode(*args, signature=replace(signature, leader_epoch=100), **options)

    monkeypatch.setattr(table, "encode_append", encode_append)


def broken_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat is appended once more."""
    monkeypatch.setattr(appends, "_decide_producer", lambda *args: InOrder())


def broken_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch is told of less than the one before."""
    read = Partition.read

    async def lower(self: Partition, readable: Readable, max_bytes: int) -> Any:
        found = await read(self, readable, max_bytes)
        is_short = not isinstance(found, Refused) and readable.offset == readable.end_offset > 3
        return found._replace(high_watermark=found.high_watermark - 2) if is_short else found  # type: ignore[union-attr]

    monkeypatch.setattr(Partition, "read", lower)


def broken_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not take up a change that the log has."""
    take, counts = MetadataLog._take, itertools.count()
    monkeypatch.setattr(
        MetadataLog,
        "_take",
        lambda self, state, applied: take(self, state, applied) if next(counts) % 5 or state.topics == {} else None,
    )


def broken_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of a group's log leaves out its offsets."""
    monkeypatch.setattr(CoordinatorLog, "_merge", lambda self, batches, offset, last: None)


def broken_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that could not be opened never is, and every third opening fails."""
    take_over, counts = PartitionHost._take_over, itertools.count(1)

    def fail_often(self: PartitionHost, *args: Any, **options: Any) -> Any:
        if next(counts) % 3 == 0:
            raise StorageFault("the opening fails")
        return take_over(self, *args, **options)

    monkeypatch.setattr(PartitionHost, "_take_over", fail_often)
    monkeypatch.setattr(PartitionHost, "_open_again_later", lambda *args: None)


def broken_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has less than the log of the metadata says."""
    take = MetadataLog._take

    def lossy(self: MetadataLog, state: ClusterState, applied: int) -> None:
        take(self, state, applied)
        self._cluster = replace(state, topic_names={})

    monkeypatch.setattr(MetadataLog, "_take", lossy)


def broken_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader serves without a fence."""
    take_over = PartitionHost._take_over

    def take_over_at_once(self: PartitionHost, *args: Any, fence: bool) -> Any:
        return take_over(self, *args, fence=False)

    monkeypatch.setattr(PartitionHost, "_take_over", take_over_at_once)


def broken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end that a leader tells lacks the last record."""
    decide = partition.decide_list_offsets

    def decide_late(state: PartitionState, *args: Any) -> Any:
        return decide(replace(state, high_watermark=max(state.log_start, state.high_watermark - 1)), *args)

    monkeypatch.setattr(partition, "decide_list_offsets", decide_late)


def broken_looking_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader does not look whether another one has come behind it."""
    monkeypatch.setattr(writer.LogWriter, "is_last", lambda self, version: True)
    monkeypatch.setattr(writer.LogWriter, "is_at_end", lambda self, version: True)
    monkeypatch.setattr(writer.LogWriter, "is_followed", lambda self, version: False)


def broken_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat of an earlier life extends the session of the present one."""
    heartbeat = BrokerSessions.heartbeat

    def take(self: BrokerSessions, state: ClusterState, broker_id: int, epoch: int, life: str, **options: Any) -> Any:
        known = state.brokers.get(broker_id)
        life, epoch = (life, epoch) if known is None else known.life
        return heartbeat(self, state, broker_id, epoch, life, **options)

    monkeypatch.setattr(BrokerSessions, "heartbeat", take)


def broken_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fenced broker may be chosen as leader."""
    move = broker_decisions.move_leaders
    monkeypatch.setattr(
        broker_decisions, "move_leaders", lambda state, leaving, _: move(state, leaving, sorted(state.brokers))
    )


def broken_commit_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of a group's log forgets when offsets were committed (KAFKA-8069)."""
    decode = loading.decode_record

    def decode_without_times(row: Any) -> Any:
        record = decode(row)
        return replace(record, commit_ms=0) if isinstance(record, OffsetCommitted) else record

    monkeypatch.setattr(loading, "decode_record", decode_without_times)


def broken_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker ends as soon as the controller has heard that it wants to."""
    monkeypatch.setattr(BrokerHeartbeats, "_may_leave", lambda self, broker_id: broker_id in self._leaving)


def broken_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root of level 0 gets records of level 1."""
    for module in (broker_decisions, broker_lifecycle, partition_placement):
        monkeypatch.setattr(module, "LEVEL_OF_CLUSTERS", 0)
    for record_type in RECORD_TYPES:
        monkeypatch.setattr(record_type, "since_level", 0)


def broken_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker leads under an epoch that it was not given."""
    take_over = PartitionHost._take_over

    def take_over_above(self: PartitionHost, name: Any, lead: Lead, *args: Any, **options: Any) -> Any:
        return take_over(self, name, replace(lead, leader_epoch=lead.leader_epoch + 1), *args, **options)

    monkeypatch.setattr(PartitionHost, "_take_over", take_over_above)


def broken_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent broker is never fenced."""
    monkeypatch.setattr(BrokerSessions, "check", lambda *args: {})


def broken_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller is replaced only if its process has ended or its lease is silent."""
    monkeypatch.setattr(broker_lifecycle, "is_left_by_majority", lambda *args: False)


def broken_resigning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller goes on until a majority cannot reach it."""
    monkeypatch.setattr(broker_lifecycle, "may_resign", lambda *args: False)


def broken_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose heartbeats come through is taken for reached."""
    monkeypatch.setattr(BrokerReach, "find_unreached", lambda *args: {})


def broken_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker finds out that it cannot write."""
    monkeypatch.setattr(WriteSession, "tick", lambda *args: None)


async def cut_controller_off(world: BrokerWorld) -> None:
    await cut_one_off(world, way="both ways", is_controller=True)


async def close_address_of_other(world: BrokerWorld) -> None:
    await cut_one_off(world, way="connections to it", is_controller=False)


async def fail_disk_of_controller(world: BrokerWorld) -> None:
    await fail_one_disk(world, how="cannot be written", is_controller=True)


async def fail_disk_beside_one(world: BrokerWorld) -> None:
    await fail_disk_beside_unreached(world, how="cannot be written")


async def fail_disk_of_other(world: BrokerWorld) -> None:
    await fail_one_disk(world, how="cannot be written", is_controller=False)


def broken_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat extends no session."""
    begin = BrokerSessions.begin

    def begin_once(self: BrokerSessions, broker_id: int, *args: Any, **options: Any) -> None:
        if broker_id not in self._sessions:
            begin(self, broker_id, *args, **options)

    monkeypatch.setattr(BrokerSessions, "begin", begin_once)


@pytest.mark.parametrize(
    ("break_it", "scenario", "promise"),
    [
        (broken_durability, produce_and_fetch, "AcknowledgedIsInTheTable"),
        (broken_cleaning, maintain, "TablesAreSound"),
        (broken_epochs, produce_and_fetch, "VersionsOnlyGrow"),
        (broken_claims, produce_and_fetch, "EpochsHaveOneLeader"),
        (broken_sequences, produce_and_fetch, "EachRecordOnce"),
        (broken_views, produce_and_fetch, "ViewsNeverGoBack"),
        (broken_replay, produce_and_fetch, "MetadataIsItsLog"),
        (broken_memory, administrate, "AcknowledgedIsSeen"),
        (broken_ends, produce_and_fetch, "LeadersShowTheAcknowledged"),
        (broken_cleaning, maintain, "OnlyTheLeaderCleans"),
        (broken_offsets, administrate, "CommittedOffsetsStay"),
        (broken_commit_times, administrate, "CommittedOffsetsStay"),
        (broken_levels, administrate, "RecordsFitTheLevel"),
        (broken_opening, produce_and_fetch, "EverythingEnds"),
    ],
)
def test_broken_promise_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[BrokerWorld], Any],
    promise: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(monkeypatch)
    check_seen(promise, scenario, lambda seed: BrokerWorld(seed, Faults(failed_read=40, unknown_outcome=20)))


@pytest.mark.parametrize(
    ("break_it", "scenario", "promise"),
    [
        (broken_take_over, fail_over, "LeadersServeBehindTheirFence"),
        (broken_looking_on, maintain, "OnlyTheLeaderCleans"),
        (broken_lives, produce_and_fetch, "ControllersSucceedEachOther"),
        (broken_choice, fail_over, "LeadersAreUnfenced"),
        (broken_leaving, roll, "ShutdownsAreClean"),
        (broken_leadership, fail_over, "VersionsFitTheirTopic"),
        (broken_fencing, fail_over, "LeadersAreBackSoon"),
        (broken_votes, cut_controller_off, "LeadersAreBackSoon"),
        (broken_resigning, fail_disk_beside_one, "ControllersAreReached"),
        (broken_reach, close_address_of_other, "LeadersAreBackSoon"),
        (broken_standing, fail_disk_of_controller, "LeadersAreBackSoon"),
        (broken_standing, fail_disk_of_other, "LeadersAreBackSoon"),
        (broken_sessions, produce_and_fetch, "HealthyClustersStayAsTheyAre"),
    ],
)
def test_broken_promise_of_a_cluster_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[BrokerWorld], Any],
    promise: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(monkeypatch)
    of_calm = ("LeadersAreBackSoon", "ControllersAreReached", "HealthyClustersStayAsTheyAre")
    is_calm = promise in of_calm or scenario in (fail_over, roll)
    if promise == "ControllersSucceedEachOther":
        check_seen(promise, scenario, new_doubling_cluster)
    else:
        check_seen(promise, scenario, new_calm_cluster if is_calm else new_cluster)


def new_doubling_cluster(seed: int) -> BrokerWorld:
    return BrokerWorld(seed, replace(NO_FAULTS, doubled_request=2), broker_count=3)


def check_seen(promise: str, scenario: Callable[[BrokerWorld], Any], new_world: Callable[[int], BrokerWorld]) -> None:
    def judged_by_one(seed: int) -> BrokerWorld:
        world = new_world(seed)
        world.invariants = [found for found in world.invariants if type(found).__name__ == promise]
        return world

    seen: list[str] = []
    for seed in range(20):
        try:
            simulate(seed, judged_by_one, scenario)
        except AssertionError as failure:  # what is broken may keep a broker from serving, too
            seen.append(str(failure).partition("\n")[0])
            if promise in seen[-1]:
                return
    pytest.fail(f"expected {promise} to be broken, found {seen}")
