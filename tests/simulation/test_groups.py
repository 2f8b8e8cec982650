"""Promises of a consumer group, through everything that processes, a network and a coordinator may do to it.

BUS_SEEDS says how many seeds every test plays, BUS_SEED the first one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.simulation.group_process import ASYNC, AUTO, SYNC, Habit, Process
from tests.simulation.group_world import NO_FAULTS, Faults, World, simulate
from tests.support.seeds import seeds

SEEDS = seeds(10)
FAULTY_S = 40.0

EAGER = ("range", "roundrobin", "sticky", "range,roundrobin", "range,cooperative-sticky")
COOPERATIVE = ("cooperative-sticky",)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# ---------------------------------------------------------------- what happens to processes


def habit_of(world: World, strategy: str, instance_id: str | None = None) -> Habit:
    topics = world.random.choice((frozenset({"t"}), frozenset({"t"}), frozenset({"t", "u"})))
    return Habit(strategy, instance_id, topics, world.random.choice((AUTO, ASYNC, SYNC)))


def die_and_come_back(world: World, process: Process) -> None:
    process.die()
    world.at(world.random.choice((0.0, world.random.uniform(0, 12.0))), lambda: come_back(world, process))


def come_back(world: World, process: Process) -> None:
    world.begin(process.habit)


def freeze(world: World, process: Process) -> None:
    process.freeze(world.random.choice((world.random.uniform(0, 3.0), world.random.uniform(3.0, 20.0))))


def hang(world: World, process: Process) -> None:
    process.hangs_for_s = world.random.choice((world.random.uniform(0, 5.0), world.random.uniform(5.0, 20.0)))


def close_and_come_back(world: World, process: Process) -> None:
    world.close(process)
    world.at(world.random.uniform(0, 6.0), lambda: come_back(world, process))


def subscribe_to_others(world: World, process: Process) -> None:
    """So does what comes back under the same instance id: with other topics it would have to wait for the next
    rebalance (KIP-345)."""
    topics = world.random.choice((frozenset({"t"}), frozenset({"u"}), frozenset({"t", "u"})))
    world.note(process.name, f"subscribes to {sorted(topics)}")
    process.membership.subscribe(topics)
    for twin in world.processes:
        if twin.habit.instance_id is not None and twin.habit.instance_id == process.habit.instance_id:
            twin.habit = replace(twin.habit, topics=topics)


def take_its_place(world: World, process: Process) -> None:
    """A twin with the same instance id begins while the older one still runs; without an id it is one member more."""
    if len(world.running()) < 7:
        world.begin(process.habit)


def add_partition(world: World, process: Process) -> None:
    if world.partition_counts["t"] < 7:
        world.add_partition("t")


def crash_coordinator(world: World, process: Process) -> None:
    world.coordinator.crash(world.down_s())


def stop_coordinator(world: World, process: Process) -> None:
    world.coordinator.stop(world.down_s())


Deed = Callable[[World, Process], None]
DEEDS: tuple[Deed, ...] = (
    die_and_come_back,
    die_and_come_back,
    freeze,
    freeze,
    hang,
    hang,
    close_and_come_back,
    subscribe_to_others,
    take_its_place,
    add_partition,
    crash_coordinator,
    stop_coordinator,
)


async def do_deeds(world: World, seconds: float = FAULTY_S) -> None:
    until = world.now + seconds
    while world.now < until:
        await asyncio.sleep(world.random.choice((world.random.uniform(0, 0.5), world.random.uniform(0, 6.0))))
        processes = [process for process in world.running() if not process.is_closing]
        if processes:
            world.random.choice(DEEDS)(world, world.random.choice(processes))


def scenario_of(strategies: tuple[str, ...], statics: int = 0) -> Callable[[World], object]:
    async def scenario(world: World) -> None:
        strategy = world.random.choice(strategies)
        for number in range(world.random.randrange(2, 5)):
            world.begin(habit_of(world, strategy, f"i{number}" if number < statics else None))
        await do_deeds(world)
        await world.settle()

    return scenario


def play(scenario: Callable[[World], object], faults: Faults) -> None:
    for seed in SEEDS:
        simulate(seed, faults, scenario)  # type: ignore[arg-type]


# ---------------------------------------------------------------- through all faults


@pytest.mark.parametrize("statics", [0, 2, 4])
@pytest.mark.parametrize("strategies", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_any_fault_leaves_one_owner_no_stale_commit_no_gap_and_in_the_end_everybody_assigned(
    strategies: tuple[str, ...], statics: int
) -> None:
    play(scenario_of(strategies, statics), Faults())


@pytest.mark.parametrize("strategies", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_processes_that_fail_on_a_network_that_does_not(strategies: tuple[str, ...]) -> None:
    play(scenario_of(strategies, 1), replace(NO_FAULTS, slow_callback=10))


def test_rolling_upgrade_from_eager_to_cooperative_under_all_faults() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            world.begin(habit_of(world, "range"))
        for strategy in ("range,cooperative-sticky", "cooperative-sticky"):
            await asyncio.sleep(world.random.uniform(1.0, 8.0))
            for process in [found for found in world.running() if found.habit.strategy != strategy]:
                if world.random.randrange(2):
                    process.die()
                else:
                    world.close(process)
                await asyncio.sleep(world.random.uniform(0, 3.0))
                world.begin(replace(process.habit, strategy=strategy))
                await asyncio.sleep(world.random.uniform(0, 6.0))
        await world.settle()

    play(scenario, Faults())


# ---------------------------------------------------------------- without faults


@pytest.mark.parametrize("strategy", [*EAGER, *COOPERATIVE])
def test_members_that_come_and_go_by_themselves_process_each_record_once(strategy: str) -> None:
    async def scenario(world: World) -> None:
        members = [world.begin(Habit(strategy, commits=AUTO)) for _ in range(2)]
        for _ in range(4):
            await asyncio.sleep(world.random.uniform(0.5, 5.0))
            members.append(world.begin(Habit(strategy, commits=AUTO)))
            await asyncio.sleep(world.random.uniform(0.5, 5.0))
            leaving = members.pop(world.random.randrange(len(members)))
            # What is read while the group rebalances cannot be committed by who closes before it is over.
            while not leaving.is_settled:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.01)
            world.close(leaving)
        await world.settle()

    for seed in SEEDS:
        world = simulate(seed, NO_FAULTS, scenario)
        assert world.processed, "something was read"
        for partition, offsets in world.processed.items():
            assert offsets == list(range(len(offsets))), f"seed {seed}: {partition} was read as {offsets}"
