"""Uses of transactions over simulated brokers: a bank, lists that are read and appended to, copies of each record. The
judges of test_broker_transactions.py look on."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bus.client.connection.metadata_cache import TopicInfo
from tests.simulation.broker_programs import Producer, create_topic
from tests.simulation.broker_world import BrokerWorld, simulate
from tests.simulation.coordinator_journal import CoordinatorJournal
from tests.simulation.test_broker import disturb_if_any
from tests.simulation.test_broker_transactions import new_cluster, new_world, some_seeds
from tests.simulation.transaction_bugs import broken_commit, broken_rows, broken_settling
from tests.simulation.transaction_disturbances import Mover
from tests.simulation.transaction_invariants import TransactionsAreWhole
from tests.simulation.transaction_workloads import Appender, Copier, Teller, check_bank, check_lists

pytestmark = pytest.mark.timeout(300)

Scenario = Callable[[BrokerWorld], Coroutine[Any, Any, None]]


async def make_topics(world: BrokerWorld, *names: str) -> list[TopicInfo]:
    world.start()
    topics = []
    for name in names:
        topics.append(await create_topic(world, name, 2, {}))
        world.live_topics.add(topics[-1].topic_id)
    return topics


async def settle(world: BrokerWorld) -> None:
    if len(world.brokers) > 1:
        world.spawn(Mover(world, "m").run())
    await disturb_if_any(world)
    await world.settle()
    world.tell("check_end")
    await asyncio.sleep(3.0)  # what is logged later is logged


async def move_money(world: BrokerWorld) -> None:
    topics = await make_topics(world, "t", "u")
    for number, transactional_id in enumerate(("a", "a", "b")):
        world.spawn(Teller(world, f"x{number}", transactional_id, list(topics)).run())
    await settle(world)
    with tempfile.TemporaryDirectory() as folder:
        check_bank(world, Path(folder))


async def append_to_lists(world: BrokerWorld) -> None:
    topics = await make_topics(world, "t", "u")
    for number, transactional_id in enumerate(("a", "a", "b", "c")):
        world.spawn(Appender(world, f"x{number}", transactional_id, list(topics)).run())
    await settle(world)
    check_lists(world)


async def copy_each_record(world: BrokerWorld) -> None:
    source, target = await make_topics(world, "t", "copies")
    world.spawn(Producer(world, "p", source).send_bursts(40))
    for number in range(3):
        world.spawn(Copier(world, f"c{number}", source, target).run())
    await settle(world)


NEEDED = (CoordinatorJournal, TransactionsAreWhole)  # for what they know
SCENARIOS = [move_money, append_to_lists, copy_each_record]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_transactions_do_what_they_are_used_for_whatever_fails(scenario: Scenario) -> None:
    for seed in some_seeds():
        simulate(seed, new_world, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_transactions_do_what_they_are_used_for_on_three_brokers(scenario: Scenario) -> None:
    for seed in some_seeds():
        simulate(seed, new_cluster, scenario)


@pytest.mark.parametrize(
    ("break_it", "scenario", "promise"),
    [
        (broken_commit, move_money, "BankKeepsItsMoney"),
        (broken_rows, append_to_lists, "ListsOnlyGrow"),
        (broken_settling, copy_each_record, "EachRecordIsCopiedOnce"),
    ],
)
def test_broken_use_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None], scenario: Scenario, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken use is seen by its effect, without the judges of transactions."""

    def unjudged(seed: int) -> BrokerWorld:
        world = new_world(seed)
        world.invariants = [found for found in world.invariants if isinstance(found, NEEDED)]
        for found in world.invariants:
            found.check_end = lambda: None  # type: ignore[method-assign]
        return world

    break_it(monkeypatch)
    seen = []
    for seed in range(20):
        try:
            simulate(seed, unjudged, scenario)
        except AssertionError as failure:
            seen.append(str(failure).partition("\n")[0])
            if promise in seen[-1]:
                return
    pytest.fail(f"expected {promise} to be broken, found {seen}")
